//! Patterns: the translated RE2 syntax in the engine against a short matcher that implements the definitions.
//!
//! A pattern is generated as a tree. Its text, in any form that RE2 accepts, goes through the filter; the tree itself is
//! matched by following all alternatives at once. Bytes are Latin-1, also for case folding.

use std::collections::BTreeSet;

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::filter::{CompiledFilter, Filter};
use ebla_model::key::RowKey;
use ebla_model::time::Micros;
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::select;

/// Bytes that patterns and values share: letters of both kinds with and without another case, a digit, a newline.
const BYTES: [u8; 13] = [b'a', b'b', b'B', b'k', b'0', b'_', b'\n', 0, 0xe9, 0xc9, 0xd7, 0xf7, 0xff];

#[derive(Clone, Debug)]
enum Pattern {
    Byte(u8, Spelling),
    Dot,
    AnyByte,
    Class { negated: bool, items: Vec<Item> },
    Escape(char),
    Start,
    End,
    Sequence(Vec<Pattern>),
    Either(Vec<Pattern>),
    Repeat { inner: Box<Pattern>, least: u32, most: Option<u32>, lazy: bool },
    Flagged { inner: Box<Pattern>, flag: char, on: bool },
}

#[derive(Clone, Debug)]
enum Spelling {
    Raw,
    Hex,
    BracedHex,
    Octal,
    Quoted,
}

#[derive(Clone, Debug)]
enum Item {
    Range(u8, u8),
    Escape(char),
    Posix { name: &'static str, negated: bool },
}

/// The flags at a position.
#[derive(Clone, Copy, Default)]
struct Flags {
    fold: bool,
    dot_all: bool,
}

fn byte() -> impl Strategy<Value = u8> {
    select(BYTES.to_vec())
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        4 => (byte(), byte()).prop_map(|(a, b)| Item::Range(a.min(b), a.max(b))),
        2 => byte().prop_map(|byte| Item::Range(byte, byte)),
        1 => select(vec!['d', 'D', 's', 'S', 'w', 'W']).prop_map(Item::Escape),
        1 => (select(vec!["lower", "upper", "alpha", "space", "word"]), any::<bool>())
            .prop_map(|(name, negated)| Item::Posix { name, negated }),
    ]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let spelling = select(vec![Spelling::Raw, Spelling::Hex, Spelling::BracedHex, Spelling::Octal, Spelling::Quoted]);
    let leaf = prop_oneof![
        6 => (byte(), spelling).prop_map(|(byte, spelling)| Pattern::Byte(byte, spelling)),
        1 => Just(Pattern::Dot),
        1 => Just(Pattern::AnyByte),
        3 => (any::<bool>(), vec(item(), 1..3)).prop_map(|(negated, items)| Pattern::Class { negated, items }),
        1 => select(vec!['d', 'D', 's', 'S', 'w', 'W']).prop_map(Pattern::Escape),
        1 => select(vec![Pattern::Start, Pattern::End]),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        let boxed = || inner.clone().prop_map(Box::new);
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Pattern::Sequence),
            vec(inner.clone(), 1..3).prop_map(Pattern::Either),
            (boxed(), 0_u32..3, proptest::option::of(0_u32..3), any::<bool>()).prop_map(
                |(inner, least, more, lazy)| {
                    Pattern::Repeat { inner, least, most: more.map(|more| least + more), lazy }
                }
            ),
            (boxed(), select(vec!['i', 's']), any::<bool>()).prop_map(|(inner, flag, on)| Pattern::Flagged {
                inner,
                flag,
                on
            }),
        ]
    })
}

/// The pattern as a client writes it.
fn write(pattern: &Pattern, out: &mut Vec<u8>) {
    match pattern {
        Pattern::Byte(byte, spelling) => match spelling {
            Spelling::Raw => out.push(*byte),
            Spelling::Hex => out.extend(format!("\\x{byte:02x}").bytes()),
            Spelling::BracedHex => out.extend(format!("\\x{{{byte:X}}}").bytes()),
            Spelling::Octal => out.extend(format!("\\{byte:03o}").bytes()),
            Spelling::Quoted => out.extend([br"\Q", [*byte].as_slice(), br"\E"].concat()),
        },
        Pattern::Dot => out.push(b'.'),
        Pattern::AnyByte => out.extend(br"\C"),
        Pattern::Class { negated, items } => {
            out.extend(if *negated { "[^" } else { "[" }.bytes());
            items.iter().for_each(|item| write_item(item, out));
            out.push(b']');
        }
        Pattern::Escape(letter) => out.extend(format!("\\{letter}").bytes()),
        Pattern::Start => out.push(b'^'),
        Pattern::End => out.push(b'$'),
        Pattern::Sequence(members) => {
            out.push(b'(');
            members.iter().for_each(|member| write(member, out));
            out.push(b')');
        }
        Pattern::Either(members) => {
            out.extend(b"(?:");
            for (at, member) in members.iter().enumerate() {
                out.extend(if at > 0 { "|" } else { "" }.bytes());
                write(member, out);
            }
            out.push(b')');
        }
        Pattern::Repeat { inner, least, most, lazy } => {
            out.extend(b"(?:");
            write(inner, out);
            let counts = match (least, most) {
                (0, None) => "*".to_owned(),
                (1, None) => "+".to_owned(),
                (0, Some(1)) => "?".to_owned(),
                (least, None) => format!("{{{least},}}"),
                (least, Some(most)) => format!("{{{least},{most}}}"),
            };
            out.extend(format!("){counts}{}", if *lazy { "?" } else { "" }).bytes());
        }
        // Half are written as a flag inside a group, half as a group with a flag.
        Pattern::Flagged { inner, flag, on } => {
            let sign = if *on { "" } else { "-" };
            let open = if *flag == 'i' { format!("(?{sign}{flag}:") } else { format!("((?{sign}{flag})") };
            out.extend(open.bytes());
            write(inner, out);
            out.push(b')');
        }
    }
}

fn write_item(item: &Item, out: &mut Vec<u8>) {
    match item {
        Item::Range(low, high) if low == high => out.push(*low),
        Item::Range(low, high) => out.extend([[*low].as_slice(), b"-", &[*high]].concat()),
        Item::Escape(letter) => out.extend(format!("\\{letter}").bytes()),
        Item::Posix { name, negated } => out.extend(format!("[:{}{name}:]", if *negated { "^" } else { "" }).bytes()),
    }
}

/// The possible ends of a match of `pattern` that starts at `at`.
fn ends(pattern: &Pattern, text: &[u8], at: usize, flags: Flags) -> BTreeSet<usize> {
    let one = |matches: &dyn Fn(u8) -> bool| {
        text.get(at).filter(|byte| matches(**byte)).map(|_| at + 1).into_iter().collect()
    };
    let here = |holds: bool| holds.then_some(at).into_iter().collect();
    match pattern {
        Pattern::Byte(byte, _) => one(&|found| cases(found, flags).contains(byte)),
        Pattern::Dot => one(&|found| flags.dot_all || found != b'\n'),
        Pattern::AnyByte => one(&|_| true),
        Pattern::Class { negated, items } => {
            one(&|found| items.iter().any(|item| item_holds(item, found, flags)) != *negated)
        }
        Pattern::Escape(letter) => one(&|found| escape_holds(*letter, found)),
        Pattern::Start => here(at == 0),
        Pattern::End => here(at == text.len()),
        Pattern::Sequence(members) => members.iter().fold(BTreeSet::from([at]), |starts, member| {
            starts.into_iter().flat_map(|start| ends(member, text, start, flags)).collect()
        }),
        Pattern::Either(members) => members.iter().flat_map(|member| ends(member, text, at, flags)).collect(),
        Pattern::Repeat { inner, least, most, .. } => {
            let step = |starts: BTreeSet<usize>| -> BTreeSet<usize> {
                starts.into_iter().flat_map(|start| ends(inner, text, start, flags)).collect()
            };
            let mut reached = (0..*least).fold(BTreeSet::from([at]), |starts, _| step(starts));
            let mut all = reached.clone();
            // Repeat until nothing new can appear.
            for _ in 0..most.map_or(text.len() + 1, |most| (most - least) as usize) {
                reached = step(reached);
                all.extend(&reached);
            }
            all
        }
        Pattern::Flagged { inner, flag: 'i', on } => ends(inner, text, at, Flags { fold: *on, ..flags }),
        Pattern::Flagged { inner, on, .. } => ends(inner, text, at, Flags { dot_all: *on, ..flags }),
    }
}

/// A byte, with its other case if case is ignored.
fn cases(byte: u8, flags: Flags) -> BTreeSet<u8> {
    let letter = char::from(byte);
    let others = letter.to_lowercase().chain(letter.to_uppercase()).filter_map(|other| u8::try_from(other).ok());
    let others = others.filter(|other| flags.fold && char::from(*other).to_lowercase().eq(letter.to_lowercase()));
    others.chain([byte]).collect()
}

fn item_holds(item: &Item, found: u8, flags: Flags) -> bool {
    let any_case = |holds: &dyn Fn(u8) -> bool| cases(found, flags).into_iter().any(holds);
    match item {
        Item::Range(low, high) => any_case(&|byte| (low..=high).contains(&&byte)),
        Item::Escape(letter) => escape_holds(*letter, found),
        Item::Posix { name, negated } => {
            any_case(&|byte| match *name {
                "lower" => byte.is_ascii_lowercase(),
                "upper" => byte.is_ascii_uppercase(),
                "alpha" => byte.is_ascii_alphabetic(),
                "space" => b" \t\n\x0b\x0c\r".contains(&byte),
                _ => byte.is_ascii_alphanumeric() || byte == b'_',
            }) != *negated
        }
    }
}

fn escape_holds(letter: char, found: u8) -> bool {
    let holds = match letter.to_ascii_lowercase() {
        'd' => found.is_ascii_digit(),
        's' => b" \t\n\x0c\r".contains(&found),
        _ => found.is_ascii_alphanumeric() || found == b'_',
    };
    holds != letter.is_ascii_uppercase()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_pattern_matches_what_its_definition_matches(
        pattern in pattern(),
        values in vec(vec(byte(), 0..5), 1..20),
    ) {
        let mut written = Vec::new();
        write(&pattern, &mut written);
        let shown = written.escape_ascii().to_string();
        let filter = CompiledFilter::compile(Filter::ValueRegex(written.into())).unwrap();
        let family = FamilyName::new("f").unwrap();
        for value in values {
            let cell = Cell::new(family.clone(), Bytes::new(), Micros::ZERO, value.clone().into());
            let row = Row { key: RowKey::new("k"), cells: vec![cell] };
            let expected = ends(&pattern, &value, 0, Flags::default()).contains(&value.len());
            prop_assert_eq!(
                filter.matches(&row, &|| false), Ok(expected), "{} on {}", shown, value.escape_ascii()
            );
        }
    }
}

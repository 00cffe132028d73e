//! Translates RE2's byte syntax to that of `regex::bytes` with Unicode off.
//!
//! The two are similar but not equal, so a pattern is parsed byte by byte and rewritten in a form that has the same meaning
//! in both: every literal becomes `\xHH`, every group becomes non-capturing, every class is rebuilt. Unknown syntax is
//! refused and never passed through.
//!
//! Refused although RE2 accepts it: Unicode classes (`\p`).
//!
//! A counted repetition multiplies the program, so the program's size is estimated before compilation.

use crate::filter::byte_set::{ByteSet, perl_class, posix_class, push_byte};

/// RE2's limit of counted repetitions, also for the product of nested counts.
const REPEAT_MAX: u32 = 1000;

/// A pattern in the engine's syntax.
pub(super) struct Translated {
    /// Must be matched against the whole string.
    pub(super) pattern: String,
    /// The literal, if the pattern has only literals.
    pub(super) literal: Option<Vec<u8>>,
    /// Estimated number of instructions.
    pub(super) program_size: usize,
}

/// Translates a pattern.
pub(super) fn translate(pattern: &[u8]) -> Result<Translated, PatternError> {
    let Translator { out, literal, scope, .. } = Translator::new(pattern).run()?;
    Ok(Translated { pattern: out, literal, program_size: scope.whole.program_size })
}

/// Why a pattern is refused.
pub(super) struct PatternError(pub(super) String);

fn fail<T>(why: impl Into<String>) -> Result<T, PatternError> {
    Err(PatternError(why.into()))
}

/// Parses RE2 from `rest`, writes the engine's syntax to `out`.
struct Translator<'a> {
    rest: &'a [u8],
    out: String,
    /// The literal so far, as long as the pattern has only literals.
    literal: Option<Vec<u8>>,
    /// The innermost open group.
    scope: Scope,
    /// The groups around it.
    outer: Vec<Scope>,
    /// The item that was parsed last.
    last: LastItem,
}

/// A group, or the whole pattern.
#[derive(Clone, Copy, Default)]
struct Scope {
    case: Case,
    /// All of it so far.
    whole: Part,
    /// The operand of a repetition.
    atom: Part,
}

/// Case sensitivity.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Case {
    #[default]
    Sensitive,
    Insensitive,
}

/// Size of a part of a pattern.
#[derive(Clone, Copy, Default)]
struct Part {
    /// Estimated number of instructions.
    program_size: usize,
    /// The largest product of nested counts inside.
    count: u32,
}

/// RE2 refuses a repetition of a repetition, as in `a**`; the engine accepts it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastItem {
    Repetition,
    Other,
}

/// Meaning of an escape.
enum Escape {
    Byte(u8),
    /// `\d`, `\s` and `\w`, or with a capital letter their complements.
    Class(Box<ByteSet>),
    Other(u8),
}

impl<'a> Translator<'a> {
    fn new(pattern: &'a [u8]) -> Self {
        Self {
            rest: pattern,
            out: String::new(),
            literal: Some(Vec::new()),
            scope: Scope::default(),
            outer: Vec::new(),
            last: LastItem::Other,
        }
    }

    fn run(mut self) -> Result<Self, PatternError> {
        while let Some(byte) = self.next() {
            self.step(byte)?;
        }
        if !self.outer.is_empty() {
            return fail("missing closing )");
        }
        Ok(self)
    }

    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    /// Skips `prefix` if it is next.
    fn skip(&mut self, prefix: &[u8]) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn step(&mut self, byte: u8) -> Result<(), PatternError> {
        let last = std::mem::replace(&mut self.last, LastItem::Other);
        match byte {
            b'\\' => self.escape(),
            b'[' => self.class(),
            b'(' => self.group(),
            b')' => {
                let outer = self.outer.pop().ok_or_else(|| PatternError("unexpected )".into()))?;
                let group = std::mem::replace(&mut self.scope, outer).whole;
                self.syntax(")");
                self.atom(group);
                Ok(())
            }
            b'*' => self.repetition("*", last),
            b'+' => self.repetition("+", last),
            b'?' => self.repetition("?", last),
            b'{' => self.brace(last),
            b'.' | b'|' | b'^' | b'$' => {
                self.literal = None;
                self.out.push(char::from(byte));
                self.atom(Part::ONE);
                Ok(())
            }
            _ => {
                self.byte(byte);
                Ok(())
            }
        }
    }

    /// Writes syntax that is not a literal.
    fn syntax(&mut self, text: &str) {
        self.literal = None;
        self.out.push_str(text);
    }

    /// Records an atom, which a repetition may follow.
    fn atom(&mut self, piece: Part) {
        self.scope.atom = piece;
        self.scope.whole = self.scope.whole.and(piece);
    }

    /// Writes a literal byte.
    fn byte(&mut self, byte: u8) {
        if self.scope.case == Case::Insensitive {
            return self.set(&ByteSet::of(byte).folded());
        }
        push_byte(&mut self.out, byte);
        if let Some(literal) = &mut self.literal {
            literal.push(byte);
        }
        self.atom(Part::ONE);
    }

    /// Writes a class.
    fn set(&mut self, set: &ByteSet) {
        self.literal = None;
        let ranges = set.write(&mut self.out);
        self.atom(Part { program_size: ranges.max(1), ..Part::ONE });
    }

    /// `set` with the current case flag applied.
    fn cased(&self, set: ByteSet) -> ByteSet {
        match self.scope.case {
            Case::Sensitive => set,
            Case::Insensitive => set.folded(),
        }
    }

    fn escape(&mut self) -> Result<(), PatternError> {
        match self.escaped()? {
            Escape::Byte(byte) => self.byte(byte),
            Escape::Class(set) => self.set(&set),
            Escape::Other(b'Q') => self.quoted(),
            Escape::Other(other) => {
                self.syntax(match other {
                    b'A' => r"(?:\A)",
                    b'z' => r"(?:\z)",
                    // In a separate group, or the engine would parse `\b{...}` as another kind of word boundary.
                    b'b' => r"(?:\b)",
                    b'B' => r"(?:\B)",
                    b'C' => "(?s:.)",
                    _ => return bad_escape(other),
                });
                self.atom(Part::ONE);
            }
        }
        Ok(())
    }

    /// `\Q` up to `\E` or the end: all literal.
    fn quoted(&mut self) {
        while !self.rest.is_empty() && !self.skip(br"\E") {
            if let Some(byte) = self.next() {
                self.byte(byte);
            }
        }
    }

    /// Parses an escape after its backslash, inside a class or not.
    fn escaped(&mut self) -> Result<Escape, PatternError> {
        let Some(byte) = self.next() else { return fail("trailing \\") };
        Ok(match byte {
            b'a' => Escape::Byte(0x07),
            b'f' => Escape::Byte(0x0c),
            b't' => Escape::Byte(b'\t'),
            b'n' => Escape::Byte(b'\n'),
            b'r' => Escape::Byte(b'\r'),
            b'v' => Escape::Byte(0x0b),
            b'd' | b's' | b'w' | b'D' | b'S' | b'W' => {
                let Some(set) = perl_class(byte.to_ascii_lowercase()) else { return bad_escape(byte) };
                Escape::Class(Box::new(if byte.is_ascii_uppercase() { set.complement() } else { set }))
            }
            b'x' => Escape::Byte(self.hexadecimal()?),
            b'0'..=b'7' => Escape::Byte(self.octal(byte)?),
            b'p' | b'P' => return fail("Unicode classes (\\p) are not supported"),
            _ if byte.is_ascii_alphabetic() => Escape::Other(byte),
            _ if byte.is_ascii() && !byte.is_ascii_digit() => Escape::Byte(byte),
            _ => return bad_escape(byte),
        })
    }

    /// `HH` or `{H...}` after `\x`.
    fn hexadecimal(&mut self) -> Result<u8, PatternError> {
        let digits = if self.skip(b"{") {
            let end = self.rest.iter().position(|byte| *byte == b'}');
            let Some((digits, rest)) = end.and_then(|at| self.rest.split_at_checked(at)) else {
                return fail("missing } after \\x{");
            };
            self.rest = rest;
            self.skip(b"}");
            digits
        } else {
            let Some((digits, rest)) = self.rest.split_at_checked(2) else { return bad_escape(b'x') };
            self.rest = rest;
            digits
        };
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return bad_escape(b'x');
        }
        let value = digits.iter().try_fold(0_u8, |value, digit| {
            value.checked_mul(16)?.checked_add(u8::try_from(char::from(*digit).to_digit(16)?).ok()?)
        });
        value.ok_or_else(|| PatternError("\\x{...} beyond one byte is not supported".into()))
    }

    /// Up to three octal digits, of which `first` is consumed. A single digit other than 0 would be a back reference.
    fn octal(&mut self, first: u8) -> Result<u8, PatternError> {
        let mut value = u32::from(first - b'0');
        let mut digits = 1;
        while let [digit @ b'0'..=b'7', rest @ ..] = self.rest
            && digits < 3
        {
            value = value * 8 + u32::from(digit - b'0');
            self.rest = rest;
            digits += 1;
        }
        if digits == 1 && first != b'0' {
            return fail(format!("back reference \\{}", char::from(first)));
        }
        u8::try_from(value).map_err(|_| PatternError("octal escape beyond one byte is not supported".into()))
    }

    /// A group or flags, after the `(`.
    fn group(&mut self) -> Result<(), PatternError> {
        if !self.skip(b"?") {
            self.open(self.scope.case, "(?:");
            return Ok(());
        }
        if self.skip(b"P<") || self.skip(b"<") {
            let name = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if name.is_empty() || !self.skip(b">") {
                return fail("look-behind and malformed group names are not supported");
            }
            self.open(self.scope.case, "(?:");
            return Ok(());
        }
        let flags = self.take_while(|byte| matches!(byte, b'i' | b'm' | b's' | b'U' | b'-'));
        let (text, case) = flags_of(flags, self.scope.case)?;
        match self.next() {
            Some(b':') => self.open(case, &format!("(?{text}:")),
            Some(b')') => {
                self.scope.case = case;
                self.syntax(&if text.is_empty() { String::new() } else { format!("(?{text})") });
            }
            _ => return fail("invalid or unsupported syntax after (?"),
        }
        Ok(())
    }

    fn open(&mut self, case: Case, syntax: &str) {
        self.outer.push(std::mem::replace(&mut self.scope, Scope { case, ..Scope::default() }));
        self.syntax(syntax);
    }

    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !belongs(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, &[]));
        self.rest = rest;
        taken
    }

    /// A repetition that is consumed, and the `?` that makes it lazy.
    fn repetition(&mut self, operator: &str, last: LastItem) -> Result<(), PatternError> {
        if last == LastItem::Repetition {
            return fail(format!("bad repetition operator {operator}"));
        }
        self.last = LastItem::Repetition;
        self.syntax(operator);
        if self.skip(b"?") {
            self.out.push('?');
        }
        Ok(())
    }

    /// `{n}`, `{n,}` or `{n,m}`, after the `{`. Anything else is a literal brace.
    fn brace(&mut self, last: LastItem) -> Result<(), PatternError> {
        let Some((inside, rest)) = counts(self.rest) else {
            self.byte(b'{');
            return Ok(());
        };
        for count in inside.split(',').filter(|count| !count.is_empty()) {
            if count.parse::<u32>().is_ok_and(|count| count <= REPEAT_MAX) {
                continue;
            }
            return fail(format!("invalid repetition {{{inside}}}: the limit is {REPEAT_MAX}"));
        }
        self.rest = rest;
        let counts = inside.split(',').filter_map(|count| count.parse().ok());
        let piece = self.scope.atom.times(counts.max().unwrap_or(1));
        if piece.count > REPEAT_MAX {
            return fail(format!("invalid repetition {{{inside}}}: nested repetitions exceed {REPEAT_MAX}"));
        }
        self.atom(piece);
        self.repetition(&format!("{{{inside}}}"), last)
    }

    /// A class, after the `[`.
    fn class(&mut self) -> Result<(), PatternError> {
        let is_negated = self.skip(b"^");
        let mut set = ByteSet::EMPTY;
        let mut is_first = true;
        while is_first || !self.skip(b"]") {
            is_first = false;
            let item = match self.named_class()? {
                Some(named) => named,
                None => self.class_item()?,
            };
            set = set.union(&item);
        }
        self.set(&if is_negated { set.complement() } else { set });
        Ok(())
    }

    /// `[:name:]` or `[:^name:]`, if it is next.
    fn named_class(&mut self) -> Result<Option<ByteSet>, PatternError> {
        let Some(inside) = self.rest.strip_prefix(b"[:") else { return Ok(None) };
        let Some(end) = inside.windows(2).position(|pair| pair == b":]") else { return Ok(None) };
        let Some((name, rest)) = inside.split_at_checked(end) else { return Ok(None) };
        let plain = name.strip_prefix(b"^").unwrap_or(name);
        let Some(set) = posix_class(plain) else {
            return fail(format!("invalid character class [:{}:]", name.escape_ascii()));
        };
        self.rest = rest.strip_prefix(b":]").unwrap_or(rest);
        let set = self.cased(set);
        Ok(Some(if plain.len() < name.len() { set.complement() } else { set }))
    }

    /// One byte, one range or one escaped class.
    fn class_item(&mut self) -> Result<ByteSet, PatternError> {
        let low = match self.class_byte()? {
            Escape::Byte(low) => low,
            Escape::Class(set) => return Ok(*set),
            Escape::Other(other) => return bad_escape(other),
        };
        let high = match self.rest {
            // A hyphen before the end is a literal.
            [b'-', next, ..] if *next != b']' => {
                self.skip(b"-");
                let Escape::Byte(high) = self.class_byte()? else { return fail("invalid character class range") };
                high
            }
            _ => low,
        };
        if high < low {
            return fail("invalid character class range");
        }
        Ok(self.cased(ByteSet::of_ranges(&[(low, high)])))
    }

    fn class_byte(&mut self) -> Result<Escape, PatternError> {
        match self.next() {
            Some(b'\\') => self.escaped(),
            Some(byte) => Ok(Escape::Byte(byte)),
            None => fail("missing closing ]"),
        }
    }
}

impl Part {
    const ONE: Self = Self { program_size: 1, count: 1 };

    fn and(self, next: Self) -> Self {
        Self { program_size: self.program_size.saturating_add(next.program_size), count: self.count.max(next.count) }
    }

    fn times(self, count: u32) -> Self {
        // A repetition of zero still has to be written.
        let count = count.max(1);
        let program_size = usize::try_from(count).map_or(usize::MAX, |count| self.program_size.saturating_mul(count));
        Self { program_size, count: self.count.max(1).saturating_mul(count) }
    }
}

/// The flags for the engine, each once, and the new `case`. The engine gets no case flag: it folds ASCII letters only, and
/// it folds complements too.
fn flags_of(flags: &[u8], case: Case) -> Result<(String, Case), PatternError> {
    let (on, off) = match flags.split(|byte| *byte == b'-').collect::<Vec<_>>().as_slice() {
        [on] => (*on, b"".as_slice()),
        [on, off] if !off.is_empty() => (*on, *off),
        _ => return fail("invalid or unsupported syntax after (?"),
    };
    // A flag that is both set and cleared is cleared: the later one wins.
    let is_on = |flag: &u8| on.contains(flag) && !off.contains(flag);
    let case = match (is_on(&b'i'), off.contains(&b'i')) {
        (true, _) => Case::Insensitive,
        (_, true) => Case::Sensitive,
        _ => case,
    };
    let text = |is: &dyn Fn(&u8) -> bool| b"msU".iter().filter(|flag| is(flag)).map(|flag| char::from(*flag)).collect();
    let (on, off): (String, String) = (text(&is_on), text(&|flag| off.contains(flag)));
    Ok((if off.is_empty() { on } else { format!("{on}-{off}") }, case))
}

/// The inside of `{n}`, `{n,}` or `{n,m}`, after the brace, and the rest.
fn counts(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|byte| *byte == b'}')?;
    let (inside, rest) = text.split_at_checked(end)?;
    let inside = std::str::from_utf8(inside).ok()?;
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    // RE2 accepts no leading zero.
    let is_number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && !(text.len() > 1 && text.starts_with('0'));
    (!low.is_empty() && is_number(low) && is_number(high)).then_some((inside, rest.strip_prefix(b"}")?))
}

fn bad_escape<T>(byte: u8) -> Result<T, PatternError> {
    fail(format!("invalid escape \\{}", byte.escape_ascii()))
}

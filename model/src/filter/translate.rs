//! From RE2's syntax over bytes to that of `regex::bytes` with Unicode off.
//!
//! The two are close and not the same, so a pattern is read byte for byte and written anew in a form that means the same
//! to both: every literal becomes `\xHH`, every group loses its number (nothing captures), every class is rebuilt. What
//! this reader does not know is refused; nothing is handed through in the hope that it means the same.
//!
//! Refused though RE2 takes it: Unicode classes (`\p`), `\x{...}` beyond one byte. With `(?i)` only ASCII letters fold.

/// RE2's bound on counted repetition.
const REPEAT_MAX: u32 = 1000;

/// A pattern in the engine's syntax.
pub(super) struct Translated {
    /// To be matched as a whole.
    pub(super) pattern: String,
    /// What the pattern spells, if it holds nothing but literals.
    pub(super) literal: Option<Vec<u8>>,
}

/// Translates a pattern, or says why not.
pub(super) fn translate(pattern: &[u8]) -> Result<Translated, Refused> {
    let Translator { out, literal, .. } = Translator::new(pattern).run()?;
    Ok(Translated { pattern: out, literal })
}

/// Why a pattern is not taken.
pub(super) struct Refused(pub(super) String);

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

/// Reads RE2 from `rest`, writes the engine's syntax to `out`.
struct Translator<'a> {
    rest: &'a [u8],
    out: String,
    /// What the pattern spells, as long as it holds nothing but literals.
    literal: Option<Vec<u8>>,
    /// Groups that are open.
    depth: usize,
    /// What was read last.
    last: Last,
}

/// RE2 takes no repetition of a repetition, as in `a**`; the engine would.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Repetition,
    Other,
}

/// What an escape stands for.
enum Escape {
    Byte(u8),
    /// `\d`, `\s` and `\w`, or with a capital letter their complements: the inside of a class.
    Class(&'static str),
    Other(u8),
}

impl<'a> Translator<'a> {
    const fn new(pattern: &'a [u8]) -> Self {
        Self { rest: pattern, out: String::new(), literal: Some(Vec::new()), depth: 0, last: Last::Other }
    }

    fn run(mut self) -> Result<Self, Refused> {
        while let Some(byte) = self.next() {
            self.step(byte)?;
        }
        if self.depth > 0 {
            return refused("missing closing )");
        }
        Ok(self)
    }

    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    /// Steps over `prefix` if it comes next.
    fn skip(&mut self, prefix: &[u8]) -> bool {
        match self.rest.strip_prefix(prefix) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn step(&mut self, byte: u8) -> Result<(), Refused> {
        let last = std::mem::replace(&mut self.last, Last::Other);
        match byte {
            b'\\' => self.escape(),
            b'[' => self.class(),
            b'(' => self.group(),
            b')' => {
                self.depth = self.depth.checked_sub(1).ok_or_else(|| Refused("unexpected )".into()))?;
                self.syntax(")");
                Ok(())
            }
            b'*' => self.repetition("*", last),
            b'+' => self.repetition("+", last),
            b'?' => self.repetition("?", last),
            b'{' => self.brace(last),
            b'.' | b'|' | b'^' | b'$' => {
                self.literal = None;
                self.out.push(char::from(byte));
                Ok(())
            }
            _ => {
                self.byte(byte);
                Ok(())
            }
        }
    }

    /// Writes what is not a literal.
    fn syntax(&mut self, text: &str) {
        self.literal = None;
        self.out.push_str(text);
    }

    /// Writes a byte that stands for itself.
    fn byte(&mut self, byte: u8) {
        push_byte(&mut self.out, byte);
        if let Some(literal) = &mut self.literal {
            literal.push(byte);
        }
    }

    fn escape(&mut self) -> Result<(), Refused> {
        match self.escaped()? {
            Escape::Byte(byte) => self.byte(byte),
            Escape::Class(class) => {
                self.syntax("[");
                self.out.push_str(class);
                self.out.push(']');
            }
            Escape::Other(b'A') => self.syntax(r"(?:\A)"),
            Escape::Other(b'z') => self.syntax(r"(?:\z)"),
            // In a group of its own, or the engine would read `\b{...}` as a word boundary of another kind.
            Escape::Other(b'b') => self.syntax(r"(?:\b)"),
            Escape::Other(b'B') => self.syntax(r"(?:\B)"),
            Escape::Other(b'C') => self.syntax("(?s:.)"),
            Escape::Other(b'Q') => self.quoted(),
            Escape::Other(other) => return bad_escape(other),
        }
        Ok(())
    }

    /// `\Q` up to `\E` or the end: all of it literal.
    fn quoted(&mut self) {
        while !self.rest.is_empty() && !self.skip(br"\E") {
            if let Some(byte) = self.next() {
                self.byte(byte);
            }
        }
    }

    /// What follows a backslash, inside a class or not.
    fn escaped(&mut self) -> Result<Escape, Refused> {
        let Some(byte) = self.next() else { return refused("trailing \\") };
        Ok(match byte {
            b'a' => Escape::Byte(0x07),
            b'f' => Escape::Byte(0x0c),
            b't' => Escape::Byte(b'\t'),
            b'n' => Escape::Byte(b'\n'),
            b'r' => Escape::Byte(b'\r'),
            b'v' => Escape::Byte(0x0b),
            b'd' => Escape::Class("0-9"),
            b'D' => Escape::Class("^0-9"),
            // Without \v, unlike the engine's own \s.
            b's' => Escape::Class(r"\t\n\f\r\x20"),
            b'S' => Escape::Class(r"^\t\n\f\r\x20"),
            b'w' => Escape::Class("0-9A-Za-z_"),
            b'W' => Escape::Class("^0-9A-Za-z_"),
            b'x' => Escape::Byte(self.hexadecimal()?),
            b'0'..=b'7' => Escape::Byte(self.octal(byte)?),
            b'p' | b'P' => return refused("Unicode classes (\\p) are not supported"),
            _ if byte.is_ascii_alphabetic() => Escape::Other(byte),
            _ if byte.is_ascii() && !byte.is_ascii_digit() => Escape::Byte(byte),
            _ => return bad_escape(byte),
        })
    }

    /// `HH` or `{H...}` after `\x`.
    fn hexadecimal(&mut self) -> Result<u8, Refused> {
        let digits = if self.skip(b"{") {
            let end = self.rest.iter().position(|byte| *byte == b'}');
            let Some((digits, rest)) = end.and_then(|at| self.rest.split_at_checked(at)) else {
                return refused("missing } after \\x{");
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
        value.ok_or_else(|| Refused("\\x{...} beyond one byte is not supported".into()))
    }

    /// Up to three octal digits, of which `first` has been read. One digit other than 0 would be a back reference.
    fn octal(&mut self, first: u8) -> Result<u8, Refused> {
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
            return refused(format!("back reference \\{}", char::from(first)));
        }
        u8::try_from(value).map_err(|_| Refused("octal escape beyond one byte is not supported".into()))
    }

    /// A group, whose `(` has been read, or flags.
    fn group(&mut self) -> Result<(), Refused> {
        if !self.skip(b"?") {
            self.depth += 1;
            self.syntax("(?:");
            return Ok(());
        }
        if self.skip(b"P<") || self.skip(b"<") {
            let name = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if name.is_empty() || !self.skip(b">") {
                return refused("look-behind and malformed group names are not supported");
            }
            self.depth += 1;
            self.syntax("(?:");
            return Ok(());
        }
        let flags = self.take_while(|byte| matches!(byte, b'i' | b'm' | b's' | b'U' | b'-'));
        self.syntax("(?");
        self.out.extend(flags.iter().map(|byte| char::from(*byte)));
        match self.next() {
            Some(b':') => {
                self.depth += 1;
                self.out.push(':');
                Ok(())
            }
            Some(b')') => {
                self.out.push(')');
                Ok(())
            }
            _ => refused("invalid or unsupported syntax after (?"),
        }
    }

    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| !belongs(*byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, &[]));
        self.rest = rest;
        taken
    }

    /// A repetition that has been read, and the `?` that makes it lazy.
    fn repetition(&mut self, operator: &str, last: Last) -> Result<(), Refused> {
        if last == Last::Repetition {
            return refused(format!("bad repetition operator {operator}"));
        }
        self.last = Last::Repetition;
        self.syntax(operator);
        if self.skip(b"?") {
            self.out.push('?');
        }
        Ok(())
    }

    /// `{n}`, `{n,}` or `{n,m}`, whose `{` has been read. Anything else is a literal brace.
    fn brace(&mut self, last: Last) -> Result<(), Refused> {
        let Some((inside, rest)) = counts(self.rest) else {
            self.byte(b'{');
            return Ok(());
        };
        for count in inside.split(',').filter(|count| !count.is_empty()) {
            if count.parse::<u32>().is_ok_and(|count| count <= REPEAT_MAX) {
                continue;
            }
            return refused(format!("invalid repetition {{{inside}}}: at most {REPEAT_MAX}"));
        }
        self.rest = rest;
        self.repetition(&format!("{{{inside}}}"), last)
    }

    /// A class, whose `[` has been read. Everything in it is written as single bytes and ranges of them, because the
    /// engine knows more operators inside classes than RE2 does.
    fn class(&mut self) -> Result<(), Refused> {
        self.syntax("[");
        if self.skip(b"^") {
            self.out.push('^');
        }
        let mut is_first = true;
        while is_first || !self.skip(b"]") {
            is_first = false;
            if !self.posix_class()? {
                self.class_item()?;
            }
        }
        self.out.push(']');
        Ok(())
    }

    /// `[:name:]` or `[:^name:]`; whether there was one.
    fn posix_class(&mut self) -> Result<bool, Refused> {
        let Some(inside) = self.rest.strip_prefix(b"[:") else { return Ok(false) };
        let Some(end) = inside.windows(2).position(|pair| pair == b":]") else { return Ok(false) };
        let Some((name, rest)) = inside.split_at_checked(end) else { return Ok(false) };
        let plain = name.strip_prefix(b"^").unwrap_or(name);
        let Some(known) = POSIX_CLASSES.iter().find(|class| class.as_bytes() == plain) else {
            return refused(format!("invalid character class [:{}:]", name.escape_ascii()));
        };
        self.rest = rest.strip_prefix(b":]").unwrap_or(rest);
        self.out.push_str(if plain.len() < name.len() { "[:^" } else { "[:" });
        self.out.push_str(known);
        self.out.push_str(":]");
        Ok(true)
    }

    /// One byte, one range or one escaped class.
    fn class_item(&mut self) -> Result<(), Refused> {
        let low = match self.class_byte()? {
            Escape::Byte(low) => low,
            Escape::Class(class) => {
                self.out.push('[');
                self.out.push_str(class);
                self.out.push(']');
                return Ok(());
            }
            Escape::Other(other) => return bad_escape(other),
        };
        push_byte(&mut self.out, low);
        match self.rest {
            // A hyphen before the end stands for itself.
            [b'-', b']', ..] | [b'-'] => Ok(()),
            [b'-', ..] => {
                self.skip(b"-");
                let Escape::Byte(high) = self.class_byte()? else { return refused("invalid character class range") };
                if high < low {
                    return refused("invalid character class range");
                }
                self.out.push('-');
                push_byte(&mut self.out, high);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn class_byte(&mut self) -> Result<Escape, Refused> {
        match self.next() {
            Some(b'\\') => self.escaped(),
            Some(byte) => Ok(Escape::Byte(byte)),
            None => refused("missing closing ]"),
        }
    }
}

const POSIX_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

fn push_byte(out: &mut String, byte: u8) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    out.push_str("\\x");
    out.extend([byte >> 4, byte & 15].iter().filter_map(|digit| DIGITS.get(usize::from(*digit))));
}

/// The inside of `{n}`, `{n,}` or `{n,m}`, whose brace has been read, and what follows it.
fn counts(text: &[u8]) -> Option<(&str, &[u8])> {
    let end = text.iter().position(|byte| *byte == b'}')?;
    let (inside, rest) = text.split_at_checked(end)?;
    let inside = std::str::from_utf8(inside).ok()?;
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    (!low.is_empty() && is_number(low) && is_number(high)).then_some((inside, rest.strip_prefix(b"}")?))
}

fn bad_escape<T>(byte: u8) -> Result<T, Refused> {
    refused(format!("invalid escape \\{}", byte.escape_ascii()))
}

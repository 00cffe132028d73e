//! Byte classes of patterns, written in a form that is unambiguous for the regex engine.
//!
//! Bytes are Latin-1, as in RE2's byte mode. So case folding includes non-ASCII letters: 0xe9 (é) with 0xc9 (É).

/// Distance between a lower-case letter and its upper case, in ASCII and in Latin-1.
const CASE_STEP: u8 = 0x20;

/// A set of bytes.
#[derive(Clone)]
pub(super) struct ByteSet {
    members: [bool; 256],
}

impl ByteSet {
    pub(super) const EMPTY: Self = Self { members: [false; 256] };

    pub(super) fn of(byte: u8) -> Self {
        Self::of_ranges(&[(byte, byte)])
    }

    /// All bytes of these ranges, ends included.
    pub(super) fn of_ranges(ranges: &[(u8, u8)]) -> Self {
        let mut set = Self::EMPTY;
        for (low, high) in ranges {
            let count = usize::from(high.saturating_sub(*low)) + 1;
            set.members.iter_mut().skip(usize::from(*low)).take(count).for_each(|member| *member = true);
        }
        set
    }

    pub(super) fn contains(&self, byte: u8) -> bool {
        self.members.get(usize::from(byte)) == Some(&true)
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self::from_fn(|byte| self.contains(byte) || other.contains(byte))
    }

    pub(super) fn complement(&self) -> Self {
        Self::from_fn(|byte| !self.contains(byte))
    }

    /// The set with each letter in both cases.
    pub(super) fn folded(&self) -> Self {
        Self::from_fn(|byte| self.contains(byte) || other_case(byte).is_some_and(|other| self.contains(other)))
    }

    fn from_fn(mut is_member: impl FnMut(u8) -> bool) -> Self {
        let mut set = Self::EMPTY;
        for (byte, member) in (0..=u8::MAX).zip(&mut set.members) {
            *member = is_member(byte);
        }
        set
    }

    /// Writes the set in the engine's syntax and returns the number of ranges. An empty set matches nothing.
    pub(super) fn write(&self, out: &mut String) -> usize {
        let ranges = self.ranges();
        out.push_str(if ranges.is_empty() { r"[^\x00-\xff" } else { "[" });
        for (low, high) in &ranges {
            push_byte(out, *low);
            if low < high {
                out.push('-');
                push_byte(out, *high);
            }
        }
        out.push(']');
        ranges.len()
    }

    fn ranges(&self) -> Vec<(u8, u8)> {
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        for byte in (0..=u8::MAX).filter(|byte| self.contains(*byte)) {
            match ranges.last_mut() {
                Some((_, high)) if high.checked_add(1) == Some(byte) => *high = byte,
                _ => ranges.push((byte, byte)),
            }
        }
        ranges
    }
}

/// The same letter in the other case, if it has one within Latin-1: ß, µ and ÿ have none.
const fn other_case(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => Some(byte + CASE_STEP),
        b'a'..=b'z' | 0xe0..=0xf6 | 0xf8..=0xfe => Some(byte - CASE_STEP),
        _ => None,
    }
}

/// The class of this name in `[:name:]`.
pub(super) fn posix_class(name: &[u8]) -> Option<ByteSet> {
    let ranges: &[(u8, u8)] = match name {
        b"alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        b"alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        b"ascii" => &[(0, 0x7f)],
        b"blank" => &[(b'\t', b'\t'), (b' ', b' ')],
        b"cntrl" => &[(0, 0x1f), (0x7f, 0x7f)],
        b"digit" => &[(b'0', b'9')],
        b"graph" => &[(b'!', b'~')],
        b"lower" => &[(b'a', b'z')],
        b"print" => &[(b' ', b'~')],
        b"punct" => &[(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
        // With \v, unlike `\s`.
        b"space" => &[(b'\t', b'\r'), (b' ', b' ')],
        b"upper" => &[(b'A', b'Z')],
        b"word" => &[(b'0', b'9'), (b'A', b'Z'), (b'_', b'_'), (b'a', b'z')],
        b"xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return None,
    };
    Some(ByteSet::of_ranges(ranges))
}

/// The classes `\d`, `\s` and `\w`.
pub(super) fn perl_class(letter: u8) -> Option<ByteSet> {
    match letter {
        b'd' => posix_class(b"digit"),
        b'w' => posix_class(b"word"),
        // Without \v, unlike the engine's own \s.
        b's' => Some(ByteSet::of_ranges(&[(b'\t', b'\n'), (0x0c, b'\r'), (b' ', b' ')])),
        _ => None,
    }
}

/// Writes a byte as `\xHH`.
pub(super) fn push_byte(out: &mut String, byte: u8) {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    out.push_str("\\x");
    out.extend([byte >> 4, byte & 15].iter().filter_map(|digit| DIGITS.get(usize::from(*digit))));
}

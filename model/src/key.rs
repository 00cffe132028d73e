//! Row keys, key ranges, and sets of ranges.
//!
//! Rows are ordered as unsigned bytes. Every range is half open, `[start, end)`, and contains at least one possible key:
//! an empty range cannot be represented. The next key after `k` is `k` followed by a zero byte, so every open or closed
//! bound can be converted to a half-open one.

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;

use crate::codec::prefix_end;
use crate::error::Error;

/// A row key: any bytes. The code that accepts keys from users enforces limits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RowKey(Bytes);

impl RowKey {
    /// The smallest key. No row has it; it is the start of unbounded ranges.
    pub const EMPTY: Self = Self(Bytes::new());

    /// The key with these bytes.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The key with a copy of `bytes`.
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its bytes, shared.
    pub const fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether it is [`Self::EMPTY`].
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The smallest greater key.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + 1);
        bytes.extend_from_slice(&self.0);
        bytes.push(0);
        Self(bytes.into())
    }

    /// Parses the output of `Display`: printable ASCII as it is, `\\`, and `\xHH` for the rest.
    ///
    /// # Errors
    /// On any other escape.
    pub fn parse_escaped(text: &str) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, tail)) = rest.split_first() {
            rest = tail;
            if byte != b'\\' {
                bytes.push(byte);
                continue;
            }
            let (byte, tail) = unescape_one(rest)
                .ok_or_else(|| Error::invalid(format!("invalid escape in row key {text:?}: use \\\\ or \\xHH")))?;
            bytes.push(byte);
            rest = tail;
        }
        Ok(Self(bytes.into()))
    }
}

/// The escaped byte after a backslash, and the rest.
fn unescape_one(text: &[u8]) -> Option<(u8, &[u8])> {
    match text {
        [b'\\', rest @ ..] => Some((b'\\', rest)),
        [b'x', high, low, rest @ ..] => {
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok());
            Some((digit(*high)? << 4 | digit(*low)?, rest))
        }
        _ => None,
    }
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in &self.0 {
            match byte {
                b'\\' => f.write_str("\\\\")?,
                b' '..=b'~' => fmt::Write::write_char(f, char::from(byte))?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The keys from `start` up to but not including `end`, or all from `start`. Never empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeyRange {
    start: RowKey,
    end: Option<RowKey>,
}

impl KeyRange {
    /// `[start, end)`, or `None` when it is empty.
    pub fn new(start: RowKey, end: Option<RowKey>) -> Option<Self> {
        match &end {
            Some(end) if start >= *end => None,
            _ => Some(Self { start, end }),
        }
    }

    /// Every key.
    pub const fn all() -> Self {
        Self { start: RowKey::EMPTY, end: None }
    }

    /// This key only.
    pub fn single(key: RowKey) -> Self {
        let end = Some(key.successor());
        Self { start: key, end }
    }

    /// Whether it holds one key only.
    pub fn is_single(&self) -> bool {
        let rest = self.end.as_ref().and_then(|end| end.as_bytes().strip_prefix(self.start.as_bytes()));
        rest.is_some_and(|rest| rest == [0])
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        Self { start: RowKey::copy_from_slice(prefix), end: prefix_end(prefix).map(RowKey::new) }
    }

    /// The first key of the range.
    pub const fn start(&self) -> &RowKey {
        &self.start
    }

    /// The first key after the range; `None` when it is unbounded.
    pub const fn end(&self) -> Option<&RowKey> {
        self.end.as_ref()
    }

    /// Whether `key` is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_bytes() <= key && self.end.as_ref().is_none_or(|end| key < end.as_bytes())
    }

    /// Whether every key of `other` is in the range.
    pub fn covers(&self, other: &Self) -> bool {
        self.start <= other.start && compare_ends(other.end(), self.end()) != Ordering::Greater
    }

    /// The keys in both, or `None` when there are none.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        let start = self.start.clone().max(other.start.clone());
        let end = if compare_ends(self.end(), other.end()) == Ordering::Less { &self.end } else { &other.end };
        Self::new(start, end.clone())
    }

    /// `[start, at)` and `[at, end)`, or `None` unless both are non-empty.
    pub fn split_at(&self, at: &RowKey) -> Option<(Self, Self)> {
        let left = Self::new(self.start.clone(), Some(at.clone()))?;
        if !self.contains(at.as_bytes()) {
            return None;
        }
        Some((left, Self::new(at.clone(), self.end.clone())?))
    }
}

/// Compares the ends of two ranges; a missing end is the greatest.
fn compare_ends(a: Option<&RowKey>, b: Option<&RowKey>) -> Ordering {
    match (a, b) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.cmp(b),
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, ", self.start)?;
        match &self.end {
            Some(end) => write!(f, "{end})"),
            None => f.write_str("-)"),
        }
    }
}

/// A set of rows: ascending ranges that neither overlap nor touch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowSet {
    ranges: Vec<KeyRange>,
}

impl RowSet {
    /// Every row.
    pub fn all() -> Self {
        Self { ranges: vec![KeyRange::all()] }
    }

    /// No row.
    pub const fn none() -> Self {
        Self { ranges: Vec::new() }
    }

    /// The union of these ranges, which may come in any order and overlap.
    pub fn from_ranges(ranges: impl IntoIterator<Item = KeyRange>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().collect();
        sorted.sort_by(|a, b| a.start.cmp(&b.start));
        let mut merged: Vec<KeyRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match merged.last_mut() {
                Some(last) if last.end.as_ref().is_none_or(|end| range.start <= *end) => {
                    if compare_ends(range.end(), last.end()) == Ordering::Greater {
                        last.end = range.end;
                    }
                }
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }

    /// Its ranges, ascending.
    pub fn ranges(&self) -> &[KeyRange] {
        &self.ranges
    }

    /// Whether no row is in it.
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether `key` is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        let after = self.ranges.partition_point(|range| range.start.as_bytes() <= key);
        after.checked_sub(1).and_then(|last| self.ranges.get(last)).is_some_and(|range| range.contains(key))
    }

    /// The intersection with `bounds`.
    #[must_use]
    pub fn clamp(&self, bounds: &KeyRange) -> Self {
        let first = self.ranges.partition_point(|range| range.end().is_some_and(|end| end <= bounds.start()));
        let inside = self.ranges.iter().skip(first).map_while(|range| range.intersect(bounds));
        Self { ranges: inside.collect() }
    }

    /// The rows in both.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let (mut ones, mut others) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        let mut ranges = Vec::new();
        while let (Some(one), Some(other)) = (ones.peek(), others.peek()) {
            ranges.extend(one.intersect(other));
            // The range that ends first meets no further range of the other set.
            match compare_ends(one.end(), other.end()) {
                Ordering::Less => drop(ones.next()),
                Ordering::Equal | Ordering::Greater => drop(others.next()),
            }
        }
        Self { ranges }
    }

    /// The rows after `key`: the rest of an ascending scan at `key`.
    #[must_use]
    pub fn after(&self, key: &RowKey) -> Self {
        self.clamp(&KeyRange { start: key.successor(), end: None })
    }

    /// The rows before `key`: the rest of a descending scan at `key`.
    #[must_use]
    pub fn before(&self, key: &RowKey) -> Self {
        KeyRange::new(RowKey::EMPTY, Some(key.clone())).map_or_else(Self::none, |bounds| self.clamp(&bounds))
    }
}

impl FromIterator<KeyRange> for RowSet {
    fn from_iter<I: IntoIterator<Item = KeyRange>>(ranges: I) -> Self {
        Self::from_ranges(ranges)
    }
}

//! Idempotency tokens: a write that its caller sends again, from wherever and through whichever front, counts once.
//!
//! A session ([`crate::session`]) covers what a front sends again by itself. A token is the caller's own: it stands for
//! one write of one row, and a tablet remembers it with the answer for [`KEPT`] after it was applied. All of it is
//! replicated state, changed in apply only, forgotten by the log's time, and divided by a split as the rows are.
//!
//! A caller that says when it first sent the write is refused once the token may have been forgotten; one that does not
//! say is believed. What a tablet remembers is bounded in bytes, and when there is no room a write with a token is
//! refused: nothing is forgotten before its time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::codec;
use crate::error::Error;
use crate::key::{KeyRange, RowKey};
use crate::time::Micros;

/// The shortest token, in bytes.
pub const TOKEN_BYTES_MIN: usize = 8;
/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// How long a token is remembered.
pub const KEPT: Duration = Duration::from_secs(15 * 60);
/// How far a caller's clock may be ahead.
pub const AHEAD_MAX: Duration = Duration::from_secs(5 * 60);
/// What one tablet remembers at most, in bytes.
pub const MEMORY_BYTES_MAX: usize = 64 << 20;

/// About what a token takes beside its key and its answer, in bytes.
const OVERHEAD_BYTES: usize = 192;

/// What kind of call a token was given to. Tokens of different kinds have nothing to do with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallKind {
    /// MutateRow, or an entry of MutateRows.
    Mutate,
    /// CheckAndMutateRow.
    Check,
    /// ReadModifyWriteRow.
    Modify,
}

impl CallKind {
    /// The number by which it is kept.
    pub const fn number(self) -> u8 {
        match self {
            Self::Mutate => 1,
            Self::Check => 2,
            Self::Modify => 3,
        }
    }

    /// The kind of this number, if this release knows it.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Mutate),
            2 => Some(Self::Check),
            3 => Some(Self::Modify),
            _ => None,
        }
    }
}

/// A caller's token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdempotencyToken {
    /// What the caller made up for this one write.
    pub token: Bytes,
    /// When it says that it first sent the write.
    pub started: Option<Micros>,
}

impl IdempotencyToken {
    /// Checks a token.
    ///
    /// # Errors
    /// `InvalidArgument` when it is too short or too long.
    pub fn validate(&self) -> Result<(), Error> {
        let length = self.token.len();
        if (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&length) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "Idempotency token has {length} bytes, of which {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} are allowed"
        )))
    }

    /// What a tablet knows the write by: the row, the kind of call, the token. Their order is that of the rows.
    pub fn key(&self, row: &RowKey, kind: CallKind) -> Bytes {
        let mut key = codec::row_prefix(row);
        key.push(kind.number());
        key.extend_from_slice(&self.token);
        key.into()
    }
}

/// What is remembered of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remembered {
    /// Until when, by the log's time.
    pub until: Micros,
    /// Its answer, where one is kept.
    pub result: Option<Bytes>,
}

/// Whether a write with a token is to be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The token is not known.
    Fresh,
    /// It was applied before, with this answer where one was kept.
    Duplicate(Option<Bytes>),
    /// It was first sent so long ago that its token may have been forgotten.
    Late,
    /// It says that it was sent in a future in which the token would be forgotten too early.
    Early,
}

/// The tokens that a tablet remembers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TokenMemory {
    known: BTreeMap<Bytes, Remembered>,
    by_time: BTreeSet<(Micros, Bytes)>,
    bytes: usize,
}

impl TokenMemory {
    /// Judges a write by its token, `key` made by [`IdempotencyToken::key`], at the log's time `now`. Changes nothing.
    pub fn judge(&self, key: &[u8], started: Option<Micros>, now: Micros) -> Verdict {
        if let Some(remembered) = self.known.get(key).filter(|remembered| remembered.until >= now) {
            return Verdict::Duplicate(remembered.result.clone());
        }
        match started {
            Some(started) if now.since(started) > KEPT => Verdict::Late,
            Some(started) if started.since(now) > AHEAD_MAX => Verdict::Early,
            _ => Verdict::Fresh,
        }
    }

    /// Whether one more token fits, once those whose time is over at `now` are [forgotten](Self::forget).
    pub fn has_room(&self, key: &[u8], result: Option<&Bytes>) -> bool {
        self.bytes + entry_bytes(key, result) <= MEMORY_BYTES_MAX
    }

    /// Remembers a write that is applied at the log's time `now`: [`KEPT`] from then, or from when it says that it was
    /// sent if that is later.
    pub fn record(&mut self, key: Bytes, started: Option<Micros>, result: Option<Bytes>, now: Micros) {
        let until = started.map_or(now, |started| started.max(now)).plus(KEPT);
        self.restore(key, Remembered { until, result });
    }

    /// Takes back what was kept.
    pub fn restore(&mut self, key: Bytes, remembered: Remembered) {
        self.remove(&key);
        self.bytes += entry_bytes(&key, remembered.result.as_ref());
        self.by_time.insert((remembered.until, key.clone()));
        self.known.insert(key, remembered);
    }

    /// Forgets the tokens whose time is over at `now`; the keys that went.
    pub fn forget(&mut self, now: Micros) -> Vec<Bytes> {
        let mut gone = Vec::new();
        while let Some((_, key)) = self.by_time.first().filter(|(until, _)| *until < now).cloned() {
            self.remove(&key);
            gone.push(key);
        }
        gone
    }

    /// Keeps the tokens of the rows in `range`; the keys that went.
    pub fn retain(&mut self, range: &KeyRange) -> Vec<Bytes> {
        let (lower, upper) = codec::range_bounds(range);
        let outside = |key: &[u8]| key < lower.as_slice() || upper.as_deref().is_some_and(|upper| key >= upper);
        let gone: Vec<Bytes> = self.known.keys().filter(|key| outside(key)).cloned().collect();
        gone.iter().for_each(|key| self.remove(key));
        gone
    }

    /// What is remembered under a key.
    pub fn get(&self, key: &[u8]) -> Option<&Remembered> {
        self.known.get(key)
    }

    /// All keys, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.known.keys()
    }

    /// About how much memory it takes, in bytes.
    pub const fn size_bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(old) = self.known.remove(key) {
            self.bytes -= entry_bytes(key, old.result.as_ref());
            self.by_time.remove(&(old.until, key.clone()));
        }
    }
}

fn entry_bytes(key: &[u8], result: Option<&Bytes>) -> usize {
    OVERHEAD_BYTES + key.len() + result.map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &'static str) -> IdempotencyToken {
        IdempotencyToken { token: Bytes::from(text), started: None }
    }

    fn key(row: &'static str, text: &'static str) -> Bytes {
        token(text).key(&RowKey::new(row), CallKind::Mutate)
    }

    fn at(seconds: i64) -> Micros {
        Micros::new(seconds * 1_000_000)
    }

    const MINUTES_15: i64 = 15 * 60;

    #[test]
    fn lengths_are_bounded() {
        for (length, is_legal) in [(7, false), (8, true), (1024, true), (1025, false)] {
            let token = IdempotencyToken { token: Bytes::from(vec![1; length]), started: None };
            assert_eq!(token.validate().is_ok(), is_legal, "{length} bytes");
        }
    }

    #[test]
    fn a_token_counts_for_its_row_and_its_kind_of_call() {
        let mut memory = TokenMemory::default();
        memory.record(key("r", "tokentoken"), None, Some(Bytes::from("answer")), at(0));
        let answer = Verdict::Duplicate(Some(Bytes::from("answer")));
        assert_eq!(memory.judge(&key("r", "tokentoken"), None, at(1)), answer);
        assert_eq!(memory.judge(&key("s", "tokentoken"), None, at(1)), Verdict::Fresh);
        assert_eq!(memory.judge(&key("r", "tokentokem"), None, at(1)), Verdict::Fresh);
        let check = token("tokentoken").key(&RowKey::new("r"), CallKind::Check);
        assert_eq!(memory.judge(&check, None, at(1)), Verdict::Fresh);
    }

    #[test]
    fn a_token_is_known_for_15_minutes_and_not_longer() {
        let mut memory = TokenMemory::default();
        let key = key("r", "tokentoken");
        memory.record(key.clone(), None, None, at(10));
        assert_eq!(memory.judge(&key, None, at(10 + MINUTES_15)), Verdict::Duplicate(None));
        assert_eq!(memory.judge(&key, None, at(11 + MINUTES_15)), Verdict::Fresh, "whether it is forgotten yet or not");
        assert!(memory.forget(at(10 + MINUTES_15)).is_empty());
        assert_eq!(memory.forget(at(11 + MINUTES_15)), [key]);
        assert_eq!(memory, TokenMemory::default());
    }

    /// A caller that says when it began is never counted twice: what is accepted is still remembered.
    #[test]
    fn who_says_when_it_began_is_refused_rather_than_counted_twice() {
        let key = key("r", "tokentoken");
        let empty = TokenMemory::default();
        assert_eq!(empty.judge(&key, Some(at(0)), at(MINUTES_15)), Verdict::Fresh);
        assert_eq!(empty.judge(&key, Some(at(0)), at(MINUTES_15 + 1)), Verdict::Late);
        assert_eq!(empty.judge(&key, Some(at(300)), at(0)), Verdict::Fresh);
        assert_eq!(empty.judge(&key, Some(at(301)), at(0)), Verdict::Early);
        for started in [-MINUTES_15, -60, 0, 60, 300] {
            let mut memory = TokenMemory::default();
            memory.record(key.clone(), Some(at(started)), None, at(0));
            for now in 0..=MINUTES_15 + 400 {
                memory.forget(at(now));
                assert_ne!(memory.judge(&key, Some(at(started)), at(now)), Verdict::Fresh, "{started} {now}");
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_room_comes_back_with_time() {
        let mut memory = TokenMemory::default();
        let answer = Bytes::from(vec![0; 1 << 20]);
        let mut rows = (0..)
            .map(|row: u32| token("tokentoken").key(&RowKey::copy_from_slice(&row.to_be_bytes()), CallKind::Modify));
        let mut next = rows.next().unwrap();
        while memory.has_room(&next, Some(&answer)) {
            memory.record(next, None, Some(answer.clone()), at(0));
            next = rows.next().unwrap();
        }
        assert_eq!(memory.keys().count(), 63);
        assert!(memory.size_bytes() <= MEMORY_BYTES_MAX);
        assert!(memory.has_room(&next, None), "a small one still fits");
        memory.forget(at(MINUTES_15 + 1));
        assert_eq!(memory.size_bytes(), 0);
    }

    #[test]
    fn a_split_divides_tokens_as_it_divides_rows() {
        let mut all = TokenMemory::default();
        for row in ["a", "m", "m\0", "z"] {
            all.record(key(row, "tokentoken"), None, None, at(0));
        }
        let (mut left, mut right) = (all.clone(), all);
        let (below, above) = KeyRange::all().split_at(&RowKey::new("m")).unwrap();
        assert_eq!(left.retain(&below).len(), 3);
        assert_eq!(right.retain(&above), [key("a", "tokentoken")]);
        assert_eq!(left.keys().collect::<Vec<_>>(), [&key("a", "tokentoken")]);
        assert_eq!(right.keys().count(), 3);
    }
}

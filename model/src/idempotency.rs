//! Idempotency tokens: a write that its caller retries, from any place and through any front, is applied once.
//!
//! A session ([`crate::session`]) covers retries of a front. A token comes from the caller: it identifies one write of one
//! row, and a group stores it with the response for [`TOKEN_TTL`] after the apply. All of it is replicated state, changed in
//! apply only, expired by the group's session time, and divided like the rows when the group is divided.
//!
//! If the caller sends the time of its first attempt, a retry is refused once the token may have expired; without that
//! time a retry is accepted. The time of the first attempt is judged by the log's time, which advances at least as fast as the
//! session time. The tokens of a group are bounded in bytes. When the bound is reached a write with a token is
//! refused: no token expires early.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;

use crate::codec;
use crate::error::Error;
use crate::group_time::GroupTimes;
use crate::key::{KeyRange, RowKey};
use crate::time::Micros;

/// The shortest token, in bytes.
pub const TOKEN_BYTES_MIN: usize = 8;
/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// Time to live of a token.
pub const TOKEN_TTL: Duration = Duration::from_secs(15 * 60);
/// Maximum time that a caller's clock may be ahead.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(5 * 60);
/// Maximum size of the tokens of one group, in bytes.
pub const TOKENS_BYTES_MAX: usize = 64 << 20;

/// Approximate size of a token besides its key and its response, in bytes.
const OVERHEAD_BYTES: usize = 192;

/// Kind of the call of a token. Tokens of different kinds are independent.
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
    /// The number in its encoding.
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
    /// A value that the caller chose for this write.
    pub token: Bytes,
    /// The time of the first attempt, according to the caller.
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
            "Idempotency token has {length} bytes, expected {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}"
        )))
    }

    /// The key of the write in a group's token table: row, kind of call, token. Keys sort like the rows.
    pub fn key(&self, row: &RowKey, kind: CallKind) -> Bytes {
        let mut key = codec::row_prefix(row);
        key.push(kind.number());
        key.extend_from_slice(&self.token);
        key.into()
    }
}

/// The record of an applied write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenRecord {
    /// When it expires, by the group's session time.
    pub expires_at: Micros,
    /// Its response, if one is stored.
    pub result: Option<Bytes>,
}

/// Whether a write with a token must be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenCheck {
    /// The token is unknown.
    New,
    /// It was applied before, with this stored response if there is one.
    Duplicate(Option<Bytes>),
    /// The first attempt is so old that its token may have expired.
    Expired,
    /// The time of the first attempt is so far in the future that the token would expire too early.
    FromFuture,
}

/// The token table of a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TokenTable {
    known: BTreeMap<Bytes, TokenRecord>,
    by_time: BTreeSet<(Micros, Bytes)>,
    bytes: usize,
}

impl TokenTable {
    /// Checks a write by its token at the times `now`; `key` comes from [`IdempotencyToken::key`]. Changes nothing.
    pub fn check(&self, key: &[u8], started: Option<Micros>, now: GroupTimes) -> TokenCheck {
        if let Some(record) = self.known.get(key).filter(|record| record.expires_at >= now.session) {
            return TokenCheck::Duplicate(record.result.clone());
        }
        match started {
            Some(started) if now.log.since(started) > TOKEN_TTL => TokenCheck::Expired,
            Some(started) if started.since(now.log) > CLOCK_SKEW_MAX => TokenCheck::FromFuture,
            _ => TokenCheck::New,
        }
    }

    /// Whether one more token fits. Call [`Self::expire`] first.
    pub fn has_room(&self, key: &[u8], result: Option<&Bytes>) -> bool {
        self.bytes + entry_bytes(key, result) <= TOKENS_BYTES_MAX
    }

    /// As [`Self::has_room`], for a token that replaces the one with the same key if it is known, as [`Self::restore`] does.
    pub fn has_room_to_replace(&self, key: &[u8], result: Option<&Bytes>) -> bool {
        let replaced = self.known.get(key).map_or(0, |record| entry_bytes(key, record.result.as_ref()));
        self.bytes.saturating_sub(replaced) + entry_bytes(key, result) <= TOKENS_BYTES_MAX
    }

    /// Records a write that is applied at the times `now`. It expires [`TOKEN_TTL`] after `now`, or after the first attempt
    /// if that is later.
    pub fn record(&mut self, key: Bytes, started: Option<Micros>, result: Option<Bytes>, now: GroupTimes) {
        let ahead = started.map(|started| started.since(now.log)).unwrap_or_default();
        let expires_at = now.session.plus(ahead).plus(TOKEN_TTL);
        self.restore(key, TokenRecord { expires_at, result });
    }

    /// Restores a stored record.
    pub fn restore(&mut self, key: Bytes, record: TokenRecord) {
        self.remove(&key);
        self.bytes += entry_bytes(&key, record.result.as_ref());
        self.by_time.insert((record.expires_at, key.clone()));
        self.known.insert(key, record);
    }

    /// Removes the tokens that have expired at the session time `now` and returns their keys.
    pub fn expire(&mut self, now: Micros) -> Vec<Bytes> {
        let mut removed = Vec::new();
        while let Some((_, key)) = self.by_time.first().filter(|(expires_at, _)| *expires_at < now).cloned() {
            self.remove(&key);
            removed.push(key);
        }
        removed
    }

    /// Removes the tokens of rows outside all of these ranges and returns their keys.
    pub fn retain(&mut self, ranges: &[KeyRange]) -> Vec<Bytes> {
        let bounds: Vec<_> = ranges.iter().map(codec::range_bounds).collect();
        let is_inside = |key: &[u8], (lower, upper): &(Vec<u8>, Option<Vec<u8>>)| {
            lower.as_slice() <= key && upper.as_deref().is_none_or(|upper| key < upper)
        };
        let outside = |key: &Bytes| !bounds.iter().any(|bounds| is_inside(key, bounds));
        let removed: Vec<Bytes> = self.known.keys().filter(|key| outside(key)).cloned().collect();
        removed.iter().for_each(|key| self.remove(key));
        removed
    }

    /// The record of a key.
    pub fn get(&self, key: &[u8]) -> Option<&TokenRecord> {
        self.known.get(key)
    }

    /// The records of a range of keys, ascending.
    pub fn range(&self, keys: (Bound<Vec<u8>>, Bound<Vec<u8>>)) -> impl Iterator<Item = (&Bytes, &TokenRecord)> {
        let (lower, upper) = (keys.0.map(Bytes::from), keys.1.map(Bytes::from));
        self.known.range((lower, upper))
    }

    /// All keys, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.known.keys()
    }

    /// Approximate memory, in bytes.
    pub const fn size_bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(old) = self.known.remove(key) {
            self.bytes -= entry_bytes(key, old.result.as_ref());
            self.by_time.remove(&(old.expires_at, key.clone()));
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

    /// Both times without a jump.
    fn times(seconds: i64) -> GroupTimes {
        GroupTimes { log: at(seconds), session: at(seconds), gc: at(seconds) }
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
        let mut tokens = TokenTable::default();
        tokens.record(key("r", "tokentoken"), None, Some(Bytes::from("answer")), times(0));
        let answer = TokenCheck::Duplicate(Some(Bytes::from("answer")));
        assert_eq!(tokens.check(&key("r", "tokentoken"), None, times(1)), answer);
        assert_eq!(tokens.check(&key("s", "tokentoken"), None, times(1)), TokenCheck::New);
        assert_eq!(tokens.check(&key("r", "tokentokem"), None, times(1)), TokenCheck::New);
        let check = token("tokentoken").key(&RowKey::new("r"), CallKind::Check);
        assert_eq!(tokens.check(&check, None, times(1)), TokenCheck::New);
    }

    #[test]
    fn a_token_is_known_for_15_minutes_and_not_longer() {
        let mut tokens = TokenTable::default();
        let key = key("r", "tokentoken");
        tokens.record(key.clone(), None, None, times(10));
        assert_eq!(tokens.check(&key, None, times(10 + MINUTES_15)), TokenCheck::Duplicate(None));
        assert_eq!(
            tokens.check(&key, None, times(11 + MINUTES_15)),
            TokenCheck::New,
            "whether it was removed yet or not"
        );
        assert!(tokens.expire(at(10 + MINUTES_15)).is_empty());
        assert_eq!(tokens.expire(at(11 + MINUTES_15)), [key]);
        assert_eq!(tokens, TokenTable::default());
    }

    /// With a time of the first attempt no write is applied twice: an accepted one is still recorded.
    #[test]
    fn a_retry_with_a_start_time_is_refused_rather_than_applied_twice() {
        let key = key("r", "tokentoken");
        let empty = TokenTable::default();
        assert_eq!(empty.check(&key, Some(at(0)), times(MINUTES_15)), TokenCheck::New);
        assert_eq!(empty.check(&key, Some(at(0)), times(MINUTES_15 + 1)), TokenCheck::Expired);
        assert_eq!(empty.check(&key, Some(at(300)), times(0)), TokenCheck::New);
        assert_eq!(empty.check(&key, Some(at(301)), times(0)), TokenCheck::FromFuture);
        for started in [-MINUTES_15, -60, 0, 60, 300] {
            let mut tokens = TokenTable::default();
            tokens.record(key.clone(), Some(at(started)), None, times(0));
            for now in 0..=MINUTES_15 + 400 {
                tokens.expire(at(now));
                assert_ne!(tokens.check(&key, Some(at(started)), times(now)), TokenCheck::New, "{started} {now}");
            }
        }
    }

    /// The leader's clock jumps by a day right after the write, and the session time does not.
    #[test]
    fn a_jump_of_the_log_s_time_forgets_no_token() {
        const DAY: i64 = 24 * 3600;
        let key = key("r", "tokentoken");
        for started in [None, Some(at(0)), Some(at(300))] {
            let mut tokens = TokenTable::default();
            tokens.record(key.clone(), started, None, times(0));
            let mut later = |seconds| {
                tokens.expire(at(seconds));
                tokens.check(&key, started, GroupTimes { log: at(DAY + seconds), ..times(seconds) })
            };
            assert_eq!(later(MINUTES_15), TokenCheck::Duplicate(None));
            let forgotten = if started.is_none() { TokenCheck::New } else { TokenCheck::Expired };
            assert_eq!(later(MINUTES_15 + 301), forgotten);
        }
    }

    #[test]
    fn tokens_are_bounded_and_expiry_frees_space() {
        let mut tokens = TokenTable::default();
        let answer = Bytes::from(vec![0; 1 << 20]);
        let mut rows = (0..)
            .map(|row: u32| token("tokentoken").key(&RowKey::copy_from_slice(&row.to_be_bytes()), CallKind::Modify));
        let mut next = rows.next().unwrap();
        while tokens.has_room(&next, Some(&answer)) {
            tokens.record(next, None, Some(answer.clone()), times(0));
            next = rows.next().unwrap();
        }
        assert_eq!(tokens.keys().count(), 63);
        assert!(tokens.size_bytes() <= TOKENS_BYTES_MAX);
        assert!(tokens.has_room(&next, None), "a small one still fits");
        let known = tokens.keys().next().unwrap().clone();
        assert!(tokens.has_room_to_replace(&known, Some(&answer)), "it is counted once");
        assert!(!tokens.has_room(&known, Some(&answer)) && !tokens.has_room_to_replace(&next, Some(&answer)));
        tokens.expire(at(MINUTES_15 + 1));
        assert_eq!(tokens.size_bytes(), 0);
    }

    #[test]
    fn a_split_divides_tokens_as_it_divides_rows() {
        let mut all = TokenTable::default();
        for row in ["a", "m", "m\0", "z"] {
            all.record(key(row, "tokentoken"), None, None, times(0));
        }
        let (mut left, mut right) = (all.clone(), all);
        let (below, above) = KeyRange::all().split_at(&RowKey::new("m")).unwrap();
        assert_eq!(left.retain(std::slice::from_ref(&below)).len(), 3);
        assert_eq!(right.retain(std::slice::from_ref(&above)), [key("a", "tokentoken")]);
        assert_eq!(left.keys().collect::<Vec<_>>(), [&key("a", "tokentoken")]);
        assert_eq!(right.keys().count(), 3);
    }
}

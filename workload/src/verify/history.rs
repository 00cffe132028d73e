//! Histories: operations and their responses as values, row by row.
//!
//! ```text
//!   start ----------------- end        one operation of one process, which has one under way at a time
//!   ok        it was applied, with this response
//!   failed    it was not applied: it is not recorded, and its data would be a phantom
//!   unknown   it may have been applied, at any time after its start, or never
//! ```
//!
//! Times are from one clock, the load's, so they define the real-time order of operations. Rows that must be linearizable are
//! short (an epoch of a few hundred operations, then the next row), and all their operations are recorded. Of blind writes only
//! a summary is recorded ([`BlindWrites`]), which does not grow. At its bound the history records nothing more, and the load
//! continues with blind writes only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::blind_writes::BlindWrites;
use super::rows::Kind;

/// Microseconds since the load's clock was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(u64);

impl Moment {
    /// The moment at this time after the start.
    pub fn after(start: Duration) -> Self {
        Self(u64::try_from(start.as_micros()).unwrap_or(u64::MAX))
    }

    /// Time since the start.
    pub const fn elapsed(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// Time since `earlier`; zero when that is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.elapsed().saturating_sub(earlier.elapsed())
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.elapsed().as_secs_f64())
    }
}

/// A process, which has one operation in progress at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Process {
    /// Writes, and reads what its writes need.
    Writer(u32),
    /// Only reads.
    Reader(u32),
    /// Reads all data back at the end.
    ReadBack,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Writer(number) => write!(f, "writer {number}"),
            Self::Reader(number) => write!(f, "reader {number}"),
            Self::ReadBack => f.write_str("read back"),
        }
    }
}

/// Outcome of an operation, as far as its process knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was applied.
    Ok,
    /// It was not applied.
    Failed,
    /// It may have been applied.
    Unknown,
}

/// The unique mark of a write: `writer.sequence`. Sequences of a writer increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Number of the writer.
    pub writer: u32,
    /// Sequence number of its write.
    pub sequence: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.writer, self.sequence)
    }
}

impl std::str::FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.').and_then(|(writer, sequence)| {
            Some(Self { writer: writer.parse().ok()?, sequence: sequence.parse().ok()? })
        });
        // Only the canonical text is accepted: not `01.2` or `1.+2`.
        parts.filter(|token| token.to_string() == text).ok_or_else(|| format!("not a token: {text:?}"))
    }
}

impl Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A compact form of a list: the number of tokens and a digest of their text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefix {
    /// Number of tokens.
    pub tokens: u64,
    /// FNV-1a over the list's text; equal for equal lists.
    pub digest: u64,
}

impl Prefix {
    /// The empty list.
    pub const EMPTY: Self = Self { tokens: 0, digest: 0xcbf2_9ce4_8422_2325 };

    /// This list with `text` appended (tokens, each followed by a comma).
    #[must_use]
    pub fn with(mut self, text: &str) -> Self {
        for byte in text.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            self.tokens += u64::from(byte == b',');
        }
        self
    }

    /// Every prefix of the list `text`, the empty one first, the whole list last.
    pub fn all(text: &str) -> Vec<Self> {
        let mut prefix = Self::EMPTY;
        let longer = text.split_inclusive(',').map(|token| {
            prefix = prefix.with(token);
            prefix
        });
        std::iter::once(Self::EMPTY).chain(longer.collect::<Vec<_>>()).collect()
    }

    /// The whole list.
    pub fn of(text: &str) -> Self {
        Self::EMPTY.with(text)
    }
}

/// An action on a row and its response; `None` when there was no response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Appends a token to a list and returns the list.
    Append {
        /// The token.
        token: Token,
        /// The resulting list.
        list: Option<Prefix>,
    },
    /// Reads a list.
    List {
        /// The value.
        list: Prefix,
    },
    /// Adds one to a counter and returns it.
    Increment {
        /// The resulting value.
        count: Option<i64>,
    },
    /// Reads a counter.
    Count {
        /// The value.
        count: i64,
    },
    /// Writes a register.
    Write {
        /// The new value.
        value: Token,
    },
    /// Compare-and-set of a register.
    Swap {
        /// The expected value; `None`: no value.
        expected: Option<Token>,
        /// The new value.
        value: Token,
        /// Whether it was written.
        swapped: Option<bool>,
    },
    /// Reads a register.
    Read {
        /// The value.
        value: Option<Token>,
    },
    /// Overwrites a blind row. The version is the token.
    Put {
        /// The version.
        version: Token,
    },
}

/// One operation on one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// The process.
    pub by: Process,
    /// When it was sent.
    pub start: Moment,
    /// When its response arrived or it timed out.
    pub end: Moment,
    /// Its outcome.
    pub outcome: Outcome,
    /// The action and its response.
    #[serde(flatten)]
    pub action: Action,
}

impl Operation {
    /// Whether it is a write.
    pub const fn is_write(&self) -> bool {
        matches!(
            self.action,
            Action::Append { .. }
                | Action::Increment { .. }
                | Action::Write { .. }
                | Action::Swap { .. }
                | Action::Put { .. }
        )
    }

    /// The token that it writes.
    pub const fn token(&self) -> Option<Token> {
        match self.action {
            Action::Append { token, .. } => Some(token),
            Action::Write { value } | Action::Swap { value, .. } => Some(value),
            Action::Put { version } => Some(version),
            _ => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn or_nothing(value: Option<impl fmt::Display>) -> String {
            value.map_or_else(|| "nothing".to_owned(), |value| value.to_string())
        }
        let outcome = match self.outcome {
            Outcome::Ok => "",
            Outcome::Failed => ", failed",
            Outcome::Unknown => ", outcome unknown",
        };
        write!(f, "{} to {}  {}: ", self.start, self.end, self.by)?;
        match &self.action {
            Action::Append { token, list: Some(list) } => write!(f, "append {token}, then {} tokens", list.tokens),
            Action::Append { token, list: None } => write!(f, "append {token}"),
            Action::List { list } => write!(f, "read {} tokens", list.tokens),
            Action::Increment { count: Some(count) } => write!(f, "increment to {count}"),
            Action::Increment { count: None } => f.write_str("increment"),
            Action::Count { count } => write!(f, "read {count}"),
            Action::Write { value } => write!(f, "write {value}"),
            Action::Swap { expected, value, swapped } => {
                let result = if *swapped == Some(false) { ", which found another value" } else { "" };
                write!(f, "replace {} by {value}{result}", or_nothing(*expected))
            }
            Action::Read { value } => write!(f, "read {}", or_nothing(*value)),
            Action::Put { version } => write!(f, "write version {version}"),
        }?;
        f.write_str(outcome)
    }
}

/// Whether the history is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// It has all operations that were sent.
    #[default]
    Whole,
    /// It is truncated: writes may have been sent after its last entry.
    Cut,
}

/// All operations, row by row.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Operations on rows with complete histories, in the order of their ends.
    pub rows: BTreeMap<String, Vec<Operation>>,
    /// The longest text of each list that was read back.
    pub texts: BTreeMap<String, String>,
    /// Rows that were torn when they were read back, which are not checked further.
    pub torn: BTreeSet<String>,
    /// Summary of the blind writes.
    pub blind: BlindWrites,
    /// Whether something may be missing.
    pub extent: Extent,
    /// The highest sequence of each writer.
    last: BTreeMap<u32, u64>,
    kept: usize,
    /// When the last operation ended.
    end: Moment,
}

impl History {
    /// A truncated history.
    pub fn cut() -> Self {
        Self { extent: Extent::Cut, ..Self::default() }
    }

    /// Records a completed operation. Failed operations are not recorded.
    pub fn note(&mut self, row: &str, operation: Operation) {
        self.end = operation.end.max(self.end);
        if let Some(token) = operation.token() {
            let last = self.last.entry(token.writer).or_default();
            *last = token.sequence.max(*last);
        }
        if operation.outcome == Outcome::Failed {
            return;
        }
        match operation.action {
            Action::Put { version } => self.blind.note(row, version, operation.outcome),
            _ if operation.by == Process::ReadBack => self.note_read_back(row, operation),
            _ => {
                self.kept += 1;
                self.rows.entry(row.to_owned()).or_default().push(operation);
            }
        }
    }

    /// Of many read-backs with the same value only the first and the last are recorded.
    fn note_read_back(&mut self, row: &str, operation: Operation) {
        let operations = self.rows.entry(row.to_owned()).or_default();
        let is_same = |other: &Operation| other.by == Process::ReadBack && other.action == operation.action;
        if operations.iter().rev().take(2).filter(|other| is_same(other)).count() == 2 {
            operations.pop();
        }
        operations.push(operation);
    }

    /// Records the text of a list that was read back.
    pub fn note_text(&mut self, row: &str, text: &str) {
        let known = self.texts.entry(row.to_owned()).or_default();
        if text.len() > known.len() {
            text.clone_into(known);
        }
    }

    /// When the last operation ended.
    pub const fn end(&self) -> Moment {
        self.end
    }

    /// Number of recorded operations, each about 100 bytes.
    pub const fn kept(&self) -> usize {
        self.kept
    }

    /// Whether a token that is not in the history may have been written, because the history is truncated.
    pub fn may_have_sent(&self, token: Token) -> bool {
        self.extent == Extent::Cut && self.last.get(&token.writer).is_none_or(|last| token.sequence > *last)
    }

    /// The rows of one kind that can be checked.
    pub fn rows_of(&self, kind: Kind) -> impl Iterator<Item = (&str, &[Operation])> {
        let rows = self.rows.iter().filter(move |(row, _)| Kind::of(row) == Some(kind));
        let rows = rows.filter(|(row, _)| !self.torn.contains(*row));
        rows.map(|(row, operations)| (row.as_str(), operations.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(at: u64, value: Option<Token>) -> Operation {
        let (start, end) = (Moment(at), Moment(at + 1));
        Operation { by: Process::ReadBack, start, end, outcome: Outcome::Ok, action: Action::Read { value } }
    }

    #[test]
    fn tokens_round_trip() {
        let token = Token { writer: 3, sequence: 17 };
        assert_eq!(token.to_string().parse(), Ok(token));
        assert!(["3", "3.", ".1", "03.1", "3.+1", "3.1.2"].iter().all(|text| text.parse::<Token>().is_err()));
    }

    #[test]
    fn a_list_has_a_prefix_for_each_token() {
        let prefixes = Prefix::all("1.1,2.1,");
        assert_eq!(prefixes.iter().map(|prefix| prefix.tokens).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(prefixes[1], Prefix::of("1.1,"));
        assert_ne!(Prefix::of("1.1,2.1,"), Prefix::of("2.1,1.1,"));
    }

    #[test]
    fn equal_read_backs_are_recorded_at_most_twice() {
        let mut history = History::default();
        (0..10).for_each(|at| history.note("r", read_back(at, None)));
        assert_eq!(history.rows["r"], [read_back(0, None), read_back(9, None)]);
        let token = Some(Token { writer: 1, sequence: 1 });
        history.note("r", read_back(10, token));
        assert_eq!(history.rows["r"].len(), 3);
    }

    #[test]
    fn a_truncated_history_may_lack_later_writes() {
        let put = |sequence| {
            let action = Action::Put { version: Token { writer: 1, sequence } };
            Operation { by: Process::Writer(1), start: Moment(0), end: Moment(1), outcome: Outcome::Ok, action }
        };
        let mut history = History::default();
        history.note("00/row/x/1", put(5));
        let (old, new) = (Token { writer: 1, sequence: 4 }, Token { writer: 1, sequence: 6 });
        assert!(!history.may_have_sent(new));
        history.extent = Extent::Cut;
        assert!(history.may_have_sent(new) && !history.may_have_sent(old));
    }

    #[test]
    fn operations_round_trip_through_json() {
        let swap = Action::Swap { expected: None, value: Token { writer: 1, sequence: 2 }, swapped: Some(false) };
        let operation =
            Operation { by: Process::Writer(1), start: Moment(5), end: Moment(9), outcome: Outcome::Ok, action: swap };
        let text = serde_json::to_string(&operation).unwrap();
        assert_eq!(serde_json::from_str::<Operation>(&text).unwrap(), operation, "{text}");
    }
}

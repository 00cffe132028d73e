//! Writes that are applied once, however often they are sent.
//!
//! A session is one incarnation of a front or of a direct client. It numbers its writes and says with each which number
//! is the lowest that it may still send again. Each tablet keeps, per session, the numbers it has applied from there
//! on, with the answer where it could not be computed again. All of it is replicated state, changed in apply only and
//! forgotten by the log's time.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::id::Sequence;
use crate::time::Micros;

/// How long a session is kept after its last write.
pub const IDLE_MAX: Duration = Duration::from_secs(15 * 60);

/// What a tablet remembers of one session.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionWindow {
    /// The session has the answers of all writes below this; they are not sent again.
    pub lowest_outstanding: Sequence,
    /// What was applied from `lowest_outstanding` on, with the answer where one is kept.
    pub applied: BTreeMap<Sequence, Option<Bytes>>,
    /// The log's time at the last write.
    pub last_used: Micros,
}

/// Whether a write is to be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was not applied before.
    Fresh,
    /// It was applied before, with this answer where one was kept.
    Duplicate(Option<Bytes>),
    /// The session itself has declared it answered: whether it was applied is not known any more. It is not applied.
    Forgotten,
}

impl SessionWindow {
    /// Judges a write by its number. Changes nothing.
    pub fn judge(&self, sequence: Sequence) -> Verdict {
        if sequence < self.lowest_outstanding {
            return Verdict::Forgotten;
        }
        match self.applied.get(&sequence) {
            Some(result) => Verdict::Duplicate(result.clone()),
            None => Verdict::Fresh,
        }
    }

    /// Remembers a write that is being applied, and forgets those below `lowest`.
    ///
    /// A `lowest` above `sequence` would forget the write itself while it may be sent again; it counts as `sequence`.
    pub fn record(&mut self, sequence: Sequence, lowest: Sequence, result: Option<Bytes>, now: Micros) {
        self.raise(lowest.min(sequence), now);
        if sequence >= self.lowest_outstanding {
            self.applied.insert(sequence, result);
        }
    }

    /// Notes a sign of life of the session: what it says is the lowest number that it may still send.
    pub fn raise(&mut self, lowest: Sequence, now: Micros) {
        if lowest > self.lowest_outstanding {
            self.lowest_outstanding = lowest;
            self.applied = self.applied.split_off(&lowest);
        }
        self.last_used = self.last_used.max(now);
    }

    /// Whether it may be forgotten at the log's time `now`.
    pub fn expired(&self, now: Micros) -> bool {
        now.since(self.last_used) > IDLE_MAX
    }

    /// About how much memory it takes, in bytes.
    pub fn size_bytes(&self) -> usize {
        let results: usize = self.applied.values().flatten().map(Bytes::len).sum();
        64 + 40 * self.applied.len() + results
    }
}

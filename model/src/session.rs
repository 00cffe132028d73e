//! Sessions: writes are applied exactly once, however often they are sent.
//!
//! A session is one incarnation of a front or of a direct client as a sender of writes to one group. (A write whose tablet moves to
//! another group keeps its session.) It numbers its writes and sends with each the lowest number that it may still retry. For
//! each session a group stores the applied numbers from there on, with the response if it cannot be recomputed. All of it is replicated state, changed in apply only and expired by the session time ([`crate::group_time`]). A sender stops
//! repeating a write of unknown outcome ([`RESEND_MAX`]) long before its session can expire ([`IDLE_MAX`]).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::id::Sequence;
use crate::time::Micros;

/// Time to live of a session after its last write.
pub const IDLE_MAX: Duration = Duration::from_secs(15 * 60);

/// How long a sender repeats a write that may have been applied, from the first attempt whose outcome is unknown. A group that has
/// applied it may forget that [`IDLE_MAX`] later, and would then apply it again. The rest of that time is a margin: for an
/// attempt that is still under way, and for leaders whose clocks differ.
pub const RESEND_MAX: Duration = Duration::from_secs(5 * 60);

const _: () = assert!(RESEND_MAX.as_secs() * 3 <= IDLE_MAX.as_secs(), "a repeated write must find its session");

/// A group's record of one session.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionWindow {
    /// The session has acknowledged the responses of all writes below this; it never retries them.
    pub lowest_outstanding: Sequence,
    /// The applied writes from `lowest_outstanding` on, with the stored response if there is one.
    pub applied: BTreeMap<Sequence, Option<Bytes>>,
    /// The session time at the last write.
    pub last_used: Micros,
}

/// Whether a write must be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SequenceCheck {
    /// It was not applied before.
    New,
    /// It was applied before, with this stored response if there is one.
    Duplicate(Option<Bytes>),
    /// The session has acknowledged its response: it is unknown whether it was applied. It must not be applied.
    Acknowledged,
}

impl SessionWindow {
    /// Checks a write by its number. Changes nothing.
    pub fn check(&self, sequence: Sequence) -> SequenceCheck {
        if sequence < self.lowest_outstanding {
            return SequenceCheck::Acknowledged;
        }
        match self.applied.get(&sequence) {
            Some(result) => SequenceCheck::Duplicate(result.clone()),
            None => SequenceCheck::New,
        }
    }

    /// Records a write that is being applied, and drops those below `lowest`.
    ///
    /// A `lowest` above `sequence` would drop the write itself while it may be retried; it counts as `sequence`.
    pub fn record(&mut self, sequence: Sequence, lowest: Sequence, result: Option<Bytes>, now: Micros) {
        self.advance(lowest.min(sequence), now);
        if sequence >= self.lowest_outstanding {
            self.applied.insert(sequence, result);
        }
    }

    /// Advances the window to the lowest number that the session may still send, and its time of last use.
    pub fn advance(&mut self, lowest: Sequence, now: Micros) {
        if lowest > self.lowest_outstanding {
            self.lowest_outstanding = lowest;
            self.applied = self.applied.split_off(&lowest);
        }
        self.last_used = self.last_used.max(now);
    }

    /// Adds the writes that the same session has made in another group, of a tablet that moves here. What one of the groups must
    /// not apply again, the union must not apply either. `last_used`: of the other window, in this log's session time.
    pub fn absorb(&mut self, other: Self, last_used: Micros) {
        self.advance(other.lowest_outstanding, last_used);
        let lowest = self.lowest_outstanding;
        self.applied.extend(other.applied.into_iter().filter(|(sequence, _)| *sequence >= lowest));
    }

    /// Whether it has expired at the session time `now`.
    pub fn is_expired(&self, now: Micros) -> bool {
        now.since(self.last_used) > IDLE_MAX
    }

    /// Approximate memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        let results: usize = self.applied.values().flatten().map(Bytes::len).sum();
        64 + 40 * self.applied.len() + results
    }
}

//! A session: the sequence numbers by which a tablet knows a write again.
//!
//! One handle has one session. Each row's write takes the next sequence when it begins and keeps it over all its
//! retries, so a tablet that has applied it answers "done" instead of applying it twice. The lowest sequence that is
//! still outstanding travels with each write: below it the tablet need remember nothing.
//!
//! A write whose caller went away ends like any other. If it is still on its way then, the tablet finds its sequence
//! below the lowest outstanding one and refuses it: applied once or not at all, never twice.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use ebla_model::id::{Sequence, SessionId};
use ebla_proto::tablet;
use ebla_runtime::{Bug, planted};

/// The sequences of one session: which comes next, which are not answered yet.
#[derive(Debug)]
struct Sequences {
    next: u64,
    outstanding: BTreeSet<u64>,
}

impl Sequences {
    /// The lowest sequence that may still be sent; the next one when all are answered.
    fn lowest_outstanding(&self) -> u64 {
        self.outstanding.first().copied().unwrap_or(self.next)
    }
}

/// One incarnation of a client or front. Cheap to clone; clones share the sequences.
#[derive(Clone, Debug)]
pub struct Session {
    id: Bytes,
    /// Guards the counter and the set; held for a few instructions.
    sequences: Arc<Mutex<Sequences>>,
}

impl Session {
    /// A session under a fresh random id.
    pub fn new(id: SessionId) -> Self {
        let sequences = Sequences { next: 1, outstanding: BTreeSet::new() };
        Self { id: Bytes::copy_from_slice(&id.to_bytes()), sequences: Arc::new(Mutex::new(sequences)) }
    }

    /// Begins a write: it holds the next sequence until the ticket is dropped.
    pub fn begin(&self) -> Ticket {
        let mut sequences = self.lock();
        let sequence = sequences.next;
        sequences.next = sequences.next.saturating_add(1);
        sequences.outstanding.insert(sequence);
        drop(sequences);
        Ticket { session: self.clone(), sequence }
    }

    /// Takes a sequence that nobody begins with.
    fn skip(&self) -> u64 {
        let mut sequences = self.lock();
        sequences.next = sequences.next.saturating_add(1);
        sequences.next - 1
    }

    /// The lowest sequence that is not answered yet.
    pub fn lowest_outstanding(&self) -> Sequence {
        Sequence::new(self.lock().lowest_outstanding())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sequences> {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write that is under way. Dropping it says that it will not be sent again.
#[derive(Debug)]
pub struct Ticket {
    session: Session,
    sequence: u64,
}

impl Ticket {
    /// The sequence of this write.
    pub fn sequence(&self) -> Sequence {
        Sequence::new(self.sequence)
    }

    /// What names this write on the wire, with the lowest outstanding sequence of this moment.
    pub fn write_id(&self) -> tablet::WriteId {
        tablet::WriteId {
            session: self.session.id.clone(),
            sequence: if planted(Bug::RetryUnderNewNumber) { self.session.skip() } else { self.sequence },
            lowest_outstanding: self.session.lock().lowest_outstanding(),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.lock().outstanding.remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_outstanding_waits_for_the_oldest_write() {
        let session = Session::new(SessionId::new(7));
        let first = session.begin();
        let second = session.begin();
        assert_eq!(session.lowest_outstanding(), first.sequence());
        drop(second);
        assert_eq!(session.lowest_outstanding(), first.sequence());
        drop(first);
        assert_eq!(session.lowest_outstanding(), Sequence::new(3));
    }

    #[test]
    fn a_write_keeps_its_sequence_over_retries() {
        let session = Session::new(SessionId::new(7));
        let ticket = session.begin();
        let first = ticket.write_id();
        let later = session.begin();
        assert_eq!(ticket.write_id().sequence, first.sequence);
        assert_eq!(later.write_id().lowest_outstanding, first.sequence);
    }
}

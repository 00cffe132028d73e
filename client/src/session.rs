//! A session: sequence numbers that let a tablet recognize a retried write (exactly-once writes).
//!
//! Each handle has one session. The write of a row takes the next sequence when it begins and keeps it over all its
//! retries, so a tablet that has applied the write responds with success and does not apply it twice. Each write
//! carries the lowest outstanding sequence: the tablet drops the records of all sequences below it.
//!
//! A write whose caller went away ends like any other. If it reaches the tablet later, its sequence is below the lowest
//! outstanding one and the tablet rejects it: it is applied once or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ebla_model::id::{Sequence, SessionId};
use ebla_proto::tablet;
use ebla_runtime::Failpoint;
use parking_lot::Mutex;

/// The sequences of one session: the next one and the outstanding ones.
#[derive(Debug)]
struct Sequences {
    next: u64,
    outstanding: BTreeSet<u64>,
}

impl Sequences {
    /// The lowest sequence that may still be sent; the next one if none is outstanding.
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
        let mut sequences = self.sequences.lock();
        let sequence = sequences.next;
        sequences.next = sequences.next.saturating_add(1);
        sequences.outstanding.insert(sequence);
        drop(sequences);
        Ticket { session: self.clone(), sequence }
    }

    /// Takes a sequence without a write.
    fn skip(&self) -> u64 {
        let mut sequences = self.sequences.lock();
        sequences.next = sequences.next.saturating_add(1);
        sequences.next - 1
    }

    /// The lowest outstanding sequence.
    pub fn lowest_outstanding(&self) -> Sequence {
        Sequence::new(self.sequences.lock().lowest_outstanding())
    }
}

/// A write in progress. Dropping the ticket means that the write is not sent again.
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

    /// The id of this write on the wire, with the current lowest outstanding sequence.
    pub fn write_id(&self) -> tablet::WriteId {
        tablet::WriteId {
            session: self.session.id.clone(),
            sequence: if Failpoint::RetryUnderNewNumber.is_enabled() { self.session.skip() } else { self.sequence },
            lowest_outstanding: self.session.sequences.lock().lowest_outstanding(),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.sequences.lock().outstanding.remove(&self.sequence);
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

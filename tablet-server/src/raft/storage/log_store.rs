//! openraft's log of one group, stored in the server's commit log.
//!
//! What openraft requires, and how it is guaranteed: entries can be read when `append` returns (from the commit log's memory),
//! `IOFlushed` is called after the sync that covers them, and a vote is on disk when `save_vote` returns. The core of a
//! group issues its calls one after another and the commit log keeps that order, so a vote is never on disk without the entries
//! that were appended before it. Entries that have left the memory are read from their segment by a thread of a pool, at most
//! about 1 MiB at once, for a follower that lags and after a restart: the task of the call carries other groups, too, with their
//! heartbeats. `save_committed` is not implemented: the group's applied
//! index is durable with its flush.
//!
//! An entry's payload is one tag byte (0 blank, 1 command, 2 membership) and the bytes. A vote is term and replica, big
//! endian, and one byte that says whether a quorum granted it.

use std::collections::Bound;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use ebla_model::id::{LogId, LogIndex, Term};
use ebla_proto::convert;
use ebla_proto::record;
use ebla_runtime::{Blocking, Failpoint};
use ebla_storage::log::{CommitLog, GroupReplica, LogError, Record};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use openraft::OptionalSend;
use openraft::entry::EntryPayload;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use prost::Message;
use tokio::sync::oneshot;

use super::blocking::run_blocking;
use super::sync_tracker::SyncTracker;
use crate::raft::entry_times::EntryClock;
use crate::raft::error::Fault;
use crate::raft::types::{
    Command, RaftEntry, RaftLogId, RaftVote, TypeConfig, committed_vote, log_id, membership, raft_log_id,
    raft_membership, vote, vote_term,
};

/// The largest number of bytes of entries in one append, and in one read for apply. One larger entry is sent alone.
pub(in crate::raft) const APPEND_BYTES_MAX: u64 = 1024 * 1024;

/// The first index of a submission that touches no entry, as that of a vote.
const NO_ENTRY: LogIndex = LogIndex::new(u64::MAX);

const BLANK: u8 = 0;
const COMMAND: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// The log of one group. Clones are handles to the same log.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: CommitLog,
    group: GroupReplica,
    sync_tracker: Arc<SyncTracker>,
    entry_clock: EntryClock,
    /// For reads from the disk.
    pool: Blocking,
}

/// Waits until everything that the group has submitted is durable. For the start of a replica whose former run has just ended: openraft counts
/// the log and the vote that it finds as durable, and would acknowledge them.
pub(in crate::raft) async fn wait_until_durable(log: &CommitLog, group: GroupReplica) -> Result<(), Fault> {
    let (sender, durable) = oneshot::channel();
    let done = move |outcome| {
        // The receiver is dropped when the start is cancelled.
        let _receiver_dropped = sender.send(outcome);
    };
    log.when_durable(group, Box::new(done));
    durable.await.unwrap_or(Err(LogError::Stopped)).map_err(Fault::from)
}

impl LogStore {
    pub(in crate::raft) fn new(
        log: CommitLog,
        group: GroupReplica,
        sync_tracker: Arc<SyncTracker>,
        entry_clock: EntryClock,
        pool: Blocking,
    ) -> Self {
        Self { log, group, sync_tracker, entry_clock, pool }
    }

    /// Submits records that touch indexes from `first` on, with the last entry among them; calls `done` after their sync.
    fn submit(
        &self,
        records: Vec<Record>,
        first: LogIndex,
        last_entry: Option<LogIndex>,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        let (sync_tracker, entry_clock) = (Arc::clone(&self.sync_tracker), self.entry_clock.clone());
        let ticket = sync_tracker.submitted(first);
        let done = move |outcome: Result<(), _>| {
            let outcome = outcome.map_err(|error: LogError| Fault::from(error));
            // First: the tracker wakes the application of the entries, whose report needs this time.
            if let (Some(last), Ok(())) = (last_entry, &outcome) {
                entry_clock.sync(last);
            }
            sync_tracker.synced(ticket, outcome.clone());
            done(outcome.map_err(io::Error::from));
        };
        self.log.submit(records, Box::new(done));
    }

    async fn read(&self, from: LogIndex, to: LogIndex) -> io::Result<Vec<RaftEntry>> {
        let in_memory = self.log.entries_in_memory(self.group, from..to, APPEND_BYTES_MAX).map_err(Fault::from)?;
        let entries = match in_memory {
            Some(entries) => entries,
            None => {
                let (log, group) = (self.log.clone(), self.group);
                let read = move || log.entries(group, from..to, APPEND_BYTES_MAX);
                run_blocking(&self.pool, read).await?.map_err(Fault::from)?
            }
        };
        entries.into_iter().map(|(id, payload)| decode_entry(id, payload)).collect()
    }

    /// Streams all entries in `[from, to)` chunk by chunk: after a restart a group may have a gigabyte to apply.
    fn chunks(&self, from: LogIndex, to: LogIndex) -> impl Stream<Item = io::Result<RaftEntry>> + Send + 'static {
        let store = self.clone();
        let chunks = stream::try_unfold(from, move |next| {
            let store = store.clone();
            async move { if next < to { store.read_chunk(next, to).await.map(Some) } else { Ok(None) } }
        });
        chunks.map_ok(|entries| stream::iter(entries.into_iter().map(Ok))).try_flatten()
    }

    async fn read_chunk(&self, from: LogIndex, to: LogIndex) -> io::Result<(Vec<RaftEntry>, LogIndex)> {
        let entries = self.read(from, to).await?;
        match entries.last() {
            Some(last) => {
                let next = log_id(&last.log_id).index.next();
                Ok((entries, next))
            }
            None => Err(io::Error::other(format!("log entry {from} of {:?} is missing", self.group))),
        }
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<R>(&mut self, range: R) -> io::Result<Vec<RaftEntry>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (mut next, to) = bounds(&range);
        let mut all = Vec::new();
        while next < to {
            // Fewer entries than requested are valid: the range may extend beyond the end of the log.
            let some = self.read(next, to).await?;
            let Some(last) = some.last() else { break };
            next = log_id(&last.log_id).index.next();
            all.extend(some);
        }
        Ok(all)
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        self.log.vote(self.group).map(|bytes| decode_vote(&bytes)).transpose()
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<RaftEntry>> {
        self.read(LogIndex::new(start), LogIndex::new(end)).await
    }

    async fn entries_stream<R>(&mut self, range: R) -> impl Stream<Item = io::Result<RaftEntry>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.chunks(from, to).boxed()
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let purged = self.log.purged(self.group);
        let last = self.log.last(self.group).max(purged);
        Ok(LogState { last_purged_log_id: purged.map(raft_log_id), last_log_id: last.map(raft_log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &RaftVote) -> io::Result<()> {
        if Failpoint::VoteNotSaved.is_enabled() {
            return Ok(());
        }
        let (sender, synced) = oneshot::channel();
        let record = Record::Vote { group: self.group, vote: encode_vote(vote) };
        self.submit(vec![record], NO_ENTRY, None, move |outcome| {
            // The receiver is dropped when openraft stops meanwhile.
            let _receiver_dropped = sender.send(outcome);
        });
        synced.await.map_err(io::Error::other)?
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let (mut first, mut last) = (None, None);
        let mut records = Vec::new();
        for entry in entries {
            let id = log_id(&entry.log_id);
            first.get_or_insert(id.index);
            last = Some(id.index);
            records.push(Record::Entry { group: self.group, id, payload: encode_payload(&entry.payload) });
        }
        if let Some((first, last)) = first.zip(last) {
            self.entry_clock.append(first, last);
        }
        self.submit(records, first.unwrap_or(NO_ENTRY), last, move |outcome| callback.io_completed(outcome));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        // Every log begins after a seed or a snapshot, so at least one entry always remains.
        let Some(last) = last else { return Err(io::Error::other("refused to truncate the log to nothing")) };
        let after = log_id(&last).index;
        let record = Record::Truncate { group: self.group, after };
        self.submit(vec![record], after.next(), None, |_outcome| ());
        Ok(())
    }

    async fn purge(&mut self, upto: RaftLogId) -> io::Result<()> {
        let record = Record::Purge { group: self.group, upto: log_id(&upto) };
        self.submit(vec![record], NO_ENTRY, None, |_outcome| ());
        Ok(())
    }
}

fn bounds(range: &impl RangeBounds<u64>) -> (LogIndex, LogIndex) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (LogIndex::new(from), LogIndex::new(to))
}

pub(super) type RaftPayload = EntryPayload<Command, u64, crate::raft::types::Host>;

pub(super) fn encode_payload(payload: &RaftPayload) -> Bytes {
    match payload {
        EntryPayload::Blank => Bytes::from_static(&[BLANK]),
        EntryPayload::Normal(command) => tagged(COMMAND, &command.0),
        EntryPayload::Membership(members) => {
            tagged(MEMBERSHIP, &convert::membership_to_proto(&membership(members)).encode_to_vec())
        }
    }
}

fn tagged(tag: u8, bytes: &[u8]) -> Bytes {
    let mut payload = BytesMut::with_capacity(bytes.len() + 1);
    payload.put_u8(tag);
    payload.put_slice(bytes);
    payload.freeze()
}

fn decode_entry(id: LogId, stored: Bytes) -> io::Result<RaftEntry> {
    let Some(tag) = stored.first().copied() else { return Err(damaged(id, "it is empty")) };
    let payload = match tag {
        BLANK => EntryPayload::Blank,
        COMMAND => EntryPayload::Normal(Command(stored.slice(1..))),
        MEMBERSHIP => EntryPayload::Membership(decode_membership(id, stored.slice(1..))?),
        _ => return Err(damaged(id, "unknown kind of payload")),
    };
    Ok(RaftEntry { log_id: raft_log_id(id), payload })
}

fn decode_membership(id: LogId, bytes: Bytes) -> io::Result<crate::raft::types::RaftMembership> {
    let members = record::Membership::decode(bytes).map_err(|_error| damaged(id, "cannot decode the membership"))?;
    Ok(raft_membership(&convert::membership_from_proto(&members))?)
}

fn damaged(id: LogId, what: &str) -> io::Error {
    Fault::damaged_log(format!("log entry {}.{} is damaged: {what}", id.term, id.index)).into()
}

pub(super) fn encode_vote(vote: &RaftVote) -> Bytes {
    let mut bytes = BytesMut::with_capacity(17);
    bytes.put_u64(vote_term(vote).get());
    bytes.put_u64(vote.leader_id.voted_for);
    bytes.put_u8(u8::from(vote.committed));
    bytes.freeze()
}

pub(super) fn decode_vote(bytes: &[u8]) -> io::Result<RaftVote> {
    let damaged_vote = || io::Error::from(Fault::damaged_log("the vote in the log is damaged"));
    let (term, rest) = bytes.split_first_chunk::<8>().ok_or_else(damaged_vote)?;
    let (replica, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged_vote)?;
    let (term, replica) = (Term::new(u64::from_be_bytes(*term)), u64::from_be_bytes(*replica));
    match rest {
        [0] => Ok(vote(term, replica)),
        [1] => Ok(committed_vote(term, replica)),
        _ => Err(damaged_vote()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_survive_a_round_trip() {
        for original in [vote(Term::new(7), u64::MAX), committed_vote(Term::new(7), u64::MAX)] {
            assert_eq!(decode_vote(&encode_vote(&original)).unwrap(), original);
        }
        assert!(decode_vote(&[0; 16]).is_err());
        assert!(decode_vote(&[9; 17]).is_err());
    }

    #[test]
    fn payloads_survive_a_round_trip() {
        let id = LogId { term: Term::new(2), index: LogIndex::new(11) };
        let members = ebla_model::metadata::Membership::initial(&[ebla_model::id::ServerId::new(4)]);
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Command(Bytes::from_static(b"x"))),
            EntryPayload::Normal(Command(Bytes::new())),
            EntryPayload::Membership(raft_membership(&members).unwrap()),
        ];
        for payload in payloads {
            let back = decode_entry(id, encode_payload(&payload)).unwrap();
            assert_eq!((back.log_id, back.payload), (raft_log_id(id), payload));
        }
        assert!(decode_entry(id, Bytes::new()).is_err());
        assert!(decode_entry(id, Bytes::from_static(&[9])).is_err());
    }

    fn stored_examples() -> Vec<Vec<u8>> {
        let members = ebla_model::metadata::Membership::initial(&[1, 2, 3].map(ebla_model::id::ServerId::new));
        let members = EntryPayload::Membership(raft_membership(&members).unwrap());
        let ballot = committed_vote(Term::new(7), 2);
        vec![encode_payload(&members).to_vec(), encode_vote(&ballot).to_vec()]
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(10_000))]

        #[test]
        fn stored_bytes_are_refused_or_round_trip(bytes in crate::inputs::inputs(stored_examples())) {
            if let Ok(ballot) = decode_vote(&bytes) {
                assert_eq!(encode_vote(&ballot), bytes);
            }
            let id = LogId { term: Term::new(2), index: LogIndex::new(11) };
            if let Ok(entry) = decode_entry(id, bytes.into()) {
                let again = decode_entry(id, encode_payload(&entry.payload)).unwrap();
                assert_eq!((again.log_id, again.payload), (entry.log_id, entry.payload));
            }
        }
    }
}

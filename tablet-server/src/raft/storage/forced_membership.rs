//! A membership that no majority has agreed to: the last resort for a group whose majority is lost permanently.
//!
//! A replica that does not run gets two records in its log: a vote of a much higher term, and an entry of that term with the new
//! membership. When it starts it is the only voter, elects itself, and commits its whole log. Raft's safety rests on majorities, so what only
//! the lost replicas had is gone, and none of them may run again.

use ebla_model::id::{LogId, LogIndex, Term};
use ebla_model::metadata::{Membership, Replica};
use ebla_storage::log::{CommitLog, GroupReplica, Record};
use openraft::entry::EntryPayload;

use super::log_store::{decode_vote, encode_payload, encode_vote};
use crate::raft::error::Fault;
use crate::raft::types::{raft_membership, vote, vote_term};

/// How far the term advances. The lost replicas may have reached later terms than this one has seen, by one for each election; entries
/// of theirs must never have the term of the new membership.
const TERM_STEP: u64 = 1 << 20;

/// Makes this replica the only voter of its group. It must not run. Returns the entry of the new membership, which is on disk then.
/// Blocks.
///
/// `applied`: the last entry that its store contains, at or after the beginning of its log.
///
/// # Errors
/// When its vote is damaged, or the commit log fails.
pub fn force_membership(log: &CommitLog, id: GroupReplica, survivor: Replica, applied: LogId) -> Result<LogId, Fault> {
    let voted = log.vote(id).map(|bytes| decode_vote(&bytes)).transpose();
    let voted = voted.map_err(|error| Fault::damaged_log(error.to_string()))?;
    let in_log = log.last(id).max(log.purged(id));
    let last = in_log.max(Some(applied)).unwrap_or(applied);
    let known = voted.map_or(last.term, |ballot| vote_term(&ballot).max(last.term));
    let term = Term::new(known.get().saturating_add(TERM_STEP));
    let entry = LogId { term, index: LogIndex::new(last.index.get().saturating_add(1)) };
    let membership =
        Membership { voters: vec![[survivor.replica].into()], replicas: [(survivor.replica, survivor.server)].into() };
    let payload = EntryPayload::Membership(raft_membership(&membership)?);
    let mut records = Vec::new();
    if in_log.is_none_or(|end| end.index < applied.index) {
        // The log of a replica that was filled by a snapshot begins after it.
        records.push(Record::Purge { group: id, upto: applied });
    }
    records.push(Record::Vote { group: id, vote: encode_vote(&vote(term, survivor.replica.get())) });
    records.push(Record::Entry { group: id, id: entry, payload: encode_payload(&payload) });
    log.submit_and_wait(records)?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebla_model::id::{GroupId, ReplicaId, ServerId};
    use ebla_storage::disk::RealDisk;
    use ebla_storage::log::{LogOptions, MemoryManifest};

    use super::*;

    fn at(term: u64, index: u64) -> LogId {
        LogId { term: Term::new(term), index: LogIndex::new(index) }
    }

    #[test]
    fn the_entry_follows_the_log_or_the_snapshot_in_a_term_above_all_known_ones() {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(RealDisk::open(folder.path()).unwrap());
        let (log, _recovered) =
            CommitLog::open(disk, Arc::new(MemoryManifest::default()), LogOptions::default()).unwrap();
        let survivor = Replica { replica: ReplicaId::new(1), server: ServerId::new(4) };
        let id = GroupReplica { group: GroupId::new(7), replica: survivor.replica };
        log.add_group(id).unwrap();
        // Filled by a snapshot: its log is empty.
        let first = force_membership(&log, id, survivor, at(2, 50)).unwrap();
        assert_eq!(first, at(2 + TERM_STEP, 51));
        assert_eq!((log.purged(id), log.last(id)), (Some(at(2, 50)), Some(first)));
        // It has voted in a later term, and its store lags behind its log.
        log.submit_and_wait(vec![Record::Vote { group: id, vote: encode_vote(&vote(Term::new(TERM_STEP * 3), 2)) }])
            .unwrap();
        let second = force_membership(&log, id, survivor, at(2, 50)).unwrap();
        assert_eq!(second, at(TERM_STEP * 4, 52));
        let ballot = decode_vote(&log.vote(id).unwrap()).unwrap();
        assert_eq!((vote_term(&ballot), ballot.leader_id.voted_for), (second.term, 1));
    }
}

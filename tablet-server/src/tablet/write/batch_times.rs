//! The stages of a command that was applied, for the operations whose writes it carried.
//!
//! ```text
//!   queued --- queue --- proposed --- propose --- appended --- sync --- synced --- replication --- committed --- apply --- applied
//! ```
//!
//! The leader syncs its log while the followers do the same. Replication is what remains after its own sync: with a slow disk of the leader the time
//! is in `sync`, with slow followers in `replication`. While entries before it are applied it is not seen when an entry is committed: that time is `apply`,
//! so a store that stalls does not look like slow followers.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{LogIndex, Term};
use ebla_runtime::trace::{Batch, FollowerTime, Operation, Stage, TimedStage};

use crate::raft::EntryTimes;

/// A command that carries writes of operations, and was applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProposedBatch {
    /// The term of the leader.
    pub(super) term: Term,
    /// Its position in the log.
    pub(super) index: LogIndex,
    /// When it was proposed, on the monotonic clock.
    pub(super) proposed: Duration,
    /// What is known of its entry.
    pub(super) times: Option<EntryTimes>,
}

impl ProposedBatch {
    /// Adds the stages to the operations, each with the time when its write was queued. `writes`: of the whole command; `followers`: those that have
    /// acknowledged it, which is determined only if an operation needs them for its record.
    pub(super) fn report<'a>(
        &self,
        operations: impl Iterator<Item = &'a (Arc<Operation>, Duration)>,
        writes: usize,
        followers: impl Fn() -> Vec<FollowerTime>,
    ) {
        let applied = self.times.and_then(|times| times.applied).unwrap_or(self.proposed);
        let mut known = None;
        let writes = u32::try_from(writes).unwrap_or(u32::MAX);
        let batch = Batch { term: self.term, index: self.index, writes };
        let stages = self.times.map(|times| stages(self.proposed, times));
        let stages = stages.as_ref().map_or(&[][..], |stages| stages.as_slice());
        for (operation, queued) in operations {
            operation.join_batch(batch, (Stage::Queue, *queued, self.proposed), stages);
            if operation.needs_details(applied) {
                operation.set_followers(known.get_or_insert_with(&followers));
            }
        }
    }
}

/// The stages of an applied entry. They follow each other without a gap; a time that is not known counts to the stage behind it.
fn stages(proposed: Duration, times: EntryTimes) -> [TimedStage; 5] {
    let appended = times.appended.max(proposed);
    let synced = times.synced.unwrap_or(appended).max(appended);
    let committed = times.committed.unwrap_or(synced).max(synced);
    let unblocked = times.unblocked.unwrap_or(synced).clamp(synced, committed);
    let applied = times.applied.unwrap_or(committed).max(committed);
    [
        (Stage::Propose, proposed, appended),
        (Stage::Sync, appended, synced),
        (Stage::Apply, synced, unblocked),
        (Stage::Replication, unblocked, committed),
        (Stage::Apply, committed, applied),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The milliseconds of propose, sync, replication and apply.
    fn lengths(times: EntryTimes) -> [u128; 4] {
        [Stage::Propose, Stage::Sync, Stage::Replication, Stage::Apply].map(|wanted| {
            let of_stage = stages(at(10), times).into_iter().filter(|(stage, ..)| *stage == wanted);
            of_stage.map(|(_stage, begin, end)| (end - begin).as_millis()).sum()
        })
    }

    #[test]
    fn a_slow_disk_of_the_leader_is_sync_and_slow_followers_are_replication() {
        let times = EntryTimes {
            appended: at(11),
            synced: Some(at(13)),
            unblocked: None,
            committed: Some(at(14)),
            applied: Some(at(15)),
        };
        assert_eq!(lengths(times), [1, 2, 1, 1]);
        let slow_disk = EntryTimes { synced: Some(at(500)), applied: Some(at(501)), ..times };
        assert_eq!(lengths(slow_disk), [1, 489, 0, 1]);
        let slow_followers = EntryTimes { committed: Some(at(700)), applied: Some(at(701)), ..times };
        assert_eq!(lengths(slow_followers), [1, 2, 687, 1]);
        let stalled_store = EntryTimes { unblocked: Some(at(699)), ..slow_followers };
        assert_eq!(lengths(stalled_store), [1, 2, 1, 687]);
        let idle_store = EntryTimes { unblocked: Some(at(3)), ..slow_followers };
        assert_eq!(lengths(idle_store), [1, 2, 687, 1]);
    }

    #[test]
    fn unknown_times_leave_no_gap() {
        assert_eq!(lengths(EntryTimes { appended: at(9), ..EntryTimes::default() }), [0, 0, 0, 0]);
        let times = EntryTimes { appended: at(11), applied: Some(at(20)), ..EntryTimes::default() };
        assert_eq!(lengths(times), [1, 0, 0, 9]);
    }
}

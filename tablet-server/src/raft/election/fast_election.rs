//! Fast election: when a leader's connection breaks, its followers wait less than for a leader that is merely silent.
//!
//! A process that dies takes its connections with it, and its peers see that at once. openraft sees only silence: it waits
//! for the end of its promise to the leader (the longest election timeout), and then for a random time, because the leader
//! may only be slow. After a disconnect a follower still waits for the end of the promise, but the random time is short: just
//! long enough that two followers seldom campaign at the same moment.
//!
//! A disconnect is a hint and no decision. openraft refuses to campaign before the promise ends, and the pre-vote asks the
//! other voters whether theirs has ended: a leader that is alive and has only lost a connection is heard again and stays.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::id::ReplicaId;
use ebla_runtime::Rng;

use crate::raft::group::Group;

/// Followers campaign at random times within this span; a round of votes takes a few milliseconds.
const SPREAD: Duration = Duration::from_millis(150);
/// Attempts before the usual election timeout applies. The span doubles after each: the first candidate may have a shorter
/// log.
const ATTEMPTS: u32 = 6;

/// Schedules an election if the disconnected replica `peer` leads the group.
pub(in crate::raft) fn schedule(group: &Arc<Group>, peer: ReplicaId, rng: &Rng) {
    let status = group.status();
    if status.leader.is_some_and(|leader| leader.replica == peer) {
        let election = campaign_after_lease(Arc::downgrade(group), peer, rng.fork());
        group.tasks().spawn_until_stopped("raft-fast-election", election);
    }
}

/// Campaigns when the promise to the leader `lost` has ended, until another replica leads. A split vote ends nothing: both candidates
/// would wait for the usual timeout. It holds the group weakly: a strong reference would keep the group alive.
async fn campaign_after_lease(group: Weak<Group>, lost: ReplicaId, rng: Rng) {
    let Some(promise) = group.upgrade().map(|group| group.timings().election_max) else { return };
    tokio::time::sleep(promise).await;
    let mut spread = SPREAD;
    for _ in 0..ATTEMPTS {
        tokio::time::sleep(spread.mul_f64(rng.below(1_000) as f64 / 1_000.0)).await;
        let has_no_other_leader =
            |group: &Arc<Group>| group.status().leader.is_none_or(|leader| leader.replica == lost);
        let Some(group) = group.upgrade().filter(has_no_other_leader) else { return };
        group.campaign().await;
        spread *= 2;
    }
}

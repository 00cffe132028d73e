//! The background tasks of a group, beside openraft's own timers: they publish its status, start its first election when it may
//! campaign, finish a membership change that an earlier leader began, step down when the leader was removed from the voters,
//! and resume replication to followers that have recovered.
//!
//! openraft's own ticks run for now; one driver for all groups, which lets idle groups sleep, would replace `enable_tick`
//! and these tasks behind the same `Group`.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{ReplicaId, Term};
use ebla_model::metadata::Replica;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;
use tracing::{info, warn};

use super::Group;
use super::membership::finish_change;
use super::relinquish::RelinquishedTerm;
use crate::raft::status::{GroupStatus, status};
use crate::raft::storage::adapter::Raft;
use crate::raft::transport::follower_recovery::FollowerRecovery;

/// Between two election attempts of a new group: its other replicas may not have started yet.
const CAMPAIGN_INTERVAL: Duration = Duration::from_millis(20);
/// Attempts before the usual election timeout applies.
const CAMPAIGN_ATTEMPTS: usize = 50;

pub(super) fn start(group: &Arc<Group>, sender: watch::Sender<GroupStatus>, recovery: FollowerRecovery) {
    let tasks = group.tasks();
    tasks.spawn_until_stopped("raft-watch", watch(StatusWatcher::new(group), sender));
    tasks.spawn_until_stopped("raft-follower-recovery", resume_replication(group.raft().clone(), recovery));
    if let Some(holdoff) = group.config().vote_holdoff {
        let raft = group.raft().clone();
        tasks.spawn_until_stopped("raft-vote-holdoff", async move {
            tokio::time::sleep(holdoff).await;
            raft.runtime_config().elect(true);
        });
    }
    if group.config().campaign_at_start {
        tasks.spawn_until_stopped("raft-campaign", campaign_until_elected(group.raft().clone()));
    }
}

async fn campaign_until_elected(raft: Raft) {
    for _ in 0..CAMPAIGN_ATTEMPTS {
        if raft.server_metrics().borrow_watched().current_leader.is_some() || raft.trigger().elect(true).await.is_err()
        {
            return;
        }
        tokio::time::sleep(CAMPAIGN_INTERVAL).await;
    }
}

/// Resets the replication backoff whenever a follower has recovered.
async fn resume_replication(raft: Raft, recovery: FollowerRecovery) {
    loop {
        recovery.recovered().await;
        // An empty list resets the backoff of all followers.
        if raft.trigger().reset_backoff([]).await.is_err() {
            return;
        }
    }
}

/// What the status task needs of its group. It holds the group weakly: a strong reference would keep the group alive.
struct StatusWatcher {
    group: std::sync::Weak<Group>,
    raft: Raft,
    relinquished: RelinquishedTerm,
    own: ReplicaId,
    /// The latest own term in which an unfinished membership change was looked for.
    checked_term: Term,
}

impl StatusWatcher {
    fn new(group: &Arc<Group>) -> Self {
        Self {
            group: Arc::downgrade(group),
            raft: group.raft().clone(),
            relinquished: group.relinquished().clone(),
            own: group.replica(),
            checked_term: Term::default(),
        }
    }

    fn status(&self) -> GroupStatus {
        self.relinquished.correct(status(&self.raft, self.own), self.own)
    }

    /// Reacts to the new status.
    fn react(&mut self, now: &GroupStatus) {
        if !now.is_leader {
            return;
        }
        let Some(group) = self.group.upgrade() else { return };
        let is_new_term = self.checked_term < now.term;
        self.checked_term = self.checked_term.max(now.term);
        if is_new_term && !now.membership.is_uniform() {
            info!(group = ?group.id(), term = now.term.get(), "finishing the membership change of an earlier leader");
            let raft = self.raft.clone();
            group.tasks().spawn_until_stopped("raft-finish-change", finish_change(raft));
        }
        if now.is_membership_committed && !now.membership.is_voter(self.own) {
            step_down(&group, now);
        }
    }
}

/// Publishes the status whenever leader, readiness or membership changes, and at last when the core has ended.
async fn watch(mut watcher: StatusWatcher, sender: watch::Sender<GroupStatus>) {
    // The server metrics change rarely; the others change with every entry.
    let mut server_metrics = watcher.raft.server_metrics();
    let mut all_metrics = watcher.raft.metrics();
    let mut relinquished = watcher.relinquished.changes();
    loop {
        let now = watcher.status();
        let awaits_first_entry = !now.is_leader && now.leader.is_some_and(|leader| leader.replica == watcher.own);
        watcher.react(&now);
        sender.send_if_modified(|known| publish(known, now));
        let changed = async {
            if awaits_first_entry {
                all_metrics.changed().await.is_ok()
            } else {
                server_metrics.changed().await.is_ok()
            }
        };
        let core_runs = tokio::select! {
            core_runs = changed => core_runs,
            // The watcher has a sender, so the channel stays open.
            _open = relinquished.changed() => true,
        };
        if !core_runs {
            let last = watcher.status();
            sender.send_if_modified(|known| publish(known, last));
            return;
        }
    }
}

/// Stores the new status; returns whether subscribers must be notified.
fn publish(known: &mut GroupStatus, now: GroupStatus) -> bool {
    let key = |status: &GroupStatus| {
        (status.term, status.leader, status.is_leader, status.membership_log_id, status.is_membership_committed)
    };
    let differs = key(known) != key(&now);
    *known = now;
    differs
}

/// Steps down: the committed membership does not contain this leader, so it transfers leadership to the voter with the longest
/// log.
fn step_down(group: &Arc<Group>, now: &GroupStatus) {
    let Some(Replica { replica: to, .. }) = now.transfer_candidate(|_any| true) else { return };
    let group = Arc::clone(group);
    group.lease_suspensions().suspend_term(now.term);
    let tasks = group.tasks().clone();
    tasks.spawn_until_stopped("raft-step-down", async move {
        if let Err(error) = group.transfer_leadership(to).await {
            warn!(group = ?group.id(), %error, "removed leader could not transfer leadership");
        }
    });
}

//! What a group does by itself beside openraft's own timers: tells how it stands, starts its election when it may,
//! finishes a change of membership that another leader began, leaves office when it has been voted out, and hurries entries to
//! followers that are back.
//!
//! openraft's own ticks run for now; sleeping groups with one driver for all of them would
//! replace `enable_tick` and these tasks, behind the same `Group`.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::ReplicaId;
use ebla_model::metadata::Replica;
use ebla_runtime::Tasks;
use openraft::async_runtime::WatchReceiver;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::comeback::Comeback;
use super::group::Group;
use super::membership::finish_change;
use super::status::{GroupStatus, status};
use super::types::Raft;

/// Between two attempts of a fresh group to elect itself: its other replicas may not be there yet.
const ELECT_PAUSE: Duration = Duration::from_millis(20);
/// Attempts before the usual election time takes over.
const ELECT_ATTEMPTS: usize = 50;

pub(super) fn start(group: &Arc<Group>, sender: watch::Sender<GroupStatus>, comeback: Comeback) {
    let tasks = group.tasks();
    tasks.spawn_until_stopped("raft-watch", watch(Watcher::new(group), sender, tasks.clone()));
    tasks.spawn_until_stopped("raft-comeback", hurry(group.raft().clone(), comeback));
    if let Some(wait) = group.config().wait_before_voting {
        let raft = group.raft().clone();
        tasks.spawn_until_stopped("raft-voting-wait", async move {
            tokio::time::sleep(wait).await;
            raft.runtime_config().elect(true);
        });
    }
    if group.config().elect_now {
        tasks.spawn_until_stopped("raft-elect-now", elect_now(group.raft().clone()));
    }
}

async fn elect_now(raft: Raft) {
    for _ in 0..ELECT_ATTEMPTS {
        if raft.server_metrics().borrow_watched().current_leader.is_some() || raft.trigger().elect(true).await.is_err()
        {
            return;
        }
        tokio::time::sleep(ELECT_PAUSE).await;
    }
}

/// Ends the wait of entries for followers that were away whenever one is back.
async fn hurry(raft: Raft, comeback: Comeback) {
    loop {
        comeback.next().await;
        // No names: all followers.
        if raft.trigger().reset_backoff([]).await.is_err() {
            return;
        }
    }
}

/// What the watching task needs of its group; not the group itself, which would never go.
struct Watcher {
    group: std::sync::Weak<Group>,
    raft: Raft,
    own: ReplicaId,
    /// The term whose unfinished change has been taken care of.
    settled: u64,
}

impl Watcher {
    fn new(group: &Arc<Group>) -> Self {
        Self { group: Arc::downgrade(group), raft: group.raft().clone(), own: group.replica(), settled: 0 }
    }

    /// Acts on how the group stands now.
    fn act(&mut self, now: &GroupStatus) {
        if !now.is_leader {
            return;
        }
        let Some(group) = self.group.upgrade() else { return };
        let begins = self.settled < now.term;
        self.settled = self.settled.max(now.term);
        if begins && !now.membership.is_uniform() {
            info!(group = ?group.id(), term = now.term, "finish a change of membership");
            let raft = self.raft.clone();
            group.tasks().spawn_until_stopped("raft-finish-change", finish_change(raft));
        }
        if now.membership_committed && !now.membership.is_voter(self.own) {
            leave_office(&group, now);
        }
    }
}

/// Publishes the status whenever leader, readiness or membership change.
async fn watch(mut watcher: Watcher, sender: watch::Sender<GroupStatus>, tasks: Tasks) {
    // The server part changes rarely; the rest with every entry.
    let mut rarely = watcher.raft.server_metrics();
    let mut often = watcher.raft.metrics();
    loop {
        let now = status(&watcher.raft, watcher.own);
        let waits_for_first_entry = !now.is_leader && now.leader.is_some_and(|leader| leader.replica == watcher.own);
        watcher.act(&now);
        sender.send_if_modified(|known| publish(known, now));
        let changed = if waits_for_first_entry { often.changed().await } else { rarely.changed().await };
        if changed.is_err() {
            // A core that was told to end says nothing of note.
            if !tasks.token().is_cancelled() {
                error!(replica = %watcher.own, "the raft core has ended");
            }
            return;
        }
    }
}

/// Takes over the new status; true when others should hear of it.
fn publish(known: &mut GroupStatus, now: GroupStatus) -> bool {
    let key = |status: &GroupStatus| {
        (status.term, status.leader, status.is_leader, status.membership_log_id, status.membership_committed)
    };
    let differs = key(known) != key(&now);
    *known = now;
    differs
}

/// The committed membership is without this leader: the one that holds most takes over.
fn leave_office(group: &Arc<Group>, now: &GroupStatus) {
    let Some(Replica { replica: to, .. }) = now.successor(|_any| true) else { return };
    let group = Arc::clone(group);
    group.gate().close_term(now.term);
    let tasks = group.tasks().clone();
    tasks.spawn_until_stopped("raft-leave-office", async move {
        if let Err(error) = group.transfer(to).await {
            warn!(group = ?group.id(), %error, "a removed leader could not hand over");
        }
    });
}

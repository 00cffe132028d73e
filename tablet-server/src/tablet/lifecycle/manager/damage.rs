//! Damaged stores of replicas that run.
//!
//! ```text
//!   a read meets a damaged block, a checkpoint or the scrubber finds one
//!     the leadership goes to another replica
//!     all files are read: the damage is confirmed, or the error has another cause and nothing follows
//!   or a write meets the damage, or the opening of the store: it is opened again as far as it is readable
//!     once the other members of the group are a majority and respond, the replica is stopped and quarantined
//!   the master replaces it from the others
//! ```
//!
//! Until then the replica stays and votes: another server may be lost at this moment, and without both there is no majority. Its
//! store compacts no more, because a compaction would meet the damaged block, and RocksDB would refuse all writes. A group with fewer
//! than three voters keeps its damaged replica: nothing could replace it, and its other blocks are readable.
//!
//! A replica is known as damaged before its server asks for the others, and a damaged one does not count as one of them. So of two
//! damaged replicas at most one is quarantined.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_runtime::Runtime;
use ebla_storage::store::{Scrub, ScrubProgress};
use tracing::{error, warn};

use super::TabletManager;
use crate::raft::{FaultPart, GroupReplica, ScratchFolder};
use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::recovery::{
    Majority, Recovery, ReplicaFailure, Stage, majority_without, membership_with, recovery,
};

/// The bytes of one step of a scrub.
const STEP_BYTES: u64 = 1 << 20;
/// Between two checks whether enough other members respond.
const SPARE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// After an examination further reports wait for this time.
const EXAMINATION_PAUSE: Duration = Duration::from_secs(60);

/// How fast a store is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubRate {
    /// As fast as the disk allows.
    Unlimited,
    /// This many bytes per second.
    BytesPerSecond(u64),
}

impl TabletManager {
    /// Examines reports of damage. `runtime`: that of the replica.
    pub(super) fn watch_damage(&self, id: GroupReplica, group: &Arc<TabletGroup>, runtime: &Runtime) {
        let (manager, group) = (Weak::clone(&self.me), Arc::downgrade(group));
        runtime.tasks.spawn_until_stopped("watch-damage", async move {
            loop {
                let Some(state_machine) = group.upgrade().map(|group| Arc::clone(group.state_machine())) else {
                    return;
                };
                state_machine.damage().reported().await;
                drop(state_machine);
                let (Some(manager), Some(group)) = (manager.upgrade(), group.upgrade()) else { return };
                manager.examine(id, group).await;
                drop(manager);
                tokio::time::sleep(EXAMINATION_PAUSE).await;
            }
        });
    }

    async fn examine(&self, id: GroupReplica, group: Arc<TabletGroup>) {
        if self.scrub_results().is_kept(id) {
            return;
        }
        self.give_leadership_away(&group).await;
        match self.scrub(&group, ScrubRate::Unlimited).await {
            Ok(_bytes) => {
                warn!(group = %id.group, replica = %id.replica, "a read has failed, and all files of the store are sound");
                group.state_machine().damage().refute();
            }
            Err(damage) if damage.reason == Reason::DataDamaged => self.replace_damaged(id, group, damage).await,
            Err(error) => {
                warn!(group = %id.group, replica = %id.replica, %error, "cannot examine a store that may be damaged");
            }
        }
    }

    async fn replace_damaged(&self, id: GroupReplica, group: Arc<TabletGroup>, damage: Error) {
        self.scrub_results().add_damaged(id);
        error!(group = %id.group, replica = %id.replica, error = %damage, "damaged blocks in the store of a running replica");
        let failure = damaged_store(id, &group, damage);
        if self.decide(Stage::Running, id, &failure).await != Recovery::ReopenDamaged {
            return self.give_up(id, group, failure).await;
        }
        self.keep_damaged(id, &failure);
        // If this fails, the replica is opened in this way after its next failure.
        if let Err(error) = group.state_machine().store().tolerate_damage() {
            warn!(group = %id.group, replica = %id.replica, %error, "compactions of a damaged store not stopped");
        }
        self.quarantine_when_spared(id, group, failure.error).await;
    }

    /// Quarantines a damaged replica that stays, as soon as its group can go on without it.
    pub(super) async fn quarantine_when_spared(&self, id: GroupReplica, group: Arc<TabletGroup>, damage: Error) {
        loop {
            tokio::time::sleep(self.parts.runtime.rng.jitter(SPARE_CHECK_INTERVAL)).await;
            self.give_leadership_away(&group).await;
            let failure = damaged_store(id, &group, damage.clone());
            if self.decide(Stage::Running, id, &failure).await == Recovery::Quarantine {
                return self.give_up(id, group, failure).await;
            }
        }
    }

    async fn give_up(&self, id: GroupReplica, group: Arc<TabletGroup>, failure: ReplicaFailure) {
        // It may have become the leader again meanwhile.
        self.give_leadership_away(&group).await;
        drop(group);
        self.stop_and_recover(id, failure);
    }

    /// What becomes of a replica that failed. Asks for the other members of its group if that matters.
    pub(super) async fn decide(&self, stage: Stage, id: GroupReplica, failure: &ReplicaFailure) -> Recovery {
        let majority = match &failure.membership {
            Some(members) if failure.error.reason == Reason::DataDamaged => {
                let sound = self.parts.host.sound_members(id.group, members).await;
                majority_without(members, id.replica, &sound)
            }
            _ => Majority::NeedsIt,
        };
        recovery(stage, failure, majority)
    }

    /// Transfers the leadership, if this replica leads, to the sound voter that has most of the log.
    async fn give_leadership_away(&self, group: &TabletGroup) {
        if !group.is_leader() {
            return;
        }
        let sound = self.parts.host.sound_members(group.id(), &group.descriptor().membership).await;
        let Some(to) = group.raft().status().transfer_candidate(|candidate| sound.contains(&candidate.replica)) else {
            return;
        };
        if let Err(error) = group.raft().transfer_leadership(to.replica).await {
            warn!(group = %group.id(), to = %to.server, %error, "leadership of a replica that may be damaged not transferred");
        }
    }

    /// Reads the whole store of a group through a copy. Returns the bytes that were read.
    ///
    /// # Errors
    /// `DataDamaged` when a block is damaged; else when the store cannot be copied or read.
    pub async fn scrub(&self, group: &TabletGroup, rate: ScrubRate) -> Result<u64, Error> {
        let id = GroupReplica { group: group.id(), replica: group.replica() };
        let (store, scratch) = (group.state_machine().store(), self.parts.scratch.clone());
        let opened = self.run_maintenance(move || {
            let copy = ScratchFolder::reserve(&scratch, id)
                .map_err(|error| Error::internal(format!("create a folder for the copy of a store: {error}")))?;
            store.checkpoint(copy.path())?;
            Ok((Scrub::open(copy.path())?, copy))
        });
        let (mut scrub, copy) = opened.await?;
        loop {
            let started = self.clock().monotonic();
            let step = self.run_maintenance(move || {
                let progress = scrub.step(STEP_BYTES)?;
                Ok((progress, scrub))
            });
            let (progress, after) = step.await?;
            scrub = after;
            if progress == ScrubProgress::Complete {
                let bytes = scrub.bytes();
                drop((scrub, copy));
                return Ok(bytes);
            }
            if let ScrubRate::BytesPerSecond(rate) = rate {
                let planned = Duration::from_secs(STEP_BYTES) / u32::try_from(rate.max(1)).unwrap_or(u32::MAX);
                tokio::time::sleep(planned.saturating_sub(self.clock().monotonic().saturating_sub(started))).await;
            }
        }
    }
}

/// The failure of a replica with a damaged store.
fn damaged_store(id: GroupReplica, group: &TabletGroup, damage: Error) -> ReplicaFailure {
    let membership = membership_with(&group.descriptor().membership, id.replica);
    ReplicaFailure { error: damage, part: FaultPart::StateMachine, membership }
}

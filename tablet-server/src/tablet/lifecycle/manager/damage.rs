//! Damage of a store that is found while its replica runs.
//!
//! ```text
//!   a read meets a damaged block, a checkpoint or the scrubber finds one
//!     the leadership goes to another replica
//!     all files are read: the damage is confirmed, or the error has another cause and nothing follows
//!     once a majority of the group's servers responds without this one, the replica is stopped and quarantined
//!   the master replaces it from the others
//! ```
//!
//! A group with fewer than three voters keeps its damaged replica: nothing could replace it, and its other blocks are readable. Its
//! store compacts no more, because a compaction would meet the damaged block, and RocksDB would refuse all writes.

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
use crate::tablet::lifecycle::recovery::{Recovery, ReplicaFailure, Stage, recovery, voters_with};

/// The bytes of one step of a scrub.
const STEP_BYTES: u64 = 1 << 20;
/// Between two checks whether enough other servers respond.
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
        give_leadership_away(&group).await;
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
        let voters = voters_with(&group.descriptor().membership, id.replica);
        let failure = ReplicaFailure { error: damage, part: FaultPart::StateMachine, voters };
        if recovery(Stage::Running, &failure) == Recovery::ReopenDamaged {
            self.keep_damaged(id, &failure);
            // If this fails, the replica is opened in this way after its next failure.
            if let Err(error) = group.state_machine().store().tolerate_damage() {
                warn!(group = %id.group, replica = %id.replica, %error, "compactions of a damaged store not stopped");
            }
            return;
        }
        while !self.is_spared(&group) {
            tokio::time::sleep(self.parts.runtime.rng.jitter(SPARE_CHECK_INTERVAL)).await;
        }
        // It may have become the leader again meanwhile.
        give_leadership_away(&group).await;
        drop(group);
        self.stop_and_recover(id, failure);
    }

    /// Whether a majority of each set of voters is on other servers that have responded recently.
    fn is_spared(&self, group: &TabletGroup) -> bool {
        let membership = group.descriptor().membership;
        let responding = self.clocks().responding(self.clock().monotonic());
        membership.voters.iter().all(|voters| {
            let servers = voters.iter().filter_map(|voter| membership.server_of(*voter));
            2 * servers.filter(|server| responding.contains(server)).count() > voters.len()
        })
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

/// Transfers the leadership, if this replica leads, to the voter that has most of the log.
async fn give_leadership_away(group: &TabletGroup) {
    let Some(to) = group.raft().status().transfer_candidate(|candidate| candidate.replica != group.replica()) else {
        return;
    };
    if let Err(error) = group.raft().transfer_leadership(to.replica).await {
        warn!(group = %group.id(), to = %to.server, %error, "leadership of a replica that may be damaged not transferred");
    }
}

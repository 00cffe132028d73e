//! A replica becomes the only voter of its group, because the others are lost permanently (`ebla tablet recover`).
//!
//! The replica is stopped, its log is changed while it does not run (`raft::force_membership`), and it is started again. A crash before the
//! records are on disk changes nothing; after it the next start does the rest.

use std::collections::BTreeSet;
use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{GroupId, LogId, ReplicaId, ServerId};
use ebla_model::metadata::{Membership, Replica};
use tracing::warn;

use super::provision::replica_is_starting;
use super::start::StartMode;
use super::{TabletManager, stop};
use crate::raft::{GroupReplica, force_membership};

/// What shows that a group has lost its majority.
#[derive(Clone, Debug)]
pub struct QuorumLoss {
    /// The membership that the replica had applied when it reported.
    pub membership_log_id: LogId,
    /// Servers that are registered or respond: a replica on one of them may return.
    pub live: BTreeSet<ServerId>,
    /// Replicas on these servers that are damaged or do not exist.
    pub lost: BTreeSet<ReplicaId>,
}

impl QuorumLoss {
    /// Whether a majority of this membership may still exist.
    fn may_have_majority(&self, membership: &Membership) -> bool {
        membership.has_majority(|replica| self.live.contains(&replica.server) && !self.lost.contains(&replica.replica))
    }
}

impl TabletManager {
    /// Makes a running replica the only voter of its group; returns the entry of the new membership. Completes even if the caller
    /// goes.
    ///
    /// # Errors
    /// `FailedPrecondition` when a majority of the last membership in the log may exist, also of one that is not applied yet;
    /// `WrongTablet` when the replica does not run or has applied another membership; `Busy` while it is being started; `Damaged` when its
    /// log is.
    pub async fn force_membership(
        self: &Arc<Self>,
        group: GroupId,
        replica: ReplicaId,
        evidence: QuorumLoss,
    ) -> Result<LogId, Error> {
        let (manager, id) = (Arc::clone(self), GroupReplica { group, replica });
        self.run_to_completion("force-membership", async move { manager.force_membership_now(id, &evidence).await })
            .await
    }

    async fn force_membership_now(&self, id: GroupReplica, evidence: &QuorumLoss) -> Result<LogId, Error> {
        let Some(_guard) = self.try_begin_start(id) else { return Err(replica_is_starting()) };
        let applied = self.check_quorum_loss(id, evidence)?;
        let path = self.parts.registry.path(id).ok_or_else(does_not_run)?;
        stop(self.take(id).ok_or_else(does_not_run)?).await;
        let (log, survivor) = (self.parts.log.clone(), Replica { replica: id.replica, server: self.parts.server });
        let write = move || Ok(force_membership(&log, id, survivor, applied)?);
        let written = self.run_maintenance(write).await;
        if let Ok(entry) = &written {
            warn!(group = %id.group, replica = %id.replica, %entry, "replica is the only voter of its group now");
        }
        if let Err(failure) = self.start(id, path, StartMode::OnlyVoter).await {
            self.recover_later(id, failure).await;
        }
        written
    }

    /// Checks that the group of a running replica has lost its majority; returns the last entry that the replica has applied.
    fn check_quorum_loss(&self, id: GroupReplica, evidence: &QuorumLoss) -> Result<LogId, Error> {
        let present = self.group(id.group).filter(|present| present.replica() == id.replica);
        let present = present.ok_or_else(does_not_run)?;
        let applied_state = present.state_machine().applied_state();
        let applied = &applied_state.metadata.descriptor;
        if applied.membership_log_id != evidence.membership_log_id {
            return Err(Error::new(Reason::WrongTablet, "the replicas of the group have changed; try again"));
        }
        // The log may end with a membership that is not committed: its voters count, too.
        let in_log = present.raft().status().membership;
        if evidence.may_have_majority(&applied.membership) || evidence.may_have_majority(&in_log) {
            let message = format!("a majority of the replicas of group {} may still exist", id.group);
            return Err(Error::new(Reason::FailedPrecondition, message));
        }
        Ok(applied_state.applied)
    }
}

fn does_not_run() -> Error {
    Error::new(Reason::WrongTablet, "the replica does not run on this server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_replicas_and_those_on_silent_servers_do_not_count() {
        let membership = Membership::initial(&[1, 2, 3].map(ServerId::new));
        let may = |live: &[u64], lost: &[u64]| {
            let evidence = QuorumLoss {
                membership_log_id: LogId::SEED,
                live: live.iter().copied().map(ServerId::new).collect(),
                lost: lost.iter().copied().map(ReplicaId::new).collect(),
            };
            evidence.may_have_majority(&membership)
        };
        assert!(may(&[1, 2], &[]));
        assert!(!may(&[1], &[]));
        assert!(!may(&[1, 2], &[2]));
        assert!(may(&[1, 2, 3], &[2]));
        assert!(!may(&[1, 2, 3], &[2, 3]));
    }
}

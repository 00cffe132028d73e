//! Tablet split, from the leader's side: split key, id of the child, flushes to keep the pause short, proposal.
//!
//! The apply on each replica is in `tablet::core::state_machine`. The leader picks the split key, allocates an unused tablet
//! id, requests a flush from every replica (so that the flush inside apply finds little), disables lease reads (the child may
//! serve elsewhere before this replica has applied the split) and proposes. METADATA is updated after the fact, by
//! [`TabletHost::descriptor_changed`]; if the leader dies before that, the next leader updates it.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::command::Reply;
use ebla_model::error::Error;
use ebla_model::id::{TabletId, Term};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use futures::future::BoxFuture;
use tracing::info;

use crate::raft::LeaseSuspension;
use crate::tablet::Tablet;
use crate::tablet::core::command;
use crate::tablet::failure::Failure;
use crate::tablet::lifecycle::replica_change::ExclusiveToken;
use crate::tablet::lifecycle::split_point::split_point;
use crate::tablet::read::scan::pool_failure;

/// Services that a tablet needs from its server and the cluster.
pub trait TabletHost: Send + Sync + 'static {
    /// Allocates an id that no tablet has had.
    fn allocate_tablet_id(&self) -> BoxFuture<'_, Result<TabletId, Error>>;

    /// Requests a flush from the tablet's other replicas, as far as they can be reached in time.
    fn flush_other_replicas<'a>(&'a self, descriptor: &'a TabletDescriptor) -> BoxFuture<'a, ()>;

    /// Reports that a tablet's descriptor or leader has changed, so that METADATA must be updated. Returns at once.
    fn descriptor_changed(&self, tablet: TabletId);
}

/// How often a split with an unknown outcome is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Tablet {
    /// Splits the tablet at `at`, or at the best key; returns both halves, the left one first.
    ///
    /// # Errors
    /// `FailedPrecondition` when it cannot be split there (the root tablet never); `Busy` while another split of it or a
    /// change of its replicas is in progress; `NotLeader`, `NoLeader`; `Deadline`, `OutcomeUnknown` when it may still be applied.
    pub async fn split(
        self: &Arc<Self>,
        at: Option<RowKey>,
        timeout: Duration,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Failure> {
        let Some(_token) = ExclusiveToken::try_acquire(&self.splitting) else {
            return Err(Failure::busy(POLL_INTERVAL));
        };
        self.split_exclusive(at, timeout).await
    }

    async fn split_exclusive(
        self: &Arc<Self>,
        at: Option<RowKey>,
        timeout: Duration,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Failure> {
        let term = self.leader_term()?;
        let before = self.descriptor();
        if before.tablet == TabletId::ROOT {
            return Err(Failure::new(Reason::FailedPrecondition, "the root tablet cannot be split"));
        }
        self.flush_all_replicas(&before).await?;
        let at = match at {
            Some(at) => at,
            None => self.pick_split_point(&before).await?,
        };
        if before.range.split_at(&at).is_none() {
            let message = format!(
                "tablet {} cannot be split at {at}: choose a key inside its range other than the first",
                before.range
            );
            return Err(Failure::new(Reason::FailedPrecondition, message));
        }
        let child = self.host.allocate_tablet_id().await?;
        info!(tablet = %before.tablet, %child, "tablet split started");
        let suspension = self.group.suspend_lease_reads();
        let reply = self.propose_command(command::split(at, child), timeout).await;
        match reply {
            Ok(Reply::Split { left, right }) => {
                drop(suspension);
                self.host.descriptor_changed(left.tablet);
                Ok((*left, *right))
            }
            Ok(_) => Err(Failure::new(Reason::Internal, "unexpected reply to a split command")),
            Err(failure) => {
                if matches!(failure.error.reason, Reason::OutcomeUnknown | Reason::Deadline) {
                    self.keep_lease_reads_disabled(suspension, term, &before);
                }
                Err(failure)
            }
        }
    }

    /// The split may be applied on other replicas before this one: lease reads stay disabled until it is applied here, or
    /// cannot be any more because the term is over.
    fn keep_lease_reads_disabled(self: &Arc<Self>, suspension: LeaseSuspension, term: Term, before: &TabletDescriptor) {
        let (tablet, generation) = (Arc::clone(self), before.generation);
        self.runtime.tasks.spawn_until_stopped("split-unknown", async move {
            let is_open =
                || tablet.leader_term().is_ok_and(|now| now == term) && tablet.descriptor().generation == generation;
            while is_open() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            drop(suspension);
        });
    }

    async fn flush_all_replicas(&self, descriptor: &TabletDescriptor) -> Result<(), Failure> {
        let state_machine = Arc::clone(&self.state_machine);
        let own = self.maintenance.run(move || state_machine.flush());
        let (own, ()) = tokio::join!(own, self.host.flush_other_replicas(descriptor));
        Ok(own.map_err(pool_failure)??)
    }

    async fn pick_split_point(&self, descriptor: &TabletDescriptor) -> Result<RowKey, Failure> {
        let (state_machine, range) = (Arc::clone(&self.state_machine), descriptor.range.clone());
        let pick = move || -> Result<Option<RowKey>, Error> {
            let sizes = state_machine.store().row_sizes(&range)?;
            Ok(split_point(&range, &sizes))
        };
        let picked = self.maintenance.run(pick).await.map_err(pool_failure)??;
        picked.ok_or_else(|| Failure::new(Reason::FailedPrecondition, "the tablet has no interior key to split at"))
    }
}

//! Dividing a tablet, from the leader's side: the key, the id, the pauses kept short, the proposal.
//!
//! What happens on each replica is in `machine`. Here the leader picks the key that halves the tablet, takes an id that
//! was never used, has every replica flush beforehand (so that the flush inside apply finds little), shuts the fast way
//! of reading (the child may serve elsewhere before this replica has applied the split) and proposes. METADATA is
//! written after the fact by [`SplitHelp::changed`]; a leader that dies before is replaced by one that writes it.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::command::Reply;
use ebla_model::error::Error;
use ebla_model::id::TabletId;
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use futures::future::BoxFuture;
use tracing::info;

use crate::raft::ReadsClosed;
use crate::tablet::Tablet;
use crate::tablet::command;
use crate::tablet::failure::Failure;
use crate::tablet::read::pool_failure;
use crate::tablet::replicas::Turn;
use crate::tablet::split_point::split_point;

/// What a split needs of the rest of the server and of the cluster.
pub trait SplitHelp: Send + Sync + 'static {
    /// An id that no tablet has had.
    fn next_tablet(&self) -> BoxFuture<'_, Result<TabletId, Error>>;

    /// Has the tablet's other replicas flush, as far as they can be reached in a moment.
    fn flush_others<'a>(&'a self, descriptor: &'a TabletDescriptor) -> BoxFuture<'a, ()>;

    /// The tablet's descriptor has changed, or a replica has come to lead it: METADATA is to say so. Returns at once.
    fn changed(&self, tablet: TabletId);
}

/// How often a split whose outcome is unknown is looked for.
const LOOK: Duration = Duration::from_millis(50);

impl Tablet {
    /// Divides the tablet at `at`, or where it is halved best; both halves, the left one first.
    ///
    /// # Errors
    /// `FailedPrecondition` when it cannot be divided there (the root tablet never); `Busy` while another split of it or a
    /// change of its replicas is under way; `NotLeader`, `NoLeader`; `Deadline`, `OutcomeUnknown` when it may yet be.
    pub async fn split(
        self: &Arc<Self>,
        at: Option<RowKey>,
        timeout: Duration,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Failure> {
        let Some(_turn) = Turn::take(&self.splitting) else { return Err(Failure::busy(LOOK)) };
        self.split_alone(at, timeout).await
    }

    async fn split_alone(
        self: &Arc<Self>,
        at: Option<RowKey>,
        timeout: Duration,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Failure> {
        let term = self.leading()?;
        let before = self.descriptor();
        if before.tablet == TabletId::ROOT {
            return Err(Failure::new(Reason::FailedPrecondition, "the root tablet never splits"));
        }
        self.flush_all(&before).await?;
        let at = match at {
            Some(at) => at,
            None => self.pick_split_point(&before).await?,
        };
        if before.range.split_at(&at).is_none() {
            let message = format!(
                "the tablet {} cannot be split at {at}: name a key that lies inside it and is not its first",
                before.range
            );
            return Err(Failure::new(Reason::FailedPrecondition, message));
        }
        let child = self.help.next_tablet().await?;
        info!(tablet = %before.tablet, %child, "splitting");
        let closed = self.group.close_reads();
        let reply = self.order(command::split(at, child), timeout).await;
        match reply {
            Ok(Reply::Split { left, right }) => {
                drop(closed);
                self.help.changed(left.tablet);
                Ok((*left, *right))
            }
            Ok(_) => Err(Failure::new(Reason::Internal, "a split was answered with something else")),
            Err(failure) => {
                if matches!(failure.error.reason, Reason::OutcomeUnknown | Reason::Deadline) {
                    self.keep_closed(closed, term, &before);
                }
                Err(failure)
            }
        }
    }

    /// The split may be applied elsewhere before it is here: reads ask a majority until it is here, or can not come
    /// any more because the term is over.
    fn keep_closed(self: &Arc<Self>, closed: ReadsClosed, term: u64, before: &TabletDescriptor) {
        let (tablet, generation) = (Arc::clone(self), before.generation);
        self.runtime.tasks.spawn_until_stopped("split-unknown", async move {
            let is_open =
                || tablet.leading().is_ok_and(|now| now == term) && tablet.descriptor().generation == generation;
            while is_open() {
                tokio::time::sleep(LOOK).await;
            }
            drop(closed);
        });
    }

    async fn flush_all(&self, descriptor: &TabletDescriptor) -> Result<(), Failure> {
        let machine = Arc::clone(&self.machine);
        let own = self.maintenance.run(move || machine.flush());
        let (own, ()) = tokio::join!(own, self.help.flush_others(descriptor));
        Ok(own.map_err(pool_failure)??)
    }

    async fn pick_split_point(&self, descriptor: &TabletDescriptor) -> Result<RowKey, Failure> {
        let (machine, range) = (Arc::clone(&self.machine), descriptor.range.clone());
        let pick = move || -> Result<Option<RowKey>, Error> {
            let sizes = machine.store().row_sizes(&range)?;
            Ok(split_point(&range, &sizes))
        };
        let picked = self.maintenance.run(pick).await.map_err(pool_failure)??;
        picked.ok_or_else(|| Failure::new(Reason::FailedPrecondition, "the tablet holds no key that divides it"))
    }
}

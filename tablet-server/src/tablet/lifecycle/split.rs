//! Split of a tablet, from the leader's side: split key, id of the right half, proposal.
//!
//! Both halves stay in the group, so a split is one entry that moves no data. METADATA is updated after the fact, by
//! [`TabletHost::tablets_changed`]; if the leader dies before that, the next leader updates it.
//!
//! A tablet of METADATA splits directly behind a row (`metadata_split_point`), which needs the keys of its rows. So it is read, and its
//! exact size is known: most of it may be in the memtable, whose bytes are otherwise divided among the tablets of the group.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::codec;
use ebla_model::command::{CommandKind, Reply};
use ebla_model::error::Error;
use ebla_model::id::{GroupId, LogIndex, ReplicaId, ServerId, TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{GroupDescriptor, Membership, TabletDescriptor, metadata_split_point};
use ebla_model::stored_row::parse_stored_row;
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_model::tablet_move::{ImportStatus, MoveId, MoveStep};
use ebla_runtime::Step;
use ebla_storage::store::{Direction, StoreError, View};
use futures::future::BoxFuture;
use tracing::info;

use crate::tablet::Tablet;
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::core::state_machine::GroupStateMachine;
use crate::tablet::failure::Failure;
use crate::tablet::lifecycle::replica_change::ExclusiveToken;
use crate::tablet::lifecycle::split_point::split_point;
use crate::tablet::read::scan::{pool_failure, row_of};

/// Services that a group needs from its server and the cluster.
pub trait TabletHost: Send + Sync + 'static {
    /// This server.
    fn server(&self) -> ServerId;

    /// Allocates an id that no tablet has had.
    fn allocate_tablet_id(&self) -> BoxFuture<'_, Result<TabletId, Error>>;

    /// Allocates an id that no group has had.
    fn allocate_group_id(&self) -> BoxFuture<'_, Result<GroupId, Error>>;

    /// Requests a flush from the group's other replicas, as far as they can be reached in time.
    fn flush_other_replicas<'a>(&'a self, group: &'a GroupDescriptor) -> BoxFuture<'a, ()>;

    /// The members of a group on other servers that run and whose stores are not damaged, as these servers respond now.
    fn sound_members<'a>(&'a self, group: GroupId, members: &'a Membership) -> BoxFuture<'a, BTreeSet<ReplicaId>>;

    /// The cluster version that is active, as this server knows it.
    fn active_version(&self) -> ClusterVersion;

    /// Asks the leader of `target` for a ticket: a tablet of this group is to move there.
    fn import_ticket<'a>(&'a self, target: &'a GroupDescriptor) -> BoxFuture<'a, Result<LogIndex, Error>>;

    /// Applies a step of a move in the log of `target`. `cause`: for the events of the tablet.
    fn import<'a>(
        &'a self,
        target: &'a GroupDescriptor,
        id: MoveId,
        step: MoveStep,
        cause: TabletEventCause,
    ) -> BoxFuture<'a, Result<ImportStatus, Error>>;

    /// Reports that descriptors of these tablets, or the leader of their group, have changed, so that METADATA must be updated.
    /// `event`: what has happened to each of them, for METADATA too. Returns at once.
    fn tablets_changed(&self, tablets: Vec<TabletId>, event: Option<NewTabletEvent>);
}

/// The pause that `Busy` tells a caller to make while another split, merge or division is in progress.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(50);

impl Tablet {
    /// Splits the tablet at `at`, or at the best key, by order of an operator; returns both halves, the left one first.
    ///
    /// # Errors
    /// `FailedPrecondition` when it cannot be split there (the root tablet never); `Busy` while another split, a merge or a
    /// division of its group is in progress; `NotLeader`, `NoLeader`; `Deadline`, `OutcomeUnknown` when it may still be applied.
    pub async fn split(
        &self,
        at: Option<RowKey>,
        timeout: Duration,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Failure> {
        self.split_because(TabletEventCause::Operator, at, timeout).await
    }

    /// As [`Self::split`], for this cause.
    ///
    /// # Errors
    /// As [`Self::split`].
    pub async fn split_because(
        &self,
        cause: TabletEventCause,
        at: Option<RowKey>,
        timeout: Duration,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Failure> {
        let Some(_token) = ExclusiveToken::try_acquire(&self.dividing) else {
            return Err(Failure::busy(RETRY_AFTER));
        };
        self.leader_term()?;
        let before = self.served()?;
        let range = &before.descriptor.range;
        if self.id() == TabletId::ROOT {
            return Err(Failure::new(Reason::FailedPrecondition, "the root tablet cannot be split"));
        }
        let at = match at {
            Some(at) => at,
            None => self.pick_split_point(&before).await?,
        };
        if range.split_at(&at).is_none() {
            let message =
                format!("tablet {range} cannot be split at {at}: choose a key inside its range other than the first");
            return Err(Failure::new(Reason::FailedPrecondition, message));
        }
        let child = self.host.allocate_tablet_id().await?;
        self.runtime.steps.reached(Step::SplitId).await;
        info!(tablet = %self.id(), %child, "tablet split started");
        match self.propose_command(CommandKind::Split { tablet: self.id(), at, child }, timeout).await? {
            Reply::Split { left, right } => {
                self.runtime.steps.reached(Step::SplitApplied).await;
                let detail = format!("tablet {} was split into {} and {}", left.tablet, left.tablet, right.tablet);
                let event = NewTabletEvent { kind: TabletEventKind::Split, cause, detail };
                self.host.tablets_changed(vec![left.tablet, right.tablet], Some(event));
                Ok((*left, *right))
            }
            _ => Err(Failure::new(Reason::Internal, "unexpected reply to a split command")),
        }
    }

    /// The rows of a METADATA tablet on this replica and their bytes, all versions of their cells included. Reads the whole tablet.
    ///
    /// # Errors
    /// When the store cannot be read, or the thread pool is full.
    pub async fn metadata_rows(&self) -> Result<Vec<(RowKey, u64)>, Failure> {
        let (state_machine, tablet) = (Arc::clone(&self.state_machine), self.metadata()?);
        let read = move || exact_row_sizes(&state_machine, &tablet);
        Ok(self.maintenance.run(read).await.map_err(pool_failure)??)
    }

    async fn pick_split_point(&self, tablet: &Arc<TabletMetadata>) -> Result<RowKey, Failure> {
        let (state_machine, tablet) = (Arc::clone(&self.state_machine), Arc::clone(tablet));
        let pick = move || best_split_point(&state_machine, &tablet);
        let picked = self.maintenance.run(pick).await.map_err(pool_failure)??;
        picked.ok_or_else(|| Failure::new(Reason::FailedPrecondition, "the tablet has no interior key to split at"))
    }
}

/// The row that divides the tablet's bytes best. Blocking.
fn best_split_point(state_machine: &GroupStateMachine, tablet: &TabletMetadata) -> Result<Option<RowKey>, Error> {
    let range = &tablet.descriptor.range;
    if tablet.descriptor.table == TableId::METADATA {
        return Ok(metadata_split_point(range, &exact_row_sizes(state_machine, tablet)?));
    }
    let stored = state_machine.store().row_sizes(&tablet.stored_range(range))?;
    let own_row = |(row, bytes): (RowKey, u64)| Ok((parse_stored_row(row.bytes())?.1, bytes));
    let sizes = stored.into_iter().map(own_row).collect::<Result<Vec<_>, Error>>()?;
    Ok(split_point(range, &sizes))
}

/// The rows of a tablet and their bytes. Blocking.
fn exact_row_sizes(state_machine: &GroupStateMachine, tablet: &TabletMetadata) -> Result<Vec<(RowKey, u64)>, Error> {
    let (lower, upper) = codec::range_bounds(&tablet.stored_range(&tablet.descriptor.range));
    let read = |view: &View<'_>| -> Result<Result<Vec<(RowKey, u64)>, Error>, StoreError> {
        let mut rows: Vec<(RowKey, u64)> = Vec::new();
        let mut cells = view.cells(&lower, upper.as_deref(), Direction::Forward)?;
        while let Some((key, value)) = cells.entry() {
            let bytes = (key.len() + value.len()) as u64;
            match row_of(key) {
                Ok(row) => match rows.last_mut() {
                    Some((last, size)) if *last == row => *size += bytes,
                    _ => rows.push((row, bytes)),
                },
                Err(damaged) => return Ok(Err(damaged)),
            }
            cells.step()?;
        }
        Ok(Ok(rows))
    };
    state_machine.store().with_view(read)?
}

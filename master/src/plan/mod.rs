//! The planner: a pure function from a snapshot of the cluster to actions. Golden scripts are in `testdata/plan`.
//!
//! The reconciler runs it when a master becomes active and every minute. Each action is safe to repeat. An action
//! that is based on an old snapshot is at worst unnecessary: requests are fenced, and receivers compare the expected
//! state.
//!
//! `merge` and `relocate` check a merge and a move of a tablet that an operator requests, `drain` the drain of a server, `quorum_loss` the
//! recovery of groups from one replica. `restoration` decides what must be written before METADATA can be read. `upgrade` decides when the next cluster version becomes active.

pub mod auto_merge;
pub mod behind;
pub mod capacity;
mod change_budget;
pub mod check;
pub mod counters;
mod deleted;
pub mod drain;
pub mod failure_detector;
pub mod false_rows;
mod leader_balance;
pub mod load_settling;
pub mod merge;
pub mod placement;
pub mod quorum_loss;
pub mod recovery;
pub mod relocate;
pub mod repair;
pub mod replica_balance;
pub mod restoration;
mod shares;
pub mod upgrade;
pub mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ebla_chubby::Counter;
use ebla_model::id::{GroupId, LogId, OperationId, ReplicaId, SchemaVersion, ServerId, TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{GroupDescriptor, Replica, TabletDescriptor, obsolete_rows};
use ebla_model::schema::TableState;

use self::auto_merge::PlannedMerge;
use self::capacity::RepairWithoutRoom;
use self::repair::{PlanContext, ReplicaChange};
use crate::cluster::{ClusterSnapshot, OperationKind, Role};

/// An action. The reconciler executes the actions in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Chubby lacks changes that servers have seen; these reasons show it. It must be recorded before anything else.
    RecordBehind(Vec<String>),
    /// A counter would give an id again that is in use: it must be raised before any other action takes an id.
    RaiseCounter {
        /// The counter.
        counter: Counter,
        /// The next id that it may give.
        next: u64,
    },
    /// Chubby's `root` file is older than the root tablet.
    WriteRoot(TabletDescriptor),
    /// A row of METADATA is missing or older than the tablet.
    WriteRow(TabletDescriptor),
    /// A row of METADATA cannot be decoded, and the tablets that have its keys are known: they are listed again.
    RemoveDamagedRow(RowKey),
    /// A row of METADATA describes a state that no tablet has had ([`false_rows`]): a check replaces or removes it.
    ReplaceFalseRow {
        /// What the row says; a row that says something else stays.
        present: TabletDescriptor,
        /// The tablet of the row; `None`: other rows list its keys.
        to: Option<TabletDescriptor>,
    },
    /// A row of METADATA belongs to a table that was deleted, as a record in Chubby says.
    RemoveRow {
        /// The row key.
        row: RowKey,
        /// Its tablet: a row with another tablet is not removed.
        tablet: TabletId,
    },
    /// A row of METADATA was left behind by a merge: other rows list its keys. A newer descriptor in it stays.
    RemoveObsoleteRow(TabletDescriptor),
    /// The creation of a group is incomplete: some of its first replicas are missing.
    FinishGroup(GroupId),
    /// The creation of a table is incomplete: tablets or rows are missing, or it is not active.
    FinishCreate(TableId),
    /// Some groups have an older schema than Chubby.
    ApplySchema(TableId),
    /// Some groups have not applied an admin operation.
    FinishOperation(OperationId),
    /// The deletion of a table is incomplete.
    FinishDelete(TableId),
    /// Nothing of a deleted table is left, and nothing of it can return: its record is needed no more.
    RemoveDeletionRecord(TableId),
    /// Chubby has neither a table nor the record of its deletion: its tablets are kept. An operator must find out why.
    ReportUnknownTable {
        /// The table.
        table: TableId,
        /// How many tablets of it are known.
        tablets: usize,
    },
    /// Replica repair: a group has dead replicas or too few, or a change of its replicas is incomplete.
    ChangeReplicas(ReplicaChange),
    /// A member of a group does not exist on its server: create it there, empty.
    CreateReplica {
        /// The group.
        group: GroupDescriptor,
        /// The member.
        replica: Replica,
    },
    /// Quorum loss: too many replicas are dead for the others to commit. An operator must bring servers back.
    ReportQuorumLoss {
        /// The group.
        group: GroupId,
        /// Its tablets.
        tablets: Vec<TabletId>,
        /// Dead voters.
        dead: usize,
        /// All voters.
        of: usize,
    },
    /// Replica repair: no server has room for a new replica of a group. An operator must give one more room, or add one.
    ReportNoRoom(RepairWithoutRoom),
    /// Replica balance: there are fewer groups than servers, and this one is the largest that can be divided; or the groups are so large
    /// that servers remain far from the mean.
    DivideGroup(GroupDescriptor),
    /// Leader balance: a server leads many groups, and another voter's server leads few.
    TransferLeader {
        /// The descriptor as the leader reported it.
        group: GroupDescriptor,
        /// The present leader.
        from: ServerId,
        /// The target.
        to: ServerId,
    },
    /// Two adjacent tablets are small and quiet: they are merged, in the background.
    MergeTablets(PlannedMerge),
    /// An extra replica: its group has replaced it.
    DropReplica {
        /// Its server.
        server: ServerId,
        /// Its group.
        group: GroupId,
        /// Its id.
        replica: ReplicaId,
        /// The membership that does not contain it, as the group's leader reported it.
        membership_log_id: LogId,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RecordBehind(reasons) => write!(f, "record-behind {}", reasons.join("; ")),
            Self::RaiseCounter { counter, next } => write!(f, "raise-counter {} next={next}", counter.name()),
            Self::WriteRoot(to) => write!(f, "write-root {}", Summary(to)),
            Self::WriteRow(to) => write!(f, "write-row {}", Summary(to)),
            Self::RemoveDamagedRow(row) => write!(f, "remove-damaged-row {row}"),
            Self::ReplaceFalseRow { present, to: Some(to) } => {
                write!(f, "replace-false-row {} by {}", Summary(present), Summary(to))
            }
            Self::ReplaceFalseRow { present, to: None } => write!(f, "remove-false-row {}", Summary(present)),
            Self::RemoveRow { row, tablet } => write!(f, "remove-row {row} tablet={tablet}"),
            Self::RemoveObsoleteRow(old) => write!(f, "remove-obsolete-row {}", Summary(old)),
            Self::FinishGroup(group) => write!(f, "finish-group group={group}"),
            Self::FinishCreate(table) => write!(f, "finish-create table={table}"),
            Self::ApplySchema(table) => write!(f, "apply-schema table={table}"),
            Self::FinishOperation(operation) => write!(f, "finish-operation {operation}"),
            Self::FinishDelete(table) => write!(f, "finish-delete table={table}"),
            Self::RemoveDeletionRecord(table) => write!(f, "remove-deletion-record table={table}"),
            Self::ReportUnknownTable { table, tablets } => {
                write!(f, "report-unknown-table table={table} tablets={tablets}")
            }
            Self::ChangeReplicas(change) => change.fmt(f),
            Self::CreateReplica { group, replica: Replica { replica, server } } => {
                write!(f, "create-replica server={server} group={} replica={replica}", group.group)
            }
            Self::ReportQuorumLoss { group, tablets, dead, of } => {
                write!(f, "report-quorum-loss group={group} tablets={} dead={dead} of={of}", tablets.len())
            }
            Self::ReportNoRoom(repair) => {
                write!(f, "report-no-room group={} server={}: {}", repair.group, repair.server, repair.message())
            }
            Self::DivideGroup(group) => write!(f, "divide-group group={}", group.group),
            Self::TransferLeader { group, from, to } => {
                write!(f, "transfer-leader group={} from={from} to={to}", group.group)
            }
            Self::MergeTablets(merge) => merge.fmt(f),
            Self::DropReplica { server, group, replica, membership_log_id } => {
                write!(f, "drop-replica server={server} group={group} replica={replica} without={membership_log_id}")
            }
        }
    }
}

/// A descriptor in one line.
struct Summary<'a>(&'a TabletDescriptor);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TabletDescriptor { table, tablet, range, generation, group, .. } = self.0;
        write!(f, "table={table} tablet={tablet} range={range} gen={generation} group={group}")
    }
}

/// The actions, in order: rows that lookups need, then incomplete changes, then removals, last balancing and merges. While Chubby is
/// [`behind`] there are no others than those that make it known.
#[must_use]
pub fn plan(cluster: &ClusterSnapshot, ctx: &PlanContext) -> Vec<Action> {
    if let Some(actions) = behind::actions(cluster) {
        return actions;
    }
    let mut actions = Vec::new();
    actions.extend(restoration::lost_root(cluster));
    actions.extend(restoration::damaged_rows(cluster));
    let stale = stale_rows(cluster);
    let obsolete = merged_rows(cluster, &stale);
    actions.extend(stale.into_iter().map(Action::WriteRow));
    actions.extend(obsolete.into_iter().map(Action::RemoveObsoleteRow));
    actions.extend(cluster.new_groups.keys().copied().map(Action::FinishGroup));
    actions.extend(incomplete_creations(cluster));
    actions.extend(stale_schemas(cluster));
    actions.extend(pending_operations(cluster));
    actions.extend(incomplete_deletions(cluster));
    let repairs = repair::repair(cluster, ctx);
    let has_repairs = repairs.iter().any(|action| !matches!(action, Action::DropReplica { .. }));
    actions.extend(repairs);
    actions.extend(deleted::orphan_rows(cluster));
    actions.extend(deleted::obsolete_records(cluster));
    actions.extend(deleted::unknown_tables(cluster));
    let moves = if has_repairs { Vec::new() } else { replica_balance::balance_replicas(cluster, ctx) };
    let moved: BTreeSet<GroupId> = moves.iter().filter_map(changed_group).collect();
    let transfers = leader_balance::balance_leaders(cluster, ctx);
    if !has_repairs && moves.is_empty() && transfers.is_empty() {
        actions.extend(replica_balance::refine(cluster, ctx).cloned().map(Action::DivideGroup));
    }
    actions.extend(moves);
    let is_unchanged = |transfer: &Action| changed_group(transfer).is_none_or(|group| !moved.contains(&group));
    actions.extend(transfers.into_iter().filter(is_unchanged));
    actions.extend(auto_merge::merges(cluster, ctx));
    actions
}

/// The group that an action of balance changes.
fn changed_group(action: &Action) -> Option<GroupId> {
    match action {
        Action::ChangeReplicas(change) => Some(change.group.group),
        Action::DivideGroup(group) | Action::TransferLeader { group, .. } => Some(group.group),
        _ => None,
    }
}

fn stale_root(cluster: &ClusterSnapshot) -> Option<Action> {
    let tablets = cluster.tablets();
    let newest = *tablets.get(&TabletId::ROOT)?;
    let is_old = cluster.root.as_ref().is_none_or(|known| known.fence() < newest.fence());
    is_old.then(|| Action::WriteRoot(newest.clone()))
}

/// Rows that METADATA lacks, ascending by table and end key: after a split the left half gets its row before the
/// right half takes over the row that both had, so that a lookup always finds a tablet.
fn stale_rows(cluster: &ClusterSnapshot) -> Vec<TabletDescriptor> {
    let tablets = cluster.tablets();
    let mut newest_rows: BTreeMap<RowKey, &TabletDescriptor> = BTreeMap::new();
    for tablet in tablets.values().filter(|tablet| is_live(cluster, tablet.table)) {
        let known = newest_rows.entry(tablet.row_key()).or_insert(tablet);
        if known.fence() < tablet.fence() {
            *known = tablet;
        }
    }
    let stale = newest_rows.into_iter().filter(|(row, tablet)| is_stale_row(cluster, &tablets, row, tablet));
    stale.map(|(_row, tablet)| tablet.clone()).collect()
}

/// Rows that are obsolete once the rows `written` are written: those of tablets that were merged.
fn merged_rows(cluster: &ClusterSnapshot, written: &[TabletDescriptor]) -> Vec<TabletDescriptor> {
    let mut rows = cluster.metadata.clone();
    rows.extend(written.iter().map(|tablet| (tablet.row_key(), tablet.clone())));
    let obsolete = obsolete_rows(rows.values()).into_iter();
    obsolete.filter(|row| is_live(cluster, row.table)).cloned().collect()
}

/// Whether the row is missing or old. A row of another tablet may be replaced only when that tablet is known to have
/// another row now, or when this tablet has all its keys.
fn is_stale_row(
    cluster: &ClusterSnapshot,
    tablets: &BTreeMap<TabletId, &TabletDescriptor>,
    row: &RowKey,
    tablet: &TabletDescriptor,
) -> bool {
    let Some(present) = cluster.metadata.get(row) else { return true };
    if present.tablet == tablet.tablet {
        return present.fence() < tablet.fence();
    }
    let has_moved = tablets.get(&present.tablet).is_some_and(|newest| newest.row_key() != *row);
    let has_all_keys = tablet.range.start() <= present.range.start();
    (has_moved || has_all_keys) && present.generation < tablet.generation
}

/// Whether a table's rows must be maintained: it exists and is not being deleted. METADATA always exists.
fn is_live(cluster: &ClusterSnapshot, table: TableId) -> bool {
    let state = cluster.tables.get(&table).map(|schema| schema.state);
    table == TableId::METADATA || matches!(state, Some(TableState::Creating | TableState::Active))
}

fn incomplete_creations(cluster: &ClusterSnapshot) -> impl Iterator<Item = Action> {
    let live = cluster.plans.keys().filter(|table| is_live(cluster, **table));
    live.map(|table| Action::FinishCreate(*table))
}

fn stale_schemas(cluster: &ClusterSnapshot) -> impl Iterator<Item = Action> {
    let mut applied: BTreeMap<TableId, SchemaVersion> = BTreeMap::new();
    let leaders = cluster.reports().filter(|(_server, report)| report.role == Role::Leader);
    for tablet in leaders.flat_map(|(_server, report)| &report.tablets) {
        let oldest = applied.entry(tablet.descriptor.table).or_insert(tablet.schema_version);
        *oldest = tablet.schema_version.min(*oldest);
    }
    let active = cluster.tables.values().filter(|schema| schema.state == TableState::Active);
    let behind = active.filter(move |schema| applied.get(&schema.table).is_some_and(|oldest| *oldest < schema.version));
    behind.map(|schema| Action::ApplySchema(schema.table))
}

/// A pending drop of a table is finished by its deletion.
fn pending_operations(cluster: &ClusterSnapshot) -> impl Iterator<Item = Action> {
    let pending = cluster.operations.iter().filter(|(_id, operation)| operation.kind != OperationKind::DropTable);
    pending.map(|(id, _operation)| Action::FinishOperation(*id))
}

fn incomplete_deletions(cluster: &ClusterSnapshot) -> impl Iterator<Item = Action> {
    let deleting = cluster.tables.values().filter(|schema| schema.state == TableState::Deleting);
    deleting.map(|schema| Action::FinishDelete(schema.table))
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

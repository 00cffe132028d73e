//! What is to be done: a pure function of the picture. Golden scripts are in `testdata/plan`.
//!
//! The reconciler runs it at the start of a term of office and every minute. Each action is safe to repeat, and wrong only
//! in being unnecessary when the picture was old: executing is fenced, and receivers compare what they know.
//!
//! What it does not decide yet: moves of replicas between servers that live, and merges.

pub mod assign;
mod leads;
pub mod repair;
pub mod suspicion;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ebla_model::id::{OperationId, ReplicaId, ServerId, TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{Replica, TabletDescriptor, parse_row_key};
use ebla_model::schema::TableState;

use self::repair::{Change, Circumstances};
use crate::cluster::{Cluster, OperationKind, Role};

/// One thing to do. Actions are carried out in the order of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Chubby's `root` file is older than the root tablet.
    WriteRoot(TabletDescriptor),
    /// A row of METADATA is missing or old.
    WriteRow(TabletDescriptor),
    /// A row of METADATA is that of a table which is gone.
    RemoveRow {
        /// Its key.
        row: RowKey,
        /// What stands in it: another content is left alone.
        tablet: TabletId,
    },
    /// A new table has replicas that were not made, rows that were not written, or was not opened.
    FinishCreate(TableId),
    /// Some tablets have an older schema than Chubby.
    ApplySchema(TableId),
    /// Some tablets have not applied an admin operation.
    FinishOperation(OperationId),
    /// A table's tablets are still being ended.
    FinishDelete(TableId),
    /// A tablet has lost replicas, or has too few, or a change of its replicas was left half way.
    ChangeReplicas(Change),
    /// A member of a tablet is not where it should be: it is made there, empty.
    MakeReplica {
        /// The tablet.
        tablet: TabletDescriptor,
        /// The member.
        replica: Replica,
    },
    /// So many of a tablet's replicas are lost that the others cannot commit: a person has to look.
    TellLost {
        /// Its table.
        table: TableId,
        /// The tablet.
        tablet: TabletId,
        /// Voters that are lost.
        lost: usize,
        /// Voters that it has.
        of: usize,
    },
    /// A server leads many tablets and another one that could lead this one leads few.
    MoveLeader {
        /// The tablet as its leader has it.
        tablet: TabletDescriptor,
        /// Who leads it.
        from: ServerId,
        /// Who should.
        to: ServerId,
    },
    /// A replica belongs to a table that is gone, or its tablet has replaced it.
    DropReplica {
        /// Where it lives.
        server: ServerId,
        /// Its tablet.
        tablet: TabletId,
        /// Which one.
        replica: ReplicaId,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteRoot(to) => write!(f, "write-root {}", Shown(to)),
            Self::WriteRow(to) => write!(f, "write-row {}", Shown(to)),
            Self::RemoveRow { row, tablet } => write!(f, "remove-row {row} tablet={tablet}"),
            Self::FinishCreate(table) => write!(f, "finish-create table={table}"),
            Self::ApplySchema(table) => write!(f, "apply-schema table={table}"),
            Self::FinishOperation(operation) => write!(f, "finish-operation {operation}"),
            Self::FinishDelete(table) => write!(f, "finish-delete table={table}"),
            Self::ChangeReplicas(change) => change.fmt(f),
            Self::MakeReplica { tablet, replica: Replica { replica, server } } => {
                write!(f, "make-replica server={server} tablet={} replica={replica}", tablet.tablet)
            }
            Self::TellLost { table, tablet, lost, of } => {
                write!(f, "tell-lost table={table} tablet={tablet} lost={lost} of={of}")
            }
            Self::MoveLeader { tablet: TabletDescriptor { table, tablet, .. }, from, to } => {
                write!(f, "move-leader table={table} tablet={tablet} from={from} to={to}")
            }
            Self::DropReplica { server, tablet, replica } => {
                write!(f, "drop-replica server={server} tablet={tablet} replica={replica}")
            }
        }
    }
}

/// A descriptor in one line.
struct Shown<'a>(&'a TabletDescriptor);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TabletDescriptor { table, tablet, range, generation, .. } = self.0;
        write!(f, "table={table} tablet={tablet} range={range} gen={generation}")
    }
}

/// What to do, in order: first what finds tablets, then what finishes changes, then what removes, last what evens out.
#[must_use]
pub fn plan(cluster: &Cluster, around: &Circumstances) -> Vec<Action> {
    let mut actions = Vec::new();
    actions.extend(root(cluster));
    actions.extend(rows(cluster));
    actions.extend(creations(cluster));
    actions.extend(schemas(cluster));
    actions.extend(operations(cluster));
    actions.extend(deletions(cluster));
    actions.extend(repair::repair(cluster, around));
    actions.extend(gone_rows(cluster));
    actions.extend(gone_replicas(cluster));
    actions.extend(leads::leads(cluster, around));
    actions
}

fn root(cluster: &Cluster) -> Option<Action> {
    let tablets = cluster.tablets();
    let newest = *tablets.get(&TabletId::ROOT)?;
    let is_old = cluster.root.as_ref().is_none_or(|known| known.fence() < newest.fence());
    is_old.then(|| Action::WriteRoot(newest.clone()))
}

/// Rows that METADATA lacks, ascending by table and end: the left half of a split gets its row before the right half
/// takes over the one that both had, so that no lookup ever falls into a hole.
fn rows(cluster: &Cluster) -> Vec<Action> {
    let tablets = cluster.tablets();
    let mut due: BTreeMap<RowKey, &TabletDescriptor> = BTreeMap::new();
    for tablet in tablets.values().filter(|tablet| is_kept(cluster, tablet.table)) {
        let rival = due.entry(tablet.row_key()).or_insert(tablet);
        if rival.fence() < tablet.fence() {
            *rival = tablet;
        }
    }
    let due = due.into_iter().filter(|(row, tablet)| may_write(cluster, &tablets, row, tablet));
    due.map(|(_row, tablet)| Action::WriteRow(tablet.clone())).collect()
}

/// Whether a row is missing or old, and its present tablet, when it is another one, is known to have left it.
fn may_write(
    cluster: &Cluster,
    tablets: &BTreeMap<TabletId, &TabletDescriptor>,
    row: &RowKey,
    tablet: &TabletDescriptor,
) -> bool {
    let Some(present) = cluster.metadata.get(row) else { return true };
    if present.tablet == tablet.tablet {
        return present.fence() < tablet.fence();
    }
    let moved_away = tablets.get(&present.tablet).is_some_and(|newest| newest.row_key() != *row);
    moved_away && present.generation < tablet.generation
}

/// Whether a table's rows are to be kept up: it exists and is not being deleted. METADATA always exists.
fn is_kept(cluster: &Cluster, table: TableId) -> bool {
    let state = cluster.tables.get(&table).map(|schema| schema.state);
    table == TableId::METADATA || matches!(state, Some(TableState::Creating | TableState::Active))
}

fn creations(cluster: &Cluster) -> impl Iterator<Item = Action> {
    let kept = cluster.plans.keys().filter(|table| is_kept(cluster, **table));
    kept.map(|table| Action::FinishCreate(*table))
}

fn schemas(cluster: &Cluster) -> impl Iterator<Item = Action> {
    let active = cluster.tables.values().filter(|schema| schema.state == TableState::Active);
    let behind = active.filter(|schema| {
        let mut led = cluster.reports().filter(|(_server, report)| report.role == Role::Leader);
        led.any(|(_server, report)| report.descriptor.table == schema.table && report.schema_version < schema.version)
    });
    behind.map(|schema| Action::ApplySchema(schema.table))
}

/// The end of a table is finished by its deletion.
fn operations(cluster: &Cluster) -> impl Iterator<Item = Action> {
    let pending = cluster.operations.iter().filter(|(_id, operation)| operation.kind != OperationKind::DropTable);
    pending.map(|(id, _operation)| Action::FinishOperation(*id))
}

fn deletions(cluster: &Cluster) -> impl Iterator<Item = Action> {
    let deleting = cluster.tables.values().filter(|schema| schema.state == TableState::Deleting);
    deleting.map(|schema| Action::FinishDelete(schema.table))
}

fn gone_rows(cluster: &Cluster) -> impl Iterator<Item = Action> {
    let gone = cluster
        .metadata
        .iter()
        .filter(|(row, _tablet)| parse_row_key(row).is_ok_and(|(table, _end)| is_gone(cluster, table)));
    gone.map(|(row, tablet)| Action::RemoveRow { row: row.clone(), tablet: tablet.tablet })
}

/// Replicas of tables that are gone, damaged ones too: nothing of theirs is ever needed again. One that does not run does not
/// say which table it is of; as long as nobody knows, it stays.
fn gone_replicas(cluster: &Cluster) -> Vec<Action> {
    let gone = cluster.reports().filter(|(_server, report)| is_gone(cluster, report.descriptor.table));
    let drops = gone.map(|(server, report)| (server, report.descriptor.tablet, report.replica));
    let known = cluster.known_tablets();
    let is_of_gone = |tablet: &TabletId| known.get(tablet).is_some_and(|known| is_gone(cluster, known.table));
    let silent = cluster.silent().filter(|(_server, tablet, _replica)| is_of_gone(tablet));
    let unique: BTreeSet<_> = drops.chain(silent).collect();
    unique.into_iter().map(|(server, tablet, replica)| Action::DropReplica { server, tablet, replica }).collect()
}

fn is_gone(cluster: &Cluster, table: TableId) -> bool {
    table != TableId::METADATA && !cluster.tables.contains_key(&table)
}

#[cfg(test)]
mod tests;

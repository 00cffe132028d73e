//! The job that deletes a table: its name is deleted at once, then its tablets are dropped, then all its records.
//!
//! ```text
//!   1  one transaction: tables/<id> (deleting), names/… deleted, operations/<op> (drop)
//!   2  a `Drop` entry in each group with tablets of the table: no stale front can write into the table after it
//!   3  rows of METADATA, authorized views
//!   4  one transaction, if tables/<id> has not changed: it and operations/<op> deleted, deleted/<id> written
//! ```
//!
//! A replica that is down has its tablets until it applies the `Drop` entry. The record `deleted/<id>` says until then that they
//! are of a deleted table; without it they would be kept, and reported as those of an unknown one. The planner removes it.
//!
//! Only the `Drop` entries remove tablets, so step 2 finds the groups in METADATA and in the servers' reports: a tablet
//! may have moved to another group since its row was written.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;

use ebla_chubby::{Compare, Counter, TransactionOutcome, Write, paths};
use ebla_client::Deadline;
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, LogId, OperationId, TableId};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::convert;
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tracing::info;

use crate::active::ActiveMaster;
use crate::cluster::{ClusterSnapshot, DeletedTable, Operation, OperationKind};
use crate::routing::send_to_group_leader;
use crate::{observation, schema_store, views};

/// Concurrent deletions of rows.
const CONCURRENT_ROWS: usize = 64;

/// Deletes a table; no caller sees it any more when this returns.
///
/// # Errors
/// `NotFoundTable`; `FailedPrecondition` when it is protected or being created; `Deadline` or `OutcomeUnknown` when
/// the deletion continues in the background.
pub(crate) async fn delete_table(master: &ActiveMaster, name: &TableName, deadline: Deadline) -> Result<(), Error> {
    let table = record_intent(master, name).await?;
    finish(master, table, deadline).await.map_err(|error| master.defer(error))
}

async fn record_intent(master: &ActiveMaster, name: &TableName) -> Result<TableId, Error> {
    let chubby = master.chubby();
    let operation = OperationId::new(master.allocate(Counter::Operations, 1).await?.start);
    loop {
        let stored = schema_store::find_table(chubby, name).await?;
        let schema = stored.value;
        check_deletable(&schema)?;
        views::check_unprotected(master, &schema).await?;
        let table = schema.table;
        let writes = intent(schema, operation).into_iter().chain([Write::delete(paths::name(name))]).collect();
        let compare = Compare::Modified(paths::table(table), stored.modified);
        if let TransactionOutcome::Committed(_) = master.commit_intent(vec![compare], writes).await? {
            let detail = name.to_string();
            master.record_event(&NewClusterEvent::new(ClusterEventKind::TableDeleted, detail).of_table(table));
            info!(%table, %name, "deleting table");
            return Ok(table);
        }
    }
}

/// The writes that start the deletion of a table by this operation; beside them its name must be deleted.
pub(crate) fn intent(schema: TableSchema, operation: OperationId) -> [Write; 3] {
    let table = schema.table;
    let drop = Operation { table, kind: OperationKind::DropTable };
    let deleting = TableSchema { state: TableState::Deleting, ..schema };
    [
        Write::put(paths::table(table), convert::schema_to_bytes(&deleting)),
        Write::delete(paths::plan(table)),
        Write::put(paths::operation(operation), schema_store::encode_operation(operation, &drop)),
    ]
}

/// Checks that a table may be deleted.
///
/// # Errors
/// `FailedPrecondition` when it is protected or being created.
pub(crate) fn check_deletable(schema: &TableSchema) -> Result<(), Error> {
    if schema.deletion_protection {
        let message = format!("table {} is protected against deletion", schema.name);
        return Err(Error::new(Reason::FailedPrecondition, message));
    }
    if schema.state == TableState::Creating {
        let message = format!("table {} is still being created", schema.name);
        return Err(Error::new(Reason::FailedPrecondition, message));
    }
    Ok(())
}

/// Executes the remaining steps of a deletion. Safe to repeat, also when it has finished.
///
/// # Errors
/// `Deadline` when some group did not respond; errors of Chubby or METADATA.
pub(crate) async fn finish(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let operations = schema_store::list_operations(master.chubby()).await?;
    let of_table = operations.iter().filter(|(_id, operation)| operation.table == table);
    let drop = of_table.clone().find(|(_id, operation)| operation.kind == OperationKind::DropTable);
    let Some((operation, _drop)) = drop else { return Ok(()) };
    let Some(stored) = schema_store::read_table(master.chubby(), table).await? else { return Ok(()) };
    let groups = drop_tablets(master, table, *operation, deadline).await?;
    delete_rows(master, table, deadline).await?;
    views::delete_all(master, table).await?;
    let deleted = DeletedTable { name: stored.value.name, groups };
    let mut writes = vec![
        Write::delete(paths::table(table)),
        Write::delete(paths::table_access(table)),
        Write::delete(paths::plan(table)),
        Write::put(paths::deleted(table), schema_store::encode_deleted(&deleted)),
    ];
    // All other operations of the table end with it.
    writes.extend(of_table.map(|(id, _operation)| Write::delete(paths::operation(*id))));
    // Chubby may have been restored meanwhile, with the table active again and under its name: a recovery deletes both.
    let compare = Compare::Modified(paths::table(table), stored.modified);
    match master.transact(vec![compare], writes).await? {
        TransactionOutcome::Committed(_) => info!(%table, "table deleted"),
        TransactionOutcome::Conflict => info!(%table, "table not deleted: it was changed or deleted meanwhile"),
    }
    Ok(())
}

/// Proposes the `Drop` entry in each group that has tablets of the table. Returns these groups, each with a position of its
/// log at which the entry was applied.
async fn drop_tablets(
    master: &ActiveMaster,
    table: TableId,
    operation: OperationId,
    deadline: Deadline,
) -> Result<BTreeMap<GroupId, LogId>, Error> {
    let listed = master.metadata().read_table(table, deadline).await?;
    let listed: Vec<TabletDescriptor> = listed.into_iter().map(|entry| entry.descriptor).collect();
    let mut dropped = BTreeSet::new();
    loop {
        let snapshot = observation::observe_reports(master).await?;
        let left = groups_with_tablets(&snapshot, table, &listed, &dropped);
        if left.is_empty() {
            return Ok(positions(&snapshot, &dropped));
        }
        let drops = left.values().map(|group| drop_in_group(master, group, table, operation, deadline).boxed());
        try_join_all(drops.collect::<Vec<_>>()).await?;
        dropped.extend(left.into_keys());
    }
}

/// How far each of these groups has applied its log, by the reports.
fn positions(snapshot: &ClusterSnapshot, groups: &BTreeSet<GroupId>) -> BTreeMap<GroupId, LogId> {
    let latest: BTreeMap<GroupId, LogId> =
        snapshot.latest_reports().map(|report| (report.group.group, report.applied)).collect();
    groups.iter().map(|group| (*group, latest.get(group).copied().unwrap_or(LogId::SEED))).collect()
}

/// The groups that may have tablets of the table, by METADATA's rows and by reports, and that have not dropped them yet.
fn groups_with_tablets(
    snapshot: &ClusterSnapshot,
    table: TableId,
    listed: &[TabletDescriptor],
    dropped: &BTreeSet<GroupId>,
) -> BTreeMap<GroupId, GroupDescriptor> {
    let newest = snapshot.groups();
    let reported = snapshot.tablet_reports().map(|tablet| &tablet.descriptor);
    let tablets = listed.iter().chain(reported).filter(|tablet| tablet.table == table);
    let left = tablets.filter(|tablet| !dropped.contains(&tablet.group));
    left.map(|tablet| (tablet.group, newest.get(&tablet.group).cloned().unwrap_or_else(|| tablet.group_descriptor())))
        .collect()
}

async fn drop_in_group(
    master: &ActiveMaster,
    group: &GroupDescriptor,
    table: TableId,
    operation: OperationId,
    deadline: Deadline,
) -> Result<(), Error> {
    let call = |master: ActiveMaster, server, group: GroupDescriptor| {
        Box::pin(async move { master.servers().drop_table(server, group.group, operation, table).await })
            as BoxFuture<'static, _>
    };
    send_to_group_leader(master, group, deadline, call).await
}

async fn delete_rows(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let metadata = master.metadata();
    let entries = metadata.read_table(table, deadline).await?;
    let deletions: Vec<_> = entries.iter().map(|entry| metadata.delete(&entry.descriptor, deadline).boxed()).collect();
    stream::iter(deletions).buffer_unordered(CONCURRENT_ROWS).try_for_each(|_outcome| ready(Ok(()))).await
}

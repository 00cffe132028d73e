//! The job that deletes a table: its name is deleted at once, then its tablets are dropped, then all its records.
//!
//! ```text
//!   1  one transaction: tables/<id> (deleting), names/… deleted, operations/<op> (drop)
//!   2  a `Drop` entry in each tablet's group: no stale front can write into the deleted table after it
//!   3  rows of METADATA, from the last to the first, so that a scan from the start finds the remaining ones
//!   4  replicas, on every server that responds; on the others when they return (crate::plan)
//!   5  one transaction: tables/<id> and operations/<op> deleted
//! ```

use ebla_chubby::{Compare, Counter, TransactionOutcome, Write, next_ids, paths};
use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{OperationId, TableId};
use ebla_model::key::RowKey;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::convert;
use tracing::{info, warn};

use crate::active::ActiveMaster;
use crate::cluster::{Operation, OperationKind};
use crate::routing::{TableMap, apply_at};
use crate::{cluster, observation, schema_store};

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
    let operation = OperationId::new(next_ids(chubby, Counter::Operations, 1).await?.start);
    loop {
        let stored = schema_store::find_table(chubby, name).await?;
        let schema = stored.value;
        check_deletable(&schema)?;
        let table = schema.table;
        let drop = Operation { table, kind: OperationKind::DropTable };
        let deleting = TableSchema { state: TableState::Deleting, ..schema };
        let writes = vec![
            Write::put(paths::table(table), convert::schema_to_bytes(&deleting)),
            Write::delete(paths::name(name)),
            Write::delete(paths::plan(table)),
            Write::put(paths::operation(operation), schema_store::encode_operation(operation, &drop)),
        ];
        let compare = Compare::Modified(paths::table(table), stored.modified);
        if let TransactionOutcome::Committed(_) = master.commit_intent(vec![compare], writes).await? {
            info!(%table, %name, "deleting table");
            return Ok(table);
        }
    }
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
/// `Deadline` when some tablet did not respond; errors of Chubby or METADATA.
pub(crate) async fn finish(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let operations = schema_store::list_operations(master.chubby()).await?;
    let of_table = operations.iter().filter(|(_id, operation)| operation.table == table);
    let drop = of_table.clone().find(|(_id, operation)| operation.kind == OperationKind::DropTable);
    let Some((operation, _drop)) = drop else { return Ok(()) };
    drop_tablets(master, table, *operation, deadline).await?;
    delete_metadata_rows(master, table, deadline).await?;
    drop_replicas(master, table).await?;
    let mut writes = vec![Write::delete(paths::table(table)), Write::delete(paths::plan(table))];
    // All other operations of the table end with it.
    writes.extend(of_table.map(|(id, _operation)| Write::delete(paths::operation(*id))));
    master.transact(Vec::new(), writes).await?;
    info!(%table, "table deleted");
    Ok(())
}

/// Proposes the `Drop` entry in each group that METADATA still lists, in key order.
async fn drop_tablets(
    master: &ActiveMaster,
    table: TableId,
    operation: OperationId,
    deadline: Deadline,
) -> Result<(), Error> {
    let kind = schema_store::apply_kind(operation, &OperationKind::DropTable);
    let mut map = TableMap::read(master, table, deadline).await?;
    let mut cursor = RowKey::EMPTY;
    // Rows are deleted from the last to the first: all tablets after the last listed one were dropped before.
    while map.at(&cursor).is_some() {
        let covered = apply_at(&mut map, &cursor, &kind, deadline).await?;
        let Some(end) = covered.range.end() else { return Ok(()) };
        cursor = end.clone();
    }
    Ok(())
}

async fn delete_metadata_rows(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let metadata = master.metadata();
    let entries = metadata.read_table(table, deadline).await?;
    for entry in entries.iter().rev() {
        metadata.delete(&entry.descriptor, deadline).await?;
    }
    Ok(())
}

/// Removes the replicas that servers report. The reconciler retries those that fail, as long as they are reported.
async fn drop_replicas(master: &ActiveMaster, table: TableId) -> Result<(), Error> {
    let snapshot =
        cluster::ClusterSnapshot { servers: observation::observe_servers(master).await?, ..Default::default() };
    for (server, report) in snapshot.reports().filter(|(_server, report)| report.descriptor.table == table) {
        let tablet = report.descriptor.tablet;
        if let Err(failed) = master.servers().drop_replica(server, tablet, report.replica).await {
            warn!(%server, %tablet, error = %failed.error, "replica not dropped; retrying in the next round");
        }
    }
    Ok(())
}

//! Deleting a table: its name goes at once, then its tablets are ended, then everything of it is removed.
//!
//! ```text
//!   1  one transaction: tables/<id> (deleting), names/… gone, operations/<op> (drop)
//!   2  a `Drop` entry in each tablet's group: from here on no stale front can write into the dead table
//!   3  rows of METADATA, from the last to the first, so that what remains is found by a walk from the start
//!   4  replicas, on every server that answers; on the others when they come back (crate::plan)
//!   5  one transaction: tables/<id> and operations/<op> gone
//! ```

use ebla_chubby::{Compare, Counter, Outcome, Write, next_ids, paths};
use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{OperationId, TableId};
use ebla_model::key::RowKey;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::convert;
use tracing::{info, warn};

use crate::cluster::{Operation, OperationKind};
use crate::office::Office;
use crate::route::{TableMap, step};
use crate::{cluster, observe, records};

/// Deletes a table; it is gone for everyone when this returns.
///
/// # Errors
/// `NotFoundTable`; `FailedPrecondition` when it is protected or still being made; `Deadline` or
/// `OutcomeUnknown` when the rest will be done later.
pub(crate) async fn delete(office: &Office, name: &TableName, deadline: Deadline) -> Result<(), Error> {
    let table = begin(office, name).await?;
    finish(office, table, deadline).await.map_err(|error| office.leave(error))
}

async fn begin(office: &Office, name: &TableName) -> Result<TableId, Error> {
    let chubby = office.chubby();
    let operation = OperationId::new(next_ids(chubby, Counter::Operations, 1).await?.start);
    loop {
        let stored = records::find_table(chubby, name).await?;
        let schema = stored.value;
        refuse_guarded(&schema)?;
        let table = schema.table;
        let drop = Operation { table, kind: OperationKind::DropTable };
        let deleting = TableSchema { state: TableState::Deleting, ..schema };
        let writes = vec![
            Write::put(paths::table(table), convert::schema_to_bytes(&deleting)),
            Write::delete(paths::name(name)),
            Write::delete(paths::plan(table)),
            Write::put(paths::operation(operation), records::encode_operation(operation, &drop)),
        ];
        let compare = Compare::Modified(paths::table(table), stored.modified);
        if let Outcome::Done(_) = office.begin(vec![compare], writes).await? {
            info!(%table, %name, "deleting table");
            return Ok(table);
        }
    }
}

/// Passes a table that may be deleted.
///
/// # Errors
/// `FailedPrecondition` when it is protected or still being made.
pub(crate) fn refuse_guarded(schema: &TableSchema) -> Result<(), Error> {
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

/// Takes a deletion as far as it goes. Safe to repeat, also when it is finished.
///
/// # Errors
/// `Deadline` when some tablet did not answer; what Chubby or METADATA say.
pub(crate) async fn finish(office: &Office, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let operations = records::list_operations(office.chubby()).await?;
    let of_table = operations.iter().filter(|(_id, operation)| operation.table == table);
    let drop = of_table.clone().find(|(_id, operation)| operation.kind == OperationKind::DropTable);
    let Some((operation, _drop)) = drop else { return Ok(()) };
    end_tablets(office, table, *operation, deadline).await?;
    unlist(office, table, deadline).await?;
    drop_replicas(office, table).await?;
    let mut writes = vec![Write::delete(paths::table(table)), Write::delete(paths::plan(table))];
    // Whatever else was under way in the table ends with it.
    writes.extend(of_table.map(|(id, _operation)| Write::delete(paths::operation(*id))));
    office.transact(Vec::new(), writes).await?;
    info!(%table, "table deleted");
    Ok(())
}

/// The `Drop` entry in each group that METADATA still lists, by key.
async fn end_tablets(office: &Office, table: TableId, operation: OperationId, deadline: Deadline) -> Result<(), Error> {
    let kind = records::operation_step(operation, &OperationKind::DropTable);
    let mut map = TableMap::read(office, table, deadline).await?;
    let mut cursor = RowKey::EMPTY;
    // Rows go from the last to the first: beyond the last one that is listed, all was ended before.
    while map.at(&cursor).is_some() {
        let covered = step(&mut map, &cursor, &kind, deadline).await?;
        let Some(end) = covered.range.end() else { return Ok(()) };
        cursor = end.clone();
    }
    Ok(())
}

async fn unlist(office: &Office, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let metadata = office.metadata();
    let entries = metadata.read_table(table, deadline).await?;
    for entry in entries.iter().rev() {
        metadata.delete(&entry.descriptor, deadline).await?;
    }
    Ok(())
}

/// Removes the replicas that servers report. One that fails is left to the reconciler, who sees it as long as it is there.
async fn drop_replicas(office: &Office, table: TableId) -> Result<(), Error> {
    let picture = cluster::Cluster { servers: observe::observe_servers(office).await?, ..Default::default() };
    for (server, report) in picture.reports().filter(|(_server, report)| report.descriptor.table == table) {
        let tablet = report.descriptor.tablet;
        if let Err(refused) = office.orders().drop_replica(server, tablet, report.replica).await {
            warn!(%server, %tablet, error = %refused.error, "replica not dropped");
        }
    }
    Ok(())
}

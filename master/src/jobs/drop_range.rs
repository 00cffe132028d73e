//! The job that drops a range of rows: one operation, recorded in Chubby and applied once by each group with tablets of the
//! table.

use ebla_chubby::{Compare, Counter, TransactionOutcome, Write, paths};
use ebla_client::Deadline;
use ebla_model::error::Error;
use ebla_model::id::OperationId;
use ebla_model::key::KeyRange;
use ebla_model::schema::TableName;

use super::update_schema;
use crate::active::ActiveMaster;
use crate::cluster::{Operation, OperationKind};
use crate::routing::apply_to_range;
use crate::schema_store;

/// Drops all rows of `range`; rows that are written meanwhile may stay or be dropped.
///
/// Earlier operations of the table that are unfinished end first. One of them may be this call, sent before to a master that has
/// failed since: if it ended later, it would drop rows that are written after this call.
///
/// # Errors
/// `NotFoundTable`; `Deadline` or `OutcomeUnknown` when the operation continues in the background.
pub(crate) async fn drop_range(
    master: &ActiveMaster,
    name: &TableName,
    range: KeyRange,
    deadline: Deadline,
) -> Result<(), Error> {
    let operation = record_intent(master, name, range).await?;
    finish_in_order(master, operation, deadline).await.map_err(|error| master.defer(error))
}

async fn finish_in_order(master: &ActiveMaster, last: OperationId, deadline: Deadline) -> Result<(), Error> {
    let operations = schema_store::list_operations(master.chubby()).await?;
    let Some(table) = operations.get(&last).map(|operation| operation.table) else { return Ok(()) };
    for (id, _operation) in operations.range(..=last).filter(|(_id, operation)| operation.table == table) {
        finish(master, *id, deadline).await?;
    }
    Ok(())
}

async fn record_intent(master: &ActiveMaster, name: &TableName, range: KeyRange) -> Result<OperationId, Error> {
    let chubby = master.chubby();
    let id = OperationId::new(master.allocate(Counter::Operations, 1).await?.start);
    loop {
        let stored = update_schema::find_active(chubby, name).await?;
        let operation = Operation { table: stored.value.table, kind: OperationKind::DropRange(range.clone()) };
        let write = Write::put(paths::operation(id), schema_store::encode_operation(id, &operation));
        let compare = Compare::Modified(paths::table(operation.table), stored.modified);
        if let TransactionOutcome::Committed(_) = master.transact(vec![compare], vec![write]).await? {
            return Ok(id);
        }
    }
}

/// Applies the operation at all groups that have not applied it yet. Safe to repeat.
///
/// # Errors
/// As [`apply_to_range`].
pub(crate) async fn finish(master: &ActiveMaster, id: OperationId, deadline: Deadline) -> Result<(), Error> {
    let Some(operation) = schema_store::read_operation(master.chubby(), id).await? else { return Ok(()) };
    let OperationKind::DropRange(range) = &operation.kind else { return Ok(()) };
    let kind = schema_store::apply_kind(id, &operation.kind);
    apply_to_range(master, operation.table, range, &kind, deadline).await?;
    master.transact(Vec::new(), vec![Write::delete(paths::operation(id))]).await.map(drop)
}

//! Removing a range of rows: one operation, recorded in Chubby, applied once by each tablet.

use ebla_chubby::{Compare, Counter, Outcome, Write, next_ids, paths};
use ebla_client::Deadline;
use ebla_model::error::Error;
use ebla_model::id::OperationId;
use ebla_model::key::KeyRange;
use ebla_model::schema::TableName;

use crate::cluster::{Operation, OperationKind};
use crate::office::Office;
use crate::route::walk;
use crate::{records, schema};

/// Removes all rows of `range`; those that are written while this runs may stay or go.
///
/// # Errors
/// `NotFoundTable`, or `Deadline` or `OutcomeUnknown` when the rest will be done later.
pub(crate) async fn drop_range(
    office: &Office,
    name: &TableName,
    range: KeyRange,
    deadline: Deadline,
) -> Result<(), Error> {
    let operation = begin(office, name, range).await?;
    finish(office, operation, deadline).await.map_err(|error| office.leave(error))
}

async fn begin(office: &Office, name: &TableName, range: KeyRange) -> Result<OperationId, Error> {
    let chubby = office.chubby();
    let id = OperationId::new(next_ids(chubby, Counter::Operations, 1).await?.start);
    loop {
        let stored = schema::find_active(chubby, name).await?;
        let operation = Operation { table: stored.value.table, kind: OperationKind::DropRange(range.clone()) };
        let write = Write::put(paths::operation(id), records::encode_operation(id, &operation));
        let compare = Compare::Modified(paths::table(operation.table), stored.modified);
        if let Outcome::Done(_) = office.transact(vec![compare], vec![write]).await? {
            return Ok(id);
        }
    }
}

/// Applies the operation where it is not applied yet. Safe to repeat.
///
/// # Errors
/// As [`walk`].
pub(crate) async fn finish(office: &Office, id: OperationId, deadline: Deadline) -> Result<(), Error> {
    let Some(operation) = records::read_operation(office.chubby(), id).await? else { return Ok(()) };
    let OperationKind::DropRange(range) = &operation.kind else { return Ok(()) };
    let kind = records::operation_step(id, &operation.kind);
    walk(office, operation.table, range, &kind, deadline).await?;
    office.transact(Vec::new(), vec![Write::delete(paths::operation(id))]).await.map(drop)
}

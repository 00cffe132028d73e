//! Changing a table's schema: the new one stands in Chubby first, then each tablet takes it over by an entry of its log.

use ebla_chubby::{Chubby, Compare, Outcome, Write, paths};
use ebla_client::Deadline;
use ebla_model::error::Error;
use ebla_model::id::TableId;
use ebla_model::key::KeyRange;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::control::apply_request::Kind;
use ebla_proto::convert;
use tracing::info;

use crate::office::Office;
use crate::records::{self, Stored};
use crate::route::walk;

/// A table that serves.
///
/// # Errors
/// `NotFoundTable` also while it is being made or deleted.
pub(crate) async fn find_active(chubby: &dyn Chubby, name: &TableName) -> Result<Stored<TableSchema>, Error> {
    let stored = records::find_table(chubby, name).await?;
    if stored.value.state == TableState::Active { Ok(stored) } else { Err(records::not_found(name)) }
}

/// Makes the schema into what `change` makes of it, at once, and returns it when every tablet has it.
///
/// # Errors
/// What `change` refuses; `NotFoundTable`; `Deadline` or `OutcomeUnknown` when the rest will be done later.
pub(crate) async fn change(
    office: &Office,
    name: &TableName,
    change: impl Fn(&TableSchema) -> Result<TableSchema, Error> + Send + Sync,
    deadline: Deadline,
) -> Result<TableSchema, Error> {
    let schema = loop {
        let stored = find_active(office.chubby(), name).await?;
        let changed = change(&stored.value)?;
        let compare = Compare::Modified(paths::table(changed.table), stored.modified);
        let write = Write::put(paths::table(changed.table), convert::schema_to_bytes(&changed));
        if let Outcome::Done(_) = office.begin(vec![compare], vec![write]).await? {
            break changed;
        }
    };
    info!(table = %schema.table, version = %schema.version, "schema changed");
    apply(office, &schema, deadline).await.map_err(|error| office.leave(error))?;
    Ok(schema)
}

/// Brings the tablets of a table to Chubby's schema. Safe to repeat: a tablet keeps the highest version it has seen.
///
/// # Errors
/// As [`walk`].
pub(crate) async fn finish(office: &Office, table: TableId, deadline: Deadline) -> Result<(), Error> {
    match records::read_table(office.chubby(), table).await? {
        Some(stored) if stored.value.state == TableState::Active => apply(office, &stored.value, deadline).await,
        _ => Ok(()),
    }
}

async fn apply(office: &Office, schema: &TableSchema, deadline: Deadline) -> Result<(), Error> {
    let kind = Kind::SetSchema(convert::schema_to_proto(schema));
    walk(office, schema.table, &KeyRange::all(), &kind, deadline).await
}

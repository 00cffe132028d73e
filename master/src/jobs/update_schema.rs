//! The job that changes a table's schema: Chubby stores the new one first, then each group with tablets of the
//! table applies it as a log entry.

use ebla_chubby::{Chubby, Compare, TransactionOutcome, Write, paths};
use ebla_client::Deadline;
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::cluster_version::Feature;
use ebla_model::error::Error;
use ebla_model::id::TableId;
use ebla_model::key::KeyRange;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::control::apply_request::Kind;
use ebla_proto::convert;
use tracing::info;

use crate::active::ActiveMaster;
use crate::routing::apply_to_range;
use crate::schema_store::{self, Stored};
use crate::upgrade;

/// Finds an active table.
///
/// # Errors
/// `NotFoundTable`, also while it is being created or deleted.
pub(crate) async fn find_active(chubby: &dyn Chubby, name: &TableName) -> Result<Stored<TableSchema>, Error> {
    let stored = schema_store::find_table(chubby, name).await?;
    if stored.value.state == TableState::Active { Ok(stored) } else { Err(schema_store::not_found(name)) }
}

/// As [`update_schema`], by order of an operator or of a client of the admin API: the change is an event of the cluster.
///
/// # Errors
/// Those of [`update_schema`].
pub(crate) async fn change_schema(
    master: &ActiveMaster,
    name: &TableName,
    change: impl Fn(&TableSchema) -> Result<TableSchema, Error> + Send + Sync,
    deadline: Deadline,
) -> Result<TableSchema, Error> {
    let schema = commit(master, name, change).await?;
    let detail = format!("{name}, version {}", schema.version);
    master.record_event(&NewClusterEvent::new(ClusterEventKind::SchemaChanged, detail).of_table(schema.table));
    apply(master, &schema, deadline).await.map_err(|error| master.defer(error))?;
    Ok(schema)
}

/// Changes the schema by `change` and returns it when every group has applied it. No event is recorded: a table whose use goes up and down
/// about its quota would replace all other events.
///
/// # Errors
/// Those of `change`; `FailedPrecondition` when it needs a later cluster version; `NotFoundTable`; `Deadline` or `OutcomeUnknown` when the change continues in the background.
pub(crate) async fn update_schema(
    master: &ActiveMaster,
    name: &TableName,
    change: impl Fn(&TableSchema) -> Result<TableSchema, Error> + Send + Sync,
    deadline: Deadline,
) -> Result<TableSchema, Error> {
    let schema = commit(master, name, change).await?;
    apply(master, &schema, deadline).await.map_err(|error| master.defer(error))?;
    Ok(schema)
}

/// Stores the changed schema in Chubby. From here on this master or another applies it.
async fn commit(
    master: &ActiveMaster,
    name: &TableName,
    change: impl Fn(&TableSchema) -> Result<TableSchema, Error> + Send + Sync,
) -> Result<TableSchema, Error> {
    loop {
        let stored = find_active(master.chubby(), name).await?;
        let changed = change(&stored.value)?;
        Feature::check_schema(Some(&stored.value), &changed, upgrade::active_version(master).await?)?;
        let compare = Compare::Modified(paths::table(changed.table), stored.modified);
        let write = Write::put(paths::table(changed.table), convert::schema_to_bytes(&changed));
        if let TransactionOutcome::Committed(_) = master.commit_intent(vec![compare], vec![write]).await? {
            info!(table = %changed.table, version = %changed.version, "schema changed");
            return Ok(changed);
        }
    }
}

/// Applies Chubby's schema at all tablets. Safe to repeat: a group ignores versions that are not newer than its own.
///
/// # Errors
/// As [`apply_to_range`].
pub(crate) async fn finish(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<(), Error> {
    match schema_store::read_table(master.chubby(), table).await? {
        Some(stored) if stored.value.state == TableState::Active => apply(master, &stored.value, deadline).await,
        _ => Ok(()),
    }
}

async fn apply(master: &ActiveMaster, schema: &TableSchema, deadline: Deadline) -> Result<(), Error> {
    let kind = Kind::SetSchema(convert::schema_to_proto(schema));
    apply_to_range(master, schema.table, &KeyRange::all(), &kind, deadline).await
}

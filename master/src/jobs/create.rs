//! The job that creates a table. The intent goes to Chubby first; any master can repeat the steps after it.
//!
//! ```text
//!   1  one transaction: tables/<id> (creating)  names/…  plans/<id> (tablets, replicas, servers)
//!   2  replicas on the servers of the plan; a majority of each tablet is needed
//!   3  rows of METADATA
//!   4  tables/<id> becomes active: the table serves
//!   5  plans/<id> is deleted when every replica was created
//! ```

use std::time::Duration;

use ebla_chubby::{Compare, Counter, TransactionOutcome, Write, next_ids, paths};
use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{Replica, TabletDescriptor};
use ebla_model::schema::{NewFamily, TableName, TableSchema, TableState};
use ebla_proto::convert;
use ebla_routing::Annotations;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tracing::{info, warn};

use crate::active::ActiveMaster;
use crate::plan::placement::assign;
use crate::server_client::InitialState;
use crate::{cluster, observation, schema_store};

/// Concurrent requests and row writes.
const CONCURRENCY: usize = 16;
/// The delay before a failed request is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The definition of a new table.
#[derive(Clone, Debug)]
pub(crate) struct NewTable {
    pub(crate) name: TableName,
    pub(crate) families: Vec<NewFamily>,
    /// Start keys of all tablets but the first, ascending and distinct.
    pub(crate) splits: Vec<RowKey>,
    pub(crate) deletion_protection: bool,
}

/// Creates a table and returns its schema when it is active.
///
/// # Errors
/// `AlreadyExists` when there is an active table of that name; `Deadline` or `OutcomeUnknown` when the creation
/// continues in the background; `Unavailable` while another caller's table of that name is being created; errors of
/// Chubby.
pub(crate) async fn create_table(
    master: &ActiveMaster,
    new: NewTable,
    deadline: Deadline,
) -> Result<TableSchema, Error> {
    let name = new.name.clone();
    let Some(table) = record_intent(master, new).await? else {
        return Err(name_taken_error(master, &name, deadline).await);
    };
    finish(master, table, deadline).await.map_err(|error| master.defer(error))?;
    let stored = schema_store::read_table(master.chubby(), table).await.map_err(|error| master.defer(error))?;
    stored.map(|stored| stored.value).ok_or_else(|| schema_store::not_found(&name))
}

/// The error for a name that is taken. It waits until that table is active, because a caller that learns that a table
/// exists will use it. If the master of the first call has crashed, the reconciler finishes the table.
async fn name_taken_error(master: &ActiveMaster, name: &TableName, deadline: Deadline) -> Error {
    master.request_reconcile();
    loop {
        match schema_store::find_table(master.chubby(), name).await {
            Ok(stored) if stored.value.state == TableState::Creating => {}
            Ok(_active) => return Error::new(Reason::AlreadyExists, format!("table {name} already exists")),
            Err(error) if error.reason == Reason::NotFoundTable => {
                return Error::new(Reason::Unavailable, format!("table {name} was deleted meanwhile; try again"));
            }
            Err(error) => return error,
        }
        if deadline.has_passed(&master.runtime().clock) {
            return Error::new(Reason::Unavailable, format!("table {name} is still being created"));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Records the intent. From here on this master or another creates the table. `None` when the name is taken.
async fn record_intent(master: &ActiveMaster, new: NewTable) -> Result<Option<TableId>, Error> {
    let chubby = master.chubby();
    if chubby.read(&paths::name(&new.name)).await?.is_some() {
        return Ok(None);
    }
    let table = TableId::new(next_ids(chubby, Counter::Tables, 1).await?.start);
    let mut schema = TableSchema::with_families(table, new.name.clone(), new.families.iter().cloned())?;
    schema.deletion_protection = new.deletion_protection;
    let plan = plan_tablets(master, table, &new.splits).await?;
    let compares = vec![Compare::Absent(paths::name(&new.name))];
    let writes = vec![
        Write::put(paths::name(&new.name), table.to_string()),
        Write::put(paths::table(table), convert::schema_to_bytes(&schema)),
        Write::put(paths::plan(table), schema_store::encode_plan(&plan)),
    ];
    match master.commit_intent(compares, writes).await? {
        TransactionOutcome::Committed(_) => {
            info!(%table, name = %new.name, tablets = plan.len(), "creating table");
            Ok(Some(table))
        }
        TransactionOutcome::Conflict => Ok(None),
    }
}

/// The first tablets of a table, with ids and placement.
async fn plan_tablets(
    master: &ActiveMaster,
    table: TableId,
    splits: &[RowKey],
) -> Result<Vec<TabletDescriptor>, Error> {
    let ranges = ranges(splits);
    let snapshot = cluster::ClusterSnapshot {
        servers: observation::observe_servers(master).await?,
        plans: schema_store::list_plans(master.chubby()).await?,
        ..Default::default()
    };
    let loads = snapshot.loads();
    if loads.is_empty() {
        return Err(Error::new(Reason::Unavailable, "no tablet server responds"));
    }
    let servers = assign(&loads, ranges.len(), master.replicas());
    let ids = next_ids(master.chubby(), Counter::Tablets, ranges.len() as u64).await?;
    let tablets = ids.map(TabletId::new).zip(ranges).zip(servers);
    Ok(tablets.map(|((tablet, range), servers)| TabletDescriptor::initial(table, tablet, range, &servers)).collect())
}

/// The ranges between the split keys, which ascend.
fn ranges(splits: &[RowKey]) -> Vec<KeyRange> {
    let starts = std::iter::once(RowKey::EMPTY).chain(splits.iter().cloned());
    let ends = splits.iter().cloned().map(Some).chain(std::iter::once(None));
    starts.zip(ends).filter_map(|(start, end)| KeyRange::new(start, end)).collect()
}

/// Executes the remaining steps of a creation. Safe to repeat, also when the table is active or deleted.
///
/// # Errors
/// `Deadline` when some tablet has no majority of replicas yet; errors of Chubby or METADATA.
pub(crate) async fn finish(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let chubby = master.chubby();
    let Some(plan) = schema_store::read_plan(chubby, table).await? else { return Ok(()) };
    let Some(stored) = schema_store::read_table(chubby, table).await? else { return Ok(()) };
    let schema = TableSchema { state: TableState::Active, ..stored.value.clone() };
    let all_created = match stored.value.state {
        TableState::Creating => {
            let all_created = create_replicas(master, &schema, &plan, deadline).await?;
            write_metadata(master, &plan, deadline).await?;
            activate(master, table).await?;
            all_created
        }
        // The table is active; a replica that is still missing is created empty, and catches up.
        TableState::Active => {
            let due = still_members(master, table, &plan, deadline).await?;
            try_create_replicas(master, &schema, InitialState::Empty, due).await.is_empty()
        }
        TableState::Deleting => return Ok(()),
    };
    if all_created {
        // Needs no comparison with the table's revision: a plan is never written again.
        master.transact(Vec::new(), vec![Write::delete(paths::plan(table))]).await?;
    }
    Ok(())
}

/// A replica to create.
type ReplicaToCreate<'a> = (&'a TabletDescriptor, Replica);

fn planned_replicas(plan: &[TabletDescriptor]) -> Vec<ReplicaToCreate<'_>> {
    plan.iter().flat_map(|tablet| tablet.membership.replicas().map(move |replica| (tablet, replica))).collect()
}

/// The replicas of the plan that are still members: others were replaced meanwhile.
async fn still_members<'a>(
    master: &ActiveMaster,
    table: TableId,
    plan: &'a [TabletDescriptor],
    deadline: Deadline,
) -> Result<Vec<ReplicaToCreate<'a>>, Error> {
    let listed = master.metadata().read_table(table, deadline).await?;
    let has = |tablet: TabletId, replica: Replica| {
        let now = listed.iter().map(|entry| &entry.descriptor).find(|listed| listed.tablet == tablet);
        now.is_none_or(|now| now.membership.server_of(replica.replica) == Some(replica.server))
    };
    let all = planned_replicas(plan).into_iter();
    Ok(all.filter(|(tablet, replica)| has(tablet.tablet, *replica)).collect())
}

/// Creates replicas until each tablet has a majority. Returns whether all were created.
async fn create_replicas(
    master: &ActiveMaster,
    schema: &TableSchema,
    plan: &[TabletDescriptor],
    deadline: Deadline,
) -> Result<bool, Error> {
    let mut left = planned_replicas(plan);
    loop {
        left = try_create_replicas(master, schema, InitialState::Seed, left).await;
        if plan.iter().all(|tablet| has_majority(tablet, &left)) {
            return Ok(left.is_empty());
        }
        if deadline.has_passed(&master.runtime().clock) {
            let message = format!("table {} is still being created: servers do not respond", schema.name);
            return Err(Error::new(Reason::Deadline, message));
        }
        tokio::time::sleep(master.runtime().rng.jitter(RETRY_DELAY)).await;
    }
}

/// Whether more than half of a tablet's replicas are not in the list of missing ones.
fn has_majority(tablet: &TabletDescriptor, left: &[ReplicaToCreate<'_>]) -> bool {
    let all = tablet.membership.replicas.len();
    let missing = left.iter().filter(|(of, _replica)| of.tablet == tablet.tablet).count();
    2 * (all - missing) > all
}

/// Attempts each creation once; returns those that failed.
async fn try_create_replicas<'a>(
    master: &ActiveMaster,
    schema: &TableSchema,
    initial: InitialState,
    replicas: Vec<ReplicaToCreate<'a>>,
) -> Vec<ReplicaToCreate<'a>> {
    let attempts: Vec<_> =
        replicas.into_iter().map(|replica| try_create(master, schema, initial, replica).boxed()).collect();
    let failed = stream::iter(attempts).buffer_unordered(CONCURRENCY);
    failed.filter_map(|failed| async move { failed }).collect().await
}

/// Returns the replica again if the attempt failed.
async fn try_create<'a>(
    master: &ActiveMaster,
    schema: &TableSchema,
    initial: InitialState,
    (tablet, replica): ReplicaToCreate<'a>,
) -> Option<ReplicaToCreate<'a>> {
    match master.servers().create_replica(replica.server, tablet, schema, replica.replica, initial).await {
        Ok(_outcome) => None,
        Err(failed) => {
            let (tablet_id, error) = (tablet.tablet, failed.error);
            warn!(tablet = %tablet_id, server = %replica.server, %error, "replica not created; retrying");
            Some((tablet, replica))
        }
    }
}

/// Writes the rows of METADATA. A newer row of a tablet's leader, after a split, stays.
async fn write_metadata(master: &ActiveMaster, plan: &[TabletDescriptor], deadline: Deadline) -> Result<(), Error> {
    let writes: Vec<_> = plan.iter().map(|tablet| write_row(master, tablet, deadline).boxed()).collect();
    stream::iter(writes).buffer_unordered(CONCURRENCY).try_collect().await
}

async fn write_row(master: &ActiveMaster, tablet: &TabletDescriptor, deadline: Deadline) -> Result<(), Error> {
    master.metadata().put_descriptor(tablet, &Annotations::default(), deadline).await.map(drop)
}

async fn activate(master: &ActiveMaster, table: TableId) -> Result<(), Error> {
    loop {
        let Some(stored) = schema_store::read_table(master.chubby(), table).await? else { return Ok(()) };
        if stored.value.state != TableState::Creating {
            return Ok(());
        }
        let active = TableSchema { state: TableState::Active, ..stored.value };
        let compare = Compare::Modified(paths::table(table), stored.modified);
        let write = Write::put(paths::table(table), convert::schema_to_bytes(&active));
        if let TransactionOutcome::Committed(_) = master.transact(vec![compare], vec![write]).await? {
            info!(%table, "table active");
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{ReplicaId, ServerId};

    use super::*;

    #[test]
    fn splits_cover_every_key_once() {
        let splits = [RowKey::new("g"), RowKey::new("p")];
        let shown: Vec<_> = ranges(&splits).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["[, g)", "[g, p)", "[p, -)"]);
        assert_eq!(ranges(&[]), [KeyRange::all()]);
    }

    #[test]
    fn a_majority_is_more_than_half() {
        let servers: Vec<_> = (1..=3).map(ServerId::new).collect();
        let tablet = TabletDescriptor::initial(TableId::new(5), TabletId::new(7), KeyRange::all(), &servers);
        let left = |count: u64| -> Vec<_> {
            let replica = |n| Replica { replica: ReplicaId::new(n), server: ServerId::new(n) };
            (1..=count).map(|n| (&tablet, replica(n))).collect()
        };
        assert!(has_majority(&tablet, &left(0)) && has_majority(&tablet, &left(1)));
        assert!(!has_majority(&tablet, &left(2)));
    }
}

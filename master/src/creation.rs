//! Making a table: the intent goes to Chubby first, then everything after it can be repeated by any master.
//!
//! ```text
//!   1  one transaction: tables/<id> (creating)  names/…  plans/<id> (tablets, replicas, servers)
//!   2  replicas on the servers of the plan; a majority of each tablet is needed
//!   3  rows of METADATA
//!   4  tables/<id> becomes active: the table serves
//!   5  plans/<id> goes when every replica was made
//! ```

use std::time::Duration;

use ebla_chubby::{Compare, Counter, Outcome, Write, next_ids, paths};
use ebla_client::Deadline;
use ebla_client::metadata::Note;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{Replica, TabletDescriptor};
use ebla_model::schema::{NewFamily, TableName, TableSchema, TableState};
use ebla_proto::convert;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tracing::{info, warn};

use crate::office::Office;
use crate::orders::Beginning;
use crate::plan::assign::assign;
use crate::{cluster, observe, records};

/// Orders and rows under way at the same time.
const CONCURRENCY: usize = 16;
/// The pause before a server that refused is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// What a new table is to be.
#[derive(Clone, Debug)]
pub(crate) struct NewTable {
    pub(crate) name: TableName,
    pub(crate) families: Vec<NewFamily>,
    /// First keys of all tablets but the first, ascending and different.
    pub(crate) splits: Vec<RowKey>,
    pub(crate) deletion_protection: bool,
}

/// Makes a table and returns its schema when it serves.
///
/// # Errors
/// `AlreadyExists` when there is one that serves; `Deadline` or `OutcomeUnknown` when it will be finished later;
/// `Unavailable` while somebody else's table of that name is being made; what Chubby says.
pub(crate) async fn create(office: &Office, new: NewTable, deadline: Deadline) -> Result<TableSchema, Error> {
    let name = new.name.clone();
    let Some(table) = begin(office, new).await? else { return Err(taken(office, &name, deadline).await) };
    finish(office, table, deadline).await.map_err(|error| office.leave(error))?;
    let stored = records::read_table(office.chubby(), table).await.map_err(|error| office.leave(error))?;
    stored.map(|stored| stored.value).ok_or_else(|| records::not_found(&name))
}

/// What is said of a name that is taken, once its table serves: whoever hears that it exists is going to use it. A table that
/// was begun by a call that was lost with its master is finished by the reconciler.
async fn taken(office: &Office, name: &TableName, deadline: Deadline) -> Error {
    office.leave_unfinished();
    loop {
        match records::find_table(office.chubby(), name).await {
            Ok(stored) if stored.value.state == TableState::Creating => {}
            Ok(_serves) => return Error::new(Reason::AlreadyExists, format!("table {name} already exists")),
            Err(error) if error.reason == Reason::NotFoundTable => {
                return Error::new(Reason::Unavailable, format!("table {name} was deleted just now"));
            }
            Err(error) => return error,
        }
        if deadline.has_passed(&office.runtime().clock) {
            return Error::new(Reason::Unavailable, format!("table {name} is still being created"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Records the intent. From here on the table will be made, by this master or another. `None` when the name is taken.
async fn begin(office: &Office, new: NewTable) -> Result<Option<TableId>, Error> {
    let chubby = office.chubby();
    if chubby.read(&paths::name(&new.name)).await?.is_some() {
        return Ok(None);
    }
    let table = TableId::new(next_ids(chubby, Counter::Tables, 1).await?.start);
    let mut schema = TableSchema::with_families(table, new.name.clone(), new.families.iter().cloned())?;
    schema.deletion_protection = new.deletion_protection;
    let plan = plan_tablets(office, table, &new.splits).await?;
    let compares = vec![Compare::Absent(paths::name(&new.name))];
    let writes = vec![
        Write::put(paths::name(&new.name), table.to_string()),
        Write::put(paths::table(table), convert::schema_to_bytes(&schema)),
        Write::put(paths::plan(table), records::encode_plan(&plan)),
    ];
    match office.begin(compares, writes).await? {
        Outcome::Done(_) => {
            info!(%table, name = %new.name, tablets = plan.len(), "creating table");
            Ok(Some(table))
        }
        Outcome::Conflict => Ok(None),
    }
}

/// The first tablets of a table, with ids and servers.
async fn plan_tablets(office: &Office, table: TableId, splits: &[RowKey]) -> Result<Vec<TabletDescriptor>, Error> {
    let ranges = ranges(splits);
    let picture = cluster::Cluster {
        servers: observe::observe_servers(office).await?,
        plans: records::list_plans(office.chubby()).await?,
        ..Default::default()
    };
    let loads = picture.loads();
    if loads.is_empty() {
        return Err(Error::new(Reason::Unavailable, "no tablet server answers"));
    }
    let servers = assign(&loads, ranges.len(), office.replicas());
    let ids = next_ids(office.chubby(), Counter::Tablets, ranges.len() as u64).await?;
    let tablets = ids.map(TabletId::new).zip(ranges).zip(servers);
    Ok(tablets.map(|((tablet, range), servers)| TabletDescriptor::fresh(table, tablet, range, &servers)).collect())
}

/// The ranges between the splits, which ascend.
fn ranges(splits: &[RowKey]) -> Vec<KeyRange> {
    let starts = std::iter::once(RowKey::EMPTY).chain(splits.iter().cloned());
    let ends = splits.iter().cloned().map(Some).chain(std::iter::once(None));
    starts.zip(ends).filter_map(|(start, end)| KeyRange::new(start, end)).collect()
}

/// Takes a table that is being made as far as it goes. Safe to repeat, also when it is finished or gone.
///
/// # Errors
/// `Deadline` when some tablet has no majority of replicas yet; what Chubby or METADATA say.
pub(crate) async fn finish(office: &Office, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let chubby = office.chubby();
    let Some(plan) = records::read_plan(chubby, table).await? else { return Ok(()) };
    let Some(stored) = records::read_table(chubby, table).await? else { return Ok(()) };
    let schema = TableSchema { state: TableState::Active, ..stored.value.clone() };
    let all_made = match stored.value.state {
        TableState::Creating => {
            let all_made = make_replicas(office, &schema, &plan, deadline).await?;
            list(office, &plan, deadline).await?;
            activate(office, table).await?;
            all_made
        }
        // The table serves already; a replica that was never made is made late, and catches up.
        TableState::Active => {
            let due = still_members(office, table, &plan, deadline).await?;
            attempt_replicas(office, &schema, Beginning::Empty, due).await.is_empty()
        }
        TableState::Deleting => return Ok(()),
    };
    if all_made {
        // Unfenced by the table's revision on purpose: nothing is ever written to a plan.
        office.transact(Vec::new(), vec![Write::delete(paths::plan(table))]).await?;
    }
    Ok(())
}

/// A replica that is to be made.
type Order<'a> = (&'a TabletDescriptor, Replica);

fn missing(plan: &[TabletDescriptor]) -> Vec<Order<'_>> {
    plan.iter().flat_map(|tablet| tablet.membership.replicas().map(move |replica| (tablet, replica))).collect()
}

/// Those of the plan's replicas that their tablets still have: others have been given up and replaced meanwhile.
async fn still_members<'a>(
    office: &Office,
    table: TableId,
    plan: &'a [TabletDescriptor],
    deadline: Deadline,
) -> Result<Vec<Order<'a>>, Error> {
    let listed = office.metadata().read_table(table, deadline).await?;
    let has = |tablet: TabletId, replica: Replica| {
        let now = listed.iter().map(|entry| &entry.descriptor).find(|listed| listed.tablet == tablet);
        now.is_none_or(|now| now.membership.server_of(replica.replica) == Some(replica.server))
    };
    let all = missing(plan).into_iter();
    Ok(all.filter(|(tablet, replica)| has(tablet.tablet, *replica)).collect())
}

/// Orders replicas until each tablet has a majority; says whether all were made.
async fn make_replicas(
    office: &Office,
    schema: &TableSchema,
    plan: &[TabletDescriptor],
    deadline: Deadline,
) -> Result<bool, Error> {
    let mut left = missing(plan);
    loop {
        left = attempt_replicas(office, schema, Beginning::Seed, left).await;
        if plan.iter().all(|tablet| has_majority(tablet, &left)) {
            return Ok(left.is_empty());
        }
        if deadline.has_passed(&office.runtime().clock) {
            let message = format!("table {} is still being made: servers do not answer", schema.name);
            return Err(Error::new(Reason::Deadline, message));
        }
        tokio::time::sleep(office.runtime().rng.jitter(PAUSE)).await;
    }
}

/// Whether more than half of a tablet's replicas are not among those left to be made.
fn has_majority(tablet: &TabletDescriptor, left: &[Order<'_>]) -> bool {
    let all = tablet.membership.replicas.len();
    let unmade = left.iter().filter(|(of, _replica)| of.tablet == tablet.tablet).count();
    2 * (all - unmade) > all
}

/// One attempt at each order; returns those that failed.
async fn attempt_replicas<'a>(
    office: &Office,
    schema: &TableSchema,
    beginning: Beginning,
    orders: Vec<Order<'a>>,
) -> Vec<Order<'a>> {
    let attempts: Vec<_> = orders.into_iter().map(|order| attempt(office, schema, beginning, order).boxed()).collect();
    let failed = stream::iter(attempts).buffer_unordered(CONCURRENCY);
    failed.filter_map(|failed| async move { failed }).collect().await
}

/// The order again, if it failed.
async fn attempt<'a>(
    office: &Office,
    schema: &TableSchema,
    beginning: Beginning,
    (tablet, replica): Order<'a>,
) -> Option<Order<'a>> {
    match office.orders().create_replica(replica.server, tablet, schema, replica.replica, beginning).await {
        Ok(_outcome) => None,
        Err(refused) => {
            warn!(tablet = %tablet.tablet, server = %replica.server, error = %refused.error, "replica not made");
            Some((tablet, replica))
        }
    }
}

/// Writes the rows of METADATA; what a tablet's leader wrote since, after a split, stays.
async fn list(office: &Office, plan: &[TabletDescriptor], deadline: Deadline) -> Result<(), Error> {
    let writes: Vec<_> = plan.iter().map(|tablet| list_one(office, tablet, deadline).boxed()).collect();
    stream::iter(writes).buffer_unordered(CONCURRENCY).try_collect().await
}

async fn list_one(office: &Office, tablet: &TabletDescriptor, deadline: Deadline) -> Result<(), Error> {
    office.metadata().put_descriptor(tablet, &Note::default(), deadline).await.map(drop)
}

async fn activate(office: &Office, table: TableId) -> Result<(), Error> {
    loop {
        let Some(stored) = records::read_table(office.chubby(), table).await? else { return Ok(()) };
        if stored.value.state != TableState::Creating {
            return Ok(());
        }
        let active = TableSchema { state: TableState::Active, ..stored.value };
        let compare = Compare::Modified(paths::table(table), stored.modified);
        let write = Write::put(paths::table(table), convert::schema_to_bytes(&active));
        if let Outcome::Done(_) = office.transact(vec![compare], vec![write]).await? {
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
        let tablet = TabletDescriptor::fresh(TableId::new(5), TabletId::new(7), KeyRange::all(), &servers);
        let left = |count: u64| -> Vec<_> {
            let replica = |n| Replica { replica: ReplicaId::new(n), server: ServerId::new(n) };
            (1..=count).map(|n| (&tablet, replica(n))).collect()
        };
        assert!(has_majority(&tablet, &left(0)) && has_majority(&tablet, &left(1)));
        assert!(!has_majority(&tablet, &left(2)));
    }
}

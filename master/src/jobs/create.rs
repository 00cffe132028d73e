//! The job that creates a table. The intent goes to Chubby first; any master can repeat the steps after it.
//!
//! ```text
//!   1  one transaction: tables/<id> (creating)  names/…  plans/<id> (tablets and their groups)  groups/… (new groups)
//!   2  replicas of the new groups; a majority of each is needed (crate::jobs::create_groups)
//!   3  a `CreateTablets` entry in the log of each group
//!   4  rows of METADATA
//!   5  tables/<id> becomes active: the table serves
//!   6  plans/<id> is deleted
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_chubby::{Compare, Counter, TransactionOutcome, Write, paths};
use ebla_client::Deadline;
use ebla_client::locate::LeaderHint;
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::cluster_version::Feature;
use ebla_model::command::NewTablet;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, OperationId, ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::schema::{NewFamily, TableName, TableSchema, TableState};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_proto::convert;
use ebla_routing::Annotations;
use futures::future::{BoxFuture, try_join_all};
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tracing::info;

use super::create_groups;
use crate::active::ActiveMaster;
use crate::cluster::{ClusterSnapshot, GroupPlan, GroupProgress, TablePlan};
use crate::plan::placement;
use crate::plan::zones::Zones;
use crate::routing::send_to_group_leader;
use crate::{observation, schema_store, upgrade};

/// Concurrent writes of rows. Each waits for METADATA's group, which commits many at once.
const CONCURRENT_ROWS: usize = 64;
/// Ids that no group has, for groups whose ids are not allocated yet.
const UNALLOCATED: u64 = 1 << 62;
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
/// `AlreadyExists` when there is an active table of that name; `FailedPrecondition` when it needs a later cluster version; `Deadline` or `OutcomeUnknown` when the creation
/// continues in the background; `Unavailable` while another caller's table of that name is being created; errors of
/// Chubby.
pub(crate) async fn create_table(
    master: &ActiveMaster,
    new: NewTable,
    deadline: Deadline,
) -> Result<TableSchema, Error> {
    let name = new.name.clone();
    let Some(Intent { table, new_groups }) = record_intent(master, new).await? else {
        return Err(name_taken_error(master, &name, deadline).await);
    };
    finish(master, table, deadline).await.map_err(|error| master.defer(error))?;
    if new_groups > 0 {
        // The table did not wait for new groups without one of its tablets, nor for the last replicas of the others.
        master.request_reconcile();
    }
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

/// The creation of a table that is recorded in Chubby.
struct Intent {
    table: TableId,
    /// The number of groups that are created with it.
    new_groups: usize,
}

/// Records the intent. From here on this master or another creates the table. `None` when the name is taken.
async fn record_intent(master: &ActiveMaster, new: NewTable) -> Result<Option<Intent>, Error> {
    let chubby = master.chubby();
    if chubby.read(&paths::name(&new.name)).await?.is_some() {
        return Ok(None);
    }
    let table = TableId::new(master.allocate(Counter::Tables, 1).await?.start);
    let mut schema = TableSchema::with_families(table, new.name.clone(), new.families.iter().cloned())?;
    schema.deletion_protection = new.deletion_protection;
    Feature::check_schema(None, &schema, upgrade::active_version(master).await?)?;
    // Held until the transaction: the next placement counts these tablets and groups.
    let _permit = master.placement_permit().await?;
    let placed = place(master, table, &new).await?;
    let mut writes = vec![
        Write::put(paths::name(&new.name), table.to_string()),
        Write::put(paths::table(table), convert::schema_to_bytes(&schema)),
        Write::put(paths::plan(table), schema_store::encode_plan(&placed.plan)),
    ];
    writes.extend(placed.new_groups.iter().map(|group| {
        let plan = GroupPlan { group: group.clone(), progress: GroupProgress::Creating };
        Write::put(paths::group(group.group), schema_store::encode_group(&plan))
    }));
    match master.commit_intent(vec![Compare::Absent(paths::name(&new.name))], writes).await? {
        TransactionOutcome::Committed(_) => {
            let (tablets, new_groups) = (placed.plan.tablets.len(), placed.new_groups.len());
            let detail = format!("{}, {tablets} tablets", new.name);
            master.record_event(&NewClusterEvent::new(ClusterEventKind::TableCreated, detail).of_table(table));
            info!(%table, name = %new.name, tablets, new_groups, "creating table");
            Ok(Some(Intent { table, new_groups }))
        }
        TransactionOutcome::Conflict => Ok(None),
    }
}

/// The first tablets of a table with their ids and groups.
struct Placement {
    plan: TablePlan,
    /// The groups among them that must be created.
    new_groups: Vec<GroupDescriptor>,
}

/// Chooses groups for the tablets of a new table, and new groups if there are too few.
///
/// # Errors
/// `ResourceExhausted` when the table has more tablets than the groups and their servers have room for; `Unavailable` when no server responds.
async fn place(master: &ActiveMaster, table: TableId, new: &NewTable) -> Result<Placement, Error> {
    let chubby = master.chubby();
    let snapshot = ClusterSnapshot {
        servers: observation::observe_servers(master).await?,
        plans: schema_store::list_plans(chubby).await?,
        new_groups: schema_store::list_groups(chubby).await?,
        drained: schema_store::list_drained(chubby).await?,
        ..Default::default()
    };
    let servers = placement::server_loads(&snapshot);
    if servers.is_empty() {
        return Err(Error::new(Reason::Unavailable, "no tablet server responds"));
    }
    let ranges = ranges(&new.splits);
    let missing = placement::missing_groups(servers.len(), placement::group_loads(&snapshot, &[]).len());
    let assigned = placement::assign(&servers, &Zones::of(&snapshot), missing, master.replicas());
    // The numbers of the new groups are allocated only when the table has room.
    let groups = placement::group_loads(&snapshot, &new_groups(&assigned, UNALLOCATED));
    if placement::room(&groups) < ranges.len() as u64 {
        return Err(placement::refusal(&snapshot, &groups, &new.name.to_string(), ranges.len(), assigned.len()));
    }
    let first = match assigned.len() {
        0 => 0,
        count => master.allocate(Counter::Groups, count as u64).await?.start,
    };
    let new_groups = new_groups(&assigned, first);
    let groups = placement::group_loads(&snapshot, &new_groups);
    let chosen = placement::distribute(&groups, ranges.len())
        .ok_or_else(|| placement::refusal(&snapshot, &groups, &new.name.to_string(), ranges.len(), assigned.len()))?;
    let ids = master.allocate(Counter::Tablets, ranges.len() as u64).await?.map(TabletId::new);
    let operation = OperationId::new(master.allocate(Counter::Operations, 1).await?.start);
    let placed = ids.zip(ranges).zip(&chosen);
    let tablets = placed
        .filter_map(|((tablet, range), group)| Some(groups.get(group)?.group.new_tablet(table, tablet, range)))
        .collect();
    Ok(Placement { plan: TablePlan { tablets, operation }, new_groups })
}

/// New groups on these servers, with ids from `first` on.
fn new_groups(assigned: &[Vec<ServerId>], first: u64) -> Vec<GroupDescriptor> {
    let ids = (first..).map(GroupId::new);
    ids.zip(assigned).map(|(id, servers)| GroupDescriptor::initial(id, servers)).collect()
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
/// `Deadline` when some group has no majority of replicas yet, or no leader; errors of Chubby or METADATA.
pub(crate) async fn finish(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<(), Error> {
    let chubby = master.chubby();
    let Some(plan) = schema_store::read_plan(chubby, table).await? else { return Ok(()) };
    let Some(stored) = schema_store::read_table(chubby, table).await? else { return Ok(()) };
    match stored.value.state {
        TableState::Creating => {
            let schema = TableSchema { state: TableState::Active, ..stored.value };
            let leaders = create_tablets(master, &schema, &plan, deadline).await?;
            write_rows(master, &plan.tablets, &leaders, deadline).await?;
            activate(master, table).await?;
        }
        // Only the plan is left.
        TableState::Active => {}
        TableState::Deleting => return Ok(()),
    }
    // Needs no comparison with the table's revision: a plan is never written again.
    master.transact(Vec::new(), vec![Write::delete(paths::plan(table))]).await.map(drop)
}

/// Creates the tablets in their groups, all groups at once; new groups first get a majority of their replicas.
/// Returns the leaders that are known.
async fn create_tablets(
    master: &ActiveMaster,
    schema: &TableSchema,
    plan: &TablePlan,
    deadline: Deadline,
) -> Result<BTreeMap<GroupId, LeaderHint>, Error> {
    let operation = plan.operation;
    let in_group = |(id, (group, tablets)): (GroupId, (GroupDescriptor, Vec<NewTablet>))| {
        let schema = schema.clone();
        async move {
            create_groups::finish(master, id, deadline).await?;
            let call = |master: ActiveMaster, server, group: GroupDescriptor| {
                let (schema, tablets) = (schema.clone(), tablets.clone());
                Box::pin(async move {
                    master.servers().create_tablets(server, group.group, operation, &schema, &tablets).await
                }) as BoxFuture<'static, _>
            };
            let leader: Option<LeaderHint> = send_to_group_leader(master, &group, deadline, call).await?;
            Ok::<_, Error>(leader.map(|leader| (id, leader)))
        }
        .boxed()
    };
    let leaders = try_join_all(by_group(&plan.tablets).into_iter().map(in_group)).await?;
    Ok(leaders.into_iter().flatten().collect())
}

/// The new tablets of each group.
fn by_group(tablets: &[TabletDescriptor]) -> BTreeMap<GroupId, (GroupDescriptor, Vec<NewTablet>)> {
    let mut groups: BTreeMap<GroupId, (GroupDescriptor, Vec<NewTablet>)> = BTreeMap::new();
    for one in tablets {
        let (_group, new) = groups.entry(one.group).or_insert_with(|| (one.group_descriptor(), Vec::new()));
        new.push(NewTablet { tablet: one.tablet, range: one.range.clone() });
    }
    groups
}

/// Writes the rows of METADATA. A newer row of a tablet's leader, after a split, stays. `leaders`: those of the groups,
/// as far as they are known; a row of another group keeps its leader.
///
/// # Errors
/// Those of METADATA.
pub(crate) async fn write_rows(
    master: &ActiveMaster,
    tablets: &[TabletDescriptor],
    leaders: &BTreeMap<GroupId, LeaderHint>,
    deadline: Deadline,
) -> Result<(), Error> {
    let write = |tablet: &'_ TabletDescriptor| {
        let (tablet, leader) = (tablet.clone(), leaders.get(&tablet.group).copied());
        async move { write_row(master, &tablet, leader, deadline).await }.boxed()
    };
    let writes: Vec<_> = tablets.iter().map(write).collect();
    stream::iter(writes).buffer_unordered(CONCURRENT_ROWS).try_collect().await
}

async fn write_row(
    master: &ActiveMaster,
    tablet: &TabletDescriptor,
    leader: Option<LeaderHint>,
    deadline: Deadline,
) -> Result<(), Error> {
    let created = NewTabletEvent {
        kind: TabletEventKind::Created,
        cause: TabletEventCause::Operator,
        detail: format!("in group {}", tablet.group),
    };
    let annotations = Annotations { leader, events: vec![created], server: None };
    master.metadata().put_descriptor(tablet, &annotations, deadline).await.map(drop)
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
    use super::*;

    #[test]
    fn splits_cover_every_key_once() {
        let splits = [RowKey::new("g"), RowKey::new("p")];
        let shown: Vec<_> = ranges(&splits).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["[, g)", "[g, p)", "[p, -)"]);
        assert_eq!(ranges(&[]), [KeyRange::all()]);
    }

    #[test]
    fn each_group_gets_its_tablets() {
        let groups = [2, 3].map(|id| GroupDescriptor::initial(GroupId::new(id), &[ServerId::new(1)]));
        let ranges = ranges(&[RowKey::new("g"), RowKey::new("p")]);
        let placed = (7..).map(TabletId::new).zip(ranges).zip(groups.iter().cycle());
        let tablets: Vec<_> =
            placed.map(|((tablet, range), group)| group.new_tablet(TableId::new(5), tablet, range)).collect();
        let shown: Vec<(u64, Vec<u64>)> = by_group(&tablets)
            .into_iter()
            .map(|(group, (_descriptor, tablets))| (group.get(), tablets.iter().map(|one| one.tablet.get()).collect()))
            .collect();
        assert_eq!(shown, [(2, vec![7, 9]), (3, vec![8])]);
    }
}

//! The recovery of Chubby: what must be written so that its files have again what the tablet servers know. Pure.
//!
//! ```text
//!   known to servers                                      in Chubby               step
//!   tablets of a table, in the latest replica of a group  no such table           its schema and its name are written
//!                                                         an older schema         the later one is written
//!   a group has dropped a table                           the table               its deletion is started again
//!   an id                                                 a counter at or below   the counter is raised
//!   the root tablet                                       an older one, or none   it is written
//!   policies of an instance or of a table, a view         none                    they are written, before the table
//!   the cluster, and the epochs of masters                nothing, or lower ones  the cluster's record is written
//!   -                                                     unfinished changes      removed: they may have been finished since
//! ```
//!
//! The latest replica of a group is the one that has applied the most of its log. It is known to have every committed entry only
//! if a majority of the voters has answered, so a recovery without one is refused.
//!
//! Policies and authorized views are known from the servers' copies of Chubby's files. Servers follow a Chubby that was restored from an older backup, so what was changed
//! after the backup is known only if Chubby was emptied. A view that only some of the servers have, of those that know its table, was deleted
//! or created shortly before: it is written if more have it than not, so that a stale copy does not give access again.
//!
//! What tablet servers do not know cannot be recovered: instances, app profiles, labels, results of operations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;
use ebla_chubby::{Counter, Revision, paths};
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::{Error, Reason};
use ebla_model::highest_ids::HighestIds;
use ebla_model::id::{ClusterId, GroupId, LogId, MasterEpoch, OperationId, ReplicaId, ServerId, TableId, TabletId};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::schema::{TABLE_ID_BYTES_MAX, TableName, TableSchema, TableState};

use super::{behind, counters};
use crate::cluster::ClusterSnapshot;

/// What one tablet server knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvidence {
    /// Its cluster; `None`: it has never had one.
    pub cluster: Option<ClusterId>,
    /// The highest master epoch that it has accepted.
    pub epoch: MasterEpoch,
    /// The highest ids that it knows.
    pub highest: HighestIds,
    /// Its running replicas, by group.
    pub groups: BTreeMap<GroupId, GroupEvidence>,
    /// The schemas in its copy of Chubby's files.
    pub schemas: Vec<TableSchema>,
    /// The tablet servers that were registered by its copy of Chubby's files.
    pub registered: BTreeSet<ServerId>,
    /// The cluster version that was active by that copy.
    pub active_version: ClusterVersion,
    /// The files of policies and of authorized views in that copy, by path.
    pub access: BTreeMap<String, Bytes>,
}

/// A group as one replica has applied it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupEvidence {
    /// The group.
    pub group: GroupDescriptor,
    /// The replica.
    pub replica: ReplicaId,
    /// The last entry that it has applied.
    pub applied: LogId,
    /// The group's tablets.
    pub tablets: Vec<TabletDescriptor>,
    /// The schemas of their tables.
    pub schemas: Vec<TableSchema>,
    /// The tables that the group has dropped.
    pub dropped: BTreeSet<TableId>,
}

/// What Chubby has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChubbyContent {
    /// The cluster and its epoch base.
    pub cluster: Option<(ClusterId, u64)>,
    /// The create revision of the lock of the master that recovers.
    pub lock: Revision,
    /// Its files; those of servers and of METADATA are empty.
    pub files: ClusterSnapshot,
    /// The files of table names, by path.
    pub names: BTreeMap<String, TableId>,
    /// The paths of the files of policies and of authorized views.
    pub access: BTreeSet<String>,
}

/// One write. They are carried out in their order; each may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Raises a counter.
    RaiseCounter(Counter, u64),
    /// Writes a file of policies or of an authorized view: the path and the content.
    WriteAccess(String, Bytes),
    /// Writes a schema that is missing or older.
    WriteTable(TableSchema),
    /// Writes the file of a table's name.
    WriteName(TableName, TableId),
    /// Starts the deletion of a table again.
    DeleteTable(TableSchema),
    /// Writes the root tablet.
    WriteRoot(TabletDescriptor),
    /// Removes the plan of a group that may have been created since.
    RemoveGroupPlan(GroupId),
    /// Removes an operation that may have been applied since.
    RemoveOperation(OperationId),
    /// Writes the record of the cluster, with this epoch base and at least this active version.
    WriteCluster(ClusterId, u64, ClusterVersion),
    /// Allows changes again.
    AllowChanges,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RaiseCounter(counter, next) => write!(f, "raise the counter {} to {next}", counter.name()),
            Self::WriteAccess(path, _content) if paths::parse_view(path).is_some() => {
                write!(f, "write {}", described(path))
            }
            Self::WriteAccess(path, _content) => write!(f, "write the policies of {}", described(path)),
            Self::WriteTable(schema) => {
                write!(f, "write table {} ({}), schema version {}", schema.table, schema.name, schema.version)
            }
            Self::WriteName(name, table) => write!(f, "write the name {name} of table {table}"),
            Self::DeleteTable(schema) => write!(f, "delete table {} ({}) again", schema.table, schema.name),
            Self::WriteRoot(root) => write!(f, "write the root tablet, generation {}", root.generation),
            Self::RemoveGroupPlan(group) => write!(f, "remove the plan of group {group}, which exists"),
            Self::RemoveOperation(operation) => {
                write!(f, "remove operation {operation}, which may have been applied since")
            }
            Self::WriteCluster(cluster, 0, _version) => write!(f, "write the record of cluster {cluster}"),
            Self::WriteCluster(cluster, base, _version) => {
                write!(f, "write the record of cluster {cluster}, with master epochs above {base}")
            }
            Self::AllowChanges => f.write_str("allow changes again"),
        }
    }
}

/// A recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The writes, in order; empty: Chubby lacks nothing.
    pub steps: Vec<Step>,
    /// What an operator must decide, in words.
    pub findings: Vec<String>,
}

/// Determines a recovery. `evidence`: of the servers that answered. `without`: servers that are lost permanently.
///
/// # Errors
/// `FailedPrecondition` when the evidence may be incomplete, or is that of another cluster.
pub fn recovery(
    chubby: &ChubbyContent,
    evidence: &BTreeMap<ServerId, ServerEvidence>,
    without: &BTreeSet<ServerId>,
) -> Result<Recovery, Error> {
    let cluster = cluster_of(chubby, evidence)?;
    check_no_new_server(evidence)?;
    check_complete(evidence, without)?;
    let latest = latest_groups(evidence);
    let is_behind = is_behind(chubby, evidence);
    let mut recovery = Recovery::default();
    raise_counters(chubby, evidence, &mut recovery);
    recover_tables(chubby, evidence, &latest, &mut recovery);
    if is_behind {
        recover_access(chubby, evidence, &mut recovery);
    }
    recovery.steps.extend(root_step(chubby, &latest));
    if is_behind || !recovery.steps.is_empty() {
        remove_unfinished(chubby, &latest, &mut recovery);
        recovery.findings.push(
            "instances, app profiles and labels that were created or changed since are not known to the tablet servers: check them"
                .to_owned(),
        );
    }
    recovery.steps.extend(cluster_step(chubby, evidence, cluster));
    recovery.steps.extend(chubby.files.behind.is_some().then_some(Step::AllowChanges));
    Ok(recovery)
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(Reason::FailedPrecondition, message)
}

/// The only cluster that the servers and Chubby belong to.
fn cluster_of(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>) -> Result<ClusterId, Error> {
    let known: BTreeSet<ClusterId> = evidence.values().filter_map(|server| server.cluster).collect();
    match (known.iter().copied().collect::<Vec<_>>().as_slice(), chubby.cluster) {
        ([], _) => Err(refused("no tablet server of a cluster has answered; give the address of one with --server")),
        ([one], None) => Ok(*one),
        ([one], Some((cluster, _base))) if *one == cluster => Ok(cluster),
        ([one], Some((cluster, _base))) => Err(refused(format!(
            "the tablet servers belong to cluster {one}, and the lock service to cluster {cluster}: start the master and the \
             servers with the etcd of their own cluster"
        ))),
        (several, _) => {
            let several: Vec<String> = several.iter().map(ClusterId::to_string).collect();
            Err(refused(format!("the tablet servers belong to different clusters: {}", several.join(", "))))
        }
    }
}

/// Checks that no server has its id from an empty Chubby: others may have the same one.
fn check_no_new_server(evidence: &BTreeMap<ServerId, ServerEvidence>) -> Result<(), Error> {
    let new = evidence.iter().filter(|(_id, server)| server.cluster.is_none());
    let new: Vec<String> = new.map(|(id, _server)| id.to_string()).collect();
    if new.is_empty() {
        return Ok(());
    }
    Err(refused(format!(
        "tablet servers without a cluster run with these ids, which other servers may have: {}; stop them, and start them again after \
         the recovery",
        new.join(", ")
    )))
}

/// Checks that every server that may know something has answered, and a majority of each group.
fn check_complete(evidence: &BTreeMap<ServerId, ServerEvidence>, without: &BTreeSet<ServerId>) -> Result<(), Error> {
    let groups = || evidence.values().flat_map(|server| server.groups.values());
    let members = groups().flat_map(|group| group.group.membership.replicas()).map(|replica| replica.server);
    let registered = evidence.values().flat_map(|server| &server.registered).copied();
    let expected: BTreeSet<ServerId> = members.chain(registered).collect();
    let missing = expected.into_iter().filter(|server| !evidence.contains_key(server) && !without.contains(server));
    let missing: Vec<String> = missing.map(|server| server.to_string()).collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(refused(format!(
            "these tablet servers have not answered: {missing}; start them, give their addresses with --server, or, if they are \
             lost permanently, name them with --without {missing}"
        )));
    }
    let answered: BTreeSet<(GroupId, ReplicaId)> = groups().map(|group| (group.group.group, group.replica)).collect();
    let newest = groups().fold(BTreeMap::<GroupId, &GroupDescriptor>::new(), |mut newest, group| {
        let known = newest.entry(group.group.group).or_insert(&group.group);
        if known.membership_log_id < group.group.membership_log_id {
            *known = &group.group;
        }
        newest
    });
    let has_majority = |group: &GroupDescriptor| {
        group.membership.voters.iter().all(|voters| {
            let present = voters.iter().filter(|voter| answered.contains(&(group.group, **voter)));
            present.count() * 2 > voters.len()
        })
    };
    match newest.values().find(|group| !has_majority(group)) {
        Some(group) => Err(refused(format!(
            "no majority of the replicas of group {} runs: what it has committed is not known; start its servers",
            group.group
        ))),
        None => Ok(()),
    }
}

/// The replica of each group that has applied the most.
fn latest_groups(evidence: &BTreeMap<ServerId, ServerEvidence>) -> BTreeMap<GroupId, &GroupEvidence> {
    let mut latest: BTreeMap<GroupId, &GroupEvidence> = BTreeMap::new();
    for group in evidence.values().flat_map(|server| server.groups.values()) {
        let known = latest.entry(group.group.group).or_insert(group);
        if known.applied < group.applied {
            *known = group;
        }
    }
    latest
}

/// The master epoch by Chubby, and the highest that a server has accepted.
fn epochs(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>) -> (MasterEpoch, MasterEpoch) {
    let base = chubby.cluster.map_or(0, |(_cluster, base)| base);
    let accepted = evidence.values().map(|server| server.epoch).max().unwrap_or_default();
    (MasterEpoch::new(base.saturating_add(chubby.lock.get())), accepted)
}

fn highest_ids(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>) -> HighestIds {
    let mut highest = chubby.files.highest_ids();
    for (id, server) in evidence {
        highest.raise(&server.highest);
        highest.server = highest.server.max(*id);
        for group in server.groups.values() {
            highest.add_group(&group.group);
            group.tablets.iter().for_each(|tablet| highest.add_tablet(tablet));
        }
        for schema in &server.schemas {
            highest.table = highest.table.max(schema.table);
        }
    }
    highest
}

/// Whether Chubby lacks changes, as was recorded or as can be seen.
fn is_behind(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>) -> bool {
    let (current, accepted) = epochs(chubby, evidence);
    chubby.cluster.is_none()
        || chubby.files.behind.is_some()
        || accepted > current
        || !behind::reasons(&chubby.files).is_empty()
}

fn raise_counters(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>, recovery: &mut Recovery) {
    let none = BTreeMap::new();
    let known = chubby.files.counters.as_ref().unwrap_or(&none);
    let low = counters::lower_than(known, &highest_ids(chubby, evidence));
    recovery.steps.extend(low.into_iter().map(|(counter, next)| Step::RaiseCounter(counter, next)));
}

fn recover_tables(
    chubby: &ChubbyContent,
    evidence: &BTreeMap<ServerId, ServerEvidence>,
    latest: &BTreeMap<GroupId, &GroupEvidence>,
    recovery: &mut Recovery,
) {
    let dropped: BTreeSet<TableId> = latest.values().flat_map(|group| &group.dropped).copied().collect();
    let tablets = latest.values().flat_map(|group| &group.tablets).map(|tablet| tablet.table);
    let with_tablets: BTreeSet<TableId> = tablets.filter(|table| *table != TableId::METADATA).collect();
    let schemas = latest_schemas(evidence, latest);
    let known: BTreeSet<TableId> = with_tablets.iter().chain(chubby.files.tables.keys()).copied().collect();
    let mut names = Names::of(chubby);
    // The newer of two tables keeps the name that both have had.
    for table in known.into_iter().rev() {
        let present = chubby.files.tables.get(&table);
        let is_deleted = chubby.files.deleted.contains_key(&table)
            || present.is_some_and(|schema| schema.state == TableState::Deleting);
        if is_deleted {
            continue;
        }
        let newest = [present, schemas.get(&table).copied()].into_iter().flatten().max_by_key(|schema| schema.version);
        let Some(newest) = newest else {
            recovery.findings.push(format!("table {table} has tablets, and no server knows its schema"));
            continue;
        };
        if dropped.contains(&table) {
            recovery.steps.push(Step::DeleteTable(newest.clone()));
        } else if with_tablets.contains(&table) {
            recover_table(present, newest, &mut names, recovery);
        } else if newest.state == TableState::Active {
            recovery.findings.push(format!(
                "table {table} ({}) has no tablet on any server: its rows are lost, unless a server with a copy is started; to \
                 give it up, delete the table",
                newest.name
            ));
        }
    }
}

fn recover_table(present: Option<&TableSchema>, newest: &TableSchema, names: &mut Names, recovery: &mut Recovery) {
    let name = names.take(newest);
    if name != newest.name {
        recovery.findings.push(format!(
            "table {} was {}, which is the name of another table now: it becomes {name}",
            newest.table, newest.name
        ));
    }
    // The groups have a state of their own; a table with tablets that Chubby lacks was active.
    let state = present.map_or(TableState::Active, |schema| schema.state);
    let schema = TableSchema { name: name.clone(), state, ..newest.clone() };
    if present != Some(&schema) {
        recovery.steps.push(Step::WriteTable(schema));
    }
    if !names.has_file(&name, newest.table) {
        recovery.steps.push(Step::WriteName(name, newest.table));
    }
}

/// The policies and authorized views that Chubby lacks and servers have copies of. They are written first: a table must not be without its policies for a moment.
fn recover_access(chubby: &ChubbyContent, evidence: &BTreeMap<ServerId, ServerEvidence>, recovery: &mut Recovery) {
    let mut copies: BTreeMap<&String, BTreeMap<&Bytes, usize>> = BTreeMap::new();
    for (path, content) in evidence.values().flat_map(|server| &server.access) {
        *copies.entry(path).or_default().entry(content).or_default() += 1;
    }
    if copies.is_empty() && chubby.access.is_empty() {
        return;
    }
    let (mut written, mut deleted) = (BTreeMap::new(), BTreeSet::new());
    for step in &recovery.steps {
        match step {
            Step::WriteTable(schema) => drop(written.insert(schema.table, &schema.name)),
            Step::DeleteTable(schema) => drop(deleted.insert(schema.table)),
            _ => {}
        }
    }
    let present = |table: &TableId| chubby.files.tables.contains_key(table);
    let exists = |table: &TableId| (present(table) || written.contains_key(table)) && !deleted.contains(table);
    let mut steps = Vec::new();
    for (path, contents) in &copies {
        let of_table = paths::parse_table_access(path).or_else(|| paths::parse_view(path).map(|(table, _view)| table));
        let is_needed = match of_table {
            Some(table) => exists(&table),
            None => path.starts_with(paths::INSTANCE_ACCESS),
        };
        if !is_needed || chubby.access.contains(*path) {
            continue;
        }
        // A server that was cut off from Chubby may have an older copy than the others: one before the view was deleted, or before it was created.
        let with = contents.values().sum::<usize>();
        let without = of_table.map_or(0, |table| servers_without(evidence, table, path));
        let is_view = paths::parse_view(path).is_some();
        if is_view && without >= with {
            recovery.findings.push(format!(
                "{} is not written: {with} servers know it and {without} know its table without it, so it was probably deleted; if \
                 it should exist, create it again with `ebla view create`",
                described(path)
            ));
            continue;
        }
        // Policies are written even so: a table that lost them is open to more callers.
        let Some((content, _servers)) = contents.iter().max_by_key(|(_content, servers)| **servers) else {
            continue;
        };
        let (what, check) = if is_view { ("copies", "view") } else { ("policies", "iam") };
        if contents.len() > 1 {
            recovery.findings.push(format!(
                "the servers have different {what} of {}: those that most servers have are written; check them with `ebla {check} get`",
                described(path)
            ));
        }
        if without > 0 {
            recovery.findings.push(format!(
                "{without} of the servers that know the table have no {what} of {}: those of {with} servers are written; check them \
                 with `ebla {check} get`",
                described(path)
            ));
        }
        steps.push(Step::WriteAccess((*path).clone(), (*content).clone()));
    }
    for (table, name) in written.into_iter().filter(|(table, _name)| !present(table)) {
        let path = paths::table_access(table);
        if !copies.contains_key(&path) && !chubby.access.contains(&path) {
            recovery.findings.push(format!(
                "no server knows policies of table {table} ({name}), which is written again: if it had some, set them again with \
                 `ebla iam set`; until then its families have no lists"
            ));
        }
    }
    if chubby.cluster.is_some() {
        recovery.findings.push(
            "policies and authorized views that were changed since the backup of the lock service are not known to the tablet servers: \
             check them with `ebla iam get` and `ebla view list`"
                .to_owned(),
        );
    }
    recovery.steps.splice(0..0, steps);
}

/// How many servers have the schema of a table in their copy of Chubby's files, and no such file.
fn servers_without(evidence: &BTreeMap<ServerId, ServerEvidence>, table: TableId, path: &str) -> usize {
    let knows = |server: &&ServerEvidence| server.schemas.iter().any(|schema| schema.table == table);
    evidence.values().filter(knows).filter(|server| !server.access.contains_key(path)).count()
}

/// What the policies of a file are for; the view, if the file is one.
fn described(path: &str) -> String {
    if let Some((table, view)) = paths::parse_view(path) {
        return format!("authorized view {view} of table {table}");
    }
    match (paths::parse_table_access(path), path.strip_prefix(paths::INSTANCE_ACCESS)) {
        (Some(table), _) => format!("table {table}"),
        (None, Some(instance)) => format!("instance {instance}"),
        (None, None) => path.to_owned(),
    }
}

/// The latest schema of each table that any server knows.
fn latest_schemas<'a>(
    evidence: &'a BTreeMap<ServerId, ServerEvidence>,
    latest: &BTreeMap<GroupId, &'a GroupEvidence>,
) -> BTreeMap<TableId, &'a TableSchema> {
    let copies = evidence.values().flat_map(|server| &server.schemas);
    let mut schemas: BTreeMap<TableId, &TableSchema> = BTreeMap::new();
    for schema in latest.values().flat_map(|group| &group.schemas).chain(copies) {
        let known = schemas.entry(schema.table).or_insert(schema);
        if known.version < schema.version {
            *known = schema;
        }
    }
    schemas
}

/// The names of tables: each belongs to one.
struct Names {
    /// Chubby's files.
    files: BTreeMap<String, TableId>,
    /// The tables of the names, by path.
    taken: BTreeMap<String, TableId>,
}

impl Names {
    fn of(chubby: &ChubbyContent) -> Self {
        let exists = |table: &TableId| chubby.files.tables.contains_key(table);
        let taken = chubby.names.iter().filter(|(_path, table)| exists(table));
        Self { files: chubby.names.clone(), taken: taken.map(|(path, table)| (path.clone(), *table)).collect() }
    }

    fn has_file(&self, name: &TableName, table: TableId) -> bool {
        self.files.get(&paths::name(name)) == Some(&table)
    }

    /// Takes the name of the table, or, if another table has it, one with the table's number.
    fn take(&mut self, schema: &TableSchema) -> TableName {
        let owner = *self.taken.entry(paths::name(&schema.name)).or_insert(schema.table);
        if owner == schema.table {
            return schema.name.clone();
        }
        let suffix = format!("-recovered-{}", schema.table);
        let kept = TABLE_ID_BYTES_MAX.saturating_sub(suffix.len());
        let short: String = schema.name.table().chars().take(kept).collect();
        let name = TableName::from_parts(schema.name.project(), schema.name.instance(), &format!("{short}{suffix}"));
        // A valid name stays valid with these characters.
        let name = name.unwrap_or_else(|_invalid| schema.name.clone());
        self.taken.insert(paths::name(&name), schema.table);
        name
    }
}

fn root_step(chubby: &ChubbyContent, latest: &BTreeMap<GroupId, &GroupEvidence>) -> Option<Step> {
    let tablets = latest.get(&GroupId::METADATA).into_iter().flat_map(|group| &group.tablets);
    let root = tablets.into_iter().find(|tablet| tablet.tablet == TabletId::ROOT)?;
    let is_old = chubby.files.root.as_ref().is_none_or(|known| known.fence() < root.fence());
    is_old.then(|| Step::WriteRoot(root.clone()))
}

/// Intents that Chubby has again: to carry them out a second time could delete rows, or create replicas of a group that has
/// others by now. The plan of a table stays: each group creates its tablets at most once.
fn remove_unfinished(chubby: &ChubbyContent, latest: &BTreeMap<GroupId, &GroupEvidence>, recovery: &mut Recovery) {
    let files = &chubby.files;
    let groups = files.new_groups.keys().filter(|group| latest.contains_key(group));
    recovery.steps.extend(groups.map(|group| Step::RemoveGroupPlan(*group)));
    for (id, operation) in &files.operations {
        if files.tables.get(&operation.table).is_some_and(|schema| schema.state == TableState::Deleting) {
            continue;
        }
        recovery.steps.push(Step::RemoveOperation(*id));
        recovery.findings.push(format!(
            "operation {id}, which deletes rows of table {}, was not finished when the backup was made: if its rows are still \
             there, repeat it",
            operation.table
        ));
    }
}

fn cluster_step(
    chubby: &ChubbyContent,
    evidence: &BTreeMap<ServerId, ServerEvidence>,
    cluster: ClusterId,
) -> Option<Step> {
    let (current, accepted) = epochs(chubby, evidence);
    let is_low = accepted > current;
    let base = if is_low { accepted.get() } else { chubby.cluster.map_or(0, |(_cluster, base)| base) };
    // What was written under this version is still there.
    let active = evidence.values().map(|known| known.active_version).max().unwrap_or_default();
    (chubby.cluster.is_none() || is_low).then_some(Step::WriteCluster(cluster, base, active))
}

#[cfg(test)]
mod tests;

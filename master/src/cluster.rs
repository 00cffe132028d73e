//! The snapshot of the cluster on which the master's decisions are based: Chubby's files, METADATA, and the servers'
//! reports.
//!
//! Pure values; `observation` collects them. The servers' reports are authoritative for groups and tablets: their
//! descriptors are in the state of the group. METADATA's rows are copies that may be stale. The state of a server that
//! does not respond is unknown, not empty.

use std::collections::{BTreeMap, BTreeSet};

use ebla_chubby::Counter;
use ebla_model::call_times::CallTimes;
use ebla_model::capacity::{Resources, WriteState};
use ebla_model::clock_offset::ClockState;
use ebla_model::highest_ids::HighestIds;
use ebla_model::id::{
    GroupId, Incarnation, LogId, LogIndex, OperationId, ReplicaId, SchemaVersion, ServerId, TableId, TabletId, Term,
};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::memory_groups::MemoryGroups;
use ebla_model::metadata::{GroupDescriptor, Membership, TabletDescriptor, obsolete_row_keys};
use ebla_model::scan_cache::ScanCacheState;
use ebla_model::schema::{TableName, TableSchema};
use ebla_model::scrub::ScrubState;
use ebla_model::sync_delay::SyncState;
use ebla_model::tablet_load::TabletLoad;
use ebla_model::time::Micros;
use ebla_model::zone::Zone;

/// The state of the cluster as observed at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSnapshot {
    /// The registered servers, and unregistered ones that still respond.
    pub servers: BTreeMap<ServerId, Server>,
    /// The tables in Chubby, in any state. Read after the servers' reports.
    pub tables: BTreeMap<TableId, TableSchema>,
    /// The tables that were deleted and of which a replica may still have tablets. A table that is reported and neither
    /// here nor in `tables` is unknown: perhaps Chubby was restored from an older backup.
    pub deleted: BTreeMap<TableId, DeletedTable>,
    /// New groups whose replicas may not all be created yet.
    pub new_groups: BTreeMap<GroupId, GroupPlan>,
    /// First tablets of tables that may not be created yet.
    pub plans: BTreeMap<TableId, TablePlan>,
    /// Admin operations that are not applied everywhere yet.
    pub operations: BTreeMap<OperationId, Operation>,
    /// METADATA, by row key.
    pub metadata: BTreeMap<RowKey, TabletDescriptor>,
    /// The keys of rows of METADATA that cannot be decoded, or whose descriptor belongs to another key.
    pub damaged_rows: BTreeSet<RowKey>,
    /// The root tablet as Chubby's file describes it.
    pub root: Option<TabletDescriptor>,
    /// The servers that are drained, as Chubby's files record them: their replicas move to other servers, and they get no new ones.
    pub drained: BTreeSet<ServerId>,
    /// What shows that Chubby lacks changes, as its file records it; `None`: there is no such file.
    pub behind: Option<Vec<String>>,
    /// The next id of each counter. Read after the reports: an id that is reported was given before. `None`: not known.
    pub counters: Option<BTreeMap<Counter, u64>>,
}

/// The record of a table's deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedTable {
    /// The name that the table had.
    pub name: TableName,
    /// The groups that have dropped its tablets, each with a position of its log at which that was applied.
    pub groups: BTreeMap<GroupId, LogId>,
}

/// A new group whose first replicas may not all be created yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// The group with its first replicas.
    pub group: GroupDescriptor,
    /// Whether a majority of its replicas was created.
    pub progress: GroupProgress,
}

/// How far the creation of a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupProgress {
    /// Replicas are created from the common seed until there is a majority.
    Creating,
    /// A majority exists; the missing ones are created empty and filled by the leader.
    HasMajority,
}

/// The first tablets of a new table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePlan {
    /// The tablets, each with its group.
    pub tablets: Vec<TabletDescriptor>,
    /// The operation that creates them, applied once by each group.
    pub operation: OperationId,
}

/// A tablet server that is registered or responds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where it listens, `host:port`.
    pub address: String,
    /// Its process incarnation.
    pub incarnation: Incarnation,
    /// The release that it runs.
    pub release: String,
    /// The zone that it was started with; `None` also for one that is not registered.
    pub zone: Option<Zone>,
    /// Whether it is registered in Chubby.
    pub registration: Registration,
    /// Its report; `None` when it did not respond.
    pub report: Option<ServerReport>,
    /// It responds, and refuses requests of this master: it has accepted those of a later epoch.
    pub later_epoch: bool,
}

#[cfg(test)]
impl Server {
    /// A registered server; `None`: one that does not respond.
    pub(crate) fn registered(report: Option<ServerReport>) -> Self {
        Self {
            address: String::new(),
            incarnation: Incarnation::new(1),
            release: String::new(),
            zone: None,
            registration: Registration::Registered,
            report,
            later_epoch: false,
        }
    }
}

/// Whether a server is registered in Chubby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// It is.
    Registered,
    /// Its lease has expired, but it responds: it serves its replicas, and gets no new ones.
    Unregistered,
}

/// What a server reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// Its running replicas.
    pub replicas: Vec<ReplicaReport>,
    /// Its damaged replicas: they neither vote nor serve, and report nothing else.
    pub damaged: BTreeSet<(GroupId, ReplicaId)>,
    /// Its replicas that are not running, because they are starting or could not be started.
    pub idle: BTreeSet<(GroupId, ReplicaId)>,
    /// The number of folders that belong to no replica and that it has set aside.
    pub set_aside: u64,
    /// The size of its commit log.
    pub log_bytes: u64,
    /// What it has of its resources.
    pub resources: Resources,
    /// Whether it refuses writes of clients for lack of disk space.
    pub writes: WriteState,
    /// The highest ids that it knows.
    pub highest: HighestIds,
    /// Its clock, in comparison with others.
    pub clock: ClockState,
    /// Its search for damaged blocks.
    pub scrub: ScrubState,
    /// The syncs of its commit log.
    pub sync: SyncState,
    /// Its scan cache.
    pub scan_cache: ScanCacheState,
    /// Its locality groups in memory.
    pub memory_groups: MemoryGroups,
    /// Its calls of the last seconds; `None`: not known.
    pub calls: Option<CallTimes>,
    /// How far its running replicas know their logs to be committed, and their snapshots reach. Nothing is decided by it.
    pub log_positions: BTreeMap<(GroupId, ReplicaId), LogPositions>,
    /// The size above which it splits a tablet; 0: not known.
    pub split_bytes: u64,
    /// The same for tablets of METADATA; 0: not known, as from a release that cannot merge them.
    pub metadata_split_bytes: u64,
}

/// Positions in the log of a replica; `None`: there is none, or it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPositions {
    /// The last entry that it knows to be committed.
    pub committed: Option<LogId>,
    /// The last entry in its last snapshot.
    pub snapshot: Option<LogId>,
}

/// What a server reports about one replica of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReport {
    /// The group as this replica has applied it; without members while the replica is still empty.
    pub group: GroupDescriptor,
    /// The replica's id.
    pub replica: ReplicaId,
    /// Its role in the Raft group.
    pub role: Role,
    /// Its Raft term.
    pub term: Term,
    /// The group's tablets as this replica has applied them.
    pub tablets: Vec<TabletReport>,
    /// The last log entry that it has applied.
    pub applied: LogId,
    /// The last entry of its log.
    pub last: LogId,
    /// The time of the last command that it has applied.
    pub time: Micros,
    /// Leader only: the membership is final (one voter set, no learners), and a quorum has just confirmed the
    /// leadership.
    pub settled: bool,
    /// Leader only: the other replicas that have responded to it recently.
    pub heard: BTreeSet<ReplicaId>,
    /// The division that has created the group; `None`: the master has, or the server has an earlier release.
    pub division: Option<Division>,
}

/// The division of a group. Each server with one of its replicas makes its replica of the new group when it applies the division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// The group that was divided.
    pub parent: GroupId,
    /// The index of the division in its log.
    pub index: LogIndex,
}

impl ReplicaReport {
    /// The size of its tablets.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.tablets.iter().map(|tablet| tablet.size_bytes).sum()
    }
}

/// What a replica reports about one tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TabletReport {
    /// The tablet, with the membership of its group.
    pub descriptor: TabletDescriptor,
    /// The size of its data.
    pub size_bytes: u64,
    /// The schema version that is applied.
    pub schema_version: SchemaVersion,
    /// Its load, if the replica leads.
    pub load: TabletLoad,
}

/// A replica's role in its Raft group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leader.
    Leader,
    /// Follower or learner.
    Follower,
}

/// An admin operation, applied once by each group with tablets of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The table.
    pub table: TableId,
    /// What it does.
    pub kind: OperationKind,
}

/// The kind of an admin operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Deletes the rows of this range.
    DropRange(KeyRange),
    /// Drops the tablets: the table is being deleted.
    DropTable,
}

impl ClusterSnapshot {
    /// All running replicas, with their servers.
    pub fn reports(&self) -> impl Iterator<Item = (ServerId, &ReplicaReport)> {
        self.servers.iter().flat_map(|(id, server)| {
            let replicas = server.report.iter().flat_map(|report| &report.replicas);
            replicas.map(|replica| (*id, replica))
        })
    }

    /// The running replicas that have applied the most of their group's log. The others lag behind: a tablet that only they
    /// report has moved, was merged or was dropped.
    pub fn latest_reports(&self) -> impl Iterator<Item = &ReplicaReport> {
        let mut latest: BTreeMap<GroupId, LogId> = BTreeMap::new();
        for (_server, report) in self.reports() {
            let applied = latest.entry(report.group.group).or_insert(report.applied);
            *applied = report.applied.max(*applied);
        }
        let reports = self.reports().map(|(_server, report)| report);
        reports.filter(move |report| latest.get(&report.group.group) == Some(&report.applied))
    }

    /// The tablets of each group, as [`Self::latest_reports`] have them.
    pub fn latest_tablet_reports(&self) -> impl Iterator<Item = &TabletReport> {
        self.latest_reports().flat_map(|report| &report.tablets)
    }

    /// The size of a tablet in bytes, if a server reports it.
    #[must_use]
    pub fn tablet_size(&self, tablet: TabletId) -> Option<u64> {
        let reports = self.latest_tablet_reports().filter(|report| report.descriptor.tablet == tablet);
        reports.map(|report| report.size_bytes).max()
    }

    /// All tablets of running replicas.
    pub fn tablet_reports(&self) -> impl Iterator<Item = &TabletReport> {
        self.reports().flat_map(|(_server, report)| &report.tablets)
    }

    /// All replicas that are reported and not running, damaged or idle, with their servers.
    pub fn stopped_replicas(&self) -> impl Iterator<Item = (ServerId, GroupId, ReplicaId)> {
        self.servers.iter().flat_map(|(id, server)| {
            let stopped = server.report.iter().flat_map(|report| report.damaged.iter().chain(&report.idle));
            stopped.map(|(group, replica)| (*id, *group, *replica))
        })
    }

    /// The newest descriptor of each reported tablet.
    #[must_use]
    pub fn tablets(&self) -> BTreeMap<TabletId, &TabletDescriptor> {
        newest(self.latest_tablet_reports().map(|tablet| &tablet.descriptor))
    }

    /// Whether all registered servers have responded: one that is down may still be registered until its lease expires.
    #[must_use]
    pub fn all_registered_responded(&self) -> bool {
        let mut registered = self.servers.values().filter(|server| server.registration == Registration::Registered);
        registered.all(|server| server.report.is_some())
    }

    /// The tablets that METADATA lists, without the rows that a merge has left behind.
    #[must_use]
    pub fn listed_tablets(&self) -> Vec<&TabletDescriptor> {
        let obsolete = obsolete_row_keys(self.metadata.values());
        let current = self.metadata.iter().filter(|(row, _tablet)| !obsolete.contains(*row));
        current.map(|(_row, tablet)| tablet).collect()
    }

    /// The newest descriptor of each known tablet: reported, listed in METADATA or in Chubby.
    #[must_use]
    pub fn known_tablets(&self) -> BTreeMap<TabletId, &TabletDescriptor> {
        let reported = self.latest_tablet_reports().map(|tablet| &tablet.descriptor);
        newest(reported.chain(self.listed_tablets()).chain(&self.root))
    }

    /// The newest descriptor of each reported group.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<GroupId, GroupDescriptor> {
        newest_groups(self.reported_memberships())
    }

    /// The newest descriptor of each known group: reported, or of a tablet in METADATA or in Chubby.
    #[must_use]
    pub fn known_groups(&self) -> BTreeMap<GroupId, GroupDescriptor> {
        let listed = self.metadata.values().chain(&self.root);
        let listed = listed.map(|tablet| (tablet.group, tablet.membership_log_id, &tablet.membership));
        newest_groups(self.reported_memberships().chain(listed))
    }

    fn reported_memberships(&self) -> impl Iterator<Item = (GroupId, LogId, &Membership)> {
        self.reports()
            .map(|(_server, ReplicaReport { group, .. })| (group.group, group.membership_log_id, &group.membership))
    }

    /// The servers that should have replicas, by the newest descriptors.
    #[must_use]
    pub fn assigned_servers(&self) -> BTreeSet<ServerId> {
        let groups = self.known_groups();
        let members = groups.values().flat_map(|group| group.membership.replicas());
        members.map(|replica| replica.server).collect()
    }

    /// The report of each group's leader. If several replicas claim to lead, the highest term wins.
    #[must_use]
    pub fn leader_reports(&self) -> BTreeMap<GroupId, (ServerId, &ReplicaReport)> {
        let mut leaders: BTreeMap<GroupId, (ServerId, &ReplicaReport)> = BTreeMap::new();
        for (server, report) in self.reports().filter(|(_server, report)| report.role == Role::Leader) {
            let known = leaders.entry(report.group.group).or_insert((server, report));
            if known.1.term < report.term {
                *known = (server, report);
            }
        }
        leaders
    }

    /// The leader of each tablet: that of its group.
    #[must_use]
    pub fn leaders(&self) -> BTreeMap<TabletId, ServerId> {
        let mut leaders = BTreeMap::new();
        for (server, report) in self.leader_reports().into_values() {
            leaders.extend(report.tablets.iter().map(|tablet| (tablet.descriptor.tablet, server)));
        }
        leaders
    }

    /// The highest ids in use: reported, listed in METADATA or in Chubby.
    #[must_use]
    pub fn highest_ids(&self) -> HighestIds {
        let mut highest = HighestIds::default();
        self.servers.values().filter_map(|server| server.report.as_ref()).for_each(|one| highest.raise(&one.highest));
        self.reports().for_each(|(_server, report)| highest.add_group(&report.group));
        self.tablet_reports().for_each(|tablet| highest.add_tablet(&tablet.descriptor));
        let planned = self.plans.values().flat_map(|plan| &plan.tablets);
        self.metadata.values().chain(&self.root).chain(planned).for_each(|tablet| highest.add_tablet(tablet));
        self.new_groups.values().for_each(|plan| highest.add_group(&plan.group));
        let tables = self.tables.keys().chain(self.deleted.keys()).copied();
        highest.table = tables.fold(highest.table, TableId::max);
        let operations = self.operations.keys().copied().chain(self.plans.values().map(|plan| plan.operation));
        highest.operation = operations.fold(highest.operation, OperationId::max);
        highest.server = self.servers.keys().copied().fold(highest.server, ServerId::max);
        highest
    }

    /// For each server that may get more replicas, which a drained one never does: the group replicas that it has, and those planned
    /// for it. Placement balances this. METADATA's group has little work and does not count: it would keep one of the first table's groups away
    /// from its server.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<ServerId, u64> {
        let accepts_replicas = |(id, server): &(&ServerId, &Server)| {
            let is_up = server.report.is_some() && server.registration == Registration::Registered;
            is_up && !self.drained.contains(*id)
        };
        let targets = self.servers.iter().filter(accepts_replicas);
        let mut loads: BTreeMap<ServerId, u64> = targets.map(|(id, _server)| (*id, 0)).collect();
        let mut counted = BTreeSet::new();
        let reported = self.reports().map(|(server, report)| (server, report.group.group));
        let planned = self.new_groups.values().flat_map(|GroupPlan { group, .. }| {
            group.membership.replicas().map(|replica| (replica.server, group.group))
        });
        for (server, group) in reported.chain(planned).filter(|(_server, group)| *group != GroupId::METADATA) {
            if let Some(load) = loads.get_mut(&server)
                && counted.insert((server, group))
            {
                *load += 1;
            }
        }
        loads
    }

    /// How many tablets METADATA assigns to each server, whether it responds or not.
    #[must_use]
    pub fn assigned(&self) -> BTreeMap<ServerId, u64> {
        let groups = self.known_groups();
        let mut assigned = BTreeMap::new();
        for tablet in self.listed_tablets() {
            let membership = groups.get(&tablet.group).map_or(&tablet.membership, |group| &group.membership);
            for replica in membership.replicas() {
                *assigned.entry(replica.server).or_default() += 1;
            }
        }
        assigned
    }

    /// Whether every known tablet has a leader that responds, which is the meaning of "ready" after a start. Tables
    /// that are being created or deleted do not count.
    #[must_use]
    pub fn has_all_leaders(&self) -> bool {
        let leaders = self.leaders();
        let listed = self.listed_tablets().into_iter().filter(|tablet| self.is_served(tablet.table));
        let mut listed = listed.peekable();
        listed.peek().is_some() && listed.all(|tablet| leaders.contains_key(&tablet.tablet))
    }

    /// Whether a table's tablets should serve: it exists and is neither being created nor deleted.
    #[must_use]
    pub fn is_served(&self, table: TableId) -> bool {
        use ebla_model::schema::TableState::Active;
        table == TableId::METADATA || self.tables.get(&table).is_some_and(|schema| schema.state == Active)
    }
}

/// The newest of these descriptors for each tablet.
fn newest<'a>(descriptors: impl Iterator<Item = &'a TabletDescriptor>) -> BTreeMap<TabletId, &'a TabletDescriptor> {
    let mut newest: BTreeMap<TabletId, &TabletDescriptor> = BTreeMap::new();
    for descriptor in descriptors {
        let known = newest.entry(descriptor.tablet).or_insert(descriptor);
        if known.fence() < descriptor.fence() {
            *known = descriptor;
        }
    }
    newest
}

/// The newest of these memberships for each group. A replica that is still empty has no members and is ignored.
fn newest_groups<'a>(
    memberships: impl Iterator<Item = (GroupId, LogId, &'a Membership)>,
) -> BTreeMap<GroupId, GroupDescriptor> {
    let mut newest: BTreeMap<GroupId, (LogId, &Membership)> = BTreeMap::new();
    for (group, log_id, membership) in memberships.filter(|(_, _, membership)| !membership.replicas.is_empty()) {
        let known = newest.entry(group).or_insert((log_id, membership));
        if known.0 < log_id {
            *known = (log_id, membership);
        }
    }
    let descriptor = |(group, (membership_log_id, membership)): (GroupId, (LogId, &Membership))| {
        (group, GroupDescriptor { group, membership: membership.clone(), membership_log_id })
    };
    newest.into_iter().map(descriptor).collect()
}

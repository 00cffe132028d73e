//! The snapshot of the cluster on which the master's decisions are based: Chubby's files, METADATA, and the servers'
//! reports.
//!
//! Pure values; `observation` collects them. The servers' reports are authoritative for tablets: a descriptor lives
//! in its tablet's Raft group. METADATA's rows are copies that may be stale. The state of a server that does not
//! respond is unknown, not empty.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::{
    Generation, Incarnation, LogId, OperationId, ReplicaId, SchemaVersion, ServerId, TableId, TabletId, Term,
};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;

/// The state of the cluster as observed at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSnapshot {
    /// The registered servers, and unregistered ones that still respond.
    pub servers: BTreeMap<ServerId, Server>,
    /// The tables in Chubby, in any state. Read after the servers' reports: a table that is reported and is not here
    /// was deleted.
    pub tables: BTreeMap<TableId, TableSchema>,
    /// First tablets of tables whose replicas may not all be created yet.
    pub plans: BTreeMap<TableId, Vec<TabletDescriptor>>,
    /// Admin operations that are not applied everywhere yet.
    pub operations: BTreeMap<OperationId, Operation>,
    /// METADATA, by row key.
    pub metadata: BTreeMap<RowKey, TabletDescriptor>,
    /// The root tablet as Chubby's file describes it.
    pub root: Option<TabletDescriptor>,
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
    /// Whether it is registered in Chubby.
    pub registration: Registration,
    /// Its report; `None` when it did not respond.
    pub report: Option<ServerReport>,
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
    pub damaged: BTreeSet<(TabletId, ReplicaId)>,
    /// Its replicas that are not running, because they are starting or could not be started.
    pub idle: BTreeSet<(TabletId, ReplicaId)>,
    /// The size of its commit log.
    pub log_bytes: u64,
}

/// What a server reports about one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReport {
    /// The tablet descriptor as this replica has applied it.
    pub descriptor: TabletDescriptor,
    /// The replica's id.
    pub replica: ReplicaId,
    /// Its role in the Raft group.
    pub role: Role,
    /// Its Raft term.
    pub term: Term,
    /// The size of its files.
    pub size_bytes: u64,
    /// The schema version that it has applied.
    pub schema_version: SchemaVersion,
    /// The last log entry that it has applied.
    pub applied: LogId,
    /// Leader only: the membership is final (one voter set, no learners), and a quorum has just confirmed the
    /// leadership.
    pub settled: bool,
    /// Leader only: the other replicas that have responded to it recently.
    pub heard: BTreeSet<ReplicaId>,
}

/// A replica's role in its Raft group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Leader.
    Leader,
    /// Follower or learner.
    Follower,
}

/// An admin operation, applied once by each tablet of a table.
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

    /// All replicas that are reported and not running, damaged or idle, with their servers.
    pub fn stopped_replicas(&self) -> impl Iterator<Item = (ServerId, TabletId, ReplicaId)> {
        self.servers.iter().flat_map(|(id, server)| {
            let stopped = server.report.iter().flat_map(|report| report.damaged.iter().chain(&report.idle));
            stopped.map(|(tablet, replica)| (*id, *tablet, *replica))
        })
    }

    /// The newest descriptor of each reported tablet.
    #[must_use]
    pub fn tablets(&self) -> BTreeMap<TabletId, &TabletDescriptor> {
        newest(self.reports().map(|(_server, report)| &report.descriptor))
    }

    /// The newest descriptor of each known tablet: reported, listed in METADATA or in Chubby.
    #[must_use]
    pub fn known_tablets(&self) -> BTreeMap<TabletId, &TabletDescriptor> {
        let reported = self.reports().map(|(_server, report)| &report.descriptor);
        newest(reported.chain(self.metadata.values()).chain(&self.root))
    }

    /// The servers that should have replicas, by the newest descriptors.
    #[must_use]
    pub fn assigned_servers(&self) -> BTreeSet<ServerId> {
        let tablets = self.known_tablets();
        let members = tablets.values().flat_map(|tablet| tablet.membership.replicas());
        members.map(|replica| replica.server).collect()
    }

    /// The report of each tablet's leader. If several replicas claim to lead, the highest term wins.
    #[must_use]
    pub fn leader_reports(&self) -> BTreeMap<TabletId, (ServerId, &ReplicaReport)> {
        let mut leaders: BTreeMap<TabletId, (ServerId, &ReplicaReport)> = BTreeMap::new();
        for (server, report) in self.reports().filter(|(_server, report)| report.role == Role::Leader) {
            let known = leaders.entry(report.descriptor.tablet).or_insert((server, report));
            if known.1.term < report.term {
                *known = (server, report);
            }
        }
        leaders
    }

    /// The leader of each tablet.
    #[must_use]
    pub fn leaders(&self) -> BTreeMap<TabletId, ServerId> {
        self.leader_reports().into_iter().map(|(tablet, (server, _report))| (tablet, server)).collect()
    }

    /// For each server that may get more replicas: the replicas that it has, and those planned for it. Placement
    /// balances this.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<ServerId, u64> {
        let accepts_replicas =
            |server: &Server| server.report.is_some() && server.registration == Registration::Registered;
        let targets = self.servers.iter().filter(|(_id, server)| accepts_replicas(server));
        let mut loads: BTreeMap<ServerId, u64> = targets.map(|(id, _server)| (*id, 0)).collect();
        let mut counted = BTreeSet::new();
        let reported = self.reports().map(|(server, report)| (server, report.descriptor.tablet));
        let planned = self
            .plans
            .values()
            .flatten()
            .flat_map(|tablet| tablet.membership.replicas().map(|replica| (replica.server, tablet.tablet)));
        for (server, tablet) in reported.chain(planned) {
            if let Some(load) = loads.get_mut(&server)
                && counted.insert((server, tablet))
            {
                *load += 1;
            }
        }
        loads
    }

    /// How many replicas METADATA assigns to each server, whether it responds or not.
    #[must_use]
    pub fn assigned(&self) -> BTreeMap<ServerId, u64> {
        let mut assigned = BTreeMap::new();
        for replica in self.metadata.values().flat_map(|tablet| tablet.membership.replicas()) {
            *assigned.entry(replica.server).or_default() += 1;
        }
        assigned
    }

    /// Whether every known tablet has a leader that responds, which is the meaning of "ready" after a start. Tables
    /// that are being created or deleted do not count.
    #[must_use]
    pub fn has_all_leaders(&self) -> bool {
        let leaders = self.leaders();
        let listed = self.metadata.values().filter(|tablet| self.is_served(tablet.table));
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

/// The newest of these descriptors for each tablet. A replica that is still empty has generation 0 and is ignored.
fn newest<'a>(descriptors: impl Iterator<Item = &'a TabletDescriptor>) -> BTreeMap<TabletId, &'a TabletDescriptor> {
    let mut newest: BTreeMap<TabletId, &TabletDescriptor> = BTreeMap::new();
    for descriptor in descriptors.filter(|descriptor| descriptor.generation > Generation::new(0)) {
        let known = newest.entry(descriptor.tablet).or_insert(descriptor);
        if known.fence() < descriptor.fence() {
            *known = descriptor;
        }
    }
    newest
}

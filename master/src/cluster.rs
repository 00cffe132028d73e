//! The picture of the cluster on which the master decides: what Chubby says, what METADATA says, what the servers report.
//!
//! Pure values; `observe` fills them in. The servers' reports are the truth about tablets: a descriptor lives in
//! its tablet's Raft group. METADATA's rows are copies that may be old, and a server that does not answer is unknown, not
//! empty.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::id::{
    Generation, Incarnation, LogId, OperationId, ReplicaId, SchemaVersion, ServerId, TableId, TabletId,
};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;

/// Everything that is known at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The servers that are registered in Chubby, and those that are not and answer all the same.
    pub servers: BTreeMap<ServerId, Server>,
    /// The tables in Chubby, in whatever state. Read after the servers' reports: a table that is reported and not here is
    /// gone for ever.
    pub tables: BTreeMap<TableId, TableSchema>,
    /// First tablets of tables whose replicas may not all have been made.
    pub plans: BTreeMap<TableId, Vec<TabletDescriptor>>,
    /// Admin operations that have not been applied everywhere.
    pub operations: BTreeMap<OperationId, Operation>,
    /// METADATA, by row key.
    pub metadata: BTreeMap<RowKey, TabletDescriptor>,
    /// The root tablet as Chubby's file has it.
    pub root: Option<TabletDescriptor>,
}

/// A tablet server that lives, as far as its lease or its answer tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where it listens, `host:port`.
    pub address: String,
    /// This run of its process.
    pub incarnation: Incarnation,
    /// The release that it runs.
    pub release: String,
    /// Whether it stands in Chubby.
    pub presence: Presence,
    /// What it said; `None` when it did not answer.
    pub report: Option<ServerReport>,
}

/// Whether a server stands in Chubby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It does.
    Registered,
    /// Its lease has ended, and still it answers: it serves what it has, and gets nothing new.
    Unregistered,
}

/// What a server says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// The replicas that run there.
    pub replicas: Vec<ReplicaReport>,
    /// The replicas there whose files are damaged: they neither vote nor serve, and say nothing.
    pub damaged: BTreeSet<(TabletId, ReplicaId)>,
    /// The replicas there that do not run, because they are being started or could not be.
    pub idle: BTreeSet<(TabletId, ReplicaId)>,
    /// Bytes of its commit log.
    pub log_bytes: u64,
}

/// What a server says about one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReport {
    /// The tablet as this replica has applied it.
    pub descriptor: TabletDescriptor,
    /// Which replica it is.
    pub replica: ReplicaId,
    /// Whether it leads its group.
    pub role: Role,
    /// Its Raft term.
    pub term: u64,
    /// Bytes on its disk.
    pub size_bytes: u64,
    /// The schema that it has applied.
    pub schema_version: SchemaVersion,
    /// How far it has applied.
    pub applied: LogId,
    /// At the leader: nobody else is a member, nor is becoming one; a majority has just confirmed that it leads.
    pub settled: bool,
    /// At the leader: the other replicas that have answered it lately.
    pub heard: BTreeSet<ReplicaId>,
}

/// A replica's part in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader,
    /// It does not.
    Follower,
}

/// An admin operation that each tablet of a table applies once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The table.
    pub table: TableId,
    /// What is done.
    pub kind: OperationKind,
}

/// What an admin operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Removes these rows.
    DropRange(KeyRange),
    /// Ends the tablets: the table is deleted.
    DropTable,
}

impl Cluster {
    /// All replicas that were reported, with their servers.
    pub fn reports(&self) -> impl Iterator<Item = (ServerId, &ReplicaReport)> {
        self.servers.iter().flat_map(|(id, server)| {
            let replicas = server.report.iter().flat_map(|report| &report.replicas);
            replicas.map(|replica| (*id, replica))
        })
    }

    /// The replicas that were reported and do not run, damaged or idle, with their servers.
    pub fn silent(&self) -> impl Iterator<Item = (ServerId, TabletId, ReplicaId)> {
        self.servers.iter().flat_map(|(id, server)| {
            let silent = server.report.iter().flat_map(|report| report.damaged.iter().chain(&report.idle));
            silent.map(|(tablet, replica)| (*id, *tablet, *replica))
        })
    }

    /// The newest descriptor of each tablet that a replica reported.
    #[must_use]
    pub fn tablets(&self) -> BTreeMap<TabletId, &TabletDescriptor> {
        newest(self.reports().map(|(_server, report)| &report.descriptor))
    }

    /// The newest descriptor of each tablet that is known at all, from reports, METADATA or Chubby.
    #[must_use]
    pub fn known_tablets(&self) -> BTreeMap<TabletId, &TabletDescriptor> {
        let reported = self.reports().map(|(_server, report)| &report.descriptor);
        newest(reported.chain(self.metadata.values()).chain(&self.root))
    }

    /// The servers that should have replicas, as far as is known.
    #[must_use]
    pub fn holders(&self) -> BTreeSet<ServerId> {
        let tablets = self.known_tablets();
        let members = tablets.values().flat_map(|tablet| tablet.membership.replicas());
        members.map(|replica| replica.server).collect()
    }

    /// What the leader of each tablet says, by the highest term that is claimed.
    #[must_use]
    pub fn led(&self) -> BTreeMap<TabletId, (ServerId, &ReplicaReport)> {
        let mut led: BTreeMap<TabletId, (ServerId, &ReplicaReport)> = BTreeMap::new();
        for (server, report) in self.reports().filter(|(_server, report)| report.role == Role::Leader) {
            let known = led.entry(report.descriptor.tablet).or_insert((server, report));
            if known.1.term < report.term {
                *known = (server, report);
            }
        }
        led
    }

    /// Who leads each tablet, by the highest term that is claimed.
    #[must_use]
    pub fn leaders(&self) -> BTreeMap<TabletId, (ServerId, u64)> {
        self.led().into_iter().map(|(tablet, (server, report))| (tablet, (server, report.term))).collect()
    }

    /// How many replicas each server that may get more has, and how many more are planned for it: what assignment balances.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<ServerId, u64> {
        let takes = |server: &Server| server.report.is_some() && server.presence == Presence::Registered;
        let answering = self.servers.iter().filter(|(_id, server)| takes(server));
        let mut loads: BTreeMap<ServerId, u64> = answering.map(|(id, _server)| (*id, 0)).collect();
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

    /// How many replicas METADATA assigns to each server, whether it is there or not.
    #[must_use]
    pub fn assigned(&self) -> BTreeMap<ServerId, u64> {
        let mut assigned = BTreeMap::new();
        for replica in self.metadata.values().flat_map(|tablet| tablet.membership.replicas()) {
            *assigned.entry(replica.server).or_default() += 1;
        }
        assigned
    }

    /// Whether every tablet that is known has a leader that answers: what "ready" means after a start. A table that is
    /// being made or deleted does not count.
    #[must_use]
    pub fn is_led(&self) -> bool {
        let leaders = self.leaders();
        let listed = self.metadata.values().filter(|tablet| self.is_served(tablet.table));
        let mut listed = listed.peekable();
        listed.peek().is_some() && listed.all(|tablet| leaders.contains_key(&tablet.tablet))
    }

    /// Whether a table's tablets should serve: it exists, and is neither being made nor deleted.
    #[must_use]
    pub fn is_served(&self, table: TableId) -> bool {
        use ebla_model::schema::TableState::Active;
        table == TableId::METADATA || self.tables.get(&table).is_some_and(|schema| schema.state == Active)
    }
}

/// Of each tablet the newest of these. A replica that is empty as yet has no generation and knows nothing.
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

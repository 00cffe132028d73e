//! Cluster events and their log lines: tablet servers that are lost or return, tablets that are under-replicated or have
//! lost their quorum, METADATA that cannot be read, replica repairs. Operators read them in the log of the active master.
//!
//! ```text
//!   snapshot -> ClusterView                 the part that matters to operators
//!   events(before, now) -> [ClusterEvent]   the differences between two views
//! ```
//!
//! All of it is pure except [`ClusterEvent::log`]. [`crate::alerts`] decides when a problem is reported, and `event_log` keeps
//! what was reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ebla_model::capacity::WriteState;
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::id::{Incarnation, ServerId, TableId, TabletId};
use tracing::{error, info, warn};

use crate::cluster::{ClusterSnapshot, Registration};
use crate::health::{Health, Shortage};

/// The maximum number of tablet ids in a log line.
const LISTED_TABLETS_MAX: usize = 5;

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Registered and responding.
    Up,
    /// Not registered, but responding: its lease has expired, or it is stopping.
    Unregistered,
    /// Registered, but not responding.
    Unresponsive,
    /// Neither registered nor responding.
    Down,
}

impl ServerState {
    pub(crate) const fn is_down(self) -> bool {
        matches!(self, Self::Unresponsive | Self::Down)
    }
}

/// A server as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerView {
    /// Its address or last known address; empty when unknown.
    pub address: String,
    /// Its state.
    pub state: ServerState,
    /// The start of its process that has a lease in Chubby; `None`: it has no lease.
    pub lease: Option<Incarnation>,
    /// Whether it refuses writes; `None` when it does not respond.
    pub writes: Option<WriteState>,
}

impl ServerView {
    /// A server without lease that does not respond.
    const fn down(address: String) -> Self {
        Self { address, state: ServerState::Down, lease: None, writes: None }
    }
}

/// Tablets with too few live replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortageView {
    /// The number of under-replicated tablets.
    pub tablets: usize,
    /// The smallest number of live replicas, and how many that tablet should have.
    pub worst: Shortage,
}

/// The part of a snapshot that matters to operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterView {
    /// The servers that are registered, respond, or should have replicas.
    pub servers: BTreeMap<ServerId, ServerView>,
    /// Tablets with too few live replicas.
    pub shortage: Option<ShortageView>,
    /// Tablets that cannot commit.
    pub without_quorum: BTreeSet<TabletId>,
    /// Why METADATA cannot be read; `None` when it can.
    pub metadata: Option<String>,
    /// Groups whose replicas are being changed.
    pub repairs: usize,
    /// Tables of which servers have tablets, and that Chubby does not know.
    pub unknown_tables: BTreeSet<TableId>,
    /// Why changes are refused; `None` when they are not.
    pub changes_refused: Option<String>,
}

impl ClusterView {
    /// The view of `cluster`. `addresses`: last known addresses of unregistered servers.
    #[must_use]
    pub fn of(cluster: &ClusterSnapshot, health: &Health, addresses: &BTreeMap<ServerId, String>) -> Self {
        let mut servers: BTreeMap<ServerId, ServerView> = BTreeMap::new();
        let known = |id: &ServerId| addresses.get(id).cloned().unwrap_or_default();
        for (id, server) in &cluster.servers {
            let state = match (server.registration, &server.report) {
                (Registration::Registered, Some(_)) => ServerState::Up,
                (Registration::Registered, None) => ServerState::Unresponsive,
                (Registration::Unregistered, _) => ServerState::Unregistered,
            };
            let address = if server.address.is_empty() { known(id) } else { server.address.clone() };
            let lease = (server.registration == Registration::Registered).then_some(server.incarnation);
            let writes = server.report.as_ref().map(|report| report.writes);
            servers.insert(*id, ServerView { address, state, lease, writes });
        }
        for id in cluster.assigned_servers() {
            servers.entry(id).or_insert_with(|| ServerView::down(known(&id)));
        }
        let worst = health.shortages.keys().min().copied();
        let shortage = worst.map(|worst| ShortageView { tablets: health.under_replicated(), worst });
        Self { servers, shortage, without_quorum: health.without_quorum.clone(), ..Self::default() }
    }

    /// The same cluster without problems: a new master compares its first view with this.
    pub(crate) fn without_problems(&self) -> Self {
        let up = |(id, server): (&ServerId, &ServerView)| {
            let writes = Some(WriteState::Accepts);
            (*id, ServerView { state: ServerState::Up, writes, ..server.clone() })
        };
        Self { servers: self.servers.iter().map(up).collect(), ..Self::default() }
    }
}

/// A change that operators should know about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterEvent {
    /// A new server is up.
    ServerJoined(ServerId, String),
    /// A server does not respond; its state says whether it still has a lease.
    ServerLost(ServerId, String, ServerState),
    /// A server is no longer registered but still responds.
    ServerUnregistered(ServerId, String),
    /// A server is up again.
    ServerReturned(ServerId, String),
    /// A server has a lease that it did not have before, of this start of its process.
    LeaseAcquired(ServerId, Incarnation),
    /// A server that does not respond has lost its lease.
    LeaseExpired(ServerId, String),
    /// A server refuses writes for lack of disk space.
    WritesRefused(ServerId),
    /// A server accepts writes again.
    WritesAccepted(ServerId),
    /// Tablets have fewer live replicas than they should have.
    UnderReplicated(ShortageView),
    /// All tablets have all their replicas again.
    FullyReplicated,
    /// Quorum loss: the number of tablets that cannot commit, and the first of them.
    QuorumLost(usize, Vec<TabletId>),
    /// All tablets have a quorum again.
    QuorumRestored,
    /// METADATA cannot be read, and why.
    MetadataUnreadable(String),
    /// METADATA can be read again.
    MetadataReadable,
    /// Chubby does not know these tables, of which servers have tablets.
    UnknownTables(Vec<TableId>),
    /// Chubby knows all tables of which servers have tablets.
    NoUnknownTables,
    /// Changes are refused, and why.
    ChangesRefused(String),
    /// Changes are accepted again.
    ChangesAccepted,
    /// Replica repair has started for this number of groups.
    RepairStarted(usize),
    /// Replica repair has finished; this number of tablets is still under-replicated.
    RepairFinished(usize),
}

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For information.
    Info,
    /// Something was lost, but the cluster serves all data.
    Warn,
    /// Some data cannot be read or written.
    Error,
}

impl ClusterEvent {
    /// Its severity.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        match self {
            Self::QuorumLost(..)
            | Self::WritesRefused(_)
            | Self::MetadataUnreadable(_)
            | Self::UnknownTables(_)
            | Self::ChangesRefused(_) => Severity::Error,
            Self::ServerLost(..) | Self::ServerUnregistered(..) | Self::LeaseExpired(..) | Self::UnderReplicated(_) => {
                Severity::Warn
            }
            _ => Severity::Info,
        }
    }

    /// The event as it is kept in Chubby.
    #[must_use]
    pub fn to_record(&self) -> NewClusterEvent {
        use ClusterEventKind as Kind;
        let of_server = |kind, server: &ServerId, detail: &str| NewClusterEvent::new(kind, detail).of_server(*server);
        match self {
            Self::ServerJoined(server, address) => of_server(Kind::ServerJoined, server, address),
            Self::ServerLost(server, address, state) => {
                of_server(Kind::ServerLost, server, &format!("{address}: {}", cause(*state)))
            }
            Self::ServerUnregistered(server, address) => of_server(Kind::ServerLeaseLost, server, address),
            Self::ServerReturned(server, address) => of_server(Kind::ServerReturned, server, address),
            Self::LeaseAcquired(server, incarnation) => {
                of_server(Kind::ServerLeaseAcquired, server, &format!("incarnation {incarnation}"))
            }
            Self::LeaseExpired(server, address) => {
                of_server(Kind::ServerLeaseLost, server, &format!("{address}: no response"))
            }
            Self::WritesRefused(server) => of_server(Kind::WritesRefused, server, "too little disk space"),
            Self::WritesAccepted(server) => of_server(Kind::WritesAccepted, server, ""),
            Self::UnderReplicated(ShortageView { tablets, worst }) => {
                let detail = format!("{tablets} tablets, down to {} of {} replicas", worst.live, worst.wanted);
                NewClusterEvent::new(Kind::UnderReplicated, detail)
            }
            Self::FullyReplicated => NewClusterEvent::new(Kind::FullyReplicated, ""),
            Self::QuorumLost(tablets, first) => {
                NewClusterEvent::new(Kind::QuorumLost, format!("{tablets} tablets: {}", tablet_list(first)))
            }
            Self::QuorumRestored => NewClusterEvent::new(Kind::QuorumRestored, ""),
            Self::MetadataUnreadable(cause) => NewClusterEvent::new(Kind::MetadataUnreadable, cause.as_str()),
            Self::MetadataReadable => NewClusterEvent::new(Kind::MetadataReadable, ""),
            Self::UnknownTables(tables) => {
                NewClusterEvent::new(Kind::UnknownTables, format!("{} tables: {}", tables.len(), short_list(tables)))
            }
            Self::NoUnknownTables => NewClusterEvent::new(Kind::NoUnknownTables, ""),
            Self::ChangesRefused(reasons) => NewClusterEvent::new(Kind::ChangesRefused, reasons.as_str()),
            Self::ChangesAccepted => NewClusterEvent::new(Kind::ChangesAccepted, ""),
            Self::RepairStarted(groups) => NewClusterEvent::new(Kind::RepairStarted, format!("{groups} groups")),
            Self::RepairFinished(left) => {
                NewClusterEvent::new(Kind::RepairFinished, format!("{left} tablets are under-replicated"))
            }
        }
    }

    /// Writes it to the log.
    pub fn log(&self) {
        match self {
            Self::ServerJoined(server, address) => info!(%server, address, "tablet server joined"),
            Self::ServerLost(server, address, state) => {
                warn!(%server, address, cause = cause(*state), "tablet server lost");
            }
            Self::ServerUnregistered(server, address) => {
                warn!(%server, address, "tablet server lost its lease but responds");
            }
            Self::ServerReturned(server, address) => info!(%server, address, "tablet server returned"),
            Self::LeaseAcquired(server, incarnation) => info!(%server, %incarnation, "tablet server has a lease"),
            Self::LeaseExpired(server, address) => warn!(%server, address, "the lease of a tablet server has expired"),
            Self::WritesRefused(server) => {
                error!(%server, "tablet server refuses writes: its disk has too little space")
            }
            Self::WritesAccepted(server) => info!(%server, "tablet server accepts writes again"),
            Self::UnderReplicated(ShortageView { tablets, worst }) => {
                warn!(tablets, live = worst.live, wanted = worst.wanted, "tablets are under-replicated");
            }
            Self::FullyReplicated => info!("all tablets are fully replicated"),
            Self::QuorumLost(tablets, first) => {
                error!(
                    tablets,
                    first = tablet_list(first),
                    "quorum loss: tablets have no quorum; no reads or writes until servers return"
                );
            }
            Self::QuorumRestored => info!("all tablets have a quorum"),
            Self::MetadataUnreadable(cause) => error!(error = cause, "cannot read METADATA"),
            Self::MetadataReadable => info!("METADATA can be read again"),
            Self::UnknownTables(tables) => {
                error!(
                    tables = tables.len(),
                    first = short_list(tables),
                    "tables are unknown: Chubby has lost them, and their tablets are kept; restore a later backup of etcd"
                );
            }
            Self::NoUnknownTables => info!("Chubby knows all tables"),
            Self::ChangesRefused(reasons) => {
                error!(reasons, "the lock service lacks changes; changes are refused until `ebla recover`");
            }
            Self::ChangesAccepted => info!("changes are accepted again"),
            Self::RepairStarted(groups) => info!(groups, "replica repair started"),
            Self::RepairFinished(left) => info!(under_replicated = left, "replica repair finished"),
        }
    }
}

/// Tablet ids for a log line.
#[must_use]
pub fn tablet_list(tablets: &[TabletId]) -> String {
    short_list(tablets)
}

fn short_list(ids: &[impl ToString]) -> String {
    let shown: Vec<String> = ids.iter().take(LISTED_TABLETS_MAX).map(ToString::to_string).collect();
    let more = if ids.len() > LISTED_TABLETS_MAX { ",…" } else { "" };
    format!("{}{more}", shown.join(","))
}

const fn cause(state: ServerState) -> &'static str {
    match state {
        ServerState::Unresponsive => "no response",
        _ => "lease expired and no response",
    }
}

/// Logs that a new cluster waits for servers.
pub fn log_waiting(registered: usize, wanted: usize) {
    info!(registered, wanted, "waiting for tablet servers: the cluster starts when enough are registered");
}

impl fmt::Display for ClusterEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerJoined(server, address) => write!(f, "server-joined {server} {address}"),
            Self::ServerLost(server, address, state) => {
                write!(f, "server-lost {server} {address}: {}", cause(*state))
            }
            Self::ServerUnregistered(server, address) => write!(f, "server-unregistered {server} {address}"),
            Self::ServerReturned(server, address) => write!(f, "server-returned {server} {address}"),
            Self::LeaseAcquired(server, incarnation) => {
                write!(f, "server-lease-acquired {server} incarnation {incarnation}")
            }
            Self::LeaseExpired(server, address) => write!(f, "server-lease-lost {server} {address}: no response"),
            Self::WritesRefused(server) => write!(f, "writes-refused {server}"),
            Self::WritesAccepted(server) => write!(f, "writes-accepted {server}"),
            Self::UnderReplicated(ShortageView { tablets, worst }) => {
                write!(f, "under-replicated {tablets} have {} of {}", worst.live, worst.wanted)
            }
            Self::FullyReplicated => f.write_str("fully-replicated"),
            Self::QuorumLost(tablets, first) => write!(f, "quorum-lost {tablets}: {}", tablet_list(first)),
            Self::QuorumRestored => f.write_str("quorum-restored"),
            Self::MetadataUnreadable(cause) => write!(f, "metadata-unreadable: {cause}"),
            Self::MetadataReadable => f.write_str("metadata-readable"),
            Self::UnknownTables(tables) => write!(f, "unknown-tables {}: {}", tables.len(), short_list(tables)),
            Self::NoUnknownTables => f.write_str("no-unknown-tables"),
            Self::ChangesRefused(reasons) => write!(f, "changes-refused: {reasons}"),
            Self::ChangesAccepted => f.write_str("changes-accepted"),
            Self::RepairStarted(groups) => write!(f, "repair-started {groups}"),
            Self::RepairFinished(left) => write!(f, "repair-finished, {left} under-replicated"),
        }
    }
}

/// The differences in `now`, causes before consequences.
#[must_use]
pub fn events(before: &ClusterView, now: &ClusterView) -> Vec<ClusterEvent> {
    let servers = now.servers.iter();
    let mut events: Vec<ClusterEvent> =
        servers.flat_map(|(id, server)| server_events(before.servers.get(id), *id, server)).collect();
    match (&before.metadata, &now.metadata) {
        (None, Some(cause)) => events.push(ClusterEvent::MetadataUnreadable(cause.clone())),
        (Some(_), None) => events.push(ClusterEvent::MetadataReadable),
        _ => {}
    }
    if !now.unknown_tables.is_subset(&before.unknown_tables) {
        events.push(ClusterEvent::UnknownTables(now.unknown_tables.iter().copied().collect()));
    } else if now.unknown_tables.is_empty() && !before.unknown_tables.is_empty() {
        events.push(ClusterEvent::NoUnknownTables);
    }
    match (&before.changes_refused, &now.changes_refused) {
        (None, Some(reasons)) => events.push(ClusterEvent::ChangesRefused(reasons.clone())),
        (Some(_), None) => events.push(ClusterEvent::ChangesAccepted),
        _ => {}
    }
    if !now.without_quorum.is_subset(&before.without_quorum) {
        let lost: Vec<TabletId> = now.without_quorum.iter().copied().collect();
        events.push(ClusterEvent::QuorumLost(lost.len(), lost.into_iter().take(LISTED_TABLETS_MAX + 1).collect()));
    } else if now.without_quorum.is_empty() && !before.without_quorum.is_empty() {
        events.push(ClusterEvent::QuorumRestored);
    }
    match (before.shortage, now.shortage) {
        (before, Some(short)) if is_worse(before, short) => events.push(ClusterEvent::UnderReplicated(short)),
        (Some(_), None) => events.push(ClusterEvent::FullyReplicated),
        _ => {}
    }
    match (before.repairs, now.repairs) {
        (0, 0) => {}
        (0, groups) => events.push(ClusterEvent::RepairStarted(groups)),
        (_, 0) => events.push(ClusterEvent::RepairFinished(now.shortage.map_or(0, |short| short.tablets))),
        _ => {}
    }
    events
}

fn server_events(before: Option<&ServerView>, id: ServerId, server: &ServerView) -> Vec<ClusterEvent> {
    let events = [
        server_event(before, id, server),
        lease_event(before, id, server),
        writes_event(before.and_then(|before| before.writes), id, server.writes),
    ];
    events.into_iter().flatten().collect()
}

/// A lease that has expired while its server responds is the event of the server's state.
fn lease_event(before: Option<&ServerView>, id: ServerId, server: &ServerView) -> Option<ClusterEvent> {
    let had = before.and_then(|before| before.lease);
    match server.lease {
        Some(has) => (had != Some(has)).then_some(ClusterEvent::LeaseAcquired(id, has)),
        None if had.is_some() && server.state == ServerState::Down => {
            Some(ClusterEvent::LeaseExpired(id, server.address.clone()))
        }
        None => None,
    }
}

/// What is not known has not changed.
fn writes_event(before: Option<WriteState>, id: ServerId, now: Option<WriteState>) -> Option<ClusterEvent> {
    match (before.unwrap_or_default(), now?) {
        (WriteState::Accepts, WriteState::Refuses) => Some(ClusterEvent::WritesRefused(id)),
        (WriteState::Refuses, WriteState::Accepts) => Some(ClusterEvent::WritesAccepted(id)),
        _ => None,
    }
}

fn server_event(before: Option<&ServerView>, id: ServerId, server: &ServerView) -> Option<ClusterEvent> {
    let address = server.address.clone();
    let previous = before.map(|before| before.state);
    match (previous, server.state) {
        (None, ServerState::Up) => Some(ClusterEvent::ServerJoined(id, address)),
        (Some(previous), ServerState::Up) => {
            (previous != ServerState::Up).then_some(ClusterEvent::ServerReturned(id, address))
        }
        (Some(previous), ServerState::Unresponsive | ServerState::Down) if previous.is_down() => None,
        (_, lost @ (ServerState::Unresponsive | ServerState::Down)) => {
            Some(ClusterEvent::ServerLost(id, address, lost))
        }
        (Some(ServerState::Unregistered), ServerState::Unregistered) => None,
        (_, ServerState::Unregistered) => Some(ClusterEvent::ServerUnregistered(id, address)),
    }
}

/// Whether more tablets are under-replicated than before, or one has fewer live replicas.
pub(crate) fn is_worse(before: Option<ShortageView>, now: ShortageView) -> bool {
    before.is_none_or(|before| now.tablets > before.tablets || now.worst.live < before.worst.live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_an_event_has_its_name_and_its_server() {
        let server = ServerId::new(3);
        let short = ShortageView { tablets: 4, worst: Shortage { live: 1, wanted: 3 } };
        let lost = ClusterEvent::ServerLost(server, "host:1".to_owned(), ServerState::Down);
        let events = [
            (ClusterEvent::ServerJoined(server, "host:1".to_owned()), "host:1"),
            (lost, "host:1: lease expired and no response"),
            (ClusterEvent::ServerReturned(server, "host:1".to_owned()), "host:1"),
            (ClusterEvent::LeaseAcquired(server, Incarnation::new(5)), "incarnation 5"),
            (ClusterEvent::LeaseExpired(server, "host:1".to_owned()), "host:1: no response"),
            (ClusterEvent::WritesRefused(server), "too little disk space"),
            (ClusterEvent::WritesAccepted(server), ""),
            (ClusterEvent::UnderReplicated(short), "4 tablets, down to 1 of 3 replicas"),
            (ClusterEvent::FullyReplicated, ""),
            (ClusterEvent::QuorumLost(1, vec![TabletId::new(7)]), "1 tablets: 7"),
            (ClusterEvent::QuorumRestored, ""),
            (ClusterEvent::MetadataUnreadable("no leader".to_owned()), "no leader"),
            (ClusterEvent::MetadataReadable, ""),
            (ClusterEvent::UnknownTables(vec![TableId::new(9)]), "1 tables: 9"),
            (ClusterEvent::NoUnknownTables, ""),
            (ClusterEvent::ChangesRefused("no table 9".to_owned()), "no table 9"),
            (ClusterEvent::ChangesAccepted, ""),
            (ClusterEvent::RepairStarted(2), "2 groups"),
            (ClusterEvent::RepairFinished(0), "0 tablets are under-replicated"),
        ];
        for (event, detail) in events {
            let record = event.to_record();
            // The name is the first word of the event as it is shown in tests and logs.
            assert!(event.to_string().starts_with(record.kind.name()), "{event}: {}", record.kind);
            assert_eq!(record.detail(), detail, "{event}");
            let is_of_server = ["server-", "writes-"].iter().any(|prefix| event.to_string().starts_with(prefix));
            assert_eq!(record.server.is_some(), is_of_server, "{event}");
        }
        let unregistered = ClusterEvent::ServerUnregistered(server, "host:1".to_owned()).to_record();
        assert_eq!((unregistered.kind.name(), unregistered.server), ("server-lease-lost", Some(server)));
    }

    #[test]
    fn a_tablet_list_is_short() {
        let tablets: Vec<_> = (1..=6).map(TabletId::new).collect();
        assert_eq!(tablet_list(&tablets), "1,2,3,4,5,…");
        assert_eq!(tablet_list(&tablets[..2]), "1,2");
    }
}

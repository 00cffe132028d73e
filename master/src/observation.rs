//! Collects the snapshot of the cluster: Chubby's files, every server's report, METADATA.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_client::Directory;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, Incarnation, LogId, LogIndex, ReplicaId, SchemaVersion, ServerId, TableId, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{TabletDescriptor, table_range};
use ebla_model::schema::TableSchema;
use ebla_model::time::Micros;
use ebla_proto::{control, convert, record};
use futures::FutureExt;
use futures::future::join_all;
use tracing::debug;

use crate::active::{ActiveMaster, CachedMetadata};
use crate::cluster::{
    ClusterSnapshot, Division, LogPositions, Registration, ReplicaReport, Role, Server, ServerReport, TabletReport,
};
use crate::schema_store;

/// The timeout of reading METADATA.
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a status request: elections are over by then.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout of Chubby for a status request; after it the cached files are used.
const CHUBBY_TIMEOUT: Duration = Duration::from_millis(500);

/// METADATA's descriptors, by row key.
type Rows = BTreeMap<RowKey, TabletDescriptor>;

/// What METADATA contains.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadRows {
    /// Its descriptors.
    pub(crate) rows: Rows,
    /// The keys of rows that cannot be decoded.
    pub(crate) damaged: BTreeSet<RowKey>,
}

/// Takes a snapshot of the cluster. Tables are listed after the reports: a table that is reported and not listed is
/// none that is just being created.
///
/// # Errors
/// When Chubby or METADATA cannot be read. A server that does not respond is no error.
pub(crate) async fn observe(master: &ActiveMaster) -> Result<ClusterSnapshot, Error> {
    let servers = observe_servers(master).await?;
    let ReadRows { rows: metadata, damaged: damaged_rows } = read_metadata(master).await?;
    with_chubby(master, ClusterSnapshot { servers, metadata, damaged_rows, ..ClusterSnapshot::default() }).await
}

/// As [`observe`], with METADATA as it was last read: for requests that must be cheap, or that repair METADATA's own group. Servers that are
/// not registered and respond are included.
pub(crate) async fn observe_without_metadata(master: &ActiveMaster) -> Result<ClusterSnapshot, Error> {
    let servers = observe_servers(master).await?;
    let mut snapshot = with_chubby(master, with_cached_metadata(master, servers)).await?;
    let unregistered = observe_unregistered(master, &snapshot).await;
    snapshot.servers.extend(unregistered);
    Ok(snapshot)
}

/// Reads METADATA, by row key.
///
/// # Errors
/// When it cannot be read in time.
pub(crate) async fn read_metadata(master: &ActiveMaster) -> Result<ReadRows, Error> {
    read_rows_within(master, KeyRange::all(), METADATA_TIMEOUT).await
}

/// Reads the rows of METADATA's own tablets.
///
/// # Errors
/// When they cannot be read in time.
pub(crate) async fn read_own_rows(master: &ActiveMaster) -> Result<ReadRows, Error> {
    read_rows_within(master, table_range(TableId::METADATA), METADATA_TIMEOUT).await
}

async fn read_rows_within(master: &ActiveMaster, range: KeyRange, timeout: Duration) -> Result<ReadRows, Error> {
    let read = master.metadata().read_readable(range, master.deadline(timeout)).await?;
    let rows = read.rows.into_iter().map(|entry| (entry.key, entry.descriptor)).collect();
    Ok(ReadRows { rows, damaged: read.damaged.into_iter().collect() })
}

/// The servers that should hold replicas by `snapshot` and are not registered, as far as they respond.
pub(crate) async fn observe_unregistered(
    master: &ActiveMaster,
    snapshot: &ClusterSnapshot,
) -> BTreeMap<ServerId, Server> {
    let unregistered = snapshot.assigned_servers().into_iter().filter(|server| !snapshot.servers.contains_key(server));
    let requests: Vec<_> = unregistered.map(|id| observe_unregistered_server(master, id).boxed()).collect();
    join_all(requests).await.into_iter().flatten().collect()
}

/// A snapshot for a status request, which must not wait long.
pub(crate) struct StatusSnapshot {
    /// The snapshot. While METADATA cannot be read, its rows are the cached ones in `stale`.
    pub(crate) snapshot: ClusterSnapshot,
    /// Why METADATA cannot be read, and its cached content.
    pub(crate) stale: Option<(Error, Option<CachedMetadata>)>,
}

/// As [`observe`], within about two seconds: cached data replaces METADATA or Chubby while they are unavailable.
pub(crate) async fn observe_for_status(master: &ActiveMaster) -> StatusSnapshot {
    let servers = async {
        match tokio::time::timeout(CHUBBY_TIMEOUT, schema_store::list_servers(master.chubby())).await {
            Ok(Ok(registered)) => fetch_reports(master, registered).await,
            // The cached files were current until now.
            Ok(Err(_)) | Err(_) => fetch_reports(master, cached_servers(master)).await,
        }
    };
    let (servers, metadata) = tokio::join!(servers, read_rows_within(master, KeyRange::all(), STATUS_TIMEOUT));
    let (metadata, stale) = match metadata {
        Ok(metadata) => (metadata.rows, None),
        Err(error) => {
            let cached = master.cached_metadata();
            let metadata = cached_rows(cached.as_ref());
            (metadata, Some((error, cached)))
        }
    };
    let observed = ClusterSnapshot { servers, metadata, ..ClusterSnapshot::default() };
    let complete = tokio::time::timeout(CHUBBY_TIMEOUT, with_chubby(master, observed.clone())).await;
    let snapshot = match complete {
        Ok(Ok(snapshot)) => snapshot,
        Ok(Err(_)) | Err(_) => with_directory(master, observed),
    };
    StatusSnapshot { snapshot, stale }
}

/// Completes the snapshot with Chubby's files.
///
/// # Errors
/// When Chubby cannot be read.
pub(crate) async fn with_chubby(master: &ActiveMaster, observed: ClusterSnapshot) -> Result<ClusterSnapshot, Error> {
    schema_store::read_files(master.chubby(), observed).await
}

/// Completes the snapshot with the cached copy of Chubby's files.
fn with_directory(master: &ActiveMaster, observed: ClusterSnapshot) -> ClusterSnapshot {
    let schemas = master.directory().schemas().into_iter();
    let tables = schemas.map(|schema| (schema.table, TableSchema::clone(&schema))).collect();
    ClusterSnapshot { tables, root: master.directory().root_tablet(), ..observed }
}

/// Completes a snapshot of these servers with cached data only.
pub(crate) fn with_cached_metadata(master: &ActiveMaster, servers: BTreeMap<ServerId, Server>) -> ClusterSnapshot {
    let metadata = cached_rows(master.cached_metadata().as_ref());
    with_directory(master, ClusterSnapshot { servers, metadata, ..ClusterSnapshot::default() })
}

fn cached_rows(cached: Option<&CachedMetadata>) -> Rows {
    cached.map(|last| Rows::clone(&last.metadata)).unwrap_or_default()
}

fn cached_servers(master: &ActiveMaster) -> BTreeMap<ServerId, record::Server> {
    master.directory().servers().into_iter().map(|server| (ServerId::new(server.server), server)).collect()
}

/// Requests the report of an unregistered server at its last known address: an expired lease does not mean that it is
/// down.
async fn observe_unregistered_server(master: &ActiveMaster, id: ServerId) -> Option<(ServerId, Server)> {
    let reply = master.servers().report(id).await.ok().filter(|reply| reply.server == id.get())?;
    let server = Server {
        address: String::new(),
        incarnation: Incarnation::new(reply.incarnation),
        release: String::new(),
        zone: None,
        registration: Registration::Unregistered,
        report: Some(report_from_proto(&reply)),
        later_epoch: false,
    };
    Some((id, server))
}

/// The registered servers with their reports, requested concurrently.
pub(crate) async fn observe_servers(master: &ActiveMaster) -> Result<BTreeMap<ServerId, Server>, Error> {
    Ok(fetch_reports(master, schema_store::list_servers(master.chubby()).await?).await)
}

/// A snapshot of nothing but the registered servers with their reports.
pub(crate) async fn observe_reports(master: &ActiveMaster) -> Result<ClusterSnapshot, Error> {
    Ok(ClusterSnapshot { servers: observe_servers(master).await?, ..ClusterSnapshot::default() })
}

async fn fetch_reports(
    master: &ActiveMaster,
    registered: BTreeMap<ServerId, record::Server>,
) -> BTreeMap<ServerId, Server> {
    let requests: Vec<_> =
        registered.into_iter().map(|(id, server)| observe_server(master, id, server).boxed()).collect();
    join_all(requests).await.into_iter().collect()
}

/// The registered servers that respond to a ping.
pub(crate) async fn responding_servers(master: &ActiveMaster) -> BTreeSet<ServerId> {
    let requests: Vec<_> = cached_servers(master)
        .into_keys()
        .map(|id| async move { master.servers().responds(id).await.then_some(id) })
        .collect();
    join_all(requests).await.into_iter().flatten().collect()
}

/// The last known addresses of the servers that should hold replicas.
pub(crate) async fn addresses(master: &ActiveMaster, snapshot: &ClusterSnapshot) -> BTreeMap<ServerId, String> {
    let mut addresses = BTreeMap::new();
    for id in snapshot.assigned_servers() {
        if let Some(address) = Directory::address(master.directory(), id).await {
            addresses.insert(id, address);
        }
    }
    addresses
}

async fn observe_server(master: &ActiveMaster, id: ServerId, server: record::Server) -> (ServerId, Server) {
    let (report, later_epoch) = match master.servers().report(id).await {
        // The address of a dead server may belong to another server now.
        Ok(reply) => (Some(report_from_proto(&reply)).filter(|_report| reply.server == id.get()), false),
        Err(failed) => {
            debug!(server = %id, error = %failed.error, "tablet server report failed");
            (None, failed.error.reason == Reason::StaleEpoch)
        }
    };
    let incarnation = Incarnation::new(server.incarnation);
    let registration = Registration::Registered;
    // A name that cannot be parsed counts as none.
    let zone = server.zone.parse().ok();
    let (address, release) = (server.address, server.release);
    (id, Server { address, incarnation, release, zone, registration, report, later_epoch })
}

fn report_from_proto(reply: &control::ReportReply) -> ServerReport {
    // A replica report that cannot be decoded is ignored, which is safe: a missing report only delays actions.
    let running = reply.replicas.iter().filter(|report| !report.quarantined && !report.idle);
    let (damaged, idle) = (ids(reply, |report| report.quarantined), ids(reply, |report| report.idle));
    let log_positions = running.clone().filter_map(positions_from_proto).collect();
    let replicas = running.filter_map(replica_from_proto).collect();
    let (resources, writes) = reply.resources.as_ref().map(convert::resources_from_proto).unwrap_or_default();
    let highest = reply.highest.as_ref().map(convert::highest_ids_from_proto).unwrap_or_default();
    let clock = reply.clock.as_ref().map(convert::clock_state_from_proto).unwrap_or_default();
    let scrub = reply.scrub.as_ref().map(convert::scrub_state_from_proto).unwrap_or_default();
    let sync = reply.sync.as_ref().map(convert::sync_state_from_proto).unwrap_or_default();
    let scan_cache = reply.scan_cache.as_ref().map(convert::scan_cache_state_from_proto).unwrap_or_default();
    let memory_groups = reply.memory_groups.as_ref().map(convert::memory_groups_from_proto).unwrap_or_default();
    let (log_bytes, set_aside, split_bytes) = (reply.log_bytes, reply.set_aside, reply.split_bytes);
    ServerReport {
        set_aside,
        replicas,
        damaged,
        idle,
        log_bytes,
        resources,
        writes,
        highest,
        clock,
        scrub,
        sync,
        scan_cache,
        memory_groups,
        calls: reply.calls.as_ref().map(convert::call_times_from_proto),
        log_positions,
        split_bytes,
        metadata_split_bytes: reply.metadata_split_bytes,
    }
}

/// The ids of the replicas that the predicate selects.
fn ids(
    reply: &control::ReportReply,
    is_selected: impl Fn(&control::ReplicaReport) -> bool,
) -> BTreeSet<(GroupId, ReplicaId)> {
    let selected = reply.replicas.iter().filter(|report| is_selected(report));
    let id = |report: &control::ReplicaReport| {
        Some((GroupId::new(report.group.as_ref()?.group), ReplicaId::new(report.replica)))
    };
    selected.filter_map(id).collect()
}

/// Where the log of a running replica is committed, and its snapshot ends.
fn positions_from_proto(report: &control::ReplicaReport) -> Option<((GroupId, ReplicaId), LogPositions)> {
    let id = (GroupId::new(report.group.as_ref()?.group), ReplicaId::new(report.replica));
    let at = |log_id: &Option<record::LogId>| log_id.as_ref().map(convert::log_id_from_proto);
    Some((id, LogPositions { committed: at(&report.committed), snapshot: at(&report.snapshot) }))
}

fn replica_from_proto(report: &control::ReplicaReport) -> Option<ReplicaReport> {
    let group = convert::group_from_proto(report.group.as_ref()?).ok()?;
    let tablet = |tablet: &control::TabletReport| {
        Some(TabletReport {
            descriptor: convert::tablet_record_from_proto(tablet.tablet.as_ref()?, &group).ok()?,
            size_bytes: tablet.size_bytes,
            schema_version: SchemaVersion::new(tablet.schema_version),
            load: tablet.load.as_ref().map(convert::tablet_load_from_proto).unwrap_or_default(),
        })
    };
    let applied = report.applied.as_ref().map_or_else(LogId::default, convert::log_id_from_proto);
    Some(ReplicaReport {
        replica: ReplicaId::new(report.replica),
        role: if report.leads { Role::Leader } else { Role::Follower },
        term: Term::new(report.term),
        tablets: report.tablets.iter().filter_map(tablet).collect(),
        applied,
        last: report.last.as_ref().map_or(applied, convert::log_id_from_proto),
        time: Micros::new(report.time_micros),
        settled: report.settled,
        heard: report.heard.iter().copied().map(ReplicaId::new).collect(),
        division: (report.parent != 0)
            .then(|| Division { parent: GroupId::new(report.parent), index: LogIndex::new(report.divide_index) }),
        group,
    })
}

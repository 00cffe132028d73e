//! Takes the picture on which the master decides: Chubby, every server's report, METADATA.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_client::Directory;
use ebla_model::error::Error;
use ebla_model::id::{Incarnation, LogId, ReplicaId, SchemaVersion, ServerId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_proto::{control, convert, record};
use futures::FutureExt;
use futures::future::join_all;
use tracing::debug;

use crate::cluster::{Cluster, Presence, ReplicaReport, Role, Server, ServerReport};
use crate::office::{Office, Remembered};
use crate::records;

/// How long reading METADATA may take.
const METADATA_LIMIT: Duration = Duration::from_secs(10);
/// The same while a person waits: an election is over by then.
const GLANCE_LIMIT: Duration = Duration::from_secs(2);
/// How long Chubby may take then, before the copy of its files has to do.
const CHUBBY_LIMIT: Duration = Duration::from_millis(500);

/// METADATA's descriptors by row key.
type Rows = BTreeMap<RowKey, TabletDescriptor>;

/// The present picture. Tables are listed after the reports were taken: a table that is reported and not listed was deleted.
///
/// # Errors
/// When Chubby or METADATA cannot be read. A server that does not answer is no error.
pub(crate) async fn observe(office: &Office) -> Result<Cluster, Error> {
    let servers = observe_servers(office).await?;
    let metadata = read_metadata(office).await?;
    with_chubby(office, Cluster { servers, metadata, ..Cluster::default() }).await
}

/// METADATA, by row key.
///
/// # Errors
/// When it cannot be read in time.
pub(crate) async fn read_metadata(office: &Office) -> Result<Rows, Error> {
    read_metadata_within(office, METADATA_LIMIT).await
}

async fn read_metadata_within(office: &Office, limit: Duration) -> Result<Rows, Error> {
    let entries = office.metadata().read_range(KeyRange::all(), office.deadline(limit)).await?;
    Ok(entries.into_iter().map(|entry| (entry.key, entry.descriptor)).collect())
}

/// The servers that have lost their registration and should hold replicas, by `picture`: those of them that answer.
pub(crate) async fn observe_strays(office: &Office, picture: &Cluster) -> BTreeMap<ServerId, Server> {
    let strays = picture.holders().into_iter().filter(|server| !picture.servers.contains_key(server));
    let asked: Vec<_> = strays.map(|id| observe_stray(office, id).boxed()).collect();
    join_all(asked).await.into_iter().flatten().collect()
}

/// What can be said at once, for a person who waits.
pub(crate) struct Glance {
    /// The picture. While METADATA cannot be read, its rows are those of `stale`.
    pub(crate) picture: Cluster,
    /// Why METADATA cannot be read, and what it said last.
    pub(crate) stale: Option<(Error, Option<Remembered>)>,
}

/// As [`observe`], in about two seconds, with what is known when METADATA cannot be read or Chubby is away.
pub(crate) async fn glance(office: &Office) -> Glance {
    let servers = async {
        match tokio::time::timeout(CHUBBY_LIMIT, records::list_servers(office.chubby())).await {
            Ok(Ok(registered)) => ask_all(office, registered).await,
            // The copy of its files has been right until now.
            Ok(Err(_)) | Err(_) => ask_all(office, registered_last(office)).await,
        }
    };
    let (servers, metadata) = tokio::join!(servers, read_metadata_within(office, GLANCE_LIMIT));
    let (metadata, stale) = match metadata {
        Ok(metadata) => (metadata, None),
        Err(error) => {
            let remembered = office.remembered();
            let metadata = metadata_last(remembered.as_ref());
            (metadata, Some((error, remembered)))
        }
    };
    let seen = Cluster { servers, metadata, ..Cluster::default() };
    let whole = tokio::time::timeout(CHUBBY_LIMIT, with_chubby(office, seen.clone())).await;
    let picture = match whole {
        Ok(Ok(picture)) => picture,
        Ok(Err(_)) | Err(_) => with_copy(office, seen),
    };
    Glance { picture, stale }
}

/// The picture with what Chubby says.
///
/// # Errors
/// When Chubby cannot be read.
pub(crate) async fn with_chubby(office: &Office, seen: Cluster) -> Result<Cluster, Error> {
    let chubby = office.chubby();
    Ok(Cluster {
        tables: records::list_tables(chubby).await?,
        plans: records::list_plans(chubby).await?,
        operations: records::list_operations(chubby).await?,
        root: records::read_root(chubby).await?.map(|root| root.value),
        ..seen
    })
}

/// The picture with what Chubby said last.
fn with_copy(office: &Office, seen: Cluster) -> Cluster {
    let schemas = office.directory().schemas().into_iter();
    let tables = schemas.map(|schema| (schema.table, TableSchema::clone(&schema))).collect();
    Cluster { tables, root: office.directory().root_tablet(), ..seen }
}

/// These servers with all else as far as it is known without reading it again.
pub(crate) fn as_known(office: &Office, servers: BTreeMap<ServerId, Server>) -> Cluster {
    let metadata = metadata_last(office.remembered().as_ref());
    with_copy(office, Cluster { servers, metadata, ..Cluster::default() })
}

fn metadata_last(remembered: Option<&Remembered>) -> Rows {
    remembered.map(|last| Rows::clone(&last.metadata)).unwrap_or_default()
}

fn registered_last(office: &Office) -> BTreeMap<ServerId, record::Server> {
    office.directory().servers().into_iter().map(|server| (ServerId::new(server.server), server)).collect()
}

/// A lease says little about a server: one that is not registered is asked where it was last heard of.
async fn observe_stray(office: &Office, id: ServerId) -> Option<(ServerId, Server)> {
    let reply = office.orders().report(id).await.ok().filter(|reply| reply.server == id.get())?;
    let server = Server {
        address: String::new(),
        incarnation: Incarnation::new(reply.incarnation),
        release: String::new(),
        presence: Presence::Unregistered,
        report: Some(report_from_proto(&reply)),
    };
    Some((id, server))
}

/// The registered servers with their reports, all asked at once.
pub(crate) async fn observe_servers(office: &Office) -> Result<BTreeMap<ServerId, Server>, Error> {
    Ok(ask_all(office, records::list_servers(office.chubby()).await?).await)
}

async fn ask_all(office: &Office, registered: BTreeMap<ServerId, record::Server>) -> BTreeMap<ServerId, Server> {
    let asked: Vec<_> = registered.into_iter().map(|(id, server)| observe_server(office, id, server).boxed()).collect();
    join_all(asked).await.into_iter().collect()
}

/// The registered servers that answer, by a small question.
pub(crate) async fn answering(office: &Office) -> BTreeSet<ServerId> {
    let asked: Vec<_> = registered_last(office)
        .into_keys()
        .map(|id| async move { office.orders().answers(id).await.then_some(id) })
        .collect();
    join_all(asked).await.into_iter().flatten().collect()
}

/// Where the servers were that should be there and are not registered.
pub(crate) async fn addresses(office: &Office, picture: &Cluster) -> BTreeMap<ServerId, String> {
    let mut addresses = BTreeMap::new();
    for id in picture.holders() {
        if let Some(address) = Directory::address(office.directory(), id).await {
            addresses.insert(id, address);
        }
    }
    addresses
}

async fn observe_server(office: &Office, id: ServerId, server: record::Server) -> (ServerId, Server) {
    let report = match office.orders().report(id).await {
        // Another server may have got the address of one that is gone.
        Ok(reply) => Some(report_from_proto(&reply)).filter(|_report| reply.server == id.get()),
        Err(refused) => {
            debug!(server = %id, error = %refused.error, "no report");
            None
        }
    };
    let incarnation = Incarnation::new(server.incarnation);
    let presence = Presence::Registered;
    (id, Server { address: server.address, incarnation, release: server.release, presence, report })
}

fn report_from_proto(reply: &control::ReportReply) -> ServerReport {
    // A replica that cannot be understood is left out: it says nothing, which is the safe side everywhere.
    let running = reply.replicas.iter().filter(|report| !report.quarantined && !report.idle);
    let (damaged, idle) = (names(reply, |report| report.quarantined), names(reply, |report| report.idle));
    let replicas = running.filter_map(replica_from_proto).collect();
    ServerReport { replicas, damaged, idle, log_bytes: reply.log_bytes }
}

/// The replicas of which nothing but the name is told.
fn names(
    reply: &control::ReportReply,
    is_meant: impl Fn(&control::ReplicaReport) -> bool,
) -> BTreeSet<(TabletId, ReplicaId)> {
    let meant = reply.replicas.iter().filter(|report| is_meant(report));
    let name = |report: &control::ReplicaReport| {
        Some((TabletId::new(report.descriptor.as_ref()?.tablet), ReplicaId::new(report.replica)))
    };
    meant.filter_map(name).collect()
}

fn replica_from_proto(report: &control::ReplicaReport) -> Option<ReplicaReport> {
    Some(ReplicaReport {
        descriptor: convert::descriptor_from_proto(report.descriptor.as_ref()?).ok()?,
        replica: ReplicaId::new(report.replica),
        role: if report.leads { Role::Leader } else { Role::Follower },
        term: report.term,
        size_bytes: report.size_bytes,
        schema_version: SchemaVersion::new(report.schema_version),
        applied: report.applied.as_ref().map_or_else(LogId::default, convert::log_id_from_proto),
        settled: report.settled,
        heard: report.heard.iter().copied().map(ReplicaId::new).collect(),
    })
}

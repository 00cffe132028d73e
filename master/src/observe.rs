//! Takes the picture on which the master decides: Chubby, every server's report, METADATA.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::id::{Incarnation, LogId, ReplicaId, SchemaVersion, ServerId, TabletId};
use ebla_model::key::KeyRange;
use ebla_proto::{control, convert, record};
use futures::FutureExt;
use futures::future::join_all;
use tracing::debug;

use crate::cluster::{Cluster, Presence, ReplicaReport, Role, Server, ServerReport};
use crate::office::Office;
use crate::records;

/// How long reading METADATA may take.
const METADATA_LIMIT: Duration = Duration::from_secs(10);

/// The present picture. Tables are listed after the reports were taken: a table that is reported and not listed was deleted.
///
/// # Errors
/// When Chubby or METADATA cannot be read. A server that does not answer is no error.
pub(crate) async fn observe(office: &Office) -> Result<Cluster, Error> {
    let servers = observe_servers(office).await?;
    let chubby = office.chubby();
    let entries = office.metadata().read_range(KeyRange::all(), office.deadline(METADATA_LIMIT)).await?;
    Ok(Cluster {
        servers,
        tables: records::list_tables(chubby).await?,
        plans: records::list_plans(chubby).await?,
        operations: records::list_operations(chubby).await?,
        metadata: entries.into_iter().map(|entry| (entry.key, entry.descriptor)).collect(),
        root: records::read_root(chubby).await?.map(|root| root.value),
    })
}

/// The present picture with the servers that have lost their registration and hold replicas: those of them that answer.
///
/// # Errors
/// As [`observe`].
pub(crate) async fn observe_all(office: &Office) -> Result<Cluster, Error> {
    let mut picture = observe(office).await?;
    let known = picture.known_tablets();
    let holders = known.values().flat_map(|tablet| tablet.membership.replicas().map(|replica| replica.server));
    let strays: BTreeSet<ServerId> = holders.filter(|server| !picture.servers.contains_key(server)).collect();
    let asked: Vec<_> = strays.into_iter().map(|id| observe_stray(office, id).boxed()).collect();
    picture.servers.extend(join_all(asked).await.into_iter().flatten());
    Ok(picture)
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
    let registered = records::list_servers(office.chubby()).await?;
    let asked: Vec<_> = registered.into_iter().map(|(id, server)| observe_server(office, id, server).boxed()).collect();
    Ok(join_all(asked).await.into_iter().collect())
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

//! Takes the picture on which the master decides: Chubby, every server's report, METADATA.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::id::{Incarnation, LogId, ReplicaId, SchemaVersion, ServerId};
use ebla_model::key::KeyRange;
use ebla_proto::{control, convert, record};
use futures::FutureExt;
use futures::future::join_all;
use tracing::debug;

use crate::cluster::{Cluster, Health, ReplicaReport, Role, Server, ServerReport};
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

/// The registered servers with their reports, all asked at once.
pub(crate) async fn observe_servers(office: &Office) -> Result<BTreeMap<ServerId, Server>, Error> {
    let registered = records::list_servers(office.chubby()).await?;
    let asked: Vec<_> = registered.into_iter().map(|(id, server)| observe_server(office, id, server).boxed()).collect();
    Ok(join_all(asked).await.into_iter().collect())
}

async fn observe_server(office: &Office, id: ServerId, server: record::Server) -> (ServerId, Server) {
    let report = match office.orders().report(id).await {
        Ok(reply) => Some(report_from_proto(&reply)),
        Err(refused) => {
            debug!(server = %id, error = %refused.error, "no report");
            None
        }
    };
    let incarnation = Incarnation::new(server.incarnation);
    (id, Server { address: server.address, incarnation, release: server.release, report })
}

fn report_from_proto(reply: &control::ReportReply) -> ServerReport {
    // A replica that cannot be understood is left out: it says nothing, which is the safe side everywhere.
    let replicas = reply.replicas.iter().filter_map(replica_from_proto).collect();
    ServerReport { replicas, log_bytes: reply.log_bytes }
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
        health: if report.quarantined { Health::Quarantined } else { Health::Sound },
    })
}

//! Drains of tablet servers, as an operator requests them: the records in Chubby. The planner does the rest
//! ([`crate::plan::drain`], [`crate::plan::repair`]).

use ebla_chubby::{Compare, TransactionOutcome, Write, paths};
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_proto::operate;
use tracing::info;

use crate::active::ActiveMaster;
use crate::plan::drain::{DrainedReplica, check_drain, check_removal, obstacle, replicas_on};
use crate::{observation, schema_store};

/// Drains a server, or determines what that would move. For one that is drained already: what is left.
///
/// # Errors
/// As [`check_drain`], unless the server is drained already; errors of Chubby.
pub(crate) async fn drain(
    master: &ActiveMaster,
    request: operate::DrainServerRequest,
) -> Result<operate::DrainServerReply, Error> {
    let server = ServerId::new(request.server);
    let snapshot = observation::observe_without_metadata(master).await?;
    let is_drained = snapshot.drained.contains(&server);
    let replicas = match check_drain(&snapshot, server) {
        Err(error) if !is_drained => {
            if !request.dry_run {
                record_refusal(master, ClusterEventKind::DrainRefused, server, &error);
            }
            return Err(error);
        }
        planned => planned.unwrap_or_else(|_obstacle| replicas_on(&snapshot, server)),
    };
    if !is_drained && !request.dry_run {
        let record = schema_store::encode_drained(master.runtime().clock.wall());
        master.transact(Vec::new(), vec![Write::put(paths::drained(server), record)]).await?;
        let detail = format!("{} replicas to move", replicas.len());
        record_event(master, ClusterEventKind::DrainRequested, server, &detail);
        info!(%server, replicas = replicas.len(), "drain of a tablet server requested");
    }
    if !request.dry_run {
        master.request_reconcile();
    }
    let obstacle = if is_drained { obstacle(&snapshot, server) } else { None };
    Ok(operate::DrainServerReply {
        drained: is_drained || !request.dry_run,
        replicas: replicas.iter().map(|replica| to_proto(replica, server)).collect(),
        changes: master.replica_changes().in_progress().len() as u64,
        obstacle: obstacle.unwrap_or_default(),
    })
}

fn to_proto(replica: &DrainedReplica, server: ServerId) -> operate::DrainedReplica {
    operate::DrainedReplica {
        group: replica.group.get(),
        replica: replica.replica.get(),
        tablets: replica.tablets,
        size_bytes: replica.size_bytes,
        leads: replica.leader == Some(server),
        to: replica.to.map_or(0, ServerId::get),
    }
}

fn record_event(master: &ActiveMaster, kind: ClusterEventKind, server: ServerId, detail: &str) {
    master.record_event(&NewClusterEvent::new(kind, detail).of_server(server));
}

/// Records that an order about a server was refused. One about a server that does not exist is a mistake, and says nothing about the cluster.
fn record_refusal(master: &ActiveMaster, kind: ClusterEventKind, server: ServerId, error: &Error) {
    if error.reason != Reason::NotFound {
        master.record_limited_event(&NewClusterEvent::new(kind, error.message.as_str()).of_server(server));
    }
}

/// Ends the drain of a server. Nothing moves back by that.
///
/// # Errors
/// Errors of Chubby.
pub(crate) async fn undrain(
    master: &ActiveMaster,
    request: operate::UndrainServerRequest,
) -> Result<operate::UndrainServerReply, Error> {
    let server = ServerId::new(request.server);
    let was_drained = schema_store::list_drained(master.chubby()).await?.contains(&server);
    if was_drained && !request.dry_run {
        master.transact(Vec::new(), vec![Write::delete(paths::drained(server))]).await?;
        record_event(master, ClusterEventKind::DrainEnded, server, "");
        info!(%server, "drain of a tablet server ended by request");
        master.request_reconcile();
    }
    Ok(operate::UndrainServerReply { was_drained })
}

/// Forgets a server.
///
/// # Errors
/// As [`check_removal`]; `Conflict` when it has registered meanwhile; errors of Chubby and of METADATA.
pub(crate) async fn remove(
    master: &ActiveMaster,
    request: operate::RemoveServerRequest,
) -> Result<operate::RemoveServerReply, Error> {
    let server = ServerId::new(request.server);
    let mut snapshot = observation::observe(master).await?;
    snapshot.servers.extend(observation::observe_unregistered(master, &snapshot).await);
    if let Err(error) = check_removal(&snapshot, server) {
        if !request.dry_run {
            record_refusal(master, ClusterEventKind::RemovalRefused, server, &error);
        }
        return Err(error);
    }
    if !request.dry_run {
        let unregistered = Compare::Absent(paths::server(server));
        match master.transact(vec![unregistered], vec![Write::delete(paths::drained(server))]).await? {
            TransactionOutcome::Committed(_) => {
                record_event(master, ClusterEventKind::ServerRemoved, server, "");
                info!(%server, "tablet server removed");
            }
            TransactionOutcome::Conflict => {
                let message =
                    format!("server {server} has registered meanwhile: stop its process first, then remove it");
                let error = Error::new(Reason::Conflict, message);
                record_refusal(master, ClusterEventKind::RemovalRefused, server, &error);
                return Err(error);
            }
        }
    }
    Ok(operate::RemoveServerReply {})
}

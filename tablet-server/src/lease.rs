//! This server in Chubby: who it is, and that it lives.
//!
//! `servers/<id>` stands under a lease. When the lease is lost the server opens a new session and puts the file back; it
//! does not stop serving meanwhile, for who may serve a tablet is decided by Raft alone (ARCHITECTURE.md, invariant 5).
//! The file is what the master counts its servers by and what others find its address by.
//!
//! A server's id is taken from a counter at the first start and kept in the registry together with the cluster's id, which
//! may be known later: until then an id that was taken and lost is no harm, because nothing lives under it.

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Counter, Outcome, SharedChubby, Write, next_ids, paths};
use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, Incarnation, ServerId};
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_storage::registry::{Identity, Registry};
use tokio::sync::watch;
use tracing::{info, warn};

/// The pause before Chubby is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(250);

/// This server's id: the registry's, or a new one.
///
/// # Errors
/// `FailedPrecondition` when the data folder belongs to another cluster; else what Chubby says.
pub async fn identify(registry: &Registry, chubby: &SharedChubby) -> Result<ServerId, Error> {
    let cluster = read_cluster(chubby).await?;
    if let Some(known) = registry.identity() {
        return match cluster {
            Some(other) if other != known.cluster => {
                let message =
                    format!("the data folder belongs to cluster {}, and this is cluster {other}", known.cluster);
                Err(Error::new(Reason::FailedPrecondition, message))
            }
            _ => Ok(known.server),
        };
    }
    let ids = next_ids(chubby.as_ref(), Counter::Servers, 1).await?;
    let server = ServerId::new(ids.start);
    if let Some(cluster) = cluster {
        registry.adopt(Identity { cluster, server })?;
    }
    Ok(server)
}

async fn read_cluster(chubby: &SharedChubby) -> Result<Option<ClusterId>, Error> {
    let Some(file) = chubby.read(paths::CLUSTER).await? else { return Ok(None) };
    let cluster: record::Cluster = convert::decode_record(file.value)?;
    let id = ClusterId::from_bytes(&cluster.cluster).ok_or_else(|| Error::damaged("a cluster id has 16 bytes"))?;
    Ok(Some(id))
}

/// What others learn of a server.
#[derive(Clone, Debug)]
pub struct Presence {
    /// The server.
    pub server: ServerId,
    /// `host:port` that others reach it by.
    pub address: String,
    /// This run of its process.
    pub incarnation: Incarnation,
    /// How long the file outlives a server that is silent.
    pub ttl: Duration,
}

/// Keeps `servers/<id>` in place for as long as `runtime.tasks` run; the receiver says whether it stands.
#[must_use]
pub fn keep(presence: Presence, chubby: SharedChubby, runtime: &Runtime) -> watch::Receiver<bool> {
    let (sender, registered) = watch::channel(false);
    let token = runtime.tasks.token();
    runtime.tasks.spawn("lease", async move {
        let mut session = None;
        let keeping = async {
            loop {
                if let Err(error) = hold(&presence, &chubby, &sender, &mut session).await {
                    warn!(server = %presence.server, %error, "cannot register with chubby");
                }
                sender.send_replace(false);
                tokio::time::sleep(PAUSE).await;
            }
        };
        token.run_until_cancelled(keeping).await;
        // A server that stops in order says so; one that crashes is missed when the lease ends.
        if let Some(session) = session {
            session.close().await;
        }
    });
    registered
}

/// Registers, and returns when the lease is lost.
async fn hold(
    presence: &Presence,
    chubby: &SharedChubby,
    registered: &watch::Sender<bool>,
    kept: &mut Option<Arc<dyn ebla_chubby::Session>>,
) -> Result<(), Error> {
    let session = Arc::clone(kept.insert(chubby.open_session(presence.ttl).await?));
    let value = convert::encode_record(record::Server {
        version: 0,
        server: presence.server.get(),
        address: presence.address.clone(),
        incarnation: presence.incarnation.get(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let write = Write::put_leased(paths::server(presence.server), value, session.lease());
    match chubby.transact(Vec::new(), vec![write]).await? {
        Outcome::Done(_) => {}
        Outcome::Conflict => return Err(Error::internal("a transaction without conditions met a conflict")),
    }
    info!(server = %presence.server, address = presence.address, "registered");
    registered.send_replace(true);
    session.lost().await;
    warn!(server = %presence.server, "lease lost");
    Ok(())
}

//! This server in Chubby: who it is, and that it lives.
//!
//! `servers/<id>` stands under a lease. When the lease is lost the server opens a new session and puts the file back; it
//! does not stop serving meanwhile, for who may serve a tablet is decided by Raft alone (ARCHITECTURE.md, invariant 5).
//! The file is what the master counts its servers by and what others find its address by.
//!
//! A server's id is taken from a counter at the first start and kept in the registry together with the cluster's id, which
//! may be known later: until then an id that was taken and lost is no harm, because nothing lives under it.
//!
//! A server that knows who it is starts without Chubby. It registers only where its own cluster stands, by a transaction
//! that compares the file: in another cluster its number is somebody else's.

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Compare, Counter, File, SharedChubby, TransactionOutcome, Write, next_ids, paths};
use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, Incarnation, ServerId};
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_storage::registry::{Identity, Registry};
use tokio::sync::watch;
use tracing::{error, info, warn};

/// The pause before Chubby is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(250);
/// The same while a first start waits for it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// This server's id: the registry's, or a new one, for which it waits until Chubby is there.
///
/// # Errors
/// What Chubby says, but that it is away.
pub async fn identify(registry: &Registry, chubby: &SharedChubby) -> Result<ServerId, Error> {
    if let Some(known) = registry.identity() {
        return Ok(known.server);
    }
    loop {
        match new_id(registry, chubby).await {
            Err(error) if error.reason == Reason::Unavailable => {
                warn!(%error, "a first start waits for Chubby, which gives it its number");
                tokio::time::sleep(FIRST_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn new_id(registry: &Registry, chubby: &SharedChubby) -> Result<ServerId, Error> {
    let cluster = chubby.read(paths::CLUSTER).await?.map(cluster_of).transpose()?;
    let ids = next_ids(chubby.as_ref(), Counter::Servers, 1).await?;
    let server = ServerId::new(ids.start);
    if let Some(cluster) = cluster {
        registry.adopt(Identity { cluster, server })?;
    }
    Ok(server)
}

fn cluster_of(file: File) -> Result<ClusterId, Error> {
    let cluster: record::Cluster = convert::decode_record(file.value)?;
    ClusterId::from_bytes(&cluster.cluster).ok_or_else(|| Error::damaged("a cluster id has 16 bytes"))
}

/// What must hold of Chubby for this server to register there.
///
/// # Errors
/// `FailedPrecondition` when another cluster stands there: this server has no place in it, for ever. `Unavailable` when
/// none does any more: somebody may bring it back.
fn place(own: Option<Identity>, found: Option<File>) -> Result<Compare, Error> {
    let path = paths::CLUSTER.to_owned();
    let Some(file) = found else {
        return match own {
            None => Ok(Compare::Absent(path)),
            Some(own) => {
                let message = format!("this server belongs to cluster {}, and there is none in chubby", own.cluster);
                Err(Error::new(Reason::Unavailable, message))
            }
        };
    };
    let seen = Compare::Created(path, file.created);
    let found = cluster_of(file)?;
    match own {
        Some(own) if own.cluster != found => Err(Error::new(
            Reason::FailedPrecondition,
            format!(
                "the data folder belongs to cluster {}, and this is cluster {found}: \
                 give it the lock service of its own cluster, or start with an empty folder",
                own.cluster
            ),
        )),
        _ => Ok(seen),
    }
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

/// How a server stands with Chubby.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Standing {
    /// Its file is not there, or not known to be.
    #[default]
    Absent,
    /// Its file is there.
    Registered,
    /// Another cluster is there, and it will not try again.
    Refused(Error),
}

/// Keeps `servers/<id>` in place for as long as `runtime.tasks` run; the receiver says how it stands.
#[must_use]
pub fn keep(
    presence: Presence,
    registry: Arc<Registry>,
    chubby: SharedChubby,
    runtime: &Runtime,
) -> watch::Receiver<Standing> {
    let (sender, standing) = watch::channel(Standing::Absent);
    let token = runtime.tasks.token();
    runtime.tasks.spawn("lease", async move {
        let mut session = None;
        let keeping = async {
            loop {
                match hold(&presence, &registry, &chubby, &sender, &mut session).await {
                    Err(error) if error.reason == Reason::FailedPrecondition => {
                        error!(server = %presence.server, %error, "has no place here");
                        sender.send_replace(Standing::Refused(error));
                        return;
                    }
                    Err(error) => warn!(server = %presence.server, %error, "cannot register with chubby"),
                    Ok(()) => {}
                }
                sender.send_replace(Standing::Absent);
                tokio::time::sleep(PAUSE).await;
            }
        };
        token.run_until_cancelled(keeping).await;
        // A server that stops in order says so; one that crashes is missed when the lease ends.
        if let Some(session) = session {
            session.close().await;
        }
        // Whoever waits for a word of this server's waits until its end.
        token.cancelled().await;
    });
    standing
}

/// Registers, and returns when the lease is lost.
async fn hold(
    presence: &Presence,
    registry: &Registry,
    chubby: &SharedChubby,
    standing: &watch::Sender<Standing>,
    kept: &mut Option<Arc<dyn ebla_chubby::Session>>,
) -> Result<(), Error> {
    let place = place(registry.identity(), chubby.read(paths::CLUSTER).await?)?;
    let session = Arc::clone(kept.insert(chubby.open_session(presence.ttl).await?));
    let value = convert::encode_record(record::Server {
        version: 0,
        server: presence.server.get(),
        address: presence.address.clone(),
        incarnation: presence.incarnation.get(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
    });
    let write = Write::put_leased(paths::server(presence.server), value, session.lease());
    match chubby.transact(vec![place], vec![write]).await? {
        TransactionOutcome::Committed(_) => {}
        TransactionOutcome::Conflict => {
            return Err(Error::new(Reason::Conflict, "the cluster in chubby changed meanwhile"));
        }
    }
    info!(server = %presence.server, address = presence.address, "registered");
    standing.send_replace(Standing::Registered);
    session.lost().await;
    warn!(server = %presence.server, "lease lost");
    Ok(())
}

#[cfg(test)]
mod tests {
    use ebla_chubby::Chubby as _;
    use ebla_chubby::embedded::Embedded;

    use super::*;

    const OURS: ClusterId = ClusterId::new(5);
    const SERVER: ServerId = ServerId::new(1);

    /// A Chubby, a registry, and a server that wants to register.
    struct House {
        folder: tempfile::TempDir,
        runtime: Runtime,
        chubby: Embedded,
    }

    impl House {
        fn new() -> Self {
            let runtime = Runtime::system("test");
            let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
            Self { folder: tempfile::tempdir().unwrap(), runtime, chubby }
        }

        fn registry(&self, cluster: ClusterId) -> Arc<Registry> {
            let registry = Registry::open(self.folder.path()).unwrap();
            registry.adopt(Identity { cluster, server: SERVER }).unwrap();
            Arc::new(registry)
        }

        async fn found(&self, cluster: ClusterId) {
            let cluster = record::Cluster { cluster: cluster.to_bytes().to_vec().into(), ..Default::default() };
            let write = Write::put(paths::CLUSTER, convert::encode_record(cluster));
            self.chubby.transact(Vec::new(), vec![write]).await.unwrap();
        }

        fn keep(&self, registry: Arc<Registry>) -> watch::Receiver<Standing> {
            let presence = Presence {
                server: SERVER,
                address: "host:1".to_owned(),
                incarnation: Incarnation::new(1),
                ttl: Duration::from_secs(10),
            };
            keep(presence, registry, self.chubby.shared(), &self.runtime)
        }

        async fn is_registered(&self) -> bool {
            self.chubby.read(&paths::server(SERVER)).await.unwrap().is_some()
        }
    }

    #[tokio::test]
    async fn a_server_registers_in_its_own_cluster_once_that_is_there() {
        let house = House::new();
        let mut standing = house.keep(house.registry(OURS));
        house.found(OURS).await;
        standing.wait_for(|standing| *standing == Standing::Registered).await.unwrap();
        assert!(house.is_registered().await);
    }

    #[tokio::test]
    async fn a_server_of_another_cluster_is_refused_and_leaves_no_trace() {
        let house = House::new();
        house.found(ClusterId::new(6)).await;
        let mut standing = house.keep(house.registry(OURS));
        let refused = standing.wait_for(|standing| matches!(standing, Standing::Refused(_))).await.unwrap().clone();
        let identity = Identity { cluster: OURS, server: SERVER };
        let file = house.chubby.read(paths::CLUSTER).await.unwrap();
        assert_eq!(refused, Standing::Refused(place(Some(identity), file).unwrap_err()));
        assert!(!house.is_registered().await);
    }

    #[test]
    fn a_server_registers_beside_the_cluster_that_it_has_seen_and_nowhere_else() {
        let created = ebla_chubby::Revision::new(3);
        let file = |cluster: ClusterId| {
            let cluster = record::Cluster { cluster: cluster.to_bytes().to_vec().into(), ..Default::default() };
            let value = convert::encode_record(cluster);
            File { path: paths::CLUSTER.to_owned(), value, created, modified: created, lease: None }
        };
        let own = Some(Identity { cluster: OURS, server: SERVER });
        let seen = Compare::Created(paths::CLUSTER.to_owned(), created);
        assert_eq!(place(None, None), Ok(Compare::Absent(paths::CLUSTER.to_owned())));
        assert_eq!(place(None, Some(file(OURS))), Ok(seen.clone()));
        assert_eq!(place(own, Some(file(OURS))), Ok(seen));
        let other = place(own, Some(file(ClusterId::new(6)))).unwrap_err();
        assert_eq!(other.reason, Reason::FailedPrecondition);
        assert!(other.message.contains(&OURS.to_string()), "{other}");
        assert_eq!(place(own, None).unwrap_err().reason, Reason::Unavailable, "it may come back");
    }
}

//! The registration lease: the file that shows that the server lives.
//!
//! `servers/<id>` is held by a lease. When the lease is lost the server opens a new session and writes the file again; it
//! keeps serving meanwhile, because Raft alone decides which replica may serve a tablet (ARCHITECTURE.md, invariant 5).
//! The master counts live servers by these files, and other servers find the address in them.
//!
//! A server registers only in its own cluster and only if it supports the active version, by a transaction that compares the cluster file:
//! in another cluster its id belongs to another server. It does not register either when its replicas were given up (`ebla tablet recover`): they belong to
//! groups that have gone on without them.

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{Compare, SharedChubby, TransactionOutcome, Write, paths};
use ebla_model::Reason;
use ebla_model::cluster_version::SupportedVersions;
use ebla_model::error::Error;
use ebla_model::id::{Incarnation, ServerId};
use ebla_model::zone::Zone;
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_storage::registry::Registry;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::identity::{check_not_lost, precondition};

/// The pause before a failed Chubby call is retried.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The content of a server's registration.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The server.
    pub server: ServerId,
    /// `host:port` under which other servers reach it.
    pub address: String,
    /// This start of its process.
    pub incarnation: Incarnation,
    /// Its zone.
    pub zone: Option<Zone>,
    /// The cluster versions that it supports.
    pub versions: SupportedVersions,
    /// The lease's time to live: how long the file outlives a server that stops renewing.
    pub ttl: Duration,
}

/// The state of a server's registration.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RegistrationStatus {
    /// The file does not exist, or is not known to exist.
    #[default]
    Unregistered,
    /// The file exists.
    Registered,
    /// Chubby belongs to another cluster or has an active version that this release does not support, or the server was given up as lost;
    /// it does not retry.
    Refused(Error),
}

/// Maintains `servers/<id>` for as long as `runtime.tasks` run; the receiver reports the registration's status.
#[must_use]
pub fn maintain(
    registration: Registration,
    registry: Arc<Registry>,
    chubby: SharedChubby,
    runtime: &Runtime,
) -> watch::Receiver<RegistrationStatus> {
    let (sender, status) = watch::channel(RegistrationStatus::Unregistered);
    let token = runtime.tasks.token();
    runtime.tasks.spawn("lease", async move {
        let mut session = None;
        let maintaining = async {
            loop {
                match register(&registration, &registry, &chubby, &sender, &mut session).await {
                    Err(error) if error.reason == Reason::FailedPrecondition => {
                        error!(server = %registration.server, %error, "registration refused; shutting down");
                        sender.send_replace(RegistrationStatus::Refused(error));
                        return;
                    }
                    Err(error) => {
                        warn!(server = %registration.server, %error, "registration in Chubby failed; retrying")
                    }
                    Ok(()) => {}
                }
                sender.send_replace(RegistrationStatus::Unregistered);
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        };
        token.run_until_cancelled(maintaining).await;
        // A graceful stop releases the lease; after a crash it expires.
        if let Some(session) = session {
            session.close().await;
        }
        // The sender must live until the server stops: `ready` waits for it.
        token.cancelled().await;
    });
    status
}

/// Registers the server. Returns when the lease is lost.
async fn register(
    registration: &Registration,
    registry: &Registry,
    chubby: &SharedChubby,
    status: &watch::Sender<RegistrationStatus>,
    session_slot: &mut Option<Arc<dyn ebla_chubby::Session>>,
) -> Result<(), Error> {
    let precondition = precondition(registry.identity(), registration.versions, chubby.read(paths::CLUSTER).await?)?;
    check_not_lost(registration.server, chubby).await?;
    let session = Arc::clone(session_slot.insert(chubby.open_session(registration.ttl).await?));
    let value = convert::encode_record(record::Server {
        version: 0,
        server: registration.server.get(),
        address: registration.address.clone(),
        incarnation: registration.incarnation.get(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        zone: registration.zone.as_ref().map(Zone::to_string).unwrap_or_default(),
        versions: Some(convert::supported_to_proto(registration.versions)),
    });
    let write = Write::put_leased(paths::server(registration.server), value, session.lease());
    let not_lost = Compare::Absent(paths::lost(registration.server));
    match chubby.transact(vec![precondition, not_lost], vec![write]).await? {
        TransactionOutcome::Committed(_) => {}
        TransactionOutcome::Conflict => {
            return Err(Error::new(
                Reason::Conflict,
                "the files of the cluster and of lost servers in Chubby changed during registration",
            ));
        }
    }
    info!(server = %registration.server, address = registration.address, "registered in Chubby");
    status.send_replace(RegistrationStatus::Registered);
    session.lost().await;
    warn!(server = %registration.server, "Chubby lease expired; registering again");
    Ok(())
}

#[cfg(test)]
mod tests {
    use ebla_chubby::Chubby as _;
    use ebla_chubby::embedded::Embedded;
    use ebla_model::cluster_version::ClusterVersion;
    use ebla_model::id::ClusterId;
    use ebla_storage::registry::Identity;

    use super::*;
    use crate::registration::check_version;

    const OURS: ClusterId = ClusterId::new(5);
    const SERVER: ServerId = ServerId::new(1);

    /// A Chubby, a registry, and a server that registers.
    struct Fixture {
        folder: tempfile::TempDir,
        runtime: Runtime,
        chubby: Embedded,
    }

    impl Fixture {
        fn new() -> Self {
            let runtime = Runtime::system("test");
            let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
            Self { folder: tempfile::tempdir().unwrap(), runtime, chubby }
        }

        fn registry(&self, cluster: ClusterId) -> Arc<Registry> {
            let registry = Registry::open(self.folder.path()).unwrap();
            registry.set_identity(Identity { cluster, server: SERVER }).unwrap();
            Arc::new(registry)
        }

        async fn create_cluster(&self, cluster: ClusterId) {
            let cluster = record::Cluster { cluster: cluster.to_bytes().to_vec().into(), ..Default::default() };
            let write = Write::put(paths::CLUSTER, convert::encode_record(cluster));
            self.chubby.transact(Vec::new(), vec![write]).await.unwrap();
        }

        fn maintain(&self, registry: Arc<Registry>) -> watch::Receiver<RegistrationStatus> {
            let registration = Registration {
                server: SERVER,
                address: "host:1".to_owned(),
                incarnation: Incarnation::new(1),
                zone: None,
                versions: SupportedVersions::OWN,
                ttl: Duration::from_secs(10),
            };
            maintain(registration, registry, self.chubby.shared(), &self.runtime)
        }

        async fn is_registered(&self) -> bool {
            self.chubby.read(&paths::server(SERVER)).await.unwrap().is_some()
        }
    }

    #[tokio::test]
    async fn a_server_registers_once_its_cluster_exists() {
        let fixture = Fixture::new();
        let mut status = fixture.maintain(fixture.registry(OURS));
        fixture.create_cluster(OURS).await;
        status.wait_for(|status| *status == RegistrationStatus::Registered).await.unwrap();
        assert!(fixture.is_registered().await);
    }

    #[tokio::test]
    async fn a_server_of_another_cluster_is_refused_and_writes_nothing() {
        let fixture = Fixture::new();
        fixture.create_cluster(ClusterId::new(6)).await;
        let mut status = fixture.maintain(fixture.registry(OURS));
        let refused = status.wait_for(|status| matches!(status, RegistrationStatus::Refused(_))).await.unwrap().clone();
        let identity = Identity { cluster: OURS, server: SERVER };
        let file = fixture.chubby.read(paths::CLUSTER).await.unwrap();
        assert_eq!(
            refused,
            RegistrationStatus::Refused(precondition(Some(identity), SupportedVersions::OWN, file).unwrap_err())
        );
        assert!(!fixture.is_registered().await);
    }

    #[tokio::test]
    async fn a_server_registers_its_versions_and_is_refused_while_a_later_one_is_active() {
        let fixture = Fixture::new();
        fixture.create_cluster(OURS).await;
        let mut status = fixture.maintain(fixture.registry(OURS));
        status.wait_for(|status| *status == RegistrationStatus::Registered).await.unwrap();
        let file = fixture.chubby.read(&paths::server(SERVER)).await.unwrap().unwrap();
        let registered: record::Server = convert::decode_record(file.value).unwrap();
        assert_eq!(convert::supported_from_proto(registered.versions.as_ref()), SupportedVersions::OWN);

        let fixture = Fixture::new();
        let cluster = record::Cluster {
            cluster: OURS.to_bytes().to_vec().into(),
            active_version: ClusterVersion::NEWEST.next().get(),
            ..Default::default()
        };
        let write = Write::put(paths::CLUSTER, convert::cluster_to_bytes(cluster));
        fixture.chubby.transact(Vec::new(), vec![write]).await.unwrap();
        let mut status = fixture.maintain(fixture.registry(OURS));
        let refused = status.wait_for(|status| matches!(status, RegistrationStatus::Refused(_))).await.unwrap().clone();
        let expected = check_version(SupportedVersions::OWN, ClusterVersion::NEWEST.next()).unwrap_err();
        assert_eq!(refused, RegistrationStatus::Refused(expected));
        assert!(!fixture.is_registered().await);
    }
}

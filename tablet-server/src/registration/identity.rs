//! The server's identity: its id, and the cluster that it belongs to.
//!
//! A server's id is taken from a counter at the first start and stored in the registry together with the cluster's id, which
//! may become known later: an id that is allocated and lost before that does no harm, because nothing uses it. A server
//! that has an id starts without Chubby.
//!
//! A server belongs to a cluster only if its release supports the active cluster version.

use std::time::Duration;

use ebla_chubby::{Compare, Counter, File, SharedChubby, next_ids, paths};
use ebla_model::Reason;
use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, ServerId};
use ebla_proto::{convert, record};
use ebla_storage::registry::{Identity, Registry};
use tracing::warn;

/// The pause before a failed Chubby call is retried at a first start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a start waits for Chubby's answer whether the server is excluded.
const EXCLUSION_TIMEOUT: Duration = Duration::from_secs(1);

/// This server's id: from the registry, or newly allocated. Allocation waits until Chubby is available.
///
/// # Errors
/// Errors of Chubby other than `Unavailable`; as [`check_version`].
pub async fn identify(registry: &Registry, chubby: &SharedChubby) -> Result<ServerId, Error> {
    if let Some(known) = registry.identity() {
        return Ok(known.server);
    }
    loop {
        match new_id(registry, chubby).await {
            Err(error) if error.reason == Reason::Unavailable => {
                warn!(%error, "waiting for Chubby to assign a server id (first start)");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn new_id(registry: &Registry, chubby: &SharedChubby) -> Result<ServerId, Error> {
    let cluster = chubby.read(paths::CLUSTER).await?.map(cluster_id).transpose()?;
    let ids = next_ids(chubby.as_ref(), Counter::Servers, 1).await?;
    let server = ServerId::new(ids.start);
    if let Some(cluster) = cluster {
        registry.set_identity(Identity { cluster, server })?;
    }
    Ok(server)
}

/// Fails when this release does not support the active version.
///
/// # Errors
/// `FailedPrecondition`, with the release to start instead.
pub fn check_version(active: ClusterVersion) -> Result<(), Error> {
    SupportedVersions::OWN.check(active, env!("CARGO_PKG_VERSION"))
}

/// The cluster of the cluster file, if this release supports its active version.
fn cluster_id(file: File) -> Result<ClusterId, Error> {
    let cluster: record::Cluster = convert::decode_record(file.value)?;
    check_version(convert::active_version(&cluster))?;
    ClusterId::from_bytes(&cluster.cluster).ok_or_else(|| Error::damaged("cluster id is not 16 bytes long"))
}

/// Fails when the replicas of this server were given up: they must never vote again.
///
/// # Errors
/// `FailedPrecondition` when they were; errors of Chubby.
pub(super) async fn check_not_lost(server: ServerId, chubby: &SharedChubby) -> Result<(), Error> {
    if chubby.read(&paths::lost(server)).await?.is_none() {
        return Ok(());
    }
    let message = format!(
        "tablet server {server} was given up as lost (ebla tablet recover), and its groups have gone on without it: delete its data \
         folder, and start it with an empty one"
    );
    Err(Error::new(Reason::FailedPrecondition, message))
}

/// Fails when the replicas of this server were given up, or when its release does not support the active version, before the first one
/// starts. Without Chubby a server starts; then its registration is refused when Chubby is back.
///
/// # Errors
/// `FailedPrecondition` when the server must not start.
pub async fn refuse_if_excluded(server: ServerId, chubby: &SharedChubby) -> Result<(), Error> {
    let checked = async {
        check_not_lost(server, chubby).await?;
        chubby.read(paths::CLUSTER).await?.map(cluster_id).transpose()
    };
    match tokio::time::timeout(EXCLUSION_TIMEOUT, checked).await {
        Ok(Err(error)) if error.reason == Reason::FailedPrecondition => Err(error),
        Ok(Ok(_) | Err(_)) | Err(_) => Ok(()),
    }
}

/// The precondition on Chubby's cluster file under which this server may register: it is as it was read, so no other version has become
/// active since.
///
/// # Errors
/// `FailedPrecondition` when Chubby belongs to another cluster, or when this release does not support the active version. `Unavailable` when
/// Chubby has no cluster file: an operator may restore it.
pub(super) fn precondition(own: Option<Identity>, found: Option<File>) -> Result<Compare, Error> {
    let path = paths::CLUSTER.to_owned();
    let Some(file) = found else {
        return match own {
            None => Ok(Compare::Absent(path)),
            Some(own) => {
                let message = format!(
                    "this server belongs to cluster {}, but Chubby has no cluster file: restore a backup of etcd, or run ebla \
                     recover",
                    own.cluster
                );
                Err(Error::new(Reason::Unavailable, message))
            }
        };
    };
    let seen = Compare::Modified(path, file.modified);
    let found = cluster_id(file)?;
    match own {
        Some(own) if own.cluster != found => Err(Error::new(
            Reason::FailedPrecondition,
            format!(
                "data folder belongs to cluster {}, but Chubby belongs to cluster {found}: \
                 connect to the Chubby of the server's own cluster, or start with an empty data folder",
                own.cluster
            ),
        )),
        _ => Ok(seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId::new(5);
    const SERVER: ServerId = ServerId::new(1);

    #[test]
    fn registration_requires_the_cluster_file_that_was_read() {
        let (created, modified) = (ebla_chubby::Revision::new(3), ebla_chubby::Revision::new(4));
        let file = |cluster: ClusterId| {
            let cluster = record::Cluster { cluster: cluster.to_bytes().to_vec().into(), ..Default::default() };
            let value = convert::encode_record(cluster);
            File { path: paths::CLUSTER.to_owned(), value, created, modified, lease: None }
        };
        let own = Some(Identity { cluster: OURS, server: SERVER });
        let seen = Compare::Modified(paths::CLUSTER.to_owned(), modified);
        assert_eq!(precondition(None, None), Ok(Compare::Absent(paths::CLUSTER.to_owned())));
        assert_eq!(precondition(None, Some(file(OURS))), Ok(seen.clone()));
        assert_eq!(precondition(own, Some(file(OURS))), Ok(seen));
        let other = precondition(own, Some(file(ClusterId::new(6)))).unwrap_err();
        assert_eq!(other.reason, Reason::FailedPrecondition);
        assert!(other.message.contains(&OURS.to_string()), "{other}");
        assert_eq!(precondition(own, None).unwrap_err().reason, Reason::Unavailable, "it may come back");
    }

    #[tokio::test]
    async fn a_server_of_an_earlier_release_does_not_join_a_later_cluster_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::open(folder.path()).unwrap();
        let runtime = ebla_runtime::Runtime::system("test");
        let chubby = ebla_chubby::embedded::Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let later = record::Cluster { version: convert::VERSION + 2, ..Default::default() };
        let write = ebla_chubby::Write::put(paths::CLUSTER, prost::Message::encode_to_vec(&later));
        chubby.transact(Vec::new(), vec![write]).await.unwrap();
        let refused = identify(&registry, &chubby).await.unwrap_err();
        assert!(refused.message.contains("has version 3, this release supports versions up to 2"), "{refused}");
        assert_eq!(registry.identity(), None);
        let file = chubby.read(paths::CLUSTER).await.unwrap();
        let own = Some(Identity { cluster: OURS, server: SERVER });
        assert_eq!(precondition(own, file), Err(refused), "a server with an identity does not register either");
        assert_eq!(chubby.list("").await.unwrap().0.len(), 1, "not even an id was taken");
    }
}

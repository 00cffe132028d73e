//! The server's identity: its id, and the cluster that it belongs to.
//!
//! A server's id is taken from a counter at the first start and stored in the registry together with the cluster's id, which
//! may become known later: an id that is allocated and lost before that does no harm, because nothing uses it. A server
//! that has an id starts without Chubby.
//!
//! Chubby may have been restored from an older backup, and then its counter gives ids of servers that exist. Two servers with one id would be
//! one voter with two memories, so an acknowledged write could be lost. So a new server of a cluster that runs first asks the
//! registered servers for the highest id that they know, and takes none while the counter is not above it or while it is recorded that
//! Chubby lacks changes. It takes nothing from such a counter: the master finds out by it that Chubby is behind.
//!
//! A server belongs to a cluster only if its release supports the active cluster version.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_chubby::{Chubby, Compare, Counter, File, SharedChubby, next_id_above, paths};
use ebla_client::channel::Channels;
use ebla_model::Reason;
use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::error::Error;
use ebla_model::id::{ClusterId, ServerId};
use ebla_proto::record::ClusterState;
use ebla_proto::{convert, record};
use ebla_runtime::net::Windows;
use ebla_runtime::{Clock, Runtime};
use ebla_storage::registry::{Identity, Registry};
use tracing::warn;

use crate::evidence::highest_ids_at;

/// The pause before a failed Chubby call is retried at a first start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long a start waits for Chubby's answer whether the server is excluded.
const EXCLUSION_TIMEOUT: Duration = Duration::from_secs(1);
/// For so long a new server waits for the servers with METADATA, as a master does: after a restoration of Chubby, servers register again within a
/// lease. Then it goes on without them, because they may be lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// This server's id: from the registry, or newly allocated. Allocation waits until Chubby is available, and until its counter is known to
/// be above the ids that are in use.
///
/// # Errors
/// Errors of Chubby other than `Unavailable`; as [`check_version`].
pub async fn identify(
    registry: &Registry,
    versions: SupportedVersions,
    chubby: &SharedChubby,
    runtime: &Runtime,
) -> Result<ServerId, Error> {
    if let Some(known) = registry.identity() {
        return Ok(known.server);
    }
    let mut others = OtherServers::new(runtime, PATIENCE);
    loop {
        match new_id(registry, versions, chubby, &mut others).await {
            Err(error) if error.reason == Reason::Unavailable => {
                warn!(%error, "waiting for Chubby to assign a server id (first start)");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}

async fn new_id(
    registry: &Registry,
    versions: SupportedVersions,
    chubby: &SharedChubby,
    others: &mut OtherServers,
) -> Result<ServerId, Error> {
    let chubby: &dyn Chubby = chubby.as_ref();
    let cluster = chubby.read(paths::CLUSTER).await?.map(|file| decode_cluster(file, versions)).transpose()?;
    if chubby.read(paths::BEHIND).await?.is_some() {
        let message = "the lock service was restored from an older backup or has lost data, and may give the id of another server; a new \
                       server waits until it is recovered: ebla recover --dry-run shows what is missing";
        return Err(Error::new(Reason::Unavailable, message));
    }
    let known = match cluster {
        Some((_cluster, ClusterState::Running)) => others.highest_id(chubby).await?,
        // A new cluster. If Chubby was emptied, its recovery is refused until this server is stopped.
        Some(_) | None => ServerId::default(),
    };
    let Some(id) = next_id_above(chubby, Counter::Servers, known.get()).await? else {
        let message = format!(
            "the counter servers of the lock service is not above {known}, which is in use: it was restored from an older backup; a new \
             server waits until a master has raised the counter, and for ebla recover"
        );
        return Err(Error::new(Reason::Unavailable, message));
    };
    let server = ServerId::new(id);
    if let Some((cluster, _state)) = cluster {
        registry.set_identity(Identity { cluster, server })?;
    }
    Ok(server)
}

/// The registered servers, which a new one asks for the highest id that they know.
struct OtherServers {
    channels: Channels,
    clock: Clock,
    /// For how long too few of them may have responded.
    patience: Duration,
    /// Since when too few of them have responded.
    missing_since: Option<Duration>,
}

impl OtherServers {
    fn new(runtime: &Runtime, patience: Duration) -> Self {
        let channels = Channels::to_peers(runtime, Windows::CALLS);
        Self { channels, clock: runtime.clock.clone(), patience, missing_since: None }
    }

    /// The highest id of a server that they know. After a restoration of Chubby none may be registered yet, so a majority of the servers with
    /// METADATA must have responded: each of them has seen the registrations of all others.
    ///
    /// # Errors
    /// `Unavailable` until they have responded, as long as its patience lasts; errors of Chubby.
    async fn highest_id(&mut self, chubby: &dyn Chubby) -> Result<ServerId, Error> {
        let (files, _revision) = chubby.list(paths::SERVERS).await?;
        let registered = files.iter().filter_map(|file| paths::parse_server(&file.path)).max().unwrap_or_default();
        let decode = |file: File| convert::decode_record::<record::Server>(file.value).ok();
        let addresses: BTreeSet<String> = files.into_iter().filter_map(decode).map(|server| server.address).collect();
        let answers = highest_ids_at(&self.channels, addresses).await;
        let highest = answers.values().map(|known| known.server).fold(registered, ServerId::max);
        let root =
            chubby.read(paths::ROOT).await?.map(|file| convert::descriptor_from_bytes(file.value)).transpose()?;
        let has_answered = |server: ServerId| answers.contains_key(&server);
        if root.is_some_and(|root| root.membership.has_majority(|replica| has_answered(replica.server))) {
            return Ok(highest);
        }
        let now = self.clock.monotonic();
        let missing_since = *self.missing_since.get_or_insert(now);
        if now.saturating_sub(missing_since) < self.patience {
            let message = "most of the tablet servers with METADATA do not respond, so it is not known yet which ids of servers are in use";
            return Err(Error::new(Reason::Unavailable, message));
        }
        warn!(
            known = %highest,
            "taking a server id although most of the servers with METADATA do not respond; do not do this after etcd was restored"
        );
        Ok(highest)
    }
}

/// Fails when a process that supports `versions` does not support the active one.
///
/// # Errors
/// `FailedPrecondition`, with the release to start instead.
pub fn check_version(versions: SupportedVersions, active: ClusterVersion) -> Result<(), Error> {
    versions.check(active, env!("CARGO_PKG_VERSION"))
}

/// The cluster of the cluster file, if its active version is supported.
fn cluster_id(file: File, versions: SupportedVersions) -> Result<ClusterId, Error> {
    decode_cluster(file, versions).map(|(cluster, _state)| cluster)
}

/// As [`cluster_id`], with the state of the cluster.
fn decode_cluster(file: File, versions: SupportedVersions) -> Result<(ClusterId, ClusterState), Error> {
    let cluster: record::Cluster = convert::decode_record(file.value)?;
    check_version(versions, convert::active_version(&cluster))?;
    let id =
        ClusterId::from_bytes(&cluster.cluster).ok_or_else(|| Error::damaged("cluster id is not 16 bytes long"))?;
    Ok((id, cluster.state()))
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

/// Fails when the replicas of this server were given up, or when it does not support the active version, before the first one
/// starts. Without Chubby a server starts; then its registration is refused when Chubby is back.
///
/// # Errors
/// `FailedPrecondition` when the server must not start.
pub async fn refuse_if_excluded(
    server: ServerId,
    versions: SupportedVersions,
    chubby: &SharedChubby,
) -> Result<(), Error> {
    let checked = async {
        check_not_lost(server, chubby).await?;
        chubby.read(paths::CLUSTER).await?.map(|file| cluster_id(file, versions)).transpose()
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
/// `FailedPrecondition` when Chubby belongs to another cluster, or when the active version is none of `versions`. `Unavailable` when Chubby
/// has no cluster file: an operator may restore it.
pub(super) fn precondition(
    own: Option<Identity>,
    versions: SupportedVersions,
    found: Option<File>,
) -> Result<Compare, Error> {
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
    let found = cluster_id(file, versions)?;
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
    const OWN: SupportedVersions = SupportedVersions::OWN;

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
        assert_eq!(precondition(None, OWN, None), Ok(Compare::Absent(paths::CLUSTER.to_owned())));
        assert_eq!(precondition(None, OWN, Some(file(OURS))), Ok(seen.clone()));
        assert_eq!(precondition(own, OWN, Some(file(OURS))), Ok(seen));
        let other = precondition(own, OWN, Some(file(ClusterId::new(6)))).unwrap_err();
        assert_eq!(other.reason, Reason::FailedPrecondition);
        assert!(other.message.contains(&OURS.to_string()), "{other}");
        assert_eq!(precondition(own, OWN, None).unwrap_err().reason, Reason::Unavailable, "it may come back");
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
        let refused = identify(&registry, OWN, &chubby, &runtime).await.unwrap_err();
        assert!(refused.message.contains("has version 3, this release supports versions up to 2"), "{refused}");
        assert_eq!(registry.identity(), None);
        let file = chubby.read(paths::CLUSTER).await.unwrap();
        let own = Some(Identity { cluster: OURS, server: SERVER });
        assert_eq!(precondition(own, OWN, file), Err(refused), "a server with an identity does not register either");
        assert_eq!(chubby.list("").await.unwrap().0.len(), 1, "not even an id was taken");
    }

    /// A Chubby with a cluster that runs, and with a server that is registered and does not respond: it has this id, and METADATA.
    async fn running_cluster(runtime: &Runtime, server: ServerId) -> SharedChubby {
        let chubby = ebla_chubby::embedded::Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let cluster = record::Cluster {
            cluster: OURS.to_bytes().to_vec().into(),
            state: ClusterState::Running.into(),
            ..Default::default()
        };
        let silent = record::Server { server: server.get(), address: "127.0.0.1:1".to_owned(), ..Default::default() };
        let [root, _rest] = ebla_model::metadata::first_tablets(&[server]);
        let writes = vec![
            ebla_chubby::Write::put(paths::CLUSTER, convert::encode_record(cluster)),
            ebla_chubby::Write::put(paths::server(server), convert::encode_record(silent)),
            ebla_chubby::Write::put(paths::ROOT, convert::descriptor_to_bytes(&root)),
        ];
        chubby.transact(Vec::new(), writes).await.unwrap();
        chubby
    }

    #[tokio::test]
    async fn a_new_server_takes_no_id_from_a_counter_that_has_gone_back() {
        let (folder, runtime) = (tempfile::tempdir().unwrap(), Runtime::system("test"));
        let registry = Registry::open(folder.path()).unwrap();
        let chubby = running_cluster(&runtime, ServerId::new(4)).await;
        let mut others = OtherServers::new(&runtime, Duration::ZERO);
        let refused = new_id(&registry, OWN, &chubby, &mut others).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Unavailable, "it waits");
        assert!(refused.message.contains("the counter servers of the lock service is not above 4"), "{refused}");
        assert!(chubby.read(&Counter::Servers.path()).await.unwrap().is_none(), "nothing was taken");

        ebla_chubby::raise_counter(chubby.as_ref(), Counter::Servers, 5).await.unwrap();
        chubby.transact(Vec::new(), vec![ebla_chubby::Write::put(paths::BEHIND, "restored")]).await.unwrap();
        let refused = new_id(&registry, OWN, &chubby, &mut others).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Unavailable, "it waits");
        assert!(refused.message.contains("ebla recover --dry-run"), "{refused}");
        chubby.transact(Vec::new(), vec![ebla_chubby::Write::delete(paths::BEHIND)]).await.unwrap();
        assert_eq!(new_id(&registry, OWN, &chubby, &mut others).await, Ok(ServerId::new(5)));
        assert_eq!(registry.identity(), Some(Identity { cluster: OURS, server: ServerId::new(5) }));
    }

    #[tokio::test]
    async fn a_new_server_waits_for_the_servers_with_metadata() {
        let (folder, runtime) = (tempfile::tempdir().unwrap(), Runtime::system("test"));
        let registry = Registry::open(folder.path()).unwrap();
        let chubby = running_cluster(&runtime, ServerId::new(1)).await;
        ebla_chubby::raise_counter(chubby.as_ref(), Counter::Servers, 2).await.unwrap();
        let mut others = OtherServers::new(&runtime, Duration::from_secs(3600));
        let refused = new_id(&registry, OWN, &chubby, &mut others).await.unwrap_err();
        assert_eq!(refused.reason, Reason::Unavailable, "it waits");
        assert!(refused.message.contains("servers with METADATA do not respond"), "{refused}");
        others.patience = Duration::ZERO;
        assert_eq!(new_id(&registry, OWN, &chubby, &mut others).await, Ok(ServerId::new(2)), "they may be lost");
    }
}

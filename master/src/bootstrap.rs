//! The first steps of a new active master: the cluster's identity, and, once in the life of a cluster, its bootstrap.
//!
//! ```text
//!   cluster absent          wait for servers, write it: id, first tablets, `bootstrapping`
//!   cluster bootstrapping   create METADATA's group with exactly those tablets, write `root`, list them in METADATA, set `running`
//!   cluster running         create nothing, whatever is missing: only an operator can restore a lost root tablet (not its location)
//! ```
//!
//! Each step is idempotent, so any master continues where another one stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_chubby::{Compare, TransactionOutcome, Write, paths};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, ServerId, TabletId};
use ebla_model::metadata::{GroupDescriptor, first_tablets};
use ebla_proto::convert;
use ebla_proto::record::{self, ClusterState};
use ebla_routing::Annotations;
use ebla_runtime::{Rng, Runtime};
use futures::future::try_join_all;
use tokio::sync::watch;
use tracing::info;

use crate::active::ActiveMaster;
use crate::election::MasterLock;
use crate::plan::upgrade::Hold;
use crate::schema_store::{self, Identity, Stored};
use crate::server_client::InitialState;
use crate::{events, upgrade};

/// How long listing the first tablets may take, which includes their first elections.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// A start in which all servers register at once logs nothing.
const LOG_AFTER: Duration = Duration::from_secs(1);
/// The delay after a server failed to create a replica.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The cluster's identity, created now if there is none. `bootstrap_servers`: the number of servers that the first
/// start waits for. `pending`: shows the registered ones while it waits.
pub(crate) async fn identify(
    lock: &MasterLock,
    bootstrap_servers: usize,
    pending: &watch::Sender<Option<PendingBootstrap>>,
    rng: &Rng,
) -> Result<Stored<Identity>, Error> {
    loop {
        if let Some(identity) = schema_store::read_identity(&**lock.chubby()).await? {
            return Ok(identity);
        }
        let Some(servers) = wait_for_servers(lock, bootstrap_servers, pending).await? else { continue };
        let processes = schema_store::list_processes(&**lock.chubby()).await?;
        let active = upgrade::first_version(&processes);
        let identity = Identity {
            cluster: ClusterId::new(rng.u128()),
            state: ClusterState::Bootstrapping,
            epoch_base: 0,
            first_tablets: first_tablets(&servers).to_vec(),
            active,
            hold: Hold::Released,
        };
        let write = Write::put(paths::CLUSTER, schema_store::encode_identity(&identity));
        let mut conditions = processes.unchanged;
        conditions.push(Compare::Absent(paths::CLUSTER.to_owned()));
        if lock.transact(conditions, vec![write]).await? == TransactionOutcome::Conflict {
            // One that registered meanwhile may support an earlier version only.
            continue;
        }
        info!(cluster = %identity.cluster, ?servers, version = %active, "created a new cluster");
    }
}

/// The state of a new cluster that waits for tablet servers. If they have an older cluster, Chubby has lost its content, and
/// they do not register until it is recovered.
#[derive(Clone, Debug)]
pub(crate) struct PendingBootstrap {
    /// The right to change Chubby's files.
    pub(crate) lock: MasterLock,
    /// The registered servers.
    pub(crate) registered: BTreeMap<ServerId, record::Server>,
    /// The number of servers required.
    pub(crate) required: usize,
}

/// Waits until `count` servers are registered, and returns that many; `None` when the cluster was created meanwhile, by a
/// recovery. While it waits, `pending` shows the registered
/// ones; a wait longer than [`LOG_AFTER`] is logged.
async fn wait_for_servers(
    lock: &MasterLock,
    count: usize,
    pending: &watch::Sender<Option<PendingBootstrap>>,
) -> Result<Option<Vec<ServerId>>, Error> {
    let required = count.max(1);
    let mut logged = None;
    loop {
        let chubby = lock.chubby();
        // The revision is read first: later registrations wake the watch.
        let (_files, revision) = chubby.list(paths::SERVERS).await?;
        if schema_store::read_identity(&**chubby).await?.is_some() {
            pending.send_replace(None);
            return Ok(None);
        }
        let registered = schema_store::list_servers(&**chubby).await?;
        if registered.len() >= required {
            pending.send_replace(None);
            return Ok(Some(registered.into_keys().take(required).collect()));
        }
        let count = registered.len();
        pending.send_replace(Some(PendingBootstrap { lock: lock.clone(), registered, required }));
        let mut servers = chubby.watch(paths::SERVERS, revision).await?;
        let mut cluster = chubby.watch(paths::CLUSTER, revision).await?;
        let changed = async {
            tokio::select! {
                _ = servers.next() => {}
                _ = cluster.next() => {}
            }
        };
        tokio::pin!(changed);
        if logged != Some(count) && tokio::time::timeout(LOG_AFTER, &mut changed).await.is_err() {
            events::log_waiting(count, required);
            logged = Some(count);
            changed.await;
        } else if logged == Some(count) {
            changed.await;
        }
    }
}

/// Creates the first tablets, unless that was finished before.
pub(crate) async fn bootstrap(master: &ActiveMaster, identity: &Identity) -> Result<(), Error> {
    if identity.state == ClusterState::Running {
        return Ok(());
    }
    let root = identity.first_tablets.iter().find(|tablet| tablet.tablet == TabletId::ROOT);
    let root = root.ok_or_else(|| Error::damaged("the cluster record names no root tablet"))?;
    create_all_replicas(master, &root.group_descriptor()).await?;
    let write = Write::put(paths::ROOT, convert::descriptor_to_bytes(root));
    // A conflict means that another master has written it.
    master.transact(vec![Compare::Absent(paths::ROOT.to_owned())], vec![write]).await?;
    for tablet in &identity.first_tablets {
        let deadline = master.deadline(LIST_TIMEOUT);
        master.metadata().put_descriptor(tablet, &Annotations::default(), deadline).await?;
    }
    set_running(master).await
}

/// Creates all replicas of METADATA's group: a cluster starts with the number that was configured. Their seed has the
/// first tablets.
async fn create_all_replicas(master: &ActiveMaster, group: &GroupDescriptor) -> Result<(), Error> {
    let created = group.membership.replicas().map(|replica| async move {
        let create = || master.servers().create_replica(replica.server, group, replica.replica, InitialState::Seed);
        retry_until_done(master.runtime(), || async { create().await.map_err(|failed| failed.error) }).await
    });
    try_join_all(created).await.map(drop)
}

/// Retries until this master is no longer active: nothing else can be done before the first tablets exist.
async fn retry_until_done<T, F>(runtime: &Runtime, attempt: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if error.reason == Reason::StaleEpoch => return Err(error),
            Err(error) => info!(%error, "cannot create the first tablets yet; retrying"),
        }
        tokio::time::sleep(runtime.rng.jitter(RETRY_DELAY)).await;
    }
}

async fn set_running(master: &ActiveMaster) -> Result<(), Error> {
    let stored = schema_store::read_identity(master.chubby()).await?;
    let Stored { value, modified } = stored.ok_or_else(|| Error::damaged("the cluster record is missing"))?;
    let running = Identity { state: ClusterState::Running, ..value };
    let write = Write::put(paths::CLUSTER, schema_store::encode_identity(&running));
    let compare = Compare::Modified(paths::CLUSTER.to_owned(), modified);
    match master.transact(vec![compare], vec![write]).await? {
        TransactionOutcome::Committed(_) => info!(cluster = %running.cluster, "cluster bootstrapped"),
        // Only the active master writes it, which is this process.
        TransactionOutcome::Conflict => return Err(Error::new(Reason::Conflict, "the cluster record changed")),
    }
    Ok(())
}

//! The directory of processes with access to Chubby: a snapshot of its files that a watch keeps up to date.
//!
//! While Chubby is unavailable the snapshot stays as it is. A watch with a gap starts again with a list, which replaces
//! the whole snapshot. A table that is not in the snapshot is read from Chubby before the directory reports it as
//! missing: the snapshot may be slightly behind a table that was just created.
//!
//! A server stores the snapshot in its folder and loads it after a restart, so it finds its cluster while Chubby is
//! unavailable. The snapshot is always a hint: Raft decides who leads, and tablets know their ranges.
//!
//! A snapshot belongs to one cluster permanently. Files of another cluster, or of none, are rejected: Chubby was
//! emptied, or belongs to another cluster, and its addresses may be those of foreign servers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::{File, SharedChubby, WatchEvent, WatchStream, paths};
use ebla_client::{Directory, Freshness};
use ebla_model::access::{AuthorizedView, Policy, TableAccess, ViewName};
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::{convert, record};
use ebla_runtime::{Clock, Runtime};
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tracing::warn;

use crate::snapshot::{ActiveMaster, ClusterSnapshot, parse_id};

/// The delay before the next attempt after a watch has ended or a call has failed.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The delay after the files of another cluster, or of none, were found, which an operator must repair.
const FOREIGN_CLUSTER_DELAY: Duration = Duration::from_secs(1);
/// A server that runs registers again within this time after an outage of Chubby: several leases.
const REGISTERED_WITHIN: Duration = Duration::from_secs(60);

/// The policies that apply to a table.
#[derive(Clone, Debug, Default)]
pub struct TablePolicies {
    /// The policy of its instance, if there is one.
    pub instance: Option<Arc<Policy>>,
    /// Its schema, and its own policies if it has any; `None`: no such table.
    pub table: Option<(Arc<TableSchema>, Option<Arc<TableAccess>>)>,
    /// The authorized view that was asked for, if the table has it.
    pub view: Option<Arc<AuthorizedView>>,
}

/// A watched snapshot of Chubby's files. Clones share it.
#[derive(Clone)]
pub struct ChubbyDirectory {
    chubby: SharedChubby,
    /// Guards the snapshot; sections are short.
    snapshot: Arc<RwLock<ClusterSnapshot>>,
    /// The number of changes of the snapshot; zero until the first list.
    changes: watch::Receiver<u64>,
    clock: Clock,
    /// Since when no master is active. Guards an instant.
    no_master_since: Arc<Mutex<Option<Duration>>>,
    /// Since when Chubby is not watched. Guards an instant.
    unwatched_since: Arc<Mutex<Option<Duration>>>,
    /// When the last watch began. Guards an instant.
    watched_since: Arc<Mutex<Duration>>,
}

impl fmt::Debug for ChubbyDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChubbyDirectory").field("changes", &*self.changes.borrow()).finish_non_exhaustive()
    }
}

impl ChubbyDirectory {
    /// Starts the watch; its task ends with `runtime.tasks`.
    pub fn start(chubby: SharedChubby, runtime: &Runtime) -> Self {
        Self::start_with(ClusterSnapshot::default(), chubby, runtime)
    }

    /// As [`Self::start`], with the [copy](Self::copy) of an earlier run, which is used until Chubby is read.
    pub fn start_from(copy: record::DirectoryCopy, chubby: SharedChubby, runtime: &Runtime) -> Self {
        Self::start_with(ClusterSnapshot::from_record(copy), chubby, runtime)
    }

    fn start_with(snapshot: ClusterSnapshot, chubby: SharedChubby, runtime: &Runtime) -> Self {
        let snapshot = Arc::new(RwLock::new(snapshot));
        let (changed, changes) = watch::channel(0);
        let clock = runtime.clock.clone();
        let unwatched_since = Arc::new(Mutex::new(Some(clock.monotonic())));
        let watched_since = Arc::new(Mutex::new(clock.monotonic()));
        let no_master_since = Arc::default();
        let directory = Self { chubby, snapshot, changes, clock, no_master_since, unwatched_since, watched_since };
        runtime.tasks.spawn_until_stopped("directory", watch_files(directory.clone(), changed));
        directory
    }

    /// A copy of the snapshot for the next start.
    pub fn copy(&self) -> record::DirectoryCopy {
        self.snapshot.read().to_record()
    }

    /// Waits until the files were read for the first time. Cancel-safe.
    pub async fn ready(&self) {
        let mut changes = self.changes.clone();
        // The sender lives as long as its task; when the task has ended, waiting has no use.
        drop(changes.wait_for(|changes| *changes > 0).await);
    }

    /// The number of changes of the snapshot, to wait for the next one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The id of the cluster, once its first master has written it.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.snapshot.read().cluster_id()
    }

    /// The active cluster version, as it was last seen: the first one until the cluster is known.
    pub fn active_version(&self) -> ClusterVersion {
        self.snapshot.read().cluster.as_ref().map_or(ClusterVersion::FIRST, convert::active_version)
    }

    /// Whether the cluster has completed its first start.
    pub fn is_running(&self) -> bool {
        let running = i32::from(record::ClusterState::Running);
        self.snapshot.read().cluster.as_ref().is_some_and(|cluster| cluster.state == running)
    }

    /// The last known root tablet.
    pub fn root_tablet(&self) -> Option<TabletDescriptor> {
        self.snapshot.read().root.clone()
    }

    /// The last known active master.
    pub fn master(&self) -> Option<ActiveMaster> {
        self.snapshot.read().master.clone()
    }

    /// The last active master, and for how long no master has been active; `None` while one is active, and when none
    /// was ever known.
    pub fn last_master(&self) -> Option<(ActiveMaster, Duration)> {
        let snapshot = self.snapshot.read();
        let last = snapshot.last_master.clone().filter(|_last| snapshot.master.is_none())?;
        let since = (*self.no_master_since.lock())?;
        Some((last, self.clock.monotonic().saturating_sub(since)))
    }

    /// How long Chubby has not been watched, from the start of this directory if it never was; zero while it is. The snapshot, with schemas,
    /// policies and addresses, may have missed what was changed since.
    pub fn unwatched_for(&self) -> Duration {
        let since = *self.unwatched_since.lock();
        since.map_or(Duration::ZERO, |since| self.clock.monotonic().saturating_sub(since))
    }

    /// Updates the instant since when no master is active.
    fn update_no_master_since(&self) {
        let has_master = self.snapshot.read().master.is_some();
        let mut no_master_since = self.no_master_since.lock();
        *no_master_since = if has_master { None } else { no_master_since.or_else(|| Some(self.clock.monotonic())) };
    }

    /// The live tablet servers, by id.
    pub fn servers(&self) -> Vec<record::Server> {
        self.snapshot.read().servers.values().cloned().collect()
    }

    /// The addresses of the tablet servers that may run: the registered ones, and in the first minute of a watch all that were ever registered. After an
    /// outage of Chubby, or its restoration from a backup, the leases of servers that run may be lost.
    pub fn servers_that_may_run(&self) -> BTreeMap<ServerId, String> {
        let watched_for = self.clock.monotonic().saturating_sub(*self.watched_since.lock());
        let snapshot = self.snapshot.read();
        let may_run = |server: &ServerId| watched_for < REGISTERED_WITHIN || snapshot.servers.contains_key(server);
        let servers = snapshot.addresses.iter().filter(|(server, _address)| may_run(server));
        servers.map(|(server, address)| (*server, address.clone())).collect()
    }

    /// The highest id of a tablet server that was ever registered, as far as this snapshot and those before it show; 0: none.
    pub fn highest_server(&self) -> ServerId {
        self.snapshot.read().addresses.last_key_value().map(|(server, _address)| *server).unwrap_or_default()
    }

    /// All schemas, by table id, in any state.
    pub fn schemas(&self) -> Vec<Arc<TableSchema>> {
        self.snapshot.read().schemas.values().cloned().collect()
    }

    /// The last known schema of a table, in any state.
    pub fn schema(&self, table: TableId) -> Option<Arc<TableSchema>> {
        self.snapshot.read().schemas.get(&table).cloned()
    }

    /// The schema of the table with this name, in any state; read from Chubby if the snapshot does not have it.
    ///
    /// # Errors
    /// `Unavailable` when the snapshot does not have it and Chubby is unavailable.
    pub async fn schema_of(&self, name: &TableName) -> Result<Option<Arc<TableSchema>>, Error> {
        self.schema_by_name(name, Freshness::Cached).await
    }

    /// The policy of an instance, as far as it was ever read.
    pub fn instance_policy(&self, project: &str, instance: &str) -> Option<Arc<Policy>> {
        self.snapshot.read().instance_policy(project, instance)
    }

    /// The policies that apply to a table, as far as the snapshot has them; with `view`: also this view of it.
    pub fn known_table_policies(&self, name: &TableName, view: Option<&ViewName>) -> TablePolicies {
        let snapshot = self.snapshot.read();
        let table = snapshot.schema(name).cloned();
        TablePolicies {
            instance: snapshot.instance_policy(name.project(), name.instance()),
            view: table.as_ref().and_then(|schema| snapshot.view(schema.table, view?.id())),
            table: table.map(|schema| (Arc::clone(&schema), snapshot.policies_of(schema.table))),
        }
    }

    /// The policies that apply to a table; with `view`: also this view of it. They are read from Chubby if the snapshot does not have the
    /// table or the view: a table that was just created, or just got a list, must not be open for that time.
    ///
    /// # Errors
    /// `Unavailable` when the snapshot does not have the table or the view, and Chubby is unavailable.
    pub async fn table_policies(&self, name: &TableName, view: Option<&ViewName>) -> Result<TablePolicies, Error> {
        let known = self.known_table_policies(name, view);
        if known.table.is_some() && (view.is_none() || known.view.is_some()) {
            return Ok(known);
        }
        let instance = known.instance;
        let Some(schema) = self.fetch(name).await? else { return Ok(TablePolicies { instance, ..Default::default() }) };
        let view = match view {
            Some(view) => self.chubby.read(&paths::view(schema.table, view.id())).await?.map(|file| {
                let view = convert::view::view_from_bytes(file.value);
                Arc::new(view.unwrap_or_else(|_error| AuthorizedView::unreadable()))
            }),
            None => None,
        };
        let access = match self.chubby.read(&paths::table_access(schema.table)).await? {
            Some(file) => {
                let access = convert::access::table_access_from_bytes(file.value);
                Some(Arc::new(access.unwrap_or_else(|_error| TableAccess::unreadable())))
            }
            None => None,
        };
        Ok(TablePolicies { instance, table: Some((schema, access)), view })
    }

    async fn schema_by_name(&self, name: &TableName, freshness: Freshness) -> Result<Option<Arc<TableSchema>>, Error> {
        let cached = self.snapshot.read().schema(name).cloned();
        if cached.is_some() && freshness == Freshness::Cached {
            return Ok(cached);
        }
        match self.fetch(name).await {
            Ok(schema) => Ok(schema),
            Err(_unavailable) if cached.is_some() => Ok(cached),
            Err(error) => Err(error),
        }
    }

    /// Reads a name and its schema. Only the watch changes the snapshot, because it knows the order of changes.
    async fn fetch(&self, name: &TableName) -> Result<Option<Arc<TableSchema>>, Error> {
        let Some(file) = self.chubby.read(&paths::name(name)).await? else { return Ok(None) };
        let Some(file) = self.chubby.read(&paths::table(parse_id(&file)?)).await? else { return Ok(None) };
        convert::schema_from_bytes(file.value).map(|schema| Some(Arc::new(schema)))
    }

    /// Replaces the whole snapshot. The addresses of servers without a lease stay.
    fn replace(&self, mut fresh: ClusterSnapshot) -> Result<(), ForeignCluster> {
        let mut snapshot = self.snapshot.write();
        if let Some(own) = snapshot.cluster_id()
            && fresh.cluster_id() != Some(own)
        {
            return Err(ForeignCluster { own, found: fresh.cluster_id() });
        }
        fresh.inherit(&snapshot);
        *snapshot = fresh;
        Ok(())
    }

    /// Applies a write of a file; false if the file belongs to another cluster, which is rejected.
    fn apply(&self, file: &File) -> bool {
        let mut snapshot = self.snapshot.write();
        let own = snapshot.cluster.clone();
        let id = snapshot.cluster_id();
        snapshot.put(file);
        let is_ours = id.is_none() || snapshot.cluster_id() == id;
        if !is_ours {
            snapshot.cluster = own;
        }
        is_ours
    }

    /// Lists all files, replaces the snapshot, and starts a watch at its revision.
    async fn start_watch(&self) -> Result<WatchStream, WatchError> {
        let (files, revision) = self.chubby.list("").await?;
        self.replace(ClusterSnapshot::from_files(&files))?;
        Ok(self.chubby.watch("", revision).await?)
    }
}

/// Chubby has the files of another cluster.
#[derive(Debug, thiserror::Error)]
#[error("Chubby belongs to {}, not to cluster {own}", found.map_or_else(|| "no cluster".to_owned(), |id| format!("cluster {id}")))]
struct ForeignCluster {
    own: ClusterId,
    found: Option<ClusterId>,
}

/// Why a watch did not start.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error(transparent)]
    Unavailable(#[from] ebla_chubby::Error),
    #[error(transparent)]
    ForeignCluster(#[from] ForeignCluster),
}

impl WatchError {
    const fn retry_delay(&self) -> Duration {
        match self {
            Self::Unavailable(_) => RETRY_DELAY,
            Self::ForeignCluster(_) => FOREIGN_CLUSTER_DELAY,
        }
    }
}

/// Keeps the snapshot up to date until its task is stopped.
async fn watch_files(directory: ChubbyDirectory, changed: watch::Sender<u64>) {
    let publish = |changed: &watch::Sender<u64>| {
        directory.update_no_master_since();
        changed.send_modify(|changes| *changes += 1);
    };
    let mut logged = None;
    loop {
        let mut delay = RETRY_DELAY;
        match directory.start_watch().await {
            Ok(mut events) => {
                logged = None;
                *directory.unwatched_since.lock() = None;
                *directory.watched_since.lock() = directory.clock.monotonic();
                publish(&changed);
                while let Some(event) = events.next().await {
                    match event {
                        // They change often, and each change of the snapshot is written to the server's folder.
                        WatchEvent::Put(File { path, .. }) | WatchEvent::Deleted { path, .. }
                            if paths::is_informational(&path) =>
                        {
                            continue;
                        }
                        WatchEvent::Put(file) if !directory.apply(&file) => break,
                        WatchEvent::Put(_) => {}
                        WatchEvent::Deleted { path, .. } => directory.snapshot.write().delete(&path),
                        WatchEvent::Gap => break,
                    }
                    publish(&changed);
                }
                *directory.unwatched_since.lock() = Some(directory.clock.monotonic());
            }
            Err(error) => {
                let said = error.to_string();
                if logged.as_ref() != Some(&said) {
                    warn!(%error, "cannot watch Chubby; serving the cached cluster directory");
                }
                logged = Some(said);
                delay = error.retry_delay();
            }
        }
        tokio::time::sleep(delay).await;
    }
}

impl Directory for ChubbyDirectory {
    fn cluster(&self) -> Option<ClusterId> {
        Self::cluster(self)
    }

    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>> {
        Box::pin(async move {
            if let Some(root) = self.root_tablet() {
                return Ok(root);
            }
            self.ready().await;
            self.root_tablet().ok_or_else(|| Error::new(Reason::NoLeader, "the cluster has no root tablet yet"))
        })
    }

    fn address(&self, server: ServerId) -> BoxFuture<'_, Option<String>> {
        let address = self.snapshot.read().addresses.get(&server).cloned();
        Box::pin(std::future::ready(address))
    }

    fn table<'a>(&'a self, name: &'a TableName, freshness: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>> {
        Box::pin(async move {
            let schema = self.schema_by_name(name, freshness).await?;
            Ok(schema.filter(|schema| schema.state == TableState::Active).map(|schema| schema.table))
        })
    }
}

//! The directory of whoever has access to Chubby: a copy of its files that a watch keeps up to date.
//!
//! While Chubby is away the copy stays as it was. A watch that missed something begins again with a list, which
//! replaces the copy as a whole. What is not in the copy is read from Chubby once more before it is denied: the copy
//! may be a moment behind a table that was just made.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ebla_chubby::{Event, File, Revision, SharedChubby, WatchStream, paths};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, Incarnation, MasterEpoch, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use futures::future::BoxFuture;
use prost::Message;
use tokio::sync::watch;
use tracing::warn;

use super::{Directory, Freshness};

/// The pause before Chubby is asked again after it failed.
const PAUSE: Duration = Duration::from_millis(200);

/// The master as its lock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterInOffice {
    /// Its `host:port`.
    pub address: String,
    /// One run of its process.
    pub incarnation: Incarnation,
    /// Its time in office.
    pub epoch: MasterEpoch,
}

/// The files as last heard of. Pure.
#[derive(Debug, Default)]
struct Picture {
    cluster: Option<record::Cluster>,
    root: Option<TabletDescriptor>,
    master: Option<MasterInOffice>,
    servers: BTreeMap<ServerId, record::Server>,
    /// Of all servers ever heard of: one that has lost its lease may still lead tablets.
    addresses: BTreeMap<ServerId, String>,
    /// By path.
    names: BTreeMap<String, TableId>,
    schemas: BTreeMap<TableId, Arc<TableSchema>>,
}

impl Picture {
    fn of(files: &[File]) -> Self {
        let mut picture = Self::default();
        files.iter().for_each(|file| picture.put(file));
        picture
    }

    /// A file was written. One that cannot be read is left out, and noted: the rest of the cluster goes on.
    fn put(&mut self, file: &File) {
        if let Err(error) = self.try_put(file) {
            warn!(path = file.path, %error, "cannot read a file of Chubby's");
        }
    }

    fn try_put(&mut self, file: &File) -> Result<(), Error> {
        let path = file.path.as_str();
        if path == paths::ROOT {
            self.root = Some(convert::descriptor_from_bytes(file.value.clone())?);
        } else if path == paths::CLUSTER {
            self.cluster = Some(decode(file)?);
        } else if path == paths::MASTER {
            let master: record::Master = decode(file)?;
            self.master = Some(MasterInOffice {
                address: master.address,
                incarnation: Incarnation::new(master.incarnation),
                epoch: MasterEpoch::new(file.created.get()),
            });
        } else if let Some(server) = paths::parse_server(path) {
            let registered: record::Server = decode(file)?;
            self.addresses.insert(server, registered.address.clone());
            self.servers.insert(server, registered);
        } else if let Some(table) = paths::parse_table(path) {
            self.schemas.insert(table, Arc::new(convert::schema_from_bytes(file.value.clone())?));
        } else if path.starts_with(paths::NAMES) {
            self.names.insert(path.to_owned(), parse_id(file)?);
        }
        Ok(())
    }

    fn deleted(&mut self, path: &str) {
        if path == paths::MASTER {
            self.master = None;
        } else if let Some(server) = paths::parse_server(path) {
            self.servers.remove(&server);
        } else if let Some(table) = paths::parse_table(path) {
            self.schemas.remove(&table);
        } else {
            self.names.remove(path);
        }
    }

    fn schema(&self, name: &TableName) -> Option<&Arc<TableSchema>> {
        self.schemas.get(self.names.get(&paths::name(name))?)
    }
}

fn decode<M: Message + Default>(file: &File) -> Result<M, Error> {
    M::decode(file.value.clone()).map_err(|error| Error::damaged(error.to_string()))
}

fn parse_id(file: &File) -> Result<TableId, Error> {
    let text = std::str::from_utf8(&file.value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::damaged("it is no table id"))
}

/// A copy of Chubby's files. Clones share it.
#[derive(Clone)]
pub struct ChubbyDirectory {
    chubby: SharedChubby,
    /// Guards the copy; sections are short.
    picture: Arc<RwLock<Picture>>,
    /// Counts changes of the copy; zero until the first list.
    changes: watch::Receiver<u64>,
}

impl fmt::Debug for ChubbyDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChubbyDirectory").field("changes", &*self.changes.borrow()).finish_non_exhaustive()
    }
}

impl ChubbyDirectory {
    /// Begins to watch; the task that does ends with `runtime.tasks`.
    pub fn start(chubby: SharedChubby, runtime: &Runtime) -> Self {
        let picture = Arc::new(RwLock::new(Picture::default()));
        let (changed, changes) = watch::channel(0);
        let directory = Self { chubby, picture, changes };
        runtime.tasks.spawn_until_stopped("directory", follow(directory.clone(), changed));
        directory
    }

    /// Returns when the files were read for the first time. Cancel-safe.
    pub async fn ready(&self) {
        let mut changes = self.changes.clone();
        // The sender lives as long as its task; when that has ended there is nothing to wait for.
        drop(changes.wait_for(|changes| *changes > 0).await);
    }

    /// Counts the changes of the copy, for who waits for the next one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Which cluster this is, once its first master has said so.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.read().cluster.as_ref().and_then(|cluster| ClusterId::from_bytes(&cluster.cluster))
    }

    /// Whether the first start is over.
    pub fn is_running(&self) -> bool {
        let running = i32::from(record::ClusterState::Running);
        self.read().cluster.as_ref().is_some_and(|cluster| cluster.state == running)
    }

    /// The root tablet as last heard of.
    pub fn root_tablet(&self) -> Option<TabletDescriptor> {
        self.read().root.clone()
    }

    /// The master in office as last heard of.
    pub fn master(&self) -> Option<MasterInOffice> {
        self.read().master.clone()
    }

    /// The tablet servers that live, by id.
    pub fn servers(&self) -> Vec<record::Server> {
        self.read().servers.values().cloned().collect()
    }

    /// All schemas, by table id, in whatever state.
    pub fn schemas(&self) -> Vec<Arc<TableSchema>> {
        self.read().schemas.values().cloned().collect()
    }

    /// A table's schema, in whatever state, as last heard of.
    pub fn schema(&self, table: TableId) -> Option<Arc<TableSchema>> {
        self.read().schemas.get(&table).cloned()
    }

    /// The schema of the table with this name, in whatever state; read from Chubby when it is not in the copy.
    ///
    /// # Errors
    /// `Unavailable` when it is not in the copy and Chubby is away.
    pub async fn schema_of(&self, name: &TableName) -> Result<Option<Arc<TableSchema>>, Error> {
        self.schema_by_name(name, Freshness::Cached).await
    }

    async fn schema_by_name(&self, name: &TableName, freshness: Freshness) -> Result<Option<Arc<TableSchema>>, Error> {
        let cached = self.read().schema(name).cloned();
        if cached.is_some() && freshness == Freshness::Cached {
            return Ok(cached);
        }
        match self.fetch(name).await {
            Ok(schema) => Ok(schema),
            Err(_away) if cached.is_some() => Ok(cached),
            Err(error) => Err(error),
        }
    }

    /// Reads a name and the schema behind it. The copy is left to the watch, which knows the order of changes.
    async fn fetch(&self, name: &TableName) -> Result<Option<Arc<TableSchema>>, Error> {
        let Some(file) = self.chubby.read(&paths::name(name)).await? else { return Ok(None) };
        let Some(file) = self.chubby.read(&paths::table(parse_id(&file)?)).await? else { return Ok(None) };
        convert::schema_from_bytes(file.value).map(|schema| Some(Arc::new(schema)))
    }

    fn read(&self) -> RwLockReadGuard<'_, Picture> {
        self.picture.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Picture> {
        self.picture.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, mut fresh: Picture) {
        let mut picture = self.write();
        for (server, address) in std::mem::take(&mut picture.addresses) {
            fresh.addresses.entry(server).or_insert(address);
        }
        *picture = fresh;
    }

    /// Lists all files, replaces the copy, and begins to watch from there.
    async fn begin(&self) -> Result<WatchStream, ebla_chubby::Error> {
        let (files, revision): (Vec<File>, Revision) = self.chubby.list("").await?;
        self.replace(Picture::of(&files));
        self.chubby.watch("", revision).await
    }
}

/// Keeps the copy up to date, for ever.
async fn follow(directory: ChubbyDirectory, changed: watch::Sender<u64>) {
    let count = |changed: &watch::Sender<u64>| changed.send_modify(|changes| *changes += 1);
    loop {
        match directory.begin().await {
            Ok(mut events) => {
                count(&changed);
                while let Some(event) = events.next().await {
                    match event {
                        Event::Put(file) => directory.write().put(&file),
                        Event::Deleted { path, .. } => directory.write().deleted(&path),
                        Event::Gap => break,
                    }
                    count(&changed);
                }
            }
            Err(error) => warn!(%error, "cannot read Chubby's files; serving the copy"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Directory for ChubbyDirectory {
    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>> {
        Box::pin(async move {
            self.ready().await;
            self.root_tablet().ok_or_else(|| Error::new(Reason::NoLeader, "the cluster has no root tablet yet"))
        })
    }

    fn address(&self, server: ServerId) -> BoxFuture<'_, Option<String>> {
        let address = self.read().addresses.get(&server).cloned();
        Box::pin(std::future::ready(address))
    }

    fn table<'a>(&'a self, name: &'a TableName, freshness: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>> {
        Box::pin(async move {
            let schema = self.schema_by_name(name, freshness).await?;
            Ok(schema.filter(|schema| schema.state == TableState::Active).map(|schema| schema.table))
        })
    }
}

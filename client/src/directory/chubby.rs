//! The directory of whoever has access to Chubby: a copy of its files that a watch keeps up to date.
//!
//! While Chubby is away the copy stays as it was. A watch that missed something begins again with a list, which
//! replaces the copy as a whole. What is not in the copy is read from Chubby once more before it is denied: the copy
//! may be a moment behind a table that was just made.
//!
//! A server keeps the copy in its folder and begins with it after a restart, so it finds its cluster while Chubby is away. Then,
//! as always, what the copy says is a hint: who leads, and what a tablet holds, is decided elsewhere.
//!
//! A copy is of one cluster for ever. Files of another one, or of none, are not let in: Chubby was emptied, or is not
//! the one of this cluster, and servers would be looked for where strangers listen.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use ebla_chubby::{File, SharedChubby, WatchEvent, WatchStream, paths};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::{convert, record};
use ebla_runtime::{Clock, Runtime};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tracing::warn;

use super::picture::{MasterInOffice, Picture, parse_id};
use super::{Directory, Freshness};

/// The pause before Chubby is asked again after a watch has ended or a call has failed.
const PAUSE: Duration = Duration::from_millis(200);
/// The same after its files were not of this cluster, which will not pass by itself.
const STRANGE_PAUSE: Duration = Duration::from_secs(5);

/// A copy of Chubby's files. Clones share it.
#[derive(Clone)]
pub struct ChubbyDirectory {
    chubby: SharedChubby,
    /// Guards the copy; sections are short.
    picture: Arc<RwLock<Picture>>,
    /// Counts changes of the copy; zero until the first list.
    changes: watch::Receiver<u64>,
    clock: Clock,
    /// Since when there has been no master. Guards a number.
    masterless: Arc<Mutex<Option<Duration>>>,
}

impl fmt::Debug for ChubbyDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChubbyDirectory").field("changes", &*self.changes.borrow()).finish_non_exhaustive()
    }
}

impl ChubbyDirectory {
    /// Begins to watch; the task that does ends with `runtime.tasks`.
    pub fn start(chubby: SharedChubby, runtime: &Runtime) -> Self {
        Self::start_with(Picture::default(), chubby, runtime)
    }

    /// As [`Self::start`], with what an earlier run has [kept](Self::copy): known at once, until Chubby says better.
    pub fn start_from(copy: record::DirectoryCopy, chubby: SharedChubby, runtime: &Runtime) -> Self {
        Self::start_with(Picture::from_copy(copy), chubby, runtime)
    }

    fn start_with(picture: Picture, chubby: SharedChubby, runtime: &Runtime) -> Self {
        let picture = Arc::new(RwLock::new(picture));
        let (changed, changes) = watch::channel(0);
        let directory = Self { chubby, picture, changes, clock: runtime.clock.clone(), masterless: Arc::default() };
        runtime.tasks.spawn_until_stopped("directory", follow(directory.clone(), changed));
        directory
    }

    /// What is worth keeping for the next start.
    pub fn copy(&self) -> record::DirectoryCopy {
        self.read().to_copy()
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
        self.read().cluster_id()
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

    /// The master that was in office last, and for how long there has been none; `None` while there is one, and when none was ever
    /// heard of.
    pub fn last_master(&self) -> Option<(MasterInOffice, Duration)> {
        let picture = self.read();
        let last = picture.last_master.clone().filter(|_last| picture.master.is_none())?;
        let since = (*self.masterless.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some((last, self.clock.monotonic().saturating_sub(since)))
    }

    /// Notes since when there has been no master.
    fn note_master(&self) {
        let has_master = self.read().master.is_some();
        let mut masterless = self.masterless.lock().unwrap_or_else(PoisonError::into_inner);
        *masterless = if has_master { None } else { masterless.or_else(|| Some(self.clock.monotonic())) };
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

    /// Replaces the copy as a whole. Addresses of servers that are gone stay.
    fn replace(&self, mut fresh: Picture) -> Result<(), Strange> {
        let mut picture = self.write();
        if let Some(own) = picture.cluster_id()
            && fresh.cluster_id() != Some(own)
        {
            return Err(Strange { own, found: fresh.cluster_id() });
        }
        fresh.remember(&picture);
        *picture = fresh;
        Ok(())
    }

    /// A file was written; false: it makes this another cluster, and was not taken.
    fn take(&self, file: &File) -> bool {
        let mut picture = self.write();
        let own = picture.cluster.clone();
        let id = picture.cluster_id();
        picture.put(file);
        let is_ours = id.is_none() || picture.cluster_id() == id;
        if !is_ours {
            picture.cluster = own;
        }
        is_ours
    }

    /// Lists all files, replaces the copy, and begins to watch from there.
    async fn begin(&self) -> Result<WatchStream, Trouble> {
        let (files, revision) = self.chubby.list("").await?;
        self.replace(Picture::of(&files))?;
        Ok(self.chubby.watch("", revision).await?)
    }
}

/// Chubby's files are not those of this cluster.
#[derive(Debug, thiserror::Error)]
#[error("this is cluster {own}, and the files are of {}", found.map_or_else(|| "none".to_owned(), |id| id.to_string()))]
struct Strange {
    own: ClusterId,
    found: Option<ClusterId>,
}

/// Why there is no watch.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Away(#[from] ebla_chubby::Error),
    #[error(transparent)]
    Strange(#[from] Strange),
}

impl Trouble {
    const fn pause(&self) -> Duration {
        match self {
            Self::Away(_) => PAUSE,
            Self::Strange(_) => STRANGE_PAUSE,
        }
    }
}

/// Keeps the copy up to date, for ever.
async fn follow(directory: ChubbyDirectory, changed: watch::Sender<u64>) {
    let count = |changed: &watch::Sender<u64>| {
        directory.note_master();
        changed.send_modify(|changes| *changes += 1);
    };
    loop {
        let mut pause = PAUSE;
        match directory.begin().await {
            Ok(mut events) => {
                count(&changed);
                while let Some(event) = events.next().await {
                    match event {
                        WatchEvent::Put(file) if !directory.take(&file) => break,
                        WatchEvent::Put(_) => {}
                        WatchEvent::Deleted { path, .. } => directory.write().deleted(&path),
                        WatchEvent::Gap => break,
                    }
                    count(&changed);
                }
            }
            Err(trouble) => {
                warn!(error = %trouble, "cannot read Chubby's files; serving the copy");
                pause = trouble.pause();
            }
        }
        tokio::time::sleep(pause).await;
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

//! What lives in a server's data folder: who the server is, which replicas it has, which it had.
//!
//! ```text
//!   <data>/LOCK         held while the folder is in use
//!   <data>/registry     this file: text, one checksum (state.rs)
//!   <data>/tablets/     a folder for each replica, `t<tablet>-r<replica>`
//!   <data>/set-aside/   folders that were found and not known
//!   <data>/log/         the commit log's own
//! ```
//!
//! The registry is rewritten as a whole with each change: written beside, synced, renamed, folder synced. Changes are
//! rare (a replica comes or goes, a log segment begins). They are ordered with the renames of folders so that a crash at
//! any point is repaired at the next start (repair.rs).
//!
//! A registry that cannot be read ends the server's life under its name: without it nobody knows what its replicas have
//! acknowledged. It then starts again with an empty folder, as a new server.
//!
//! One lock orders changes and is held over their IO; reads take a copy of the last state and never wait for it.

mod repair;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{LogId, MasterEpoch};
use tracing::warn;

use self::repair::{Repair, TEMPORARY};
use self::state::State;
pub use self::state::{Identity, ReplicaRecord, ReplicaState};
use crate::folder;
use crate::log::{GroupId, SegmentWitness};

/// What the registry refuses or fails with.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The file is not what was written.
    #[error(
        "registry {}: {message}. What this server's replicas have acknowledged is not known any more: \
         move the data folder away and start with an empty one, as a new server",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Another process (or another server of this one) uses the folder.
    #[error("data folder {} is in use", .0.display())]
    InUse(PathBuf),
    /// The folder belongs to another cluster or server.
    #[error("this data folder belongs to server {} of cluster {}", .0.server, .0.cluster)]
    Foreign(Identity),
    /// The order comes from a master whose time is over.
    #[error("order of master epoch {got}, but {seen} was seen")]
    StaleEpoch {
        /// The order's.
        got: MasterEpoch,
        /// The highest seen.
        seen: MasterEpoch,
    },
    /// The replica was removed here; its id never lives again.
    #[error("replica {0} was removed from this server")]
    Removed(GroupId),
    /// The replica lives here already.
    #[error("replica {0} is on this server already")]
    Exists(GroupId),
    /// No such replica is here in the state that the call needs.
    #[error("replica {0} is not on this server")]
    Unknown(GroupId),
    /// An earlier change could not be written; nothing is known since. The process must end.
    #[error("the registry failed earlier")]
    Failed,
    /// The file system failed. The process must end.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl RegistryError {
    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }

    fn reason(&self) -> Reason {
        match self {
            Self::Damaged { .. } => Reason::DataDamaged,
            Self::InUse(_) | Self::Foreign(_) => Reason::FailedPrecondition,
            Self::StaleEpoch { .. } => Reason::StaleEpoch,
            Self::Removed(_) | Self::Unknown(_) => Reason::NotFound,
            Self::Exists(_) => Reason::AlreadyExists,
            Self::Failed | Self::Io { .. } => Reason::Internal,
        }
    }

    fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

impl From<RegistryError> for Error {
    fn from(error: RegistryError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

/// The registry of one data folder. Share it in an `Arc`; changes block on the disk.
pub struct Registry {
    dir: PathBuf,
    /// The last state that is on disk. Held to copy or swap the pointer only.
    current: RwLock<Arc<State>>,
    /// Orders changes; held over their IO.
    changes: Mutex<Health>,
    /// Keeps other processes out for as long as it is open.
    _lock: File,
}

/// Whether changes can still be written.
enum Health {
    Good,
    /// A write or sync failed: what is on disk is not known, and a second try proves nothing.
    Failed,
}

impl Registry {
    /// Opens the data folder, making it when there is none, and repairs what a crash left.
    ///
    /// # Errors
    /// [`RegistryError::InUse`], [`RegistryError::Damaged`]; else when the file system fails.
    pub fn open(dir: &Path) -> Result<Self, RegistryError> {
        fs::create_dir_all(dir.join(TABLETS)).map_err(RegistryError::io("make", dir))?;
        folder::sync_parent(dir).map_err(RegistryError::io("sync folder of", dir))?;
        let lock = take_lock(dir)?;
        let recorded = read_state(dir)?;
        let repair = repair::plan(&recorded, &folder_names(&dir.join(TABLETS))?);
        carry_out(dir, &repair)?;
        let current = RwLock::new(Arc::new(repair.state));
        let registry = Self { dir: dir.to_owned(), current, changes: Mutex::new(Health::Good), _lock: lock };
        // Written also when nothing changed: a folder that was ever used has a registry, so its absence is damage.
        registry.change(|_| Ok(()))?;
        Ok(registry)
    }

    /// The data folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Who this server is; `None` before its first start is done.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.state().identity
    }

    /// Makes this folder the one of that server. The same identity again is no change.
    ///
    /// # Errors
    /// [`RegistryError::Foreign`] when it is another's.
    pub fn adopt(&self, identity: Identity) -> Result<(), RegistryError> {
        match self.identity() {
            Some(known) if known == identity => Ok(()),
            _ => self.change(|state| match state.identity {
                Some(known) if known != identity => Err(RegistryError::Foreign(known)),
                _ => {
                    state.identity = Some(identity);
                    Ok(())
                }
            }),
        }
    }

    /// The highest master epoch seen.
    #[must_use]
    pub fn epoch(&self) -> MasterEpoch {
        self.state().epoch
    }

    /// Accepts an order of this epoch: remembers a higher one, durably, before the order is carried out.
    ///
    /// # Errors
    /// [`RegistryError::StaleEpoch`]: refuse the order.
    pub fn accept_epoch(&self, epoch: MasterEpoch) -> Result<(), RegistryError> {
        if self.epoch() == epoch {
            return Ok(());
        }
        self.change(|state| {
            if epoch < state.epoch {
                return Err(RegistryError::StaleEpoch { got: epoch, seen: state.epoch });
            }
            state.epoch = epoch;
            Ok(())
        })
    }

    /// All replicas here, whatever their state.
    #[must_use]
    pub fn replicas(&self) -> Vec<(GroupId, ReplicaRecord)> {
        self.state().replicas.iter().map(|(group, record)| (*group, record.clone())).collect()
    }

    /// One replica; `None` when it is not here.
    #[must_use]
    pub fn replica(&self, group: GroupId) -> Option<ReplicaRecord> {
        self.state().replicas.get(&group).cloned()
    }

    /// Where a replica's folder is; `None` when it is not here.
    #[must_use]
    pub fn path(&self, group: GroupId) -> Option<PathBuf> {
        self.replica(group).map(|record| self.folder(&record.folder))
    }

    /// Whether the replica was removed here (then it must not be made again).
    #[must_use]
    pub fn is_removed(&self, group: GroupId) -> bool {
        self.state().is_removed(group)
    }

    /// Notes that a replica is being made, and gives the folder to make it in (which does not exist).
    ///
    /// Then: make the store there, flush and close it, and call [`Self::finish_create`]. After a crash in between the
    /// replica is not here and may be made again.
    ///
    /// # Errors
    /// [`RegistryError::Removed`], [`RegistryError::Exists`]; else when the file system fails.
    pub fn begin_create(&self, group: GroupId) -> Result<PathBuf, RegistryError> {
        let folder = first_folder(group);
        let temporary = self.folder(&format!("{folder}{TEMPORARY}"));
        self.change(|state| {
            if state.is_removed(group) {
                return Err(RegistryError::Removed(group));
            }
            if state.replicas.get(&group).is_some_and(|known| known.state != ReplicaState::Creating) {
                return Err(RegistryError::Exists(group));
            }
            let record = ReplicaRecord { folder, state: ReplicaState::Creating, installed: None };
            state.replicas.insert(group, record);
            Ok(())
        })?;
        // An attempt that failed without a crash may have left something.
        folder::remove(&temporary).map_err(RegistryError::io("delete", &temporary))?;
        Ok(temporary)
    }

    /// Makes the replica live with what [`Self::begin_create`]'s folder now holds, and says where it is.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] when it was not begun; else when the file system fails.
    pub fn finish_create(&self, group: GroupId) -> Result<PathBuf, RegistryError> {
        let record = self.replica(group).filter(|record| record.state == ReplicaState::Creating);
        let folder = record.ok_or(RegistryError::Unknown(group))?.folder;
        let path = self.settle(&folder)?;
        self.set_state(group, ReplicaState::Live)?;
        Ok(path)
    }

    /// Gives a folder (which does not exist) to receive a snapshot for a replica in.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]; else when the file system fails.
    pub fn begin_install(&self, group: GroupId) -> Result<PathBuf, RegistryError> {
        let record = self.replica(group).ok_or(RegistryError::Unknown(group))?;
        let temporary = self.folder(&format!("{}{TEMPORARY}", next_folder(group, &record.folder)));
        folder::remove(&temporary).map_err(RegistryError::io("delete", &temporary))?;
        Ok(temporary)
    }

    /// Replaces the replica's folder by what [`Self::begin_install`]'s now holds, and says where it is.
    ///
    /// Its files must be synced and its old store closed. `last` is the last entry in the snapshot.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]; else when the file system fails.
    pub fn finish_install(&self, group: GroupId, last: LogId) -> Result<PathBuf, RegistryError> {
        let old = self.replica(group).ok_or(RegistryError::Unknown(group))?.folder;
        let new = next_folder(group, &old);
        let path = self.settle(&new)?;
        self.change(|state| {
            let record = state.replicas.get_mut(&group).ok_or(RegistryError::Unknown(group))?;
            record.folder = new;
            record.installed = Some(last);
            state.discards.insert(old.clone());
            Ok(())
        })?;
        let discarded = self.folder(&old);
        folder::remove(&discarded).map_err(RegistryError::io("delete", &discarded))?;
        self.change(|state| {
            state.discards.remove(&old);
            Ok(())
        })?;
        Ok(path)
    }

    /// Notes that the replica may have lost what it acknowledged. It stays so until it is removed.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]; else when the file system fails.
    pub fn quarantine(&self, group: GroupId) -> Result<(), RegistryError> {
        self.set_state(group, ReplicaState::Quarantined)
    }

    /// Deletes a replica's folder and leaves a tombstone; also for one that never was here. Its store must be closed.
    ///
    /// # Errors
    /// When the file system fails. After a crash in between it is finished at the next start.
    pub fn remove(&self, group: GroupId) -> Result<(), RegistryError> {
        if let Some(path) = self.path(group) {
            self.set_state(group, ReplicaState::Removing)?;
            folder::remove(&path).map_err(RegistryError::io("delete", &path))?;
        }
        if self.is_removed(group) {
            return Ok(());
        }
        self.change(|state| {
            state.bury(group);
            Ok(())
        })
    }

    /// The last segment of the commit log that was begun; 0: none.
    #[must_use]
    pub fn last_segment(&self) -> u64 {
        self.state().segment
    }

    /// Notes that a segment of the commit log begins, before anything is written to it but its header.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn note_segment(&self, segment: u64) -> Result<(), RegistryError> {
        self.change(|state| {
            state.segment = state.segment.max(segment);
            Ok(())
        })
    }

    fn set_state(&self, group: GroupId, to: ReplicaState) -> Result<(), RegistryError> {
        self.change(|state| {
            state.replicas.get_mut(&group).ok_or(RegistryError::Unknown(group))?.state = to;
            Ok(())
        })
    }

    /// Gives a finished folder its name.
    fn settle(&self, folder: &str) -> Result<PathBuf, RegistryError> {
        let (from, to) = (self.folder(&format!("{folder}{TEMPORARY}")), self.folder(folder));
        folder::sync(&from).map_err(RegistryError::io("sync", &from))?;
        folder::rename(&from, &to).map_err(RegistryError::io("rename", &from))?;
        Ok(to)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.join(TABLETS).join(name)
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes a copy, writes it, and only then lets it be seen.
    fn change(&self, edit: impl FnOnce(&mut State) -> Result<(), RegistryError>) -> Result<(), RegistryError> {
        let mut health: MutexGuard<'_, Health> = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*health, Health::Failed) {
            return Err(RegistryError::Failed);
        }
        let mut state = State::clone(&self.state());
        edit(&mut state)?;
        let path = self.dir.join(FILE);
        if let Err(error) = folder::replace_file(&path, &state.encode()) {
            *health = Health::Failed;
            return Err(RegistryError::io("write", path)(error));
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        Ok(())
    }
}

/// The commit log's memory of its last segment.
impl SegmentWitness for Registry {
    fn highest(&self) -> u64 {
        self.last_segment()
    }

    fn record(&self, sequence: u64) -> io::Result<()> {
        self.note_segment(sequence).map_err(io::Error::other)
    }
}

const FILE: &str = "registry";
const LOCK: &str = "LOCK";
const TABLETS: &str = "tablets";
const SET_ASIDE: &str = "set-aside";
/// The commit log's folder: when it holds something, there must be a registry.
const LOG: &str = "log";

fn first_folder(group: GroupId) -> String {
    format!("t{}-r{}", group.tablet, group.replica)
}

/// A name that the replica's folder has not had: the number after the point grows by one.
fn next_folder(group: GroupId, current: &str) -> String {
    let number = current.rsplit_once('.').and_then(|(_, number)| number.parse::<u64>().ok()).unwrap_or(0);
    format!("{}.{}", first_folder(group), number + 1)
}

fn take_lock(dir: &Path) -> Result<File, RegistryError> {
    use rustix::fs::{FlockOperation, flock};
    let path = dir.join(LOCK);
    let file = File::create(&path).map_err(RegistryError::io("open", &path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RegistryError::InUse(dir.to_owned())),
        Err(error) => Err(RegistryError::io("lock", path)(error.into())),
    }
}

fn read_state(dir: &Path) -> Result<State, RegistryError> {
    let path = dir.join(FILE);
    match fs::read(&path) {
        Ok(bytes) => State::decode(&bytes).map_err(|message| RegistryError::Damaged { path, message }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fresh(dir, path),
        Err(error) => Err(RegistryError::io("read", path)(error)),
    }
}

/// No registry is right only where nothing ever was.
fn fresh(dir: &Path, path: PathBuf) -> Result<State, RegistryError> {
    let log = dir.join(LOG);
    let is_used = !folder_names(&dir.join(TABLETS))?.is_empty() || (log.is_dir() && !folder_names(&log)?.is_empty());
    if is_used {
        return Err(RegistryError::Damaged { path, message: "it is missing, but there is data".to_owned() });
    }
    Ok(State::default())
}

fn folder_names(dir: &Path) -> Result<BTreeSet<String>, RegistryError> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(RegistryError::io("list", dir))? {
        let entry = entry.map_err(RegistryError::io("list", dir))?;
        names.insert(entry.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

fn carry_out(dir: &Path, repair: &Repair) -> Result<(), RegistryError> {
    let tablets = dir.join(TABLETS);
    for name in &repair.delete {
        let path = tablets.join(name);
        folder::remove(&path).map_err(RegistryError::io("delete", &path))?;
    }
    for name in &repair.move_aside {
        let to = unused_name(&dir.join(SET_ASIDE), name)?;
        warn!(folder = %name, to = %to.display(), "unknown folder moved aside");
        folder::rename(&tablets.join(name), &to).map_err(RegistryError::io("move aside", &to))?;
        folder::sync(&tablets).map_err(RegistryError::io("sync", &tablets))?;
    }
    for name in &repair.lost {
        warn!(folder = %name, "replica has lost its folder and is quarantined");
    }
    Ok(())
}

fn unused_name(dir: &Path, name: &str) -> Result<PathBuf, RegistryError> {
    fs::create_dir_all(dir).map_err(RegistryError::io("make", dir))?;
    let taken = folder_names(dir)?;
    let mut candidates = (0u64..).map(|number| format!("{name}.{number}"));
    let free = candidates.find(|candidate| !taken.contains(candidate)).unwrap_or_else(|| name.to_owned());
    Ok(dir.join(free))
}

//! The registry of a server's data folder: the server's identity, its replicas, and the tombstones of removed replicas.
//!
//! ```text
//!   <data>/LOCK         locked while the folder is in use
//!   <data>/registry     this file: text, one checksum (state.rs)
//!   <data>/groups/      a folder for each replica, `g<group>-r<replica>`
//!   <data>/set-aside/   lost and found: folders that the registry does not know
//!   <data>/log/         the commit log
//! ```
//!
//! Each change rewrites the whole file: write a temporary file, sync, rename, sync the folder. Changes are rare (a replica
//! is created or removed, a log segment is started). They are ordered with the renames of folders so that the next start
//! repairs a crash at any point (repair.rs).
//!
//! If the registry cannot be read, the server cannot continue under its id: what its replicas have acknowledged is unknown.
//! It must start with an empty folder, as a new server.
//!
//! One lock serialises changes and is held during their IO. Reads take a copy of the last state and never wait for it.

#[cfg(test)]
mod fuzz_tests;
mod repair;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{GroupId, LogId, LogIndex, MasterEpoch, ReplicaId};
use parking_lot::{Mutex, RwLock};
use tracing::warn;

use self::repair::{Repair, TEMPORARY};
use self::state::{DecodeError, FORMAT, State};
pub use self::state::{Identity, ReplicaOrigin, ReplicaRecord, ReplicaState};
use crate::disk::{self, Disk, RealDisk, ReplaceError};
use crate::folder;
use crate::log::{GroupReplica, SegmentManifest};

/// Errors of the registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The file does not have the bytes that were written.
    #[error(
        "read registry {}: {message}. What this server's replicas have acknowledged is unknown: \
        move the data folder away and start with an empty one, as a new server",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A later release wrote the file. Nothing was changed.
    #[error(
        "registry {} has format {format}, written by a later release; this release reads format {FORMAT}: \
        start a release that reads it. The data folder is unchanged",
        path.display()
    )]
    LaterFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// Another process (or another server of this one) uses the folder.
    #[error("data folder {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The folder belongs to another cluster or server.
    #[error("data folder belongs to server {} of cluster {}; start with an empty data folder", .0.server, .0.cluster)]
    Foreign(Identity),
    /// The request comes from an earlier master.
    #[error("stale master epoch {got}: this server has seen epoch {seen}")]
    StaleEpoch {
        /// The request's epoch.
        got: MasterEpoch,
        /// The highest epoch seen.
        seen: MasterEpoch,
    },
    /// The replica was removed here; its id is never used again.
    #[error("replica {0} was removed from this server")]
    Removed(GroupReplica),
    /// The replica exists here.
    #[error("replica {0} already exists on this server")]
    Exists(GroupReplica),
    /// The replica does not exist here in the state that the call needs.
    #[error("replica {0} is not on this server")]
    Unknown(GroupReplica),
    /// The change was not made for lack of disk space or of open files. It can be repeated when there is more.
    #[error("write registry {}: {source}", path.display())]
    Lacking {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An earlier change could not be written; the state on disk is unknown. The process must exit.
    #[error("registry unavailable after an earlier write failure; restart the server")]
    Failed,
    /// The file system failed. The process must exit.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
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
            Self::LaterFormat { .. } | Self::InUse(_) | Self::Foreign(_) => Reason::FailedPrecondition,
            Self::StaleEpoch { .. } => Reason::StaleEpoch,
            Self::Removed(_) | Self::Unknown(_) => Reason::NotFound,
            Self::Exists(_) => Reason::AlreadyExists,
            Self::Lacking { .. } => Reason::ResourceExhausted,
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
    /// The folder as the disk of the registry's file.
    disk: Arc<dyn Disk>,
    /// The last durable state. Locked only to copy or swap the pointer.
    current: RwLock<Arc<State>>,
    /// Serialises changes; held during their IO.
    changes: Mutex<Health>,
    /// Called once, when a change could not be written.
    on_failure: OnceLock<OnFailure>,
}

/// What to do when a change could not be written.
type OnFailure = Box<dyn Fn(&RegistryError) + Send + Sync>;

/// Whether changes can still be written.
enum Health {
    Good,
    /// A write or sync failed: the state on disk is unknown, and a retry proves nothing.
    Failed,
}

impl Registry {
    /// Opens the data folder, creating it when it is missing, locks it, and repairs what a crash left.
    ///
    /// # Errors
    /// [`RegistryError::InUse`], [`RegistryError::Damaged`], [`RegistryError::LaterFormat`], [`RegistryError::Lacking`]; else when the file
    /// system fails.
    pub fn open(dir: &Path) -> Result<Self, RegistryError> {
        let disk = RealDisk::open(dir).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => RegistryError::InUse(dir.to_owned()),
            _ => RegistryError::io("open", dir)(error),
        })?;
        Self::open_on(Arc::new(disk), dir)
    }

    /// As [`Self::open`], with the registry's file on `disk`, which excludes other processes. The folders of the replicas are on the file
    /// system in any case.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on(disk: Arc<dyn Disk>, dir: &Path) -> Result<Self, RegistryError> {
        fs::create_dir_all(dir.join(GROUPS)).map_err(RegistryError::io("create", dir))?;
        folder::sync_parent(dir).map_err(RegistryError::io("sync folder of", dir))?;
        let recorded = read_state(disk.as_ref(), dir)?;
        let repair = repair::plan(&recorded, &folder_names(&dir.join(GROUPS))?);
        apply_repair(dir, &repair)?;
        let current = RwLock::new(Arc::new(repair.state));
        let (changes, on_failure) = (Mutex::new(Health::Good), OnceLock::new());
        let registry = Self { dir: dir.to_owned(), disk, current, changes, on_failure };
        // Written even without a change: a folder that was ever used has a registry, so a missing one means damage.
        registry.change(|_| Ok(()))?;
        Ok(registry)
    }

    /// Calls `on_failure` when a change cannot be written: the process must exit then. Only the first registration has an effect.
    pub fn set_failure_callback(&self, on_failure: impl Fn(&RegistryError) + Send + Sync + 'static) {
        let _first_stays = self.on_failure.set(Box::new(on_failure));
    }

    /// The data folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server's identity; `None` before its first registration.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.state().identity
    }

    /// Sets the identity of this folder. Setting the same identity again has no effect.
    ///
    /// # Errors
    /// [`RegistryError::Foreign`] when the folder has another identity.
    pub fn set_identity(&self, identity: Identity) -> Result<(), RegistryError> {
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

    /// Accepts a request of this master epoch. A higher epoch is stored durably before the request is carried out.
    ///
    /// # Errors
    /// [`RegistryError::StaleEpoch`]: reject the request.
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

    /// The number of folders that belong to no replica and that were set aside. Blocking for a moment.
    #[must_use]
    pub fn set_aside(&self) -> u64 {
        folder_names(&self.dir.join(LOST_AND_FOUND)).map_or(0, |folders| folders.len() as u64)
    }

    /// All replicas, in any state.
    #[must_use]
    pub fn replicas(&self) -> Vec<(GroupReplica, ReplicaRecord)> {
        self.state().replicas.iter().map(|(group, record)| (*group, record.clone())).collect()
    }

    /// One replica; `None` when it does not exist.
    #[must_use]
    pub fn replica(&self, group: GroupReplica) -> Option<ReplicaRecord> {
        self.state().replicas.get(&group).cloned()
    }

    /// The live replicas of groups that divisions of `parent` have created, with the indexes of these divisions in its log.
    #[must_use]
    pub fn children(&self, parent: GroupId) -> Vec<(GroupReplica, LogIndex)> {
        let of_division = |(id, record): (&GroupReplica, &ReplicaRecord)| match record.origin {
            ReplicaOrigin::Division { parent: of, index } if of == parent && record.state == ReplicaState::Live => {
                Some((*id, index))
            }
            _ => None,
        };
        self.state().replicas.iter().filter_map(of_division).collect()
    }

    /// The path of a replica's folder; `None` when the replica does not exist.
    #[must_use]
    pub fn path(&self, group: GroupReplica) -> Option<PathBuf> {
        self.replica(group).map(|record| self.folder(&record.folder))
    }

    /// Whether the replica was removed here (then it must not be created again).
    #[must_use]
    pub fn is_removed(&self, group: GroupReplica) -> bool {
        self.state().is_removed(group)
    }

    /// Records that a replica is being created. Returns the folder to create it in, which does not exist.
    ///
    /// Then create the store there, flush and close it, and call [`Self::finish_create`]. After a crash in between the
    /// replica does not exist and may be created again.
    ///
    /// # Errors
    /// [`RegistryError::Removed`], [`RegistryError::Exists`]; else when the file system fails.
    pub fn begin_create(&self, group: GroupReplica, origin: ReplicaOrigin) -> Result<PathBuf, RegistryError> {
        let folder = first_folder(group);
        let temporary = self.folder(&format!("{folder}{TEMPORARY}"));
        self.change(|state| {
            if state.is_removed(group) {
                return Err(RegistryError::Removed(group));
            }
            if state.replicas.get(&group).is_some_and(|known| known.state != ReplicaState::Creating) {
                return Err(RegistryError::Exists(group));
            }
            let record = ReplicaRecord { folder, state: ReplicaState::Creating, installed: None, origin };
            state.replicas.insert(group, record);
            Ok(())
        })?;
        // An attempt that failed without a crash may have left something.
        folder::remove(&temporary).map_err(RegistryError::io("delete", &temporary))?;
        Ok(temporary)
    }

    /// Makes the replica live with the content of [`Self::begin_create`]'s folder. Returns its final path.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`] without a preceding [`Self::begin_create`]; else when the file system fails.
    pub fn finish_create(&self, group: GroupReplica) -> Result<PathBuf, RegistryError> {
        let record = self.replica(group).filter(|record| record.state == ReplicaState::Creating);
        let folder = record.ok_or(RegistryError::Unknown(group))?.folder;
        let path = self.publish_folder(&folder)?;
        self.set_state(group, ReplicaState::Live)?;
        Ok(path)
    }

    /// Returns a folder, which does not exist, to receive a snapshot for a replica.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]; else when the file system fails.
    pub fn begin_install(&self, group: GroupReplica) -> Result<PathBuf, RegistryError> {
        let record = self.replica(group).ok_or(RegistryError::Unknown(group))?;
        let temporary = self.folder(&format!("{}{TEMPORARY}", next_folder(group, &record.folder)));
        folder::remove(&temporary).map_err(RegistryError::io("delete", &temporary))?;
        Ok(temporary)
    }

    /// Replaces the replica's folder by [`Self::begin_install`]'s. Returns its final path.
    ///
    /// Its files must be synced and its old store closed. `last` is the last entry in the snapshot.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]; else when the file system fails.
    pub fn finish_install(&self, group: GroupReplica, last: LogId) -> Result<PathBuf, RegistryError> {
        let old = self.replica(group).ok_or(RegistryError::Unknown(group))?.folder;
        let new = next_folder(group, &old);
        let path = self.publish_folder(&new)?;
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

    /// Quarantines a replica that may have lost acknowledged data. It stays quarantined until it is removed.
    ///
    /// # Errors
    /// [`RegistryError::Unknown`]; else when the file system fails.
    pub fn quarantine(&self, group: GroupReplica) -> Result<(), RegistryError> {
        self.set_state(group, ReplicaState::Quarantined)
    }

    /// Deletes a replica's folder and leaves a tombstone, also for a replica that never existed here. Its store must be
    /// closed.
    ///
    /// # Errors
    /// When the file system fails. After a crash in between the next start completes the removal.
    pub fn remove(&self, group: GroupReplica) -> Result<(), RegistryError> {
        if let Some(path) = self.path(group) {
            self.set_state(group, ReplicaState::Removing)?;
            folder::remove(&path).map_err(RegistryError::io("delete", &path))?;
        }
        if self.is_removed(group) {
            return Ok(());
        }
        self.change(|state| {
            state.add_tombstone(group);
            Ok(())
        })
    }

    /// The highest removed replica of each group.
    #[must_use]
    pub fn tombstones(&self) -> Vec<GroupReplica> {
        let replica = |(group, replica): (&GroupId, &ReplicaId)| GroupReplica { group: *group, replica: *replica };
        self.state().tombstones.iter().map(replica).collect()
    }

    /// The last segment of the commit log that was started; 0: none.
    #[must_use]
    pub fn last_segment(&self) -> u64 {
        self.state().segment
    }

    /// Records the start of a commit log segment, before anything but its header is written to it.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn record_segment(&self, segment: u64) -> Result<(), RegistryError> {
        self.change(|state| {
            state.segment = state.segment.max(segment);
            Ok(())
        })
    }

    fn set_state(&self, group: GroupReplica, to: ReplicaState) -> Result<(), RegistryError> {
        self.change(|state| {
            state.replicas.get_mut(&group).ok_or(RegistryError::Unknown(group))?.state = to;
            Ok(())
        })
    }

    /// Publishes a finished folder: renames it to its final name.
    fn publish_folder(&self, folder: &str) -> Result<PathBuf, RegistryError> {
        let (from, to) = (self.folder(&format!("{folder}{TEMPORARY}")), self.folder(folder));
        folder::sync(&from).map_err(RegistryError::io("sync", &from))?;
        folder::rename(&from, &to).map_err(RegistryError::io("rename", &from))?;
        Ok(to)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.join(GROUPS).join(name)
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.current.read())
    }

    /// Changes a copy, writes it, and only then publishes it to readers.
    fn change(&self, edit: impl FnOnce(&mut State) -> Result<(), RegistryError>) -> Result<(), RegistryError> {
        let mut health = self.changes.lock();
        if matches!(*health, Health::Failed) {
            return Err(RegistryError::Failed);
        }
        let mut state = State::clone(&self.state());
        edit(&mut state)?;
        if let Err(error) = disk::replace_file(self.disk.as_ref(), FILE, &state.encode()) {
            let path = self.dir.join(FILE);
            let failure = match error {
                ReplaceError::Lacking(source) => return Err(RegistryError::Lacking { path, source }),
                ReplaceError::Failed(source) => RegistryError::io("write", path)(source),
            };
            *health = Health::Failed;
            self.on_failure.get().inspect(|on_failure| on_failure(&failure));
            return Err(failure);
        }
        *self.current.write() = Arc::new(state);
        Ok(())
    }
}

/// The registry is the commit log's manifest.
impl SegmentManifest for Registry {
    fn highest(&self) -> u64 {
        self.last_segment()
    }

    fn record(&self, sequence: u64) -> io::Result<()> {
        self.record_segment(sequence).map_err(|error| match error {
            RegistryError::Lacking { ref source, .. } => io::Error::new(source.kind(), error),
            error => io::Error::other(error),
        })
    }
}

const FILE: &str = "registry";
const GROUPS: &str = "groups";
/// Lost and found: unknown folders are moved here.
const LOST_AND_FOUND: &str = "set-aside";
/// The commit log's folder: when it is not empty, there must be a registry.
const LOG: &str = "log";

fn first_folder(group: GroupReplica) -> String {
    format!("g{}-r{}", group.group, group.replica)
}

/// A name that the replica's folder never had: the number after the point grows by one.
fn next_folder(group: GroupReplica, current: &str) -> String {
    let number = current.rsplit_once('.').and_then(|(_, number)| number.parse::<u64>().ok()).unwrap_or(0);
    format!("{}.{}", first_folder(group), number.saturating_add(1))
}

fn read_state(disk: &dyn Disk, dir: &Path) -> Result<State, RegistryError> {
    let path = dir.join(FILE);
    match disk::read_file(disk, FILE) {
        Ok(Some(bytes)) => State::decode(&bytes).map_err(|error| match error {
            DecodeError::Damaged(message) => RegistryError::Damaged { path, message },
            DecodeError::LaterFormat(format) => RegistryError::LaterFormat { path, format },
        }),
        Ok(None) => initial_state(dir, path),
        Err(error) => Err(RegistryError::io("read", path)(error)),
    }
}

/// The state without a registry file, which is valid only in a folder without data.
fn initial_state(dir: &Path, path: PathBuf) -> Result<State, RegistryError> {
    let log = dir.join(LOG);
    let is_used = !folder_names(&dir.join(GROUPS))?.is_empty() || (log.is_dir() && !folder_names(&log)?.is_empty());
    if is_used {
        return Err(RegistryError::Damaged {
            path,
            message: "the file is missing, but the folder has data".to_owned(),
        });
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

fn apply_repair(dir: &Path, repair: &Repair) -> Result<(), RegistryError> {
    let groups = dir.join(GROUPS);
    for name in &repair.delete {
        let path = groups.join(name);
        folder::remove(&path).map_err(RegistryError::io("delete", &path))?;
    }
    for name in &repair.unknown {
        let to = unused_name(&dir.join(LOST_AND_FOUND), name)?;
        warn!(folder = %name, to = %to.display(), "unknown replica folder moved to lost and found");
        folder::rename(&groups.join(name), &to).map_err(RegistryError::io("move unknown folder to", &to))?;
        folder::sync(&groups).map_err(RegistryError::io("sync", &groups))?;
    }
    for name in &repair.lost {
        warn!(folder = %name, "replica folder is missing; replica quarantined");
    }
    Ok(())
}

fn unused_name(dir: &Path, name: &str) -> Result<PathBuf, RegistryError> {
    fs::create_dir_all(dir).map_err(RegistryError::io("create", dir))?;
    let taken = folder_names(dir)?;
    let mut candidates = (0u64..).map(|number| format!("{name}.{number}"));
    let free = candidates.find(|candidate| !taken.contains(candidate)).unwrap_or_else(|| name.to_owned());
    Ok(dir.join(free))
}

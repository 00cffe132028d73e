//! What is on a server's disk when it starts: its registry, its commit log, and which replicas have lost a part of it.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_runtime::units::ByteSize;
use ebla_runtime::{Blocking, Clock, Rng, Runtime};
use ebla_storage::log::{CommitLog, LogError, LogOptions, Record, Recovered, SegmentManifest};
use ebla_storage::registry::{Registry, RegistryError, ReplicaState};
use tracing::{error, info, warn};

use crate::config::ServerConfig;
use crate::raft::GroupReplica;

/// Between two attempts to open a disk that has no space for it.
const FULL_DISK_PAUSE: Duration = Duration::from_secs(5);

/// The state of the disk before the replicas are opened.
pub(crate) struct OpenedDisk {
    pub(crate) registry: Arc<Registry>,
    pub(crate) log: CommitLog,
    pub(crate) quarantined: BTreeSet<GroupReplica>,
}

pub(crate) async fn open_disk(
    config: &ServerConfig,
    maintenance: &Blocking,
    runtime: &Runtime,
) -> Result<OpenedDisk, Error> {
    loop {
        let (parts, rng, clock) = (config.clone(), runtime.rng.fork(), runtime.clock.clone());
        let opened = maintenance.run(move || open_disk_now(&parts, rng, clock)).await;
        match opened.map_err(|error| Error::internal(error.to_string()))? {
            Err(error) if error.reason == Reason::ResourceExhausted => {
                warn!(%error, folder = %config.data_dir.display(), "waiting for disk space to start: free some; nothing is lost");
                tokio::time::sleep(FULL_DISK_PAUSE).await;
            }
            opened => return opened,
        }
    }
}

fn open_disk_now(config: &ServerConfig, rng: Rng, clock: Clock) -> Result<OpenedDisk, Error> {
    let doing = |action: &'static str| move |error: io::Error| failed(&error, format!("{action}: {error}"));
    let data_dir = &config.data_dir;
    std::fs::create_dir_all(data_dir).map_err(doing("create the data folder"))?;
    let folder = (config.options.open_disk)(data_dir).map_err(opening(data_dir))?;
    let registry = Arc::new(Registry::open_on(folder, data_dir)?);
    // Partly received checkpoints do not survive a restart.
    let scratch = data_dir.join("scratch");
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch).map_err(doing("remove the scratch folder"))?;
    }
    let log_dir = data_dir.join("log");
    let disk = (config.options.open_disk)(&log_dir).map_err(opening(&log_dir))?;
    let to_usize = |size: ByteSize| usize::try_from(size.bytes()).unwrap_or(usize::MAX);
    let (segment_bytes, cache_bytes) = (to_usize(config.options.segment_bytes), to_usize(config.options.log_cache));
    let options = LogOptions { segment_bytes, cache_bytes, rng, clock, ..LogOptions::default() };
    let (log, recovered) = CommitLog::open(disk, Arc::clone(&registry) as Arc<dyn SegmentManifest>, options).map_err(
        |error| match error {
            LogError::NoSpace { .. } => Error::new(Reason::ResourceExhausted, error.to_string()),
            error => Error::damaged(format!("open the commit log: {error}")),
        },
    )?;
    remove_deleted_groups(&log, &registry, &recovered);
    let quarantined = find_damaged(&registry, &recovered);
    Ok(OpenedDisk { registry, log, quarantined })
}

/// The error of a folder that cannot be opened.
fn opening(folder: &Path) -> impl Fn(io::Error) -> Error {
    move |error| match error.kind() {
        io::ErrorKind::WouldBlock => RegistryError::InUse(folder.to_owned()).into(),
        _ => failed(&error, format!("open {}: {error}", folder.display())),
    }
}

fn failed(error: &io::Error, message: String) -> Error {
    let is_full = error.kind() == io::ErrorKind::StorageFull;
    Error::new(if is_full { Reason::ResourceExhausted } else { Reason::Internal }, message)
}

/// Removes groups from the log whose replicas were removed or never completely created. After a crash before this removal,
/// the log carries such a group, even a damaged one, from segment to segment.
fn remove_deleted_groups(log: &CommitLog, registry: &Registry, recovered: &Recovered) {
    let here: BTreeSet<GroupReplica> = registry.replicas().into_iter().map(|(id, _)| id).collect();
    let carried: BTreeSet<GroupReplica> = recovered.groups.keys().chain(&recovered.quarantined).copied().collect();
    for group in carried.difference(&here) {
        info!(group = %group.group, replica = %group.replica, "removing a deleted replica from the commit log");
        // Repeated at the next start if it does not reach the disk now.
        log.submit(vec![Record::Removed { group: *group }], Box::new(|_outcome| ()));
    }
}

/// The live replicas whose log is incomplete: entries that they acknowledged may be lost.
fn find_damaged(registry: &Registry, recovered: &Recovered) -> BTreeSet<GroupReplica> {
    let live = registry.replicas().into_iter().filter(|(_, record)| record.state == ReplicaState::Live);
    let lost: BTreeSet<GroupReplica> = live.map(|(id, _)| id).filter(|id| !recovered.groups.contains_key(id)).collect();
    if !lost.is_empty() {
        error!(
            replicas = lost.len(),
            cut_bytes = recovered.cut_bytes,
            "commit log lost acknowledged entries; affected replicas are quarantined"
        );
    }
    lost
}

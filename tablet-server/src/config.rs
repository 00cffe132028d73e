//! How a tablet server is set up: settings are data, what it talks to are arguments of `server::TabletServer::start`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ebla_runtime::config::ByteSize;
use ebla_storage::disk::{Disk, RealDisk};
use ebla_storage::tablet::{BlockCache, StoreOptions};

use crate::front::RequestBytes;
use crate::neighbours::Neighbours;
use crate::raft::RaftTimings;

/// Everything that may be set about a tablet server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Memory and files of the tablet stores.
    pub store: StoreOptions,
    /// The block cache, when other servers of this process use it too; `None`: one of its own.
    pub block_cache: Option<BlockCache>,
    /// The commit log on disk; above it, the tablets that pin its oldest part are flushed.
    pub log_bytes: ByteSize,
    /// Size of a file of the commit log.
    pub segment_bytes: ByteSize,
    /// Memory for what was written to the commit log last: followers that are behind are served from it.
    pub log_cache: ByteSize,
    /// A tablet is divided when it has about this size on disk.
    pub split_bytes: ByteSize,
    /// Times of the Raft groups; the same on every server of a cluster.
    pub timings: RaftTimings,
    /// How replicas that ran before take part in elections.
    pub restart: Restart,
    /// How long `servers/<id>` outlives a server that is silent.
    pub lease_ttl: Duration,
    /// How many bytes of data requests it may hold.
    pub request_bytes: RequestBytes,
    /// Threads that apply commands.
    pub apply_threads: usize,
    /// Threads that read.
    pub read_threads: usize,
    /// Threads that flush, open and copy.
    pub maintenance_threads: usize,
    /// The other servers of this process, reached without a socket.
    pub neighbours: Neighbours,
    /// Where calls that wait for a disk run.
    pub threads: Threads,
    /// What the commit log is kept on.
    pub open_disk: OpenDisk,
}

/// Opens the disk of a commit log, given the folder that is meant for it. Blocking.
pub type OpenDisk = Arc<dyn Fn(&Path) -> io::Result<Arc<dyn Disk>> + Send + Sync>;

/// Where calls that wait for a disk run, and who writes the commit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// Pools of threads, and a thread for the log.
    Pools,
    /// None, as in a simulation: calls run where they stand, and a task writes the log.
    None {
        /// About how long a batch of the log waits before it is written: the time that a real disk would take.
        sync: Duration,
    },
}

/// What a start after an earlier run means for elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// Others may have gone on: keep out of elections until no promise made before the restart can matter.
    Alone,
    /// All voters lived in one process and died with it: none can hold a promise of another.
    Together,
}

impl std::fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerOptions")
            .field("split_bytes", &self.split_bytes)
            .field("log_bytes", &self.log_bytes)
            .field("restart", &self.restart)
            .finish_non_exhaustive()
    }
}

impl ServerOptions {
    /// A server of its own.
    #[must_use]
    pub fn server() -> Self {
        Self {
            store: StoreOptions::server(),
            block_cache: None,
            log_bytes: ByteSize::mebibytes(1024),
            segment_bytes: ByteSize::mebibytes(64),
            log_cache: ByteSize::mebibytes(64),
            split_bytes: ByteSize::mebibytes(128),
            timings: RaftTimings::default(),
            restart: Restart::Alone,
            lease_ttl: Duration::from_secs(10),
            request_bytes: RequestBytes::default(),
            apply_threads: 4,
            read_threads: 8,
            maintenance_threads: 4,
            neighbours: Neighbours::default(),
            threads: Threads::Pools,
            open_disk: Arc::new(|folder| Ok(Arc::new(RealDisk::open(folder)?))),
        }
    }

    /// The only server of a small process; others that it shares the process with are reached through `neighbours`, and the
    /// memory is divided with [`ServerOptions::one_of`].
    #[must_use]
    pub fn up(neighbours: Neighbours) -> Self {
        Self {
            store: StoreOptions::up(),
            log_bytes: ByteSize::mebibytes(512),
            log_cache: ByteSize::mebibytes(24),
            restart: Restart::Together,
            apply_threads: 2,
            read_threads: 2,
            maintenance_threads: 2,
            neighbours,
            ..Self::server()
        }
    }
}

impl ServerOptions {
    /// One of `servers` servers that divide the memory these options give, and share `cache`.
    #[must_use]
    pub fn one_of(mut self, servers: usize, cache: &BlockCache) -> Self {
        let servers = servers.max(1);
        self.store.memtable_bytes /= servers;
        self.log_cache = ByteSize::new(self.log_cache.bytes() / servers as u64);
        self.block_cache = Some(cache.clone());
        self
    }
}

/// Where a tablet server lives and listens.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Its data folder; an empty one is a new server.
    pub data_dir: PathBuf,
    /// `host:port` to listen on; port 0 takes a free one.
    pub listen: String,
    /// `host:port` that others reach it by; absent: the address it listens on.
    pub advertise: Option<String>,
    /// Settings.
    pub options: ServerOptions,
}

impl ServerConfig {
    /// A server that others reach where it listens.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>, listen: &str, options: ServerOptions) -> Self {
        Self { data_dir: data_dir.into(), listen: listen.to_owned(), advertise: None, options }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_one_process_divide_its_memory() {
        let whole = ServerOptions::up(Neighbours::default());
        let cache = BlockCache::new(whole.store.cache_bytes);
        for servers in [1, 3, 16] {
            let one = whole.clone().one_of(servers, &cache);
            assert!(one.block_cache.is_some());
            let count = u64::try_from(servers).unwrap();
            assert!(one.store.memtable_bytes * servers <= whole.store.memtable_bytes);
            assert!(one.log_cache.bytes() * count <= whole.log_cache.bytes() && one.log_cache.bytes() > 0);
        }
        assert!(whole.one_of(0, &cache).store.memtable_bytes > 0);
    }
}

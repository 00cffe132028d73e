//! Configuration of a tablet server: settings are data, dependencies are arguments of `server::TabletServer::start`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ebla_model::cluster_version::SupportedVersions;
use ebla_model::heat::HeatOption;
use ebla_model::zone::Zone;
use ebla_routing::CollectorAddress;
use ebla_runtime::trace::TraceOptions;
use ebla_runtime::units::ByteSize;
use ebla_runtime::{Blocking, ResourceProbe, SystemResources, blocking};
use ebla_storage::disk::{Disk, RealDisk};
use ebla_storage::store::{BlockCache, StoreOptions};

use crate::front::{AccessOptions, RequestBytes};
use crate::local_servers::LocalServers;
use crate::log_writer::SyncLatency;
use crate::raft::RaftTimings;
use crate::response_budget::ResponseBytes;

/// The threads that read, at most: a read may wait for a disk.
const READ_THREADS: usize = 8;
/// The number of calls that may wait for a thread, for each pool.
pub(crate) const QUEUE_MAX: usize = 16_384;

/// The settings of a tablet server.
#[derive(Clone)]
pub struct ServerOptions {
    /// Memory and files of the tablet stores.
    pub store: StoreOptions,
    /// The block cache shared with other servers of this process; `None`: the server creates its own.
    pub block_cache: Option<BlockCache>,
    /// Budget of the commit log on disk; above it, the tablets that pin its oldest segments are flushed.
    pub log_bytes: ByteSize,
    /// Size of a segment of the commit log.
    pub segment_bytes: ByteSize,
    /// Memory for the newest records of the commit log: lagging followers are served from it.
    pub log_cache: ByteSize,
    /// A tablet is split when its size on disk exceeds about this.
    pub split_bytes: ByteSize,
    /// The same for a tablet of METADATA, except the root tablet, which is never split.
    pub metadata_split_bytes: ByteSize,
    /// A tablet is split when it has at least this many reads and writes per second for some seconds, and more than a quarter of those
    /// of its server; 0: never.
    pub split_load: u32,
    /// Timings of the Raft groups; the same on every server of a cluster.
    pub timings: RaftTimings,
    /// How restarted replicas take part in elections.
    pub restart: RestartScope,
    /// The lease's time to live: how long `servers/<id>` outlives a server that stops renewing.
    pub lease_ttl: Duration,
    /// Memory budget of data requests.
    pub request_bytes: RequestBytes,
    /// Memory budget of responses to reads.
    pub response_bytes: ResponseBytes,
    /// Threads that apply commands.
    pub apply_threads: usize,
    /// Threads that read.
    pub read_threads: usize,
    /// The threads that read for all servers of this process; `None`: the server starts `read_threads` of its own.
    pub shared_reads: Option<Blocking>,
    /// Threads that flush, open and copy stores.
    pub maintenance_threads: usize,
    /// The other servers of this process, reached without a socket.
    pub local_servers: LocalServers,
    /// Where blocking calls run.
    pub threads: Threads,
    /// Opens the disk of the commit log.
    pub open_disk: OpenDisk,
    /// Disk space below which writes of clients are refused; `None`: the smaller of 2 GiB and a tenth of the file system.
    pub disk_reserve: Option<ByteSize>,
    /// Reads the resources of the process, given the data folder and the reserve.
    pub resources: OpenResources,
    /// When and how fast all stores are read, to find damaged blocks.
    pub scrub: ScrubOptions,
    /// The cluster versions that this process supports and registers: those of its release.
    pub versions: SupportedVersions,
    /// What fails together with this server; `None`: it is a zone of its own.
    pub zone: Option<Zone>,
    /// Access control of the public API; `None`: every caller may do everything.
    pub access: Option<AccessOptions>,
    /// Whether key heat is collected.
    pub heat: HeatOption,
    /// Which operations are recorded.
    pub traces: TraceOptions,
    /// Where records are exported to; `None`: nowhere.
    pub collector: Option<CollectorAddress>,
}

/// When and how fast all stores are read, to find damaged blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Before the first pass of a process, on average.
    pub first_after: Duration,
    /// Between the starts of two passes, on average.
    pub period: Duration,
    /// The rate at which keys and values are read.
    pub bytes_per_second: u64,
}

impl Default for ScrubOptions {
    /// The first pass after an hour, then one each week, with 8 MiB per second.
    fn default() -> Self {
        let hour = Duration::from_secs(3_600);
        Self { first_after: hour, period: hour * 24 * 7, bytes_per_second: 8 << 20 }
    }
}

/// Makes the probe of a server's resources, for its data folder and its reserve of disk space.
pub type OpenResources = Arc<dyn Fn(&Path, Option<ByteSize>) -> Arc<dyn ResourceProbe> + Send + Sync>;

/// Opens the disk of a commit log in the given folder. Blocking.
pub type OpenDisk = Arc<dyn Fn(&Path) -> io::Result<Arc<dyn Disk>> + Send + Sync>;

/// Where blocking calls run, and what writes the commit log.
#[derive(Clone, Debug)]
pub enum Threads {
    /// Thread pools, and a thread for the log.
    Pools,
    /// No threads, as in a simulation: blocking calls run inline, and a task writes the log.
    Inline {
        /// How long a sync of the log takes.
        sync: SyncLatency,
        /// What applies entries, and reads those that have left the memory.
        apply: Blocking,
    },
}

/// The scope of a restart, which decides whether restarted replicas may vote at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartScope {
    /// Other servers may have kept running: stay out of elections until every lease promised before the restart has expired.
    Server,
    /// All voters ran in one process and stopped with it: no replica can hold a lease that another one promised.
    Cluster,
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
    /// A tablet server in a process of its own.
    #[must_use]
    pub fn server() -> Self {
        Self {
            store: StoreOptions::server(),
            block_cache: None,
            log_bytes: ByteSize::mebibytes(1024),
            segment_bytes: ByteSize::mebibytes(64),
            log_cache: ByteSize::mebibytes(64),
            split_bytes: ByteSize::mebibytes(128),
            metadata_split_bytes: ByteSize::mebibytes(128),
            split_load: 2_000,
            timings: RaftTimings::default(),
            restart: RestartScope::Server,
            lease_ttl: Duration::from_secs(10),
            request_bytes: RequestBytes::default(),
            response_bytes: ResponseBytes::default(),
            apply_threads: 4,
            read_threads: READ_THREADS,
            shared_reads: None,
            maintenance_threads: 4,
            local_servers: LocalServers::default(),
            threads: Threads::Pools,
            open_disk: Arc::new(|folder| Ok(Arc::new(RealDisk::open(folder)?))),
            disk_reserve: None,
            resources: Arc::new(|folder, reserve| Arc::new(SystemResources::new(folder, reserve))),
            scrub: ScrubOptions::default(),
            versions: SupportedVersions::OWN,
            zone: None,
            access: None,
            heat: HeatOption::Off,
            traces: TraceOptions::default(),
            collector: None,
        }
    }

    /// A tablet server of a small process; further servers of the process are reached through `local_servers`, the memory
    /// is divided with [`ServerOptions::divided_among`], and the threads that read are shared. They are two for each processor: while one waits for a disk,
    /// another one can run, and more would take the processors from the threads that receive calls.
    #[must_use]
    pub fn up(local_servers: LocalServers) -> Self {
        Self {
            store: StoreOptions::up(),
            log_bytes: ByteSize::mebibytes(512),
            log_cache: ByteSize::mebibytes(24),
            restart: RestartScope::Cluster,
            apply_threads: 2,
            read_threads: (2 * blocking::processors()).min(READ_THREADS),
            maintenance_threads: 2,
            local_servers,
            ..Self::server()
        }
    }
}

impl ServerOptions {
    /// Starts the threads that read.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn start_reads(&self) -> io::Result<Blocking> {
        match self.threads {
            // Otherwise the thread that receives calls from the network, and refuses those that are too many, would wait for many reads.
            Threads::Pools => Blocking::background_pool("reads", self.read_threads, QUEUE_MAX),
            Threads::Inline { .. } => Ok(Blocking::inline()),
        }
    }

    /// The options of one of `servers` servers that divide this memory and share `cache`.
    #[must_use]
    pub fn divided_among(mut self, servers: usize, cache: &BlockCache) -> Self {
        let servers = servers.max(1);
        self.store.memtable_bytes /= servers;
        self.store.scan_cache_bytes /= servers;
        self.store.memory_group_bytes /= servers;
        self.log_cache = ByteSize::new(self.log_cache.bytes() / servers as u64);
        self.block_cache = Some(cache.clone());
        self
    }
}

/// The folder and addresses of a tablet server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The data folder; an empty one creates a new server.
    pub data_dir: PathBuf,
    /// `host:port` to listen on; port 0 takes a free one.
    pub listen: String,
    /// `host:port` under which others reach it; `None`: the address it listens on.
    pub advertise: Option<String>,
    /// The settings.
    pub options: ServerOptions,
}

impl ServerConfig {
    /// A server that advertises the address it listens on.
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
        let whole = ServerOptions::up(LocalServers::default());
        let cache = BlockCache::new(whole.store.cache_bytes);
        for servers in [1, 3, 16] {
            let one = whole.clone().divided_among(servers, &cache);
            assert!(one.block_cache.is_some());
            let count = u64::try_from(servers).unwrap();
            assert!(one.store.memtable_bytes * servers <= whole.store.memtable_bytes);
            assert!(one.store.scan_cache_bytes * servers <= whole.store.scan_cache_bytes);
            assert!(one.log_cache.bytes() * count <= whole.log_cache.bytes() && one.log_cache.bytes() > 0);
        }
        assert!(whole.divided_among(0, &cache).store.memtable_bytes > 0);
    }
}

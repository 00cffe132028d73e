//! The tablet server: stores replicas of tablets, serves the rows of the tablets it leads, forwards requests for others.
//!
//! Data flows one way, `front -> router -> tablet -> raft -> storage`; no file names a layer above its own. Beside the
//! layers:
//! - `server` starts and stops everything, `services` are the gRPC services on its port, `config` holds the settings, `drain` transfers leaderships before a graceful stop;
//! - `opened_disk` is what the server finds on its disk;
//! - `registration` is the server's identity and its lease in Chubby, `directory_cache` a copy of Chubby's files for restarts;
//! - `capacity` is what the server can still take: disk, files, memory;
//! - `clock_comparison` and `clock_exchange` find out whether the server's clock is off, `disk_speeds` and `slow_disk` whether its disk is slow;
//! - `rpc` serves fronts and clients, `control` serves the master, `evidence` is what the server knows for a recovery, `deadline` reads the timeouts of calls,
//!   `response_budget` limits the memory of responses that are not read;
//! - `maintenance` flushes memtables, purges logs, splits large tablets, collects garbage and reads all stores to find damage;
//! - `heat` collects which keys of tables are used;
//! - `log_writer` writes the commit log: a thread, or a task of a simulation;
//! - `import_client` sends a tablet that moves to the leader of its new group;
//! - `metadata_writer` updates METADATA after changes of tablets;
//! - `metrics` is what a monitoring system reads, `readiness` whether the server can serve;
//! - `local_servers` connects the servers of one process, `members_only` keeps others from the services between servers.

pub mod capacity;
pub mod clock_comparison;
mod clock_exchange;
pub mod config;
pub mod control;
pub mod deadline;
mod directory_cache;
pub mod disk_speeds;
pub mod drain;
mod evidence;
pub mod front;
mod guarded_tablets;
mod heat;
mod import_client;
pub mod local_servers;
pub mod log_writer;
pub mod maintenance;
mod members_only;
pub mod metadata_writer;
pub mod metrics;
mod middleware;
mod opened_disk;
pub mod raft;
mod readiness;
pub mod registration;
mod replica_reports;
pub mod response_budget;
pub mod router;
pub mod rpc;
pub mod scrub_results;
pub mod server;
mod services;
mod slow_disk;
pub mod tablet;

#[cfg(test)]
#[path = "../../tests/golden.rs"]
mod golden;
#[cfg(test)]
#[path = "../../fuzz/inputs.rs"]
mod inputs;

pub use config::{RestartScope, ServerConfig, ServerOptions};
pub use ebla_routing::CollectorAddress;
pub use ebla_storage::store::BlockCache;
pub use front::{AccessOptions, AuditOptions, AuditRotation, AuditedData, IdentityLimits, TokenOptions};
pub use local_servers::LocalServers;
pub use server::TabletServer;

//! The load of `ebla mt bench`: the cost of operations of a mounttable, compared with limits.
//!
//! | workload | operations | limit |
//! |---|---|---|
//! | `resolve` | one cached name per call | processor time |
//! | `batch-resolve` | a hundred cached names per call; counted in names | processor time |
//! | `cold` | names of ten elements that are not cached | one storage read each |
//! | `mount` | existing mounts that are renewed | one storage change each |
//! | `same-node` | many servers mounted on one node; then resolved | one storage change each: no retries after conflicts |
//! | `wide` | uncached names in a large and in a small directory; a listing of the large one | equal latency; memory |
//!
//! The clients are closed loops (`super::closed_loop`). All mounts are below one node, which is deleted at the end.
//! [`shape`] generates the names, [`load_client`] is a client, [`session`] a user, [`fixture`] writes a very large directory,
//! [`report`] computes the results.

pub mod fixture;
pub mod load_client;
pub mod report;
mod run;
pub mod session;
pub mod shape;

use std::time::Duration;

pub use run::Bench;

/// A workload on a mounttable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Resolves one cached name per call.
    Resolve,
    /// Resolves a hundred cached names per call.
    BatchResolve,
    /// Resolves uncached deep names.
    Cold,
    /// Renews mounts.
    Mount,
    /// Mounts many servers on one node, and resolves it.
    SameNode,
    /// Resolves names in a large directory, and lists it.
    Wide,
}

/// Size and duration of the load.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Clients, each a closed loop.
    pub clients: usize,
    /// Duration of a time-limited workload.
    pub length: Duration,
    /// Names that are resolved and mounted repeatedly.
    pub names: u64,
    /// Deep names, each resolved once.
    pub cold: u64,
    /// Servers on one node.
    pub servers: u64,
    /// Children of the large directory.
    pub children: u64,
}

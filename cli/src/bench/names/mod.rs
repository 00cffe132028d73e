//! The load of `ebla mt bench`: what a mounttable costs for each name, beside the bars that it is to keep.
//!
//! | workload | what is asked | bar |
//! |---|---|---|
//! | `resolve` | one name a call, of names that are remembered | processor time |
//! | `batch-resolve` | a hundred of them a call; counted in names | processor time |
//! | `cold` | names of ten elements, each for the first time | one read of the storage each |
//! | `mount` | mounts that are there, made anew | one change of the storage each |
//! | `same-node` | many servers mounted on one node; then resolved | one change each: nobody repeats what another one spoiled |
//! | `wide` | names in a large directory and in a small one, each for the first time; a listing of the large one | no slower; memory |
//!
//! Closed loops (`super::closed`). What is mounted stands below one node with a name of its own, and is deleted in the end.
//! [`shape`] says how the names look, [`asker`] is a client, [`caller`] a user, [`stock`] makes a very large directory,
//! [`report`] turns counts into figures.

pub mod asker;
pub mod caller;
pub mod report;
mod run;
pub mod shape;
pub mod stock;

use std::time::Duration;

pub use run::Bench;

/// What is done to a mounttable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Resolves one remembered name a call.
    Resolve,
    /// Resolves a hundred remembered names a call.
    BatchResolve,
    /// Resolves deep names, each for the first time.
    Cold,
    /// Makes mounts anew.
    Mount,
    /// Mounts many servers on one node, and resolves it.
    SameNode,
    /// Resolves names in a large directory, and lists it.
    Wide,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Clients, each a closed loop.
    pub clients: usize,
    /// How long a workload lasts that has no end of its own.
    pub length: Duration,
    /// Names that are resolved and mounted anew, over and over.
    pub names: u64,
    /// Deep names, each resolved once.
    pub cold: u64,
    /// Servers on the one node.
    pub servers: u64,
    /// Children of the large directory.
    pub children: u64,
}

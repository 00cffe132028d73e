//! Routing information, as the servers of a cluster read and write it.
//!
//! ```text
//!   Chubby    files: root tablet, servers, schemas   ->  ChubbyDirectory   a watched snapshot, also stored for a restart
//!   METADATA  rows: tablet, range, replicas, leader  <-> Metadata          compare-and-set, guarded by generation
//! ```
//!
//! Programs use `client` alone, which locates tablets without Chubby. Tablet servers and the master use both: they give
//! a [`ChubbyDirectory`] to the cluster handle of `client`, and they update METADATA. Both serve [`HealthService`].

mod directory;
mod health;
mod metadata;
mod snapshot;
#[cfg(test)]
mod tests;

pub use directory::{ChubbyDirectory, TablePolicies};
pub use health::{HealthService, ReadinessCheck};
pub use metadata::{Annotations, CasOutcome, Metadata, PutOutcome};
pub use snapshot::ActiveMaster;

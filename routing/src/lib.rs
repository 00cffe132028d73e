//! Routing information, as the servers of a cluster read and write it.
//!
//! ```text
//!   Chubby    files: root tablet, servers, schemas   ->  ChubbyDirectory   a watched snapshot, also stored for a restart
//!   METADATA  rows: tablet, range, replicas, leader  <-> Metadata          compare-and-set, guarded by generation
//!   HEAT      rows: key heat of tables               <-> HeatTable
//! ```
//!
//! Programs use `client` alone, which locates tablets without Chubby. Tablet servers and the master use both: they give
//! a [`ChubbyDirectory`] to the cluster handle of `client`, and they update METADATA. Both serve [`HealthService`].
//!
//! Tablet servers also share what they have recorded of operations: [`ServerTracesService`] for each other, [`start_trace_export`] for a collector.

mod directory;
mod health;
mod heat;
mod metadata;
mod snapshot;
#[cfg(test)]
mod tests;
mod trace_export;
mod traces;

pub use directory::{ChubbyDirectory, TablePolicies};
pub use health::{HealthService, ReadinessCheck};
pub use heat::{Folded, HeatTable};
pub use metadata::{Annotations, CasOutcome, Metadata, PutOutcome};
pub use snapshot::ActiveMaster;
pub use trace_export::{CollectorAddress, start_trace_export};
pub use traces::{RecordSelection, ServerTracesService, selected_records};

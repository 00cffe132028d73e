//! What the suites that need a whole cluster share: a verifying load with its ledger, and ways to make tables and count
//! tablets through the public API alone.
//!
//! The load speaks to a cluster as any program would, through gRPC, so the same check runs against a cluster in this
//! process, against `ebla up` as a process that is killed, or against any other Bigtable.

pub mod api;
pub mod ledger;
pub mod load;

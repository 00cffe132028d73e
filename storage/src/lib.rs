//! The local storage of a tablet server: one commit log for all its groups, one store for each replica, and the registry
//! of its data folder.
//!
//! ```text
//!   log        the Raft logs of all groups in one sequence of segments, with group commit     on `disk`
//!   store      one RocksDB directory for each replica: cells and replica metadata
//!   flush      the flush scheduler, one for the whole server
//!   registry   the server's identity, its current and its removed replicas
//!   hint_file  a small file of hints for the next start
//!   disk       the files of the log, real and simulated
//! ```
//!
//! Synchronous: calls block, and callers must run them where blocking is allowed. The crate knows bytes, groups and log
//! records. It knows no Raft, no schema and no request.

pub mod disk;
pub mod flush;
mod folder;
pub mod hint_file;
pub mod log;
pub mod registry;
pub mod store;

#[cfg(test)]
#[path = "../../fuzz/inputs.rs"]
mod inputs;

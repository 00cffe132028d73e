//! What a tablet server keeps on its disk: one commit log for all its tablets, one store for each replica, and the
//! registry of what lives in its data folder.
//!
//! ```text
//!   log        the Raft logs of all tablets in one sequence of segments, one sync for all     on `disk`
//!   tablet     one RocksDB directory for each replica: cells and what the replica knows
//!   flush      which store is flushed when, decided for the whole server
//!   registry   who this server is, which replicas it has and had
//!   kept       a small file of hints for the next start
//!   disk       the files of the log, real and simulated
//! ```
//!
//! Synchronous: calls block, and callers see to it that they run where that is allowed. Knows bytes, tablets and log
//! records; knows no Raft, no schema and no request.

pub mod disk;
pub mod flush;
mod folder;
pub mod kept;
pub mod log;
pub mod registry;
pub mod tablet;

//! What a replica stores: its log, and the state machine as openraft sees it.
//!
//! The log of each group is part of the server's commit log (`log_store`); `sync_tracker` knows which entries are synced, and the
//! state machine (`adapter`) applies no others. `forced_membership` changes the log of a replica that does not run. Snapshots are checkpoints of the group's store (`snapshot`).

pub(super) mod adapter;
pub(super) mod blocking;
pub(super) mod forced_membership;
pub(super) mod log_store;
pub(super) mod snapshot;
pub(super) mod sync_tracker;

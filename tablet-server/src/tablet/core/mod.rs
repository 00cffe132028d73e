//! The replicated core of a tablet: its state, its commands, and how they are applied.
//!
//! `state` and `apply` are pure: the effect of a command on a tablet is a function of the two. `command` encodes commands and
//! replies for the log, `entry` decodes log entries. `state_machine` carries applied commands out on the replica's store,
//! driven by `raft`, and publishes the `applied_state` for readers; `stored_cells` reads the store for apply, `store_rules` are what the
//! store must know of the state, and `change_record` says what has changed in a tablet that is being copied. `damage` collects the suspicions that its store is damaged. `file_sizes`
//! are the sizes of the tablets in files. `planted` are faults that only tests enable.

pub mod applied_state;
pub mod apply;
pub(in crate::tablet) mod change_record;
pub mod command;
pub mod damage;
mod entry;
pub mod family_counters;
mod file_sizes;
mod planted;
pub mod state;
pub mod state_machine;
pub(in crate::tablet) mod store_rules;
mod stored_cells;

//! The life of groups and tablets: creation, start, split, merge, division, move, change of replicas, garbage collection, removal.
//!
//! `manager` holds all replicas of the server; `replica_factory` creates stores for it, and `recovery` decides what becomes of a
//! replica that cannot run. `split`, `merge`, `divide`, `moves`, `replica_change` and `gc` are operations of a group's leader. `report`
//! and `digest` describe a replica to the master and to tests.

pub mod digest;
pub mod divide;
pub mod gc;
pub mod manager;
pub mod merge;
pub mod moves;
mod recovery;
pub mod replica_change;
mod replica_factory;
pub mod report;
pub mod split;
pub mod split_point;

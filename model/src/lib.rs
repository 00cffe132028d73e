//! The data model of Ebla as pure functions over values: keys, cells, schemas, mutations, filters, garbage collection
//! rules, write sessions, METADATA records and the commands of a group's log.
//!
//! ```text
//!   id  time  error                          basic types
//!   key  cell  codec                         rows, families, columns, versions, and their order on disk
//!   limit                                    row limits of reads
//!   schema  locality  gc                     schemas, locality groups, rules of garbage collection
//!   mutation  aggregate  rmw                 changes of rows
//!   filter                                   row filters and filter push-down
//!   cluster_version                          which formats the processes of a cluster may use among each other
//!   access                                   identities, policies and lists of families: who may do what
//!   admin                                    instances and app profiles: resources of the admin API
//!   metadata  command  stored_row            tablet and group descriptors, the commands of a group's log, rows in its store
//!   session  idempotency  group_time         exactly-once writes, and the times of a group
//!   capacity  near_capacity                  what a server can still take, and whether it is near a limit
//!   tablet_move  tablet_load  tablet_event   moves of tablets between groups, the load of a tablet, and what has happened to it
//!   heat                                     how much each part of a table's keys is used over time
//!   highest_ids                              the ids in use, which no counter may give again
//!   clock_offset  sync_delay  scrub          whether the clock of a server is off, or its disk slow; its search for damaged blocks
//!   scan_cache  call_times                   what a server's cache of rows is worth; its calls of the last seconds
//! ```
//!
//! Invariants: no IO, no clock, no randomness, no global state. Equal inputs give equal outputs, on every replica and in
//! every release that reads the same bytes. Time is always an argument.
//!
//! This crate has no wire messages (crate `proto` translates them) and no code that waits.

pub mod access;
pub mod admin;
pub mod aggregate;
pub mod call_times;
pub mod capacity;
pub mod cell;
pub mod clock_offset;
pub mod cluster_event;
pub mod cluster_name;
pub mod cluster_version;
pub mod codec;
pub mod command;
pub mod error;
pub mod filter;
pub mod gc;
#[cfg(test)]
#[path = "../../tests/golden.rs"]
mod golden;
pub mod group_time;
pub mod heat;
pub mod highest_ids;
pub mod id;
pub mod idempotency;
pub mod key;
pub mod limit;
pub mod locality;
pub mod memory_groups;
pub mod metadata;
pub mod mutation;
pub mod near_capacity;
mod plain_name;
pub mod quota;
pub mod rmw;
pub mod scan_cache;
pub mod schema;
pub mod scrub;
pub mod session;
pub mod stored_row;
pub mod sync_delay;
pub mod tablet_event;
pub mod tablet_load;
pub mod tablet_move;
pub mod time;
pub mod zone;

pub use crate::admin::app_profile::{AppProfile, AppProfileName};
pub use crate::admin::instance::{Instance, InstanceName, Instances, ProjectName};
pub use crate::aggregate::Aggregator;
pub use crate::cell::{Cell, FamilyName, Row};
pub use crate::error::{Error, ErrorKind, Reason};
pub use crate::filter::{CompiledFilter, Filter};
pub use crate::gc::GcRule;
pub use crate::id::{
    ClusterId, FamilyId, Generation, GroupId, Incarnation, LogId, LogIndex, MasterEpoch, OperationId, ReplicaId,
    SchemaVersion, Sequence, ServerId, SessionId, TableId, TabletId, Term,
};
pub use crate::key::{KeyRange, RowKey, RowSet};
pub use crate::limit::RowLimit;
pub use crate::metadata::{GroupDescriptor, Membership, Replica, TabletDescriptor};
pub use crate::schema::{Family, NewFamily, TableName, TableSchema};
pub use crate::time::Micros;

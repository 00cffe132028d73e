//! The data model of Ebla as pure functions over values: keys, cells, schemas, mutations, filters, garbage collection
//! rules, write sessions, METADATA records and the commands of a tablet's log.
//!
//! ```text
//!   id  time  error                          the words
//!   key  cell  codec                         rows, families, columns, versions, and their order on disk
//!   schema  gc  mutation  aggregate  rmw     what a table allows, what a request asks
//!   filter                                   what is seen
//!   instance  app_profile                    the names above tables, and what is kept of them
//!   metadata  command                        tablets, what stands in their logs
//!   session  idempotency                     writes applied once
//! ```
//!
//! Invariants: no IO, no clock, no randomness, no global state. What is equal in is equal out, on every replica and in
//! every release that reads the same bytes. Time is always an argument.
//!
//! What is absent: message types of any wire (crate `proto` is the translator) and anything that waits.

pub mod aggregate;
pub mod app_profile;
pub mod cell;
pub mod codec;
pub mod command;
pub mod error;
pub mod filter;
pub mod gc;
pub mod id;
pub mod idempotency;
pub mod instance;
pub mod key;
pub mod metadata;
pub mod mutation;
pub mod rmw;
pub mod schema;
pub mod session;
pub mod time;

pub use crate::aggregate::Aggregator;
pub use crate::app_profile::{AppProfile, AppProfileName};
pub use crate::cell::{Cell, FamilyName, Row};
pub use crate::error::{Error, ErrorKind, Reason};
pub use crate::filter::{CompiledFilter, Filter};
pub use crate::gc::GcRule;
pub use crate::id::{
    ClusterId, FamilyId, Generation, Incarnation, LogId, MasterEpoch, OperationId, ReplicaId, SchemaVersion, Sequence,
    ServerId, SessionId, TableId, TabletId,
};
pub use crate::instance::{Instance, InstanceName, Instances, ProjectName};
pub use crate::key::{KeyRange, RowKey, RowSet};
pub use crate::metadata::{Membership, Replica, TabletDescriptor};
pub use crate::schema::{Family, NewFamily, TableName, TableSchema};
pub use crate::time::Micros;

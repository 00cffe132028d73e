//! The tree of a mounttable: names, permissions, and nodes over a store that changes one row at a time.
//!
//! ```text
//!   error                         the reasons for refusals, and what the caller should do
//!   naming  name  address         names as text, node names, server addresses
//!   glob                          patterns that match many names
//!   identity  access              callers; access lists, permissions, templates
//!   rules  file                   authorization rules; the permissions file that seeds a table
//!   mount  key  node              mounted servers; row keys; nodes as rows
//!   outage                        storage outages, and how they extend deadlines
//!   store                         the storage interface, its cache, and an in-memory storage
//!   table                         the tree in a storage: the fenced protocol
//!   messages                      values and errors as messages of `mounttable.v1`
//! ```
//!
//! Invariants: the modules above `store` are functions of values, without IO, clock or randomness. `store` and `table` take
//! clock and randomness as arguments. The tree uses only the public data API of Bigtable. Names, patterns and addresses are
//! parsed once; afterwards the type is the proof.
//!
//! What is absent: services and authentication, which are the server's.

pub mod access;
pub mod address;
pub mod error;
pub mod file;
pub mod glob;
pub mod identity;
pub mod key;
pub mod messages;
pub mod mount;
pub mod name;
pub mod naming;
pub mod node;
pub mod outage;
pub mod rules;
pub mod store;
pub mod table;

pub use ebla_model::Micros;

pub use crate::access::{AccessList, Permissions, Tag};
pub use crate::address::ServerAddress;
pub use crate::error::{Error, Reason};
pub use crate::glob::Pattern;
pub use crate::identity::{BlessingName, BlessingPattern, Caller, Privilege, UserId};
pub use crate::key::row_key;
pub use crate::mount::{Deadline, MountMode, MountedServer, Target, TargetFlags};
pub use crate::name::NodeName;
pub use crate::store::{Environment, Store};
pub use crate::table::Table;

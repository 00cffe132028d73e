//! The mounttable: a hierarchical name service, the first tenant of Ebla.
//!
//! ```text
//!   error                         what is refused, and what the caller should do
//!   naming  name  address         names as text, names of nodes, where servers are
//!   glob                          patterns that ask for many names
//!   identity  access              who calls; access lists, permissions, templates
//!   rules  file                   who may do what; what a table begins with
//!   mount  key  node              what is mounted on a node; where its row is, and what it says
//!   outage                        when nobody could refresh a mount, and what that adds to deadlines
//!   store                         the storage that is asked for, and one in memory
//!   table                         the tree in a storage: the fenced protocol
//!   service  gateway              the gRPC services, and the same as JSON over HTTP
//!   server                        a process that serves them
//! ```
//!
//! Invariants: all above `store` are functions of values: no IO, no clock, no randomness. `store` and `table` take them
//! from outside. Nothing but the public API of a Bigtable is used of the storage. A name, a pattern and an address are parsed
//! once; afterwards the type is the proof.
//!
//! What is absent: logins (only a switch for development tells who calls). What programs use tables through is a crate of its
//! own, in `namespace/`.

pub mod access;
pub mod address;
pub mod error;
pub mod file;
pub mod gateway;
pub mod glob;
pub mod identity;
pub mod key;
pub mod mount;
pub mod name;
pub mod naming;
pub mod node;
pub mod outage;
pub mod rules;
pub mod server;
pub mod service;
pub mod store;
pub mod table;

pub use crate::access::{AccessList, Permissions, Tag};
pub use crate::address::ServerAddress;
pub use crate::error::{Error, Reason};
pub use crate::glob::Pattern;
pub use crate::identity::{BlessingName, BlessingPattern, Caller, Standing, UserId};
pub use crate::key::row_key;
pub use crate::mount::{Deadline, MountMode, MountedServer, Target};
pub use crate::name::NodeName;
pub use crate::store::{Store, Surroundings};
pub use crate::table::Table;

//! The client library of mounttables: one namespace over any number of tables that are mounted in each other.
//!
//! ```text
//!   roots  entry                the start and the result of a resolution
//!   recipients                  the servers that receive the caller's token: pure
//!   resolve  cache              the next table to ask, and cached answers: pure
//!   namespace  rpc              the handle, and calls to tables
//!   single_flight               one request for concurrent callers
//!   change  inspect             mounts, deletions, permissions; details of nodes
//!   operate                     administration of a table
//!   glob                        listing across tables
//!   watch                       the servers of a name, whenever they change
//!   publisher                   keeps servers mounted
//!   channel                     a channel to the servers of a name
//! ```
//!
//! Relative names are resolved from the roots, which are equivalent; rooted ones (`/host:8101/a/b`) from the server
//! that they name. A table that finds a mounted table on the path returns it, and the client continues there: only the
//! client sees the whole namespace.
//!
//! `examples/serve.rs` is a server that mounts itself, `examples/dial.rs` a client that knows only its name.
//!
//! What is absent: TLS, and authentication of servers.

pub mod cache;
pub mod change;
pub mod channel;
pub mod entry;
pub mod glob;
pub mod inspect;
mod namespace;
pub mod operate;
pub mod publisher;
pub mod recipients;
pub mod resolve;
pub mod roots;
mod rpc;
mod single_flight;
#[cfg(test)]
mod tests;
pub mod watch;

pub use crate::cache::{CacheConfig, Caching};
pub use crate::change::{ChangeScope, Etag, MountOptions, Mounted, ServerResults};
pub use crate::channel::NamedChannel;
pub use crate::entry::{MountEntry, Server};
pub use crate::glob::{GlobEntry, GlobError};
pub use crate::inspect::{Allowed, Node, Who};
pub use crate::namespace::{Builder, Hop, Namespace, Source, Trace};
pub use crate::operate::Operator;
pub use crate::publisher::Publisher;
pub use crate::roots::Roots;

//! The client side of mounttables: a program's view of all names, over any number of tables that are mounted in each
//! other.
//!
//! ```text
//!   roots  entry                where names begin; what they lead to
//!   resolve  cache              which table to ask next, and what need not be asked: pure
//!   namespace  ask  flight      the handle, and what asks; one question for all who ask the same
//!   change  inspect             mounts, deletions, permissions; what a table knows
//!   operate                     looking after a table
//!   glob                        listing over tables that are mounted in each other
//!   watch                       what a name leads to, whenever that changes
//!   publisher                   keeps servers mounted
//!   channel                     a channel to the servers of a name
//!   testing                     a mount table for applications' own tests
//! ```
//!
//! Relative names begin at the roots, of which any may answer; rooted ones (`/host:8101/a/b`) at the server that they
//! name. A table that comes upon a mounted table says so, and the next step goes there: nobody but the client sees the
//! whole.
//!
//! `examples/serve.rs` is a server that mounts itself, `examples/dial.rs` a client that knows its name only.
//!
//! What is absent: TLS, and the identity of a server.

mod ask;
pub mod cache;
pub mod change;
pub mod channel;
pub mod entry;
mod flight;
pub mod glob;
pub mod inspect;
mod namespace;
pub mod operate;
pub mod publisher;
pub mod resolve;
pub mod roots;
pub mod testing;
#[cfg(test)]
mod tests;
pub mod watch;

pub use crate::cache::{CacheConfig, Caching};
pub use crate::change::{Etag, MountOptions, Mounted, Outcomes};
pub use crate::channel::NamedChannel;
pub use crate::entry::{MountEntry, Server};
pub use crate::glob::{GlobEntry, GlobError};
pub use crate::inspect::{Allowed, Node, Who};
pub use crate::namespace::{Builder, Hop, Namespace, Source, Trace};
pub use crate::operate::Operator;
pub use crate::publisher::Publisher;
pub use crate::roots::Roots;

//! The way in: finds tablets, keeps asking until the deadline, applies each write once.
//!
//! ```text
//!   Client -> Table            what a program uses: rows, mutations, filters of the model
//!     |-- cluster  -> Cluster  plans by tablet, retries, sessions      (also used by fronts and the master)
//!     |                 |-- locate    which tablet, at which server: three levels, pure
//!     |                 |-- retry     whether and when to try again: pure
//!     |                 |-- session   sequence numbers that make a retried write count once
//!     |                 |-- Transport one attempt at one server; `channel` is the gRPC one
//!     |                 '-- Directory the root tablet, servers' addresses, names of tables
//!     '-- endpoint -> the public Bigtable API at one address: this system's or another's
//!   Admin                      tables, families, splits, status
//! ```
//!
//! What is absent: any rule of the data model (tablets decide), any storage, any leadership. Everything known here is
//! a picture that may be old; staleness costs a round trip, never a wrong answer.

pub mod admin;
mod attempts;
pub mod channel;
pub mod client;
pub mod cluster;
pub mod deadline;
pub mod directory;
pub mod locate;
mod lookup;
pub mod metadata;
mod mutate;
pub mod read;
pub mod retry;
pub mod scan;
pub mod session;
pub mod table;
#[cfg(test)]
mod tests;
pub mod transport;
mod wire;

pub use admin::Admin;
pub use channel::GrpcTransport;
pub use client::Client;
pub use cluster::{Check, Cluster, Lookup, Modify, Options, RowWrite};
pub use deadline::Deadline;
pub use directory::{ChubbyDirectory, Directory, Freshness, LocateDirectory};
pub use metadata::Metadata;
pub use scan::{Direction, Read, ReadParts, Stats};
pub use table::{ReadOptions, RowStream, Table};
pub use transport::{CallError, ReadStream, Target, Transport};

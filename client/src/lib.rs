//! The client library: locates tablets, retries until the deadline, applies each write exactly once.
//!
//! ```text
//!   Client -> Table            the interface of programs: rows, mutations, filters of the model
//!     |-- cluster  -> Cluster  groups by tablet, retries, sessions     (also used by fronts and the master)
//!     |                 |-- locate    the three-level tablet lookup and its cache: pure
//!     |                 |-- retry     the retry policy: pure
//!     |                 |-- session   sequence numbers that make retried writes idempotent
//!     |                 |-- Transport one attempt at one server; over gRPC in production
//!     |                 '-- Directory the root tablet, server addresses, table names
//!     '-- endpoint -> the public Bigtable API at one address: of this system or another
//!   Admin                      tables, families, splits, status
//!   snapshot, verdict          the state of a cluster with or without its master, and its health with reasons
//!   history, encoding          events of tablets in order; bytes and times as text
//! ```
//!
//! The library has no rules of the data model (tablets have them), no storage and no leadership, and it does not
//! know Chubby: `routing` is the part that only servers need. All its locations may
//! be stale; a stale location costs a round trip and never gives a wrong answer.

pub mod admin;
mod backend;
mod call;
pub mod channel;
pub mod client;
pub mod cluster;
pub mod cluster_events;
mod context;
pub mod deadline;
pub mod directory;
pub mod encoding;
pub mod groups;
mod grpc_transport;
pub mod heat;
pub mod history;
mod loads;
pub mod locate;
mod lookup;
mod lookup_counts;
pub mod metadata;
mod mutate;
mod operate;
mod options;
mod policies;
pub mod read;
pub mod retry;
mod retry_state;
pub mod scan;
mod session;
mod small_calls;
pub mod snapshot;
pub mod table;
mod table_id;
#[cfg(test)]
mod tests;
mod token;
mod traces;
pub mod transport;
pub mod verdict;
mod views;
pub mod waterfall;
mod wire;

pub use admin::Admin;
pub use client::Client;
pub use cluster::{Check, Cluster, Modify};
pub use deadline::Deadline;
pub use directory::{Directory, Freshness, LocateDirectory};
pub use grpc_transport::GrpcTransport;
pub use loads::QuotaMeasurement;
pub use lookup::Lookup;
pub use lookup_counts::LookupCounts;
pub use metadata::MetadataRow;
pub use mutate::RowWrite;
pub use options::ClusterOptions;
pub use policies::StoredPolicy;
pub use scan::{Direction, Read, ReadParts, Stats};
pub use table::{ReadOptions, RowStream, Table};
pub use table_id::unless_table_missing;
pub use token::{BearerToken, Credentials};
pub use transport::{CallError, ReadStream, Target, Transport};
pub use views::StoredView;
pub use wire::received_trace;

//! The server of a mounttable, a hierarchical name service and the first tenant of Ebla.
//!
//! ```text
//!   service   the gRPC services: authentication, and translation between messages and values
//!   gateway   the same calls as JSON over HTTP
//!   health    whether the server can do its work, for load balancers
//!   server    a process that serves a table
//!   testing   an in-memory server for tests
//! ```
//!
//! The tree that it serves is the crate `ebla-mounttable-tree`; its client library is `ebla-mounttable-namespace`.
//!
//! What is absent: logins.

pub mod gateway;
mod health;
pub mod metrics;
pub mod server;
pub mod service;
pub mod testing;

#[cfg(test)]
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

//! The messages between the replicas of a group, from openraft's calls to the sockets and back.
//!
//! ```text
//!   openraft's core -> peer -> links -> link: stream ~ gRPC ~> service -> network -> another server's group
//!                                             local  ------------------> network
//! ```
//!
//! `message` has the messages as values and `wire` their encoding. Outbound, a group's `peer` sends through the server's
//! `links`; inbound, `network` delivers to the group that a message names.

pub(super) mod election_guard;
pub(super) mod follower_recovery;
mod link;
pub(super) mod links;
pub(super) mod local;
pub(super) mod message;
pub(super) mod network;
pub(super) mod options;
pub(super) mod peer;
pub(super) mod receiver_guard;
pub(super) mod service;
pub(super) mod snapshot_budget;
mod stream;
mod wire;

#[cfg(test)]
mod fuzz_tests;

//! Messages: everything that is sent between processes or stored, and its conversion to values of the model.
//!
//! | module | content |
//! |---|---|
//! | [`data`] | the public data API's messages, hand-written: bytes are never copied and no field is missing |
//! | [`admin`] | the public admin API's messages, from published crates |
//! | [`services`] | servers and clients of the public services |
//! | [`record`] [`command`] [`tablet`] [`raft`] [`control`] [`locate`] [`operate`] [`trace`] | our own protos, generated |
//! | [`mounttable`] | the messages of the mounttable, generated |
//! | [`health`] | gRPC's health checking protocol, generated |
//! | [`DESCRIPTORS`] | the descriptors of all public services, for server reflection |
//! | [`otlp`] | the protocol of OpenTelemetry's collectors for traces, generated |
//! | [`convert`] | conversion between messages and the model; refuses malformed and unknown content |
//! | [`raw`] | messages that are forwarded without decoding |
//! | [`cluster_guard`] | the sender's cluster id in requests, so that requests of another cluster are refused |
//! | [`status`] | the one mapping between `model::Error` and gRPC status codes |
//!
//! Invariants: only [`status`] chooses gRPC codes. A message that this release does not fully understand is refused where
//! ignoring a part of it could change a result (filters, mutations, rules, commands, records).

mod action;
pub mod admin;
pub mod cluster_guard;
pub mod convert;
pub mod data;
mod descriptors;
mod generated;
pub mod raw;
pub mod services;
pub mod status;

pub use descriptors::DESCRIPTORS;
pub use generated::{command, control, health, locate, mounttable, operate, otlp, raft, record, tablet, trace};

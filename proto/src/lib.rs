//! The wire: every message that leaves a process or is kept, and how it becomes a value of the model.
//!
//! | module | what |
//! |---|---|
//! | [`data`] | the public data API's messages, hand-written so that bytes are never copied and no field is missing |
//! | [`admin`] | the public admin API's messages, from published crates |
//! | [`services`] | servers and clients of the public services |
//! | [`record`] [`command`] [`tablet`] [`raft`] [`control`] [`locate`] [`operate`] | our own protos, generated |
//! | [`mounttable`] | the messages of the tenant of that name, generated |
//! | [`convert`] | messages to model and back; what is malformed or unknown is refused here |
//! | [`raw`] | messages that are handed on unread |
//! | [`belonging`] | which cluster a message comes from, so that a stranger's is refused |
//! | [`status`] | the one table between `model::Error` and gRPC's codes |
//!
//! Invariants: gRPC codes are chosen in [`status`] alone. A message that this release does not fully understand is
//! refused where ignoring a part of it could change an answer (filters, mutations, rules, commands, records).

mod action;
pub mod admin;
pub mod belonging;
pub mod convert;
pub mod data;
mod generated;
pub mod raw;
pub mod services;
pub mod status;

pub use generated::{command, control, locate, mounttable, operate, raft, record, tablet};

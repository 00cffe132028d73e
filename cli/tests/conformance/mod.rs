//! Compatibility with Google's Bigtable: `make conformance`, of which `make test` runs a part.
//!
//! | module | what |
//! |---|---|
//! | [`google`] | the system tests of Google's Python client, as published |
//! | [`probe`] | every method of every public service, with empty and invalid requests |
//! | [`differential`] | random programs against a model and against Google's emulator |
//! | [`examples`] | golden scripts: a case for each filter, mutation, error and limit |
//!
//! All use `ebla up` over real connections. Tests that need missing programs are skipped with a message.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

mod differential;
mod examples;
mod google;
mod noise;
#[path = "../../../model/tests/golden/notation.rs"]
#[expect(dead_code, reason = "the model's scripts write more than these")]
mod notation;
mod probe;
mod requests;
mod rows;
#[path = "../../../model/tests/golden/runner.rs"]
mod runner;
#[path = "../../../model/tests/golden/tree.rs"]
mod tree;

//! Whether Ebla is a Bigtable to those who know only Google's: `make conformance`, of which `make test` runs a part.
//!
//! | module | what |
//! |---|---|
//! | [`google`] | the system tests of Google's Python client, as published |
//! | [`probe`] | every method of every public service, with requests that say nothing or make no sense |
//!
//! All speak to `ebla up` over real connections. What needs something that is not installed says so and is skipped.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod google;
mod noise;
mod probe;
#[path = "../support/mod.rs"]
mod support;

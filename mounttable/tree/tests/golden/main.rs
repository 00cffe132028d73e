//! Golden scripts: `mounttable/tree/testdata/<subject>/*.txt`, transcripts of the pure modules.
//!
//! A comment that begins with a number such as T072 names the conformance case that it shows. The runner is the one of
//! `model`: `UPDATE=1 cargo test -p ebla-mounttable-tree --test golden` writes the actual output; the change is
//! reviewed as code.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

mod access;
mod glob;
mod mount;
mod names;
mod notation;
mod outage;
mod rules;
#[path = "../../../../model/tests/golden/runner.rs"]
mod runner;

//! Golden scripts: `mounttable/testdata/<subject>/*.txt`, read as transcripts of what the pure library decides.
//!
//! A comment that begins with a number such as T072 names the conformance case it stands for. The runner is the one of
//! `model`: `UPDATE=1 cargo test -p ebla-mounttable --test golden` writes what comes out now; the change is reviewed as
//! code.

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
#[path = "../../../model/tests/golden/runner.rs"]
mod runner;

//! Workloads: benchmarks, the verifying load with its checkers, and a data set.
//!
//! ```text
//!   bench       load on Bigtables, etcds, PostgreSQLs and mounttables, with comparisons
//!   verify      a load that records every response, and checkers of the recorded history
//!   webtable    a data set: pages with several versions, and the home pages of a Debian package index
//! ```
//!
//! The commands of `cli` run them, the suites of `cli` and `tests` use the verifying load, and the simulation uses its history
//! and checkers. Nothing here prints; results are values with a text and a JSON form.

pub mod bench;
pub mod verify;
pub mod webtable;

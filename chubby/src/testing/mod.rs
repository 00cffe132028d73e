//! Test doubles and test suites for Chubby. Production code never uses them.
//!
//! - [`conformance`]: the suite that every implementation passes.
//! - [`faulty`]: a service with injected outages, around any other one.
//!
//! No cargo feature guards this module: tests and programs would then be built with different features of this crate,
//! and with them every crate above it twice (`docs/inside/decisions/0012-rocksdb-compiled-once.md`).

pub mod conformance;
pub mod faulty;

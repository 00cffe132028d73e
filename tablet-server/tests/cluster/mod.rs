//! Three tablet servers in one process over real folders: rows written and read through each of them, split, failed over,
//! restarted. There is no master: the test makes the first tablets by itself.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod failing;
mod house;
mod rows;
mod serving;
mod splitting;

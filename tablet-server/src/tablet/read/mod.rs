//! The read path: from a pinned view of the store to whole rows.
//!
//! `scan` reads batches of rows at the leader. `row_iterator` goes through a scan of the store row by row; `projection`
//! (filter push-down) tells it which cells to read and which to skip; `row_assembler` turns cells into rows and hides dead
//! versions. `beyond` continues a lookup in the next tablet of METADATA. `points` are reads by key through the scan cache. `filter_cache` keeps compiled filters.

mod beyond;
pub(in crate::tablet) mod filter_cache;
pub(in crate::tablet) mod points;
pub(in crate::tablet) mod projection;
pub mod row_assembler;
mod row_iterator;
pub mod scan;

//! Laws that hold for every input: of names as text, of names of nodes, of patterns, of access lists,
//! of what a Bigtable is asked, and of what is known of rows.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod access;
mod cache;
mod filters;
mod glob;
mod names;

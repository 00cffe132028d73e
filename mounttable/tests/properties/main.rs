//! Laws that hold for every input: of names as text, of names of nodes, of patterns and of access lists.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod access;
mod glob;
mod names;

//! Properties for arbitrary input: names, patterns, access lists, filters, the cache; and for arbitrary bytes.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod access;
mod bytes;
mod cache;
mod filters;
mod glob;
#[path = "../../../../fuzz/inputs.rs"]
mod inputs;
mod names;

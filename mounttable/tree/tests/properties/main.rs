//! Properties for arbitrary input: names, patterns, access lists, filters, the cache.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod access;
mod cache;
mod filters;
mod glob;
mod names;

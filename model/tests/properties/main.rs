//! Property tests on random values. A failure prints the smallest value that fails.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod aggregate;
mod codec;
mod filter;
mod gc;
mod key;
mod metadata;
mod pattern;
mod session;
mod session_union;
mod sketch;
mod values;

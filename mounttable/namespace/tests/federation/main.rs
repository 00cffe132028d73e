//! Mount tables that are mounted in each other, each a real service on its own port, and clients that use them by name.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, and then says where")]

mod caching;
mod changing;
mod dialing;
mod listing;
mod operating;
mod publishing;
mod resolving;
mod tokens;
mod watching;
mod world;

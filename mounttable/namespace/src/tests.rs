//! Tests of the pure modules.

mod cache;
mod frontier;
mod globbers;
mod schedule;

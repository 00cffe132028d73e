//! Tests of what decides, longer than what they test.

mod cache;
mod frontier;

//! Tests of what decides, longer than what they test.

mod agenda;
mod cache;
mod frontier;
mod globbers;

//! Every call over a real connection, with the exact code and reason of each refusal. The storage is in memory, and the
//! clock of the server is the test's.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

mod admin;
mod gateway;
mod names;
mod refusals;
mod streams;
mod world;

//! Every call over a real connection, with the exact code and reason of each error. The storage is in memory, and the
//! server's clock is manual. With `EBLA_SECURITY=on` all connections have TLS.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

mod admin;
mod gateway;
#[path = "../../../../fuzz/inputs.rs"]
mod inputs;
mod names;
mod refusals;
mod secured;
mod seeding;
mod streams;
mod world;

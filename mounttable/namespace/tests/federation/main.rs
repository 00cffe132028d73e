//! Mount tables that are mounted in each other, each a real service on its own port, and clients that use them by name.
//! With `EBLA_SECURITY=on` all connections have TLS.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail, and then says where"
)]

mod caching;
mod changing;
mod dialing;
mod listing;
mod operating;
mod publishing;
mod resolving;
#[path = "../../../server/tests/wire/secured.rs"]
#[expect(dead_code, reason = "only a client without the runtime needs the CA")]
mod secured;
mod tokens;
mod watching;
mod world;

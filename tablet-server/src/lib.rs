//! The tablet server: holds replicas of tablets, serves the rows of those it leads, hands on the rest.
//!
//! Data flows one way, `front -> router -> tablet -> raft -> storage`; no file names a layer above its own. `server`
//! starts and stops it all, `lease` tells Chubby that this server lives, `memory` keeps where the others are for the next
//! start, `control` takes the master's orders, `internal` answers fronts and clients, `announce` writes METADATA after a
//! change, `flushing` decides when memory goes to disk, `collecting` when versions beyond a count are looked for, `leaving` hands leaderships over before an orderly end.

pub mod announce;
mod collecting;
pub mod config;
pub mod control;
pub mod flushing;
pub mod front;
pub mod internal;
pub mod lease;
pub mod leaving;
pub mod limits;
mod memory;
pub mod neighbours;
pub mod raft;
pub mod router;
pub mod server;
pub mod tablet;

pub use config::{Restart, ServerConfig, ServerOptions};
pub use ebla_storage::tablet::BlockCache;
pub use neighbours::Neighbours;
pub use server::TabletServer;

//! Replication: one Raft group for each tablet, openraft behind a small interface of ours.
//!
//! ```text
//!   tablet --- Group::propose / read_permit / read_barrier / transfer / purge ---> group
//!     ^                                                                              |
//!     |  StateMachine::apply                                    openraft's core, one a replica
//!     |                                                        /            |              \
//!   state_machine <--- durability <--- synced --- log_store (commit log)    |     peer -> link -> another server
//!                                                                           |              (stream | in process)
//!   service <--- frames of other servers --- network (GroupDirectory: which replica is meant)
//! ```
//!
//! No type of openraft leaves this folder, and no file in it names a tablet: what a command means is the
//! [`StateMachine`]'s affair.
//!
//! Invariants, beside Raft's own:
//! 1. Acknowledged means synced at a majority, and apply never runs ahead of the local sync (`durability`).
//! 2. A vote is on disk before it is given; a replica that ran before keeps out of elections until no one can count on a
//!    promise it has forgotten (`voting`).
//! 3. A read without asking others needs a lease, the term's first entry applied, and an open gate (`read_gate`).
//! 4. `NotLeader` means that the command is surely in no log; everything else that is not an answer may be applied yet.
//! 5. What a peer sends is checked before openraft sees it, where openraft would panic; what cannot be asked is
//!    unreachable, never a grant.
//!
//! Absent on purpose: which replicas live here (a [`GroupDirectory`] knows), and when to snapshot: the tablet's store is
//! its own snapshot (`state_machine`).

mod acknowledged;
mod boottime;
mod comeback;
mod config;
mod crew;
mod driver;
mod durability;
mod fault;
mod group;
mod link;
mod log_store;
mod membership;
mod network;
mod peer;
mod read_gate;
mod service;
mod snapshot;
mod state_machine;
mod status;
mod stream;
mod succession;
#[cfg(test)]
mod tests;
mod types;
mod voting;
mod wire;

pub use config::{GroupConfig, RaftTimings};
pub use ebla_storage::log::GroupId;
pub use fault::{ChangeError, Fault, ProposeError, ReadError, StartError, TransferError};
pub use group::Group;
pub use link::Origin;
pub use membership::MembershipChange;
pub use network::{AddressBook, GroupDirectory, Lookup, Neighbours, Network, NetworkOptions};
pub use read_gate::ReadsClosed;
pub use service::Service;
pub use state_machine::{Applied, CommittedEntry, Payload, Pools, StateMachine};
pub use status::{GroupStatus, Leadership};

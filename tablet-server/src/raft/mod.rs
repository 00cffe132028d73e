//! Replication: Raft groups, openraft behind a small interface.
//!
//! ```text
//!   tablet --- Group::propose / can_lease_read / wait_for_read_index / transfer_leadership / purge ---> group
//!     ^                                                                          |
//!     |  StateMachine::apply                                 openraft's core, one per replica
//!     |                                                      /            |             \
//!   storage::adapter <- sync_tracker <- storage::log_store (commit log)   |    transport: peer -> link -> another server
//!                                                                         |                      (stream | local)
//!   transport::service -- frames of other servers --> network (GroupDirectory: the addressed replica)
//! ```
//!
//! | folder | what |
//! |---|---|
//! | `group` | one replica of a group: its public interface and its background tasks |
//! | `lease` | leader lease and quorum tracker: reads without a round trip |
//! | `election` | vote hold-off after a restart, fast election after a disconnect |
//! | `storage` | log store, sync tracker, state machine adapter, snapshots |
//! | `transport` | messages between servers, outbound and inbound |
//! | `entry_times` | when the last entries were appended, synced, committed and applied, for traces |
//! | `runtime` | openraft's clock and tasks: time since boot, the group executor |
//!
//! No type of openraft leaves this folder, and no file in it knows a tablet: only the [`StateMachine`] knows what a
//! command means.
//!
//! Invariants, in addition to Raft's own:
//! 1. Acknowledged means synced at a quorum, and apply never runs ahead of the local sync (`storage::sync_tracker`).
//! 2. A vote is on disk before it is granted. A vote after restart waits for the hold-off: a replica that ran before keeps out
//!    of elections until no leader can rely on a promise that the replica has forgotten (`election::vote_holdoff`).
//! 3. A read without a round trip needs a valid leader lease, the term's first entry applied, and no suspension
//!    (`lease::leader_lease`). Every other read needs a read index, confirmed by a quorum.
//! 4. `NotLeader` means that the command is certainly in no log; after any other error it may still be applied.
//! 5. A message from a peer is validated before openraft, which could panic, gets it. A request that fails is
//!    unreachable, never a granted vote.
//!
//! Not here: which replicas are on this server (a [`GroupDirectory`] knows that), and when to take a snapshot: the group's
//! store is its own snapshot (`state_machine`). Log compaction happens when the tablet layer calls [`Group::purge`]; a follower that
//! needs purged entries gets a checkpoint (snapshot install).

mod config;
mod counters;
mod election;
mod entry_times;
mod error;
mod group;
mod lease;
mod runtime;
mod state_machine;
mod status;
mod storage;
#[cfg(test)]
mod tests;
mod transport;
mod types;

pub use config::{GroupConfig, RaftTimings};
pub use counters::{RaftCounters, RaftCounts};
pub use ebla_storage::log::GroupReplica;
pub use entry_times::EntryTimes;
pub use error::{Fault, FaultPart, MembershipError, ProposeError, ReadIndexError, StartError, TransferError};
pub use group::Group;
pub use group::membership::MembershipChange;
pub use group::propose::AppliedCommand;
pub use lease::leader_lease::LeaseSuspension;
pub use state_machine::{AppliedPosition, CheckpointOrigin, CommittedEntry, Payload, StateMachine};
pub use status::{GroupStatus, Leadership};
pub use storage::blocking::BlockingPools;
pub use storage::forced_membership::force_membership;
pub(crate) use storage::snapshot::ScratchFolder;
pub use transport::local::LocalPeers;
pub use transport::message::GroupOrigin;
pub use transport::network::{GroupDirectory, GroupLookup, Network};
pub use transport::options::{AddressBook, NetworkOptions};
pub use transport::service::Service;

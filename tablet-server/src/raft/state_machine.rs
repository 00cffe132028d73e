//! The state machine of a group: a replicated group of tablets applies committed commands in log order and knows its applied index.
//!
//! The tablet layer implements [`StateMachine`]; `storage::adapter` adapts it to openraft.
//!
//! The store of the group *is* the snapshot. Log compaction (`Group::purge`) needs no copy of it: the store only reports what it
//! has on disk. A checkpoint is created when a follower needs purged entries, and the follower installs it (snapshot
//! install).

use std::path::Path;

use bytes::Bytes;
use ebla_model::id::LogId;
use ebla_model::metadata::Membership;

use super::error::Fault;

/// The position of a state machine in the log, and the membership at that position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedPosition {
    /// The last applied entry; `None` for an empty state machine.
    pub last: Option<LogId>,
    /// The last applied membership, and the entry that carried it.
    pub membership: (Option<LogId>, Membership),
}

/// An entry that a quorum holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Its term and index.
    pub id: LogId,
    /// Its content.
    pub payload: Payload,
}

/// The content of a committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The first entry of a leader's term.
    Blank,
    /// A command of the group.
    Command(Bytes),
    /// The membership from this entry on.
    Membership(Membership),
}

/// Which replica a checkpoint is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointOrigin {
    /// This one.
    Own,
    /// Another one of the group, which has sent it.
    Received,
}

/// A replicated state as Raft sees it. All calls may block; `apply` and `install` are never called concurrently.
pub trait StateMachine: Send + Sync + 'static {
    /// What is applied in memory. Does not block.
    fn applied(&self) -> AppliedPosition;

    /// What is applied on disk: a restart does not need the log up to here.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn persisted(&self) -> Result<AppliedPosition, Fault>;

    /// Applies entries that follow [`StateMachine::applied`] without a gap, and returns the result of each (empty for an entry
    /// without a command).
    ///
    /// # Errors
    /// Only for failures that may differ between replicas, such as a disk error. An error stops this replica.
    fn apply(&self, entries: &[CommittedEntry]) -> Result<Vec<Bytes>, Fault>;

    /// As [`StateMachine::apply`] if that is certain to be short and to wait for no disk; otherwise does nothing and returns
    /// `None`. Called where blocking would delay other groups.
    fn try_apply_inline(&self, entries: &[CommittedEntry]) -> Option<Result<Vec<Bytes>, Fault>> {
        let _not_supported = entries;
        None
    }

    /// Creates a checkpoint of the state in `folder`, which does not exist yet, as plain files; returns what the checkpoint
    /// contains.
    ///
    /// # Errors
    /// When the checkpoint cannot be created.
    fn checkpoint(&self, folder: &Path) -> Result<AppliedPosition, Fault>;

    /// Reads a checkpoint as a whole, before it is sent and before it is installed, so that damaged blocks are not copied. Blocking.
    ///
    /// # Errors
    /// When it is damaged, or cannot be read.
    fn verify(&self, _checkpoint: &Path, _origin: CheckpointOrigin) -> Result<(), Fault> {
        Ok(())
    }

    /// Snapshot install: replaces the state with the checkpoint in `folder`, whose files have been verified; it may move them.
    /// The new state is durable when this returns.
    ///
    /// # Errors
    /// When the checkpoint cannot be used; this replica stops.
    fn install(&self, folder: &Path, applied: AppliedPosition) -> Result<(), Fault>;
}

//! Steps of long operations: places at which a test observes that a step has just been done, and may delay or crash the process there.
//!
//! A move of a tablet, a change of replicas, a transfer of leadership, a split, a merge and a division consist of steps, each durable by
//! itself. A process can die after any of them, and the next leader or master must finish or revert the operation. So each step is
//! named here, and the code that has done it awaits [`Steps::reached`]. In the released program there is no observer: no variable, flag or
//! message can change that, and the call returns at once. The simulation passes an observer (`tests/sim/steps.rs`).

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

/// A step that has just been done. The comments say which process does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Move of a tablet, leader of the source: the target has given a ticket.
    MoveTicket,
    /// Leader of the source: the target has begun to import.
    MoveBegin,
    /// Leader of the source: the target has applied a chunk.
    MoveChunk,
    /// Leader of the source: the target has a copy of the tablet, which is still served.
    MoveCopied,
    /// Leader of the source: the tablet departs, and is not served.
    MoveOut,
    /// Leader of the source: the target has the last difference.
    MoveDifference,
    /// Leader of the source: the target serves the tablet.
    MoveFinish,
    /// Leader of the source: the tablet is removed there.
    MoveDone,
    /// Leader of the source: the target has forgotten the move.
    MoveConfirm,
    /// Leader of the source: the source has forgotten the move.
    MoveForget,
    /// Move of a tablet, master: the order is carried out.
    MoveOrdered,
    /// Change of replicas, master: an id is taken.
    ReplicaId,
    /// Master: the new replica exists, empty.
    ReplicaCreated,
    /// Leader: the new replica is a learner.
    LearnerAdded,
    /// Server of the new replica: the files of a snapshot have arrived, and their checksums are right.
    SnapshotReceived,
    /// Server of the new replica: the snapshot is installed.
    SnapshotInstalled,
    /// Leader: the learner has caught up.
    LearnerCaughtUp,
    /// Leader: the voters are the new ones.
    VotersChanged,
    /// Server of the old replica: its group has stopped.
    ReplicaStopped,
    /// Server of the old replica: its folder is gone, and there is a tombstone.
    ReplicaRemoved,
    /// Transfer of a leadership, leader: the target has all entries and is asked to campaign.
    TransferRequested,
    /// Split, leader: an id is taken.
    SplitId,
    /// Leader: the tablet is split.
    SplitApplied,
    /// Merge, leader: the tablets are merged.
    MergeApplied,
    /// Division of a group, leader: all replicas have flushed.
    DivideFlushed,
    /// Leader: an id is taken.
    DivideId,
    /// Leader: the group is divided.
    DivideApplied,
}

impl Step {
    /// All steps, each operation's in order.
    pub const ALL: [Self; 27] = [
        Self::MoveTicket,
        Self::MoveBegin,
        Self::MoveChunk,
        Self::MoveCopied,
        Self::MoveOut,
        Self::MoveDifference,
        Self::MoveFinish,
        Self::MoveDone,
        Self::MoveConfirm,
        Self::MoveForget,
        Self::MoveOrdered,
        Self::ReplicaId,
        Self::ReplicaCreated,
        Self::LearnerAdded,
        Self::SnapshotReceived,
        Self::SnapshotInstalled,
        Self::LearnerCaughtUp,
        Self::VotersChanged,
        Self::ReplicaStopped,
        Self::ReplicaRemoved,
        Self::TransferRequested,
        Self::SplitId,
        Self::SplitApplied,
        Self::MergeApplied,
        Self::DivideFlushed,
        Self::DivideId,
        Self::DivideApplied,
    ];
}

/// What a test does with steps.
pub trait StepObserver: Send + Sync {
    /// Called when a step has been done. The process continues when the future is ready: an observer that wants to crash the process
    /// at this place requests that elsewhere and returns a future that is never ready.
    fn reached(&self, step: Step) -> BoxFuture<'static, ()>;
}

/// The observer of a process, if there is one; cheap to clone.
#[derive(Clone, Default)]
pub struct Steps(Option<Arc<dyn StepObserver>>);

impl Steps {
    /// Steps that are reported to this observer. Only for tests.
    #[must_use]
    pub fn observed_by(observer: Arc<dyn StepObserver>) -> Self {
        Self(Some(observer))
    }

    /// A step has been done. Returns at once when there is no observer.
    pub async fn reached(&self, step: Step) {
        if let Some(observer) = &self.0 {
            observer.reached(step).await;
        }
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "observed steps" } else { "steps" })
    }
}

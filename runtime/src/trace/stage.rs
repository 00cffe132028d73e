//! The stages of operations: what an operation of a server waits for.

/// A stage. Its number is used between servers and is never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// A place among the calls that the front works on at once.
    Admission = 0,
    /// The decision whether the caller may make the call.
    Access = 1,
    /// The lookup of the tablet, in METADATA if the location is not cached.
    Lookup = 2,
    /// A call to the server that leads the tablet, which has an operation of its own.
    Forward = 3,
    /// The pause before another attempt, after one that failed.
    Retry = 4,
    /// A call to the active master.
    Master = 5,
    /// Memory for the write in the tablet's group.
    Memory = 6,
    /// The latch of a row, which another write of that row holds.
    Latch = 7,
    /// The evaluation of a conditional write: duplicates, the present row, the filter.
    Evaluate = 8,
    /// The queue of the group, until the write is part of a command that is proposed.
    Queue = 9,
    /// From the proposal until the leader's log accepts the entry.
    Propose = 10,
    /// The write and the sync of the commit log on the disk of the leader.
    Sync = 11,
    /// After that, until a majority of the replicas has the entry on disk.
    Replication = 12,
    /// The application of the command to the store.
    Apply = 13,
    /// The confirmation that this replica still leads, for a read.
    Leadership = 14,
    /// A free thread for a read.
    ReadQueue = 15,
    /// The read of the store and the evaluation of the filter.
    Read = 16,
    /// The client, which has not yet taken earlier parts of the response. This time does not count as the server's.
    Client = 17,
    /// The outcome of a write that was queued or proposed, and was not known when its caller gave up.
    Outcome = 18,
    /// Of the master: an answer of Chubby.
    Chubby = 19,
    /// Of the master: a request to a tablet server, which has an operation of its own.
    Server = 20,
}

/// All stages, by their numbers.
pub const STAGES: [Stage; 21] = [
    Stage::Admission,
    Stage::Access,
    Stage::Lookup,
    Stage::Forward,
    Stage::Retry,
    Stage::Master,
    Stage::Memory,
    Stage::Latch,
    Stage::Evaluate,
    Stage::Queue,
    Stage::Propose,
    Stage::Sync,
    Stage::Replication,
    Stage::Apply,
    Stage::Leadership,
    Stage::ReadQueue,
    Stage::Read,
    Stage::Client,
    Stage::Outcome,
    Stage::Chubby,
    Stage::Server,
];

impl Stage {
    /// The stage with this number; `None` for one that this release does not know.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        STAGES.get(usize::try_from(number).ok()?).copied()
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Its position in [`STAGES`].
    pub(super) const fn index(self) -> usize {
        self as usize
    }

    /// Its name in outputs and in exported spans.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Access => "access",
            Self::Lookup => "lookup",
            Self::Forward => "forward",
            Self::Retry => "retry",
            Self::Master => "master",
            Self::Memory => "memory",
            Self::Latch => "latch",
            Self::Evaluate => "evaluate",
            Self::Queue => "queue",
            Self::Propose => "propose",
            Self::Sync => "sync",
            Self::Replication => "replication",
            Self::Apply => "apply",
            Self::Leadership => "leadership",
            Self::ReadQueue => "read-queue",
            Self::Read => "read",
            Self::Client => "client",
            Self::Outcome => "outcome",
            Self::Chubby => "chubby",
            Self::Server => "server",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_stage_has_its_number_and_its_name() {
        for stage in STAGES {
            assert_eq!(Stage::from_number(stage.number()), Some(stage));
        }
        assert_eq!(Stage::from_number(21), None);
        assert_eq!(STAGES.map(Stage::name).into_iter().collect::<BTreeSet<_>>().len(), STAGES.len());
    }
}

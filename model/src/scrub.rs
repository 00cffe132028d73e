//! What a server reports about the scrubbing of its stores.

use std::time::Duration;

/// The scrubbing of a server's stores: reading everything now and then, to find damaged blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubState {
    /// How long ago the last complete pass ended; `None`: none has ended since the server started.
    pub finished_ago: Option<Duration>,
    /// The bytes of keys and values that were read in this pass, or in the last one.
    pub bytes: u64,
    /// The rate at which they are read, in bytes per second.
    pub bytes_per_second: u64,
    /// Replicas that were found damaged since the server started, by a pass or by a read.
    pub damaged: u64,
    /// Damaged replicas that serve what is readable, because their groups cannot go on without them.
    pub kept: u64,
}

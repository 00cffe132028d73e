//! Settings of the log, the result of recovery, and counters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::LogId;
use ebla_runtime::{Clock, Rng};

use super::record::GroupReplica;

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Size at which a segment is full, in bytes. A larger batch gets its own segment.
    pub segment_bytes: usize,
    /// The writer stops filling a batch at this size, in bytes.
    pub batch_bytes: usize,
    /// Memory for the most recent batches, in bytes.
    pub cache_bytes: usize,
    /// Maximum number of files that wait to be recycled; more are removed.
    pub spares_max: usize,
    /// Idle time after which the commit marker of the last batch is written.
    pub commit_marker_delay: Duration,
    /// What the writer's thread does after a disk failure.
    pub on_failure: OnFailure,
    /// Source of the segments' salts.
    pub rng: Rng,
    /// Measures the syncs.
    pub clock: Clock,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            batch_bytes: 4 << 20,
            cache_bytes: 64 << 20,
            spares_max: 4,
            commit_marker_delay: Duration::from_millis(20),
            on_failure: OnFailure::AbortProcess,
            rng: Rng::from_entropy(),
            clock: Clock::system(),
        }
    }
}

/// What the writer's thread does after a disk failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Aborts the process: nothing in it may continue as if the log were durable.
    AbortProcess,
    /// Only fails the waiting submissions. For tests, which share the process.
    Report,
}

/// The result of recovery when the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The groups whose log is intact. A live replica that is missing here has lost its log: treat it as quarantined.
    pub groups: BTreeMap<GroupReplica, RecoveredGroup>,
    /// The groups that are known to have lost records. Each must be replaced under a new id, and then removed here.
    pub quarantined: BTreeSet<GroupReplica>,
    /// Recovery found damage, now or at an earlier start, that it could not attribute to groups: every group that is not in
    /// `groups` is quarantined. `quarantined` may name some that had been removed.
    pub all_quarantined: bool,
    /// Bytes of a torn batch that recovery truncated. No submitter had received a success for it.
    pub cut_bytes: u64,
}

/// State of one group after recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredGroup {
    /// The last vote.
    pub vote: Option<Bytes>,
    /// The last purged id.
    pub purged: Option<LogId>,
    /// The last entry's id, or `purged` when there is no entry.
    pub last: Option<LogId>,
}

/// Counters since the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches written, commit markers included.
    pub batches: u64,
    /// Batches without records: commit markers.
    pub commit_markers: u64,
    /// Disk syncs: one for each batch, two for each new segment.
    pub syncs: u64,
    /// Records written.
    pub records: u64,
    /// Bytes of batches, whole blocks.
    pub bytes: u64,
    /// Segments started.
    pub segments: u64,
}

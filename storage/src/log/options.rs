//! What the log is told when it is opened, and what it tells: settings, what was recovered, counters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::LogId;
use ebla_runtime::Rng;

use super::record::GroupId;

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Size at which a segment is full, in bytes. A larger batch gets a segment of its own.
    pub segment_bytes: usize,
    /// The writer stops gathering when a batch holds this many bytes.
    pub batch_bytes: usize,
    /// Memory for the batches written last, in bytes.
    pub cache_bytes: usize,
    /// How many files wait to be recycled; more are removed.
    pub spares_max: usize,
    /// Idle time after which the mark for the last batch is written.
    pub mark_after: Duration,
    /// What the writer's thread does when the disk has failed.
    pub on_failure: OnFailure,
    /// Where the salts of segments come from.
    pub rng: Rng,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            batch_bytes: 4 << 20,
            cache_bytes: 64 << 20,
            spares_max: 4,
            mark_after: Duration::from_millis(20),
            on_failure: OnFailure::EndProcess,
            rng: Rng::from_entropy(),
        }
    }
}

/// What the writer's thread does when the disk has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Ends the process: nothing in it may go on as if the log were durable.
    EndProcess,
    /// Only tells those who wait. For tests, which are the process.
    Report,
}

/// What was found when the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The groups whose log is whole. A live replica that is missing here has lost its log: treat it as quarantined.
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// The groups known to have lost something. Each must be replaced under a new id, and then removed here.
    pub quarantined: BTreeSet<GroupId>,
    /// Damage was met, now or at an earlier start, that could not be given to groups: every group that is not in
    /// `groups` is quarantined. `quarantined` may name some that had been removed.
    pub all_quarantined: bool,
    /// Bytes of a torn batch that was cut. It had been promised to nobody.
    pub cut_bytes: u64,
}

/// What the log has of one group.
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
    /// Batches written, marks included.
    pub batches: u64,
    /// Batches without records.
    pub marks: u64,
    /// Times the disk was waited for to make something durable: one for each batch, two for each new segment.
    pub syncs: u64,
    /// Records written.
    pub records: u64,
    /// Bytes of batches, whole blocks.
    pub bytes: u64,
    /// Segments begun.
    pub segments: u64,
}

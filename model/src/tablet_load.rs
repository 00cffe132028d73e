//! The load of a tablet, as its leader measures and reports it.

use std::time::Duration;

use crate::key::RowKey;

/// A tablet with fewer reads and writes per second than this is quiet.
pub const QUIET_PER_SECOND: u64 = 10;

/// The load of a tablet. All zero at a replica that does not lead, and in the reports of earlier releases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TabletLoad {
    /// Rows that are read by their keys, and batches of scans, per second. A burst is forgotten after about a minute.
    pub reads_per_second: u64,
    /// Rows that are written per second.
    pub writes_per_second: u64,
    /// For how long the leader has seen fewer than [`QUIET_PER_SECOND`] reads and writes per second. It starts again when the tablet is
    /// split or moved and when another replica leads.
    pub quiet_for: Duration,
    /// The row that most of the reads and writes are of, if the tablet is busy. A key that is longer than 256 bytes is cut there.
    pub hot_row: Option<RowKey>,
}

impl TabletLoad {
    /// Reads and writes per second.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        self.reads_per_second.saturating_add(self.writes_per_second)
    }
}

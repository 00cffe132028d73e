//! A garbage collection (GC) pass over a tablet, from the leader's side: removes excess versions by log entries.
//!
//! Cells beyond their maximum age are dropped by compactions, on each replica independently. Versions beyond a count must be
//! removed on all replicas alike, or a delete of a newer version would uncover an older one on some of them: so the leader
//! scans for rows with dead cells and proposes `Collect` for them, and apply evaluates the rules again. Readers see no
//! difference.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::codec::{self, ColumnKey};
use ebla_model::command::CommandKind;
use ebla_model::error::Error;
use ebla_model::gc::VersionGc;
use ebla_model::id::TabletId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::Micros;
use ebla_storage::store::{ScanPlan, StoreError, View};

use crate::tablet::Tablet;
use crate::tablet::core::applied_state::TabletMetadata;
use crate::tablet::core::state_machine::GroupStateMachine;
use crate::tablet::failure::Failure;
use crate::tablet::read::row_assembler::Families;
use crate::tablet::read::scan::{pool_failure, row_of};

/// A range ends after the row that reaches this number of cells: the work of one entry on each replica.
const CELLS_MAX: u64 = 4_096;
/// A range is worth an entry when at least one in this number of cells is dead.
const DEAD_FRACTION: u64 = 32;
/// Timeout of one entry.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after each range, as a multiple of the time that the range took: reads and writes have priority.
const PAUSE_FACTOR: u32 = 9;
/// The minimum pause.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The result of a GC pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcStats {
    /// Cells that were scanned.
    pub cells: u64,
    /// Dead cells in ranges for which an entry was proposed.
    pub removed: u64,
}

/// A range of adjacent rows, with its number of dead cells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GcRange {
    range: KeyRange,
    /// The time at which the rules were evaluated.
    time: Micros,
    cells: u64,
    dead: u64,
}

impl GcRange {
    const fn is_worth_collecting(&self) -> bool {
        self.dead > 0 && self.dead >= self.cells / DEAD_FRACTION
    }
}

impl Tablet {
    /// Whether the tablet can contain excess versions: a rule of its schema counts versions.
    pub(crate) fn has_version_limits(&self) -> bool {
        self.metadata().is_ok_and(|tablet| tablet.families().has_version_limits())
    }

    /// The cells that were written since the replica started here; 0 if the tablet has left the group.
    pub(crate) fn cells_written(&self) -> u64 {
        self.metadata().map_or(0, |tablet| tablet.counters.counts().map(|(_family, _read, written)| written).sum())
    }

    /// Scans the tablet once and removes excess versions on all replicas. Runs at low priority.
    ///
    /// # Errors
    /// `NotLeader` when another replica leads; errors of proposals and of the store. Cells removed until then stay removed.
    pub async fn collect_garbage(&self) -> Result<GcStats, Failure> {
        let mut stats = GcStats::default();
        let mut start = self.descriptor()?.range.start().clone();
        loop {
            self.leader_term()?;
            let started = self.runtime.clock.monotonic();
            let (state_machine, tablet) = (Arc::clone(&self.state_machine), self.id());
            let scan = move || next_range(&state_machine, tablet, &start);
            let Some(gc_range) = self.maintenance.run(scan).await.map_err(pool_failure)?? else { return Ok(stats) };
            stats.cells += gc_range.cells;
            let end = gc_range.range.end().cloned();
            if gc_range.is_worth_collecting() {
                stats.removed += gc_range.dead;
                self.propose_command(
                    CommandKind::Collect { tablet: self.id(), range: gc_range.range, time: gc_range.time },
                    ENTRY_TIMEOUT,
                )
                .await?;
            }
            let Some(end) = end else { return Ok(stats) };
            start = end;
            tokio::time::sleep((self.elapsed_since(started) * PAUSE_FACTOR).max(PAUSE_MIN)).await;
        }
    }
}

/// The next range of the tablet's rows from `start`; `None` after the last row. Blocking.
fn next_range(state_machine: &GroupStateMachine, tablet: TabletId, start: &RowKey) -> Result<Option<GcRange>, Error> {
    let scan = |view: &View<'_>| {
        // After the view is pinned, as in reads.
        let applied_state = state_machine.applied_state();
        // A tablet that has left the group has no rows here.
        let Some(metadata) = applied_state.tablet(tablet) else { return Ok(Ok(None)) };
        let whole = &metadata.descriptor.range;
        let rest = KeyRange::new(start.clone(), whole.end().cloned()).and_then(|rest| rest.intersect(whole));
        rest.map_or(Ok(Ok(None)), |rest| scan_range(view, metadata, applied_state.gc_time, rest))
    };
    state_machine.store().with_view(scan)?
}

/// Scans rows from the start of `range`. The inner error reports keys that cannot be decoded.
fn scan_range(
    view: &View<'_>,
    tablet: &TabletMetadata,
    time: Micros,
    range: KeyRange,
) -> Result<Result<Option<GcRange>, Error>, StoreError> {
    let (lower, upper) = codec::range_bounds(&tablet.stored_range(&range));
    let families = tablet.families();
    // A pass scans the whole tablet: it must not evict the hot blocks from the cache.
    let mut scan = view.scan(&ScanPlan::new(&lower, upper.as_deref()).without_filling_cache())?;
    let mut counter =
        DeadCellCounter { families, time, row: Vec::new(), column: Vec::new(), judge: None, cells: 0, dead: 0 };
    while let Some((key, _value)) = scan.entry() {
        match counter.count(key) {
            Ok(CountStep::Continue) => scan.step()?,
            Ok(CountStep::Full(next)) => {
                let Some((range, _rest)) = range.split_at(&next) else { break };
                return Ok(Ok(Some(counter.gc_range(range))));
            }
            Err(damaged) => return Ok(Err(damaged)),
        }
    }
    Ok(Ok(Some(counter.gc_range(range))))
}

/// Counts the dead cells of rows that come in the store's order.
struct DeadCellCounter<'a> {
    families: &'a Families,
    time: Micros,
    /// The escaped key of the current row.
    row: Vec<u8>,
    /// The key of the current column, without a timestamp.
    column: Vec<u8>,
    /// `None` if the column's rule does not count versions.
    judge: Option<VersionGc<'a>>,
    cells: u64,
    dead: u64,
}

enum CountStep {
    Continue,
    /// The range has enough cells, and this row starts the next one.
    Full(RowKey),
}

impl DeadCellCounter<'_> {
    fn count(&mut self, key: &[u8]) -> Result<CountStep, Error> {
        if self.row.is_empty() || !key.starts_with(&self.row) {
            if self.cells >= CELLS_MAX {
                return Ok(CountStep::Full(row_of(key)?));
            }
            let length = codec::escaped_len(key)?;
            self.row = key.get(..length).unwrap_or_default().to_vec();
        }
        let cell = ColumnKey::decode(key.get(self.row.len()..).unwrap_or_default())?;
        let column = codec::without_timestamp(key);
        if self.column != column {
            self.column = column.to_vec();
            self.judge = self.families.counting_rule(cell.family).map(|rule| VersionGc::new(Some(rule), self.time));
        }
        self.cells += 1;
        if self.judge.as_mut().is_some_and(|judge| !judge.is_live(cell.timestamp)) {
            self.dead += 1;
        }
        Ok(CountStep::Continue)
    }

    fn gc_range(&self, range: KeyRange) -> GcRange {
        GcRange { range, time: self.time, cells: self.cells, dead: self.dead }
    }
}

#[cfg(test)]
mod tests;

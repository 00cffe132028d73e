//! Reads: whole rows of one pinned view, in batches.
//!
//! A read is served by the leader when its lease is valid *after* the request has arrived, or after a majority has just
//! confirmed the leadership; only lookups in METADATA may be served by any replica. Then a view is pinned, and only then is
//! the tablet's range read: so a read never covers rows that a split moved away before the view was pinned, and rows that a
//! split moves away later cannot have changed in the view.
//!
//! A batch ends after about 1 MiB of rows, at the row limit, or after much scanning with few results, and reports how far it
//! came; the next batch checks the lease again and pins a new view. So a long scan holds no resources for long, and each row
//! is a consistent snapshot while the scan as a whole is not.
//!
//! Rows that are asked for by their keys are looked up in the scan cache first (`points`).
//!
//! A filter may run long on one row. It is stopped at the request's deadline, and on a connection's thread after a moment:
//! then the row is read again on a thread that may block.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::cell::Row;
use ebla_model::codec;
use ebla_model::error::Error;
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::stored_row::parse_stored_row;
use ebla_model::time::Micros;
use ebla_runtime::trace::{self, Stage};
use ebla_runtime::{BlockingError, Clock, Failpoint};
use ebla_storage::store::{Direction, GroupStore, ReadTier, ScanPlan, StoreError, View};

use crate::raft::ReadIndexError;
use crate::tablet::core::applied_state::{AppliedState, TabletMetadata};
use crate::tablet::core::state_machine::GroupStateMachine;
use crate::tablet::failure::{Failure, Leader};
use crate::tablet::read::points::{self, PointLookups};
use crate::tablet::read::projection::Projection;
use crate::tablet::read::row_assembler::{CellOrder, Families, RowAssembler};
use crate::tablet::read::row_iterator::{RowIterator, ScanError, ScanExtent, ScannedRow};
use crate::tablet::{ReadBatch, ReadPosition, ReadRequest, Tablet, TabletGroup};

/// The size of a full batch, in bytes of rows.
const BATCH_BYTES: usize = 1024 * 1024;
/// A batch with few results ends after scanning this number of bytes.
const SCANNED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A batch with few results ends after this time.
const SCAN_TIME_MAX: Duration = Duration::from_millis(100);
/// Time limit of a filter on a connection's thread; elsewhere the request's deadline applies.
const FILTER_TIME_INLINE: Duration = Duration::from_millis(1);
/// The clock is read once per this number of cells.
const CELLS_PER_CLOCK_CHECK: u64 = 512;
/// Attempts to pin a view that does not expire before it is used. GC rules change rarely.
const VIEW_ATTEMPTS_MAX: usize = 8;
/// When a read is repeated that found no memory for its rows: some of it may be free by then.
const NO_MEMORY_DELAY: Duration = Duration::from_millis(100);
/// A read of a tablet whose GC time is older than this requests a tick, unless the last command is younger.
const TIME_AGE_MAX: Duration = Duration::from_secs(1);

impl Tablet {
    /// The next rows of a request. They are converted by `convert` on the thread that reads them, so that a connection's thread can receive other calls.
    ///
    /// # Errors
    /// `NotLeader`, `NoLeader`, `WrongTablet` with the current descriptor, `TabletDropped`, `Busy`, `Deadline`;
    /// `DataDamaged` when stored bytes cannot be decoded; `FailedPrecondition` when the filter copies a row's cells too often.
    /// Safe to repeat.
    pub async fn read<T: Send + 'static>(
        &self,
        request: Arc<ReadRequest>,
        position: ReadPosition,
        timeout: Duration,
        convert: impl FnOnce(ReadBatch) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        if !request.beyond_tablet || request.reversed || self.table() != TableId::METADATA {
            return self.read_own(request, position, timeout, convert).await;
        }
        let started = self.runtime.clock.monotonic();
        let returned_before = position.rows;
        let batch = self.read_own(Arc::clone(&request), position, timeout, |batch| batch).await?;
        let left = timeout.saturating_sub(self.runtime.clock.monotonic().saturating_sub(started));
        Ok(convert(self.read_beyond(&request, returned_before, batch, left).await))
    }

    /// Reads rows of this tablet. Reports damage that it meets.
    async fn read_own<T: Send + 'static>(
        &self,
        request: Arc<ReadRequest>,
        position: ReadPosition,
        timeout: Duration,
        convert: impl FnOnce(ReadBatch) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let read = tokio::time::timeout(timeout, self.read_now(request, position, timeout, convert)).await;
        self.unless_damaged(read.unwrap_or_else(|_elapsed| Err(Failure::deadline())))
    }

    pub(super) async fn read_now<T: Send + 'static>(
        &self,
        request: Arc<ReadRequest>,
        position: ReadPosition,
        timeout: Duration,
        convert: impl FnOnce(ReadBatch) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let deadline = self.runtime.clock.monotonic().saturating_add(timeout);
        if !(request.any_replica && self.table() == TableId::METADATA) {
            trace::waiting(Stage::Leadership, self.confirm_leadership(timeout)).await?;
            self.request_tick_if_stale();
        }
        let store = self.state_machine.store();
        let points = PointLookups::new(&store, self.table(), &request, &position);
        // A single row is usually in memory, and then reading it inline is faster than handing it to another thread.
        if is_point(&request.rows) {
            let _reads = trace::stage(Stage::Read);
            if let Some(batch) = self.read_inline(&store, &request, &position, &points)? {
                return Ok(convert(batch));
            }
        }
        let waits = trace::stage(Stage::ReadQueue);
        let tablet = self.clone();
        let budget = ReadBudget { reach: ReadTier::All, deadline };
        let read = move || {
            let _reads = waits.next(Stage::Read);
            Ok(read_batch(&tablet, &store, (&request, &position, &points), budget)?.map(convert))
        };
        let read: Result<_, Failure> = self.reads.run_if_awaited(read).await.map_err(pool_failure)?;
        read?.ok_or_else(|| Failure::new(Reason::Internal, "a read from disk stopped at the cache"))
    }

    /// Reads a batch without waiting for the disk or a slow filter; `None` if it would have to.
    fn read_inline(
        &self,
        store: &GroupStore,
        request: &ReadRequest,
        position: &ReadPosition,
        points: &PointLookups,
    ) -> Result<Option<ReadBatch>, Failure> {
        let deadline = self.runtime.clock.monotonic().saturating_add(FILTER_TIME_INLINE);
        let budget = ReadBudget { reach: ReadTier::BlockCache, deadline };
        read_batch(self, store, (request, position, points), budget)
    }

    /// The key of the last row that has cells here, visible or not. Any replica may be used.
    ///
    /// # Errors
    /// When the store cannot be read, or the thread pool is full.
    pub async fn last_row(&self) -> Result<Option<RowKey>, Failure> {
        let store = self.state_machine.store();
        let metadata = self.metadata()?;
        let (lower, upper) = codec::range_bounds(&metadata.stored_range(&metadata.descriptor.range));
        let last = move || {
            store.with_view(|view| {
                let cells = view.cells(&lower, upper.as_deref(), Direction::Reverse)?;
                Ok(cells.entry().map(|(key, _value)| row_of(key)))
            })
        };
        let last = self.reads.run_if_awaited(last).await.map_err(pool_failure)?.map_err(Error::from)?;
        Ok(last.transpose()?)
    }

    /// Requests a tick if cells of an idle tablet may have expired by age; the read does not wait for it. No tick carries the time of a
    /// clock that is too far ahead for writes: all later timestamps of the group would be at least as high.
    fn request_tick_if_stale(&self) {
        let applied_state = self.state_machine.applied_state();
        let clock = &self.runtime.clock;
        // The log's time may be ahead, after a clock that was.
        let age = clock.wall().since(applied_state.gc_time);
        let has_age_limits = || applied_state.tablet(self.id).is_some_and(|tablet| tablet.families().has_age_limits());
        if age > TIME_AGE_MAX && has_age_limits() && self.clock_refusal().is_none() {
            self.queue.request_tick(clock.monotonic(), TIME_AGE_MAX);
        }
    }
}

/// The row of a cell's key, without its table.
pub(in crate::tablet) fn row_of(key: &[u8]) -> Result<RowKey, Error> {
    Ok(parse_stored_row(&codec::unescape(key)?.0)?.1)
}

impl TabletGroup {
    /// Returns when this replica may serve a read that arrived before the call.
    pub(crate) async fn confirm_leadership(&self, timeout: Duration) -> Result<(), Failure> {
        let now = self.runtime.clock.monotonic();
        if Failpoint::ReadWithoutLease.is_enabled() && self.raft.status().is_leader {
            return Ok(());
        }
        if self.raft.can_lease_read(now) {
            return Ok(());
        }
        self.raft.wait_for_read_index(now.saturating_add(timeout)).await.map_err(|error| match error {
            ReadIndexError::NotLeader { hint } => Failure::not_leader(hint.map(|replica| self.hint(replica.server))),
            ReadIndexError::Timeout => Failure::deadline(),
            ReadIndexError::Stopped => Failure::new(Reason::Unavailable, "the replica has stopped"),
        })
    }

    pub(crate) fn hint(&self, server: ebla_model::ServerId) -> Leader {
        Leader { server, term: self.raft.status().term }
    }
}

/// The failure of a call that the pool did not run.
pub(crate) fn pool_failure(error: BlockingError) -> Failure {
    match error {
        BlockingError::Full => Failure::busy(Duration::from_millis(20)),
        BlockingError::Stopped => Failure::new(Reason::Unavailable, "the server is stopping"),
        BlockingError::Panicked => Failure::new(Reason::Internal, "a read panicked"),
    }
}

/// The current state of a row of a tablet: its visible cells inside the projection. For the leader, under the row's latch.
pub(in crate::tablet) fn read_row(
    state_machine: &GroupStateMachine,
    tablet: &TabletMetadata,
    key: &RowKey,
    projection: impl Fn(&Families) -> Projection,
) -> Result<Row, Error> {
    let store = state_machine.store();
    let (lower, upper) = codec::range_bounds(&tablet.stored_range(&KeyRange::single(key.clone())));
    for _ in 0..VIEW_ATTEMPTS_MAX {
        let view = store.view();
        let applied_state = state_machine.applied_state();
        let families = applied_state.tablet(tablet.descriptor.tablet).map_or(tablet.families(), |now| now.families());
        let projection = projection(families);
        let assembler = RowAssembler::new(families, applied_state.gc_time, CellOrder::Ascending);
        let (lower, upper) = projection.narrow((lower.clone(), upper.clone()));
        let plan = projection.limit(ScanPlan::new(&lower, upper.as_deref()));
        let found = view
            .scan(&plan)
            .map_err(ScanError::from)
            .and_then(|scan| RowIterator::new(scan, assembler, &projection).with_extent(ScanExtent::OneRow).next_row());
        match found {
            Ok(found) => return Ok(found.map_or_else(|| Row::empty(key.clone()), |found| found.row)),
            Err(ScanError::Store(StoreError::Expired)) => {}
            Err(ScanError::Store(error)) => return Err(error.into()),
            Err(ScanError::Other(error)) => return Err(error),
        }
    }
    Err(views_expired())
}

fn views_expired() -> Error {
    Error::new(Reason::Busy, "the tablet's garbage collection rules keep changing; retry")
}

fn is_point(rows: &RowSet) -> bool {
    matches!(rows.ranges(), [range] if range.is_single())
}

fn extent(range: &KeyRange) -> ScanExtent {
    if range.is_single() { ScanExtent::OneRow } else { ScanExtent::ManyRows }
}

/// How long and how deep a batch may make its thread wait.
#[derive(Clone, Copy)]
struct ReadBudget {
    reach: ReadTier,
    /// The deadline of filters, on the monotonic clock.
    deadline: Duration,
}

/// Reads one batch from a new view, or from the rows that were looked up. Blocking, unless the budget allows only the cache: then `None` says that the cache, or
/// the time for filters, was not enough.
fn read_batch(
    tablet: &Tablet,
    store: &GroupStore,
    (request, position, points): (&ReadRequest, &ReadPosition, &PointLookups),
    budget: ReadBudget,
) -> Result<Option<ReadBatch>, Failure> {
    let clock = &tablet.runtime.clock;
    // Not before a thread is there for it: many reads may have waited for one. Without lookups in METADATA nothing would work.
    if !request.memory.has_room() && tablet.table() != TableId::METADATA {
        return Err(Failure::busy(NO_MEMORY_DELAY));
    }
    for attempt in 0..VIEW_ATTEMPTS_MAX {
        // A view takes locks of RocksDB: if all rows seem to be cached, only a second attempt pins one.
        let view = (attempt > 0 || !points.are_all_cached()).then(|| store.view());
        // After the view is pinned: see the module documentation.
        let applied_state = tablet.state_machine.applied_state();
        let metadata = current_metadata(tablet, &applied_state, request)?;
        let families = metadata.families();
        let projection = Projection::for_filter(request.filter.as_ref(), families);
        let mut reader = BatchReader {
            request,
            points,
            view: view.as_ref(),
            budget,
            clock,
            tablet: &metadata,
            gc_time: applied_state.gc_time,
            projection: &projection,
            started: clock.monotonic(),
            returned_before: position.rows,
            scanned_bytes: 0,
            returned_bytes: 0,
            cells_scanned: 0,
            next_clock_check: CELLS_PER_CLOCK_CHECK,
            cache_hits: 0,
            cache_misses: 0,
            out: ReadBatch::default(),
        };
        let rows = remaining(request, position, &metadata.descriptor.range);
        match reader.fill(&rows) {
            // Without progress the caller would repeat the same rows: pin a new view at once.
            Err(ScanError::Store(StoreError::Expired)) if reader.out.last_row.is_none() => {}
            Err(ScanError::Store(StoreError::Expired)) => return Ok(Some(reader.into_batch(store))),
            Err(ScanError::Store(StoreError::NotCached)) if budget.reach == ReadTier::BlockCache => return Ok(None),
            Err(ScanError::Other(error))
                if budget.reach == ReadTier::BlockCache && error.reason == Reason::Deadline =>
            {
                return Ok(None);
            }
            Err(ScanError::Store(error)) => return Err(Error::from(error).into()),
            Err(ScanError::Other(error)) => return Err(error.into()),
            Ok(()) => return Ok(Some(reader.into_batch(store))),
        }
    }
    Err(views_expired().into())
}

/// The tablet in this applied state, if it has the generation of the request.
fn current_metadata(
    tablet: &Tablet,
    applied_state: &AppliedState,
    request: &ReadRequest,
) -> Result<Arc<TabletMetadata>, Failure> {
    let metadata = tablet.served_in(applied_state)?;
    if metadata.descriptor.generation != request.generation && !Failpoint::GenerationUnchecked.is_enabled() {
        return Err(Failure::wrong_tablet(metadata.descriptor.clone()));
    }
    Ok(metadata)
}

const fn cell_order(request: &ReadRequest) -> CellOrder {
    if request.reversed { CellOrder::Descending } else { CellOrder::Ascending }
}

/// The rows of the request that are in the tablet and were not read yet.
fn remaining(request: &ReadRequest, position: &ReadPosition, range: &KeyRange) -> RowSet {
    let rows = request.rows.clamp(range);
    match &position.after {
        Some(key) if request.reversed => rows.before(key),
        Some(key) => rows.after(key),
        None => rows,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchStatus {
    /// It has room for more rows.
    Open,
    /// It must be returned.
    Full,
}

/// A batch that is being filled.
struct BatchReader<'a, 'v> {
    request: &'a ReadRequest,
    points: &'a PointLookups,
    /// `None`: only looked-up rows are read.
    view: Option<&'a View<'v>>,
    budget: ReadBudget,
    clock: &'a Clock,
    tablet: &'a TabletMetadata,
    gc_time: Micros,
    projection: &'a Projection,
    started: Duration,
    returned_before: u64,
    scanned_bytes: usize,
    returned_bytes: usize,
    cells_scanned: u64,
    /// The clock is read when this number of cells has been scanned.
    next_clock_check: u64,
    /// Rows from the scan cache, and rows that were looked up in vain.
    cache_hits: u64,
    cache_misses: u64,
    out: ReadBatch,
}

impl BatchReader<'_, '_> {
    fn into_batch(self, store: &GroupStore) -> ReadBatch {
        store.count_cache_use(self.cache_hits, self.cache_misses);
        store.count_read(self.out.rows.len(), self.cells_scanned);
        self.count_load();
        let (bytes, charge) = (self.returned_bytes, self.request.memory.charge(self.returned_bytes));
        ReadBatch { bytes, charge, ..self.out }
    }

    /// Counts what the batch adds to the tablet's load: each row that was found by its key; otherwise one read.
    fn count_load(&self) {
        let load = &self.tablet.load;
        let ranges = self.request.rows.ranges();
        if ranges.len() > 1 && ranges.iter().all(KeyRange::is_single) {
            let each = self.returned_bytes.checked_div(self.out.rows.len()).unwrap_or(0);
            self.out.rows.iter().for_each(|row| load.count_read(&row.key, each));
        } else if let Some(range) = ranges.first() {
            let row = self.out.last_row.as_ref().unwrap_or_else(|| range.start());
            load.count_read(row, self.returned_bytes);
        }
        load.count_latency(Some(self.started), || self.clock.monotonic());
    }

    fn fill(&mut self, rows: &RowSet) -> Result<(), ScanError> {
        let ranges = rows.ranges();
        let in_order: Box<dyn Iterator<Item = &KeyRange>> =
            if self.request.reversed { Box::new(ranges.iter().rev()) } else { Box::new(ranges.iter()) };
        for range in in_order {
            if self.fill_range(range)? == BatchStatus::Full {
                return Ok(());
            }
        }
        self.out.finished = true;
        Ok(())
    }

    /// Reads a row by its key, from the scan cache or into it; `None` if it must be read cell by cell.
    fn fill_point(&mut self, range: &KeyRange) -> Result<Option<BatchStatus>, ScanError> {
        let Some(lookup) = self.points.of(range) else { return Ok(None) };
        let families = self.projection.families();
        let row = match lookup.cached(families) {
            Some(row) => {
                self.cache_hits += 1;
                Arc::clone(row)
            }
            None => {
                self.cache_misses += 1;
                let view = self.view.ok_or(StoreError::Expired)?;
                let Some(row) = view.fill(lookup, families, self.budget.reach)? else { return Ok(None) };
                row
            }
        };
        let assembler = RowAssembler::new(self.tablet.families(), self.gc_time, CellOrder::Ascending);
        let (found, stats) =
            points::assemble((lookup, &row), assembler, self.projection, self.request.filter.as_ref())?;
        self.scanned_bytes += stats.bytes;
        self.cells_scanned += stats.cells;
        if let Some(found) = found
            && self.take_row(found)? == BatchStatus::Full
        {
            return Ok(Some(BatchStatus::Full));
        }
        self.out.last_row = Some(range.start().clone());
        Ok(Some(if self.is_scan_budget_used() { BatchStatus::Full } else { BatchStatus::Open }))
    }

    fn fill_range(&mut self, range: &KeyRange) -> Result<BatchStatus, ScanError> {
        if let Some(status) = self.fill_point(range)? {
            return Ok(status);
        }
        let view = self.view.ok_or(StoreError::Expired)?;
        let bounds = codec::range_bounds(&self.tablet.stored_range(range));
        let (lower, upper) = if range.is_single() { self.projection.narrow(bounds) } else { bounds };
        let direction = if self.request.reversed { Direction::Reverse } else { Direction::Forward };
        let plan = ScanPlan::new(&lower, upper.as_deref()).in_direction(direction).with_read_tier(self.budget.reach);
        let assembler = RowAssembler::new(self.tablet.families(), self.gc_time, cell_order(self.request));
        let plan = self.projection.limit(plan);
        let mut iterator = RowIterator::new(view.scan(&plan)?, assembler, self.projection)
            .with_row_filter(self.request.filter.as_ref())
            .with_extent(extent(range));
        while let Some(found) = iterator.next_row()? {
            let stats = iterator.take_stats();
            self.scanned_bytes += stats.bytes;
            self.cells_scanned += stats.cells;
            if self.take_row(found)? == BatchStatus::Full {
                return Ok(BatchStatus::Full);
            }
        }
        // A single key counts as scanned, whether its row exists or not.
        if range.is_single() {
            self.out.last_row = Some(range.start().clone());
        }
        Ok(if self.is_scan_budget_used() { BatchStatus::Full } else { BatchStatus::Open })
    }

    fn take_row(&mut self, ScannedRow { row, skipped }: ScannedRow) -> Result<BatchStatus, Error> {
        let key = row.key.clone();
        self.out.rows_seen += u64::from(skipped || !row.is_empty());
        self.out.cells_seen += row.cells.len() as u64;
        self.tablet.counters.count_read(&row.cells);
        if !row.is_empty() {
            let row = match &self.request.filter {
                Some(filter) => filter.apply(row, &|| self.clock.monotonic() >= self.budget.deadline)?,
                None => row,
            };
            self.push_row(row);
        }
        self.out.last_row = Some(key);
        if self.is_at_limit() {
            self.out.finished = true;
            return Ok(BatchStatus::Full);
        }
        Ok(if self.returned_bytes >= BATCH_BYTES || self.is_scan_budget_used() {
            BatchStatus::Full
        } else {
            BatchStatus::Open
        })
    }

    fn push_row(&mut self, row: Row) {
        if row.is_empty() {
            return;
        }
        self.returned_bytes += row.size_bytes();
        self.out.cells_returned += row.cells.len() as u64;
        self.out.rows.push(row);
    }

    fn is_at_limit(&self) -> bool {
        self.request.limit.is_reached(self.returned_before + self.out.rows.len() as u64)
    }

    /// Whether so much was scanned that the caller should get a progress report.
    fn is_scan_budget_used(&mut self) -> bool {
        if self.out.last_row.is_none() {
            return false;
        }
        if self.cells_scanned < self.next_clock_check {
            return self.scanned_bytes >= SCANNED_BYTES_MAX;
        }
        self.next_clock_check = self.cells_scanned + CELLS_PER_CLOCK_CHECK;
        self.clock.monotonic().saturating_sub(self.started) >= SCAN_TIME_MAX
    }
}

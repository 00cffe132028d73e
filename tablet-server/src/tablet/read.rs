//! Reads: whole rows of one pinned view, in batches.
//!
//! A read is served by the leader when its lease holds *now*, after the request has arrived, or when a majority has just
//! confirmed it; only lookups in METADATA may be answered by any replica. Then a view is pinned, and only then is the
//! tablet's range looked at: what a split moved away before the view was pinned is never answered for, and what it moves
//! away later cannot have changed before.
//!
//! A batch ends after about 1 MiB of rows, at the limit, or when much was looked at and little found, and says how far it
//! came; the next one takes a new lease check and a new view. So a long scan holds nothing for long, and each row is a
//! consistent snapshot while the scan as a whole is not.
//!
//! A filter may take long on one row. It is asked to stop when the request's time is over, and where it keeps others
//! waiting, after a moment: then the row is read again by a thread that may take its time.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::Reason;
use ebla_model::cell::Row;
use ebla_model::codec;
use ebla_model::error::Error;
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::time::Micros;
use ebla_runtime::{BlockingError, Bug, Clock, planted};
use ebla_storage::tablet::{Direction, Reach, ScanPlan, StoreError, View};

use crate::raft::ReadError;
use crate::tablet::cursor::{Cursor, Found, StoreOr};
use crate::tablet::failure::{Failure, Leader};
use crate::tablet::machine::{Machine, Shape};
use crate::tablet::rows::{CellOrder, Families, Gatherer};
use crate::tablet::wanted::Wanted;
use crate::tablet::{ReadBatch, ReadRequest, Resume, Tablet};

/// A batch is full with so many bytes of rows.
const BATCH_BYTES: usize = 1024 * 1024;
/// A batch that found little ends after so many bytes of cells.
const SCANNED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A batch that found little ends after this time.
const SCAN_TIME_MAX: Duration = Duration::from_millis(100);
/// A filter that runs on the threads of the connections has so long; elsewhere the request's time.
const FILTER_TIME_INLINE: Duration = Duration::from_millis(1);
/// The clock is looked at once for so many cells.
const CELLS_PER_LOOK: u64 = 512;
/// A view that expired before its iterator was made is taken again so often. Rules change seldom.
const VIEWS_MAX: usize = 8;
/// A tablet whose time is older than this asks for a tick when it is read.
const TIME_AGE_MAX: Duration = Duration::from_secs(1);

impl Tablet {
    /// The next rows of a request.
    ///
    /// # Errors
    /// `NotLeader`, `NoLeader`, `WrongTablet` with the present descriptor, `TabletDropped`, `Busy`, `Deadline`;
    /// `DataDamaged` when stored bytes cannot be read; `FailedPrecondition` when the filter makes too many copies of a
    /// row's cells. Safe to repeat.
    pub async fn read(
        &self,
        request: Arc<ReadRequest>,
        resume: Resume,
        timeout: Duration,
    ) -> Result<ReadBatch, Failure> {
        tokio::time::timeout(timeout, self.read_now(request, resume, timeout))
            .await
            .unwrap_or_else(|_elapsed| Err(Failure::deadline()))
    }

    async fn read_now(
        &self,
        request: Arc<ReadRequest>,
        resume: Resume,
        timeout: Duration,
    ) -> Result<ReadBatch, Failure> {
        let deadline = self.runtime.clock.monotonic().saturating_add(timeout);
        if !(request.any_replica && self.table() == TableId::METADATA) {
            self.permit_read(timeout).await?;
            self.want_time();
        }
        // One row is mostly in memory, and then quicker read than handed to another thread.
        if is_point(&request.rows)
            && let Some(batch) = self.read_inline(&request, &resume)?
        {
            return Ok(batch);
        }
        let machine = Arc::clone(&self.machine);
        let clock = self.runtime.clock.clone();
        let read = move || batch(&machine, &clock, &request, &resume, Leave { reach: Reach::Disk, deadline });
        let read = self.reads.run(read).await.map_err(pool_failure)??;
        read.ok_or_else(|| Failure::new(Reason::Internal, "a read from disk asked for the cache"))
    }

    /// A batch that neither the disk nor the filter holds up; `None` if one of them would.
    fn read_inline(&self, request: &ReadRequest, resume: &Resume) -> Result<Option<ReadBatch>, Failure> {
        let clock = &self.runtime.clock;
        let deadline = clock.monotonic().saturating_add(FILTER_TIME_INLINE);
        batch(&self.machine, clock, request, resume, Leave { reach: Reach::Cache, deadline })
    }

    /// The key of the last row that has cells here, visible or not. Any replica answers.
    ///
    /// # Errors
    /// When the store cannot be read, or the threads are all busy.
    pub async fn last_row(&self) -> Result<Option<RowKey>, Failure> {
        let store = self.machine.store();
        let (lower, upper) = codec::range_bounds(&self.descriptor().range);
        let last = move || {
            store.with_view(|view| {
                let cells = view.cells(&lower, upper.as_deref(), Direction::Reverse)?;
                Ok(cells.entry().map(|(key, _value)| codec::unescape(key).map(|(row, _rest)| RowKey::new(row))))
            })
        };
        let last = self.reads.run(last).await.map_err(pool_failure)?.map_err(Error::from)?;
        Ok(last.transpose().map_err(Error::from)?)
    }

    /// Returns when this replica may answer a read that has arrived by now.
    pub(crate) async fn permit_read(&self, timeout: Duration) -> Result<(), Failure> {
        let now = self.runtime.clock.monotonic();
        if planted(Bug::ReadWithoutLease) && self.group.status().is_leader {
            return Ok(());
        }
        if self.group.read_permit(now).is_some() {
            return Ok(());
        }
        self.group.read_barrier(now.saturating_add(timeout)).await.map_err(|error| match error {
            ReadError::NotLeader { hint } => Failure::not_leader(hint.map(|replica| self.hint(replica.server))),
            ReadError::Timeout => Failure::deadline(),
            ReadError::Stopped => Failure::new(Reason::Unavailable, "the replica has stopped"),
        })
    }

    pub(crate) fn hint(&self, server: ebla_model::ServerId) -> Leader {
        Leader { server, term: self.group.status().term }
    }

    /// An idle tablet whose cells grow old asks for a command that carries the time; the read does not wait for it.
    fn want_time(&self) {
        let published = self.machine.published();
        let age = self.runtime.clock.wall().since(published.gc_time);
        if age > TIME_AGE_MAX && published.shape.families.look_at_ages() {
            self.queue.want_tick();
        }
    }
}

/// What a pool that did not run a call means to a request.
pub(crate) fn pool_failure(error: BlockingError) -> Failure {
    match error {
        BlockingError::Full => Failure::busy(Duration::from_millis(20)),
        BlockingError::Stopped => Failure::new(Reason::Unavailable, "the server stops"),
        BlockingError::Panicked => Failure::new(Reason::Internal, "a read panicked"),
    }
}

/// One row as it stands now, with its visible cells as far as they are wanted. For the leader, under the row's latch.
pub(super) fn read_row(machine: &Machine, key: &RowKey, wanted: impl Fn(&Families) -> Wanted) -> Result<Row, Error> {
    let store = machine.store();
    let (lower, upper) = codec::range_bounds(&KeyRange::single(key.clone()));
    for _ in 0..VIEWS_MAX {
        let view = store.view();
        let published = machine.published();
        let families = &published.shape.families;
        let wanted = wanted(families);
        let gatherer = Gatherer::new(families, published.gc_time, CellOrder::Rising);
        let found = view
            .cells(&lower, upper.as_deref(), Direction::Forward)
            .map_err(StoreOr::from)
            .and_then(|scan| Cursor::new(scan, gatherer, &wanted).in_one_row(true).next_row());
        match found {
            Ok(found) => return Ok(found.map_or_else(|| Row::empty(key.clone()), |found| found.row)),
            Err(StoreOr::Store(StoreError::Expired)) => {}
            Err(StoreOr::Store(error)) => return Err(error.into()),
            Err(StoreOr::Other(error)) => return Err(error),
        }
    }
    Err(expired())
}

fn expired() -> Error {
    Error::new(Reason::Busy, "the tablet's collection rules keep changing")
}

fn is_point(rows: &RowSet) -> bool {
    matches!(rows.ranges(), [range] if is_single(range))
}

fn is_single(range: &KeyRange) -> bool {
    let (start, end) = (range.start().as_bytes(), range.end().map(RowKey::as_bytes));
    end.and_then(|end| end.strip_prefix(start)).is_some_and(|rest| rest == [0])
}

/// What a batch may make its thread wait for.
#[derive(Clone, Copy)]
struct Leave {
    reach: Reach,
    /// Until when filters may run, on the monotonic clock.
    deadline: Duration,
}

/// Reads one batch from a fresh view; blocking, unless it keeps to the cache: then `None` says that this, or the time for
/// filters, was not enough.
fn batch(
    machine: &Machine,
    clock: &Clock,
    request: &ReadRequest,
    resume: &Resume,
    leave: Leave,
) -> Result<Option<ReadBatch>, Failure> {
    let store = machine.store();
    for _ in 0..VIEWS_MAX {
        let view = store.view();
        // After the view is pinned: see the head of this file.
        let published = machine.published();
        check_shape(&published.shape, request)?;
        let families = &published.shape.families;
        let wanted = Wanted::by_filter(request.filter.as_ref(), families);
        let mut batch = Batch {
            request,
            view: &view,
            leave,
            clock,
            families,
            gc_time: published.gc_time,
            wanted: &wanted,
            started: clock.monotonic(),
            returned_before: resume.rows,
            scanned_bytes: 0,
            returned_bytes: 0,
            cells_scanned: 0,
            next_look: CELLS_PER_LOOK,
            out: ReadBatch::default(),
        };
        let rows = remaining(request, resume, &published.shape.descriptor.range);
        match batch.fill(&rows) {
            // Without progress the caller would come again for the same rows: take a new view at once.
            Err(StoreOr::Store(StoreError::Expired)) if batch.out.last_row.is_none() => {}
            Err(StoreOr::Store(StoreError::Expired)) => return Ok(Some(batch.out)),
            Err(StoreOr::Store(StoreError::NotCached)) if leave.reach == Reach::Cache => return Ok(None),
            Err(StoreOr::Other(error)) if leave.reach == Reach::Cache && error.reason == Reason::Deadline => {
                return Ok(None);
            }
            Err(StoreOr::Store(error)) => return Err(Error::from(error).into()),
            Err(StoreOr::Other(error)) => return Err(error.into()),
            Ok(()) => return Ok(Some(batch.out)),
        }
    }
    Err(expired().into())
}

fn check_shape(shape: &Shape, request: &ReadRequest) -> Result<(), Failure> {
    if shape.dropped {
        return Err(Failure::new(Reason::TabletDropped, "the tablet was dropped"));
    }
    if shape.descriptor.generation != request.generation && !planted(Bug::GenerationUnchecked) {
        return Err(Failure::wrong_tablet(shape.descriptor.clone()));
    }
    Ok(())
}

const fn cell_order(request: &ReadRequest) -> CellOrder {
    if request.reversed { CellOrder::Falling } else { CellOrder::Rising }
}

/// The rows of the request that lie in the tablet and were not looked at yet.
fn remaining(request: &ReadRequest, resume: &Resume, range: &KeyRange) -> RowSet {
    let rows = request.rows.clamp(range);
    match &resume.after {
        Some(key) if request.reversed => rows.before(key),
        Some(key) => rows.after(key),
        None => rows,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// There is room for more.
    Open,
    /// The batch is full.
    Full,
}

/// A batch while it fills.
struct Batch<'a, 'v> {
    request: &'a ReadRequest,
    view: &'a View<'v>,
    leave: Leave,
    clock: &'a Clock,
    families: &'a Families,
    gc_time: Micros,
    wanted: &'a Wanted,
    started: Duration,
    returned_before: u64,
    scanned_bytes: usize,
    returned_bytes: usize,
    cells_scanned: u64,
    /// The clock is looked at when so many cells have been scanned.
    next_look: u64,
    out: ReadBatch,
}

impl Batch<'_, '_> {
    fn fill(&mut self, rows: &RowSet) -> Result<(), StoreOr> {
        let ranges = rows.ranges();
        let in_order: Box<dyn Iterator<Item = &KeyRange>> =
            if self.request.reversed { Box::new(ranges.iter().rev()) } else { Box::new(ranges.iter()) };
        for range in in_order {
            if self.fill_range(range)? == Room::Full {
                return Ok(());
            }
        }
        self.out.finished = true;
        Ok(())
    }

    fn fill_range(&mut self, range: &KeyRange) -> Result<Room, StoreOr> {
        let (lower, upper) = codec::range_bounds(range);
        let direction = if self.request.reversed { Direction::Reverse } else { Direction::Forward };
        let plan = ScanPlan::new(&lower, upper.as_deref()).toward(direction).within(self.leave.reach);
        let gatherer = Gatherer::new(self.families, self.gc_time, cell_order(self.request));
        let mut cursor = Cursor::new(self.view.scan(&plan)?, gatherer, self.wanted)
            .picking(self.request.filter.as_ref())
            .in_one_row(is_single(range));
        while let Some(found) = cursor.next_row()? {
            let looked = cursor.take_looked();
            self.scanned_bytes += looked.bytes;
            self.cells_scanned += looked.cells;
            if self.take_row(found)? == Room::Full {
                return Ok(Room::Full);
            }
        }
        // A key that was asked for alone has been looked at, whether it is there or not.
        if is_single(range) {
            self.out.last_row = Some(range.start().clone());
        }
        Ok(if self.is_spent() { Room::Full } else { Room::Open })
    }

    fn take_row(&mut self, Found { row, skipped }: Found) -> Result<Room, Error> {
        let key = row.key.clone();
        self.out.rows_seen += u64::from(skipped || !row.is_empty());
        self.out.cells_seen += row.cells.len() as u64;
        if !row.is_empty() {
            let row = match &self.request.filter {
                Some(filter) => filter.apply(row, &|| self.clock.monotonic() >= self.leave.deadline)?,
                None => row,
            };
            self.keep(row);
        }
        self.out.last_row = Some(key);
        if self.is_at_limit() {
            self.out.finished = true;
            return Ok(Room::Full);
        }
        Ok(if self.returned_bytes >= BATCH_BYTES || self.is_spent() { Room::Full } else { Room::Open })
    }

    fn keep(&mut self, row: Row) {
        if row.is_empty() {
            return;
        }
        self.returned_bytes += row.size_bytes();
        self.out.cells_returned += row.cells.len() as u64;
        self.out.rows.push(row);
    }

    fn is_at_limit(&self) -> bool {
        let limit = self.request.limit;
        limit > 0 && self.returned_before + self.out.rows.len() as u64 >= limit
    }

    /// Whether so much was looked at that the caller should hear how far it came.
    fn is_spent(&mut self) -> bool {
        if self.out.last_row.is_none() {
            return false;
        }
        if self.cells_scanned < self.next_look {
            return self.scanned_bytes >= SCANNED_BYTES_MAX;
        }
        self.next_look = self.cells_scanned + CELLS_PER_LOOK;
        self.clock.monotonic().saturating_sub(self.started) >= SCAN_TIME_MAX
    }
}

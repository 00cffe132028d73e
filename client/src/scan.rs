//! A scan over many tablets: its progress (pure), and the stream that reads it.
//!
//! A scan reads one tablet after another in key order, or in reverse. After each message it knows the last key that the
//! tablet has scanned; after a failure it resumes beyond that key, with the remaining row limit. So neither a split nor
//! a leader change can duplicate or lose a row: a reply counts only for the range and generation of its request. If a
//! server fails inside a large row, the scan resets the row and reads it again from its beginning.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::limit::RowLimit;
use ebla_proto::convert::{LargeRows, reset_row};
use ebla_proto::tablet;
use ebla_runtime::Failpoint;
use futures::StreamExt;
use futures::stream::{BoxStream, try_unfold};
use prost::Message;

use crate::context::ClusterContext;
use crate::deadline::Deadline;
use crate::locate::{CachedTablet, Position, Probe};
use crate::retry_state::{RetryState, Route};
use crate::transport::{CallError, ReadStream, with_timeout};
use crate::wire;

/// The timeout of the next message of a scan; then another server is tried.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the first key to the last.
    #[default]
    Ascending,
    /// From the last key to the first.
    Descending,
}

/// Whether the tablets count the rows and cells that they scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stats {
    /// Do not count.
    #[default]
    Skip,
    /// Count, in each message.
    Count,
}

/// A read of one table.
#[derive(Clone, Debug)]
pub struct Read {
    /// The table.
    pub table: TableId,
    /// The rows.
    pub rows: RowSet,
    /// An encoded `google.bigtable.v2.RowFilter`; `None` passes everything.
    pub filter: Option<Bytes>,
    /// The maximum number of rows that pass the filter.
    pub limit: RowLimit,
    /// The order of the rows.
    pub direction: Direction,
    /// Whether to count scanned rows and cells.
    pub stats: Stats,
    /// Whether rows that are too large for one message are split.
    pub large_rows: LargeRows,
}

impl Read {
    /// All cells of these rows, ascending.
    pub const fn new(table: TableId, rows: RowSet) -> Self {
        Self {
            table,
            rows,
            filter: None,
            limit: RowLimit::Unlimited,
            direction: Direction::Ascending,
            stats: Stats::Skip,
            large_rows: LargeRows::Whole,
        }
    }
}

/// Messages of rows, in order, each of whole rows unless the read allows [`LargeRows::Split`]. A message without a row
/// reports the progress of the scan, or its counts.
pub type ReadParts = BoxStream<'static, Result<tablet::ReadReply, Error>>;

/// The progress of a scan: the rows that remain.
#[derive(Clone, Debug)]
pub(crate) struct ScanProgress {
    rows: RowSet,
    /// The limit for the remaining rows; `None` when it is reached.
    limit: Option<RowLimit>,
    direction: Direction,
}

impl ScanProgress {
    pub(crate) const fn new(rows: RowSet, limit: RowLimit, direction: Direction) -> Self {
        Self { rows, limit: Some(limit), direction }
    }

    /// Where to continue; `None` when the scan is done.
    pub(crate) fn next(&self) -> Option<Probe> {
        // None: the limit is reached.
        let _remaining = self.limit?;
        match self.direction {
            Direction::Ascending => self.rows.ranges().first().map(|range| Probe::At(range.start().clone())),
            Direction::Descending => self.rows.ranges().last().map(|range| Probe::Below(range.end().cloned())),
        }
    }

    /// The remaining rows in a tablet's range.
    pub(crate) fn within(&self, range: &KeyRange) -> RowSet {
        self.rows.clamp(range)
    }

    /// The limit for the remaining rows; `None` when it is reached.
    pub(crate) const fn limit(&self) -> Option<RowLimit> {
        self.limit
    }

    /// Records a reply of a tablet to a request for `range`.
    pub(crate) fn record(&mut self, reply: &tablet::ReadReply, range: &KeyRange) {
        self.limit = self.limit.and_then(|limit| limit.remaining(reply.rows));
        // The key may be empty: an older release accepted such a row.
        if !reply.last_row.is_empty() || reply.rows > 0 {
            self.skip_to(&RowKey::new(reply.last_row.clone()));
        }
        if reply.finished && self.limit.is_some() {
            self.skip_range(range);
        }
    }

    fn skip_to(&mut self, last: &RowKey) {
        self.rows = match self.direction {
            Direction::Ascending if Failpoint::ScanResumesInclusively.is_enabled() => self.rows_from(last),
            Direction::Ascending => self.rows.after(last),
            Direction::Descending => self.rows.before(last),
        };
    }

    fn skip_range(&mut self, range: &KeyRange) {
        self.rows = match (self.direction, range.end()) {
            (Direction::Descending, _) => self.rows.before(range.start()),
            (Direction::Ascending, None) => RowSet::default(),
            (Direction::Ascending, Some(end)) => self.rows_from(end),
        };
    }

    /// The remaining rows from `start` on.
    fn rows_from(&self, start: &RowKey) -> RowSet {
        KeyRange::new(start.clone(), None).map(|rest| self.rows.clamp(&rest)).unwrap_or_default()
    }
}

/// A scan in progress.
struct Scan {
    context: Arc<ClusterContext>,
    read: Read,
    progress: ScanProgress,
    retry: RetryState,
    deadline: Deadline,
    open: Option<OpenStream>,
    /// The caller has received parts of a row, and the row has not ended.
    inside_row: bool,
}

/// The stream from one tablet.
struct OpenStream {
    stream: ReadStream,
    route: Route,
    has_replied: bool,
}

/// The stream of the messages of a read.
pub(crate) fn stream(context: Arc<ClusterContext>, read: Read, deadline: Deadline) -> ReadParts {
    context.retry_budget.lock().deposit();
    let progress = ScanProgress::new(read.rows.clone(), read.limit, read.direction);
    let scan =
        Scan { context, read, progress, retry: RetryState::of_read(deadline), deadline, open: None, inside_row: false };
    try_unfold(scan, |mut scan| async move { Ok(scan.next().await?.map(|reply| (reply, scan))) }).boxed()
}

impl Scan {
    /// The next message.
    async fn next(&mut self) -> Result<Option<tablet::ReadReply>, Error> {
        loop {
            let Some(mut open) = self.open.take() else {
                let Some(probe) = self.progress.next() else { return Ok(None) };
                self.open(probe).await?;
                continue;
            };
            let clock = &self.context.options.runtime.clock;
            let left = self.deadline.remaining(clock);
            open.route.started_at = clock.monotonic();
            match receive(&mut open, left.min(MESSAGE_TIMEOUT)).await {
                Ok(reply) => {
                    self.on_reply(&reply, open);
                    return Ok(Some(reply));
                }
                Err(error) => {
                    if Failpoint::ScanSkipsRest.is_enabled() {
                        self.progress.skip_range(&open.route.tablet.range);
                    }
                    self.retry.record_failure(&self.context, &open.route, error).await?;
                    if std::mem::take(&mut self.inside_row) {
                        return Ok(Some(reset_row_reply()));
                    }
                }
            }
        }
    }

    /// Opens a stream to the tablet at `probe`. After a retryable failure it returns without a stream.
    async fn open(&mut self, probe: Probe) -> Result<(), Error> {
        let position = Position { table: self.read.table, probe };
        let route = self.retry.route(&self.context, &position).await?;
        let left = self.deadline.remaining(&self.context.options.runtime.clock);
        let request = self.request(&route.tablet);
        let opening = self.context.options.transport.read(&route.target, request, left);
        match with_timeout(left.min(MESSAGE_TIMEOUT), opening).await {
            Ok(stream) => self.open = Some(OpenStream { stream, route, has_replied: false }),
            Err(error) => self.retry.record_failure(&self.context, &route, error).await?,
        }
        Ok(())
    }

    fn request(&self, tablet: &CachedTablet) -> tablet::ReadRequest {
        tablet::ReadRequest {
            header: Some(wire::header(tablet)),
            rows: wire::key_ranges(&self.progress.within(&tablet.range)),
            filter: self.read.filter.clone(),
            limit: self.progress.limit().unwrap_or_default().get(),
            reversed: self.read.direction == Direction::Descending,
            count_stats: self.read.stats == Stats::Count,
            any_replica: false,
            beyond_tablet: false,
            split_rows: self.read.large_rows == LargeRows::Split,
        }
    }

    fn on_reply(&mut self, reply: &tablet::ReadReply, mut open: OpenStream) {
        if !open.has_replied {
            open.has_replied = true;
            self.context.lookups.record_success(open.route.target.server, &open.route.tablet);
            self.retry.record_progress();
        }
        self.inside_row = reply.row_open;
        self.progress.record(reply, &open.route.tablet.range);
        if !reply.finished && self.progress.next().is_some() {
            self.open = Some(open);
        }
    }
}

/// Tells the caller to drop the parts of the open row.
fn reset_row_reply() -> tablet::ReadReply {
    tablet::ReadReply { response: reset_row().encode_to_vec().into(), row_reset: true, ..Default::default() }
}

async fn receive(open: &mut OpenStream, timeout: Duration) -> Result<tablet::ReadReply, CallError> {
    let next = async { open.stream.next().await.unwrap_or_else(|| Err(ended_early())) };
    with_timeout(timeout, next).await
}

/// The stream ended before the tablet was finished: its server is stopping, or the tablet has changed.
fn ended_early() -> CallError {
    Error::new(Reason::Unavailable, "the read stream ended early").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> RowKey {
        RowKey::copy_from_slice(text.as_bytes())
    }

    fn range(start: &str, end: &str) -> KeyRange {
        KeyRange::new(key(start), Some(key(end)).filter(|end| !end.is_empty())).unwrap()
    }

    fn reply(rows: u64, last_row: &str, finished: bool) -> tablet::ReadReply {
        tablet::ReadReply {
            rows,
            last_row: Bytes::copy_from_slice(last_row.as_bytes()),
            finished,
            ..Default::default()
        }
    }

    #[test]
    fn a_scan_resumes_after_the_last_scanned_row() {
        let mut progress = ScanProgress::new(RowSet::all(), RowLimit::new(10), Direction::Ascending);
        progress.record(&reply(3, "f", false), &range("", "m"));
        assert_eq!(progress.next(), Some(Probe::At(key("f").successor())));
        assert_eq!(progress.limit(), Some(RowLimit::new(7)));
        progress.record(&reply(0, "", true), &range("", "m"));
        assert_eq!(progress.next(), Some(Probe::At(key("m"))));
        progress.record(&reply(0, "", true), &range("m", ""));
        assert_eq!(progress.next(), None);
    }

    #[test]
    fn a_reversed_scan_resumes_before_the_last_scanned_row() {
        let mut progress = ScanProgress::new(RowSet::all(), RowLimit::Unlimited, Direction::Descending);
        assert_eq!(progress.next(), Some(Probe::Below(None)));
        progress.record(&reply(3, "r", false), &range("m", ""));
        assert_eq!(progress.next(), Some(Probe::Below(Some(key("r")))));
        progress.record(&reply(0, "", true), &range("m", ""));
        assert_eq!(progress.next(), Some(Probe::Below(Some(key("m")))));
        progress.record(&reply(0, "", true), &range("", "m"));
        assert_eq!(progress.next(), None);
    }

    #[test]
    fn the_row_limit_ends_a_scan_anywhere() {
        let mut progress = ScanProgress::new(RowSet::all(), RowLimit::new(2), Direction::Ascending);
        progress.record(&reply(2, "b", true), &range("", "m"));
        assert_eq!(progress.next(), None);
    }

    #[test]
    fn a_request_covers_only_the_remaining_rows_of_its_tablet() {
        let rows = RowSet::from_ranges([range("a", "c"), range("k", "p"), range("x", "")]);
        let mut progress = ScanProgress::new(rows, RowLimit::Unlimited, Direction::Ascending);
        assert_eq!(progress.within(&range("", "m")).ranges(), [range("a", "c"), range("k", "m")]);
        progress.record(&reply(1, "b", true), &range("", "m"));
        assert_eq!(progress.within(&range("m", "")).ranges(), [range("m", "p"), range("x", "")]);
    }
}

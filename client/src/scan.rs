//! A read over many tablets: what is left to read (pure), and the stream that reads it.
//!
//! Tablets are read one after another in key order, from above when reversed. After each message the read knows the
//! last key that was looked at; whatever happens then, it goes on beyond that key, with the limit that is left. So
//! neither a split nor a change of leader can repeat or lose a row: a tablet's answer counts only for the range and
//! generation it was asked for. A server that is lost inside a row leaves parts of it: they are declared void, and the row
//! is read again from its beginning.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_proto::convert::{LargeRows, reset_row};
use ebla_proto::tablet;
use ebla_runtime::{Bug, planted};
use futures::StreamExt;
use futures::stream::{BoxStream, try_unfold};
use prost::Message;

use crate::attempts::{Attempts, Route};
use crate::cluster::{Shared, within};
use crate::deadline::Deadline;
use crate::locate::{Located, Position, Probe};
use crate::transport::{CallError, ReadStream};
use crate::wire;

/// How long a read may be silent before another server is asked.
const SILENCE: Duration = Duration::from_secs(10);

/// In which order rows come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the first key to the last.
    #[default]
    Ascending,
    /// From the last key to the first.
    Descending,
}

/// Whether the tablets count what they look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stats {
    /// No.
    #[default]
    Skip,
    /// Yes, in each message.
    Count,
}

/// What to read.
#[derive(Clone, Debug)]
pub struct Read {
    /// The table.
    pub table: TableId,
    /// Which rows.
    pub rows: RowSet,
    /// An encoded `google.bigtable.v2.RowFilter`; absent: everything.
    pub filter: Option<Bytes>,
    /// Rows that come out of the filter; 0: no limit.
    pub limit: u64,
    /// In which order.
    pub direction: Direction,
    /// Whether to count.
    pub stats: Stats,
    /// What becomes of rows that are too large for one message.
    pub large_rows: LargeRows,
}

impl Read {
    /// All cells of these rows, ascending.
    pub const fn new(table: TableId, rows: RowSet) -> Self {
        Self {
            table,
            rows,
            filter: None,
            limit: 0,
            direction: Direction::Ascending,
            stats: Stats::Skip,
            large_rows: LargeRows::Whole,
        }
    }
}

/// Messages of rows, in order, each of whole rows unless the read allows [`LargeRows::Split`]. Some hold no row: they tell
/// how far the read has come, or what it counted.
pub type ReadParts = BoxStream<'static, Result<tablet::ReadReply, Error>>;

/// What is left of a read.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    rows: RowSet,
    /// `None`: no limit.
    limit: Option<u64>,
    direction: Direction,
}

impl Progress {
    pub(crate) const fn new(rows: RowSet, limit: u64, direction: Direction) -> Self {
        let limit = if limit == 0 { None } else { Some(limit) };
        Self { rows, limit, direction }
    }

    /// Where to go on; `None` when the read is done.
    pub(crate) fn next(&self) -> Option<Probe> {
        if self.limit == Some(0) {
            return None;
        }
        match self.direction {
            Direction::Ascending => self.rows.ranges().first().map(|range| Probe::At(range.start().clone())),
            Direction::Descending => self.rows.ranges().last().map(|range| Probe::Below(range.end().cloned())),
        }
    }

    /// The part that lies in a tablet's range.
    pub(crate) fn within(&self, range: &KeyRange) -> RowSet {
        self.rows.clamp(range)
    }

    /// What to ask a tablet for at most; 0: no limit.
    pub(crate) const fn limit(&self) -> u64 {
        match self.limit {
            Some(limit) => limit,
            None => 0,
        }
    }

    /// A message came from a tablet that was asked for `range`.
    pub(crate) fn advance(&mut self, reply: &tablet::ReadReply, range: &KeyRange) {
        self.limit = self.limit.map(|limit| limit.saturating_sub(reply.rows));
        // The key may be empty: an older release took such a row.
        if !reply.last_row.is_empty() || reply.rows > 0 {
            self.leave(&RowKey::new(reply.last_row.clone()));
        }
        if reply.finished && self.limit != Some(0) {
            self.leave_all(range);
        }
    }

    fn leave(&mut self, last: &RowKey) {
        self.rows = match self.direction {
            Direction::Ascending => self.rows.after(last),
            Direction::Descending => self.rows.before(last),
        };
    }

    fn leave_all(&mut self, range: &KeyRange) {
        self.rows = match (self.direction, range.end()) {
            (Direction::Descending, _) => self.rows.before(range.start()),
            (Direction::Ascending, None) => RowSet::default(),
            (Direction::Ascending, Some(end)) => {
                KeyRange::new(end.clone(), None).map(|rest| self.rows.clamp(&rest)).unwrap_or_default()
            }
        };
    }
}

/// A read under way.
struct Scan {
    shared: Arc<Shared>,
    read: Read,
    progress: Progress,
    attempts: Attempts,
    deadline: Deadline,
    open: Option<Open>,
    /// Parts of a row were handed on, and the row has not ended.
    inside_row: bool,
}

/// The stream from one tablet.
struct Open {
    stream: ReadStream,
    route: Route,
    said_anything: bool,
}

/// The stream of a read's messages.
pub(crate) fn stream(shared: Arc<Shared>, read: Read, deadline: Deadline) -> ReadParts {
    shared.budget().earn();
    let progress = Progress::new(read.rows.clone(), read.limit, read.direction);
    let scan =
        Scan { shared, read, progress, attempts: Attempts::new(deadline), deadline, open: None, inside_row: false };
    try_unfold(scan, |mut scan| async move { Ok(scan.next().await?.map(|reply| (reply, scan))) }).boxed()
}

impl Scan {
    /// The next message, from whichever tablet has it.
    async fn next(&mut self) -> Result<Option<tablet::ReadReply>, Error> {
        loop {
            let Some(mut open) = self.open.take() else {
                let Some(probe) = self.progress.next() else { return Ok(None) };
                self.open(probe).await?;
                continue;
            };
            let clock = &self.shared.options.runtime.clock;
            let left = self.deadline.remaining(clock);
            open.route.begun = clock.monotonic();
            match receive(&mut open, left.min(SILENCE)).await {
                Ok(reply) => {
                    self.came(&reply, open);
                    return Ok(Some(reply));
                }
                Err(error) => {
                    if planted(Bug::ScanSkipsRest) {
                        self.progress.leave_all(&open.route.located.range);
                    }
                    self.attempts.failed(&self.shared, &open.route, error).await?;
                    if std::mem::take(&mut self.inside_row) {
                        return Ok(Some(parts_are_void()));
                    }
                }
            }
        }
    }

    /// Opens a stream to the tablet at `probe`. After a failure that may be tried again there is none, and no error.
    async fn open(&mut self, probe: Probe) -> Result<(), Error> {
        let position = Position { table: self.read.table, probe };
        let route = self.attempts.route(&self.shared, &position).await?;
        let left = self.deadline.remaining(&self.shared.options.runtime.clock);
        let request = self.request(&route.located);
        let opening = self.shared.options.transport.read(&route.target, request, left);
        match within(left.min(SILENCE), opening).await {
            Ok(stream) => self.open = Some(Open { stream, route, said_anything: false }),
            Err(error) => self.attempts.failed(&self.shared, &route, error).await?,
        }
        Ok(())
    }

    fn request(&self, located: &Located) -> tablet::ReadRequest {
        tablet::ReadRequest {
            header: Some(wire::header(located)),
            rows: wire::key_ranges(&self.progress.within(&located.range)),
            filter: self.read.filter.clone(),
            limit: self.progress.limit(),
            reversed: self.read.direction == Direction::Descending,
            count_stats: self.read.stats == Stats::Count,
            any_replica: false,
            split_rows: self.read.large_rows == LargeRows::Split,
        }
    }

    fn came(&mut self, reply: &tablet::ReadReply, mut open: Open) {
        if !open.said_anything {
            open.said_anything = true;
            self.shared.lookups.served(&open.route);
            self.attempts.progressed();
        }
        self.inside_row = reply.row_open;
        self.progress.advance(reply, &open.route.located.range);
        if !reply.finished && self.progress.next().is_some() {
            self.open = Some(open);
        }
    }
}

/// Says that the parts of the open row are to be forgotten.
fn parts_are_void() -> tablet::ReadReply {
    tablet::ReadReply { response: reset_row().encode_to_vec().into(), row_reset: true, ..Default::default() }
}

async fn receive(open: &mut Open, limit: Duration) -> Result<tablet::ReadReply, CallError> {
    let next = async { open.stream.next().await.unwrap_or_else(|| Err(ended_early())) };
    within(limit, next).await
}

/// The stream ended before the tablet was finished: its server stops, or the tablet changed under it.
fn ended_early() -> CallError {
    Error::new(Reason::Unavailable, "the read ended before it was finished").into()
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
    fn a_read_goes_on_after_the_last_row_looked_at() {
        let mut progress = Progress::new(RowSet::all(), 10, Direction::Ascending);
        progress.advance(&reply(3, "f", false), &range("", "m"));
        assert_eq!(progress.next(), Some(Probe::At(key("f").successor())));
        assert_eq!(progress.limit(), 7);
        progress.advance(&reply(0, "", true), &range("", "m"));
        assert_eq!(progress.next(), Some(Probe::At(key("m"))));
        progress.advance(&reply(0, "", true), &range("m", ""));
        assert_eq!(progress.next(), None);
    }

    #[test]
    fn a_reversed_read_is_the_mirror_image() {
        let mut progress = Progress::new(RowSet::all(), 0, Direction::Descending);
        assert_eq!(progress.next(), Some(Probe::Below(None)));
        progress.advance(&reply(3, "r", false), &range("m", ""));
        assert_eq!(progress.next(), Some(Probe::Below(Some(key("r")))));
        progress.advance(&reply(0, "", true), &range("m", ""));
        assert_eq!(progress.next(), Some(Probe::Below(Some(key("m")))));
        progress.advance(&reply(0, "", true), &range("", "m"));
        assert_eq!(progress.next(), None);
    }

    #[test]
    fn the_limit_ends_a_read_wherever_it_is() {
        let mut progress = Progress::new(RowSet::all(), 2, Direction::Ascending);
        progress.advance(&reply(2, "b", true), &range("", "m"));
        assert_eq!(progress.next(), None);
    }

    #[test]
    fn a_tablet_is_asked_only_for_what_is_left_in_it() {
        let rows = RowSet::from_ranges([range("a", "c"), range("k", "p"), range("x", "")]);
        let mut progress = Progress::new(rows, 0, Direction::Ascending);
        assert_eq!(progress.within(&range("", "m")).ranges(), [range("a", "c"), range("k", "m")]);
        progress.advance(&reply(1, "b", true), &range("", "m"));
        assert_eq!(progress.within(&range("m", "")).ranges(), [range("m", "p"), range("x", "")]);
    }
}

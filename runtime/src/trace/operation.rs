//! An operation: one call on one server, while it is worked on.
//!
//! The stages are a fixed array of numbers. Whatever works for the operation, in its own task or in the task that proposes the writes of a group,
//! adds to them under a lock of the operation, which is held for a few instructions: two atomic operations for all stages of a command, where an
//! array of atomic numbers needed four for each stage.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::id::{GroupId, LogIndex, ServerId, TableId, TabletId, Term};
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use parking_lot::Mutex;

use super::context::{Sampling, SpanId, TraceContext, TraceId};
use super::record::{FollowerTime, Record, StageTime};
use super::recorder::{Ended, Recorder};
use super::stage::{STAGES, Stage};

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client, through the data API.
    Data,
    /// A client, through the admin APIs.
    Admin,
    /// Another server of the cluster, or a client that calls the leaders of tablets itself.
    Server,
    /// The master, which has started it by itself.
    Master,
}

/// How a call ended: the number of a gRPC code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(u8);

impl Outcome {
    /// It succeeded.
    pub const OK: Self = Self(0);
    /// Its caller gave up.
    pub const CANCELLED: Self = Self(1);
    /// Nothing more is known.
    pub const UNKNOWN: Self = Self(2);

    /// The outcome with this gRPC code; one that gRPC does not define counts as unknown.
    #[must_use]
    pub fn of_code(code: i32) -> Self {
        match u8::try_from(code) {
            Ok(code) if code <= 16 => Self(code),
            _ => Self::UNKNOWN,
        }
    }

    /// The number of the gRPC code, at most 16.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// The tablet that an operation works on; of several, the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TabletIds {
    /// Its table.
    pub table: TableId,
    /// The tablet.
    pub tablet: TabletId,
    /// Its group.
    pub group: GroupId,
}

/// The command that carried a write, possibly with the writes of other operations (group commit). Together with the group it names one command of
/// the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The term of the leader.
    pub term: Term,
    /// The index of the entry in the log of the group.
    pub index: LogIndex,
    /// The number of rows that the command writes.
    pub writes: u32,
}

/// A stage and its time on the monotonic clock, from its begin to its end.
pub type TimedStage = (Stage, Duration, Duration);

/// The times of one stage, in microseconds since the operation began.
#[derive(Clone, Copy, Debug, Default)]
struct StageCell {
    begin: u32,
    end: u32,
    total: u32,
    count: u32,
}

impl StageCell {
    fn add(&mut self, begin: u32, end: u32) {
        self.begin = if self.count == 0 { begin } else { self.begin.min(begin) };
        self.end = self.end.max(end);
        self.total = self.total.saturating_add(end.saturating_sub(begin));
        self.count = self.count.saturating_add(1);
    }

    fn time(&self, stage: Stage) -> Option<StageTime> {
        let micros = |micros: u32| Duration::from_micros(micros.into());
        let (begin, end, total) = (micros(self.begin), micros(self.end), micros(self.total));
        (self.count > 0).then_some(StageTime { stage, begin, end, total, count: self.count })
    }
}

/// What is known of an operation that changes while it is worked on.
#[derive(Debug, Default)]
struct State {
    stages: [StageCell; STAGES.len()],
    table: Option<TableName>,
    tablet: Option<TabletIds>,
    leader: Option<ServerId>,
    batch: Option<Batch>,
    followers: Vec<FollowerTime>,
}

/// See the module.
pub struct Operation {
    recorder: Arc<Recorder>,
    method: Cow<'static, str>,
    origin: Origin,
    /// As it began: with the sampling that needs no consent.
    context: TraceContext,
    /// Whether its trace is sampled.
    is_sampled: AtomicBool,
    /// Whether a client asks for the sampling, and has not been answered.
    asks_for_sampling: AtomicBool,
    parent: Option<SpanId>,
    wall: Micros,
    began: Duration,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    has_ended: AtomicBool,
    /// Locked to read or to set a field, or to add stages: for a few instructions, without a reading of the clock.
    state: Mutex<State>,
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("method", &self.method)
            .field("trace", &self.context.trace)
            .finish_non_exhaustive()
    }
}

impl Operation {
    pub(super) fn new(
        recorder: Arc<Recorder>,
        method: Cow<'static, str>,
        origin: Origin,
        (context, parent): (TraceContext, Option<SpanId>),
        asked: Sampling,
    ) -> Arc<Self> {
        let (wall, began) = (recorder.clock().wall(), recorder.clock().monotonic());
        Arc::new(Self {
            recorder,
            method,
            origin,
            context,
            is_sampled: AtomicBool::new(context.sampling == Sampling::Sampled),
            asks_for_sampling: AtomicBool::new(asked == Sampling::Sampled),
            parent,
            wall,
            began,
            request_bytes: AtomicU64::new(0),
            response_bytes: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// What a call for this operation tells its receiver.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        TraceContext { sampling: self.sampling(), ..self.context }
    }

    fn sampling(&self) -> Sampling {
        if self.is_sampled.load(Ordering::Relaxed) { Sampling::Sampled } else { Sampling::NotSampled }
    }

    /// The caller is authenticated: if it asks for the sampling of its trace, the trace is sampled, up to the rate of the recorder. Before that the
    /// wish has no effect, so callers without an identity fill no queue. Only the first call has an effect.
    pub fn accept_sampling(&self) {
        if self.asks_for_sampling.swap(false, Ordering::Relaxed)
            && !self.is_sampled.load(Ordering::Relaxed)
            && self.recorder.takes_sampled()
        {
            self.is_sampled.store(true, Ordering::Relaxed);
        }
    }

    /// The trace.
    #[must_use]
    pub const fn trace(&self) -> TraceId {
        self.context.trace
    }

    /// The time now, on the clock of its stages.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.recorder.clock().monotonic()
    }

    /// Adds time of a stage: from `begin` to `end` on the monotonic clock. Of stages at the same time each counts.
    pub fn add(&self, stage: Stage, begin: Duration, end: Duration) {
        self.add_to(&mut self.state.lock(), (stage, begin, end));
    }

    /// As [`Self::add`], unless nothing was waited for.
    pub fn add_if_any(&self, stage: Stage, begin: Duration, end: Duration) {
        if end > begin {
            self.add(stage, begin, end);
        }
    }

    fn add_to(&self, state: &mut State, (stage, begin, end): TimedStage) {
        if let Some(cell) = state.stages.get_mut(stage.index()) {
            cell.add(self.micros(begin), self.micros(end));
        }
    }

    /// Microseconds from the beginning to this time; at most 71 minutes.
    fn micros(&self, time: Duration) -> u32 {
        u32::try_from(time.saturating_sub(self.began).as_micros()).unwrap_or(u32::MAX)
    }

    /// Sets the full name of the table. Only for a caller that may know it: the name decides who sees the record.
    pub fn set_table(&self, name: &TableName) {
        self.state.lock().table = Some(name.clone());
    }

    /// Sets the tablet.
    pub fn set_tablet(&self, tablet: TabletIds) {
        self.state.lock().tablet = Some(tablet);
    }

    /// Sets the server that works on it for this one.
    pub fn set_leader(&self, leader: ServerId) {
        self.state.lock().leader = Some(leader);
    }

    /// Sets the command that carried its write, and adds `queued` and those stages of the command that took time. Of the rows of one call, only the
    /// first one of each command has an effect: they waited together.
    pub fn join_batch(&self, batch: Batch, queued: TimedStage, stages: &[TimedStage]) {
        let mut state = self.state.lock();
        if state.batch.replace(batch) == Some(batch) {
            return;
        }
        self.add_to(&mut state, queued);
        for (stage, begin, end) in stages.iter().filter(|(_stage, begin, end)| end > begin) {
            self.add_to(&mut state, (*stage, *begin, *end));
        }
    }

    /// Whether it would be kept if it ended at this time: whether details for its record are worth their cost.
    #[must_use]
    pub fn needs_details(&self, at: Duration) -> bool {
        self.is_sampled.load(Ordering::Relaxed) || self.recorder.may_be_slow(at.saturating_sub(self.began))
    }

    /// Sets the followers of its last command. Their times are on the monotonic clock.
    pub fn set_followers(&self, followers: &[FollowerTime]) {
        let since = |time: Duration| time.saturating_sub(self.began);
        let followers = followers.iter();
        let followers =
            followers.map(|one| FollowerTime { sent: since(one.sent), answered: since(one.answered), ..*one });
        let followers = followers.collect();
        self.state.lock().followers = followers;
    }

    /// Counts bytes of its request.
    pub fn add_request_bytes(&self, bytes: usize) {
        self.request_bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Counts bytes of its response.
    pub fn add_response_bytes(&self, bytes: usize) {
        self.response_bytes.fetch_add(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The operation has ended. Only the first call has an effect.
    pub fn end(&self, outcome: Outcome) {
        if self.has_ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let now = self.now();
        let elapsed = now.saturating_sub(self.began);
        let client = self.state.lock().stages.get(Stage::Client.index()).and_then(|cell| cell.time(Stage::Client));
        let ended = Ended {
            method: &self.method,
            took: elapsed.saturating_sub(client.map(|time| time.total).unwrap_or_default()),
            outcome,
            origin: self.origin,
            sampling: self.sampling(),
            now,
        };
        let Some(kept) = self.recorder.judge(&ended) else { return };
        let state = std::mem::take(&mut *self.state.lock());
        self.recorder.keep(Record {
            sequence: 0,
            kept,
            server: self.recorder.server(),
            origin: self.origin,
            method: self.method.clone(),
            trace: self.context.trace,
            span: self.context.span,
            parent: self.parent,
            began: self.wall,
            elapsed,
            outcome,
            sampling: self.sampling(),
            table: state.table,
            tablet: state.tablet,
            leader: state.leader,
            batch: state.batch,
            followers: state.followers,
            request_bytes: self.request_bytes.load(Ordering::Relaxed),
            response_bytes: self.response_bytes.load(Ordering::Relaxed),
            stages: STAGES.iter().zip(&state.stages).filter_map(|(stage, cell)| cell.time(*stage)).collect(),
        });
    }
}

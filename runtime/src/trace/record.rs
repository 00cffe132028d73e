//! What is kept of an operation that has ended.

use std::borrow::Cow;
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_model::schema::TableName;
use ebla_model::time::Micros;

use super::context::{Sampling, SpanId, TraceId};
use super::operation::{Batch, Origin, Outcome, TabletIds};
use super::stage::Stage;

/// The server of a record of the master: no tablet server has this id.
pub const MASTER: ServerId = ServerId::new(0);

/// Why a record is kept. A slow operation that failed counts as slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It took longer than the limit.
    Slow,
    /// It did not end with success.
    Failed,
    /// Its trace is sampled.
    Sampled,
    /// It was slower than 99 of 100 recent ones of its method ([`SlowPercentile`](super::SlowPercentile)), and not slower than the limit.
    Outlier,
}

impl Kept {
    /// Its name in outputs and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Failed => "failed",
            Self::Sampled => "sampled",
            Self::Outlier => "outlier",
        }
    }
}

/// The time of an operation in one stage. Times count from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTime {
    /// The stage.
    pub stage: Stage,
    /// When it was first in this stage.
    pub begin: Duration,
    /// When it last left it.
    pub end: Duration,
    /// How long it was in it. More than from `begin` to `end` if parts of the operation were in it at the same time, less if it was in it
    /// several times.
    pub total: Duration,
    /// How often it was in it.
    pub count: u32,
}

/// The steps of a follower that has appended entries, as it reports them. Its clock is not compared with that of the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowerWork {
    /// From the arrival of the message until the entries were handed to the commit log.
    pub queue: Duration,
    /// After that, until they were on disk.
    pub sync: Duration,
    /// From the arrival until the reply was ready.
    pub total: Duration,
}

/// The part of a follower in a write. Times count from the beginning of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerTime {
    /// The server of the follower.
    pub server: ServerId,
    /// When the leader sent the message with the command; 0 if that was before.
    pub sent: Duration,
    /// When the leader had the reply.
    pub answered: Duration,
    /// What the follower did in between; `None` if its release does not report it.
    pub work: Option<FollowerWork>,
}

/// An operation that has ended. It contains neither keys nor values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Ascends with the records of a server.
    pub sequence: u64,
    /// Why it is kept.
    pub kept: Kept,
    /// The server that worked on it, or [`MASTER`].
    pub server: ServerId,
    /// Where the call came from.
    pub origin: Origin,
    /// The method of the API.
    pub method: Cow<'static, str>,
    /// The trace.
    pub trace: TraceId,
    /// This operation.
    pub span: SpanId,
    /// The operation that caused it, on another server or in the client.
    pub parent: Option<SpanId>,
    /// When it began, by the server's clock.
    pub began: Micros,
    /// How long it took.
    pub elapsed: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether its trace is sampled. A sampled operation that is slow or failed is kept as such.
    pub sampling: Sampling,
    /// The full name of the table; `None` when the operation is of another server, or its caller was refused.
    pub table: Option<TableName>,
    /// The tablet.
    pub tablet: Option<TabletIds>,
    /// The server that was called for it.
    pub leader: Option<ServerId>,
    /// The command that carried the write.
    pub batch: Option<Batch>,
    /// Bytes of the request's message.
    pub request_bytes: u64,
    /// Bytes of the response's messages.
    pub response_bytes: u64,
    /// The stages that it was in, by their numbers.
    pub stages: Vec<StageTime>,
    /// Of a slow or sampled write on the leader: the followers that had answered until it was applied.
    pub followers: Vec<FollowerTime>,
}

impl Record {
    /// When it ended, by the server's clock.
    #[must_use]
    pub fn ended(&self) -> Micros {
        self.began.plus(self.elapsed)
    }

    /// The memory that it takes, in bytes.
    pub(super) fn size_bytes(&self) -> usize {
        let names = self.method.len() + self.table.as_ref().map_or(0, |table| table.as_str().len());
        let followers = self.followers.len() * size_of::<FollowerTime>();
        size_of::<Self>() + names + self.stages.len() * size_of::<StageTime>() + followers
    }
}

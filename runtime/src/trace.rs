//! Traces: where the time of each operation went.
//!
//! ```text
//!   Operation      one call on one server: its ids, and the times of its stages      made for every call, on the heap once
//!   Stage          a part of the work that an operation may wait for                 a fixed list
//!   current        the operation of the running task: code below adds stages to it
//!   Recorder       decides at the end of an operation whether its Record is kept, and for whom
//!     rings        the last slow, failed and sampled records, in bounded memory      no collector is needed
//!     queue        sampled and slow records for an exporter, bounded                 a full queue drops and counts
//! ```
//!
//! An operation costs one allocation, and each stage two readings of the clock. The trace of a call has one operation on each server that works
//! on it; the ids travel as a [`TraceContext`], in the `traceparent` header of W3C Trace Context between a client and a server, and in
//! messages between servers. Whether a trace is sampled is decided once, where it enters the cluster.
//!
//! A record names the table, the tablet and the group. It contains no row key, no value and no error message, because messages may quote keys
//! (docs/inside/decisions/0032-traces.md).

mod budget;
mod context;
mod current;
mod layer;
mod metrics;
mod operation;
mod outliers;
mod record;
mod recorder;
mod stage;

pub use self::context::{Sampling, SpanId, TRACEPARENT, TraceContext, TraceId};
pub use self::current::{StageTimer, TracedStream, context, current, run, scope, stage, waiting, with_current};
pub use self::layer::{TracedCall, WithTrace};
pub use self::metrics::{FAMILIES, TraceSource};
pub use self::operation::{Batch, Operation, Origin, Outcome, TabletIds, TimedStage};
pub use self::record::{FollowerTime, FollowerWork, Kept, MASTER, Record, StageTime};
pub use self::recorder::{
    FAILED_MAX, FAILED_PER_SECOND, OUTLIERS_MAX, OUTLIERS_PER_SECOND, RING_BYTES_MAX, RecordQueue, Recorder,
    SAMPLED_BY_CLIENTS_PER_SECOND, SAMPLED_MAX, SLOW_MAX, SampleRate, SlowPercentile, TraceCounts, TraceOptions,
};
pub use self::stage::{STAGES, Stage};

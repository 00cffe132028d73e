//! Conversions between the messages of `ebla.tablet` and the values of this crate.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{ServerId, Term};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::RowSet;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::time::Micros;
use ebla_proto::{convert, record, tablet};
use ebla_runtime::trace::{self, Sampling, SpanId, TraceContext, TraceId};

use crate::locate::messages::{CallFailure, FailureSource};
use crate::locate::{CachedTablet, LeaderHint};
use crate::transport::CallError;

/// The header of a request: the tablet as the sender knows it.
pub(crate) fn header(tablet: &CachedTablet) -> tablet::Header {
    let descriptor = &tablet.descriptor;
    tablet::Header {
        table: descriptor.table.get(),
        tablet: descriptor.tablet.get(),
        generation: descriptor.generation.get(),
        trace: trace::context().map(|context| sent_trace(&context)),
    }
}

/// The trace of the operation for which a request is sent.
fn sent_trace(context: &TraceContext) -> tablet::Trace {
    let (high, low) = (context.trace.get() >> 64, context.trace.get() & u128::from(u64::MAX));
    let half = |half: u128| u64::try_from(half).unwrap_or_default();
    tablet::Trace {
        trace_high: half(high),
        trace_low: half(low),
        span: context.span.get(),
        sampled: context.sampling == Sampling::Sampled,
    }
}

/// The trace that a request belongs to; `None` for one without, or with ids that are zero.
pub fn received_trace(header: Option<&tablet::Header>) -> Option<TraceContext> {
    let sent = header?.trace.as_ref()?;
    let sampling = if sent.sampled { Sampling::Sampled } else { Sampling::NotSampled };
    let trace = TraceId::new((u128::from(sent.trace_high) << 64) | u128::from(sent.trace_low))?;
    Some(TraceContext { trace, span: SpanId::new(sent.span)?, sampling })
}

/// The rows of a read request.
pub(crate) fn key_ranges(rows: &RowSet) -> Vec<record::KeyRange> {
    rows.ranges().iter().map(convert::key_range_to_proto).collect()
}

/// The idempotency token of a write.
pub(crate) fn token(token: &IdempotencyToken) -> tablet::IdempotencyToken {
    tablet::IdempotencyToken { token: token.token.clone(), started_micros: token.started.map(Micros::get) }
}

/// A required descriptor.
pub(crate) fn descriptor(descriptor: Option<record::TabletDescriptor>) -> Result<TabletDescriptor, Error> {
    let descriptor = descriptor.ok_or_else(|| Error::internal("the response has no descriptor"))?;
    convert::descriptor_from_proto(&descriptor)
}

/// A leader hint.
pub(crate) const fn leader_hint(hint: &record::LeaderHint) -> LeaderHint {
    LeaderHint { server: ServerId::new(hint.server), term: Term::new(hint.term) }
}

/// The result of one row of a write.
pub(crate) fn row_result(result: tablet::RowResult) -> Result<(), Error> {
    match result.error {
        None => Ok(()),
        Some(error) => Err(reason_error(&error.reason, error.message)),
    }
}

/// The error of one row: a response of the server, without hints.
pub(crate) fn server_error(error: Error) -> CallError {
    let detail = tablet::TabletError { reason: error.reason.name().to_owned(), ..Default::default() };
    CallError::new(error, Some(detail))
}

/// The error of a call on a stream.
pub(crate) fn call_error(error: tablet::CallError) -> CallError {
    CallError::new(reason_error(&error.reason, error.message), error.detail)
}

/// An unknown reason (of a newer release) becomes an internal error.
fn reason_error(reason: &str, message: String) -> Error {
    Error::new(Reason::from_name(reason).unwrap_or(Reason::Internal), message)
}

/// The tablet that responded does not hold the key any more.
pub(crate) fn wrong_tablet(current: &TabletDescriptor) -> CallError {
    let detail = tablet::TabletError {
        reason: Reason::WrongTablet.name().to_owned(),
        descriptors: vec![convert::descriptor_to_proto(current)],
        ..Default::default()
    };
    CallError::new(Error::new(Reason::WrongTablet, "the tablet no longer holds the key"), Some(detail))
}

/// A failed call for the resolver. `took`: the time until it failed. Invalid descriptors are skipped: they are hints.
pub(crate) fn call_failure(error: &CallError, took: Duration) -> CallFailure {
    let detail = error.detail.as_deref();
    let descriptors = detail.map(|detail| detail.descriptors.as_slice()).unwrap_or_default();
    CallFailure {
        error: error.error.clone(),
        source: failure_source(error, took),
        descriptors: descriptors
            .iter()
            .filter_map(|one| convert::descriptor_from_proto(one).ok())
            .map(Arc::new)
            .collect(),
        leader: detail.and_then(|detail| detail.leader.as_ref()).map(leader_hint),
    }
}

/// A connection that fails within this time counts as disconnected; a later failure counts as a timeout.
const FAST_FAILURE: Duration = Duration::from_millis(300);

/// Where a failure comes from. Without a detail, only a reason that a connection never produces proves a response.
fn failure_source(error: &CallError, took: Duration) -> FailureSource {
    let is_connection_reason = matches!(
        error.error.reason,
        Reason::Unavailable | Reason::OutcomeUnknown | Reason::Deadline | Reason::Cancelled | Reason::Internal
    );
    if error.detail.is_some() || !is_connection_reason {
        FailureSource::Response
    } else if took < FAST_FAILURE {
        FailureSource::Disconnected
    } else {
        FailureSource::Timeout
    }
}

/// The delay that the server requested.
pub(crate) fn retry_after(error: &CallError) -> Option<Duration> {
    error.detail.as_ref().and_then(|detail| detail.retry_after_micros).map(Duration::from_micros)
}

//! Between the messages of `ebla.tablet` and what this crate decides with.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::RowSet;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::time::Micros;
use ebla_proto::{convert, record, tablet};

use crate::locate::resolver::{Refusal, Voice};
use crate::locate::{LeaderHint, Located};
use crate::transport::CallError;

/// Which tablet a request is for, as the sender knows it.
pub(crate) fn header(located: &Located) -> tablet::Header {
    let descriptor = &located.descriptor;
    tablet::Header {
        table: descriptor.table.get(),
        tablet: descriptor.tablet.get(),
        generation: descriptor.generation.get(),
    }
}

/// Rows for a read request.
pub(crate) fn key_ranges(rows: &RowSet) -> Vec<record::KeyRange> {
    rows.ranges().iter().map(convert::key_range_to_proto).collect()
}

/// A caller's own name for a write.
pub(crate) fn token(token: &IdempotencyToken) -> tablet::IdempotencyToken {
    tablet::IdempotencyToken { token: token.token.clone(), started_micros: token.started.map(Micros::get) }
}

/// A descriptor that must be there.
pub(crate) fn descriptor(descriptor: Option<record::TabletDescriptor>) -> Result<TabletDescriptor, Error> {
    let descriptor = descriptor.ok_or_else(|| Error::internal("the answer lacks its descriptor"))?;
    convert::descriptor_from_proto(&descriptor)
}

/// A leader hint from the wire.
pub(crate) const fn leader_hint(hint: &record::LeaderHint) -> LeaderHint {
    LeaderHint { server: ServerId::new(hint.server), term: hint.term }
}

/// The outcome of one row of a write.
pub(crate) fn row_result(result: tablet::RowResult) -> Result<(), Error> {
    match result.error {
        None => Ok(()),
        Some(error) => {
            // A reason of a newer release is an internal error rather than a guess.
            let reason = Reason::from_name(&error.reason).unwrap_or(Reason::Internal);
            Err(Error::new(reason, error.message))
        }
    }
}

/// An error that a server gave for one row: it spoke, though it has no more to say.
pub(crate) fn said(error: Error) -> CallError {
    let detail = tablet::TabletError { reason: error.reason.name().to_owned(), ..Default::default() };
    CallError::new(error, Some(detail))
}

/// The tablet that answered does not hold the key any more.
pub(crate) fn moved_on(now: &TabletDescriptor) -> CallError {
    let detail = tablet::TabletError {
        reason: Reason::WrongTablet.name().to_owned(),
        descriptors: vec![convert::descriptor_to_proto(now)],
        ..Default::default()
    };
    CallError::new(Error::new(Reason::WrongTablet, "the tablet has changed"), Some(detail))
}

/// What the resolver learns from a call that failed after `took`. Descriptors that cannot be read are left out: they are
/// hints.
pub(crate) fn refusal(error: &CallError, took: Duration) -> Refusal {
    let detail = error.detail.as_deref();
    let descriptors = detail.map(|detail| detail.descriptors.as_slice()).unwrap_or_default();
    Refusal {
        error: error.error.clone(),
        voice: voice(error, took),
        descriptors: descriptors
            .iter()
            .filter_map(|one| convert::descriptor_from_proto(one).ok())
            .map(Arc::new)
            .collect(),
        leader: detail.and_then(|detail| detail.leader.as_ref()).map(leader_hint),
    }
}

/// A connection that fails within this time may be tried again soon; longer, and nobody seems to be there.
const AT_ONCE: Duration = Duration::from_millis(300);

/// Who spoke. Without a detail only a reason that no connection makes up proves that it was the server.
fn voice(error: &CallError, took: Duration) -> Voice {
    let from_the_connection = matches!(
        error.error.reason,
        Reason::Unavailable | Reason::OutcomeUnknown | Reason::Deadline | Reason::Cancelled | Reason::Internal
    );
    if error.detail.is_some() || !from_the_connection {
        Voice::Server
    } else if took < AT_ONCE {
        Voice::Connection
    } else {
        Voice::Silence
    }
}

/// How long the server asked to wait.
pub(crate) fn retry_after(error: &CallError) -> Option<Duration> {
    error.detail.as_ref().and_then(|detail| detail.retry_after_micros).map(Duration::from_micros)
}

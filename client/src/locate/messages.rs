//! The requests and responses of lookups, between the resolver and the shell that does the IO.

use std::sync::Arc;

use ebla_model::error::Error;
use ebla_model::id::ServerId;
use ebla_model::key::KeyRange;
use ebla_model::metadata::TabletDescriptor;

use super::{CachedTablet, Hop, LeaderHint};

/// What the caller must do for a lookup.
#[derive(Debug)]
pub enum LookupEffect {
    /// Fetch the location of the root tablet; the response is [`LookupResponse::Root`].
    FetchRoot,
    /// Read rows of a METADATA tablet; the response is [`LookupResponse::Rows`] or [`LookupResponse::Failed`].
    Read(MetadataRead),
    /// The lookup has ended. If it is `Ok`, the position is in the cache.
    Done(Result<(), Error>, Vec<Hop>),
}

/// A read of METADATA rows.
#[derive(Clone, Debug)]
pub struct MetadataRead {
    /// The METADATA tablet to read.
    pub tablet: CachedTablet,
    /// The server to send the read to.
    pub server: ServerId,
    /// The range of rows. It begins in the tablet; the server continues in the next tablets of METADATA.
    pub rows: KeyRange,
    /// The maximum number of rows.
    pub rows_max: u64,
    /// Whether a replica that does not lead the tablet may serve the read.
    pub any_replica: bool,
}

/// The location of a tablet as METADATA lists it.
#[derive(Clone, Debug)]
pub struct TabletLocation {
    /// The descriptor.
    pub descriptor: Arc<TabletDescriptor>,
    /// The leader, if one is recorded.
    pub leader: Option<LeaderHint>,
}

/// A failed call to a tablet, with the hints of the server that rejected it.
#[derive(Clone, Debug)]
pub struct CallFailure {
    /// The error.
    pub error: Error,
    /// Where the failure comes from.
    pub source: FailureSource,
    /// The tablets as the server knows them.
    pub descriptors: Vec<Arc<TabletDescriptor>>,
    /// The leader, as far as the server knows.
    pub leader: Option<LeaderHint>,
}

/// Where a [`CallFailure`] comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureSource {
    /// The server responded with an error.
    Response,
    /// The connection failed at once: another attempt is cheap.
    Disconnected,
    /// No response arrived in time: the server is skipped for a while.
    Timeout,
}

/// The response to a request of a lookup.
#[derive(Debug)]
pub enum LookupResponse {
    /// The location of the root tablet.
    Root(Result<Arc<TabletDescriptor>, Error>),
    /// Rows of METADATA, in order; fewer than requested means that the tablet has no more.
    Rows(Vec<TabletLocation>),
    /// The read failed.
    Failed(CallFailure),
}

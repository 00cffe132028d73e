//! A lookup in progress: its requests so far, and the steps that need no cache.

use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{Generation, LogId, ServerId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;

use super::messages::{LookupEffect, MetadataRead};
use super::{Hop, Level, Position, Source};

/// Requests of one lookup before it fails: replicas that redirect to each other must not keep it running.
const REQUESTS_MAX: u32 = 24;

/// The version of a descriptor.
pub(super) type Version = (TabletId, Generation, LogId);

/// A lookup in progress.
#[derive(Debug)]
pub(super) struct PendingLookup {
    pub(super) position: Position,
    /// Where to continue in METADATA after a METADATA tablet without a matching row: the row is in the next one.
    pub(super) cursor: Option<RowKey>,
    pub(super) request: Option<PendingRequest>,
    /// Servers that were tried for the current METADATA tablet.
    pub(super) tried: Vec<ServerId>,
    /// The servers that responded but do not lead, with their errors; the last error becomes the final one.
    pub(super) followers: Vec<(ServerId, Error)>,
    /// Why the last read of METADATA failed.
    pub(super) last_failure: Option<Error>,
    /// Descriptors that a server rejected during this lookup.
    pub(super) rejected: Vec<Version>,
    /// Servers without a replica of a tablet, although this descriptor lists them, which knew no other tablet there either: the descriptor may be
    /// stale, or another server has the address now. The other members are tried when the descriptor comes back.
    pub(super) absent: Vec<(Version, ServerId)>,
    pub(super) hops: Vec<Hop>,
    /// Round trips and time since the last level was found.
    pub(super) round_trips: u32,
    pub(super) took: Duration,
    pub(super) requests: u32,
}

/// The request in progress.
#[derive(Debug)]
pub(super) enum PendingRequest {
    Root,
    Read { read: Box<MetadataRead>, position: Position },
}

impl PendingLookup {
    pub(super) fn new(position: Position) -> Self {
        Self {
            position,
            cursor: None,
            request: None,
            tried: Vec::new(),
            followers: Vec::new(),
            last_failure: None,
            rejected: Vec::new(),
            absent: Vec::new(),
            hops: Vec::new(),
            round_trips: 0,
            took: Duration::ZERO,
            requests: 0,
        }
    }

    /// Whether a server rejected this descriptor, or a newer one of its tablet, during this lookup, or none of its servers has a replica.
    pub(super) fn has_rejected(&self, descriptor: &TabletDescriptor) -> bool {
        let (tablet, generation, log_id) = version(descriptor);
        let absent = self.absent_from(descriptor);
        self.rejected.iter().any(|known| known.0 == tablet && (generation, log_id) <= (known.1, known.2))
            || descriptor.membership.replicas().all(|replica| absent.contains(&replica.server))
    }

    /// The servers of this descriptor that have no replica of its tablet.
    pub(super) fn absent_from(&self, descriptor: &TabletDescriptor) -> Vec<ServerId> {
        let version = version(descriptor);
        self.absent.iter().filter(|(known, _)| *known == version).map(|(_, server)| *server).collect()
    }

    /// Records that a level was found, with the cost since the previous one.
    pub(super) fn add_hop(&mut self, level: Level, source: Source, found: &TabletDescriptor) {
        let (tablet, group) = (found.tablet, found.group);
        let hop = Hop { level, source, tablet, group, round_trips: self.round_trips, took: self.took };
        self.hops.push(hop);
        self.round_trips = 0;
        self.took = Duration::ZERO;
    }

    /// Records that a METADATA tablet was in the cache.
    pub(super) fn add_cached_hop(&mut self, descriptor: &TabletDescriptor) {
        if self.hops.iter().any(|hop| hop.tablet == descriptor.tablet) {
            return;
        }
        let level = if descriptor.tablet == TabletId::ROOT { Level::Root } else { Level::Metadata };
        let (tablet, group) = (descriptor.tablet, descriptor.group);
        self.hops.push(Hop { level, source: Source::Cache, tablet, group, round_trips: 0, took: Duration::ZERO });
    }
}

pub(super) fn version(descriptor: &TabletDescriptor) -> Version {
    let (generation, log_id) = descriptor.fence();
    (descriptor.tablet, generation, log_id)
}

pub(super) fn done(lookup: PendingLookup, result: Result<(), Error>) -> (PendingLookup, LookupEffect) {
    let mut lookup = lookup;
    let hops = std::mem::take(&mut lookup.hops);
    (lookup, LookupEffect::Done(result, hops))
}

pub(super) fn fetch_root(mut lookup: PendingLookup) -> (PendingLookup, LookupEffect) {
    if let Err(error) = count_request(&mut lookup) {
        return done(lookup, Err(error));
    }
    lookup.request = Some(PendingRequest::Root);
    (lookup, LookupEffect::FetchRoot)
}

/// Reads from a replica that responds but does not lead: its rows are only slightly stale. `otherwise`: the error when
/// all such replicas were tried.
pub(super) fn read_any_replica(
    mut lookup: PendingLookup,
    read: MetadataRead,
    position: Position,
    otherwise: Error,
) -> (PendingLookup, LookupEffect) {
    match lookup.followers.pop().filter(|_| count_request(&mut lookup).is_ok()) {
        Some((server, _error)) => send_read(lookup, MetadataRead { server, any_replica: true, ..read }, position),
        None => done(lookup, Err(otherwise.context("read METADATA"))),
    }
}

pub(super) fn send_read(
    mut lookup: PendingLookup,
    read: MetadataRead,
    position: Position,
) -> (PendingLookup, LookupEffect) {
    lookup.request = Some(PendingRequest::Read { read: Box::new(read.clone()), position });
    (lookup, LookupEffect::Read(read))
}

pub(super) fn count_request(lookup: &mut PendingLookup) -> Result<(), Error> {
    lookup.requests += 1;
    if lookup.requests > REQUESTS_MAX {
        let message = format!("tablet lookup exceeded {REQUESTS_MAX} requests (conflicting redirects)");
        return Err(Error::new(Reason::NoLeader, message));
    }
    Ok(())
}

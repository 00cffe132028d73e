//! The resolver: single-flight lookups of tablets, as a state machine without IO.
//!
//! A lookup searches for one position. It has one request in progress at a time; [`Resolver::on_response`] takes the
//! response and returns the next request, until the lookup is done. Each step consults the cache again and takes the
//! cheapest level first:
//!
//! 1. the tablet is cached: done;
//! 2. the METADATA tablet that lists it is cached: read up to a hundred rows from there on, adjacent tablets included;
//! 3. the root tablet is cached: read the row of that METADATA tablet;
//! 4. fetch the location of the root tablet.
//!
//! A wrong guess needs no rule of its own: a descriptor that a server rejected is removed from the cache, and the next
//! step goes one level up. A descriptor that comes back unchanged after it was rejected ends the lookup with an error
//! that asks the caller to wait: METADATA is written after the change, and another read at once would not help.
//!
//! A METADATA tablet may have no row at the position or after it: then the row is in the next one. The server continues there by itself, so
//! this costs nothing; a server of an earlier release does not, and the lookup sends another request.
//!
//! METADATA's tablets share a group. When none of its replicas responds, step 4 follows at once.
//!
//! A METADATA tablet without a leader is read from any replica that responds: descriptors are hints, which the tablet
//! itself confirms or corrects, so lookups do not wait for elections of METADATA.
//!
//! Single-flight lookup: each table has at most one lookup in progress. Other callers that want a position in the table
//! wait for it, and usually find theirs among the adjacent tablets. Lookups do not back off; the caller does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{self, TabletDescriptor};

use super::cache::Cache;
use super::messages::{CallFailure, FailureSource, LookupEffect, LookupResponse, MetadataRead, TabletLocation};
use super::pending::{
    PendingLookup, PendingRequest, count_request, done, fetch_root, read_any_replica, send_read, version,
};
use super::{CachedTablet, Level, Position, Probe, Source};
use crate::retry_state::ends_attempt_only;

/// Rows of METADATA that one read returns: the requested tablet and those adjacent to it.
pub const PREFETCH_ROWS: u64 = 100;

/// Identifies a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LookupId(u64);

/// How the search for a position begins.
#[derive(Debug)]
pub enum LookupStart {
    /// The tablet is cached.
    Cached(CachedTablet),
    /// A lookup for this table is in progress: wait until it ends, then try again.
    Join(LookupId),
    /// A lookup has started: carry out its first effect.
    Start(LookupId, LookupEffect),
}

/// The METADATA rows that a lookup reads next.
struct NextRows {
    tablet: CachedTablet,
    rows: KeyRange,
    position: Position,
}

/// What a lookup reads next.
enum NextRead {
    Root,
    Rows(Box<NextRows>),
}

impl NextRead {
    fn rows(tablet: CachedTablet, rows: KeyRange, position: Position) -> Self {
        Self::Rows(Box::new(NextRows { tablet, rows, position }))
    }
}

/// The lookups of one client and its location cache.
#[derive(Debug, Default)]
pub struct Resolver {
    cache: Cache,
    pending: BTreeMap<LookupId, PendingLookup>,
    pending_by_table: BTreeMap<TableId, LookupId>,
    lookups_started: u64,
    /// The voter to begin with, so that clients without a leader hint spread over the voters.
    round_robin_start: usize,
}

impl Resolver {
    /// A resolver with an empty cache. `round_robin_start`: any number, such as a random one.
    pub fn new(round_robin_start: usize) -> Self {
        Self { round_robin_start, ..Self::default() }
    }

    /// The location cache.
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Searches the cache for a position; if it is absent, joins or starts a lookup.
    pub fn find_or_start(&mut self, position: &Position) -> LookupStart {
        if let Some(tablet) = self.cache.find(position) {
            return LookupStart::Cached(tablet);
        }
        if let Some(lookup) = self.pending_by_table.get(&position.table) {
            return LookupStart::Join(*lookup);
        }
        let id = LookupId(self.lookups_started);
        self.lookups_started = self.lookups_started.wrapping_add(1);
        self.pending_by_table.insert(position.table, id);
        let (lookup, effect) = self.advance(PendingLookup::new(position.clone()));
        self.store(id, lookup, &effect);
        LookupStart::Start(id, effect)
    }

    /// Takes the response to a lookup's request and returns what to do next. `took`: how long the request took.
    pub fn on_response(&mut self, id: LookupId, response: LookupResponse, took: Duration) -> LookupEffect {
        let Some(mut lookup) = self.pending.remove(&id) else {
            return LookupEffect::Done(Err(Error::internal("the lookup has ended")), Vec::new());
        };
        lookup.round_trips += 1;
        lookup.took += took;
        let (lookup, effect) = match (lookup.request.take(), response) {
            (Some(PendingRequest::Root), LookupResponse::Root(root)) => self.on_root(lookup, root),
            (Some(PendingRequest::Read { read, position }), LookupResponse::Rows(rows)) => {
                self.on_rows(lookup, &read, &position, &rows)
            }
            (Some(PendingRequest::Read { read, position }), LookupResponse::Failed(failure)) => {
                self.on_failed_read(lookup, *read, position, failure)
            }
            _mismatch => done(lookup, Err(Error::internal("the response does not match the request"))),
        };
        self.store(id, lookup, &effect);
        effect
    }

    /// Ends a lookup that has lost its task.
    pub fn abandon(&mut self, id: LookupId) {
        if let Some(lookup) = self.pending.remove(&id) {
            self.pending_by_table.remove(&lookup.position.table);
        }
    }

    /// A server served a request for a tablet as its leader.
    pub fn record_success(&mut self, server: ServerId, tablet: &CachedTablet) {
        if tablet.leader.is_none_or(|leader| leader.server != server) {
            self.cache.confirm_leader(&tablet.descriptor, server);
        }
    }

    /// A request for a tablet failed: adds the server's hints to the cache. A descriptor that the server rejected is
    /// removed, so that the next lookup finds its replacement, or reads METADATA.
    pub fn record_failure(&mut self, server: ServerId, tablet: &CachedTablet, failure: &CallFailure) {
        for descriptor in &failure.descriptors {
            self.cache.insert(descriptor, None);
        }
        if failure.source == FailureSource::Timeout
            || matches!(failure.error.reason, Reason::NotLeader | Reason::NoLeader)
        {
            self.cache.reject_leader(&tablet.descriptor, server);
        }
        if let Some(leader) = failure.leader {
            let newer = failure.descriptors.iter().find(|descriptor| descriptor.tablet == tablet.descriptor.tablet);
            self.cache.set_leader(newer.unwrap_or(&tablet.descriptor), leader);
            if newer.is_none() && tablet.is_superseded_by(leader) {
                self.cache.remove_with_leader(&tablet.descriptor);
            }
        }
        if failure.error.kind == ErrorKind::RefreshAndRetry {
            self.cache.remove(&tablet.descriptor);
        }
    }

    /// Removes a tablet from the cache: none of its known replicas is reachable, or none has known a leader for long.
    /// The tablet may have moved, so the next lookup reads METADATA.
    pub fn invalidate(&mut self, tablet: &CachedTablet) {
        self.cache.remove_with_leader(&tablet.descriptor);
    }

    fn store(&mut self, id: LookupId, lookup: PendingLookup, effect: &LookupEffect) {
        if matches!(effect, LookupEffect::Done(..)) {
            self.pending_by_table.remove(&lookup.position.table);
        } else {
            self.pending.insert(id, lookup);
        }
    }

    /// The next request; the end if the cache has the position.
    fn advance(&self, mut lookup: PendingLookup) -> (PendingLookup, LookupEffect) {
        if self.cache.find(&lookup.position).is_some() {
            return done(lookup, Ok(()));
        }
        lookup.tried.clear();
        lookup.followers.clear();
        match self.next_read(&lookup) {
            NextRead::Root => fetch_root(lookup),
            NextRead::Rows(next) => {
                lookup.add_cached_hop(&next.tablet.descriptor);
                self.read_rows(lookup, next.tablet, next.rows, next.position)
            }
        }
    }

    /// The cheapest level with a cached tablet.
    fn next_read(&self, lookup: &PendingLookup) -> NextRead {
        let Some(rows) = listing_rows(&lookup.position, lookup.cursor.as_ref()) else { return NextRead::Root };
        let listing = Position::at(TableId::METADATA, rows.start().clone());
        if let Some(tablet) = self.cache.find(&listing) {
            return NextRead::rows(tablet, rows, lookup.position.clone());
        }
        let Some(rows) = listing_rows(&listing, None) else { return NextRead::Root };
        match self.cache.find(&Position::at(TableId::METADATA, rows.start().clone())) {
            Some(root) => NextRead::rows(root, rows, listing),
            None => NextRead::Root,
        }
    }

    fn read_rows(
        &self,
        mut lookup: PendingLookup,
        tablet: CachedTablet,
        rows: KeyRange,
        position: Position,
    ) -> (PendingLookup, LookupEffect) {
        let mut tried = lookup.absent_from(&tablet.descriptor);
        tried.extend(&lookup.tried);
        let Some(server) = tablet.choose_server(&tried, self.round_robin_start) else {
            return done(lookup, Err(Error::new(Reason::NoLeader, "no replica of METADATA responds")));
        };
        if let Err(error) = count_request(&mut lookup) {
            return done(lookup, Err(error));
        }
        let read = MetadataRead { tablet, server, rows, rows_max: PREFETCH_ROWS, any_replica: false };
        lookup.tried.push(server);
        send_read(lookup, read, position)
    }

    fn on_root(
        &mut self,
        mut lookup: PendingLookup,
        root: Result<Arc<TabletDescriptor>, Error>,
    ) -> (PendingLookup, LookupEffect) {
        match root {
            Err(error) => done(lookup, Err(error)),
            Ok(root) if lookup.has_rejected(&root) => {
                let error = lookup.last_failure.take().map_or_else(metadata_behind, no_response);
                done(lookup, Err(error))
            }
            Ok(root) => {
                self.cache.insert(&root, None);
                lookup.add_hop(Level::Root, Source::Chubby, &root);
                if self.cache.find(&Position::at(TableId::METADATA, root.range.start().clone())).is_none() {
                    return done(lookup, Err(Error::internal("the root tablet has an invalid range")));
                }
                self.advance(lookup)
            }
        }
    }

    fn on_rows(
        &mut self,
        mut lookup: PendingLookup,
        read: &MetadataRead,
        position: &Position,
        rows: &[TabletLocation],
    ) -> (PendingLookup, LookupEffect) {
        if !read.any_replica {
            self.record_success(read.server, &read.tablet);
        }
        let stale = rows.iter().filter(|row| lookup.has_rejected(&row.descriptor)).count();
        for row in rows.iter().filter(|row| !lookup.has_rejected(&row.descriptor)) {
            self.cache.insert(&row.descriptor, row.leader);
        }
        if let Some(found) = self.cache.find(position) {
            let source = match read.tablet.descriptor.tablet {
                TabletId::ROOT => Source::RootTablet,
                _other => Source::MetadataTablet,
            };
            let level = if position.table == TableId::METADATA { Level::Metadata } else { Level::Tablet };
            lookup.add_hop(level, source, &found.descriptor);
            return self.advance(lookup);
        }
        match (rows.is_empty(), next_tablet_start(read)) {
            // A replica that does not lead may not have applied the row yet.
            (true, _) if read.any_replica => done(lookup, Err(metadata_behind())),
            (true, Some(next)) if *position == lookup.position => {
                lookup.cursor = Some(next);
                self.advance(lookup)
            }
            (true, _end) => done(lookup, Err(no_such_table(position))),
            (false, _) if stale > 0 => done(lookup, Err(metadata_behind())),
            (false, _) => done(lookup, Err(Error::new(Reason::NoLeader, "METADATA lists no tablet for the key"))),
        }
    }

    fn on_failed_read(
        &mut self,
        mut lookup: PendingLookup,
        read: MetadataRead,
        position: Position,
        mut failure: CallFailure,
    ) -> (PendingLookup, LookupEffect) {
        if ends_attempt_only(failure.error.reason) {
            failure.error = Error::new(Reason::Unavailable, failure.error.message);
        }
        if matches!(failure.error.kind, ErrorKind::FixRequest | ErrorKind::GiveUp)
            && failure.source == FailureSource::Response
        {
            return done(lookup, Err(failure.error.context("read METADATA")));
        }
        if read.any_replica {
            return read_any_replica(lookup, read, position, failure.error);
        }
        self.record_failure(read.server, &read.tablet, &failure);
        lookup.last_failure = Some(failure.error.clone());
        let here = Position::at(TableId::METADATA, read.rows.start().clone());
        let known =
            self.cache.find(&here).filter(|known| version(&known.descriptor) == version(&read.tablet.descriptor));
        let Some(known) = known else {
            // The descriptor was removed or replaced.
            let version = version(&read.tablet.descriptor);
            if failure.error.reason == Reason::WrongTablet && failure.descriptors.is_empty() {
                lookup.absent.push((version, read.server));
            } else {
                lookup.rejected.push(version);
            }
            return self.advance(lookup);
        };
        if failure.source == FailureSource::Response {
            lookup.followers.push((read.server, failure.error));
        }
        if known.choose_server(&lookup.tried, self.round_robin_start).is_some() {
            return self.read_rows(lookup, known, read.rows, position);
        }
        // The tablet has no leader now.
        if let Some((_server, error)) = lookup.followers.last().cloned() {
            return read_any_replica(lookup, MetadataRead { tablet: known, ..read }, position, error);
        }
        self.reject_with_root(&mut lookup, &known.descriptor);
        self.advance(lookup)
    }

    /// No replica of a METADATA tablet responds. If the root tablet is in the same group, no replica of it responds
    /// either.
    fn reject_with_root(&mut self, lookup: &mut PendingLookup, descriptor: &TabletDescriptor) {
        let root = self.cache.find(&Position::at(TableId::METADATA, metadata::root_range().start().clone()));
        let root = root.map(|root| root.descriptor).filter(|root| root.group == descriptor.group);
        for rejected in root.as_deref().into_iter().chain([descriptor]) {
            self.cache.remove(rejected);
            lookup.rejected.push(version(rejected));
        }
    }
}

/// The rows of METADATA that list the tablet at `position` and those after it; `None` for the root tablet, whose
/// location is in Chubby.
fn listing_rows(position: &Position, cursor: Option<&RowKey>) -> Option<KeyRange> {
    if position.table == TableId::METADATA && position.probe.is_in(&metadata::root_range()) {
        return None;
    }
    let table = metadata::table_range(position.table);
    let first = match &position.probe {
        Probe::At(key) => metadata::lookup_key(position.table, key).successor(),
        Probe::Below(end) => metadata::row_key(position.table, end.as_ref()),
    };
    let first = cursor.map_or(first.clone(), |cursor| cursor.clone().max(first));
    KeyRange::new(first, table.end().cloned())
}

/// The start of the next METADATA tablet, if the range of the read reaches into it and the server has not continued there.
fn next_tablet_start(read: &MetadataRead) -> Option<RowKey> {
    let next = read.tablet.range.end()?;
    read.rows.contains(next.as_bytes()).then(|| next.clone())
}

fn metadata_behind() -> Error {
    Error::new(Reason::NoLeader, "METADATA is stale: it still lists a descriptor that a server rejected")
}

/// `last`: why the last replica that was tried could not be read.
fn no_response(last: Error) -> Error {
    Error::new(Reason::NoLeader, format!("no replica of METADATA can be read; last error: {}", last.message))
}

fn no_such_table(position: &Position) -> Error {
    Error::new(Reason::NotFoundTable, format!("METADATA lists no tablet of table {}", position.table))
}

//! The single-flight lookup: the shell that carries out the effects of [`crate::locate::resolver`].
//!
//! Each lookup is a task of its own, so a caller that goes away does not end a lookup that others wait for. Each
//! request has a timeout; the lookup as a whole ends because the resolver bounds the number of requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_model::key::RowSet;
use ebla_proto::tablet;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::deadline::Deadline;
use crate::locate::messages::{CallFailure, LookupEffect, LookupResponse, MetadataRead, TabletLocation};
use crate::locate::resolver::{LookupId, LookupStart, Resolver};
use crate::locate::{CachedTablet, Hop, Level, Position, Source};
use crate::lookup_counts::LookupCounts;
use crate::metadata;
use crate::options::ClusterOptions;
use crate::transport::{CallError, Target, with_timeout};
use crate::wire;

/// The timeout of one request of a lookup; then the next server is tried.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of a tablet lookup, with its cost.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The tablet.
    pub tablet: CachedTablet,
    /// The hops, level by level; a single hop from the cache if no request was necessary.
    pub trace: Vec<Hop>,
}

/// How a lookup ended.
#[derive(Clone, Debug)]
struct LookupResult {
    result: Result<(), Error>,
    hops: Vec<Hop>,
}

/// A lookup in progress, as its callers see it: empty until the result is there.
type PendingLookup = watch::Receiver<Option<LookupResult>>;

#[derive(Debug)]
struct LookupsState {
    resolver: Resolver,
    pending: BTreeMap<LookupId, PendingLookup>,
    counts: LookupCounts,
}

/// The resolver and the lookups in progress.
#[derive(Debug)]
pub(crate) struct Lookups {
    options: ClusterOptions,
    /// Guards the resolver: sections are pure and short.
    state: Mutex<LookupsState>,
    round_robin_start: usize,
}

impl Lookups {
    pub(crate) fn new(options: ClusterOptions, round_robin_start: usize) -> Self {
        // Reads of METADATA begin with the first replica, which leads a fresh group. Data tablets have leader hints in
        // METADATA; without a hint the requests are spread.
        let state =
            LookupsState { resolver: Resolver::new(0), pending: BTreeMap::new(), counts: LookupCounts::default() };
        Self { options, state: Mutex::new(state), round_robin_start }
    }

    /// The voter to begin with when no leader is known.
    pub(crate) const fn round_robin_start(&self) -> usize {
        self.round_robin_start
    }

    /// The lookups that have ended.
    pub(crate) fn counts(&self) -> LookupCounts {
        self.state.lock().counts.clone()
    }

    /// A server served a request as the leader of the tablet.
    pub(crate) fn record_success(&self, server: ServerId, tablet: &CachedTablet) {
        if tablet.leader.is_none_or(|leader| leader.server != server) {
            self.state.lock().resolver.record_success(server, tablet);
        }
    }

    /// A server responded with an error, or did not respond.
    pub(crate) fn record_failure(&self, server: ServerId, tablet: &CachedTablet, failure: &CallFailure) {
        self.state.lock().resolver.record_failure(server, tablet, failure);
    }

    /// None of the known replicas serves the tablet.
    pub(crate) fn invalidate(&self, tablet: &CachedTablet) {
        self.state.lock().resolver.invalidate(tablet);
    }

    fn finish(&self, id: LookupId) {
        let mut state = self.state.lock();
        state.resolver.abandon(id);
        state.pending.remove(&id);
    }
}

/// The task of a lookup; dropping it wakes the callers that wait.
struct LookupTask {
    lookups: Arc<Lookups>,
    id: LookupId,
    result: watch::Sender<Option<LookupResult>>,
}

impl Drop for LookupTask {
    fn drop(&mut self) {
        self.lookups.finish(self.id);
    }
}

impl Lookups {
    /// The tablet at `position`, if it is cached.
    pub(crate) fn find(&self, position: &Position) -> Option<CachedTablet> {
        self.state.lock().resolver.cache().find(position)
    }

    /// The tablet at `position`, looked up if necessary: one pass over the levels. After an error of a retryable kind
    /// the caller must back off.
    pub(crate) async fn locate(self: &Arc<Self>, position: &Position, deadline: Deadline) -> Result<Lookup, Error> {
        let mut trace = Vec::new();
        // A lookup of another caller may find other tablets of the table; the first lookup of our own finds this one.
        loop {
            let mut pending = match self.find_or_join(position) {
                FindOrJoin::Cached(tablet) => return Ok(completed(tablet, trace)),
                FindOrJoin::Pending(pending) => pending,
            };
            let result = tokio::time::timeout(
                deadline.remaining(&self.options.runtime.clock),
                pending.wait_for(Option::is_some),
            );
            let result = match result.await {
                Ok(Ok(result)) => result.clone(),
                Ok(Err(_closed)) => return Err(Error::new(Reason::Unavailable, "the tablet lookup was cancelled")),
                Err(_elapsed) => return Err(Error::new(Reason::Unavailable, "the tablet lookup timed out")),
            };
            if let Some(result) = result {
                result.result?;
                trace = result.hops;
            }
        }
    }

    fn find_or_join(self: &Arc<Self>, position: &Position) -> FindOrJoin {
        let mut state = self.state.lock();
        let (id, effect) = match state.resolver.find_or_start(position) {
            LookupStart::Cached(tablet) => return FindOrJoin::Cached(tablet),
            LookupStart::Join(id) => {
                if let Some(pending) = state.pending.get(&id) {
                    return FindOrJoin::Pending(pending.clone());
                }
                // Without its task a lookup would never end.
                state.resolver.abandon(id);
                drop(state);
                return self.find_or_join(position);
            }
            LookupStart::Start(id, effect) => (id, effect),
        };
        let (sender, pending) = watch::channel(None);
        state.pending.insert(id, pending.clone());
        drop(state);
        let task = LookupTask { lookups: Arc::clone(self), id, result: sender };
        self.options.runtime.tasks.spawn_until_stopped("lookup", run(task, effect));
        FindOrJoin::Pending(pending)
    }

    async fn carry_out(&self, effect: LookupEffect) -> Result<LookupResponse, LookupResult> {
        match effect {
            LookupEffect::FetchRoot => Ok(LookupResponse::Root(self.fetch_root().await)),
            LookupEffect::Read(read) => {
                let clock = &self.options.runtime.clock;
                let sent_at = clock.monotonic();
                Ok(match self.read_metadata(&read).await {
                    Ok(rows) => LookupResponse::Rows(rows),
                    Err(error) => {
                        let took = clock.monotonic().saturating_sub(sent_at);
                        LookupResponse::Failed(wire::call_failure(&error, took))
                    }
                })
            }
            LookupEffect::Done(result, hops) => Err(LookupResult { result, hops }),
        }
    }

    async fn fetch_root(&self) -> Result<Arc<ebla_model::metadata::TabletDescriptor>, Error> {
        let timed_out = |_elapsed| Error::new(Reason::Unavailable, "timed out locating the root tablet");
        let root = tokio::time::timeout(REQUEST_TIMEOUT.saturating_mul(2), self.options.directory.root())
            .await
            .map_err(timed_out)?;
        root.map(Arc::new)
    }

    async fn read_metadata(&self, read: &MetadataRead) -> Result<Vec<TabletLocation>, CallError> {
        let target = self.target(read.server).await?;
        let rows = RowSet::from_ranges([read.rows.clone()]);
        let request = tablet::ReadRequest {
            header: Some(wire::header(&read.tablet)),
            rows: wire::key_ranges(&rows),
            filter: Some(metadata::location_filter()),
            limit: read.rows_max,
            reversed: false,
            count_stats: false,
            any_replica: read.any_replica,
            // The rows may continue in the next tablet of METADATA.
            beyond_tablet: true,
            split_rows: false,
        };
        let collect = async {
            let mut stream = self.options.transport.read(&target, request, REQUEST_TIMEOUT).await?;
            let mut locations = Vec::new();
            while let Some(reply) = stream.next().await {
                let reply = reply?;
                locations.extend(metadata::decode_locations(reply.response)?);
                if reply.finished {
                    break;
                }
            }
            Ok(locations)
        };
        with_timeout(REQUEST_TIMEOUT, collect).await
    }

    async fn target(&self, server: ServerId) -> Result<Target, CallError> {
        if self.options.home == Some(server) {
            return Ok(Target { server, address: String::new() });
        }
        match self.options.directory.address(server).await {
            Some(address) => Ok(Target { server, address }),
            None => Err(Error::new(Reason::Unavailable, format!("server {server} has no known address")).into()),
        }
    }
}

enum FindOrJoin {
    Cached(CachedTablet),
    Pending(PendingLookup),
}

/// Runs a lookup until the resolver ends it.
async fn run(task: LookupTask, mut effect: LookupEffect) {
    let clock = task.lookups.options.runtime.clock.clone();
    let mut round_trips = 0;
    loop {
        let sent_at = clock.monotonic();
        match task.lookups.carry_out(effect).await {
            Ok(response) => {
                let took = clock.monotonic().saturating_sub(sent_at);
                round_trips += 1;
                effect = task.lookups.state.lock().resolver.on_response(task.id, response, took);
            }
            Err(result) => {
                let counts = &mut task.lookups.state.lock().counts;
                match &result.result {
                    Ok(()) => counts.record_found(round_trips),
                    Err(_failed) => counts.record_failed(),
                }
                // All callers may have gone.
                task.result.send_replace(Some(result));
                return;
            }
        }
    }
}

fn completed(tablet: CachedTablet, mut trace: Vec<Hop>) -> Lookup {
    let level = |hop: &Hop| hop.level == Level::Tablet || hop.tablet == tablet.descriptor.tablet;
    if !trace.iter().any(level) {
        trace.push(Hop {
            level: Level::Tablet,
            source: Source::Cache,
            tablet: tablet.descriptor.tablet,
            group: tablet.descriptor.group,
            round_trips: 0,
            took: Duration::ZERO,
        });
    }
    Lookup { tablet, trace }
}

//! [`Namespace`]: the handle of a program. The shell around [`crate::resolve`] and [`crate::cache`].

use std::sync::Arc;
use std::time::Duration;

use ebla_client::channel::Channels;
use ebla_mounttable_tree::messages::BEARER_HEADER;
use ebla_mounttable_tree::messages::DEVELOPMENT_HEADER;
use ebla_mounttable_tree::{Error, Reason, naming};
use ebla_runtime::Runtime;
use parking_lot::{Mutex, MutexGuard};
use tonic::metadata::{Ascii, MetadataValue};

use crate::cache::{Cache, CacheConfig, CacheLookup, Caching};
use crate::change::ChangeScope;
use crate::entry::{MountEntry, ObjectLocation};
use crate::recipients::Recipients;
use crate::resolve::{Goal, Resolution, ResolutionStep};
use crate::roots::{Roots, with_hint};
use crate::rpc::first_reply;
use crate::single_flight::SingleFlight;

/// The default timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The namespace, as one caller sees it. Cheap to clone; clones share roots, cache and connections.
#[derive(Clone, Debug)]
pub struct Namespace(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    pub(crate) channels: Channels,
    /// The header that identifies the caller.
    pub(crate) identity: Option<(&'static str, MetadataValue<Ascii>)>,
    pub(crate) timeout: Duration,
    pub(crate) change_scope: ChangeScope,
    /// Held for a copy.
    roots: Mutex<Roots>,
    /// Held for one operation.
    recipients: Mutex<Recipients>,
    /// Held for one operation.
    cache: Mutex<Cache>,
    /// Steps in flight.
    single_flight: SingleFlight,
}

/// The connections on which a token may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TokenConnections {
    /// Those with TLS.
    Encrypted,
    /// All.
    All,
}

/// Builds a [`Namespace`].
#[derive(Clone, Debug)]
pub struct Builder {
    runtime: Runtime,
    roots: Roots,
    identity: Option<(&'static str, String)>,
    token_servers: Roots,
    token_connections: TokenConnections,
    cache: CacheConfig,
    timeout: Duration,
    change_scope: ChangeScope,
}

impl Builder {
    /// Sets the roots of relative names.
    #[must_use]
    pub fn roots(self, roots: Roots) -> Self {
        Self { roots, ..self }
    }

    /// Sets the caller's names, separated by commas, for a server that believes its callers (for development).
    #[must_use]
    pub fn identity(self, names: impl Into<String>) -> Self {
        Self { identity: Some((DEVELOPMENT_HEADER, names.into())), ..self }
    }

    /// Sets the caller's token (JWT). It is sent to the servers that the caller names: the roots, the servers of rooted
    /// names, and those of [`Self::token_servers`]. To servers that a table reports the caller has no names. It needs TLS,
    /// unless [`Self::allow_plaintext_token`] was called. Rooted names that a table reported are not the caller's: a
    /// program that passes one on sends the token there.
    #[must_use]
    pub fn token(self, token: impl AsRef<str>) -> Self {
        Self { identity: Some((BEARER_HEADER, format!("Bearer {}", token.as_ref().trim()))), ..self }
    }

    /// Lets the token be sent on connections without TLS. Everybody on the network path can read it there, and use it.
    #[must_use]
    pub fn allow_plaintext_token(self) -> Self {
        Self { token_connections: TokenConnections::All, ..self }
    }

    /// Sets further servers that receive the token, such as mounted tables, as rooted addresses.
    #[must_use]
    pub fn token_servers(self, servers: Roots) -> Self {
        Self { token_servers: servers, ..self }
    }

    /// Configures the cache.
    #[must_use]
    pub fn cache(self, cache: CacheConfig) -> Self {
        Self { cache, ..self }
    }

    /// Sets the tables that deletions and changes of permissions apply to.
    #[must_use]
    pub fn change_scope(self, scope: ChangeScope) -> Self {
        Self { change_scope: scope, ..self }
    }

    /// Sets the timeout of one call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Creates the handle. Connects to no server yet.
    ///
    /// # Errors
    /// `BAD_NAME` when the identity or the token is not a valid header; `BAD_REQUEST` when there is a token, the connections have no TLS, and
    /// [`Self::allow_plaintext_token`] was not called.
    pub fn build(self) -> Result<Namespace, Error> {
        let has_token = self.identity.as_ref().is_some_and(|(header, _text)| *header == BEARER_HEADER);
        let needs_tls = has_token && self.token_connections == TokenConnections::Encrypted;
        if needs_tls && self.runtime.net.tls().is_none() {
            let message = "the token is not sent, because others can read it on a connection without TLS: use TLS (--tls-ca), or \
                           permit it (--insecure-token; for --publish-to: --publish-insecure-token)";
            return Err(Error::new(Reason::BadRequest, message));
        }
        let bad =
            |_| Error::new(Reason::BadName, "the identity is not a valid header: it must be ASCII text on one line");
        let header = |(header, text): (&'static str, String)| {
            let mut value = text.parse::<MetadataValue<Ascii>>().map_err(bad)?;
            value.set_sensitive(header == BEARER_HEADER);
            Ok((header, value))
        };
        let identity = self.identity.map(header).transpose()?;
        Ok(Namespace(Arc::new(Inner {
            channels: Channels::new(&self.runtime),
            runtime: self.runtime,
            identity,
            timeout: self.timeout,
            change_scope: self.change_scope,
            recipients: Mutex::new(Recipients::new(&self.roots, &self.token_servers)),
            roots: Mutex::new(self.roots),
            cache: Mutex::new(Cache::new(self.cache)),
            single_flight: SingleFlight::default(),
        })))
    }
}

/// The source of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A mount table.
    Table,
    /// The cache.
    Cache,
    /// An expired cache entry, because no table could be reached.
    Stale,
}

/// One step of a resolution.
#[derive(Clone, Debug)]
pub struct Hop {
    /// The names of the object, one at each of the equivalent servers.
    pub asked: Vec<String>,
    /// The source of the answer.
    pub source: Source,
    /// The duration.
    pub took: Duration,
    /// The answer.
    pub answer: Result<MountEntry, Error>,
}

/// A resolution with all steps.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The steps, in order.
    pub hops: Vec<Hop>,
    /// The result.
    pub outcome: Result<MountEntry, Error>,
}

impl Namespace {
    /// A builder for a namespace without roots, for a caller without names.
    pub fn builder(runtime: Runtime) -> Builder {
        Builder {
            runtime,
            roots: Roots::default(),
            identity: None,
            token_servers: Roots::default(),
            token_connections: TokenConnections::Encrypted,
            cache: CacheConfig::default(),
            timeout: TIMEOUT,
            change_scope: ChangeScope::default(),
        }
    }

    /// Resolves a name, across as many mount tables as it takes.
    ///
    /// # Errors
    /// `NO_SUCH_NAME`, also for a relative name without roots; `DEPTH_EXCEEDED` after [`crate::resolve::STEPS_MAX`]
    /// tables; `UNAVAILABLE` when no server of a table can be reached; errors of a table, such as `NO_ACCESS`.
    pub async fn resolve(&self, name: &str) -> Result<MountEntry, Error> {
        self.trace(name).await.outcome
    }

    /// Like [`Self::resolve`], and returns all steps.
    pub async fn trace(&self, name: &str) -> Trace {
        let mut hops = Vec::new();
        let outcome = match self.entry(name) {
            Ok(entry) => self.follow(Goal::Object, entry, &mut hops).await,
            Err(error) if error.reason == Reason::NoMountTable => Err(Error::new(Reason::NoSuchName, error.message)),
            Err(error) => Err(error),
        };
        Trace { hops, outcome: outcome.map_err(|error| with_hint(name, error)) }
    }

    /// The mount table that holds a name, or would hold it. Mounts go there, and other changes with [`ChangeScope::MountedTables`].
    ///
    /// # Errors
    /// As [`Self::resolve`]; `NO_MOUNT_TABLE` for a relative name without roots.
    pub async fn resolve_to_mount_table(&self, name: &str) -> Result<MountEntry, Error> {
        let entry = self.entry(name).map_err(|error| with_hint(name, error))?;
        self.follow(Goal::MountTable, entry, &mut Vec::new()).await
    }

    /// The servers mounted on a name itself: one step from the table that holds it, even if a mount table is mounted
    /// there.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`] and [`Self::resolve`].
    pub async fn shallow_resolve(&self, name: &str) -> Result<MountEntry, Error> {
        let table = self.resolve_to_mount_table(name).await?;
        if table.suffix.is_empty() {
            return Ok(table);
        }
        self.resolve_hop(&table).await.answer.map_err(|error| with_hint(name, error))
    }

    /// The roots of relative names.
    pub fn roots(&self) -> Roots {
        self.0.roots.lock().clone()
    }

    /// Replaces the roots of relative names.
    pub fn set_roots(&self, roots: Roots) {
        self.0.recipients.lock().set_roots(&roots);
        *self.0.roots.lock() = roots;
    }

    /// The start of the resolution of a name of the caller. The server of a rooted name receives the caller's token.
    pub(crate) fn entry(&self, name: &str) -> Result<MountEntry, Error> {
        let entry = self.roots().entry(name)?;
        if naming::is_rooted(name) {
            self.0.recipients.lock().add_named(&entry);
        }
        Ok(entry)
    }

    /// The header that identifies the caller to the server at `location`: a token only if the caller has named the
    /// server.
    pub(crate) fn identity_for(&self, location: &ObjectLocation) -> Option<(&'static str, MetadataValue<Ascii>)> {
        let identity = self.0.identity.as_ref()?;
        let may_send = identity.0 != BEARER_HEADER || self.0.recipients.lock().contains(location.host_port());
        may_send.then(|| identity.clone())
    }

    /// Invalidates the cache entries that a resolution of a name would use, at every table on its path; returns whether
    /// there were any.
    pub fn flush(&self, name: &str) -> bool {
        let locations = self.roots().entry(name).map(|entry| entry.locations()).unwrap_or_default();
        self.0.single_flight.detach_all();
        self.cache().invalidate_path(locations)
    }

    /// Switches the cache on or off, and clears it.
    pub fn set_caching(&self, caching: Caching) {
        self.0.single_flight.detach_all();
        self.cache().set_caching(caching);
    }

    /// Invalidates the cache entries of objects that were changed.
    pub(crate) fn invalidate(&self, locations: &[ObjectLocation]) {
        self.0.single_flight.detach_all();
        let mut cache = self.cache();
        for location in locations {
            cache.invalidate(location);
        }
    }

    async fn follow(&self, goal: Goal, entry: MountEntry, hops: &mut Vec<Hop>) -> Result<MountEntry, Error> {
        let (mut resolution, mut step) = Resolution::begin(goal, entry);
        loop {
            match step {
                ResolutionStep::Done(outcome) => return outcome,
                ResolutionStep::Ask(entry) => {
                    let hop = self.resolve_hop(&entry).await;
                    step = resolution.answer(hop.answer.clone());
                    hops.push(hop);
                }
            }
        }
    }

    /// One step from `entry`: from the cache, or from the first of its servers that answers.
    pub(crate) async fn resolve_hop(&self, entry: &MountEntry) -> Hop {
        let clock = &self.0.runtime.clock;
        let begun = clock.monotonic();
        let locations = entry.locations();
        let (source, answer) = match self.lookup_cache(&locations) {
            CacheLookup::Fresh(answer) => (Source::Cache, answer),
            cached => match (self.resolve_shared(&locations).await, cached) {
                (Err(error), CacheLookup::Stale(entry)) if error.reason == Reason::Unavailable => {
                    (Source::Stale, Ok(entry))
                }
                (answer, _) => (Source::Table, answer),
            },
        };
        Hop { asked: entry.names(), source, took: clock.monotonic().saturating_sub(begun), answer }
    }

    /// One step from `entry` at the first of its servers that answers; the answer is cached.
    pub(crate) async fn resolve_uncached(&self, entry: &MountEntry) -> Result<MountEntry, Error> {
        ask_and_cache(self.clone(), entry.locations()).await
    }

    /// Looks up an object at any of its locations: they are equivalent.
    fn lookup_cache(&self, locations: &[ObjectLocation]) -> CacheLookup {
        let (mut best, now) = (CacheLookup::Miss, self.0.runtime.clock.wall());
        let mut cache = self.cache();
        for location in locations {
            match cache.lookup(location, now) {
                CacheLookup::Miss => {}
                CacheLookup::Stale(entry) => best = CacheLookup::Stale(entry),
                fresh @ CacheLookup::Fresh(_) => return fresh,
            }
        }
        best
    }

    /// Asks a table, or waits for the answer to the same request of another caller.
    async fn resolve_shared(&self, locations: &[ObjectLocation]) -> Result<MountEntry, Error> {
        let no_server = || Error::new(Reason::Unavailable, "no server to ask");
        let key = locations.iter().min().cloned().ok_or_else(no_server)?;
        self.0.single_flight.join(key, ask_and_cache(self.clone(), locations.to_vec())).await
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.0.cache.lock()
    }
}

/// The answer of the first location that replies; it is cached.
async fn ask_and_cache(namespace: Namespace, locations: Vec<ObjectLocation>) -> Result<MountEntry, Error> {
    let asked = namespace.cache().epoch();
    let answered = first_reply(&locations, |location| namespace.resolve_step(location)).await?;
    let now = namespace.0.runtime.clock.wall();
    namespace.cache().insert(&answered.location, &answered.outcome, asked, now);
    answered.outcome
}

//! [`Namespace`]: the handle that a program holds. The shell around [`crate::resolve`] and [`crate::cache`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebla_client::channel::Channels;
use ebla_mounttable::service::bearer::BEARER_HEADER;
use ebla_mounttable::service::identity::DEVELOPMENT_HEADER;
use ebla_mounttable::{Error, Reason};
use ebla_runtime::Runtime;
use tonic::metadata::{Ascii, MetadataValue};

use crate::ask::first;
use crate::cache::{Cache, CacheConfig, Caching, Known};
use crate::entry::{MountEntry, Place};
use crate::flight::Flights;
use crate::resolve::{Goal, Resolution, Step};
use crate::roots::{Roots, with_hint};

/// How long a call may take unless the builder is told otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);

/// All names, as one caller sees them. Cheap to clone; clones share roots, cache and connections.
#[derive(Clone, Debug)]
pub struct Namespace(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) runtime: Runtime,
    pub(crate) channels: Channels,
    /// The header that tells who calls.
    pub(crate) identity: Option<(&'static str, MetadataValue<Ascii>)>,
    pub(crate) timeout: Duration,
    /// Held for a copy.
    roots: Mutex<Roots>,
    /// Held for a look-up or a change.
    cache: Mutex<Cache>,
    /// Steps that are being asked for.
    flights: Flights,
}

/// How a [`Namespace`] is to be.
#[derive(Clone, Debug)]
pub struct Builder {
    runtime: Runtime,
    roots: Roots,
    identity: Option<(&'static str, String)>,
    cache: CacheConfig,
    timeout: Duration,
}

impl Builder {
    /// Where relative names begin.
    #[must_use]
    pub fn roots(self, roots: Roots) -> Self {
        Self { roots, ..self }
    }

    /// Who calls: names, separated by commas, as a server that believes callers (for development) takes them.
    #[must_use]
    pub fn identity(self, names: impl Into<String>) -> Self {
        Self { identity: Some((DEVELOPMENT_HEADER, names.into())), ..self }
    }

    /// Who calls: a token (JWT) for servers that check them. It goes to every table that a name leads over, and without TLS
    /// whoever listens on the way can use it too.
    #[must_use]
    pub fn token(self, token: impl AsRef<str>) -> Self {
        Self { identity: Some((BEARER_HEADER, format!("Bearer {}", token.as_ref().trim()))), ..self }
    }

    /// What is remembered.
    #[must_use]
    pub fn cache(self, cache: CacheConfig) -> Self {
        Self { cache, ..self }
    }

    /// How long one call of a server may take.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The handle. Connects to nobody yet.
    ///
    /// # Errors
    /// `BAD_NAME` when the identity or the token cannot be sent.
    pub fn build(self) -> Result<Namespace, Error> {
        let bad = |_| Error::new(Reason::BadName, "who calls cannot be sent: it is not plain text of one line");
        let header = |(header, text): (&'static str, String)| {
            let mut value = text.parse::<MetadataValue<Ascii>>().map_err(bad)?;
            value.set_sensitive(header == BEARER_HEADER);
            Ok((header, value))
        };
        let identity = self.identity.map(header).transpose()?;
        Ok(Namespace(Arc::new(Inner {
            channels: Channels::new(self.runtime.net.clone()),
            runtime: self.runtime,
            identity,
            timeout: self.timeout,
            roots: Mutex::new(self.roots),
            cache: Mutex::new(Cache::new(self.cache)),
            flights: Flights::default(),
        })))
    }
}

/// Who answered a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A mount table.
    Table,
    /// The cache.
    Cache,
    /// The cache, with what it would not tell if a table could be reached.
    Stale,
}

/// One step of a resolution.
#[derive(Clone, Debug)]
pub struct Hop {
    /// What was asked for, at each of the equivalent servers.
    pub asked: Vec<String>,
    /// Who answered.
    pub source: Source,
    /// How long that took.
    pub took: Duration,
    /// What was answered.
    pub answer: Result<MountEntry, Error>,
}

/// A resolution step by step.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The steps, in order.
    pub hops: Vec<Hop>,
    /// What they came to.
    pub outcome: Result<MountEntry, Error>,
}

impl Namespace {
    /// A namespace without roots, for a caller without names, until the builder is told otherwise.
    pub fn builder(runtime: Runtime) -> Builder {
        Builder { runtime, roots: Roots::default(), identity: None, cache: CacheConfig::default(), timeout: TIMEOUT }
    }

    /// What a name leads to, over as many mount tables as it takes.
    ///
    /// # Errors
    /// `NO_SUCH_NAME`, also for a relative name without roots; `DEPTH_EXCEEDED` after [`crate::resolve::STEPS_MAX`]
    /// tables; `UNAVAILABLE` when no server of a table can be reached; what a table refuses, such as `NO_ACCESS`.
    pub async fn resolve(&self, name: &str) -> Result<MountEntry, Error> {
        self.trace(name).await.outcome
    }

    /// As [`Self::resolve`], with each step: who was asked, who answered, how long it took.
    pub async fn trace(&self, name: &str) -> Trace {
        let mut hops = Vec::new();
        let outcome = match self.roots().entry(name) {
            Ok(entry) => self.follow(Goal::Object, entry, &mut hops).await,
            Err(error) if error.reason == Reason::NoMountTable => Err(Error::new(Reason::NoSuchName, error.message)),
            Err(error) => Err(error),
        };
        Trace { hops, outcome: outcome.map_err(|error| with_hint(name, error)) }
    }

    /// The mount table that holds a name, or would hold it: where it is mounted, unmounted and deleted.
    ///
    /// # Errors
    /// As [`Self::resolve`]; `NO_MOUNT_TABLE` for a relative name without roots.
    pub async fn resolve_to_mount_table(&self, name: &str) -> Result<MountEntry, Error> {
        let entry = self.roots().entry(name).map_err(|error| with_hint(name, error))?;
        self.follow(Goal::MountTable, entry, &mut Vec::new()).await
    }

    /// What is mounted under a name itself: one step from the table that holds it, also if a mount table is there.
    ///
    /// # Errors
    /// As [`Self::resolve_to_mount_table`] and [`Self::resolve`].
    pub async fn shallow_resolve(&self, name: &str) -> Result<MountEntry, Error> {
        let table = self.resolve_to_mount_table(name).await?;
        if table.suffix.is_empty() {
            return Ok(table);
        }
        self.ask(&table).await.answer.map_err(|error| with_hint(name, error))
    }

    /// Where relative names begin.
    pub fn roots(&self) -> Roots {
        lock(&self.0.roots).clone()
    }

    /// Lets relative names begin elsewhere from now on.
    pub fn set_roots(&self, roots: Roots) {
        *lock(&self.0.roots) = roots;
    }

    /// Forgets what the resolution of a name would find in the cache, at every table on the way; whether there was
    /// anything.
    pub fn flush(&self, name: &str) -> bool {
        let places = self.roots().entry(name).map(|entry| entry.places()).unwrap_or_default();
        self.0.flights.close();
        self.cache().forget_way(places)
    }

    /// Switches the cache on or off; what it held is forgotten.
    pub fn set_caching(&self, caching: Caching) {
        self.0.flights.close();
        self.cache().set_caching(caching);
    }

    /// Forgets what is known of objects that were just changed.
    pub(crate) fn forget(&self, places: &[Place]) {
        self.0.flights.close();
        let mut cache = self.cache();
        for place in places {
            cache.forget(place);
        }
    }

    async fn follow(&self, goal: Goal, entry: MountEntry, hops: &mut Vec<Hop>) -> Result<MountEntry, Error> {
        let (mut resolution, mut step) = Resolution::begin(goal, entry);
        loop {
            match step {
                Step::Done(outcome) => return outcome,
                Step::Ask(entry) => {
                    let hop = self.ask(&entry).await;
                    step = resolution.answer(hop.answer.clone());
                    hops.push(hop);
                }
            }
        }
    }

    /// One step from `entry`: from the cache, or else from the first of its servers that answers.
    async fn ask(&self, entry: &MountEntry) -> Hop {
        let clock = &self.0.runtime.clock;
        let begun = clock.monotonic();
        let places = entry.places();
        let (source, answer) = match self.recall(&places) {
            Known::Fresh(answer) => (Source::Cache, answer),
            known => match (self.fly(&places).await, known) {
                (Err(error), Known::Stale(entry)) if error.reason == Reason::Unavailable => (Source::Stale, Ok(entry)),
                (answer, _) => (Source::Table, answer),
            },
        };
        Hop { asked: entry.names(), source, took: clock.monotonic().saturating_sub(begun), answer }
    }

    /// What the cache knows of an object at any of its places: they are equivalent.
    fn recall(&self, places: &[Place]) -> Known {
        let (mut best, now) = (Known::Nothing, self.0.runtime.clock.wall());
        let mut cache = self.cache();
        for place in places {
            match cache.find(place, now) {
                Known::Nothing => {}
                Known::Stale(entry) => best = Known::Stale(entry),
                fresh @ Known::Fresh(_) => return fresh,
            }
        }
        best
    }

    /// Asks, unless somebody else is asking: then his answer is waited for.
    async fn fly(&self, places: &[Place]) -> Result<MountEntry, Error> {
        let nobody = || Error::new(Reason::Unavailable, "no server is known that could be asked");
        let key = places.iter().min().cloned().ok_or_else(nobody)?;
        self.0.flights.join(key, learned(self.clone(), places.to_vec())).await
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.0.cache)
    }
}

/// What the first of the places that answers says; the cache learns it.
async fn learned(namespace: Namespace, places: Vec<Place>) -> Result<MountEntry, Error> {
    let asked = namespace.cache().epoch();
    let answered = first(&places, |place| namespace.resolve_step(place)).await?;
    let now = namespace.0.runtime.clock.wall();
    namespace.cache().learn(&answered.place, &answered.outcome, asked, now);
    answered.outcome
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The cache of recently read rows, and the reads in flight. Pure: the time is an argument.
//!
//! The cache holds rows in parts: the row's own cells, and its reference to each child that a caller has looked up. A
//! walk needs the own cells and one reference of each row on its path. It ends early at a row that is absent, at one
//! with a live server, and at a missing reference.
//!
//! | entry | lifetime |
//! |---|---|
//! | cells | [`CacheOptions::ttl`] |
//! | absence, and a reference to a child that is being created | [`NEGATIVE_TTL`], at most |
//! | cells, while the storage is unavailable | [`STALE_TTL`]; absence is not reported then |
//!
//! Names that are looked up often need no walk: `super::path_cache` holds whole paths.
//!
//! A step that a caller is reading is *in flight*; other callers that need it join that read. A change of a row evicts
//! its parts and detaches its reads in flight: their result is too old to be cached.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;

use crate::store::path_cache::{PathCache, Validity};
use crate::store::row_cache::{CachedPart, RowCache};
use crate::store::{PathRow, PathStep, Row, RowPart};

/// The lifetime of a negative entry.
pub const NEGATIVE_TTL: Duration = Duration::from_millis(250);

/// The time for which entries are served while the storage is unavailable.
pub const STALE_TTL: Duration = Duration::from_secs(300);

/// After a failed read of a row, callers with stale data for it do not read it again for this long.
pub const UNAVAILABLE_BACKOFF: Duration = Duration::from_secs(1);

/// The memory limit. It is a constant because an operator who needs less sets the number of rows.
const BYTES_MAX: usize = 256 * 1024 * 1024;

/// The number of rows for which failed reads are recorded; when it is reached, all are dropped.
const UNAVAILABLE_MAX: usize = 10_000;

/// Settings for operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheOptions {
    /// The maximum number of cached parts of rows: a name has two, its node and its parent's reference. 0 turns the
    /// cache off.
    pub rows: usize,
    /// The lifetime of an entry.
    pub ttl: Duration,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self { rows: 100_000, ttl: Duration::from_secs(1) }
    }
}

/// The parts read during one call, by key and child. They remain valid for that call, however old they get.
pub type ReadParts = BTreeMap<(String, Option<String>), Option<Arc<RowPart>>>;

/// Identifies a read in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FetchId(u64);

/// The rows of a path, shared by all callers that look up the same name.
pub type Rows = Arc<[Option<PathRow>]>;

/// The result of a cache lookup.
#[derive(Clone, PartialEq, Debug)]
pub enum Lookup {
    /// All rows that a walk needs, from the root down to its end.
    Hit(Rows),
    /// The same, possibly minutes old: the storage is unavailable.
    Stale(Rows),
    /// The caller must read these steps, and report the outcome under this id.
    Fetch(FetchId, Vec<PathStep>),
    /// Another caller is reading these steps, under this id.
    Join(FetchId, Vec<PathStep>),
}

/// The cached parts, and the reads in flight.
#[derive(Debug)]
pub struct Cache {
    options: CacheOptions,
    rows: RowCache,
    paths: PathCache,
    in_flight: BTreeMap<PathStep, FetchId>,
    next_fetch: u64,
    /// Rows whose last read failed, and when.
    unavailable: BTreeMap<String, Micros>,
}

impl Cache {
    /// An empty cache.
    pub fn new(options: CacheOptions) -> Self {
        Self {
            options,
            rows: RowCache::new(options.rows, BYTES_MAX),
            paths: PathCache::new(),
            in_flight: BTreeMap::new(),
            next_fetch: 0,
            unavailable: BTreeMap::new(),
        }
    }

    /// The cached path to `name`, if it was looked up recently and no row of it has changed.
    pub fn lookup_path(&mut self, name: &str, now: Micros) -> Option<Rows> {
        self.paths.get(name, now)
    }

    /// Looks up `path`, which leads to `name`. `read_parts` are the parts that this call has read already.
    pub fn lookup(&mut self, name: &str, path: &[PathStep], read_parts: &ReadParts, now: Micros) -> Lookup {
        let (ttl, absent) = (self.options.ttl, self.options.ttl.min(NEGATIVE_TTL));
        let missing =
            match self.walk(path, read_parts, now, |cached| Some(if cached.is_settled() { ttl } else { absent })) {
                Ok(walked) => {
                    let keys = path.iter().take(walked.rows.len()).map(|step| step.key.as_str());
                    if now < walked.validity.until {
                        self.paths.insert(name, keys, &walked.rows, walked.validity);
                    }
                    return Lookup::Hit(walked.rows);
                }
                Err(missing) => missing,
            };
        let is_backing_off = |step: &PathStep| {
            self.unavailable.get(&step.key).is_some_and(|at| is_within(*at, now, UNAVAILABLE_BACKOFF))
        };
        if missing.iter().any(is_backing_off)
            && let Some(rows) = self.stale(path, read_parts, now)
        {
            return Lookup::Stale(rows);
        }
        let free: Vec<_> = missing.iter().filter(|step| !self.in_flight.contains_key(step)).cloned().collect();
        match missing.first().and_then(|step| self.in_flight.get(step)) {
            Some(&fetch) if free.is_empty() => {
                // Of other steps it may bring what was there before a change: those are in flight with another read.
                let is_read = |step: &PathStep| self.in_flight.get(step) == Some(&fetch);
                Lookup::Join(fetch, missing.into_iter().filter(is_read).collect())
            }
            _ => {
                self.next_fetch = self.next_fetch.wrapping_add(1);
                let fetch = FetchId(self.next_fetch);
                self.in_flight.extend(free.iter().map(|step| (step.clone(), fetch)));
                Lookup::Fetch(fetch, free)
            }
        }
    }

    /// The rows of a path for callers that the storage does not answer, without absent ones.
    pub fn stale(&mut self, path: &[PathStep], read_parts: &ReadParts, now: Micros) -> Option<Rows> {
        self.walk(path, read_parts, now, |cached| cached.is_settled().then_some(STALE_TTL))
            .ok()
            .map(|walked| walked.rows)
    }

    /// Stores the result of a read that began at `at`. Parts of rows that have changed since are not cached.
    pub fn complete(&mut self, fetch: FetchId, steps: &[PathStep], fetched: &ReadParts, at: Micros) {
        for step in steps {
            self.unavailable.remove(&step.key);
            if !self.take_in_flight(fetch, step) {
                continue;
            }
            for child in [None, step.child.clone()] {
                let part = (step.key.clone(), child);
                if let Some(cells) = fetched.get(&part) {
                    if self.rows.get(&part.0, part.1.as_deref()).is_none_or(|cached| cached.cells != *cells) {
                        self.paths.row_changed(&part.0);
                    }
                    self.rows.put(&part.0, part.1.as_deref(), CachedPart { cells: cells.clone(), at });
                }
            }
        }
    }

    /// Gives up a read in flight.
    pub fn abandon(&mut self, fetch: FetchId, steps: &[PathStep]) {
        for step in steps {
            self.take_in_flight(fetch, step);
        }
    }

    /// Removes a step from the reads in flight; returns whether it was still there under this id.
    fn take_in_flight(&mut self, fetch: FetchId, step: &PathStep) -> bool {
        let was_in_flight = self.in_flight.get(step) == Some(&fetch);
        if was_in_flight {
            self.in_flight.remove(step);
        }
        was_in_flight
    }

    /// Records that the storage did not answer for these steps.
    pub fn mark_unavailable(&mut self, steps: Vec<PathStep>, now: Micros) {
        if self.unavailable.len() >= UNAVAILABLE_MAX {
            self.unavailable.clear();
        }
        self.unavailable.extend(steps.into_iter().map(|step| (step.key, now)));
    }

    /// Evicts a row, and detaches the reads of it that are in flight.
    pub fn evict(&mut self, key: &str) {
        self.rows.evict(key);
        self.paths.row_changed(key);
        self.in_flight.retain(|step, _| step.key != key);
    }

    /// The number of entries, and their weight in units of small parts.
    pub fn size(&self) -> (usize, u64) {
        self.rows.size()
    }

    /// The rows from the root to the end of a walk, or the steps that are missing. `lifetime` returns the lifetime of an
    /// entry, or `None` if it must not be used.
    fn walk(
        &mut self,
        path: &[PathStep],
        read_parts: &ReadParts,
        now: Micros,
        lifetime: impl Fn(&CachedPart) -> Option<Duration>,
    ) -> Result<Walk, Vec<PathStep>> {
        let mut validity = Validity { from: Micros::ZERO, until: Micros::MAX };
        let mut part = |key: &str, child: Option<&str>| {
            if !read_parts.is_empty()
                && let Some(cells) = read_parts.get(&(key.to_owned(), child.map(str::to_owned)))
            {
                // Valid for this call only.
                validity.until = now;
                return Some(cells.clone());
            }
            let cached = self.rows.get(key, child)?;
            let ttl = lifetime(&cached).filter(|ttl| is_within(cached.at, now, *ttl))?;
            let live_until = cached.cells.as_ref().map_or(Micros::ZERO, |part| part.live_until());
            let until = cached.at.plus(ttl).min(if live_until > now { live_until } else { Micros::MAX });
            validity = Validity { from: validity.from.max(cached.at), until: validity.until.min(until) };
            Some(cached.cells)
        };
        let (mut rows, mut missing) = (Vec::with_capacity(path.len()), Vec::new());
        for step in path {
            let own = part(&step.key, None);
            let reference = step.child.as_deref().map(|child| part(&step.key, Some(child)));
            let is_end = matches!(reference, Some(Some(None)))
                || own.as_ref().is_some_and(|own| own.as_ref().is_none_or(|own| own.live_until() > now));
            match (own, reference) {
                (Some(None), _) => rows.push(None),
                (Some(Some(own)), Some(Some(reference @ Some(_)))) => rows.push(Some(PathRow { own, reference })),
                (Some(Some(own)), reference) if is_end || reference.is_none() => {
                    rows.push(Some(PathRow { own, reference: None }));
                }
                _ => missing.push(step.clone()),
            }
            if is_end {
                break;
            }
        }
        if missing.is_empty() { Ok(Walk { rows: rows.into(), validity }) } else { Err(missing) }
    }
}

/// A complete path.
struct Walk {
    rows: Rows,
    /// Unless a row changes.
    validity: Validity,
}

impl CachedPart {
    /// Whether the entry is likely to stay: it exists, and is not being created.
    fn is_settled(&self) -> bool {
        self.cells.as_ref().is_some_and(|part| !part.is_pending())
    }
}

/// Splits a row into the parts that a step needs.
pub fn parts(step: &PathStep, row: Option<&Row>, into: &mut ReadParts) {
    let read_parts = row.map(|row| PathRow::of(row.clone(), step.child.as_deref()));
    let (own, reference) = read_parts.map_or((None, None), |read_parts| (Some(read_parts.own), read_parts.reference));
    into.insert((step.key.clone(), None), own.filter(|own| !own.cells().is_empty()));
    if let Some(child) = &step.child {
        into.insert((step.key.clone(), Some(child.clone())), reference);
    }
}

/// A clock that went back invalidates everything.
fn is_within(at: Micros, now: Micros, duration: Duration) -> bool {
    now >= at && now.since(at) < duration
}

//! A cache of tables' answers.
//!
//! An answer is cached under the location that was asked, without the unresolved rest of its name: everything below it
//! has the same answer with a longer suffix. A lookup takes the longest cached name.
//!
//! | answer | valid until | afterwards |
//! |---|---|---|
//! | servers | the first deadline among them, or `servers_ttl` | served for `stale_ttl` when no table can be reached |
//! | nothing is mounted under exactly this name | `negative_ttl` | dropped |
//! | the server is not a mount table | `not_a_mount_table_ttl` | dropped |
//!
//! Each hit starts with the next server, which spreads the clients that take the first. When the cache is full, expired
//! entries are evicted first, then those with the fewest hits; the hits of the others are halved, so that old
//! popularity fades.
//!
//! The time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::{Error, Reason, Target, naming};

use crate::entry::{MountEntry, ObjectLocation, Server};

/// The capacity and the lifetimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// The largest number of entries.
    pub entries_max: usize,
    /// The number of entries that an eviction leaves.
    pub entries_after_eviction: usize,
    /// The longest lifetime of servers, including those mounted without a deadline.
    pub servers_ttl: Duration,
    /// The lifetime of a negative answer.
    pub negative_ttl: Duration,
    /// The lifetime of the answer that a server is not a mount table.
    pub not_a_mount_table_ttl: Duration,
    /// How long expired servers are served when no table can be reached.
    pub stale_ttl: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            entries_max: 4_000,
            entries_after_eviction: 3_000,
            servers_ttl: Duration::from_secs(300),
            negative_ttl: Duration::from_secs(1),
            not_a_mount_table_ttl: Duration::from_secs(60),
            stale_ttl: Duration::from_secs(300),
        }
    }
}

/// Whether the cache is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// It is.
    On,
    /// Every lookup is a miss.
    Off,
}

/// The result of a lookup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheLookup {
    /// No entry.
    Miss,
    /// A valid entry.
    Fresh(Result<MountEntry, Error>),
    /// An expired entry, for callers that reach no table.
    Stale(MountEntry),
}

/// A version of the cache that every invalidation increases: see [`Cache::epoch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InvalidationEpoch(u64);

/// The cache.
#[derive(Clone, Debug)]
pub struct Cache {
    config: CacheConfig,
    caching: Caching,
    entries: BTreeMap<ObjectLocation, CacheEntry>,
    epoch: InvalidationEpoch,
    /// A logical clock for the order of uses.
    uses: u64,
}

#[derive(Clone, Debug)]
struct CacheEntry {
    answer: CachedAnswer,
    since: Micros,
    hits: u32,
    used: u64,
    /// The index of the server that the next hit starts with.
    next_server: usize,
}

#[derive(Clone, Debug)]
enum CachedAnswer {
    Servers { servers: Vec<Server>, target: Target },
    Refusal(Error),
}

impl Cache {
    /// An empty cache.
    pub const fn new(config: CacheConfig) -> Self {
        Self { config, caching: Caching::On, entries: BTreeMap::new(), epoch: InvalidationEpoch(0), uses: 0 }
    }

    /// Looks up the object at `location`. A hit is counted, and the next one starts with the next server.
    pub fn lookup(&mut self, location: &ObjectLocation, now: Micros) -> CacheLookup {
        let Some(key) = self.key(location) else { return CacheLookup::Miss };
        let Some(cached) = self.entries.get_mut(&key) else { return CacheLookup::Miss };
        let is_fresh = cached.is_fresh(&self.config, now);
        match &cached.answer {
            CachedAnswer::Refusal(error) if is_fresh => CacheLookup::Fresh(Err(error.clone())),
            CachedAnswer::Servers { servers, target } if is_fresh || !cached.is_expired(&self.config, now) => {
                let mut servers = servers.clone();
                servers.rotate_left(cached.next_server);
                cached.next_server = (cached.next_server + 1).checked_rem(servers.len()).unwrap_or(0);
                let entry = MountEntry { servers, suffix: below(location, &key).to_owned(), target: *target };
                self.uses = self.uses.wrapping_add(1);
                (cached.used, cached.hits) = (self.uses, cached.hits.saturating_add(1));
                if is_fresh { CacheLookup::Fresh(Ok(entry)) } else { CacheLookup::Stale(entry) }
            }
            _ => CacheLookup::Miss,
        }
    }

    /// The current epoch. A caller reads it before it asks a table, and passes it with the answer.
    pub const fn epoch(&self) -> InvalidationEpoch {
        self.epoch
    }

    /// Inserts what the table at `location` answered at `now`. An answer to a request from before an invalidation may
    /// be outdated, and is ignored.
    pub fn insert(
        &mut self,
        location: &ObjectLocation,
        answer: &Result<MountEntry, Error>,
        asked: InvalidationEpoch,
        now: Micros,
    ) {
        if self.caching == Caching::Off || asked != self.epoch {
            return;
        }
        let (key, answer) = match answer {
            Ok(entry) => {
                let name = naming::trim_suffix(&location.name, &entry.suffix);
                if !entry.suffix.is_empty() && name == location.name {
                    return;
                }
                let answer = CachedAnswer::Servers { servers: entry.servers.clone(), target: entry.target };
                (ObjectLocation { name, ..location.clone() }, answer)
            }
            Err(error) => match error.reason {
                Reason::NoSuchName => (location.clone(), CachedAnswer::Refusal(error.clone())),
                Reason::NotAMountTable => {
                    (ObjectLocation { name: String::new(), ..location.clone() }, CachedAnswer::Refusal(error.clone()))
                }
                _ => return,
            },
        };
        self.uses = self.uses.wrapping_add(1);
        self.entries.insert(key, CacheEntry { answer, since: now, hits: 0, used: self.uses, next_server: 0 });
        if self.entries.len() > self.config.entries_max {
            self.evict(now);
        }
    }

    /// Invalidates the entry that a lookup of `location` would find, and all entries below it; returns whether there
    /// were any.
    pub fn invalidate(&mut self, location: &ObjectLocation) -> bool {
        self.epoch = InvalidationEpoch(self.epoch.0.wrapping_add(1));
        let may_be_below =
            |key: &&ObjectLocation| key.address == location.address && key.name.starts_with(&location.name);
        let ahead = self.entries.range(location.clone()..).map(|(key, _)| key).take_while(may_be_below);
        let forgotten: Vec<_> =
            ahead.filter(|key| is_below(&key.name, &location.name)).cloned().chain(self.key(location)).collect();
        forgotten.iter().filter(|key| self.entries.remove(key).is_some()).count() > 0
    }

    /// Invalidates all entries that a resolution starting at these locations could use; returns whether there were any.
    /// It follows all servers of an entry, because a resolution may take any of them.
    pub fn invalidate_path(&mut self, locations: Vec<ObjectLocation>) -> bool {
        let mut ahead = locations;
        let mut has_forgotten = false;
        // Each round removes an entry or a location, so this ends.
        while let Some(location) = ahead.pop() {
            let Some(key) = self.key(&location) else { continue };
            if let Some(CacheEntry { answer: CachedAnswer::Servers { servers, .. }, .. }) = self.entries.get(&key) {
                let suffix = below(&location, &key);
                ahead.extend(servers.iter().map(|server| ObjectLocation::new(&server.address, suffix)));
            }
            has_forgotten |= self.entries.remove(&key).is_some();
        }
        self.epoch = InvalidationEpoch(self.epoch.0.wrapping_add(1));
        has_forgotten
    }

    /// Switches the cache on or off. Either way it is cleared.
    pub fn set_caching(&mut self, caching: Caching) {
        self.caching = caching;
        self.entries.clear();
        self.epoch = InvalidationEpoch(self.epoch.0.wrapping_add(1));
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The key of the entry for `location`: its own name, or the longest name above it that has servers.
    fn key(&self, location: &ObjectLocation) -> Option<ObjectLocation> {
        let mut key = location.clone();
        loop {
            let reaches_down = |cached: &CacheEntry| match &cached.answer {
                CachedAnswer::Servers { .. } => true,
                CachedAnswer::Refusal(error) => error.reason == Reason::NotAMountTable,
            };
            if self.entries.get(&key).is_some_and(|cached| key == *location || reaches_down(cached)) {
                return Some(key);
            }
            if key.name.is_empty() {
                return None;
            }
            key.name.truncate(key.name.rfind('/').unwrap_or(0));
        }
    }

    fn evict(&mut self, now: Micros) {
        let config = self.config;
        self.entries.retain(|_, cached| cached.is_fresh(&config, now));
        let surplus = self.entries.len().saturating_sub(config.entries_after_eviction);
        if surplus == 0 {
            return;
        }
        let mut ranked: Vec<_> =
            self.entries.iter().map(|(key, cached)| (cached.hits, cached.used, key.clone())).collect();
        ranked.sort();
        for (_, _, key) in ranked.into_iter().take(surplus) {
            self.entries.remove(&key);
        }
        self.entries.values_mut().for_each(|cached| cached.hits /= 2);
    }
}

impl CacheEntry {
    /// Whether it is valid. After a clock went back, ages are unknown.
    fn is_fresh(&self, config: &CacheConfig, now: Micros) -> bool {
        let servers_ttl = match &self.answer {
            CachedAnswer::Servers { .. } => config.servers_ttl,
            CachedAnswer::Refusal(error) if error.reason == Reason::NotAMountTable => config.not_a_mount_table_ttl,
            CachedAnswer::Refusal(_) => config.negative_ttl,
        };
        now >= self.since && now.since(self.since) < servers_ttl && self.ends().is_none_or(|end| end > now)
    }

    /// Whether it is too old even as stale data.
    fn is_expired(&self, config: &CacheConfig, now: Micros) -> bool {
        let aged = self.since.plus(config.servers_ttl);
        let end = self.ends().map_or(aged, |end| end.min(aged));
        now < self.since || end.plus(config.stale_ttl) <= now
    }

    /// The first deadline of its servers.
    fn ends(&self) -> Option<Micros> {
        match &self.answer {
            CachedAnswer::Servers { servers, .. } => servers.iter().map(|server| server.deadline.as_micros()).min(),
            CachedAnswer::Refusal(_) => None,
        }
    }
}

/// Whether the name is `above`, or below it.
fn is_below(name: &str, above: &str) -> bool {
    above.is_empty() || name.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The part of the location's name below `key`.
fn below<'a>(location: &'a ObjectLocation, key: &ObjectLocation) -> &'a str {
    location.name.strip_prefix(&key.name).unwrap_or_default().trim_start_matches('/')
}

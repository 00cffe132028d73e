//! What tables answered, for as long as it is worth something.
//!
//! An answer is kept under the place that was asked, without the part of its name that was left unresolved: whatever is
//! asked below it has the same answer with a longer suffix. A look-up takes the longest name that is known.
//!
//! | answer | until | then |
//! |---|---|---|
//! | servers | the first deadline among them, or `age_max` | for `stale_max` it serves who cannot ask |
//! | nothing is mounted under exactly this name | `absence` | gone |
//! | this server is no mount table, whatever is asked of it | `not_a_mount_table` | gone |
//!
//! Each hit begins with the next server, which spreads those who take the first. When there are too many entries, those
//! that are over go first, then those that were hit least; all others' hits count half from then on, so old fame fades.
//!
//! The time is handed in.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable::{Error, Reason, Target, naming};

use crate::entry::{MountEntry, Place, Server};

/// How much is remembered, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// Most entries.
    pub entries_max: usize,
    /// How many are left when there were more.
    pub entries_kept: usize,
    /// Servers are believed for so long at most, also those that are mounted for ever.
    pub age_max: Duration,
    /// That nothing is mounted is believed for so long.
    pub absence: Duration,
    /// That a server is no mount table is believed for so long.
    pub not_a_mount_table: Duration,
    /// For so long servers that are not believed any more are better than none.
    pub stale_max: Duration,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            entries_max: 4_000,
            entries_kept: 3_000,
            age_max: Duration::from_secs(300),
            absence: Duration::from_secs(1),
            not_a_mount_table: Duration::from_secs(60),
            stale_max: Duration::from_secs(300),
        }
    }
}

/// Whether anything is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caching {
    /// Yes.
    On,
    /// No: every look-up is a miss.
    Off,
}

/// What is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// This.
    Fresh(Result<MountEntry, Error>),
    /// This was so, and is only for who cannot ask.
    Stale(MountEntry),
}

/// Which forgetting an answer must not outlive: see [`Cache::epoch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Epoch(u64);

/// The answers.
#[derive(Clone, Debug)]
pub struct Cache {
    config: CacheConfig,
    caching: Caching,
    entries: BTreeMap<Place, Kept>,
    epoch: Epoch,
    /// Counts uses: a clock for who was used last.
    uses: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    answer: Answer,
    since: Micros,
    hits: u32,
    used: u64,
    /// Which server is told first.
    turn: usize,
}

#[derive(Clone, Debug)]
enum Answer {
    Servers { servers: Vec<Server>, target: Target },
    Refusal(Error),
}

impl Cache {
    /// An empty cache.
    pub const fn new(config: CacheConfig) -> Self {
        Self { config, caching: Caching::On, entries: BTreeMap::new(), epoch: Epoch(0), uses: 0 }
    }

    /// What is known of the object at `place`. A hit is counted, and the next one begins with the next server.
    pub fn find(&mut self, place: &Place, now: Micros) -> Known {
        let Some(key) = self.key(place) else { return Known::Nothing };
        let Some(kept) = self.entries.get_mut(&key) else { return Known::Nothing };
        let is_fresh = kept.is_fresh(&self.config, now);
        match &kept.answer {
            Answer::Refusal(error) if is_fresh => Known::Fresh(Err(error.clone())),
            Answer::Servers { servers, target } if is_fresh || !kept.is_over(&self.config, now) => {
                let mut servers = servers.clone();
                servers.rotate_left(kept.turn);
                kept.turn = (kept.turn + 1).checked_rem(servers.len()).unwrap_or(0);
                let entry = MountEntry { servers, suffix: below(place, &key).to_owned(), target: *target };
                self.uses = self.uses.wrapping_add(1);
                (kept.used, kept.hits) = (self.uses, kept.hits.saturating_add(1));
                if is_fresh { Known::Fresh(Ok(entry)) } else { Known::Stale(entry) }
            }
            _ => Known::Nothing,
        }
    }

    /// Which forgetting was the last. Who asks notes it before, and hands it in with the answer.
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Learns what the table at `place` answered at `now`. An answer to a question from before something was forgotten
    /// may be the very thing that was to be forgotten, so it does not count.
    pub fn learn(&mut self, place: &Place, answer: &Result<MountEntry, Error>, asked: Epoch, now: Micros) {
        if self.caching == Caching::Off || asked != self.epoch {
            return;
        }
        let (key, answer) = match answer {
            Ok(entry) => {
                let name = naming::trim_suffix(&place.name, &entry.suffix);
                if !entry.suffix.is_empty() && name == place.name {
                    return;
                }
                let answer = Answer::Servers { servers: entry.servers.clone(), target: entry.target };
                (Place { name, ..place.clone() }, answer)
            }
            Err(error) => match error.reason {
                Reason::NoSuchName => (place.clone(), Answer::Refusal(error.clone())),
                Reason::NotAMountTable => {
                    (Place { name: String::new(), ..place.clone() }, Answer::Refusal(error.clone()))
                }
                _ => return,
            },
        };
        self.uses = self.uses.wrapping_add(1);
        self.entries.insert(key, Kept { answer, since: now, hits: 0, used: self.uses, turn: 0 });
        if self.entries.len() > self.config.entries_max {
            self.make_room(now);
        }
    }

    /// Forgets what a look-up of `place` would find, and all that is known below it; whether there was anything.
    pub fn forget(&mut self, place: &Place) -> bool {
        self.epoch = Epoch(self.epoch.0.wrapping_add(1));
        let may_be_below = |key: &&Place| key.address == place.address && key.name.starts_with(&place.name);
        let ahead = self.entries.range(place.clone()..).map(|(key, _)| key).take_while(may_be_below);
        let forgotten: Vec<_> =
            ahead.filter(|key| is_below(&key.name, &place.name)).cloned().chain(self.key(place)).collect();
        forgotten.iter().filter(|key| self.entries.remove(key).is_some()).count() > 0
    }

    /// Forgets every answer that a resolution which begins at these places could meet; whether there was any. All
    /// servers of an entry are followed: any of them may have been taken.
    pub fn forget_way(&mut self, places: Vec<Place>) -> bool {
        let mut ahead = places;
        let mut has_forgotten = false;
        // Each turn forgets an entry or drops a place, so this ends.
        while let Some(place) = ahead.pop() {
            let Some(key) = self.key(&place) else { continue };
            if let Some(Kept { answer: Answer::Servers { servers, .. }, .. }) = self.entries.get(&key) {
                let suffix = below(&place, &key);
                ahead.extend(servers.iter().map(|server| Place::new(&server.address, suffix)));
            }
            has_forgotten |= self.entries.remove(&key).is_some();
        }
        self.epoch = Epoch(self.epoch.0.wrapping_add(1));
        has_forgotten
    }

    /// Switches remembering on or off. Off, all is forgotten.
    pub fn set_caching(&mut self, caching: Caching) {
        self.caching = caching;
        self.entries.clear();
        self.epoch = Epoch(self.epoch.0.wrapping_add(1));
    }

    /// How many answers are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Under what the answer for `place` is kept: its own name, or the longest name above it that has servers.
    fn key(&self, place: &Place) -> Option<Place> {
        let mut key = place.clone();
        loop {
            let reaches_down = |kept: &Kept| match &kept.answer {
                Answer::Servers { .. } => true,
                Answer::Refusal(error) => error.reason == Reason::NotAMountTable,
            };
            if self.entries.get(&key).is_some_and(|kept| key == *place || reaches_down(kept)) {
                return Some(key);
            }
            if key.name.is_empty() {
                return None;
            }
            key.name.truncate(key.name.rfind('/').unwrap_or(0));
        }
    }

    fn make_room(&mut self, now: Micros) {
        let config = self.config;
        self.entries.retain(|_, kept| kept.is_fresh(&config, now));
        let surplus = self.entries.len().saturating_sub(config.entries_kept);
        if surplus == 0 {
            return;
        }
        let mut ranked: Vec<_> = self.entries.iter().map(|(key, kept)| (kept.hits, kept.used, key.clone())).collect();
        ranked.sort();
        for (_, _, key) in ranked.into_iter().take(surplus) {
            self.entries.remove(&key);
        }
        self.entries.values_mut().for_each(|kept| kept.hits /= 2);
    }
}

impl Kept {
    /// Whether it is believed. A clock that went back has lost its say about ages.
    fn is_fresh(&self, config: &CacheConfig, now: Micros) -> bool {
        let age_max = match &self.answer {
            Answer::Servers { .. } => config.age_max,
            Answer::Refusal(error) if error.reason == Reason::NotAMountTable => config.not_a_mount_table,
            Answer::Refusal(_) => config.absence,
        };
        now >= self.since && now.since(self.since) < age_max && self.ends().is_none_or(|end| end > now)
    }

    /// Whether nobody wants it any more, not even for want of better.
    fn is_over(&self, config: &CacheConfig, now: Micros) -> bool {
        let aged = self.since.plus(config.age_max);
        let end = self.ends().map_or(aged, |end| end.min(aged));
        now < self.since || end.plus(config.stale_max) <= now
    }

    /// The first deadline of its servers.
    fn ends(&self) -> Option<Micros> {
        match &self.answer {
            Answer::Servers { servers, .. } => servers.iter().map(|server| server.deadline.as_micros()).min(),
            Answer::Refusal(_) => None,
        }
    }
}

/// Whether the name is `above`, or one below it.
fn is_below(name: &str, above: &str) -> bool {
    above.is_empty() || name.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What of the name of `place` lies below `key`.
fn below<'a>(place: &'a Place, key: &Place) -> &'a str {
    place.name.strip_prefix(&key.name).unwrap_or_default().trim_start_matches('/')
}

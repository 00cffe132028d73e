//! Which pairs of a name and a server are to be mounted or unmounted when: a function of what was wished and what came
//! of it.
//!
//! ```text
//!   wished for                  mounted at once, then again every period, give or take a tenth
//!   not mounted                 tried again after a second, two, four ..., at most half a period
//!   not wished for any more     unmounted, again and again until that is done or the mount has ended by itself
//! ```
//!
//! The time (that of a clock that never goes back) and chance are handed in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_mounttable::{Error, Reason, ServerAddress, Target};

/// How much longer than a period a mount lasts: the time to make it again.
pub const SLACK: Duration = Duration::from_secs(20);

/// The pause after a first failure; each further one doubles it.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Mount the server, as this.
    Mount(Target),
    /// Take it away.
    Unmount,
}

/// Something to be done with one pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deed {
    /// The name.
    pub name: String,
    /// The server.
    pub server: ServerAddress,
    /// What.
    pub act: Act,
}

/// How far a pair is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It is wished for, and not known to be mounted.
    Mounting,
    /// It is mounted.
    Mounted,
    /// It is not wished for, and may still be mounted.
    Unmounting,
}

/// A pair, to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairStatus {
    /// The name.
    pub name: String,
    /// The server.
    pub server: ServerAddress,
    /// How far it is.
    pub state: State,
    /// Why the last try failed, if it did.
    pub error: Option<Error>,
}

/// All pairs, to be shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The names that are wished for.
    pub names: Vec<String>,
    /// The servers that are wished for under each of them.
    pub servers: Vec<ServerAddress>,
    /// Each name with each server, and what is still to be taken away.
    pub pairs: Vec<PairStatus>,
}

type Key = (String, ServerAddress);

#[derive(Clone, Debug)]
struct Pair {
    /// As what it is to be mounted; nothing: it is to be taken away.
    wish: Option<Target>,
    /// When something is to be done; nothing while it is being done.
    due: Option<Duration>,
    /// Until when the last mount that was made lasts.
    mounted_until: Option<Duration>,
    /// Until when a mount lasts that may have been made without an answer.
    doubtful_until: Option<Duration>,
    failures: u32,
    error: Option<Error>,
}

/// What a publisher has to do.
#[derive(Clone, Debug)]
pub struct Agenda {
    period: Duration,
    names: BTreeMap<String, Target>,
    servers: BTreeSet<ServerAddress>,
    pairs: BTreeMap<Key, Pair>,
    /// What is due when, of those that are not being dealt with.
    due: BTreeSet<(Duration, Key)>,
}

impl Agenda {
    /// Nothing to do. Mounts are made anew every `period`.
    pub const fn new(period: Duration) -> Self {
        Self { period, names: BTreeMap::new(), servers: BTreeSet::new(), pairs: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// For how long a mount lasts.
    pub fn ttl(&self) -> Duration {
        self.period.saturating_add(SLACK)
    }

    /// All servers are to be mounted under `name` too, as `target`.
    pub fn add_name(&mut self, name: &str, target: Target, now: Duration) {
        self.names.insert(name.to_owned(), target);
        for server in self.servers.clone() {
            self.wish((name.to_owned(), server), Some(target), now);
        }
    }

    /// No server is to be mounted under `name` any more.
    pub fn remove_name(&mut self, name: &str, now: Duration) {
        self.names.remove(name);
        for server in self.servers.clone() {
            self.wish((name.to_owned(), server), None, now);
        }
    }

    /// This server is to be mounted too, under all names.
    pub fn add_server(&mut self, server: &ServerAddress, now: Duration) {
        self.servers.insert(server.clone());
        for (name, target) in self.names.clone() {
            self.wish((name, server.clone()), Some(target), now);
        }
    }

    /// This server is not to be mounted any more.
    pub fn remove_server(&mut self, server: &ServerAddress, now: Duration) {
        self.servers.remove(server);
        for name in self.names.clone().into_keys() {
            self.wish((name, server.clone()), None, now);
        }
    }

    /// Nothing is to be mounted any more.
    pub fn clear(&mut self, now: Duration) {
        for server in std::mem::take(&mut self.servers) {
            self.remove_server(&server, now);
        }
        self.names.clear();
    }

    /// The next thing to do at `now`, if one is due. Whoever takes it tells [`Self::done`].
    pub fn next_deed(&mut self, now: Duration) -> Option<Deed> {
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            let (_, key) = self.due.pop_first()?;
            let Some(pair) = self.pairs.get_mut(&key) else { continue };
            pair.due = None;
            let act = match pair.wish {
                Some(target) => Act::Mount(target),
                None if pair.may_be_mounted(now) => Act::Unmount,
                None => {
                    self.pairs.remove(&key);
                    continue;
                }
            };
            let (name, server) = key;
            return Some(Deed { name, server, act });
        }
        None
    }

    /// When the next thing is due.
    pub fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// What came of a deed that was begun at `begun`. `chance`: any number.
    pub fn done(&mut self, deed: &Deed, outcome: Result<(), Error>, begun: Duration, now: Duration, chance: u64) {
        let (period, ttl) = (self.period, self.ttl());
        let key = (deed.name.clone(), deed.server.clone());
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        let until = begun.saturating_add(ttl);
        let pause = match (&outcome, deed.act) {
            (Ok(()), Act::Mount(_)) => {
                (pair.mounted_until, pair.doubtful_until) = (Some(until), None);
                period
            }
            (Ok(()), Act::Unmount) => {
                (pair.mounted_until, pair.doubtful_until) = (None, None);
                Duration::ZERO
            }
            (Err(error), act) => {
                if matches!(act, Act::Mount(_)) && error.reason == Reason::Unavailable {
                    pair.doubtful_until = Some(now.saturating_add(ttl));
                }
                let factor = 1_u32.checked_shl(pair.failures).unwrap_or(u32::MAX);
                RETRY.saturating_mul(factor).min(period / 2)
            }
        };
        pair.failures = if outcome.is_ok() { 0 } else { pair.failures.saturating_add(1) };
        pair.error = outcome.err();
        // What was wished for meanwhile is done at once.
        let is_wished = matches!((pair.wish, deed.act), (Some(_), Act::Mount(_)) | (None, Act::Unmount));
        let at = if is_wished { now.saturating_add(jittered(pause, chance)) } else { now };
        if pair.wish.is_none() && !pair.may_be_mounted(now) {
            self.pairs.remove(&key);
        } else {
            self.plan(key, at);
        }
    }

    /// All pairs, to be shown.
    pub fn status(&self, now: Duration) -> Status {
        let state = |pair: &Pair| match pair.wish {
            None => State::Unmounting,
            Some(_) if pair.mounted_until.is_some_and(|until| until > now) => State::Mounted,
            Some(_) => State::Mounting,
        };
        let shown = |((name, server), pair): (&Key, &Pair)| PairStatus {
            name: name.clone(),
            server: server.clone(),
            state: state(pair),
            error: pair.error.clone(),
        };
        Status {
            names: self.names.keys().cloned().collect(),
            servers: self.servers.iter().cloned().collect(),
            pairs: self.pairs.iter().map(shown).collect(),
        }
    }

    fn wish(&mut self, key: Key, wish: Option<Target>, now: Duration) {
        let is_under_way = match self.pairs.get_mut(&key) {
            Some(pair) if pair.wish == wish => return,
            Some(pair) => {
                (pair.wish, pair.failures) = (wish, 0);
                pair.due.is_none()
            }
            None if wish.is_none() => return,
            None => {
                self.pairs.insert(key.clone(), Pair::new(wish));
                false
            }
        };
        let may_be_mounted = is_under_way || self.pairs.get(&key).is_some_and(|pair| pair.may_be_mounted(now));
        if wish.is_none() && !may_be_mounted {
            self.unplan(&key);
            self.pairs.remove(&key);
        } else if !is_under_way {
            self.plan(key, now);
        }
    }

    fn plan(&mut self, key: Key, at: Duration) {
        self.unplan(&key);
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.due = Some(at);
            self.due.insert((at, key));
        }
    }

    fn unplan(&mut self, key: &Key) {
        if let Some(at) = self.pairs.get_mut(key).and_then(|pair| pair.due.take()) {
            self.due.remove(&(at, key.clone()));
        }
    }
}

impl Pair {
    const fn new(wish: Option<Target>) -> Self {
        Self { wish, due: None, mounted_until: None, doubtful_until: None, failures: 0, error: None }
    }

    fn may_be_mounted(&self, now: Duration) -> bool {
        [self.mounted_until, self.doubtful_until].iter().flatten().any(|until| *until > now)
    }
}

/// `around` give or take a tenth, so that those who began together do not stay together.
fn jittered(around: Duration, chance: u64) -> Duration {
    let nanos = u64::try_from(around.as_nanos()).unwrap_or(u64::MAX);
    let share = (u128::from(nanos / 5) * u128::from(chance)) >> 64;
    Duration::from_nanos((nanos - nanos / 10).saturating_add(u64::try_from(share).unwrap_or(0)))
}

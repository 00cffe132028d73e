//! The schedule of mounts and unmounts: a function of the desired state and the outcomes so far.
//!
//! ```text
//!   desired           mounted at once, then refreshed every period, plus or minus a tenth
//!   failed            retried after a second, two, four ..., at most half a period
//!   not desired       unmounted, with retries until that succeeds or the mount has expired
//! ```
//!
//! The time (of a monotonic clock) and random numbers are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_mounttable_tree::{Error, Reason, ServerAddress, Target};

/// The time to live of a mount beyond the period, for the refresh.
pub const SLACK: Duration = Duration::from_secs(20);

/// The delay after a first failure; each further one doubles it.
const RETRY: Duration = Duration::from_secs(1);

/// The kind of an action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ActionKind {
    /// Mount the server, as this kind.
    Mount(Target),
    /// Unmount it.
    Unmount,
}

/// An action on one pair of a name and a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Action {
    /// The name.
    pub name: String,
    /// The server.
    pub server: ServerAddress,
    /// Its kind.
    pub kind: ActionKind,
}

/// The state of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PairState {
    /// Desired, and not known to be mounted.
    Mounting,
    /// Mounted.
    Mounted,
    /// Not desired, and possibly still mounted.
    Unmounting,
}

/// The status of a pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairStatus {
    /// The name.
    pub name: String,
    /// The server.
    pub server: ServerAddress,
    /// Its state.
    pub state: PairState,
    /// The error of the last attempt, if it failed.
    pub error: Option<Error>,
}

/// The status of all pairs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PublisherStatus {
    /// The desired names.
    pub names: Vec<String>,
    /// The desired servers under each of them.
    pub servers: Vec<ServerAddress>,
    /// Each name with each server, and pairs that are still to be unmounted.
    pub pairs: Vec<PairStatus>,
}

type Key = (String, ServerAddress);

#[derive(Clone, Debug)]
struct Pair {
    /// The desired kind; `None`: unmounted.
    desired: Option<Target>,
    /// When the next action is due; `None` while one is in flight.
    due: Option<Duration>,
    /// The deadline of the last successful mount.
    mounted_until: Option<Duration>,
    /// The deadline of a mount whose outcome is unknown.
    possibly_mounted_until: Option<Duration>,
    failures: u32,
    error: Option<Error>,
}

/// The schedule of a publisher.
#[derive(Clone, Debug)]
pub struct Schedule {
    period: Duration,
    names: BTreeMap<String, Target>,
    servers: BTreeSet<ServerAddress>,
    pairs: BTreeMap<Key, Pair>,
    /// The due times of pairs without an action in flight.
    due: BTreeSet<(Duration, Key)>,
}

impl Schedule {
    /// An empty schedule. Mounts are refreshed every `period`.
    pub const fn new(period: Duration) -> Self {
        Self { period, names: BTreeMap::new(), servers: BTreeSet::new(), pairs: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// The time to live of a mount.
    pub fn ttl(&self) -> Duration {
        self.period.saturating_add(SLACK)
    }

    /// All servers shall be mounted under `name` as `target`.
    pub fn add_name(&mut self, name: &str, target: Target, now: Duration) {
        self.names.insert(name.to_owned(), target);
        for server in self.servers.clone() {
            self.set_desired((name.to_owned(), server), Some(target), now);
        }
    }

    /// No server shall be mounted under `name`.
    pub fn remove_name(&mut self, name: &str, now: Duration) {
        self.names.remove(name);
        for server in self.servers.clone() {
            self.set_desired((name.to_owned(), server), None, now);
        }
    }

    /// This server shall be mounted under all names.
    pub fn add_server(&mut self, server: &ServerAddress, now: Duration) {
        self.servers.insert(server.clone());
        for (name, target) in self.names.clone() {
            self.set_desired((name, server.clone()), Some(target), now);
        }
    }

    /// This server shall not be mounted.
    pub fn remove_server(&mut self, server: &ServerAddress, now: Duration) {
        self.servers.remove(server);
        for name in self.names.clone().into_keys() {
            self.set_desired((name, server.clone()), None, now);
        }
    }

    /// Nothing shall be mounted.
    pub fn clear(&mut self, now: Duration) {
        for server in std::mem::take(&mut self.servers) {
            self.remove_server(&server, now);
        }
        self.names.clear();
    }

    /// The next action that is due at `now`. Its outcome must be passed to [`Self::done`].
    pub fn next_action(&mut self, now: Duration) -> Option<Action> {
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            let (_, key) = self.due.pop_first()?;
            let Some(pair) = self.pairs.get_mut(&key) else { continue };
            pair.due = None;
            let kind = match pair.desired {
                Some(target) => ActionKind::Mount(target),
                None if pair.may_be_mounted(now) => ActionKind::Unmount,
                None => {
                    self.pairs.remove(&key);
                    continue;
                }
            };
            let (name, server) = key;
            return Some(Action { name, server, kind });
        }
        None
    }

    /// The time of the next action.
    pub fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Records the outcome of an action that began at `begun`. `chance`: a random number.
    pub fn done(&mut self, action: &Action, outcome: Result<(), Error>, begun: Duration, now: Duration, chance: u64) {
        let (period, ttl) = (self.period, self.ttl());
        let key = (action.name.clone(), action.server.clone());
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        let until = begun.saturating_add(ttl);
        let pause = match (&outcome, action.kind) {
            (Ok(()), ActionKind::Mount(_)) => {
                (pair.mounted_until, pair.possibly_mounted_until) = (Some(until), None);
                period
            }
            (Ok(()), ActionKind::Unmount) => {
                (pair.mounted_until, pair.possibly_mounted_until) = (None, None);
                Duration::ZERO
            }
            (Err(error), kind) => {
                if matches!(kind, ActionKind::Mount(_)) && error.reason == Reason::Unavailable {
                    pair.possibly_mounted_until = Some(now.saturating_add(ttl));
                }
                let factor = 1_u32.checked_shl(pair.failures).unwrap_or(u32::MAX);
                RETRY.saturating_mul(factor).min(period / 2)
            }
        };
        pair.failures = if outcome.is_ok() { 0 } else { pair.failures.saturating_add(1) };
        pair.error = outcome.err();
        // A change of the desired state takes effect at once.
        let is_current =
            matches!((pair.desired, action.kind), (Some(_), ActionKind::Mount(_)) | (None, ActionKind::Unmount));
        let at = if is_current { now.saturating_add(jittered(pause, chance)) } else { now };
        if pair.desired.is_none() && !pair.may_be_mounted(now) {
            self.pairs.remove(&key);
        } else {
            self.plan(key, at);
        }
    }

    /// The status of all pairs.
    pub fn status(&self, now: Duration) -> PublisherStatus {
        let state = |pair: &Pair| match pair.desired {
            None => PairState::Unmounting,
            Some(_) if pair.mounted_until.is_some_and(|until| until > now) => PairState::Mounted,
            Some(_) => PairState::Mounting,
        };
        let pair_status = |((name, server), pair): (&Key, &Pair)| PairStatus {
            name: name.clone(),
            server: server.clone(),
            state: state(pair),
            error: pair.error.clone(),
        };
        PublisherStatus {
            names: self.names.keys().cloned().collect(),
            servers: self.servers.iter().cloned().collect(),
            pairs: self.pairs.iter().map(pair_status).collect(),
        }
    }

    fn set_desired(&mut self, key: Key, desired: Option<Target>, now: Duration) {
        let is_under_way = match self.pairs.get_mut(&key) {
            Some(pair) if pair.desired == desired => return,
            Some(pair) => {
                (pair.desired, pair.failures) = (desired, 0);
                pair.due.is_none()
            }
            None if desired.is_none() => return,
            None => {
                self.pairs.insert(key.clone(), Pair::new(desired));
                false
            }
        };
        let may_be_mounted = is_under_way || self.pairs.get(&key).is_some_and(|pair| pair.may_be_mounted(now));
        if desired.is_none() && !may_be_mounted {
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
    const fn new(desired: Option<Target>) -> Self {
        Self { desired, due: None, mounted_until: None, possibly_mounted_until: None, failures: 0, error: None }
    }

    fn may_be_mounted(&self, now: Duration) -> bool {
        [self.mounted_until, self.possibly_mounted_until].iter().flatten().any(|until| *until > now)
    }
}

/// `around` plus or minus a tenth, so that publishers do not stay synchronised.
fn jittered(around: Duration, chance: u64) -> Duration {
    let nanos = u64::try_from(around.as_nanos()).unwrap_or(u64::MAX);
    let share = (u128::from(nanos / 5) * u128::from(chance)) >> 64;
    Duration::from_nanos((nanos - nanos / 10).saturating_add(u64::try_from(share).unwrap_or(0)))
}

//! The users of the names while servers are killed, each as a task that runs until it is stopped.
//!
//! | user | does | knows |
//! |---|---|---|
//! | [`Owner`] | mounts, resolves, unmounts, deletes names of its own, below nodes that all share | what was promised of each |
//! | [`duel`] | one mounts what another one deletes | that neither is refused |
//! | [`Server`] | renews its own mount | until when it must be found |
//! | [`watch`], [`list`] | resolve and list those servers | that each is found, however old the answer says it is |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use ebla_mounttable_tree::{Error, Reason};
use ebla_runtime::{Clock, Rng, Runtime};
use ebla_workload::bench::names::session::Session;

use crate::mounttables::expectations::{CallOutcome, Expectations};
use crate::mounttables::observations::{Observations, is_trouble};

/// Timeout of a call: the timeout of the storage is 20 s, several times for one call.
const CALL_MAX: Duration = Duration::from_secs(120);
/// Timeout until a change is visible through the same server, usually a second.
const SEEN_MAX: Duration = Duration::from_secs(60);
/// Pause after an error, because a call to a stopped server fails at once; also between the repetitions of a loop, to
/// leave processor time to others.
const PAUSE: Duration = Duration::from_millis(20);
/// Nodes shared by all owners, which are created and deleted with their children.
const WAYS: [&str; 3] = ["a", "a/b", "a/c/d/e"];
/// Names of an owner.
const NAMES: u64 = 10;
/// Mounts and deletions of a duel, before both wait for each other.
const ROUND: usize = 25;
/// Time to live of mounts, longer than any outage.
pub(crate) const TTL: Duration = Duration::from_secs(240);
/// Margin for the time between a response and reading the clock.
const MARGIN: Duration = Duration::from_secs(5);

/// What every user has.
#[derive(Clone)]
pub(crate) struct User {
    /// The same table through each mounttable.
    pub(crate) sessions: Vec<Session>,
    pub(crate) rng: Rng,
    pub(crate) clock: Clock,
    pub(crate) observations: Arc<Observations>,
    pub(crate) stop: Arc<AtomicBool>,
}

impl User {
    /// A user with this name that calls the servers at `addresses`.
    pub(crate) fn new(
        runtime: &Runtime,
        addresses: &[String],
        called: &str,
        observations: &Arc<Observations>,
        stop: &Arc<AtomicBool>,
    ) -> Self {
        let way = |address: &String| Session::new(&runtime.net.channel(address), called).unwrap();
        Self {
            sessions: addresses.iter().map(way).collect(),
            rng: runtime.rng.fork(),
            clock: runtime.clock.clone(),
            observations: observations.clone(),
            stop: stop.clone(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn below(&self, bound: usize) -> usize {
        usize::try_from(self.rng.below(u64::try_from(bound).unwrap())).unwrap()
    }

    /// Any of the mounttables.
    pub(crate) fn session(&self) -> Session {
        self.sessions[self.below(self.sessions.len())].clone()
    }

    /// Whether this deadline, in microseconds since the epoch, is certainly in the future.
    fn is_within(&self, deadline: i64) -> bool {
        deadline > self.clock.wall().plus(MARGIN).get()
    }

    /// How a change has ended.
    async fn ended<T>(&self, what: &str, call: impl Future<Output = Result<T, Error>>) -> (CallOutcome, Option<T>) {
        let outcome = in_time(call).await;
        let ended = self.observations.ended(what, &outcome);
        if ended == CallOutcome::Unknown {
            tokio::time::sleep(PAUSE).await;
        }
        (ended, outcome.ok())
    }
}

/// Without an answer the outcome is not known.
pub(crate) async fn in_time<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_elapsed| Err(Error::new(Reason::Unavailable, format!("no answer in {CALL_MAX:?}")));
    tokio::time::timeout(CALL_MAX, call).await.unwrap_or_else(late)
}

/// The servers that a name leads to, none if it leads nowhere, and whether that is of now.
pub(crate) async fn found(way: &mut Session, name: &str) -> Result<(BTreeSet<String>, bool), Error> {
    match in_time(way.resolve(name, 0)).await {
        Ok(entry) if entry.name.is_empty() => {
            Ok((entry.servers.into_iter().map(|server| server.address).collect(), !entry.stale))
        }
        Ok(entry) => Err(Error::new(Reason::Damaged, format!("{name} leads to {} elsewhere", entry.name))),
        Err(error) if error.reason == Reason::NoSuchName => Ok((BTreeSet::new(), true)),
        Err(error) => Err(error),
    }
}

/// A user with its own names.
pub(crate) struct Owner {
    user: User,
    number: usize,
    /// Part of the names; changed when a name becomes indeterminate.
    generation: usize,
    serial: usize,
    expectations: Expectations,
}

impl Owner {
    pub(crate) fn new(user: User, number: usize) -> Self {
        Self { user, number, generation: 0, serial: 0, expectations: Expectations::default() }
    }

    /// Runs until it is stopped; returns the expectations.
    pub(crate) async fn run(mut self) -> Expectations {
        while self.user.is_running() {
            self.step().await;
        }
        self.expectations
    }

    async fn step(&mut self) {
        let way = WAYS[(self.number + self.generation) % WAYS.len()];
        let folder = format!("{way}/owner-{}-{}", self.number, self.generation);
        let name = format!("{folder}/{}", self.user.rng.below(NAMES));
        let mut at = self.user.session();
        let ended = match self.user.rng.below(10) {
            0..5 => {
                self.serial += 1;
                let server = format!("owner-{}-{}:1", self.number, self.serial);
                let (ended, _) = self.user.ended("mount", at.mount(&name, &server, Duration::ZERO)).await;
                self.expectations.mounted(&name, &server, ended);
                ended
            }
            5..8 => {
                let (ended, _) = self.user.ended("unmount", at.unmount(&name)).await;
                self.expectations.emptied(&name, ended);
                ended
            }
            8 => {
                let (ended, _) = self.user.ended("delete", at.delete(&name)).await;
                self.expectations.deleted(&name, ended);
                ended
            }
            _ => {
                let (ended, _) = self.user.ended("delete", at.delete(&folder)).await;
                self.expectations.deleted(&folder, ended);
                ended
            }
        };
        if ended == CallOutcome::Acknowledged {
            self.is_seen(&mut at, &name).await;
        }
        if self.expectations.is_indeterminate(&name) {
            self.generation += 1;
        }
    }

    /// A user sees their own change through the same server.
    async fn is_seen(&self, at: &mut Session, name: &str) {
        let deadline = self.user.clock.monotonic() + SEEN_MAX;
        loop {
            match found(at, name).await {
                Ok((servers, true)) if self.expectations.allows(name, &servers) => return,
                Ok((servers, true)) if self.user.clock.monotonic() > deadline => {
                    return self.user.observations.add_violation(format!("{name} still leads to {servers:?}"));
                }
                Ok((_, true)) => tokio::time::sleep(PAUSE).await,
                // The state may have changed since the stale response.
                Ok((_, false)) => return self.user.observations.was_stale(),
                Err(error) if is_trouble(&error) => return,
                Err(error) => {
                    return self.user.observations.add_violation(format!("resolve {name}: {error} ({})", error.reason));
                }
            }
        }
    }
}

/// Two users repeatedly mount and delete the same name.
pub(crate) async fn duel(user: User, mounted: String, deleted: String) {
    while user.is_running() {
        let mount = async {
            for _ in 0..ROUND {
                user.ended("concurrent mount", user.session().mount(&mounted, "duel:1", Duration::ZERO)).await;
            }
        };
        let delete = async {
            for _ in 0..ROUND {
                user.ended("concurrent delete", user.session().delete(&deleted)).await;
            }
        };
        futures::join!(mount, delete);
    }
}

/// A server that renews its mount.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: String,
    /// When the last acknowledged mount ends, in microseconds since the epoch; 0: none was.
    deadline: AtomicI64,
}

impl Server {
    pub(crate) fn new(name: &str, address: String) -> Self {
        Self { name: name.to_owned(), address, deadline: AtomicI64::new(0) }
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.deadline.load(Ordering::Relaxed) > 0
    }

    /// Until when it must be found by lookups sent from now on.
    fn deadline(&self) -> i64 {
        self.deadline.load(Ordering::Relaxed)
    }
}

/// Renews the mounts of all servers in turn.
pub(crate) async fn publish(user: User, servers: Vec<Arc<Server>>) {
    while user.is_running() {
        for server in &servers {
            let mount = async { user.session().mount(&server.name, &server.address, TTL).await };
            let (_, reply) = user.ended("mount again", mount).await;
            if let Some(deadline) = reply.and_then(|reply| reply.deadline_micros) {
                server.deadline.fetch_max(deadline, Ordering::Relaxed);
            }
            // All of them are there soon; after that nothing is urgent.
            if servers.iter().all(|server| server.is_mounted()) {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Looks for each of them in turn, through the mounttable of this number. What was found there once is found from then on:
/// before, it may remember for a moment that nothing was there.
pub(crate) async fn watch(user: User, at: usize, servers: Vec<Arc<Server>>) {
    let mut at = user.sessions[at].clone();
    let mut seen = BTreeSet::new();
    while user.is_running() {
        for server in &servers {
            let deadline = server.deadline();
            match found(&mut at, &server.name).await {
                Ok((servers, is_fresh)) => {
                    if !is_fresh {
                        user.observations.was_stale();
                    }
                    if servers.contains(&server.address) {
                        seen.insert(server.name.as_str());
                    } else if user.is_within(deadline) && seen.contains(server.name.as_str()) {
                        user.observations.add_violation(format!("{} leads to {servers:?}, not to itself", server.name));
                    }
                }
                Err(error) if is_trouble(&error) => {}
                Err(error) => {
                    user.observations.add_violation(format!("resolve {}: {error} ({})", server.name, error.reason))
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Repeatedly lists the names of the servers, which are below `folder`.
pub(crate) async fn list(user: User, folder: &'static str, servers: Vec<Arc<Server>>) {
    while user.is_running() {
        let deadlines: Vec<_> = servers.iter().map(|server| server.deadline()).collect();
        match in_time(user.session().list(&format!("{folder}/*"))).await {
            Ok(listed) => {
                let is_listed = |server: &Server| {
                    listed.iter().any(|(name, found)| *name == server.name && found.contains(&server.address))
                };
                for (server, deadline) in servers.iter().zip(deadlines) {
                    if user.is_within(deadline) && !is_listed(server) {
                        user.observations.add_violation(format!("{} is not listed", server.name));
                    }
                }
            }
            Err(error) if is_trouble(&error) => {}
            Err(error) => user.observations.add_violation(format!("list {folder}: {error} ({})", error.reason)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

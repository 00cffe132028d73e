//! Who uses the names while servers are killed, each as a task that ends when it is told to.
//!
//! | user | does | knows |
//! |---|---|---|
//! | [`Owner`] | mounts, resolves, unmounts, deletes names of its own, below nodes that all share | what was promised of each |
//! | [`duel`] | one mounts what another one deletes | that neither is refused |
//! | [`Server`] | mounts itself again and again | until when it must be found |
//! | [`watch`], [`list`] | resolve and list those servers | that each is found, however old the answer says it is |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use ebla_cli::bench::names::caller::Caller;
use ebla_mounttable::{Error, Reason};
use ebla_proto::mounttable::glob_reply::Reply;
use ebla_runtime::{Clock, Rng, Runtime};

use crate::mounttables::promises::{Ended, Promises};
use crate::mounttables::tally::{Tally, is_trouble};

/// A call that has no answer by then never gets one: the storage gives up after 20 s, several times for one call.
const CALL_MAX: Duration = Duration::from_secs(120);
/// What was done through a server is seen through it in a second (others may have made what lies above); this is late.
const SEEN_MAX: Duration = Duration::from_secs(60);
/// After an error, because a server that is gone answers at once; and of those who do the same again and again, so that they
/// leave something of the machine to others.
const PAUSE: Duration = Duration::from_millis(20);
/// Nodes that all owners share, and that come and go with what is below them.
const WAYS: [&str; 3] = ["a", "a/b", "a/c/d/e"];
/// Names of an owner.
const NAMES: u64 = 10;
/// Mounts and deletions of a duel, before both wait for each other.
const ROUND: usize = 25;
/// For how long a server is mounted: longer than any trouble.
pub(crate) const TTL: Duration = Duration::from_secs(240);
/// What lies between an answer and the look at the clock.
const MARGIN: Duration = Duration::from_secs(5);

/// What every user has.
#[derive(Clone)]
pub(crate) struct User {
    /// The same table through each mounttable.
    pub(crate) ways: Vec<Caller>,
    pub(crate) rng: Rng,
    pub(crate) clock: Clock,
    pub(crate) tally: Arc<Tally>,
    pub(crate) stop: Arc<AtomicBool>,
}

impl User {
    /// Somebody called so, who may ask at each of `addresses`.
    pub(crate) fn new(
        runtime: &Runtime,
        addresses: &[String],
        called: &str,
        tally: &Arc<Tally>,
        stop: &Arc<AtomicBool>,
    ) -> Self {
        let way = |address: &String| Caller::new(&runtime.net.channel(address), called).unwrap();
        Self {
            ways: addresses.iter().map(way).collect(),
            rng: runtime.rng.fork(),
            clock: runtime.clock.clone(),
            tally: tally.clone(),
            stop: stop.clone(),
        }
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn below(&self, bound: usize) -> usize {
        usize::try_from(self.rng.below(u64::try_from(bound).unwrap())).unwrap()
    }

    /// Any of the mounttables.
    pub(crate) fn way(&self) -> Caller {
        self.ways[self.below(self.ways.len())].clone()
    }

    /// Whether this deadline, in microseconds since the epoch, is surely not over.
    fn is_within(&self, deadline: i64) -> bool {
        deadline > self.clock.wall().plus(MARGIN).get()
    }

    /// How a change has ended.
    async fn ended<T>(&self, what: &str, call: impl Future<Output = Result<T, Error>>) -> (Ended, Option<T>) {
        let outcome = in_time(call).await;
        let ended = self.tally.ended(what, &outcome);
        if ended == Ended::Unknown {
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
pub(crate) async fn found(way: &mut Caller, name: &str) -> Result<(BTreeSet<String>, bool), Error> {
    match in_time(way.resolve(name, 0)).await {
        Ok(entry) if entry.name.is_empty() => {
            Ok((entry.servers.into_iter().map(|server| server.address).collect(), !entry.stale))
        }
        Ok(entry) => Err(Error::new(Reason::Damaged, format!("{name} leads to {} elsewhere", entry.name))),
        Err(error) if error.reason == Reason::NoSuchName => Ok((BTreeSet::new(), true)),
        Err(error) => Err(error),
    }
}

/// Has names of its own.
pub(crate) struct Owner {
    user: User,
    number: usize,
    /// Names are given up when nobody knows any more what may become of them.
    generation: usize,
    serial: usize,
    promises: Promises,
}

impl Owner {
    pub(crate) fn new(user: User, number: usize) -> Self {
        Self { user, number, generation: 0, serial: 0, promises: Promises::default() }
    }

    /// Until it is told to end; what was promised to it.
    pub(crate) async fn run(mut self) -> Promises {
        while self.user.goes_on() {
            self.step().await;
        }
        self.promises
    }

    async fn step(&mut self) {
        let way = WAYS[(self.number + self.generation) % WAYS.len()];
        let folder = format!("{way}/owner-{}-{}", self.number, self.generation);
        let name = format!("{folder}/{}", self.user.rng.below(NAMES));
        let mut at = self.user.way();
        let ended = match self.user.rng.below(10) {
            0..5 => {
                self.serial += 1;
                let server = format!("owner-{}-{}:1", self.number, self.serial);
                let (ended, _) = self.user.ended("mount", at.mount(&name, &server, Duration::ZERO)).await;
                self.promises.mounted(&name, &server, ended);
                ended
            }
            5..8 => {
                let (ended, _) = self.user.ended("unmount", at.unmount(&name)).await;
                self.promises.emptied(&name, ended);
                ended
            }
            8 => {
                let (ended, _) = self.user.ended("delete", at.delete(&name)).await;
                self.promises.deleted(&name, ended);
                ended
            }
            _ => {
                let (ended, _) = self.user.ended("delete", at.delete(&folder)).await;
                self.promises.deleted(&folder, ended);
                ended
            }
        };
        if ended == Ended::Acknowledged {
            self.is_seen(&mut at, &name).await;
        }
        if self.promises.is_doubted(&name) {
            self.generation += 1;
        }
    }

    /// Whoever did it sees it where he did it.
    async fn is_seen(&self, at: &mut Caller, name: &str) {
        let deadline = self.user.clock.monotonic() + SEEN_MAX;
        loop {
            match found(at, name).await {
                Ok((servers, true)) if self.promises.allow(name, &servers) => return,
                Ok((servers, true)) if self.user.clock.monotonic() > deadline => {
                    return self.user.tally.complain(format!("{name} still leads to {servers:?}"));
                }
                Ok((_, true)) => tokio::time::sleep(PAUSE).await,
                // Another one may have done something since what is told was true.
                Ok((_, false)) => return self.user.tally.was_stale(),
                Err(error) if is_trouble(&error) => return,
                Err(error) => return self.user.tally.complain(format!("resolve {name}: {error} ({})", error.reason)),
            }
        }
    }
}

/// One mounts what the other one deletes, so often, again and again.
pub(crate) async fn duel(user: User, mounted: String, deleted: String) {
    while user.goes_on() {
        let mount = async {
            for _ in 0..ROUND {
                user.ended("mount in a duel", user.way().mount(&mounted, "duel:1", Duration::ZERO)).await;
            }
        };
        let delete = async {
            for _ in 0..ROUND {
                user.ended("delete in a duel", user.way().delete(&deleted)).await;
            }
        };
        futures::join!(mount, delete);
    }
}

/// Mounts itself, alone or beside others.
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

    /// Until when it must be found by whoever asks from now on.
    fn deadline(&self) -> i64 {
        self.deadline.load(Ordering::Relaxed)
    }
}

/// Mounts each of them in turn.
pub(crate) async fn publish(user: User, servers: Vec<Arc<Server>>) {
    while user.goes_on() {
        for server in &servers {
            let mount = async { user.way().mount(&server.name, &server.address, TTL).await };
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
    let mut at = user.ways[at].clone();
    let mut seen = BTreeSet::new();
    while user.goes_on() {
        for server in &servers {
            let deadline = server.deadline();
            match found(&mut at, &server.name).await {
                Ok((servers, is_fresh)) => {
                    if !is_fresh {
                        user.tally.was_stale();
                    }
                    if servers.contains(&server.address) {
                        seen.insert(server.name.as_str());
                    } else if user.is_within(deadline) && seen.contains(server.name.as_str()) {
                        user.tally.complain(format!("{} leads to {servers:?}, not to itself", server.name));
                    }
                }
                Err(error) if is_trouble(&error) => {}
                Err(error) => user.tally.complain(format!("resolve {}: {error} ({})", server.name, error.reason)),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lists the names below `folder` again and again, which are those of the servers.
pub(crate) async fn list(user: User, folder: &'static str, servers: Vec<Arc<Server>>) {
    while user.goes_on() {
        let deadlines: Vec<_> = servers.iter().map(|server| server.deadline()).collect();
        match in_time(listing(&mut user.way(), &format!("{folder}/*"))).await {
            Ok(listed) => {
                let is_listed = |server: &Server| {
                    listed.iter().any(|(name, found)| *name == server.name && found.contains(&server.address))
                };
                for (server, deadline) in servers.iter().zip(deadlines) {
                    if user.is_within(deadline) && !is_listed(server) {
                        user.tally.complain(format!("{} is not listed", server.name));
                    }
                }
            }
            Err(error) if is_trouble(&error) => {}
            Err(error) => user.tally.complain(format!("list {folder}: {error} ({})", error.reason)),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Every name that a pattern asks for, with its servers.
///
/// # Errors
/// Also when a part of it could not be listed.
pub(crate) async fn listing(at: &mut Caller, pattern: &str) -> Result<Vec<(String, BTreeSet<String>)>, Error> {
    let mut replies = at.glob("", pattern).await?;
    let mut listed = Vec::new();
    let failed = |status| ebla_mounttable::service::messages::error(&status);
    while let Some(reply) = replies.message().await.map_err(failed)? {
        match reply.reply {
            Some(Reply::Entry(entry)) => {
                listed.push((entry.name, entry.servers.into_iter().map(|server| server.address).collect()));
            }
            Some(Reply::Error(error)) => {
                return Err(Error::new(Reason::Unavailable, error.failure.unwrap_or_default().message));
            }
            Some(Reply::Summary(_)) | None => {}
        }
    }
    Ok(listed)
}

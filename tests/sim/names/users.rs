//! The clients of the mounttable under faults, as workers of one host.
//!
//! | worker | does |
//! |---|---|
//! | owners | mount servers without a deadline on names that all share, unmount and delete them |
//! | publishers | mount a server for a few seconds, again and again; sometimes they pause, so that it expires |
//! | watchers | resolve and list all names |
//! | duellists | send pairs of calls at the same moment: see `duels` |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_mounttable_tree::Error as TreeError;
use ebla_runtime::{Rng, Runtime};
use ebla_tests::mounts::{CallNumber, Reach};
use ebla_workload::bench::names::session::Session;

use super::{duels, in_time, is_trouble, list, look_up, sessions};
use crate::cluster::{Phase, SimCluster};
use crate::load::wait_for;
use crate::time::{self, HostTime};

/// Workers that share names.
const OWNERS: u32 = 3;
/// Workers with a server each.
const PUBLISHERS: u32 = 4;
/// Workers that only read.
const WATCHERS: u32 = 2;
/// Nodes that all owners share, created and deleted with their children.
const FOLDERS: [&str; 3] = ["a", "a/b", "c/d/e"];
/// Names in a folder.
const NAMES: u64 = 3;
/// Timeout of a call. The servers may still complete a change after that.
pub(super) const CALL: Duration = Duration::from_secs(8);
/// Between two operations of a worker, about.
const PAUSE: Duration = Duration::from_millis(60);
/// After an error, about.
const AFTER_ERROR: Duration = Duration::from_millis(200);
/// For how long publishers mount their servers.
pub(super) const TTL: Duration = Duration::from_secs(4);
/// The folder of the published names.
const PUBLISHED: &str = "servers";

/// The host of all workers: they run until the load ends.
pub(crate) async fn client(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("names", &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    let generations: Arc<[AtomicU64; FOLDERS.len()]> = Arc::default();
    let user = |kind: &str, number: u32| {
        let name = format!("{kind}-{number}");
        let sessions = sessions(&cluster, &runtime, &name);
        User { cluster: &cluster, runtime: &runtime, rng: runtime.rng.fork(), name, sessions }
    };
    let owners = (0..OWNERS).map(|number| {
        let generations = Arc::clone(&generations);
        Owner { user: user("owner", number), generations, sent: 0 }.run()
    });
    let publishers = (0..PUBLISHERS).map(|number| publish(user("publisher", number)));
    let watchers = (0..WATCHERS).map(|number| watch(user("watcher", number), Arc::clone(&generations)));
    let duellists = (0..cluster.duels).map(|number| duels::fight(user("duellist", number), number));
    tokio::join!(
        futures::future::join_all(owners),
        futures::future::join_all(publishers),
        futures::future::join_all(watchers),
        futures::future::join_all(duellists)
    );
    cluster.drained.fetch_add(1, Ordering::Relaxed);
    cluster.note("names", "drained", "");
    Ok(())
}

/// What every worker has.
pub(super) struct User<'a> {
    pub(super) cluster: &'a SimCluster,
    runtime: &'a Runtime,
    pub(super) rng: Rng,
    pub(super) name: String,
    /// One for each server.
    pub(super) sessions: Vec<Session>,
}

impl User<'_> {
    pub(super) fn is_running(&self) -> bool {
        self.cluster.phase() == Phase::Load
    }

    /// A session with any of the servers.
    pub(super) fn session(&self) -> Session {
        self.sessions[usize::try_from(self.rng.below(self.sessions.len() as u64)).unwrap()].clone()
    }

    /// Notes the outcome of a call. A refusal is a violation; after an error there is a pause.
    pub(super) async fn ended<T>(&self, kind: &str, what: &str, outcome: &Result<T, TreeError>) {
        let reason = outcome.as_ref().err().map_or("ok", |error| error.reason.name());
        let counted = if outcome.is_ok() { "names-ok" } else { "names-failed" };
        self.cluster.trace.lock().count(time::elapsed(), &self.name, counted, &format!("{kind} {what} {reason}"));
        let pause = match outcome {
            Ok(_) => PAUSE,
            Err(error) => {
                if !is_trouble(error) {
                    let wrong = format!("names: {kind} {what} was refused: {} ({reason})", error.message);
                    self.cluster.history.lock().wrong.push(wrong);
                }
                AFTER_ERROR
            }
        };
        tokio::time::sleep(self.rng.jitter(pause)).await;
    }

    /// Mounts a server; returns whether that was acknowledged.
    pub(super) async fn mount(&self, name: &str, server: &str, ttl: Duration) -> bool {
        let number = self.cluster.names.lock().begin_mount(name, server, time::elapsed());
        let outcome = in_time(CALL, self.session().mount(name, server, ttl)).await;
        if let Ok(reply) = &outcome {
            let deadline = reply.deadline_micros.map(time::since_epoch);
            self.cluster.names.lock().acknowledge_mount(number, time::elapsed(), deadline);
        }
        self.ended("mount", name, &outcome).await;
        outcome.is_ok()
    }

    fn begin_removal(&self, node: &str, reach: Reach) -> CallNumber {
        self.cluster.names.lock().begin_removal(node, reach, time::elapsed())
    }

    fn acknowledge_removal(&self, number: CallNumber) {
        self.cluster.names.lock().acknowledge_removal(number, time::elapsed());
    }

    /// Resolves a name through any server.
    async fn look(&self, name: &str) {
        let outcome = look_up(self.cluster, &mut self.session(), name, CALL).await;
        let servers: BTreeSet<String> = outcome.as_ref().cloned().unwrap_or_default();
        self.ended("resolve", &format!("{name} {servers:?}"), &outcome).await;
    }
}

/// A worker that changes names which it shares with others.
struct Owner<'a> {
    user: User<'a>,
    /// Part of the names of each folder. After a removal of unknown outcome nothing is known of a name any more, so others are used.
    generations: Arc<[AtomicU64; FOLDERS.len()]>,
    sent: u64,
}

/// The names of a folder are in this node at present.
fn node(generations: &[AtomicU64], folder: usize) -> String {
    format!("{}/{}", FOLDERS[folder], generations[folder].load(Ordering::Relaxed))
}

impl Owner<'_> {
    async fn run(mut self) {
        while self.user.is_running() {
            let folder = usize::try_from(self.user.rng.below(FOLDERS.len() as u64)).unwrap();
            let node = node(&*self.generations, folder);
            let name = format!("{node}/{}", self.user.rng.below(NAMES));
            match self.user.rng.below(20) {
                0..9 => {
                    self.sent += 1;
                    let server = format!("{}-{}:1", self.user.name, self.sent);
                    if self.user.mount(&name, &server, Duration::ZERO).await {
                        self.user.look(&name).await;
                    }
                }
                9..15 => self.remove("unmount", folder, &name, Reach::Node).await,
                15..18 => self.remove("delete", folder, &name, Reach::Subtree).await,
                18 => self.remove("delete", folder, &node, Reach::Subtree).await,
                _ => self.user.look(&name).await,
            }
        }
    }

    async fn remove(&self, kind: &str, folder: usize, node: &str, reach: Reach) {
        let number = self.user.begin_removal(node, reach);
        let mut session = self.user.session();
        let outcome = in_time(CALL, async {
            match reach {
                Reach::Node => session.unmount(node).await.map(drop),
                Reach::Subtree => session.delete(node).await.map(drop),
            }
        })
        .await;
        if outcome.is_ok() {
            self.user.acknowledge_removal(number);
        } else {
            self.generations[folder].fetch_add(1, Ordering::Relaxed);
        }
        self.user.ended(kind, node, &outcome).await;
    }
}

/// Keeps a server mounted, with pauses in which it expires.
async fn publish(user: User<'_>) {
    let name = format!("{PUBLISHED}/{}", user.name);
    let mut number = 0;
    while user.is_running() {
        let is_mounted = user.mount(&name, &format!("{}-{number}:1", user.name), TTL).await;
        if !is_mounted {
            // It may be mounted at any time from now on, so nothing can be said of this server any more.
            number += 1;
        }
        let pause = match user.rng.below(8) {
            // The server expires at about the time at which it is mounted again, or for a while.
            0 => TTL.saturating_sub(Duration::from_millis(user.rng.below(200))),
            1 => TTL * 2,
            _ => user.rng.jitter(TTL / 4),
        };
        let pause = if is_mounted { pause } else { AFTER_ERROR };
        let end = time::elapsed() + pause;
        while user.is_running() && time::elapsed() < end {
            tokio::time::sleep(user.runtime.rng.jitter(PAUSE)).await;
        }
    }
}

/// Reads names.
async fn watch(user: User<'_>, generations: Arc<[AtomicU64; FOLDERS.len()]>) {
    while user.is_running() {
        match user.rng.below(10) {
            0..6 => user.look(&format!("{PUBLISHED}/publisher-{}", user.rng.below(PUBLISHERS.into()))).await,
            6..9 => {
                let folder = usize::try_from(user.rng.below(FOLDERS.len() as u64)).unwrap();
                user.look(&format!("{}/{}", node(&*generations, folder), user.rng.below(NAMES))).await;
            }
            _ => {
                let outcome = list(user.cluster, &mut user.session(), PUBLISHED, CALL).await;
                user.ended("list", PUBLISHED, &outcome).await;
            }
        }
    }
}

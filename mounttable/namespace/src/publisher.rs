//! [`Publisher`]: keeps servers mounted under names for as long as it lives. The shell around [`agenda`].
//!
//! One task owns the agenda; the handle sends it wishes and watches what comes of them. A publisher that is shut down
//! takes away what it mounted; one that is killed leaves it to its deadline, which is at most a period and
//! [`agenda::SLACK`] away.

pub mod agenda;

use std::time::Duration;

use ebla_mounttable::{Error, ServerAddress, Target, naming};
use ebla_runtime::{Rng, Tasks};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use crate::change::MountOptions;
use crate::namespace::Namespace;
use crate::publisher::agenda::{Act, Agenda, Deed};

pub use crate::publisher::agenda::{PairStatus, State, Status};

/// How often a mount is made anew, unless told otherwise.
pub const PERIOD: Duration = Duration::from_secs(60);

/// Mounts that are made at the same time.
const TOGETHER: usize = 32;

/// Wishes that wait for the task; then whoever wishes waits.
const WAITING_MAX: usize = 64;

/// How long taking away may take in the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Beyond this the task is dropped.
const GRACE: Duration = Duration::from_secs(6);

/// Looks at the agenda at least this often: a state may change by the time alone.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Mounts servers under names, again and again. Every server is mounted under every name. Dropped, it is shut down in
/// the background.
#[derive(Debug)]
pub struct Publisher {
    wishes: mpsc::Sender<Wish>,
    status: watch::Receiver<Status>,
    tasks: Tasks,
}

#[derive(Debug)]
enum Wish {
    AddName(String, Target),
    RemoveName(String),
    AddServer(ServerAddress),
    RemoveServer(ServerAddress),
}

impl Publisher {
    /// Mounts through `namespace`, anew every `period` ([`PERIOD`] is a good one), give or take a tenth.
    pub fn start(namespace: &Namespace, period: Duration) -> Self {
        let runtime = &namespace.0.runtime;
        let tasks = runtime.tasks.child("publisher");
        let (wishes, heard) = mpsc::channel(WAITING_MAX);
        let (shown, status) = watch::channel(Status::default());
        let agenda = Agenda::new(period);
        let work = Work {
            namespace: namespace.clone(),
            agenda,
            rng: runtime.rng.fork(),
            shown,
            under_way: FuturesUnordered::new(),
        };
        let token = tasks.token();
        tasks.spawn("publish", async move {
            let mut work = work;
            token.run_until_cancelled(work.run(heard)).await;
            if tokio::time::timeout(FAREWELL, work.end()).await.is_err() {
                warn!("not all mounts could be taken away: they end at their deadlines");
            }
        });
        Self { wishes, status, tasks }
    }

    /// Mounts all servers under this name too. Of a name that is there, what the servers are is changed when their
    /// present mounts have ended: a table refuses to have one server as two sorts.
    pub async fn add_name(&self, name: &str, target: Target) {
        self.wish(Wish::AddName(naming::clean(name), target)).await;
    }

    /// Takes all servers away from this name.
    pub async fn remove_name(&self, name: &str) {
        self.wish(Wish::RemoveName(naming::clean(name))).await;
    }

    /// Mounts this server too.
    pub async fn add_server(&self, server: ServerAddress) {
        self.wish(Wish::AddServer(server)).await;
    }

    /// Takes this server away from all names.
    pub async fn remove_server(&self, server: ServerAddress) {
        self.wish(Wish::RemoveServer(server)).await;
    }

    /// What is mounted, what is not, and why; changes as it changes.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Takes away what is mounted, with one try each, and ends. Waits for that, at most some seconds.
    pub async fn shutdown(self) {
        self.tasks.stop(GRACE).await;
    }

    async fn wish(&self, wish: Wish) {
        // It has ended when its runtime has been stopped: then nothing can be mounted any more.
        drop(self.wishes.send(wish).await);
    }
}

/// A deed, when it was begun, and what came of it.
type Done = (Deed, Duration, Result<(), Error>);

/// What the task owns.
struct Work {
    namespace: Namespace,
    agenda: Agenda,
    rng: Rng,
    shown: watch::Sender<Status>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl Work {
    /// Until nobody wishes any more.
    async fn run(&mut self, mut wishes: mpsc::Receiver<Wish>) {
        loop {
            self.begin_what_is_due();
            self.show();
            let now = self.now();
            let pause = self.agenda.next_due().map_or(LOOK_MAX, |at| at.saturating_sub(now).min(LOOK_MAX));
            let is_free = self.under_way.len() < TOGETHER;
            tokio::select! {
                wish = wishes.recv() => match wish {
                    Some(wish) => self.note(wish, now),
                    None => return,
                },
                Some(done) = self.under_way.next() => self.done(done),
                () = tokio::time::sleep(pause), if is_free => {}
            }
        }
    }

    /// Takes away what is mounted: what is under way first, or it might come after.
    async fn end(&mut self) {
        while let Some(done) = self.under_way.next().await {
            self.done(done);
        }
        self.agenda.clear(self.now());
        // What fails is due again later: everything that is due now is tried once.
        self.begin_what_is_due();
        while let Some(done) = self.under_way.next().await {
            self.done(done);
            self.begin_what_is_due();
        }
        self.show();
    }

    fn begin_what_is_due(&mut self) {
        let now = self.now();
        while self.under_way.len() < TOGETHER
            && let Some(deed) = self.agenda.next_deed(now)
        {
            let (namespace, ttl) = (self.namespace.clone(), self.agenda.ttl());
            let doing = async move {
                let outcome = carry_out(&namespace, &deed, ttl).await;
                (deed, now, outcome)
            };
            self.under_way.push(doing.boxed());
        }
    }

    fn note(&mut self, wish: Wish, now: Duration) {
        match wish {
            Wish::AddName(name, target) => self.agenda.add_name(&name, target, now),
            Wish::RemoveName(name) => self.agenda.remove_name(&name, now),
            Wish::AddServer(server) => self.agenda.add_server(&server, now),
            Wish::RemoveServer(server) => self.agenda.remove_server(&server, now),
        }
    }

    fn done(&mut self, (deed, begun, outcome): Done) {
        if let Err(error) = &outcome {
            debug!(name = %deed.name, server = %deed.server, act = ?deed.act, %error, "publish failed");
        }
        let now = self.now();
        self.agenda.done(&deed, outcome, begun, now, self.rng.u64());
    }

    fn show(&self) {
        let status = self.agenda.status(self.now());
        self.shown.send_if_modified(|shown| {
            let is_news = *shown != status;
            *shown = status;
            is_news
        });
    }

    fn now(&self) -> Duration {
        self.namespace.0.runtime.clock.monotonic()
    }
}

async fn carry_out(namespace: &Namespace, deed: &Deed, ttl: Duration) -> Result<(), Error> {
    match deed.act {
        Act::Mount(target) => {
            let options = MountOptions::new(ttl).target(target);
            // One place is enough to be found; what others missed they get with the next mount.
            namespace.mount(&deed.name, &deed.server, options).await?.any().map(drop)
        }
        Act::Unmount => namespace.unmount(&deed.name, Some(&deed.server)).await?.all().map(drop),
    }
}

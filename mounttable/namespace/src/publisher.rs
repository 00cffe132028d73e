//! [`Publisher`]: keeps servers mounted under names for as long as it lives. The shell around [`schedule`].
//!
//! One task owns the schedule; the handle sends it commands and reads its status. A publisher that is shut down
//! unmounts its servers; after a crash they stay until their deadline, at most a period and [`schedule::SLACK`] later.

pub mod schedule;

use std::time::Duration;

use ebla_mounttable_tree::{Error, Reason, ServerAddress, Target, naming};
use ebla_runtime::{Rng, Tasks};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use crate::change::MountOptions;
use crate::namespace::Namespace;
use crate::publisher::schedule::{Action, ActionKind, Schedule};

pub use crate::publisher::schedule::{PairState, PairStatus, PublisherStatus};

/// The default interval of refreshes.
pub const PERIOD: Duration = Duration::from_secs(60);

/// The number of concurrent calls.
const CONCURRENCY: usize = 128;

/// The time for one mount, shorter than [`schedule::SLACK`]: a mount that fails is tried again before it expires.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(8);

/// The number of queued commands; then callers wait.
const COMMANDS_MAX: usize = 64;

/// The time for unmounting at shutdown.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which the task is cancelled.
const STOP_TIMEOUT: Duration = Duration::from_secs(6);

/// The longest time between two updates of the status, which may change with time alone.
const POLL_MAX: Duration = Duration::from_secs(10);

/// Keeps servers mounted under names. Every server is mounted under every name. Dropping it shuts it down in the
/// background.
#[derive(Debug)]
pub struct Publisher {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<PublisherStatus>,
    tasks: Tasks,
}

#[derive(Debug)]
enum Command {
    AddName(String, Target),
    RemoveName(String),
    AddServer(ServerAddress),
    RemoveServer(ServerAddress),
}

impl Publisher {
    /// Mounts through `namespace`, and refreshes every `period` ([`PERIOD`] is a good one), plus or minus a tenth.
    pub fn start(namespace: &Namespace, period: Duration) -> Self {
        let runtime = &namespace.0.runtime;
        let tasks = runtime.tasks.child("publisher");
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (status_sender, status) = watch::channel(PublisherStatus::default());
        let schedule = Schedule::new(period);
        let task = PublisherTask {
            namespace: namespace.clone(),
            schedule,
            rng: runtime.rng.fork(),
            status_sender,
            in_flight: FuturesUnordered::new(),
        };
        let token = tasks.token();
        tasks.spawn("publish", async move {
            let mut task = task;
            token.run_until_cancelled(task.run(receiver)).await;
            if tokio::time::timeout(UNMOUNT_TIMEOUT, task.unmount_all()).await.is_err() {
                warn!("not all mounts were removed; they expire at their deadlines");
            }
        });
        Self { commands, status, tasks }
    }

    /// Mounts all servers under this name. If the name exists, a new kind takes effect when the present mounts have
    /// expired: a table refuses one server with two kinds.
    pub async fn add_name(&self, name: &str, target: Target) {
        self.send(Command::AddName(naming::clean(name), target)).await;
    }

    /// Unmounts all servers from this name.
    pub async fn remove_name(&self, name: &str) {
        self.send(Command::RemoveName(naming::clean(name))).await;
    }

    /// Adds a server under all names.
    pub async fn add_server(&self, server: ServerAddress) {
        self.send(Command::AddServer(server)).await;
    }

    /// Unmounts this server from all names.
    pub async fn remove_server(&self, server: ServerAddress) {
        self.send(Command::RemoveServer(server)).await;
    }

    /// The state of all mounts, with errors.
    pub fn status(&self) -> watch::Receiver<PublisherStatus> {
        self.status.clone()
    }

    /// Unmounts everything, with one attempt each, and stops. Waits some seconds at most.
    pub async fn shutdown(self) {
        self.tasks.stop(STOP_TIMEOUT).await;
    }

    async fn send(&self, command: Command) {
        // The task has stopped if its runtime was stopped; then nothing can be mounted any more.
        drop(self.commands.send(command).await);
    }
}

/// An action, its start time, and its outcome.
type Done = (Action, Duration, Result<(), Error>);

/// The state of the task.
struct PublisherTask {
    namespace: Namespace,
    schedule: Schedule,
    rng: Rng,
    status_sender: watch::Sender<PublisherStatus>,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl PublisherTask {
    /// Runs until the handle is dropped.
    async fn run(&mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            self.start_due_actions();
            self.publish_status();
            let now = self.now();
            let pause = self.schedule.next_due().map_or(POLL_MAX, |at| at.saturating_sub(now).min(POLL_MAX));
            let is_free = self.in_flight.len() < CONCURRENCY;
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.apply(command, now),
                    None => return,
                },
                Some(done) = self.in_flight.next() => self.done(done),
                () = tokio::time::sleep(pause), if is_free => {}
            }
        }
    }

    /// Unmounts everything, after the calls in flight, which might mount again.
    async fn unmount_all(&mut self) {
        while let Some(done) = self.in_flight.next().await {
            self.done(done);
        }
        self.schedule.clear(self.now());
        // A failed action becomes due later, so each is tried once.
        self.start_due_actions();
        while let Some(done) = self.in_flight.next().await {
            self.done(done);
            self.start_due_actions();
        }
        self.publish_status();
    }

    fn start_due_actions(&mut self) {
        let now = self.now();
        while self.in_flight.len() < CONCURRENCY
            && let Some(action) = self.schedule.next_action(now)
        {
            let (namespace, ttl) = (self.namespace.clone(), self.schedule.ttl());
            let doing = async move {
                let outcome = execute(&namespace, &action, ttl).await;
                (action, now, outcome)
            };
            self.in_flight.push(doing.boxed());
        }
    }

    fn apply(&mut self, command: Command, now: Duration) {
        match command {
            Command::AddName(name, target) => self.schedule.add_name(&name, target, now),
            Command::RemoveName(name) => self.schedule.remove_name(&name, now),
            Command::AddServer(server) => self.schedule.add_server(&server, now),
            Command::RemoveServer(server) => self.schedule.remove_server(&server, now),
        }
    }

    fn done(&mut self, (action, begun, outcome): Done) {
        if let Err(error) = &outcome {
            debug!(name = %action.name, server = %action.server, kind = ?action.kind, %error, "publish failed");
        }
        let now = self.now();
        self.schedule.done(&action, outcome, begun, now, self.rng.u64());
    }

    fn publish_status(&self) {
        let status = self.schedule.status(self.now());
        self.status_sender.send_if_modified(|current| {
            let has_changed = *current != status;
            *current = status;
            has_changed
        });
    }

    fn now(&self) -> Duration {
        self.namespace.0.runtime.clock.monotonic()
    }
}

async fn execute(namespace: &Namespace, action: &Action, ttl: Duration) -> Result<(), Error> {
    match action.kind {
        ActionKind::Mount(target) => {
            let options = MountOptions::new(ttl).target(target);
            let mounting = namespace.mount_somewhere(&action.name, &action.server, options);
            let slow = |_| Error::new(Reason::Unavailable, "no server of the table replied in time");
            tokio::time::timeout(MOUNT_TIMEOUT, mounting).await.map_err(slow)?
        }
        ActionKind::Unmount => namespace.unmount(&action.name, Some(&action.server)).await?.all().map(drop),
    }
}

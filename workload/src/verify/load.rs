//! The load: writers and readers in rounds, over one history.
//!
//! The caller ends a round; the next one may use other endpoints, because a server may return at another address. The history
//! is kept over rounds, so a check after each of fifty kills covers all earlier writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::key::RowKey;
use ebla_model::schema::TableName;
use ebla_runtime::{Clock, Runtime};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::check::{self, CheckResult};
use super::finding::Finding;
use super::history::{History, Moment, Operation, Outcome, Process, Token};
use super::log::{LogFile, Logged};
use super::read_back;
use super::report::{Counts, Report, Stall};
use super::rows::{self, Kind, Layout, Slot};
use super::store::{Endpoint, Store};
use super::worker::Worker;

/// Maximum number of findings of a running load; the first ones suffice.
const FINDINGS_MAX: usize = 1_000;

/// Parameters of the load.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Writers; each has one slot and one write in progress.
    pub writers: u32,
    /// Readers.
    pub readers: u32,
    /// Slots, 2 to 99: the tablets of a new table.
    pub slots: u32,
    /// Timeout of a call; the outcome of a call that timed out is unknown.
    pub call_timeout: Duration,
    /// How long the setup and the read-back retry calls to an endpoint that does not answer.
    pub retry_timeout: Duration,
    /// Stalls of this length or longer are listed.
    pub stall_listed: Duration,
    /// Maximum number of recorded operations, each about 100 bytes; after that only blind writes and scans continue.
    pub operations_max: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            writers: 12,
            readers: 4,
            slots: 4,
            call_timeout: Duration::from_secs(10),
            retry_timeout: Duration::from_secs(30),
            stall_listed: Duration::from_millis(500),
            operations_max: 1_000_000,
        }
    }
}

/// Whether the static rows of a load have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StaticRows {
    /// Not yet.
    Missing,
    /// All of them.
    Written,
}

/// A load with its history.
pub struct Load {
    shared: Arc<Shared>,
    runtime: Runtime,
    total: Counts,
    static_rows: StaticRows,
}

impl Load {
    /// A load whose table exists. Its random numbers come from `runtime`: with a seeded generator, and on a simulated network,
    /// it is deterministic.
    pub fn new(plan: Plan, runtime: &Runtime) -> Self {
        let run = format!("{:08x}", runtime.rng.u64() >> 32);
        let layout = Layout { run, slots: plan.slots.clamp(2, 99) };
        Self::of(plan, runtime, layout, History::default())
    }

    /// An earlier load from its log, to be checked only.
    pub fn logged(logged: Logged, plan: Plan, runtime: &Runtime) -> Self {
        // The static rows were written before the first operation.
        let has_operations = !logged.history.rows.is_empty() || !logged.history.blind.is_empty();
        let static_rows = if has_operations { StaticRows::Written } else { StaticRows::Missing };
        Self { static_rows, ..Self::of(plan, runtime, logged.layout, logged.history) }
    }

    fn of(plan: Plan, runtime: &Runtime, layout: Layout, history: History) -> Self {
        let before = history.end().elapsed();
        let state = State {
            history: Arc::new(history),
            findings: Vec::new(),
            epochs: BTreeMap::new(),
            sequences: BTreeMap::new(),
            round: Counts::default(),
        };
        let shared = Shared {
            plan,
            layout,
            clock: runtime.clock.clone(),
            origin: runtime.clock.monotonic(),
            // The clock continues from the end of the earlier load, so that the read-back is after all its operations.
            before,
            acknowledged: AtomicU64::new(0),
            log: None,
            log_is_broken: AtomicBool::new(false),
            state: Mutex::new(state),
        };
        Self {
            shared: Arc::new(shared),
            runtime: runtime.clone(),
            total: Counts::default(),
            static_rows: StaticRows::Missing,
        }
    }

    /// Also writes the history to a file. Must be called before the first round.
    ///
    /// # Errors
    /// As [`LogFile::create`]; `FailedPrecondition` when a round is running.
    pub fn log_to(&mut self, path: &Path, table: &TableName) -> Result<(), Error> {
        let runs = || Error::new(Reason::FailedPrecondition, "the load is already running");
        let shared = Arc::get_mut(&mut self.shared).ok_or_else(runs)?;
        shared.log = Some(LogFile::create(path, table, &shared.layout, &self.runtime)?);
        Ok(())
    }

    /// The current time of the load's clock.
    pub fn now(&self) -> Moment {
        self.shared.now()
    }

    /// Writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Starts a round. Each worker starts with one of the endpoints and switches to another one after an error. Before the first
    /// round the static rows are written.
    ///
    /// # Errors
    /// `Unavailable` when the static rows cannot be written within the plan's retry timeout.
    pub async fn start<S: Store>(&mut self, endpoints: &[Endpoint<S>]) -> Result<Running, Error> {
        if endpoints.is_empty() {
            return Err(Error::invalid("a load needs an endpoint"));
        }
        if self.static_rows == StaticRows::Missing {
            Box::pin(self.set_up(endpoints)).await?;
            self.static_rows = StaticRows::Written;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let writers = (0..self.shared.plan.writers).map(Process::Writer);
        let readers = (0..self.shared.plan.readers).map(Process::Reader);
        let mut workers = Vec::new();
        for (number, by) in writers.chain(readers).enumerate() {
            let worker =
                Worker::new(by, number, self.shared.clone(), endpoints.to_vec(), self.runtime.rng.fork(), stop.clone());
            workers.push(self.runtime.tasks.start_until_stopped("verify worker", worker.run()));
        }
        Ok(Running { stop, workers, shared: self.shared.clone() })
    }

    /// Ends a round: waits for calls in progress, and returns the counts of the round.
    pub async fn finish(&mut self, running: Running) -> Counts {
        running.stop.store(true, Ordering::Relaxed);
        for worker in running.workers {
            // A worker may have been dropped with the runtime.
            drop(worker.await);
        }
        let round = self.shared.with(|state| std::mem::take(&mut state.round));
        self.total.add(&round);
        round
    }

    /// Reads all data back through every endpoint that answers, and checks the whole history. No round may be running.
    ///
    /// # Errors
    /// `Unavailable` when no endpoint could be read to the end; `FailedPrecondition` when the log could not be written.
    pub async fn check<S: Store>(&mut self, endpoints: &[Endpoint<S>]) -> Result<Report, Error> {
        if self.shared.log_is_broken.load(Ordering::Relaxed) {
            return Err(Error::new(
                Reason::FailedPrecondition,
                "the log could not be written: check the free disk space",
            ));
        }
        let found = Box::pin(read_back::run(&self.shared, endpoints, self.static_rows)).await?;
        let (history, mut findings) = self.shared.with(|state| (state.history.clone(), state.findings.clone()));
        findings.extend(found.findings);
        let mut verdict = CheckResult::default();
        for row in check::each(&history) {
            verdict.add(row);
            // A long search must not delay the heartbeats of a cluster in this process.
            tokio::task::yield_now().await;
        }
        findings.extend(verdict.findings);
        Ok(Report {
            began: self.runtime.clock.wall().minus(self.now().elapsed()),
            counts: self.total.clone(),
            findings,
            undecided: verdict.undecided,
            read_through: found.read_through,
            silent: found.silent,
            stall_max: None,
        })
    }

    /// Writes the last line of the log, if there is one, which marks it as complete.
    ///
    /// # Errors
    /// When the log could not be written.
    pub async fn end_log(&mut self) -> Result<(), Error> {
        let now = self.now();
        match Arc::get_mut(&mut self.shared).and_then(|shared| shared.log.take()) {
            Some(log) => log.end(now).await,
            None => Ok(()),
        }
    }

    /// Writes the static rows, one bulk write for each slot.
    async fn set_up<S: Store>(&self, endpoints: &[Endpoint<S>]) -> Result<(), Error> {
        for slot in self.shared.layout.slots() {
            let keys = self.shared.layout.own_boundary(slot).into_iter().filter(|key| rows::is_static(key));
            let writes: Vec<_> = keys.map(|key| (RowKey::new(key.clone()), rows::boundary_mutations(&key))).collect();
            let deadline = self.shared.clock.monotonic() + self.shared.plan.retry_timeout;
            for endpoint in endpoints.iter().cycle() {
                let answer = tokio::time::timeout(self.shared.plan.call_timeout, endpoint.store.bulk(&writes)).await;
                let answer = answer.unwrap_or_else(|_| Err(Error::new(Reason::Deadline, "timed out")));
                let Err(error) = answer.and_then(|results| results.into_iter().collect::<Result<(), _>>()) else {
                    break;
                };
                if error.kind == ErrorKind::FixRequest || self.shared.clock.monotonic() > deadline {
                    return Err(error.context(&format!("write the static rows through {}", endpoint.name)));
                }
                tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
            }
        }
        Ok(())
    }
}

/// Pause after an error, so that an unavailable cluster is not overloaded.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// A running round. It continues when this is dropped without [`Load::finish`].
pub struct Running {
    stop: Arc<AtomicBool>,
    workers: Vec<oneshot::Receiver<()>>,
    shared: Arc<Shared>,
}

impl Running {
    /// Writes acknowledged so far, in this round and earlier ones.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// The current time of the load's clock.
    pub fn now(&self) -> Moment {
        self.shared.now()
    }
}

/// State shared by all workers.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) layout: Layout,
    pub(super) clock: Clock,
    origin: Duration,
    before: Duration,
    acknowledged: AtomicU64,
    log: Option<LogFile>,
    log_is_broken: AtomicBool,
    /// Locked for short sections, never across an await.
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) history: Arc<History>,
    findings: Vec<Finding>,
    epochs: BTreeMap<(Slot, Kind), Epoch>,
    sequences: BTreeMap<u32, u64>,
    pub(super) round: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    number: u64,
    operations: u32,
}

impl Shared {
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock())
    }

    pub(super) fn now(&self) -> Moment {
        Moment::after(self.before + self.clock.monotonic().saturating_sub(self.origin))
    }

    /// Whether the history can record more operations.
    pub(super) fn has_room(&self) -> bool {
        self.with(|state| state.history.kept() < self.plan.operations_max)
    }

    /// The current row of a kind in a slot.
    pub(super) fn row(&self, slot: Slot, kind: Kind) -> String {
        let number = self.with(|state| state.epochs.entry((slot, kind)).or_default().number);
        self.layout.row(slot, kind, number)
    }

    /// The token of a writer's next write.
    pub(super) fn next(&self, writer: u32) -> Token {
        self.with(|state| {
            let sequence = state.sequences.entry(writer).or_default();
            *sequence += 1;
            Token { writer, sequence: *sequence }
        })
    }

    /// Records a completed operation of a slot, and switches to the next row at the end of an epoch.
    pub(super) async fn note(&self, slot: Slot, row: &str, operation: Operation) {
        if let Some(log) = &self.log
            && log.note(row, &operation).await.is_err()
        {
            self.log_is_broken.store(true, Ordering::Relaxed);
        }
        if operation.is_write() {
            self.count(operation.outcome);
        } else {
            self.count_read();
        }
        self.with(|state| {
            if let Some(kind) = Kind::of(row).filter(|_| operation.outcome != Outcome::Failed) {
                let epoch = state.epochs.entry((slot, kind)).or_default();
                epoch.operations += 1;
                if epoch.operations >= kind.epoch() {
                    *epoch = Epoch { number: epoch.number + 1, operations: 0 };
                }
            }
            Arc::make_mut(&mut state.history).note(row, operation);
        });
    }

    /// Counts a write.
    pub(super) fn count(&self, outcome: Outcome) {
        if outcome == Outcome::Ok {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.with(|state| state.round.count(outcome));
    }

    /// Counts a successful read.
    pub(super) fn count_read(&self) {
        self.with(|state| state.round.reads += 1);
    }

    /// Counts an error.
    pub(super) fn count_error(&self, reason: Reason) {
        self.with(|state| *state.round.errors.entry(reason.name().to_owned()).or_default() += 1);
    }

    /// Records the time between two successes.
    pub(super) fn stall(&self, stall: Stall) {
        self.with(|state| state.round.stall(stall, self.plan.stall_listed));
    }

    /// Records a finding.
    pub(super) fn add_finding(&self, finding: Finding) {
        self.with(|state| {
            if state.findings.len() < FINDINGS_MAX {
                state.findings.push(finding);
            }
        });
    }
}

//! The load: writers and readers in rounds, over one history.
//!
//! A round ends when it is told to; the next one may go through other addresses, because a server came back elsewhere.
//! What was noted stays, so a check after each of fifty kills covers all that was written before.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::key::RowKey;
use ebla_model::schema::TableName;
use ebla_runtime::{Clock, Runtime};
use tokio::sync::oneshot;

use super::check::{self, Verdict};
use super::finding::Finding;
use super::history::{History, Moment, Operation, Outcome, Process, Token};
use super::log::{LogFile, Logged};
use super::read_back;
use super::report::{Report, Stall, Tally};
use super::rows::{self, Kind, Layout, Slot};
use super::store::{Access, Store};
use super::worker::Worker;

/// Findings of a running load that are kept: the first ones tell the story.
const FINDINGS_MAX: usize = 1_000;

/// What the load is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Workers that write; each has one slot, and one write under way.
    pub writers: u32,
    /// Workers that read.
    pub readers: u32,
    /// Slots, 2 to 99: tablets that the table is cut into when it is made.
    pub slots: u32,
    /// A call that is not answered by then is given up, and its outcome unknown.
    pub deadline: Duration,
    /// How long setting up and reading back keep asking an address that does not answer.
    pub patience: Duration,
    /// Stalls of this length or longer are listed.
    pub stall_listed: Duration,
    /// Operations that the history keeps, each about 100 bytes; beyond that only blind writes and scans go on.
    pub operations_max: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            writers: 12,
            readers: 4,
            slots: 4,
            deadline: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            stall_listed: Duration::from_millis(500),
            operations_max: 1_000_000,
        }
    }
}

/// A load with its history.
pub struct Load {
    shared: Arc<Shared>,
    runtime: Runtime,
    total: Tally,
    is_set_up: bool,
}

impl Load {
    /// A load whose table exists. Its numbers come from `runtime`: with a seeded generator, and on a simulated network,
    /// it does the same again.
    pub fn new(plan: Plan, runtime: &Runtime) -> Self {
        let run = format!("{:08x}", runtime.rng.u64() >> 32);
        let layout = Layout { run, slots: plan.slots.clamp(2, 99) };
        Self::of(plan, runtime, layout, History::default())
    }

    /// An earlier load, to be checked and not to be gone on with.
    pub fn logged(logged: Logged, plan: Plan, runtime: &Runtime) -> Self {
        // The rows that stand still were written before the first operation.
        let is_set_up = !logged.history.rows.is_empty() || !logged.history.ledger.is_empty();
        Self { is_set_up, ..Self::of(plan, runtime, logged.layout, logged.history) }
    }

    fn of(plan: Plan, runtime: &Runtime, layout: Layout, history: History) -> Self {
        let before = history.end().elapsed();
        let state = State {
            history: Arc::new(history),
            findings: Vec::new(),
            epochs: BTreeMap::new(),
            sequences: BTreeMap::new(),
            round: Tally::default(),
        };
        let shared = Shared {
            plan,
            layout,
            clock: runtime.clock.clone(),
            origin: runtime.clock.monotonic(),
            // An earlier load's times go on, so that what is read back now comes after all that was done then.
            before,
            acknowledged: AtomicU64::new(0),
            log: None,
            log_is_broken: AtomicBool::new(false),
            state: Mutex::new(state),
        };
        Self { shared: Arc::new(shared), runtime: runtime.clone(), total: Tally::default(), is_set_up: false }
    }

    /// Keeps the history in a file too. To be called before the first round.
    ///
    /// # Errors
    /// As [`LogFile::create`]; `FailedPrecondition` when a round runs already.
    pub fn log_to(&mut self, path: &Path, table: &TableName) -> Result<(), Error> {
        let runs = || Error::new(Reason::FailedPrecondition, "the load runs already");
        let shared = Arc::get_mut(&mut self.shared).ok_or_else(runs)?;
        shared.log = Some(LogFile::create(path, table, &shared.layout, &self.runtime)?);
        Ok(())
    }

    /// Now, by the load's clock: to set anomalies beside stalls.
    pub fn now(&self) -> Moment {
        self.shared.now()
    }

    /// Writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Starts a round. Workers begin at one of the ways each and take the next when one fails. The first round writes the
    /// rows that stand still before it starts.
    ///
    /// # Errors
    /// `Unavailable` when that cannot be done in the plan's patience.
    pub async fn start<S: Store>(&mut self, through: &[Access<S>]) -> Result<Running, Error> {
        if through.is_empty() {
            return Err(Error::invalid("a load needs an address"));
        }
        if !self.is_set_up {
            Box::pin(self.set_up(through)).await?;
            self.is_set_up = true;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let writers = (0..self.shared.plan.writers).map(Process::Writer);
        let readers = (0..self.shared.plan.readers).map(Process::Reader);
        let mut workers = Vec::new();
        for (number, by) in writers.chain(readers).enumerate() {
            let worker =
                Worker::new(by, number, self.shared.clone(), through.to_vec(), self.runtime.rng.fork(), stop.clone());
            workers.push(self.runtime.tasks.start_until_stopped("verify worker", worker.run()));
        }
        Ok(Running { stop, workers, shared: self.shared.clone() })
    }

    /// Ends a round: waits for what is under way, and answers the round's counts.
    pub async fn finish(&mut self, running: Running) -> Tally {
        running.stop.store(true, Ordering::Relaxed);
        for worker in running.workers {
            // A worker that was dropped with the runtime has nothing more to say.
            drop(worker.await);
        }
        let round = self.shared.with(|state| std::mem::take(&mut state.round));
        self.total.add(&round);
        round
    }

    /// Reads everything back through every way that answers, and checks the whole history. No round may run.
    ///
    /// # Errors
    /// `Unavailable` when nothing could be read back at all; the log's error when it could not be kept.
    pub async fn check<S: Store>(&mut self, through: &[Access<S>]) -> Result<Report, Error> {
        if self.shared.log_is_broken.load(Ordering::Relaxed) {
            return Err(Error::new(Reason::FailedPrecondition, "the log could not be kept: is the disk full?"));
        }
        let found = Box::pin(read_back::run(&self.shared, through, self.is_set_up)).await?;
        let (history, mut findings) = self.shared.with(|state| (state.history.clone(), state.findings.clone()));
        findings.extend(found.findings);
        let mut verdict = Verdict::default();
        for row in check::each(&history) {
            verdict.add(row);
            // A long search must not keep the cluster from its heartbeats when it lives in this process.
            tokio::task::yield_now().await;
        }
        findings.extend(verdict.findings);
        Ok(Report {
            began: self.runtime.clock.wall().minus(self.now().elapsed()),
            tally: self.total.clone(),
            findings,
            undecided: verdict.undecided,
            read_through: found.read_through,
            silent: found.silent,
            stall_max: None,
        })
    }

    /// Writes the log's last line, if there is a log: from here on nothing may be missing in it.
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

    /// The rows that stand still, in one bulk write a slot.
    async fn set_up<S: Store>(&self, through: &[Access<S>]) -> Result<(), Error> {
        for slot in self.shared.layout.slots() {
            let keys = self.shared.layout.own_border(slot).into_iter().filter(|key| rows::is_static(key));
            let writes: Vec<_> = keys.map(|key| (RowKey::new(key.clone()), rows::border_mutations(&key))).collect();
            let deadline = self.shared.clock.monotonic() + self.shared.plan.patience;
            for access in through.iter().cycle() {
                let answer = tokio::time::timeout(self.shared.plan.deadline, access.store.bulk(&writes)).await;
                let answer = answer.unwrap_or_else(|_| Err(Error::new(Reason::Deadline, "no answer in time")));
                let Err(error) = answer.and_then(|results| results.into_iter().collect::<Result<(), _>>()) else {
                    break;
                };
                if error.kind == ErrorKind::FixRequest || self.shared.clock.monotonic() > deadline {
                    return Err(error.context(&format!("write the first rows through {}", access.name)));
                }
                tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
            }
        }
        Ok(())
    }
}

/// A pause after an error, so that a cluster that is down is not hammered.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// A round under way. Dropped without [`Load::finish`], it goes on.
pub struct Running {
    stop: Arc<AtomicBool>,
    workers: Vec<oneshot::Receiver<()>>,
    shared: Arc<Shared>,
}

impl Running {
    /// Writes acknowledged so far, in this round and earlier ones: to wait until the load is well under way.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Now, by the load's clock.
    pub fn now(&self) -> Moment {
        self.shared.now()
    }
}

/// What all workers share.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) layout: Layout,
    pub(super) clock: Clock,
    origin: Duration,
    before: Duration,
    acknowledged: AtomicU64,
    log: Option<LogFile>,
    log_is_broken: AtomicBool,
    /// Held for a few lines, never over a call.
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) history: Arc<History>,
    findings: Vec<Finding>,
    epochs: BTreeMap<(Slot, Kind), Epoch>,
    sequences: BTreeMap<u32, u64>,
    pub(super) round: Tally,
}

#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    number: u64,
    operations: u32,
}

impl Shared {
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn now(&self) -> Moment {
        Moment::after(self.before + self.clock.monotonic().saturating_sub(self.origin))
    }

    /// Whether the history has room for operations that are kept whole.
    pub(super) fn has_room(&self) -> bool {
        self.with(|state| state.history.kept() < self.plan.operations_max)
    }

    /// The row of a kind that is in use in a slot.
    pub(super) fn row(&self, slot: Slot, kind: Kind) -> String {
        let number = self.with(|state| state.epochs.entry((slot, kind)).or_default().number);
        self.layout.row(slot, kind, number)
    }

    /// The mark of a writer's next write.
    pub(super) fn next(&self, writer: u32) -> Token {
        self.with(|state| {
            let sequence = state.sequences.entry(writer).or_default();
            *sequence += 1;
            Token { writer, sequence: *sequence }
        })
    }

    /// Notes an operation of a slot that ended, and takes the next row when this one has seen enough.
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

    /// Counts a write that ended so.
    pub(super) fn count(&self, outcome: Outcome) {
        if outcome == Outcome::Ok {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.with(|state| state.round.count(outcome));
    }

    /// Counts a read that was answered.
    pub(super) fn count_read(&self) {
        self.with(|state| state.round.reads += 1);
    }

    /// Counts an error.
    pub(super) fn count_error(&self, reason: Reason) {
        self.with(|state| *state.round.errors.entry(reason.name().to_owned()).or_default() += 1);
    }

    /// Notes a time between two successes.
    pub(super) fn stall(&self, stall: Stall) {
        self.with(|state| state.round.stall(stall, self.plan.stall_listed));
    }

    /// Keeps a finding.
    pub(super) fn found(&self, finding: Finding) {
        self.with(|state| {
            if state.findings.len() < FINDINGS_MAX {
                state.findings.push(finding);
            }
        });
    }
}

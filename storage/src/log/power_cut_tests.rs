//! Power-cut tests: tens of thousands of random histories on a simulated disk that loses, tears, reorders and corrupts
//! writes.
//!
//! A history is a few runs of one log. In each run, random submissions of several groups are written, and segments prepared, until
//! a power cut interrupts an operation, a sync fails, or the process stops. The disk is full from time to time.
//! Some sectors may be corrupted while it is down. Then the log
//! is opened again (which may be interrupted too), and its content is compared with the submissions:
//!
//! - *nothing synced is lost, nothing is invented*: the recovered state is the state after some prefix of the submissions,
//!   the same for all groups, that includes every completed submission;
//! - *damage is distinguished from a torn tail*: without corruption nothing is quarantined; with corruption, a group that
//!   lost records is quarantined and stays so, and every other one has the state after that prefix. The one exception is
//!   documented: batches at the very end that were corrupted before their commit marker was written.
//!
//! `EBLA_HISTORIES` sets the number of histories, `EBLA_SEED` the first seed; a failure prints the seed of its history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ebla_model::id::Term;
use ebla_runtime::Rng;

use super::record::tests::log_id;
use super::segment::{file_name, parse_file_name};
use super::*;
use crate::disk::SimDisk;
use crate::disk::sim::{Fault, Loss, SECTOR};

const HISTORIES: u64 = 20_000;
const THREADS: u64 = 2;

#[test]
fn random_histories_lose_nothing_and_invent_nothing() {
    let count = setting("EBLA_HISTORIES").unwrap_or(HISTORIES);
    let first = setting("EBLA_SEED").unwrap_or(1);
    let next = AtomicU64::new(first);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    let printed_on_panic = Seed { seed, next: &next };
                    tally.lock().add(&History::new(seed).run());
                    drop(printed_on_panic);
                }
            });
        }
    });
    let tally = *tally.lock();
    println!("{tally:?}");
    if count >= 1000 {
        tally.assert_all_events_occurred();
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Prints the seed when a history panics, and stops the others.
struct Seed<'a> {
    seed: u64,
    next: &'a AtomicU64,
}

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.next.store(u64::MAX >> 1, Ordering::Relaxed);
            println!("failed: EBLA_HISTORIES=1 EBLA_SEED={}", self.seed);
        }
    }
}

/// Counts of the events that occurred, so that the test cannot pass without testing anything.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    runs: u64,
    submissions: u64,
    power_cuts: u64,
    restarts: u64,
    failed_syncs: u64,
    without_space: u64,
    interrupted_recoveries: u64,
    torn_tails: u64,
    unacknowledged_kept: u64,
    corrupted: u64,
    quarantined: u64,
    all_quarantined: u64,
    segments: u64,
    released: u64,
    prepared: u64,
    read_back: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        let numbers = [
            (&mut self.runs, other.runs),
            (&mut self.submissions, other.submissions),
            (&mut self.power_cuts, other.power_cuts),
            (&mut self.restarts, other.restarts),
            (&mut self.failed_syncs, other.failed_syncs),
            (&mut self.without_space, other.without_space),
            (&mut self.interrupted_recoveries, other.interrupted_recoveries),
            (&mut self.torn_tails, other.torn_tails),
            (&mut self.unacknowledged_kept, other.unacknowledged_kept),
            (&mut self.corrupted, other.corrupted),
            (&mut self.quarantined, other.quarantined),
            (&mut self.all_quarantined, other.all_quarantined),
            (&mut self.segments, other.segments),
            (&mut self.released, other.released),
            (&mut self.prepared, other.prepared),
            (&mut self.read_back, other.read_back),
        ];
        for (sum, number) in numbers {
            *sum += number;
        }
    }

    fn assert_all_events_occurred(&self) {
        let Self { power_cuts, restarts, failed_syncs, without_space, interrupted_recoveries, torn_tails, .. } = self;
        let Self {
            unacknowledged_kept,
            corrupted,
            quarantined,
            all_quarantined,
            segments,
            released,
            prepared,
            read_back,
            ..
        } = self;
        let ends =
            [power_cuts, restarts, failed_syncs, interrupted_recoveries, torn_tails, unacknowledged_kept, corrupted];
        let rest = [without_space, quarantined, all_quarantined, segments, released, prepared, read_back];
        assert!(ends.iter().chain(&rest).all(|count| **count >= 5), "{self:?}");
    }
}

/// The expected state of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Expected {
    vote: Option<Bytes>,
    purged: Option<LogId>,
    entries: BTreeMap<LogIndex, (Term, Bytes)>,
}

impl Expected {
    fn last(&self) -> Option<LogIndex> {
        self.entries.keys().next_back().copied().or(self.purged.map(|id| id.index))
    }

    fn apply(&mut self, record: &Record) {
        match record {
            Record::Entry { id, payload, .. } => {
                self.entries.insert(id.index, (id.term, payload.clone()));
            }
            Record::Vote { vote, .. } => self.vote = Some(vote.clone()),
            Record::Truncate { after, .. } => self.entries.retain(|index, _| index <= after),
            Record::Purge { upto, .. } => {
                self.purged = self.purged.max(Some(*upto));
                self.entries.retain(|index, _| *index > upto.index);
            }
            Record::Removed { .. } => {}
        }
    }

    /// The state of `group` in the log.
    fn read(log: &CommitLog, group: GroupReplica) -> Self {
        let entries = log.entries(group, LogIndex::new(0)..LogIndex::new(u64::MAX), u64::MAX).unwrap();
        Self {
            vote: log.vote(group),
            purged: log.purged(group),
            entries: entries.into_iter().map(|(id, payload)| (id.index, (id.term, payload))).collect(),
        }
    }
}

/// The expected state of all groups; `None` is a quarantined group.
#[derive(Clone, Debug, Default)]
struct Model(BTreeMap<GroupReplica, Option<Expected>>);

impl Model {
    fn apply(&mut self, records: &[Record]) {
        for record in records {
            if let Record::Removed { group } = record {
                self.0.remove(group);
            } else if let Some(expected) = self.0.entry(record.group()).or_insert_with(|| Some(Expected::default())) {
                expected.apply(record);
            }
        }
    }
}

/// A manifest that fails with the same power cut.
#[derive(Clone)]
struct SimManifest {
    disk: SimDisk,
    highest: MemoryManifest,
    rng: Rng,
}

impl SegmentManifest for SimManifest {
    fn highest(&self) -> u64 {
        self.highest.highest()
    }

    fn record(&self, sequence: u64) -> std::io::Result<()> {
        let outcome = self.disk.count_operation();
        if outcome.is_ok() || self.rng.below(2) == 0 {
            self.highest.record(sequence)?;
        }
        outcome
    }
}

/// A batch that was written in this run, to compute what corruption may hide.
#[derive(Clone, Copy)]
struct WrittenBatch {
    segment: u64,
    start: usize,
    end: usize,
    /// Number of submissions that were complete before it.
    done_before: usize,
}

struct History {
    rng: Rng,
    disk: SimDisk,
    manifest: SimManifest,
    options: LogOptions,
    /// The state at the start of this run.
    base: Model,
    /// Submissions of this run.
    submitted: Vec<Vec<Record>>,
    done: Arc<AtomicUsize>,
    /// The state with all of `submitted`.
    accepted: Model,
    written: Vec<WrittenBatch>,
    next_replica: u64,
    next_value: u64,
    tally: Tally,
}

impl History {
    fn new(seed: u64) -> Self {
        let rng = Rng::seeded(seed);
        let disk = SimDisk::new();
        let manifest = SimManifest { disk: disk.clone(), highest: MemoryManifest::default(), rng: rng.clone() };
        let options = LogOptions {
            segment_bytes: usize::try_from(20 + rng.below(60)).unwrap() << 10,
            batch_bytes: usize::try_from(1 + rng.below(16)).unwrap() << 10,
            cache_bytes: usize::try_from(rng.below(100)).unwrap() << 10,
            spares_max: usize::try_from(rng.below(4)).unwrap(),
            rng: rng.clone(),
            ..LogOptions::default()
        };
        Self {
            rng,
            disk,
            manifest,
            options,
            base: Model::default(),
            submitted: Vec::new(),
            done: Arc::default(),
            accepted: Model::default(),
            written: Vec::new(),
            next_replica: 1,
            next_value: 1,
            tally: Tally::default(),
        }
    }

    fn chance(&self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }

    fn run(mut self) -> Tally {
        let mut log = self.open(0).0;
        for _ in 0..2 + self.rng.below(3) {
            self.run_once(&log);
            log = self.stop_and_recover(log);
        }
        self.tally
    }

    fn try_open(&self) -> Result<(CommitLog, Recovered), LogError> {
        CommitLog::open(Arc::new(self.disk.clone()), Arc::new(self.manifest.clone()), self.options.clone())
    }

    /// Opens the log, after up to `interruptions` attempts that fail.
    fn open(&mut self, interruptions: u64) -> (CommitLog, Recovered) {
        for _ in 0..interruptions {
            let fault = if self.chance(4) { Fault::SyncFails } else { Fault::PowerFails };
            self.disk.arm(1 + self.rng.below(8), fault);
            if self.try_open().is_err() {
                self.tally.interrupted_recoveries += 1;
            }
            self.go_down();
        }
        self.try_open().unwrap()
    }

    /// One run: random submissions until a fault or the end.
    fn run_once(&mut self, log: &CommitLog) {
        self.tally.runs += 1;
        let mut fault = Fault::PowerFails;
        match self.rng.below(4) {
            0 => {}
            1 => {
                fault = Fault::SyncFails;
                self.disk.arm(1 + self.rng.below(30), fault);
            }
            _ => self.disk.arm(1 + self.rng.below(60), Fault::PowerFails),
        }
        for _ in 0..5 + self.rng.below(30) {
            for _ in 0..self.rng.below(4) {
                self.submit(log);
            }
            if self.chance(8) {
                self.disk.fill();
            } else if self.chance(3) {
                self.disk.make_room();
            }
            let outcome = if self.chance(4) {
                self.write_batch(log, CommitLog::write_commit_marker)
            } else {
                self.write_batch(log, CommitLog::step)
            };
            self.tally.without_space += u64::from(matches!(outcome, Ok(LogStep::NoSpace)));
            if outcome.is_err() {
                self.tally.failed_syncs += u64::from(fault == Fault::SyncFails);
                break;
            }
            if self.chance(16) {
                self.assert_readable(log);
            }
            if self.chance(8) {
                match log.prepare_segment() {
                    Ok(is_prepared) => self.tally.prepared += u64::from(is_prepared),
                    Err(_power_is_off) if fault == Fault::PowerFails => break,
                    Err(_the_log_goes_on_without_it) => {}
                }
            }
        }
        self.disk.make_room();
        self.tally.segments += log.stats().segments;
        let names = self.disk.list().unwrap_or_default();
        self.tally.released += u64::from(names.iter().any(|name| name.ends_with(".spare")));
    }

    fn write_batch(
        &mut self,
        log: &CommitLog,
        turn: impl Fn(&CommitLog) -> Result<LogStep, LogError>,
    ) -> Result<LogStep, LogError> {
        let done_before = self.done.load(Ordering::Relaxed);
        let bytes_before = log.stats().bytes;
        let outcome = turn(log)?;
        if outcome == LogStep::Wrote {
            let length = usize::try_from(log.stats().bytes - bytes_before).unwrap();
            let writer = log.inner.writer.lock();
            let active = &writer.as_ref().unwrap().active;
            let (segment, end) = (active.sequence, active.end);
            self.written.push(WrittenBatch { segment, start: end - length, end, done_before });
        }
        Ok(outcome)
    }

    fn submit(&mut self, log: &CommitLog) {
        let records = self.records(log);
        self.submitted.push(records.clone());
        let (number, done) = (self.submitted.len(), Arc::clone(&self.done));
        self.tally.submissions += 1;
        log.submit(
            records,
            Box::new(move |result| {
                if result.is_ok() {
                    assert_eq!(done.swap(number, Ordering::Relaxed) + 1, number, "done in order");
                }
            }),
        );
    }

    /// Random records of one group or of some, already in `accepted`.
    fn records(&mut self, log: &CommitLog) -> Vec<Record> {
        let mut records = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            let group = self.pick_group(log);
            let more = match self.accepted.0.remove(&group) {
                Some(None) => vec![Record::Removed { group }],
                Some(Some(expected)) => {
                    let more = self.records_of(group, &expected);
                    self.accepted.0.insert(group, Some(expected));
                    more
                }
                None => self.records_of(group, &Expected::default()),
            };
            self.accepted.apply(&more);
            records.extend(more);
            if matches!(records.last(), Some(Record::Removed { .. })) {
                break;
            }
        }
        records
    }

    fn pick_group(&mut self, log: &CommitLog) -> GroupReplica {
        let count = self.accepted.0.len() as u64;
        if count == 0 || (count < 6 && self.chance(8)) {
            let group = super::record::tests::group(self.rng.below(5), self.next_replica);
            self.next_replica += 1;
            log.add_group(group).unwrap();
            return group;
        }
        let at = usize::try_from(self.rng.below(count)).unwrap();
        *self.accepted.0.keys().nth(at).unwrap()
    }

    fn records_of(&mut self, group: GroupReplica, expected: &Expected) -> Vec<Record> {
        let last = expected.last().map_or(0, LogIndex::get);
        let least = expected.purged.map_or(0, |id| id.index.get());
        let within = least + self.rng.below(last - least + 1);
        match self.rng.below(20) {
            0 => vec![Record::Removed { group }],
            1 | 2 => vec![Record::Vote { group, vote: self.value(20) }],
            3 => vec![Record::Purge { group, upto: self.id(last + self.rng.below(10)) }],
            4..8 => vec![Record::Purge { group, upto: self.id(within) }],
            8 | 9 => {
                let mut records = vec![Record::Truncate { group, after: LogIndex::new(within) }];
                records.extend(self.entries(group, within));
                records
            }
            _ => self.entries(group, last),
        }
    }

    fn entries(&mut self, group: GroupReplica, after: u64) -> Vec<Record> {
        let count = 1 + self.rng.below(3);
        (1..=count)
            .map(|n| {
                let size = if self.chance(10) { self.rng.below(30_000) } else { self.rng.below(500) };
                Record::Entry { group, id: self.id(after + n), payload: self.value(size) }
            })
            .collect()
    }

    fn id(&self, index: u64) -> LogId {
        log_id(1 + self.next_value / 50, index)
    }

    /// A unique value.
    fn value(&mut self, size: u64) -> Bytes {
        self.next_value += 1;
        let mut value = self.next_value.to_le_bytes().to_vec();
        value.resize(8 + usize::try_from(size).unwrap(), u8::try_from(self.next_value % 255).unwrap());
        value.into()
    }

    /// All accepted entries can be read, in memory or on disk.
    fn assert_readable(&mut self, log: &CommitLog) {
        for (group, expected) in &self.accepted.0 {
            if let Some(expected) = expected {
                assert_eq!(&Expected::read(log, *group), expected, "{group} while running");
                self.tally.read_back += 1;
            }
        }
    }

    fn stop_and_recover(&mut self, log: CommitLog) -> CommitLog {
        log.abort();
        drop(log);
        self.go_down();
        let corrupted = self.corrupt_sectors();
        let least = self.least_recovered(&corrupted);
        let interruptions = if self.chance(3) { 1 + self.rng.below(2) } else { 0 };
        let (log, recovered) = self.open(interruptions);
        self.tally.torn_tails += u64::from(recovered.cut_bytes > 0);
        self.check_recovered(&log, &recovered, least, !corrupted.is_empty());
        log
    }

    /// Stops the process, with a power cut or alone.
    fn go_down(&mut self) {
        if self.chance(4) {
            self.tally.restarts += 1;
            self.disk.restart();
            return;
        }
        self.tally.power_cuts += 1;
        let loss = [Loss::All, Loss::Nothing, Loss::Some, Loss::Garbage];
        self.disk.power_cut(loss[usize::try_from(self.rng.below(4)).unwrap()], &self.rng);
    }

    /// Corrupts a few sectors of segments and returns which.
    fn corrupt_sectors(&mut self) -> Vec<(u64, usize)> {
        let mut corrupted = Vec::new();
        if !self.chance(4) {
            return corrupted;
        }
        let segments: Vec<u64> = self.disk.list().unwrap().iter().filter_map(|name| parse_file_name(name)).collect();
        for _ in 0..1 + self.rng.below(3) {
            if segments.is_empty() {
                break;
            }
            let segment = segments[usize::try_from(self.rng.below(segments.len() as u64)).unwrap()];
            let length = self.disk.content(&file_name(segment)).map_or(0, |content| content.len());
            let sector = usize::try_from(self.rng.below((length / SECTOR) as u64 + 1)).unwrap();
            if self.disk.flip_bit(&file_name(segment), sector, &self.rng) {
                corrupted.push((segment, sector));
                self.tally.corrupted += 1;
            }
        }
        corrupted
    }

    /// Number of submissions that must be recovered. Corruption of the last batches, with no intact batch after them, may hide
    /// them.
    fn least_recovered(&self, corrupted: &[(u64, usize)]) -> usize {
        let is_corrupted = |batch: &WrittenBatch| {
            let sectors = batch.start / SECTOR..batch.end / SECTOR;
            corrupted.iter().any(|(segment, sector)| *segment == batch.segment && sectors.contains(sector))
        };
        let hidden = self.written.iter().rev().take_while(|batch| is_corrupted(batch)).last();
        hidden.map_or(self.done.load(Ordering::Relaxed), |batch| batch.done_before)
    }

    /// Compares the recovered state with the submissions, and makes it the base of the next run.
    fn check_recovered(&mut self, log: &CommitLog, recovered: &Recovered, least: usize, has_corruption: bool) {
        self.tally.quarantined += recovered.quarantined.len() as u64;
        self.tally.all_quarantined += u64::from(recovered.all_quarantined);
        let found: BTreeMap<GroupReplica, Expected> =
            recovered.groups.keys().map(|group| (*group, Expected::read(log, *group))).collect();
        let done = self.done.load(Ordering::Relaxed);
        let mut state = self.base.clone();
        let mut reasons = Vec::new();
        for count in 0..=self.submitted.len() {
            if count > 0 {
                state.apply(&self.submitted[count - 1]);
            }
            if count < least {
                continue;
            }
            match first_difference(&state, &found, recovered, has_corruption) {
                Some((group, what)) => reasons.push((count, group, what)),
                None => {
                    self.tally.unacknowledged_kept += u64::from(count > done);
                    return self.begin_run(state, recovered);
                }
            }
        }
        panic!(
            "recovered a state that never existed (least {least}, done {done}, rot {has_corruption}): {reasons:#?}\n{recovered:#?}"
        );
    }

    fn begin_run(&mut self, mut state: Model, recovered: &Recovered) {
        for (group, expected) in &mut state.0 {
            if !recovered.groups.contains_key(group) {
                *expected = None;
            }
        }
        self.base = state.clone();
        self.accepted = state;
        self.submitted.clear();
        self.written.clear();
        self.done.store(0, Ordering::Relaxed);
    }
}

/// The first difference between `found` and `state`.
fn first_difference(
    state: &Model,
    found: &BTreeMap<GroupReplica, Expected>,
    recovered: &Recovered,
    has_corruption: bool,
) -> Option<(GroupReplica, &'static str)> {
    for (group, expected) in &state.0 {
        let is_quarantined = recovered.quarantined.contains(group) || recovered.all_quarantined;
        match (expected, found.get(group)) {
            (Some(expected), Some(found)) if expected == found => {}
            (Some(_), None) if is_quarantined && has_corruption => {}
            (None, None) if is_quarantined => {}
            (Some(_), Some(_)) => return Some((*group, "has a different state")),
            (Some(_), None) if is_quarantined => return Some((*group, "is quarantined without corruption")),
            (_, None) => return Some((*group, "is silently missing")),
            (None, Some(_)) => return Some((*group, "is out of quarantine")),
        }
    }
    let invented = found.keys().find(|group| !state.0.contains_key(group));
    invented.map(|group| (*group, "was never there"))
}

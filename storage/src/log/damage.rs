//! Tens of thousands of random histories on a disk that loses, tears, reorders and rots.
//!
//! A history is a few lives of one log. In each, random submissions of a handful of groups go in and are written, until
//! the power goes in the middle of something, a sync fails, or the process just ends; some sectors may rot while it is
//! down; then the log is opened again (which may be interrupted too) and what it says is compared with what went in:
//!
//! - *nothing synced is lost, nothing is invented*: what is recovered is the state after some prefix of the submissions,
//!   the same for all groups, that has in it every submission that was done;
//! - *damage is told from a torn tail*: without rot nothing is quarantined; with rot, a group that lost something is
//!   quarantined and stays so, and every other one is as after that prefix. The one exception is the documented one:
//!   batches at the very end that have rotted before the mark for them was written.
//!
//! `EBLA_HISTORIES` sets how many, `EBLA_SEED` the first; a failure prints the seed of its history.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ebla_runtime::Rng;

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
                    let told_on_panic = Seed { seed, next: &next };
                    hold(&tally).add(&History::new(seed).run());
                    drop(told_on_panic);
                }
            });
        }
    });
    let tally = *hold(&tally);
    println!("{tally:?}");
    if count >= 1000 {
        tally.assert_that_all_was_met();
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Prints the seed when a history panics, and lets no other begin.
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

/// What was met, so that the test cannot pass by testing nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lives: u64,
    submissions: u64,
    power_cuts: u64,
    restarts: u64,
    failed_syncs: u64,
    interrupted_recoveries: u64,
    torn_tails: u64,
    unacknowledged_kept: u64,
    rotten: u64,
    quarantined: u64,
    all_quarantined: u64,
    segments: u64,
    released: u64,
    read_back: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        let numbers = [
            (&mut self.lives, other.lives),
            (&mut self.submissions, other.submissions),
            (&mut self.power_cuts, other.power_cuts),
            (&mut self.restarts, other.restarts),
            (&mut self.failed_syncs, other.failed_syncs),
            (&mut self.interrupted_recoveries, other.interrupted_recoveries),
            (&mut self.torn_tails, other.torn_tails),
            (&mut self.unacknowledged_kept, other.unacknowledged_kept),
            (&mut self.rotten, other.rotten),
            (&mut self.quarantined, other.quarantined),
            (&mut self.all_quarantined, other.all_quarantined),
            (&mut self.segments, other.segments),
            (&mut self.released, other.released),
            (&mut self.read_back, other.read_back),
        ];
        for (sum, number) in numbers {
            *sum += number;
        }
    }

    fn assert_that_all_was_met(&self) {
        let Self { power_cuts, restarts, failed_syncs, interrupted_recoveries, torn_tails, .. } = self;
        let Self { unacknowledged_kept, rotten, quarantined, all_quarantined, segments, released, read_back, .. } =
            self;
        let ends =
            [power_cuts, restarts, failed_syncs, interrupted_recoveries, torn_tails, unacknowledged_kept, rotten];
        let rest = [quarantined, all_quarantined, segments, released, read_back];
        assert!(ends.iter().chain(&rest).all(|count| **count >= 5), "{self:?}");
    }
}

/// What a group should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Expected {
    vote: Option<Bytes>,
    purged: Option<LogId>,
    entries: BTreeMap<u64, (u64, Bytes)>,
}

impl Expected {
    fn last(&self) -> Option<u64> {
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

    /// What the log says of `group`.
    fn read(log: &CommitLog, group: GroupId) -> Self {
        let entries = log.entries(group, 0..u64::MAX, u64::MAX).unwrap();
        Self {
            vote: log.vote(group),
            purged: log.purged(group),
            entries: entries.into_iter().map(|(id, payload)| (id.index, (id.term, payload))).collect(),
        }
    }
}

/// What all groups should hold; `None` is a group in quarantine.
#[derive(Clone, Debug, Default)]
struct Model(BTreeMap<GroupId, Option<Expected>>);

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

/// The registry: it fails with the same power.
#[derive(Clone)]
struct SimWitness {
    disk: SimDisk,
    highest: MemoryWitness,
    rng: Rng,
}

impl SegmentWitness for SimWitness {
    fn highest(&self) -> u64 {
        self.highest.highest()
    }

    fn record(&self, sequence: u64) -> std::io::Result<()> {
        let outcome = self.disk.spend();
        if outcome.is_ok() || self.rng.below(2) == 0 {
            self.highest.record(sequence)?;
        }
        outcome
    }
}

/// A batch that was written in this life, for judging what rot may hide.
#[derive(Clone, Copy)]
struct WrittenBatch {
    segment: u64,
    start: usize,
    end: usize,
    /// How many submissions were done before it.
    done_before: usize,
}

struct History {
    rng: Rng,
    disk: SimDisk,
    witness: SimWitness,
    options: LogOptions,
    /// The state at the start of this life.
    base: Model,
    /// What went in since.
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
        let witness = SimWitness { disk: disk.clone(), highest: MemoryWitness::default(), rng: rng.clone() };
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
            witness,
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
            self.live(&log);
            log = self.die_and_recover(log);
        }
        self.tally
    }

    fn try_open(&self) -> Result<(CommitLog, Recovered), LogError> {
        CommitLog::open(Arc::new(self.disk.clone()), Arc::new(self.witness.clone()), self.options.clone())
    }

    /// Opens the log, after up to `interruptions` attempts that end early.
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

    /// One life: random submissions until something ends it.
    fn live(&mut self, log: &CommitLog) {
        self.tally.lives += 1;
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
            let outcome =
                if self.chance(4) { self.step(log, CommitLog::mark) } else { self.step(log, CommitLog::step) };
            if outcome.is_err() {
                self.tally.failed_syncs += u64::from(fault == Fault::SyncFails);
                break;
            }
            if self.chance(16) {
                self.assert_readable(log);
            }
        }
        self.tally.segments += log.stats().segments;
        let names = self.disk.list().unwrap_or_default();
        self.tally.released += u64::from(names.iter().any(|name| name.ends_with(".spare")));
    }

    fn step(&mut self, log: &CommitLog, turn: impl Fn(&CommitLog) -> Result<Step, LogError>) -> Result<Step, LogError> {
        let done_before = self.done.load(Ordering::Relaxed);
        let bytes_before = log.stats().bytes;
        let outcome = turn(log)?;
        if outcome == Step::Wrote {
            let length = usize::try_from(log.stats().bytes - bytes_before).unwrap();
            let writer = hold(&log.inner.writer);
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

    fn pick_group(&mut self, log: &CommitLog) -> GroupId {
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

    fn records_of(&mut self, group: GroupId, expected: &Expected) -> Vec<Record> {
        let last = expected.last().unwrap_or(0);
        let least = expected.purged.map_or(0, |id| id.index);
        let within = least + self.rng.below(last - least + 1);
        match self.rng.below(20) {
            0 => vec![Record::Removed { group }],
            1 | 2 => vec![Record::Vote { group, vote: self.value(20) }],
            3 => vec![Record::Purge { group, upto: self.id(last + self.rng.below(10)) }],
            4..8 => vec![Record::Purge { group, upto: self.id(within) }],
            8 | 9 => {
                let mut records = vec![Record::Truncate { group, after: within }];
                records.extend(self.entries(group, within));
                records
            }
            _ => self.entries(group, last),
        }
    }

    fn entries(&mut self, group: GroupId, after: u64) -> Vec<Record> {
        let count = 1 + self.rng.below(3);
        (1..=count)
            .map(|n| {
                let size = if self.chance(10) { self.rng.below(30_000) } else { self.rng.below(500) };
                Record::Entry { group, id: self.id(after + n), payload: self.value(size) }
            })
            .collect()
    }

    fn id(&self, index: u64) -> LogId {
        LogId { term: 1 + self.next_value / 50, index }
    }

    /// Bytes that no other value has.
    fn value(&mut self, size: u64) -> Bytes {
        self.next_value += 1;
        let mut value = self.next_value.to_le_bytes().to_vec();
        value.resize(8 + usize::try_from(size).unwrap(), u8::try_from(self.next_value % 255).unwrap());
        value.into()
    }

    /// What was accepted can be read, wherever it is.
    fn assert_readable(&mut self, log: &CommitLog) {
        for (group, expected) in &self.accepted.0 {
            if let Some(expected) = expected {
                assert_eq!(&Expected::read(log, *group), expected, "{group} while running");
                self.tally.read_back += 1;
            }
        }
    }

    fn die_and_recover(&mut self, log: CommitLog) -> CommitLog {
        log.abandon();
        drop(log);
        self.go_down();
        let rotten = self.rot();
        let least = self.least_recovered(&rotten);
        let interruptions = if self.chance(3) { 1 + self.rng.below(2) } else { 0 };
        let (log, recovered) = self.open(interruptions);
        self.tally.torn_tails += u64::from(recovered.cut_bytes > 0);
        self.judge(&log, &recovered, least, !rotten.is_empty());
        log
    }

    /// The process ends, with the machine or alone.
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

    /// Lets a few sectors of segments rot: which.
    fn rot(&mut self) -> Vec<(u64, usize)> {
        let mut rotten = Vec::new();
        if !self.chance(4) {
            return rotten;
        }
        let segments: Vec<u64> = self.disk.list().unwrap().iter().filter_map(|name| parse_file_name(name)).collect();
        for _ in 0..1 + self.rng.below(3) {
            if segments.is_empty() {
                break;
            }
            let segment = segments[usize::try_from(self.rng.below(segments.len() as u64)).unwrap()];
            let length = self.disk.content(&file_name(segment)).map_or(0, |content| content.len());
            let sector = usize::try_from(self.rng.below((length / SECTOR) as u64 + 1)).unwrap();
            if self.disk.flip(&file_name(segment), sector, &self.rng) {
                rotten.push((segment, sector));
                self.tally.rotten += 1;
            }
        }
        rotten
    }

    /// How many submissions must be found again. Rot of the last batches, with nothing sound behind them, may hide them.
    fn least_recovered(&self, rotten: &[(u64, usize)]) -> usize {
        let is_rotten = |batch: &WrittenBatch| {
            let sectors = batch.start / SECTOR..batch.end / SECTOR;
            rotten.iter().any(|(segment, sector)| *segment == batch.segment && sectors.contains(sector))
        };
        let hidden = self.written.iter().rev().take_while(|batch| is_rotten(batch)).last();
        hidden.map_or(self.done.load(Ordering::Relaxed), |batch| batch.done_before)
    }

    /// Compares what was recovered with what went in, and makes it the base of the next life.
    fn judge(&mut self, log: &CommitLog, recovered: &Recovered, least: usize, has_rot: bool) {
        self.tally.quarantined += recovered.quarantined.len() as u64;
        self.tally.all_quarantined += u64::from(recovered.all_quarantined);
        let found: BTreeMap<GroupId, Expected> =
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
            match differs(&state, &found, recovered, has_rot) {
                Some((group, what)) => reasons.push((count, group, what)),
                None => {
                    self.tally.unacknowledged_kept += u64::from(count > done);
                    return self.begin_life(state, recovered);
                }
            }
        }
        panic!("recovered what never was (least {least}, done {done}, rot {has_rot}): {reasons:#?}\n{recovered:#?}");
    }

    fn begin_life(&mut self, mut state: Model, recovered: &Recovered) {
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

/// In what `found` is not what `state` says, if in anything.
fn differs(
    state: &Model,
    found: &BTreeMap<GroupId, Expected>,
    recovered: &Recovered,
    has_rot: bool,
) -> Option<(GroupId, &'static str)> {
    for (group, expected) in &state.0 {
        let told = recovered.quarantined.contains(group) || recovered.all_quarantined;
        match (expected, found.get(group)) {
            (Some(expected), Some(found)) if expected == found => {}
            (Some(_), None) if told && has_rot => {}
            (None, None) if told => {}
            (Some(_), Some(_)) => return Some((*group, "holds something else")),
            (Some(_), None) if told => return Some((*group, "is quarantined for nothing")),
            (_, None) => return Some((*group, "is silently missing")),
            (None, Some(_)) => return Some((*group, "is out of quarantine")),
        }
    }
    let invented = found.keys().find(|group| !state.0.contains_key(group));
    invented.map(|group| (*group, "was never there"))
}

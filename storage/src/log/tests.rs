//! Behaviour of the whole log: without a thread on a simulated disk, and with its thread on a real one.

mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use ebla_runtime::Rng;

use super::record::tests::{group, log_id};
use super::*;
use crate::disk::sim::{Fault, Loss, SECTOR};
use crate::disk::{RealDisk, SimDisk};

const A: GroupReplica =
    GroupReplica { group: ebla_model::id::GroupId::new(1), replica: ebla_model::id::ReplicaId::new(1) };

fn options(segment_bytes: usize) -> LogOptions {
    LogOptions {
        segment_bytes,
        cache_bytes: 10_000,
        on_failure: OnFailure::Report,
        rng: Rng::seeded(1),
        ..LogOptions::default()
    }
}

/// A disk, a manifest, and the log on them.
struct Fixture {
    disk: SimDisk,
    manifest: MemoryManifest,
    log: CommitLog,
    recovered: Recovered,
}

impl Fixture {
    fn new(segment_bytes: usize) -> Self {
        Self::on(SimDisk::new(), MemoryManifest::default(), segment_bytes)
    }

    fn on(disk: SimDisk, manifest: MemoryManifest, segment_bytes: usize) -> Self {
        let opened = CommitLog::open(Arc::new(disk.clone()), Arc::new(manifest.clone()), options(segment_bytes));
        let (log, recovered) = opened.unwrap();
        Self { disk, manifest, log, recovered }
    }

    /// Reopens the log after a power cut that loses all unsynced writes.
    fn again(self) -> Self {
        self.disk.power_cut(Loss::All, &Rng::seeded(3));
        Self::on(self.disk, self.manifest, self.log.inner.options.segment_bytes)
    }

    fn submit(&self, records: Vec<Record>) -> SubmissionResult {
        let outcome = SubmissionResult::default();
        self.log.submit(records, outcome.done());
        outcome
    }

    /// Submits and writes.
    fn write(&self, records: Vec<Record>) {
        let outcome = self.submit(records);
        while self.log.step().unwrap() == LogStep::Wrote {}
        outcome.result().unwrap().unwrap();
    }

    fn indexes(&self, group: GroupReplica) -> Vec<u64> {
        self.log.entries(group, indexes(0..u64::MAX), u64::MAX).unwrap().iter().map(|(id, _)| id.index.get()).collect()
    }

    fn segments(&self) -> Vec<u64> {
        self.disk.list().unwrap().iter().filter_map(|name| segment::parse_file_name(name)).collect()
    }

    fn spares(&self) -> usize {
        self.disk.list().unwrap().iter().filter(|name| segment::parse_spare_name(name).is_some()).count()
    }
}

/// The result of a submission.
#[derive(Clone, Default)]
struct SubmissionResult(Arc<Mutex<Option<Result<(), LogError>>>>);

impl SubmissionResult {
    fn done(&self) -> Completion {
        let result_slot = Arc::clone(&self.0);
        Box::new(move |result| *result_slot.lock() = Some(result))
    }

    fn result(&self) -> Option<Result<(), LogError>> {
        self.0.lock().clone()
    }
}

fn indexes(range: Range<u64>) -> Range<LogIndex> {
    LogIndex::new(range.start)..LogIndex::new(range.end)
}

fn id(index: u64) -> LogId {
    log_id(1, index)
}

fn entry(group: GroupReplica, index: u64) -> Record {
    sized(group, index, 20)
}

fn sized(group: GroupReplica, index: u64, bytes: usize) -> Record {
    Record::Entry { group, id: id(index), payload: vec![u8::try_from(index % 251).unwrap(); bytes].into() }
}

fn vote(group: GroupReplica, vote: &'static [u8]) -> Record {
    Record::Vote { group, vote: Bytes::from_static(vote) }
}

#[test]
fn entries_are_readable_on_return_and_durable_when_done() {
    let fixture = Fixture::new(1 << 20);
    assert_eq!(fixture.recovered, Recovered::default());
    fixture.log.add_group(A).unwrap();
    let outcome = fixture.submit(vec![vote(A, b"me"), entry(A, 1), entry(A, 2)]);
    assert!(outcome.result().is_none());
    assert_eq!(fixture.indexes(A), [1, 2]);
    assert_eq!((fixture.log.last(A), fixture.log.synced(A)), (Some(id(2)), None));
    assert_eq!(fixture.log.step().unwrap(), LogStep::Wrote);
    outcome.result().unwrap().unwrap();
    assert_eq!(fixture.log.synced(A), Some(id(2)));
    let fixture = fixture.again();
    let group = RecoveredGroup { vote: Some(Bytes::from_static(b"me")), purged: None, last: Some(id(2)) };
    assert_eq!(fixture.recovered.groups, BTreeMap::from([(A, group)]));
    assert_eq!(fixture.indexes(A), [1, 2]);
}

#[test]
fn a_group_is_durable_when_its_last_record_is() {
    let (fixture, other) = (Fixture::new(1 << 20), group(2, 1));
    let when_durable = |fixture: &Fixture, group| {
        let outcome = SubmissionResult::default();
        fixture.log.when_durable(group, outcome.done());
        outcome
    };
    fixture.log.add_group(A).unwrap();
    fixture.log.add_group(other).unwrap();
    when_durable(&fixture, A).result().expect("it has submitted nothing").unwrap();
    fixture.write(vec![entry(A, 1)]);
    fixture.submit(vec![vote(A, b"me")]);
    let waiting = when_durable(&fixture, A);
    assert!(waiting.result().is_none());
    when_durable(&fixture, other).result().expect("the records of another group do not matter").unwrap();
    while fixture.log.step().unwrap() == LogStep::Wrote {}
    waiting.result().unwrap().unwrap();
    let fixture = fixture.again();
    when_durable(&fixture, A).result().expect("the log was opened with it").unwrap();
    fixture.submit(vec![entry(A, 2)]);
    fixture.disk.arm(1, Fault::SyncFails);
    fixture.log.step().unwrap_err();
    for group in [A, other] {
        let outcome = when_durable(&fixture, group).result().unwrap();
        assert!(matches!(outcome, Err(LogError::Disk { .. })), "{outcome:?}");
    }
}

#[test]
fn what_was_not_synced_is_cut_and_the_vote_stays() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![vote(A, b"me"), entry(A, 1)]);
    fixture.disk.arm(1, Fault::PowerFails);
    let outcome = fixture.submit(vec![vote(A, b"you"), entry(A, 2)]);
    assert!(fixture.log.step().is_err());
    assert!(outcome.result().unwrap().is_err());
    let fixture = fixture.again();
    assert_eq!(fixture.recovered.groups[&A].last, Some(id(1)));
    assert_eq!(fixture.log.vote(A).unwrap(), "me");
    fixture.write(vec![entry(A, 2)]);
}

#[test]
fn one_batch_carries_what_all_groups_have_queued() {
    let fixture = Fixture::new(1 << 20);
    let outcomes: Vec<SubmissionResult> = (0..50)
        .map(|tablet| {
            fixture.log.add_group(group(tablet, 1)).unwrap();
            fixture.submit(vec![entry(group(tablet, 1), 1)])
        })
        .collect();
    fixture.log.step().unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.result().unwrap().is_ok()));
    let stats = fixture.log.stats();
    assert_eq!((stats.batches, stats.syncs, stats.records), (1, 1, 50));
    assert_eq!(fixture.log.queued_bytes(), 0);
}

#[test]
fn a_commit_marker_is_written_once_for_a_batch_with_records() {
    let fixture = Fixture::new(1 << 20);
    assert_eq!(fixture.log.write_commit_marker().unwrap(), LogStep::Idle);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![entry(A, 1)]);
    assert_eq!(fixture.log.write_commit_marker().unwrap(), LogStep::Wrote);
    assert_eq!(fixture.log.write_commit_marker().unwrap(), LogStep::Idle);
    assert_eq!(fixture.log.stats().commit_markers, 1);
}

#[test]
fn a_failed_sync_is_final() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.disk.arm(1, Fault::SyncFails);
    let outcomes = [fixture.submit(vec![entry(A, 1)]), fixture.submit(vec![entry(A, 2)])];
    assert!(matches!(fixture.log.step(), Err(LogError::Disk { .. })));
    let late = fixture.submit(vec![entry(A, 3)]);
    for outcome in outcomes.iter().chain([&late]) {
        assert!(matches!(outcome.result(), Some(Err(LogError::Disk { .. }))));
    }
    assert!(fixture.log.step().is_err() && fixture.log.write_commit_marker().is_err());
}

#[test]
fn what_a_failed_sync_left_in_the_page_cache_is_made_durable_before_use() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.disk.arm(1, Fault::SyncFails);
    fixture.submit(vec![entry(A, 1)]);
    assert!(fixture.log.step().is_err());
    fixture.disk.restart();
    let fixture = Fixture::on(fixture.disk, fixture.manifest, 1 << 20);
    assert_eq!(fixture.recovered.groups[&A].last, Some(id(1)), "read from the page cache");
    assert_eq!(fixture.again().indexes(A), [1], "and on the disk since");
}

#[test]
fn records_that_do_not_follow_are_refused_whole() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    let outcome = fixture.submit(vec![entry(A, 1), entry(A, 3)]);
    assert!(
        matches!(outcome.result(), Some(Err(LogError::OutOfOrder { expected, got, .. })) if (expected, got) == (id(2).index, id(3).index))
    );
    assert_eq!(fixture.indexes(A), []);
    let unknown = fixture.submit(vec![entry(group(9, 9), 1)]);
    assert!(matches!(unknown.result(), Some(Err(LogError::UnknownGroup(_)))));
}

#[test]
fn a_group_may_start_after_a_seed_id() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![Record::Purge { group: A, upto: log_id(0, 10) }, entry(A, 11)]);
    let fixture = fixture.again();
    assert_eq!((fixture.log.purged(A), fixture.indexes(A)), (Some(log_id(0, 10)), vec![11]));
}

#[test]
fn truncated_entries_stay_gone() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.write((1..=5).map(|index| entry(A, index)).collect());
    let other = Record::Entry { group: A, id: log_id(2, 3), payload: Bytes::from_static(b"new") };
    fixture.write(vec![Record::Truncate { group: A, after: LogIndex::new(2) }, other]);
    for fixture in [fixture.again()].map(Fixture::again) {
        let entries = fixture.log.entries(A, indexes(1..9), u64::MAX).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[2], (log_id(2, 3), Bytes::from_static(b"new")));
    }
}

#[test]
fn old_entries_are_read_back_from_their_segments() {
    let fixture = Fixture::new(64 << 10);
    fixture.log.add_group(A).unwrap();
    for index in 1..=200 {
        fixture.write(vec![sized(A, index, 3000)]);
    }
    assert!(fixture.segments().len() > 5);
    let entries = fixture.log.entries(A, indexes(1..201), u64::MAX).unwrap();
    assert_eq!(entries.len(), 200);
    assert!(entries.iter().all(|(id, payload)| payload.len() == 3000 && u64::from(payload[0]) == id.index.get() % 251));
    assert_eq!(fixture.log.entries(A, indexes(10..201), 7000).unwrap().len(), 2);
    assert!(
        fixture.log.entries_in_memory(A, indexes(1..201), u64::MAX).unwrap().is_none(),
        "the first are on disk only"
    );
    let last = fixture.log.entries_in_memory(A, indexes(200..201), u64::MAX).unwrap().unwrap();
    assert_eq!(last, fixture.log.entries(A, indexes(200..201), u64::MAX).unwrap());
    assert_eq!(fixture.log.entries(A, indexes(10..201), 1).unwrap().len(), 1, "at least one is returned");
}

#[test]
fn purged_segments_are_released_in_order_and_recycled() {
    let fixture = Fixture::new(64 << 10);
    let (a, b) = (A, group(2, 1));
    fixture.log.add_group(a).unwrap();
    fixture.log.add_group(b).unwrap();
    fixture.write(vec![vote(b, b"kept"), entry(b, 1)]);
    for index in 1..=100 {
        fixture.write(vec![sized(a, index, 3000)]);
    }
    let held = fixture.segments().len();
    fixture.write(vec![Record::Purge { group: a, upto: id(99) }]);
    fixture.log.write_commit_marker().unwrap();
    fixture.write(vec![entry(a, 101)]);
    assert_eq!(fixture.segments().len(), held, "the first entry of b pins all that follow");
    assert_eq!(fixture.log.oldest_pins(), [(b, 61)]);
    fixture.write(vec![Record::Purge { group: b, upto: id(1) }]);
    fixture.log.write_commit_marker().unwrap();
    fixture.write(vec![entry(a, 102)]);
    assert!(fixture.segments().len() <= 2);
    assert_eq!(fixture.spares(), 4);
    assert_eq!(fixture.log.oldest_pins(), []);
    for index in 103..=130 {
        fixture.write(vec![sized(a, index, 3000)]);
    }
    assert!(fixture.spares() < 4, "new segments reuse old files");
    let fixture = fixture.again();
    assert_eq!(fixture.indexes(a), (100..=130).collect::<Vec<_>>());
    assert_eq!(fixture.log.vote(b).unwrap(), "kept", "carried by headers since");
    assert_eq!(fixture.log.purged(b), Some(id(1)));
}

#[test]
fn a_log_in_use_continues_in_a_prepared_segment() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    assert!(!fixture.log.prepare_segment().unwrap(), "an unused log takes no space");
    fixture.write(vec![sized(A, 1, 70_000)]);
    assert!(fixture.log.prepare_segment().unwrap());
    assert!(!fixture.log.prepare_segment().unwrap(), "there is one");
    assert_eq!((fixture.segments(), fixture.spares()), (vec![1], 1));
    fixture.write(vec![entry(A, 2)]);
    assert_eq!((fixture.segments(), fixture.spares()), (vec![1, 2], 0));
    fixture.write(vec![sized(A, 3, 70_000)]);
    assert_eq!(fixture.segments(), [1, 2], "a prepared segment is filled");
    assert_eq!(fixture.again().indexes(A), [1, 2, 3]);
}

#[test]
fn a_segment_that_cannot_be_prepared_does_no_harm() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![sized(A, 1, 70_000)]);
    fixture.disk.arm(1, Fault::SyncFails);
    assert!(fixture.log.prepare_segment().is_err());
    fixture.write(vec![entry(A, 2)]);
    assert_eq!((fixture.segments(), fixture.spares()), (vec![1], 0));
    assert!(!fixture.log.prepare_segment().unwrap(), "it is not tried again");
    assert_eq!(fixture.again().indexes(A), [1, 2]);
}

#[test]
fn no_segment_is_prepared_on_a_disk_that_is_nearly_full() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![sized(A, 1, 70_000)]);
    fixture.disk.set_free_bytes(15 << 20);
    assert!(!fixture.log.prepare_segment().unwrap());
    fixture.disk.set_free_bytes(16 << 20);
    assert!(fixture.log.prepare_segment().unwrap());
}

#[test]
fn a_power_cut_during_the_preparation_loses_nothing() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![sized(A, 1, 70_000)]);
    let order = fixture.log.inner.writer.lock().as_mut().unwrap().begin_spare(0).unwrap();
    order.write().unwrap();
    // The log does not know the file yet.
    fixture.write(vec![entry(A, 2)]);
    let fixture = fixture.again();
    fixture.write(vec![entry(A, 3)]);
    assert_eq!(fixture.again().indexes(A), [1, 2, 3]);
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_own() {
    let fixture = Fixture::new(32 << 10);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![entry(A, 1)]);
    fixture.write(vec![sized(A, 2, 200_000)]);
    fixture.write(vec![entry(A, 3)]);
    let fixture = fixture.again();
    assert_eq!(fixture.log.entries(A, indexes(2..3), 1).unwrap()[0].1.len(), 200_000);
    assert_eq!(fixture.indexes(A), [1, 2, 3]);
}

#[test]
fn a_removed_group_leaves_nothing_behind() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.write(vec![vote(A, b"me"), entry(A, 1)]);
    fixture.write(vec![Record::Removed { group: A }]);
    assert!(matches!(fixture.log.entries(A, indexes(0..9), 9), Err(LogError::UnknownGroup(_))));
    let again = group(1, 2);
    fixture.log.add_group(again).unwrap();
    fixture.write(vec![entry(again, 1)]);
    let fixture = fixture.again();
    assert_eq!(fixture.recovered.groups.keys().copied().collect::<Vec<_>>(), [again]);
    assert_eq!(fixture.log.vote(again), None);
}

/// Three groups, one batch each, in blocks 2, 3 and 4 of segment 1, and the commit marker.
fn three_batches() -> Fixture {
    let fixture = Fixture::new(1 << 20);
    for tablet in 1..=3 {
        fixture.log.add_group(group(tablet, 1)).unwrap();
        fixture.write(vec![entry(group(tablet, 1), 1)]);
    }
    fixture.log.write_commit_marker().unwrap();
    fixture
}

fn sector_of(block: usize) -> usize {
    block * batch::BLOCK / SECTOR
}

/// Flips one bit of this byte of a segment.
fn flip_byte(fixture: &Fixture, segment: u64, byte: usize) {
    let file = fixture.disk.open(&segment::file_name(segment), crate::disk::Durability::OnWrite).unwrap();
    let mut found = [0];
    file.read_at(byte as u64, &mut found).unwrap();
    file.write_at(byte as u64, &[found[0] ^ 1]).unwrap();
}

#[test]
fn damage_below_a_commit_marker_quarantines_the_groups_it_names() {
    let fixture = three_batches();
    flip_byte(&fixture, 1, 3 * batch::BLOCK + 100);
    let fixture = fixture.again();
    let damaged = group(2, 1);
    assert_eq!(fixture.recovered.quarantined, BTreeSet::from([damaged]));
    assert!(!fixture.recovered.all_quarantined);
    assert_eq!(fixture.recovered.groups.len(), 2);
    assert!(matches!(fixture.log.entries(damaged, indexes(0..9), 9), Err(LogError::Quarantined(_))));
    let refused = fixture.submit(vec![vote(damaged, b"no")]);
    assert!(matches!(refused.result(), Some(Err(LogError::Quarantined(_)))));
    let fixture = fixture.again();
    assert_eq!(fixture.recovered.quarantined, BTreeSet::from([damaged]), "it stays so");
    fixture.write(vec![Record::Removed { group: damaged }]);
    assert_eq!(fixture.again().recovered.quarantined, BTreeSet::new());
}

#[test]
fn damage_to_the_last_batch_below_a_commit_marker_is_not_a_torn_tail() {
    let fixture = three_batches();
    flip_byte(&fixture, 1, 4 * batch::BLOCK + 100);
    assert_eq!(fixture.again().recovered.quarantined, BTreeSet::from([group(3, 1)]));
}

#[test]
fn a_lost_batch_header_quarantines_everyone() {
    let fixture = three_batches();
    flip_byte(&fixture, 1, 3 * batch::BLOCK + 10);
    let fixture = fixture.again();
    assert!(fixture.recovered.all_quarantined && fixture.recovered.groups.is_empty());
    assert_eq!(
        fixture.recovered.quarantined.len(),
        2,
        "the group that only the lost header named is not in groups either"
    );
    let fresh = group(9, 1);
    fixture.log.add_group(fresh).unwrap();
    fixture.write(vec![entry(fresh, 1)]);
    let fixture = fixture.again();
    assert!(fixture.recovered.all_quarantined, "it is reported at every start");
    assert_eq!(fixture.recovered.groups.keys().copied().collect::<Vec<_>>(), [fresh]);
}

#[test]
fn one_bad_copy_of_a_segment_header_does_no_harm_and_two_are_damage() {
    let fixture = three_batches();
    flip_byte(&fixture, 1, 30);
    let fixture = fixture.again();
    assert_eq!(fixture.recovered.groups.len(), 3);
    flip_byte(&fixture, 2, 30);
    flip_byte(&fixture, 2, batch::BLOCK + 30);
    assert!(fixture.again().recovered.all_quarantined);
}

#[test]
fn a_missing_segment_is_damage() {
    let fixture = three_batches();
    fixture.disk.remove(&segment::file_name(1)).unwrap();
    fixture.disk.sync_dir().unwrap();
    assert!(fixture.again().recovered.all_quarantined);
}

#[test]
fn an_entry_that_is_corrupted_under_a_running_log_is_reported() {
    let fixture = Fixture::new(64 << 10);
    fixture.log.add_group(A).unwrap();
    for index in 1..=20 {
        fixture.write(vec![sized(A, index, 3000)]);
    }
    assert!(fixture.disk.flip_bit(&segment::file_name(1), sector_of(2) + 2, &Rng::seeded(1)));
    assert!(
        matches!(fixture.log.entries(A, indexes(1..2), 1), Err(LogError::Damaged { index, .. }) if index == id(1).index)
    );
    assert_eq!(fixture.log.entries(A, indexes(2..3), 1).unwrap().len(), 1);
}

#[test]
fn stop_writes_what_is_queued_and_refuses_the_rest() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    let outcome = fixture.submit(vec![entry(A, 1)]);
    fixture.log.stop();
    outcome.result().unwrap().unwrap();
    assert!(matches!(fixture.submit(vec![entry(A, 2)]).result(), Some(Err(LogError::Stopped))));
    assert_eq!(fixture.log.stats().commit_markers, 1);
    assert_eq!(fixture.again().indexes(A), [1]);
}

#[test]
fn abort_fails_the_queue_and_writes_nothing() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    let outcome = fixture.submit(vec![entry(A, 1)]);
    fixture.log.abort();
    assert!(matches!(outcome.result(), Some(Err(LogError::Stopped))));
    assert!(fixture.again().recovered.groups.is_empty());
}

fn open_real(folder: &std::path::Path, manifest: &MemoryManifest) -> (CommitLog, Recovered) {
    let disk = Arc::new(RealDisk::open(folder).unwrap());
    CommitLog::open(disk, Arc::new(manifest.clone()), options(1 << 20)).unwrap()
}

/// Appends entries 1 to `count`, waiting for each.
fn append_in_turn(log: &CommitLog, group: GroupReplica, count: u64) {
    for index in 1..=count {
        let (sender, receiver) = mpsc::channel();
        log.submit(vec![sized(group, index, 1000)], Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap().unwrap();
    }
}

#[test]
fn writers_on_a_real_disk_share_batches_and_find_all_again() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = MemoryManifest::default();
    let (log, _) = open_real(dir.path(), &manifest);
    log.start_writer().unwrap();
    std::thread::scope(|scope| {
        for tablet in 0..16 {
            log.add_group(group(tablet, 1)).unwrap();
            let log = &log;
            scope.spawn(move || append_in_turn(log, group(tablet, 1), 200));
        }
    });
    let stats = log.stats();
    assert_eq!(stats.records, 3200);
    assert!(stats.batches < 3200 && stats.segments > 2, "{stats:?}");
    log.stop();
    for _ in 0..3 {
        // The stopped log still has users: the folder is free nevertheless.
        let (log, recovered) = open_real(dir.path(), &manifest);
        assert_eq!(recovered.groups.len(), 16);
        assert!(recovered.groups.values().all(|group| group.last == Some(id(200))));
        assert_eq!(log.entries(group(7, 1), indexes(1..201), u64::MAX).unwrap().len(), 200);
        assert_eq!((recovered.quarantined.len(), recovered.cut_bytes), (0, 0));
        log.abort();
    }
}

#[test]
fn the_thread_writes_the_commit_marker_when_it_is_idle() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open_real(dir.path(), &MemoryManifest::default());
    log.start_writer().unwrap();
    log.add_group(A).unwrap();
    append_in_turn(&log, A, 1);
    while log.stats().commit_markers == 0 {
        std::thread::yield_now();
    }
    log.stop();
    assert_eq!(log.stats().commit_markers, 1);
}

#[test]
fn a_submission_may_be_made_from_a_completion() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open_real(dir.path(), &MemoryManifest::default());
    log.start_writer().unwrap();
    log.add_group(A).unwrap();
    let (sender, receiver) = mpsc::channel();
    let (again, count) = (log.clone(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&count);
    log.submit(
        vec![entry(A, 1)],
        Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            again.submit(vec![entry(A, 2)], Box::new(move |result| sender.send(result).unwrap()));
        }),
    );
    receiver.recv().unwrap().unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    log.stop();
}

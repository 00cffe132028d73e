//! Behaviour of the whole log, driven inline on a simulated disk, and with its thread on a real one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use ebla_runtime::Rng;

use super::record::tests::group;
use super::*;
use crate::disk::sim::{Fault, Loss, SECTOR};
use crate::disk::{RealDisk, SimDisk};

const A: GroupId = GroupId { tablet: ebla_model::id::TabletId::new(1), replica: ebla_model::id::ReplicaId::new(1) };

fn options(segment_bytes: usize) -> LogOptions {
    LogOptions {
        segment_bytes,
        cache_bytes: 10_000,
        on_failure: OnFailure::Report,
        rng: Rng::seeded(1),
        ..LogOptions::default()
    }
}

/// A disk, its witness, and the log on it.
struct Bed {
    disk: SimDisk,
    witness: MemoryWitness,
    log: CommitLog,
    recovered: Recovered,
}

impl Bed {
    fn new(segment_bytes: usize) -> Self {
        Self::on(SimDisk::new(), MemoryWitness::default(), segment_bytes)
    }

    fn on(disk: SimDisk, witness: MemoryWitness, segment_bytes: usize) -> Self {
        let opened = CommitLog::open(Arc::new(disk.clone()), Arc::new(witness.clone()), options(segment_bytes));
        let (log, recovered) = opened.unwrap();
        Self { disk, witness, log, recovered }
    }

    /// The power goes and comes; what was not synced is lost.
    fn again(self) -> Self {
        self.disk.power_cut(Loss::All, &Rng::seeded(3));
        Self::on(self.disk, self.witness, self.log.inner.options.segment_bytes)
    }

    fn submit(&self, records: Vec<Record>) -> Fate {
        let fate = Fate::default();
        self.log.submit(records, fate.done());
        fate
    }

    /// Submits and writes.
    fn write(&self, records: Vec<Record>) {
        let fate = self.submit(records);
        while self.log.step().unwrap() == Step::Wrote {}
        fate.told().unwrap().unwrap();
    }

    fn indexes(&self, group: GroupId) -> Vec<u64> {
        self.log.entries(group, 0..u64::MAX, u64::MAX).unwrap().iter().map(|(id, _)| id.index).collect()
    }

    fn segments(&self) -> Vec<u64> {
        self.disk.list().unwrap().iter().filter_map(|name| segment::parse_file_name(name)).collect()
    }

    fn spares(&self) -> usize {
        self.disk.list().unwrap().iter().filter(|name| segment::parse_spare_name(name).is_some()).count()
    }
}

/// What became of a submission.
#[derive(Clone, Default)]
struct Fate(Arc<Mutex<Option<Result<(), LogError>>>>);

impl Fate {
    fn done(&self) -> Done {
        let told = Arc::clone(&self.0);
        Box::new(move |result| *hold(&told) = Some(result))
    }

    fn told(&self) -> Option<Result<(), LogError>> {
        hold(&self.0).clone()
    }
}

fn id(index: u64) -> LogId {
    LogId { term: 1, index }
}

fn entry(group: GroupId, index: u64) -> Record {
    sized(group, index, 20)
}

fn sized(group: GroupId, index: u64, bytes: usize) -> Record {
    Record::Entry { group, id: id(index), payload: vec![u8::try_from(index % 251).unwrap(); bytes].into() }
}

fn vote(group: GroupId, vote: &'static [u8]) -> Record {
    Record::Vote { group, vote: Bytes::from_static(vote) }
}

#[test]
fn entries_are_readable_on_return_and_durable_when_done() {
    let bed = Bed::new(1 << 20);
    assert_eq!(bed.recovered, Recovered::default());
    bed.log.add_group(A).unwrap();
    let fate = bed.submit(vec![vote(A, b"me"), entry(A, 1), entry(A, 2)]);
    assert!(fate.told().is_none());
    assert_eq!(bed.indexes(A), [1, 2]);
    assert_eq!((bed.log.last(A), bed.log.synced(A)), (Some(id(2)), None));
    assert_eq!(bed.log.step().unwrap(), Step::Wrote);
    fate.told().unwrap().unwrap();
    assert_eq!(bed.log.synced(A), Some(id(2)));
    let bed = bed.again();
    let group = RecoveredGroup { vote: Some(Bytes::from_static(b"me")), purged: None, last: Some(id(2)) };
    assert_eq!(bed.recovered.groups, BTreeMap::from([(A, group)]));
    assert_eq!(bed.indexes(A), [1, 2]);
}

#[test]
fn what_was_not_synced_is_cut_and_the_vote_stays() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    bed.write(vec![vote(A, b"me"), entry(A, 1)]);
    bed.disk.arm(1, Fault::PowerFails);
    let fate = bed.submit(vec![vote(A, b"you"), entry(A, 2)]);
    assert!(bed.log.step().is_err());
    assert!(fate.told().unwrap().is_err());
    let bed = bed.again();
    assert_eq!(bed.recovered.groups[&A].last, Some(id(1)));
    assert_eq!(bed.log.vote(A).unwrap(), "me");
    bed.write(vec![entry(A, 2)]);
}

#[test]
fn one_batch_carries_what_all_groups_have_queued() {
    let bed = Bed::new(1 << 20);
    let fates: Vec<Fate> = (0..50)
        .map(|tablet| {
            bed.log.add_group(group(tablet, 1)).unwrap();
            bed.submit(vec![entry(group(tablet, 1), 1)])
        })
        .collect();
    bed.log.step().unwrap();
    assert!(fates.iter().all(|fate| fate.told().unwrap().is_ok()));
    let stats = bed.log.stats();
    assert_eq!((stats.batches, stats.syncs, stats.records), (1, 1, 50));
    assert_eq!(bed.log.queued_bytes(), 0);
}

#[test]
fn a_mark_is_written_once_for_a_batch_with_records() {
    let bed = Bed::new(1 << 20);
    assert_eq!(bed.log.mark().unwrap(), Step::Idle);
    bed.log.add_group(A).unwrap();
    bed.write(vec![entry(A, 1)]);
    assert_eq!(bed.log.mark().unwrap(), Step::Wrote);
    assert_eq!(bed.log.mark().unwrap(), Step::Idle);
    assert_eq!(bed.log.stats().marks, 1);
}

#[test]
fn a_failed_sync_is_final() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    bed.disk.arm(1, Fault::SyncFails);
    let fates = [bed.submit(vec![entry(A, 1)]), bed.submit(vec![entry(A, 2)])];
    assert!(matches!(bed.log.step(), Err(LogError::Disk { .. })));
    let late = bed.submit(vec![entry(A, 3)]);
    for fate in fates.iter().chain([&late]) {
        assert!(matches!(fate.told(), Some(Err(LogError::Disk { .. }))));
    }
    assert!(bed.log.step().is_err() && bed.log.mark().is_err());
}

#[test]
fn what_a_failed_sync_left_in_the_page_cache_is_made_durable_before_use() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    bed.disk.arm(1, Fault::SyncFails);
    bed.submit(vec![entry(A, 1)]);
    assert!(bed.log.step().is_err());
    bed.disk.restart();
    let bed = Bed::on(bed.disk, bed.witness, 1 << 20);
    assert_eq!(bed.recovered.groups[&A].last, Some(id(1)), "read from the page cache");
    assert_eq!(bed.again().indexes(A), [1], "and on the disk since");
}

#[test]
fn records_that_do_not_follow_are_refused_whole() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    let fate = bed.submit(vec![entry(A, 1), entry(A, 3)]);
    assert!(matches!(fate.told(), Some(Err(LogError::OutOfOrder { expected: 2, got: 3, .. }))));
    assert_eq!(bed.indexes(A), []);
    let stranger = bed.submit(vec![entry(group(9, 9), 1)]);
    assert!(matches!(stranger.told(), Some(Err(LogError::UnknownGroup(_)))));
}

#[test]
fn a_group_may_begin_after_a_seed() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    bed.write(vec![Record::Purge { group: A, upto: LogId { term: 0, index: 10 } }, entry(A, 11)]);
    let bed = bed.again();
    assert_eq!((bed.log.purged(A), bed.indexes(A)), (Some(LogId { term: 0, index: 10 }), vec![11]));
}

#[test]
fn truncated_entries_stay_gone() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    bed.write((1..=5).map(|index| entry(A, index)).collect());
    let other = Record::Entry { group: A, id: LogId { term: 2, index: 3 }, payload: Bytes::from_static(b"new") };
    bed.write(vec![Record::Truncate { group: A, after: 2 }, other]);
    for bed in [bed.again()].map(Bed::again) {
        let entries = bed.log.entries(A, 1..9, u64::MAX).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[2], (LogId { term: 2, index: 3 }, Bytes::from_static(b"new")));
    }
}

#[test]
fn old_entries_are_read_back_from_their_segments() {
    let bed = Bed::new(64 << 10);
    bed.log.add_group(A).unwrap();
    for index in 1..=200 {
        bed.write(vec![sized(A, index, 3000)]);
    }
    assert!(bed.segments().len() > 5);
    let entries = bed.log.entries(A, 1..201, u64::MAX).unwrap();
    assert_eq!(entries.len(), 200);
    assert!(entries.iter().all(|(id, payload)| payload.len() == 3000 && u64::from(payload[0]) == id.index % 251));
    assert_eq!(bed.log.entries(A, 10..201, 7000).unwrap().len(), 2);
    assert_eq!(bed.log.entries(A, 10..201, 1).unwrap().len(), 1, "one travels alone");
}

#[test]
fn purged_segments_are_released_in_order_and_recycled() {
    let bed = Bed::new(64 << 10);
    let (a, b) = (A, group(2, 1));
    bed.log.add_group(a).unwrap();
    bed.log.add_group(b).unwrap();
    bed.write(vec![vote(b, b"kept"), entry(b, 1)]);
    for index in 1..=100 {
        bed.write(vec![sized(a, index, 3000)]);
    }
    let held = bed.segments().len();
    bed.write(vec![Record::Purge { group: a, upto: id(99) }]);
    bed.log.mark().unwrap();
    bed.write(vec![entry(a, 101)]);
    assert_eq!(bed.segments().len(), held, "the first entry of b pins all that follow");
    assert_eq!(bed.log.oldest_pins(), [(b, 61)]);
    bed.write(vec![Record::Purge { group: b, upto: id(1) }]);
    bed.log.mark().unwrap();
    bed.write(vec![entry(a, 102)]);
    assert!(bed.segments().len() <= 2);
    assert_eq!(bed.spares(), 4);
    assert_eq!(bed.log.oldest_pins(), []);
    for index in 103..=130 {
        bed.write(vec![sized(a, index, 3000)]);
    }
    assert!(bed.spares() < 4, "new segments have moved into old files");
    let bed = bed.again();
    assert_eq!(bed.indexes(a), (100..=130).collect::<Vec<_>>());
    assert_eq!(bed.log.vote(b).unwrap(), "kept", "carried by headers since");
    assert_eq!(bed.log.purged(b), Some(id(1)));
}

#[test]
fn a_record_larger_than_a_segment_gets_one_of_its_own() {
    let bed = Bed::new(32 << 10);
    bed.log.add_group(A).unwrap();
    bed.write(vec![entry(A, 1)]);
    bed.write(vec![sized(A, 2, 200_000)]);
    bed.write(vec![entry(A, 3)]);
    let bed = bed.again();
    assert_eq!(bed.log.entries(A, 2..3, 1).unwrap()[0].1.len(), 200_000);
    assert_eq!(bed.indexes(A), [1, 2, 3]);
}

#[test]
fn a_removed_group_leaves_nothing_behind() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    bed.write(vec![vote(A, b"me"), entry(A, 1)]);
    bed.write(vec![Record::Removed { group: A }]);
    assert!(matches!(bed.log.entries(A, 0..9, 9), Err(LogError::UnknownGroup(_))));
    let again = group(1, 2);
    bed.log.add_group(again).unwrap();
    bed.write(vec![entry(again, 1)]);
    let bed = bed.again();
    assert_eq!(bed.recovered.groups.keys().copied().collect::<Vec<_>>(), [again]);
    assert_eq!(bed.log.vote(again), None);
}

/// Three groups, one batch each, in blocks 2, 3 and 4 of segment 1; and the mark.
fn three_batches() -> Bed {
    let bed = Bed::new(1 << 20);
    for tablet in 1..=3 {
        bed.log.add_group(group(tablet, 1)).unwrap();
        bed.write(vec![entry(group(tablet, 1), 1)]);
    }
    bed.log.mark().unwrap();
    bed
}

fn sector_of(block: usize) -> usize {
    block * batch::BLOCK / SECTOR
}

/// Flips one bit of this byte of a segment.
fn spoil(bed: &Bed, segment: u64, byte: usize) {
    let file = bed.disk.open(&segment::file_name(segment), crate::disk::Durability::OnWrite).unwrap();
    let mut found = [0];
    file.read_at(byte as u64, &mut found).unwrap();
    file.write_at(byte as u64, &[found[0] ^ 1]).unwrap();
}

#[test]
fn damage_below_a_mark_quarantines_the_groups_it_names() {
    let bed = three_batches();
    spoil(&bed, 1, 3 * batch::BLOCK + 100);
    let bed = bed.again();
    let damaged = group(2, 1);
    assert_eq!(bed.recovered.quarantined, BTreeSet::from([damaged]));
    assert!(!bed.recovered.all_quarantined);
    assert_eq!(bed.recovered.groups.len(), 2);
    assert!(matches!(bed.log.entries(damaged, 0..9, 9), Err(LogError::Quarantined(_))));
    let refused = bed.submit(vec![vote(damaged, b"no")]);
    assert!(matches!(refused.told(), Some(Err(LogError::Quarantined(_)))));
    let bed = bed.again();
    assert_eq!(bed.recovered.quarantined, BTreeSet::from([damaged]), "it stays so");
    bed.write(vec![Record::Removed { group: damaged }]);
    assert_eq!(bed.again().recovered.quarantined, BTreeSet::new());
}

#[test]
fn damage_to_the_last_marked_batch_is_not_taken_for_a_torn_tail() {
    let bed = three_batches();
    spoil(&bed, 1, 4 * batch::BLOCK + 100);
    assert_eq!(bed.again().recovered.quarantined, BTreeSet::from([group(3, 1)]));
}

#[test]
fn a_lost_batch_header_quarantines_everyone() {
    let bed = three_batches();
    spoil(&bed, 1, 3 * batch::BLOCK + 10);
    let bed = bed.again();
    assert!(bed.recovered.all_quarantined && bed.recovered.groups.is_empty());
    assert_eq!(bed.recovered.quarantined.len(), 2, "the one whose name went with the header is not in groups either");
    let fresh = group(9, 1);
    bed.log.add_group(fresh).unwrap();
    bed.write(vec![entry(fresh, 1)]);
    let bed = bed.again();
    assert!(bed.recovered.all_quarantined, "it is told at every start");
    assert_eq!(bed.recovered.groups.keys().copied().collect::<Vec<_>>(), [fresh]);
}

#[test]
fn one_bad_copy_of_a_segment_header_does_no_harm_and_two_are_damage() {
    let bed = three_batches();
    spoil(&bed, 1, 30);
    let bed = bed.again();
    assert_eq!(bed.recovered.groups.len(), 3);
    spoil(&bed, 2, 30);
    spoil(&bed, 2, batch::BLOCK + 30);
    assert!(bed.again().recovered.all_quarantined);
}

#[test]
fn a_missing_segment_is_damage() {
    let bed = three_batches();
    bed.disk.remove(&segment::file_name(1)).unwrap();
    bed.disk.sync_dir().unwrap();
    assert!(bed.again().recovered.all_quarantined);
}

#[test]
fn an_entry_that_rots_under_a_running_log_is_told() {
    let bed = Bed::new(64 << 10);
    bed.log.add_group(A).unwrap();
    for index in 1..=20 {
        bed.write(vec![sized(A, index, 3000)]);
    }
    assert!(bed.disk.flip(&segment::file_name(1), sector_of(2) + 2, &Rng::seeded(1)));
    assert!(matches!(bed.log.entries(A, 1..2, 1), Err(LogError::Damaged { index: 1, .. })));
    assert_eq!(bed.log.entries(A, 2..3, 1).unwrap().len(), 1);
}

#[test]
fn stop_writes_what_is_queued_and_refuses_the_rest() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    let fate = bed.submit(vec![entry(A, 1)]);
    bed.log.stop();
    fate.told().unwrap().unwrap();
    assert!(matches!(bed.submit(vec![entry(A, 2)]).told(), Some(Err(LogError::Stopped))));
    assert_eq!(bed.log.stats().marks, 1);
    assert_eq!(bed.again().indexes(A), [1]);
}

#[test]
fn abandon_tells_the_queue_and_writes_nothing() {
    let bed = Bed::new(1 << 20);
    bed.log.add_group(A).unwrap();
    let fate = bed.submit(vec![entry(A, 1)]);
    bed.log.abandon();
    assert!(matches!(fate.told(), Some(Err(LogError::Stopped))));
    assert!(bed.again().recovered.groups.is_empty());
}

fn open_real(folder: &std::path::Path, witness: &MemoryWitness) -> (CommitLog, Recovered) {
    let disk = Arc::new(RealDisk::open(folder).unwrap());
    CommitLog::open(disk, Arc::new(witness.clone()), options(1 << 20)).unwrap()
}

/// Appends entries 1 to `count`, waiting for each.
fn append_in_turn(log: &CommitLog, group: GroupId, count: u64) {
    for index in 1..=count {
        let (sender, receiver) = mpsc::channel();
        log.submit(vec![sized(group, index, 1000)], Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap().unwrap();
    }
}

#[test]
fn writers_on_a_real_disk_share_batches_and_find_all_again() {
    let dir = tempfile::tempdir().unwrap();
    let witness = MemoryWitness::default();
    let (log, _) = open_real(dir.path(), &witness);
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
        // The stopped one is still held by someone: the folder is free nevertheless.
        let (log, recovered) = open_real(dir.path(), &witness);
        assert_eq!(recovered.groups.len(), 16);
        assert!(recovered.groups.values().all(|group| group.last == Some(id(200))));
        assert_eq!(log.entries(group(7, 1), 1..201, u64::MAX).unwrap().len(), 200);
        assert_eq!((recovered.quarantined.len(), recovered.cut_bytes), (0, 0));
        log.abandon();
    }
}

#[test]
fn the_thread_writes_the_mark_when_it_is_idle() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open_real(dir.path(), &MemoryWitness::default());
    log.start_writer().unwrap();
    log.add_group(A).unwrap();
    append_in_turn(&log, A, 1);
    while log.stats().marks == 0 {
        std::thread::yield_now();
    }
    log.stop();
    assert_eq!(log.stats().marks, 1);
}

#[test]
fn a_submission_may_be_made_from_a_completion() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open_real(dir.path(), &MemoryWitness::default());
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

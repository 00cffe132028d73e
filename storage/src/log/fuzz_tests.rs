//! Segments and records of arbitrary bytes, and segments with valid checksums whose numbers no log reaches: recovery reads
//! them or reports damage, and never panics.

use ebla_runtime::Rng;
use proptest::prelude::{ProptestConfig, any, proptest};
use proptest::sample::Index;

use super::batch::{BatchHeader, BatchPlan, Position};
use super::record::tests::{group, log_id};
use super::segment::{HeaderGroup, HeaderGroupState, SegmentHeader, file_name};
use super::*;
use crate::disk::{Durability, SimDisk};
use crate::inputs::inputs;

const SALT: u64 = 9;

/// A segment that is described by numbers, and encoded with valid checksums.
#[derive(Clone, Debug)]
struct SegmentPlan {
    previous: u64,
    previous_end: u64,
    first_batch: u64,
    synced: u64,
    oldest: u64,
    groups: Vec<HeaderGroup>,
    /// The records of each batch, and the batch that it says was durable before it.
    batches: Vec<(Vec<Record>, u64)>,
}

fn header(plan: &SegmentPlan, sequence: u64) -> SegmentHeader {
    SegmentHeader {
        sequence,
        salt: SALT,
        previous: plan.previous,
        previous_end: plan.previous_end,
        first_batch: plan.first_batch,
        chain: 1,
        synced: plan.synced,
        oldest: plan.oldest,
        all_quarantined: false,
        groups: plan.groups.clone(),
    }
}

fn encode(plan: &SegmentPlan, sequence: u64) -> Vec<u8> {
    let mut bytes = header(plan, sequence).encode();
    let (mut previous, mut number) = (1, plan.first_batch);
    for (records, synced) in &plan.batches {
        let mut batch = BatchPlan::new();
        records.iter().for_each(|record| batch.add(record));
        let position =
            Position { segment: sequence, salt: SALT, number, previous, synced: *synced, oldest: plan.oldest };
        let encoded = batch.encode(position, records.iter());
        bytes.extend_from_slice(&encoded.bytes);
        (previous, number) = (encoded.crc, number.wrapping_add(1));
    }
    bytes
}

/// The log in these segments, numbered from 1.
fn open(segments: &[Vec<u8>]) -> (SimDisk, MemoryManifest, CommitLog, Recovered) {
    let disk = SimDisk::new();
    let manifest = MemoryManifest::default();
    for (sequence, bytes) in (1..).zip(segments) {
        let file = disk.create(&file_name(sequence)).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync().unwrap();
        manifest.record(sequence).unwrap();
    }
    disk.sync_dir().unwrap();
    let (log, recovered) = open_again(&disk, &manifest);
    (disk, manifest, log, recovered)
}

fn open_again(disk: &SimDisk, manifest: &MemoryManifest) -> (CommitLog, Recovered) {
    let rng = Rng::seeded(1);
    let options = LogOptions { segment_bytes: 1 << 16, on_failure: OnFailure::Report, rng, ..LogOptions::default() };
    CommitLog::open(Arc::new(disk.clone()), Arc::new(manifest.clone()), options).unwrap()
}

/// Reads and extends every group that was recovered, and recovers once more.
fn check(segments: &[Vec<u8>]) {
    let (disk, manifest, log, mut recovered) = open(segments);
    for (group, state) in &mut recovered.groups {
        let all = LogIndex::default()..LogIndex::new(u64::MAX);
        log.entries(*group, all, u64::MAX).unwrap();
        let last = state.last.unwrap_or_default();
        let next = LogId { index: last.index.next(), ..last };
        log.submit_and_wait(vec![Record::Entry { group: *group, id: next, payload: Bytes::new() }]).unwrap();
        state.last = Some(next);
    }
    drop(log);
    let (_log, again) = open_again(&disk, &manifest);
    assert_eq!((&again.groups, &again.quarantined), (&recovered.groups, &recovered.quarantined));
}

/// Recovers twice, and reads every group that was recovered.
fn open_twice(segment: &[u8]) {
    let (disk, manifest, log, recovered) = open(&[segment.to_vec()]);
    for group in recovered.groups.keys() {
        let all = LogIndex::default()..LogIndex::new(u64::MAX);
        log.entries(*group, all, u64::MAX).unwrap();
    }
    drop(log);
    drop(open_again(&disk, &manifest));
}

/// A valid segment with entries of two groups.
fn valid() -> SegmentPlan {
    let entry = |number, index| Record::Entry {
        group: group(number, 1),
        id: log_id(2, index),
        payload: Bytes::from_static(b"cells"),
    };
    let vote = Record::Vote { group: group(1, 1), vote: Bytes::from_static(b"me") };
    let purge = Record::Purge { group: group(2, 1), upto: log_id(2, 1) };
    let removed = Record::Removed { group: group(3, 1) };
    SegmentPlan {
        previous: 0,
        previous_end: 0,
        first_batch: 4,
        synced: 4,
        oldest: 1,
        groups: vec![HeaderGroup { group: group(3, 1), state: HeaderGroupState::Quarantined }],
        batches: vec![
            (vec![vote, entry(1, 1), entry(2, 1)], 3),
            (vec![entry(1, 2), purge, removed], 4),
            (vec![Record::Truncate { group: group(1, 1), after: LogIndex::new(1) }], 5),
        ],
    }
}

/// Writes valid checksums into the headers of these bytes, so that a change of a header reaches its decoder.
fn seal(bytes: &mut [u8]) {
    for block in bytes.chunks_mut(batch::BLOCK) {
        let length = block.get(8..12).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let covered = length.and_then(|length| block.get(8..usize::try_from(length).ok()?));
        if let Some(crc) = covered.map(crc32c::crc32c) {
            block[4..8].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

fn record_examples() -> Vec<Vec<u8>> {
    let records = valid().batches.into_iter().flat_map(|(records, _synced)| records);
    records
        .map(|record| {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            bytes
        })
        .collect()
}

/// The headers of the valid segment and of its batches, without padding.
fn header_examples() -> Vec<Vec<u8>> {
    let bytes = encode(&valid(), 1);
    bytes.chunks(batch::BLOCK).map(|block| block[..200].to_vec()).collect()
}

#[test]
fn the_valid_segment_is_recovered() {
    let segment = encode(&valid(), 1);
    let (_disk, _manifest, _log, recovered) = open(std::slice::from_ref(&segment));
    assert_eq!(recovered.groups.keys().copied().collect::<Vec<_>>(), [group(1, 1), group(2, 1)]);
    assert!(recovered.quarantined.is_empty() && !recovered.all_quarantined, "{recovered:?}");
    check(&[segment]);
}

#[test]
fn a_log_of_a_later_format_is_refused_and_stays_as_it_is() {
    let mut bytes = encode(&valid(), 1);
    bytes[12] = 2;
    bytes[batch::BLOCK + 12] = 2;
    seal(&mut bytes);
    let disk = SimDisk::new();
    disk.create(&file_name(1)).unwrap().write_at(0, &bytes).unwrap();
    let manifest = MemoryManifest::default();
    manifest.record(1).unwrap();
    let opened = CommitLog::open(Arc::new(disk.clone()), Arc::new(manifest), LogOptions::default());
    let error = opened.map(|_log| ()).unwrap_err();
    assert!(matches!(error, LogError::LaterFormat { segment: 1, format: 2 }), "{error}");
    let mut left = vec![0; bytes.len()];
    disk.open(&file_name(1), Durability::OnSync).unwrap().read_at(0, &mut left).unwrap();
    assert_eq!(left, bytes);
    assert_eq!(disk.list().unwrap(), [file_name(1)]);
}

#[test]
fn numbers_that_no_log_reaches_are_damage() {
    let changes: [fn(&mut SegmentPlan); 4] = [
        |plan| plan.previous = u64::MAX,
        |plan| plan.previous_end = u64::MAX,
        |plan| plan.first_batch = u64::MAX,
        |plan| plan.synced = u64::MAX,
    ];
    for change in changes {
        let mut plan = valid();
        change(&mut plan);
        let (_disk, _manifest, _log, recovered) = open(&[encode(&plan, 1)]);
        assert!(recovered.all_quarantined && recovered.groups.is_empty(), "{plan:?}: {recovered:?}");
    }
    let mut plan = valid();
    plan.batches[1].0.push(Record::Purge { group: group(1, 1), upto: log_id(2, u64::MAX) });
    let (_disk, _manifest, _log, recovered) = open(&[encode(&plan, 1)]);
    assert!(recovered.quarantined.contains(&group(1, 1)), "{recovered:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn records_are_refused_or_read_exactly(bytes in inputs(record_examples())) {
        if let Some(records) = Record::decode_all(bytes.clone().into()) {
            let mut again = Vec::new();
            records.iter().for_each(|record| record.encode(&mut again));
            assert_eq!(again, bytes);
        }
    }

    #[test]
    fn headers_are_refused_or_round_trip(bytes in inputs(header_examples())) {
        let mut sealed = bytes.clone();
        seal(&mut sealed);
        for bytes in [bytes, sealed] {
            if let Some((header, _start)) = SegmentHeader::find(&bytes, 1) {
                let again = SegmentHeader::find(&header.encode(), 1).map(|(header, _start)| header);
                assert_eq!(again, Some(header));
            }
            if let Some(header) = BatchHeader::decode(&bytes) {
                drop(header.payload(&Bytes::from(bytes)));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn changed_segments_do_not_stop_recovery(block in any::<Index>(), front in inputs(header_examples())) {
        let valid = encode(&valid(), 1);
        let at = block.index(valid.len() / batch::BLOCK) * batch::BLOCK;
        let mut changed = valid.clone();
        let end = changed.len().min(at + front.len());
        changed[at..end].copy_from_slice(&front[..end - at]);
        let mut sealed = changed.clone();
        seal(&mut sealed);
        open_twice(&changed);
        open_twice(&sealed);
    }
}

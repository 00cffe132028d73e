//! Segment validation: reads the bytes of one segment into batches, damage and the end. A pure function of bytes.
//!
//! The rule: batches are expected in order. When the expected one cannot be read, either a power cut interrupted its write,
//! or it was durable and was corrupted later. One batch is in flight at a time, so:
//!
//! - a later segment records where this one ended: everything before that end was durable;
//! - a later batch (found at a block boundary by its own header) records which batch was durable when it was written;
//! - the segment's header records up to which batch a recovery had written and synced it.
//!
//! If one of them covers the bad batch it is *damage* (corruption): the groups that its header names have lost records, or
//! any group when the header cannot be read either. If none does it is a *torn tail*: no submitter received a success
//! for it, and it is truncated. One case remains: corruption of the last batch before its commit marker is written
//! looks like a torn tail.

use bytes::Bytes;
use ebla_runtime::Failpoint;

use super::batch::{BLOCK, BatchHeader};
use super::record::GroupReplica;
use super::segment::SegmentHeader;

/// The end of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// According to a later segment, all batches below this number were durable, and there are no more.
    Sealed(u64),
    /// It is the last segment.
    Open,
}

/// A batch that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScannedBatch {
    /// Its offset in the segment, in bytes.
    pub(crate) offset: usize,
    pub(crate) header: BatchHeader,
    /// The bytes of its records.
    pub(crate) payload: Bytes,
    /// Offset of the payload in the segment.
    pub(crate) payload_offset: usize,
}

/// Durable batches that can no longer be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The first batch that is lost.
    pub(crate) batch: u64,
    /// The groups that lost records; `None` when it may be any group.
    pub(crate) groups: Option<Vec<GroupReplica>>,
}

/// A batch or damage, in the order of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScanItem {
    Batch(ScannedBatch),
    Damage(Damage),
}

/// Result of the scan.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentScan {
    pub(crate) items: Vec<ScanItem>,
    /// Bytes of a torn batch whose header can be read. A torn batch without a readable header counts 0.
    pub(crate) cut_bytes: usize,
    /// Number of the next batch.
    pub(crate) next: u64,
    /// The CRC that the next batch stores as that of its predecessor.
    pub(crate) chain: u32,
}

impl SegmentScan {
    /// The batches that can be read, in order.
    pub(crate) fn batches(&self) -> impl Iterator<Item = &ScannedBatch> {
        self.items.iter().filter_map(|item| match item {
            ScanItem::Batch(batch) => Some(batch),
            ScanItem::Damage(_) => None,
        })
    }

    /// Failpoint: drops the last batch that holds records.
    pub(crate) fn drop_last_batch(&mut self) {
        while let Some(item) = self.items.pop() {
            if matches!(item, ScanItem::Batch(batch) if !batch.payload.is_empty()) {
                return;
            }
        }
    }
}

/// Reads a segment from `start`, where its batches begin.
pub(crate) fn scan(segment: &Bytes, header: &SegmentHeader, start: usize, tail: Tail) -> SegmentScan {
    let mut scanner = SegmentScanner {
        segment,
        header,
        at: start,
        expected: header.first_batch,
        chain: Some(header.chain),
        scan: SegmentScan::default(),
    };
    let end = match tail {
        Tail::Sealed(end) => end,
        Tail::Open => u64::MAX,
    };
    while scanner.expected < end && scanner.step(tail) == Progress::Continue {}
    SegmentScan { next: scanner.expected, chain: scanner.chain.unwrap_or(0), ..scanner.scan }
}

#[derive(PartialEq, Eq)]
enum Progress {
    Continue,
    Stop,
}

struct SegmentScanner<'a> {
    segment: &'a Bytes,
    header: &'a SegmentHeader,
    at: usize,
    expected: u64,
    /// The CRC that the expected batch must store for the one before; `None` after a gap.
    chain: Option<u32>,
    scan: SegmentScan,
}

impl SegmentScanner<'_> {
    fn step(&mut self, tail: Tail) -> Progress {
        let header = self.header_at(self.at).filter(|header| self.is_expected(header));
        let payload = header.as_ref().and_then(|header| header.payload(&self.segment.slice(self.at..)));
        match (header, payload) {
            (Some(header), Some(payload)) => {
                self.accept(header, payload);
                Progress::Continue
            }
            (header, _) => self.classify(header, tail),
        }
    }

    /// A batch header of this segment, and not of an earlier use of the file.
    fn header_at(&self, at: usize) -> Option<BatchHeader> {
        BatchHeader::decode(self.segment.get(at..)?).filter(|header| {
            header.position.segment == self.header.sequence && header.position.salt == self.header.salt
        })
    }

    fn is_expected(&self, header: &BatchHeader) -> bool {
        header.position.number == self.expected && self.chain.is_none_or(|chain| chain == header.position.previous)
    }

    fn accept(&mut self, header: BatchHeader, payload: Bytes) {
        let offset = self.at;
        let payload_offset = offset + header.payload_offset();
        self.at += header.len();
        self.expected += 1;
        self.chain = Some(header.crc);
        self.scan.items.push(ScanItem::Batch(ScannedBatch { offset, header, payload, payload_offset }));
    }

    /// Classifies an expected batch that is missing or incomplete: torn tail or damage.
    fn classify(&mut self, header: Option<BatchHeader>, tail: Tail) -> Progress {
        let length = header.as_ref().map_or(BLOCK, BatchHeader::len);
        let later = self.later(self.at + length);
        let durable = self.durable(&later, tail);
        if self.expected > durable || (tail == Tail::Open && Failpoint::LogDamageCut.is_enabled()) {
            self.scan.cut_bytes = header.as_ref().map_or(0, BatchHeader::len);
            return Progress::Stop;
        }
        let lost_to = later.first().map_or(durable + 1, |(_, next)| next.position.number);
        let alone = lost_to == self.expected + 1;
        let groups = header.as_ref().filter(|_| alone).map(|header| header.groups.clone());
        self.scan.items.push(ScanItem::Damage(Damage { batch: self.expected, groups }));
        self.chain = header.filter(|_| alone).map(|header| header.crc);
        self.expected = lost_to;
        match later.first() {
            Some((offset, _)) => {
                self.at = *offset;
                Progress::Continue
            }
            None => Progress::Stop,
        }
    }

    /// The last batch that is known to have been durable.
    fn durable(&self, later: &[(usize, BatchHeader)], tail: Tail) -> u64 {
        let synced_here = later.iter().map(|(_, header)| header.position.synced).max().unwrap_or(0);
        let synced_by_next = match tail {
            Tail::Sealed(end) => end.saturating_sub(1),
            Tail::Open => 0,
        };
        synced_here.max(synced_by_next).max(self.header.synced)
    }

    /// The headers of later batches from `at` on. The scan skips the payload of each, so user data is never treated as a batch.
    fn later(&self, mut at: usize) -> Vec<(usize, BatchHeader)> {
        let mut found = Vec::new();
        while at < self.segment.len() {
            match self.header_at(at).filter(|header| header.position.number > self.expected) {
                Some(header) => {
                    let length = header.len();
                    found.push((at, header));
                    at += length;
                }
                None => at += BLOCK,
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::log::batch::{BatchPlan, Position};
    use crate::log::record::Record;
    use crate::log::record::tests::{group, log_id};

    fn header(synced: u64) -> SegmentHeader {
        SegmentHeader {
            sequence: 3,
            salt: 9,
            previous: 0,
            previous_end: 0,
            first_batch: 10,
            chain: 1,
            synced,
            oldest: 3,
            all_quarantined: false,
            groups: Vec::new(),
        }
    }

    /// Batches 10.. with one entry each, of groups 1, 2, 3 …, and where each starts. Batch n is one block, but 12 is two.
    fn segment(count: u64) -> Vec<u8> {
        let mut bytes = vec![0; 2 * BLOCK];
        let mut previous = 1;
        for number in 10..10 + count {
            let size = if number == 12 { 5000 } else { 10 };
            let id = log_id(1, number);
            let record = Record::Entry { group: group(number - 9, 1), id, payload: vec![1; size].into() };
            let mut plan = BatchPlan::new();
            plan.add(&record);
            let position = Position { segment: 3, salt: 9, number, previous, synced: number - 1, oldest: 3 };
            let encoded = plan.encode(position, std::iter::once(&record));
            previous = encoded.crc;
            bytes.extend_from_slice(&encoded.bytes);
        }
        bytes
    }

    fn place(number: usize) -> usize {
        2 * BLOCK + BLOCK * (number - 10) + if number > 12 { BLOCK } else { 0 }
    }

    /// "10 11 !12[3] 13 cut 4096": batches read, damage with its groups, bytes truncated.
    fn describe(bytes: Vec<u8>, synced: u64, tail: Tail) -> String {
        let scan = scan(&bytes.into(), &header(synced), 2 * BLOCK, tail);
        let mut words: Vec<String> = scan
            .items
            .iter()
            .map(|item| match item {
                ScanItem::Batch(batch) => batch.header.position.number.to_string(),
                ScanItem::Damage(Damage { batch, groups: None }) => format!("!{batch}[all]"),
                ScanItem::Damage(Damage { batch, groups: Some(groups) }) => {
                    let groups: Vec<u64> = groups.iter().map(|group| group.group.get()).collect();
                    format!("!{batch}{groups:?}")
                }
            })
            .collect();
        if scan.cut_bytes > 0 {
            words.push(format!("cut {}", scan.cut_bytes));
        }
        words.join(" ")
    }

    fn corrupted(count: u64, places: &[usize]) -> Vec<u8> {
        let mut bytes = segment(count);
        for at in places {
            bytes[*at] ^= 1;
        }
        bytes
    }

    const PAYLOAD: usize = 100;
    const HEADER: usize = 20;

    #[test]
    fn a_whole_segment_is_read_whole() {
        assert_eq!(describe(segment(4), 0, Tail::Open), "10 11 12 13");
        assert_eq!(describe(segment(0), 0, Tail::Open), "");
        assert_eq!(describe(segment(4), 0, Tail::Sealed(14)), "10 11 12 13");
    }

    #[test]
    fn a_bad_last_batch_is_a_torn_tail() {
        assert_eq!(describe(corrupted(3, &[place(12) + PAYLOAD]), 0, Tail::Open), "10 11 cut 8192");
        assert_eq!(describe(corrupted(3, &[place(12) + HEADER]), 0, Tail::Open), "10 11");
        let mut short = segment(3);
        short.truncate(place(12) + BLOCK);
        assert_eq!(describe(short, 0, Tail::Open), "10 11 cut 8192");
    }

    #[test]
    fn a_bad_batch_below_a_commit_marker_is_damage_to_the_groups_it_names() {
        assert_eq!(describe(corrupted(4, &[place(11) + PAYLOAD]), 0, Tail::Open), "10 !11[2] 12 13");
        assert_eq!(describe(corrupted(4, &[place(12) + PAYLOAD]), 0, Tail::Open), "10 11 !12[3] 13");
        let two = corrupted(4, &[place(10) + PAYLOAD, place(12) + PAYLOAD]);
        assert_eq!(describe(two, 0, Tail::Open), "!10[1] 11 !12[3] 13");
    }

    #[test]
    fn a_lost_header_below_a_commit_marker_is_damage_to_all() {
        assert_eq!(describe(corrupted(4, &[place(11) + HEADER]), 0, Tail::Open), "10 !11[all] 12 13");
        let two = corrupted(4, &[place(11) + PAYLOAD, place(12) + HEADER]);
        assert_eq!(describe(two, 0, Tail::Open), "10 !11[all] 13");
    }

    #[test]
    fn a_header_or_a_later_segment_counts_as_a_commit_marker() {
        let bad_last = || corrupted(3, &[place(12) + PAYLOAD]);
        assert_eq!(describe(bad_last(), 12, Tail::Open), "10 11 !12[3]");
        assert_eq!(describe(bad_last(), 11, Tail::Open), "10 11 cut 8192");
        assert_eq!(describe(bad_last(), 0, Tail::Sealed(13)), "10 11 !12[3]");
        assert_eq!(describe(segment(3), 0, Tail::Sealed(15)), "10 11 12 !13[all]");
    }

    #[test]
    fn batches_of_an_earlier_use_of_the_file_are_ignored() {
        let old = segment(4);
        let mut bytes = segment(1);
        bytes.extend_from_slice(&old[place(11)..]);
        let other = SegmentHeader { salt: 8, ..header(0) };
        assert_eq!(scan(&bytes.into(), &other, 2 * BLOCK, Tail::Open).items, []);
    }

    #[test]
    fn a_batch_inside_the_payload_of_another_is_ignored() {
        let inner = segment(4).split_off(place(13));
        let mut payload = vec![0; BLOCK - 72 - 16 - 41];
        payload.extend(inner);
        let id = log_id(1, 10);
        let record = Record::Entry { group: group(1, 1), id, payload: payload.into() };
        let mut plan = BatchPlan::new();
        plan.add(&record);
        let position = Position { segment: 3, salt: 9, number: 10, previous: 1, synced: 9, oldest: 3 };
        let mut bytes = vec![0; 2 * BLOCK];
        bytes.extend_from_slice(&plan.encode(position, std::iter::once(&record)).bytes);
        assert_eq!(describe(bytes.clone(), 0, Tail::Open), "10");
        let end = bytes.len() - BLOCK - 1;
        bytes[3 * BLOCK - 1] ^= 1;
        assert_eq!(describe(bytes, 0, Tail::Open), format!("cut {}", end + 1 - BLOCK));
    }
}

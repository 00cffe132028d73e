//! What the bytes of one segment say: batches, damage, and where it ends. A pure function of bytes.
//!
//! The rule: batches are expected in order. Where the expected one cannot be read, either the power went while it was
//! written, or it was durable and has been damaged since. One batch is in flight at a time, so:
//!
//! - a later segment says where this one ended: everything before that end was durable;
//! - a later batch (found at a block boundary by its own header) says which batch was durable when it was written;
//! - the segment's header says up to where a recovery had written and synced it.
//!
//! If one of them covers the bad batch it is *damage*: the groups that its header names have lost something, or any group
//! when the header cannot be read either. If none does it is a *torn tail*: nobody was told that it was durable, and it is
//! cut. What remains exposed is the last batch until the mark for it is written: rot there looks like a torn tail.

use bytes::Bytes;

use super::batch::{BLOCK, BatchHeader};
use super::record::GroupId;
use super::segment::SegmentHeader;

/// What is known of a segment's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A later segment tells: all batches below this number were durable, and there are no more.
    Closed(u64),
    /// It is the last segment.
    Open,
}

/// A batch that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundBatch {
    /// Its place in the segment, in bytes.
    pub(crate) offset: usize,
    pub(crate) header: BatchHeader,
    /// The bytes of its records.
    pub(crate) payload: Bytes,
    /// Where the payload begins in the segment.
    pub(crate) payload_offset: usize,
}

/// Something durable that can no longer be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The first batch that is lost.
    pub(crate) batch: u64,
    /// Who has lost something; `None` when it could be anyone.
    pub(crate) groups: Option<Vec<GroupId>>,
}

/// One thing met in a segment, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Batch(FoundBatch),
    Damage(Damage),
}

/// All that was met.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) findings: Vec<Finding>,
    /// Bytes of a torn batch whose header can be read. A tail that lost its header too counts nothing.
    pub(crate) cut_bytes: usize,
    /// The number that the next batch would have.
    pub(crate) next: u64,
    /// The CRC that the next batch would store as that of its predecessor.
    pub(crate) chain: u32,
}

impl Scan {
    /// The batches that can be read, in order.
    pub(crate) fn batches(&self) -> impl Iterator<Item = &FoundBatch> {
        self.findings.iter().filter_map(|finding| match finding {
            Finding::Batch(batch) => Some(batch),
            Finding::Damage(_) => None,
        })
    }

    /// Forgets the last batch that holds records: a fault to be planted.
    pub(crate) fn forget_last(&mut self) {
        while let Some(finding) = self.findings.pop() {
            if matches!(finding, Finding::Batch(batch) if !batch.payload.is_empty()) {
                return;
            }
        }
    }
}

/// Reads a segment from `start`, where its batches begin.
pub(crate) fn scan(segment: &Bytes, header: &SegmentHeader, start: usize, ending: Ending) -> Scan {
    let mut walk = Walk {
        segment,
        header,
        at: start,
        expected: header.first_batch,
        chain: Some(header.chain),
        scan: Scan::default(),
    };
    let end = match ending {
        Ending::Closed(end) => end,
        Ending::Open => u64::MAX,
    };
    while walk.expected < end && walk.step(ending) == Step::Goes {}
    Scan { next: walk.expected, chain: walk.chain.unwrap_or(0), ..walk.scan }
}

#[derive(PartialEq, Eq)]
enum Step {
    Goes,
    Ends,
}

struct Walk<'a> {
    segment: &'a Bytes,
    header: &'a SegmentHeader,
    at: usize,
    expected: u64,
    /// What the expected batch must store of the one before; `None` after a gap.
    chain: Option<u32>,
    scan: Scan,
}

impl Walk<'_> {
    fn step(&mut self, ending: Ending) -> Step {
        let header = self.header_at(self.at).filter(|header| self.is_expected(header));
        let payload = header.as_ref().and_then(|header| header.payload(&self.segment.slice(self.at..)));
        match (header, payload) {
            (Some(header), Some(payload)) => {
                self.accept(header, payload);
                Step::Goes
            }
            (header, _) => self.judge(header, ending),
        }
    }

    /// A batch header of this life of the segment.
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
        self.scan.findings.push(Finding::Batch(FoundBatch { offset, header, payload, payload_offset }));
    }

    /// The expected batch is not here, or not whole: torn or damaged?
    fn judge(&mut self, header: Option<BatchHeader>, ending: Ending) -> Step {
        let length = header.as_ref().map_or(BLOCK, BatchHeader::len);
        let later = self.later(self.at + length);
        let durable = self.durable(&later, ending);
        if self.expected > durable {
            self.scan.cut_bytes = header.as_ref().map_or(0, BatchHeader::len);
            return Step::Ends;
        }
        let lost_to = later.first().map_or(durable + 1, |(_, next)| next.position.number);
        let alone = lost_to == self.expected + 1;
        let groups = header.as_ref().filter(|_| alone).map(|header| header.groups.clone());
        self.scan.findings.push(Finding::Damage(Damage { batch: self.expected, groups }));
        self.chain = header.filter(|_| alone).map(|header| header.crc);
        self.expected = lost_to;
        match later.first() {
            Some((offset, _)) => {
                self.at = *offset;
                Step::Goes
            }
            None => Step::Ends,
        }
    }

    /// The last batch that somebody knew to be durable.
    fn durable(&self, later: &[(usize, BatchHeader)], ending: Ending) -> u64 {
        let told_here = later.iter().map(|(_, header)| header.position.synced).max().unwrap_or(0);
        let told_by_next = match ending {
            Ending::Closed(end) => end.saturating_sub(1),
            Ending::Open => 0,
        };
        told_here.max(told_by_next).max(self.header.synced)
    }

    /// The headers of later batches from `at` on. Found batches are stepped over, so their content is never taken for one.
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
    use ebla_model::id::LogId;

    use super::*;
    use crate::log::batch::{BatchPlan, Position};
    use crate::log::record::Record;
    use crate::log::record::tests::group;

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
            let id = LogId { term: 1, index: number };
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

    /// "10 11 !12[3] 13 cut 4096": numbers read, damage with its groups, bytes cut.
    fn told(bytes: Vec<u8>, synced: u64, ending: Ending) -> String {
        let scan = scan(&bytes.into(), &header(synced), 2 * BLOCK, ending);
        let mut words: Vec<String> = scan
            .findings
            .iter()
            .map(|finding| match finding {
                Finding::Batch(batch) => batch.header.position.number.to_string(),
                Finding::Damage(Damage { batch, groups: None }) => format!("!{batch}[all]"),
                Finding::Damage(Damage { batch, groups: Some(groups) }) => {
                    let groups: Vec<u64> = groups.iter().map(|group| group.tablet.get()).collect();
                    format!("!{batch}{groups:?}")
                }
            })
            .collect();
        if scan.cut_bytes > 0 {
            words.push(format!("cut {}", scan.cut_bytes));
        }
        words.join(" ")
    }

    fn spoilt(count: u64, places: &[usize]) -> Vec<u8> {
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
        assert_eq!(told(segment(4), 0, Ending::Open), "10 11 12 13");
        assert_eq!(told(segment(0), 0, Ending::Open), "");
        assert_eq!(told(segment(4), 0, Ending::Closed(14)), "10 11 12 13");
    }

    #[test]
    fn a_bad_last_batch_is_a_torn_tail() {
        assert_eq!(told(spoilt(3, &[place(12) + PAYLOAD]), 0, Ending::Open), "10 11 cut 8192");
        assert_eq!(told(spoilt(3, &[place(12) + HEADER]), 0, Ending::Open), "10 11");
        let mut short = segment(3);
        short.truncate(place(12) + BLOCK);
        assert_eq!(told(short, 0, Ending::Open), "10 11 cut 8192");
    }

    #[test]
    fn a_bad_batch_below_a_mark_is_damage_to_those_it_names() {
        assert_eq!(told(spoilt(4, &[place(11) + PAYLOAD]), 0, Ending::Open), "10 !11[2] 12 13");
        assert_eq!(told(spoilt(4, &[place(12) + PAYLOAD]), 0, Ending::Open), "10 11 !12[3] 13");
        let two = spoilt(4, &[place(10) + PAYLOAD, place(12) + PAYLOAD]);
        assert_eq!(told(two, 0, Ending::Open), "!10[1] 11 !12[3] 13");
    }

    #[test]
    fn a_lost_header_below_a_mark_is_damage_to_all() {
        assert_eq!(told(spoilt(4, &[place(11) + HEADER]), 0, Ending::Open), "10 !11[all] 12 13");
        let two = spoilt(4, &[place(11) + PAYLOAD, place(12) + HEADER]);
        assert_eq!(told(two, 0, Ending::Open), "10 !11[all] 13");
    }

    #[test]
    fn what_is_told_elsewhere_counts_as_a_mark() {
        let bad_last = || spoilt(3, &[place(12) + PAYLOAD]);
        assert_eq!(told(bad_last(), 12, Ending::Open), "10 11 !12[3]");
        assert_eq!(told(bad_last(), 11, Ending::Open), "10 11 cut 8192");
        assert_eq!(told(bad_last(), 0, Ending::Closed(13)), "10 11 !12[3]");
        assert_eq!(told(segment(3), 0, Ending::Closed(15)), "10 11 12 !13[all]");
    }

    #[test]
    fn batches_of_another_life_are_not_seen() {
        let old = segment(4);
        let mut bytes = segment(1);
        bytes.extend_from_slice(&old[place(11)..]);
        let other = SegmentHeader { salt: 8, ..header(0) };
        assert_eq!(scan(&bytes.into(), &other, 2 * BLOCK, Ending::Open).findings, []);
    }

    #[test]
    fn a_batch_inside_the_payload_of_another_is_not_taken_for_one() {
        let inner = segment(4).split_off(place(13));
        let mut payload = vec![0; BLOCK - 72 - 16 - 41];
        payload.extend(inner);
        let id = LogId { term: 1, index: 10 };
        let record = Record::Entry { group: group(1, 1), id, payload: payload.into() };
        let mut plan = BatchPlan::new();
        plan.add(&record);
        let position = Position { segment: 3, salt: 9, number: 10, previous: 1, synced: 9, oldest: 3 };
        let mut bytes = vec![0; 2 * BLOCK];
        bytes.extend_from_slice(&plan.encode(position, std::iter::once(&record)).bytes);
        assert_eq!(told(bytes.clone(), 0, Ending::Open), "10");
        let end = bytes.len() - BLOCK - 1;
        bytes[3 * BLOCK - 1] ^= 1;
        assert_eq!(told(bytes, 0, Ending::Open), format!("cut {}", end + 1 - BLOCK));
    }
}

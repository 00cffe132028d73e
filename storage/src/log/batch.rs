//! A batch: the unit that is written with one write and made durable with one sync.
//!
//! It starts on a block boundary and never shares a block with another, so no write touches a block that holds synced
//! data (a torn rewrite would destroy acknowledged bytes). Its header has its own CRC and holds three facts for recovery:
//! the groups that have records in the batch, so that damage to the payload can be attributed; the *stored* CRC of the
//! batch before, so that the chain continues past a batch whose payload is lost; and the last batch that was durable when
//! this one was written, so that a later header shows whether a bad batch had been durable. Together they distinguish a
//! torn tail from damage.
//!
//! The CRC of a batch, as the next one stores it, is that of its header, which covers the payload's.

use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes};

use super::record::{GroupReplica, Record, get_group, get_number, put_group};

/// Alignment of batches and segment headers, in bytes: the block size of disks and file systems.
pub(crate) const BLOCK: usize = 4096;

const MAGIC: u32 = u32::from_le_bytes(*b"EbB1");
/// Length of a header that names no group.
const FIXED_BYTES: usize = 72;
const GROUP_BYTES: usize = 16;
/// Bytes before those that the header's CRC covers: magic and the CRC itself.
const UNCOVERED: usize = 8;

/// `bytes` rounded up to whole blocks.
pub(crate) const fn blocks(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK) * BLOCK
}

/// Where a batch is in the log, and the facts it records about the log before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Sequence number of its segment.
    pub(crate) segment: u64,
    /// The segment's random number: user data cannot be mistaken for a batch.
    pub(crate) salt: u64,
    /// Its number; the next one has one more.
    pub(crate) number: u64,
    /// Stored CRC of the batch before.
    pub(crate) previous: u32,
    /// The last batch known to be durable when this one was written.
    pub(crate) synced: u64,
    /// The oldest needed segment, according to durable records.
    pub(crate) oldest: u64,
}

/// The head of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) position: Position,
    pub(crate) payload_len: usize,
    pub(crate) payload_crc: u32,
    /// The groups that have records in it, ascending.
    pub(crate) groups: Vec<GroupReplica>,
    /// As the next batch stores it.
    pub(crate) crc: u32,
}

/// A batch ready to be written.
#[derive(Debug)]
pub(crate) struct EncodedBatch {
    /// Whole blocks.
    pub(crate) bytes: Bytes,
    /// Stored CRC, for the next batch.
    pub(crate) crc: u32,
    /// Where each record starts, from the start of the batch.
    pub(crate) starts: Vec<usize>,
}

/// The layout of a batch of these records: enough to compute its size.
#[derive(Debug)]
pub(crate) struct BatchPlan {
    groups: BTreeSet<GroupReplica>,
    payload_len: usize,
}

impl BatchPlan {
    /// The plan of an empty batch: a commit marker.
    pub(crate) fn new() -> Self {
        Self { groups: BTreeSet::new(), payload_len: 0 }
    }

    /// Adds a record.
    pub(crate) fn add(&mut self, record: &Record) {
        self.groups.insert(record.group());
        self.payload_len += record.encoded_len();
    }

    fn header_len(&self) -> usize {
        FIXED_BYTES + GROUP_BYTES * self.groups.len()
    }

    /// Bytes on disk.
    pub(crate) fn len(&self) -> usize {
        blocks(self.header_len() + self.payload_len)
    }

    /// Encodes the batch. `records` are those that were added, in the same order.
    pub(crate) fn encode<'a>(&self, position: Position, records: impl Iterator<Item = &'a Record>) -> EncodedBatch {
        let header_len = self.header_len();
        let mut bytes = Vec::with_capacity(self.len());
        bytes.resize(header_len, 0);
        let mut starts = Vec::new();
        for record in records {
            starts.push(bytes.len());
            record.encode(&mut bytes);
        }
        let payload_crc = crc32c::crc32c(bytes.get(header_len..).unwrap_or_default());
        let (header, crc) = self.encode_header(position, payload_crc);
        if let Some(front) = bytes.get_mut(..header_len) {
            front.copy_from_slice(&header);
        }
        bytes.resize(self.len(), 0);
        EncodedBatch { bytes: bytes.into(), crc, starts }
    }

    fn encode_header(&self, position: Position, payload_crc: u32) -> (Vec<u8>, u32) {
        let mut covered = Vec::with_capacity(self.header_len());
        covered.put_u32_le(to_u32(self.header_len()));
        covered.put_u32_le(to_u32(self.payload_len));
        covered.put_u32_le(payload_crc);
        covered.put_u32_le(position.previous);
        covered.put_u64_le(position.segment);
        covered.put_u64_le(position.salt);
        covered.put_u64_le(position.number);
        covered.put_u64_le(position.synced);
        covered.put_u64_le(position.oldest);
        covered.put_u32_le(to_u32(self.groups.len()));
        covered.put_u32_le(0);
        for group in &self.groups {
            put_group(&mut covered, *group);
        }
        let crc = crc32c::crc32c(&covered);
        let mut header = Vec::with_capacity(UNCOVERED + covered.len());
        header.put_u32_le(MAGIC);
        header.put_u32_le(crc);
        header.put_slice(&covered);
        (header, crc)
    }
}

/// A length or offset within a batch or a segment. [`super::SUBMISSION_MAX_BYTES`] keeps all of them below 2^32.
pub(crate) fn to_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl BatchHeader {
    /// Reads the header at the front of `block`; `None` unless it is whole and its CRC agrees.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        let mut input = block;
        if input.try_get_u32_le().ok()? != MAGIC {
            return None;
        }
        let crc = input.try_get_u32_le().ok()?;
        let header_len = usize::try_from(input.try_get_u32_le().ok()?).ok()?;
        if crc32c::crc32c(block.get(UNCOVERED..header_len)?) != crc {
            return None;
        }
        let payload_len = usize::try_from(input.try_get_u32_le().ok()?).ok()?;
        let payload_crc = input.try_get_u32_le().ok()?;
        let previous = input.try_get_u32_le().ok()?;
        let segment = get_number(&mut input)?;
        let salt = input.try_get_u64_le().ok()?;
        let mut next = || get_number(&mut input);
        let (number, synced, oldest) = (next()?, next()?, next()?);
        let count = usize::try_from(input.try_get_u32_le().ok()?).ok()?;
        let _reserved = input.try_get_u32_le().ok()?;
        if header_len != FIXED_BYTES + GROUP_BYTES * count {
            return None;
        }
        let groups: Option<Vec<GroupReplica>> = (0..count).map(|_| get_group(&mut input)).collect();
        let position = Position { segment, salt, number, previous, synced, oldest };
        Some(Self { position, payload_len, payload_crc, groups: groups?, crc })
    }

    fn header_len(&self) -> usize {
        FIXED_BYTES + GROUP_BYTES * self.groups.len()
    }

    /// Bytes on disk.
    pub(crate) fn len(&self) -> usize {
        blocks(self.header_len() + self.payload_len)
    }

    /// Where the payload begins, from the start of the batch.
    pub(crate) fn payload_offset(&self) -> usize {
        self.header_len()
    }

    /// The records' bytes out of `batch`, which starts with this header; `None` when they are truncated or damaged.
    pub(crate) fn payload(&self, batch: &Bytes) -> Option<Bytes> {
        let range = self.header_len()..self.header_len() + self.payload_len;
        (range.end <= batch.len()).then(|| batch.slice(range)).filter(|bytes| crc32c::crc32c(bytes) == self.payload_crc)
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::log::record::tests::{group, log_id};

    const POSITION: Position = Position { segment: 5, salt: 99, number: 12, previous: 0xABCD, synced: 11, oldest: 3 };

    fn records(payload: usize) -> Vec<Record> {
        let entry = |group, index| Record::Entry { group, id: log_id(1, index), payload: vec![7; payload].into() };
        vec![entry(group(9, 1), 4), entry(group(2, 1), 8), entry(group(9, 1), 5)]
    }

    fn encode(records: &[Record]) -> EncodedBatch {
        let mut plan = BatchPlan::new();
        records.iter().for_each(|record| plan.add(record));
        let encoded = plan.encode(POSITION, records.iter());
        assert_eq!(encoded.bytes.len(), plan.len());
        encoded
    }

    #[test]
    fn a_batch_is_read_back_from_its_blocks() {
        for payload in [0, 10, 1000, 5000] {
            let records = records(payload);
            let encoded = encode(&records);
            assert_eq!(encoded.bytes.len() % BLOCK, 0);
            let header = BatchHeader::decode(&encoded.bytes).unwrap();
            assert_eq!(header.position, POSITION);
            assert_eq!(header.groups, [group(2, 1), group(9, 1)], "each once, ascending");
            assert_eq!((header.len(), header.crc), (encoded.bytes.len(), encoded.crc));
            let payload = header.payload(&encoded.bytes).unwrap();
            assert_eq!(Record::decode_all(payload).unwrap(), records);
            let mut second = encoded.bytes.slice(encoded.starts[1]..);
            assert_eq!(Record::decode(&mut second).unwrap(), records[1]);
        }
    }

    #[test]
    fn an_empty_batch_is_one_block() {
        let encoded = encode(&[]);
        assert_eq!(encoded.bytes.len(), BLOCK);
        let header = BatchHeader::decode(&encoded.bytes).unwrap();
        assert_eq!(header.payload(&encoded.bytes).unwrap(), Bytes::new());
    }

    #[test]
    fn the_header_has_the_bytes_of_the_format() {
        let encoded = encode(&records(1));
        let read = |at: usize, bytes: usize| {
            encoded.bytes[at..at + bytes].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        assert_eq!(&encoded.bytes[..4], b"EbB1");
        assert_eq!(read(4, 4), u64::from(crc32c::crc32c(&encoded.bytes[8..104])));
        assert_eq!((read(8, 4), read(12, 4)), (104, 126), "lengths of header and payload");
        assert_eq!(read(16, 4), u64::from(crc32c::crc32c(&encoded.bytes[104..230])));
        assert_eq!(read(20, 4), 0xABCD);
        assert_eq!([24, 32, 40, 48, 56].map(|at| read(at, 8)), [5, 99, 12, 11, 3]);
        assert_eq!((read(64, 4), read(68, 4)), (2, 0));
        assert_eq!([72, 80, 88, 96].map(|at| read(at, 8)), [2, 1, 9, 1]);
        assert!(encoded.bytes[230..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn every_flipped_bit_is_detected_in_header_or_payload() {
        let encoded = encode(&records(20));
        let header = BatchHeader::decode(&encoded.bytes).unwrap();
        let end = header.header_len() + header.payload_len;
        for at in 0..end {
            let mut corrupted = encoded.bytes.to_vec();
            corrupted[at] ^= 16;
            let corrupted = Bytes::from(corrupted);
            let read = BatchHeader::decode(&corrupted);
            assert_eq!(read.is_none(), at < header.header_len(), "byte {at}");
            assert!(read.is_none_or(|read| read.payload(&corrupted).is_none()), "byte {at}");
        }
    }
}

//! A segment: one file of the log. It begins with a header in two copies; batches follow.
//!
//! The header holds the state that later records build on: vote, last purged id and last index of every group that existed
//! when the segment was started, and the quarantined groups. So an older segment can be released as soon as none of its
//! entries is needed. The header also names the segment before it and where that one ended, so a reader knows exactly which
//! segments must exist: a missing file or a short segment is damage.
//!
//! Files are recycled: the bytes after the last batch are those of an earlier segment. They cannot be mistaken for this
//! one, because each batch repeats the segment's sequence number and its random salt.

use bytes::{Buf, BufMut, Bytes};
use ebla_model::id::{LogId, LogIndex};

use super::batch::{BLOCK, blocks};
use super::record::{GroupReplica, get_group, get_log_id, get_log_index, get_number, put_group, put_log_id, reachable};

const MAGIC: u32 = u32::from_le_bytes(*b"EbS1");
const FORMAT: u16 = 1;
/// Length of a header without groups.
const FIXED_BYTES: usize = 80;
/// Bytes before those that the CRC covers: magic and the CRC itself.
const UNCOVERED: usize = 8;

const ALL_QUARANTINED: u8 = 1;
const QUARANTINED: u8 = 1;
const HAS_VOTE: u8 = 2;
const HAS_PURGED: u8 = 4;
const HAS_LAST: u8 = 8;

/// One group in the header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderGroup {
    pub(crate) group: GroupReplica,
    pub(crate) state: HeaderGroupState,
}

/// See [`HeaderGroup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeaderGroupState {
    Live {
        vote: Option<Bytes>,
        purged: Option<LogId>,
        /// Index of the last entry above `purged`, if there is one. Its segment may have been released since.
        last: Option<LogIndex>,
    },
    Quarantined,
}

/// The head of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Must equal the file name's.
    pub(crate) sequence: u64,
    /// Random; repeated by each batch.
    pub(crate) salt: u64,
    /// The segment before, 0 when there is none.
    pub(crate) previous: u64,
    /// One past the number of the last batch of `previous`: all of these were synced before this segment was started.
    pub(crate) previous_end: u64,
    /// Number of the first batch here.
    pub(crate) first_batch: u64,
    /// The CRC that the first batch stores as that of its predecessor.
    pub(crate) chain: u32,
    /// Batches here up to this number were synced before the segment was added to the manifest (recovery wrote them). 0: none.
    pub(crate) synced: u64,
    /// The oldest segment that is still needed.
    pub(crate) oldest: u64,
    /// Damage was found that cannot be attributed to groups: every earlier group that is not in this header is suspect.
    pub(crate) all_quarantined: bool,
    /// Ascending by group.
    pub(crate) groups: Vec<HeaderGroup>,
}

/// The name of the file that holds segment `sequence`.
pub(crate) fn file_name(sequence: u64) -> String {
    format!("{sequence:016x}.log")
}

/// The sequence number in a segment's file name.
pub(crate) fn parse_file_name(name: &str) -> Option<u64> {
    parse_number(name, ".log")
}

fn parse_number(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_suffix(suffix)?;
    let number = reachable(u64::from_str_radix(digits, 16).ok()?)?;
    (format!("{number:016x}") == digits).then_some(number)
}

/// The name of a file that waits to be recycled.
pub(crate) fn spare_name(number: u64) -> String {
    format!("{number:016x}.spare")
}

/// The number in a spare file's name.
pub(crate) fn parse_spare_name(name: &str) -> Option<u64> {
    parse_number(name, ".spare")
}

impl SegmentHeader {
    /// Both copies, in whole blocks. The first batch follows.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_copy(0);
        out.extend(self.encode_copy(1));
        out
    }

    fn encode_copy(&self, copy: u8) -> Vec<u8> {
        let groups = self.encode_groups();
        let length = FIXED_BYTES + groups.len();
        let mut covered = Vec::with_capacity(length);
        covered.put_u32_le(u32::try_from(length).unwrap_or(u32::MAX));
        covered.put_u16_le(FORMAT);
        covered.put_u8(copy);
        covered.put_u8(if self.all_quarantined { ALL_QUARANTINED } else { 0 });
        covered.put_u64_le(self.sequence);
        covered.put_u64_le(self.salt);
        covered.put_u64_le(self.previous);
        covered.put_u64_le(self.previous_end);
        covered.put_u64_le(self.first_batch);
        covered.put_u64_le(self.synced);
        covered.put_u64_le(self.oldest);
        covered.put_u32_le(self.chain);
        covered.put_u32_le(u32::try_from(self.groups.len()).unwrap_or(u32::MAX));
        covered.put_slice(&groups);
        let mut out = Vec::with_capacity(blocks(length));
        out.put_u32_le(MAGIC);
        out.put_u32_le(crc32c::crc32c(&covered));
        out.put_slice(&covered);
        out.resize(blocks(length), 0);
        out
    }

    fn encode_groups(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for HeaderGroup { group, state } in &self.groups {
            put_group(&mut out, *group);
            let HeaderGroupState::Live { vote, purged, last } = state else {
                out.put_u8(QUARANTINED);
                continue;
            };
            let has_last = last.map_or(0, |_| HAS_LAST);
            out.put_u8(vote.as_ref().map_or(0, |_| HAS_VOTE) | purged.map_or(0, |_| HAS_PURGED) | has_last);
            if let Some(vote) = vote {
                out.put_u32_le(u32::try_from(vote.len()).unwrap_or(u32::MAX));
                out.put_slice(vote);
            }
            if let Some(purged) = purged {
                put_log_id(&mut out, *purged);
            }
            if let Some(last) = last {
                out.put_u64_le(last.get());
            }
        }
        out
    }

    /// Reads the header of segment `sequence` from its bytes: the first copy, or else the second. Also returns the offset of
    /// the first batch. `None` when neither copy is valid.
    pub(crate) fn find(segment: &[u8], sequence: u64) -> Option<(Self, usize)> {
        let copy_at = |at: usize| {
            let (header, copy, length) = Self::decode_copy(segment.get(at..)?)?;
            let place = usize::from(copy) * blocks(length);
            (header.sequence == sequence && place == at).then_some((header, 2 * blocks(length)))
        };
        (0..segment.len()).step_by(BLOCK).find_map(copy_at)
    }

    /// Length of the first copy according to the first block of the segment. `None` when the block is not a header.
    pub(crate) fn copy_len(block: &[u8]) -> Option<usize> {
        let mut input = block;
        if input.try_get_u32_le().ok()? != MAGIC {
            return None;
        }
        let _crc = input.try_get_u32_le().ok()?;
        usize::try_from(input.try_get_u32_le().ok()?).ok()
    }

    /// The format of a segment that a later release wrote; `None` for this format, and when neither copy is valid.
    pub(crate) fn later_format(segment: &[u8]) -> Option<u16> {
        let format_at = |at: usize| {
            let front = segment.get(at..)?;
            let length = Self::copy_len(front)?;
            let (mut crc, mut covered) = (front.get(4..)?, front.get(UNCOVERED..length)?);
            if crc32c::crc32c(covered) != crc.try_get_u32_le().ok()? {
                return None;
            }
            let _length = covered.try_get_u32_le().ok()?;
            covered.try_get_u16_le().ok().filter(|format| *format > FORMAT)
        };
        (0..segment.len()).step_by(BLOCK).find_map(format_at)
    }

    fn decode_copy(front: &[u8]) -> Option<(Self, u8, usize)> {
        let length = Self::copy_len(front)?;
        let mut input = front.get(4..length)?;
        let crc = input.try_get_u32_le().ok()?;
        if crc32c::crc32c(front.get(UNCOVERED..length)?) != crc {
            return None;
        }
        let _length = input.try_get_u32_le().ok()?;
        if input.try_get_u16_le().ok()? != FORMAT {
            return None;
        }
        let copy = input.try_get_u8().ok()?;
        let flags = input.try_get_u8().ok()?;
        let sequence = get_number(&mut input)?;
        let salt = input.try_get_u64_le().ok()?;
        let mut next = || get_number(&mut input);
        let (previous, previous_end, first_batch, synced, oldest) = (next()?, next()?, next()?, next()?, next()?);
        let chain = input.try_get_u32_le().ok()?;
        let count = input.try_get_u32_le().ok()?;
        let groups: Option<Vec<HeaderGroup>> = (0..count).map(|_| decode_group(&mut input)).collect();
        let header = Self {
            sequence,
            salt,
            previous,
            previous_end,
            first_batch,
            chain,
            synced,
            oldest,
            all_quarantined: flags & ALL_QUARANTINED != 0,
            groups: groups?,
        };
        Some((header, copy, length))
    }
}

fn decode_group(input: &mut &[u8]) -> Option<HeaderGroup> {
    let group = get_group(input)?;
    let flags = input.try_get_u8().ok()?;
    if flags & QUARANTINED != 0 {
        return Some(HeaderGroup { group, state: HeaderGroupState::Quarantined });
    }
    let vote = if flags & HAS_VOTE == 0 { None } else { Some(decode_vote(input)?) };
    let purged = if flags & HAS_PURGED == 0 { None } else { Some(get_log_id(input)?) };
    let last = if flags & HAS_LAST == 0 { None } else { Some(get_log_index(input)?) };
    Some(HeaderGroup { group, state: HeaderGroupState::Live { vote, purged, last } })
}

fn decode_vote(input: &mut &[u8]) -> Option<Bytes> {
    let length = usize::try_from(input.try_get_u32_le().ok()?).ok()?;
    let (vote, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(Bytes::copy_from_slice(vote))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::tests::{group, log_id};

    fn header(groups: u64) -> SegmentHeader {
        let state = |n: u64| match n % 3 {
            0 => HeaderGroupState::Quarantined,
            1 => HeaderGroupState::Live { vote: None, purged: None, last: Some(LogIndex::new(n)) },
            _ => HeaderGroupState::Live {
                vote: Some(Bytes::from_static(b"vote")),
                purged: Some(log_id(2, n)),
                last: None,
            },
        };
        SegmentHeader {
            sequence: 6,
            salt: 77,
            previous: 5,
            previous_end: 40,
            first_batch: 41,
            chain: 0xBEEF,
            synced: 43,
            oldest: 3,
            all_quarantined: true,
            groups: (0..groups).map(|n| HeaderGroup { group: group(n, 1), state: state(n) }).collect(),
        }
    }

    #[test]
    fn either_copy_is_enough() {
        for groups in [0, 3, 500] {
            let header = header(groups);
            let whole = header.encode();
            assert_eq!(whole.len() % (2 * BLOCK), 0);
            assert_eq!(SegmentHeader::find(&whole, 6), Some((header.clone(), whole.len())));
            let half = whole.len() / 2;
            for spoilt_copy in [0, half] {
                let mut spoilt = whole.clone();
                spoilt[spoilt_copy + 30] ^= 1;
                assert_eq!(SegmentHeader::find(&spoilt, 6), Some((header.clone(), whole.len())));
            }
        }
    }

    #[test]
    fn a_header_of_another_segment_or_with_both_copies_bad_is_none() {
        let mut whole = header(4).encode();
        assert_eq!(SegmentHeader::find(&whole, 7), None, "the name says 7, the header 6");
        whole[20] ^= 1;
        whole[BLOCK + 20] ^= 1;
        assert_eq!(SegmentHeader::find(&whole, 6), None);
        assert_eq!(SegmentHeader::find(&[], 6), None);
    }

    #[test]
    fn a_later_format_is_distinguished_from_damage() {
        let mut whole = header(1).encode();
        assert_eq!(SegmentHeader::later_format(&whole), None);
        for copy in [0, BLOCK] {
            whole[copy + 12] = 2;
            assert_eq!(SegmentHeader::later_format(&whole), None, "the checksum is that of format 1");
        }
        for copy in [BLOCK, 0] {
            let crc = crc32c::crc32c(&whole[copy + 8..copy + 97]);
            whole[copy + 4..copy + 8].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(SegmentHeader::later_format(&whole), Some(2), "either copy is enough");
            assert_eq!(SegmentHeader::find(&whole, 6), None);
        }
    }

    #[test]
    fn the_header_has_the_bytes_of_the_format() {
        let whole = header(1).encode();
        let read = |at: usize, bytes: usize| {
            whole[at..at + bytes].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        assert_eq!(&whole[..4], b"EbS1");
        assert_eq!(read(4, 4), u64::from(crc32c::crc32c(&whole[8..97])));
        assert_eq!((read(8, 4), read(12, 2), read(14, 1), read(15, 1)), (97, 1, 0, 1));
        assert_eq!([16, 24, 32, 40, 48, 56, 64].map(|at| read(at, 8)), [6, 77, 5, 40, 41, 43, 3]);
        assert_eq!((read(72, 4), read(76, 4)), (0xBEEF, 1));
        assert_eq!((read(80, 8), read(88, 8), read(96, 1)), (0, 1, 1));
        assert_eq!(read(BLOCK + 14, 1), 1, "the second copy says that it is the second");
    }

    #[test]
    fn names_are_read_back() {
        assert_eq!(file_name(255), "00000000000000ff.log");
        assert_eq!(parse_file_name(&file_name(255)), Some(255));
        assert_eq!(parse_spare_name(&spare_name(3)), Some(3));
        assert_eq!(parse_file_name("ff.log"), None);
        assert_eq!(parse_file_name(&spare_name(3)), None);
        for other in ["ffffffffffffffff", "+00000000000000f", "000000000000000F", "00000000000000ff1"] {
            assert_eq!(
                (parse_file_name(&format!("{other}.log")), parse_spare_name(&format!("{other}.spare"))),
                (None, None)
            );
        }
    }
}

//! Records of the log and their encoding.
//!
//! A record names its group by (group, replica), so a replica that returns under a new id never reads records of its
//! predecessor. Integers are little endian. The layout is in `docs/reference/formats.md`, "Commit log"; kinds are never
//! reused.

use std::fmt;

use bytes::{Buf, BufMut, Bytes};
use ebla_model::id::{GroupId, LogId, LogIndex, ReplicaId};

/// One replica of one group, as the owner of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupReplica {
    /// The group.
    pub group: GroupId,
    /// Its replica on this server; never reused.
    pub replica: ReplicaId,
}

impl fmt::Display for GroupReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.replica)
    }
}

/// A record of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An entry; its index follows that of the group's last one.
    Entry {
        /// The record's group.
        group: GroupReplica,
        /// Term and index.
        id: LogId,
        /// Opaque to the log.
        payload: Bytes,
    },
    /// The group's vote, replacing the one before.
    Vote {
        /// The record's group.
        group: GroupReplica,
        /// Opaque to the log.
        vote: Bytes,
    },
    /// Removes the entries above an index.
    Truncate {
        /// The record's group.
        group: GroupReplica,
        /// The last index that remains.
        after: LogIndex,
    },
    /// Log compaction: removes the entries up to and including an id. The next entry follows that id, even if no entry had it.
    Purge {
        /// The record's group.
        group: GroupReplica,
        /// The last id that is removed.
        upto: LogId,
    },
    /// Removes the group.
    Removed {
        /// The record's group.
        group: GroupReplica,
    },
}

const ENTRY: u8 = 1;
const VOTE: u8 = 2;
const TRUNCATE: u8 = 3;
const PURGE: u8 = 4;
const REMOVED: u8 = 5;

/// Kind and group.
const PREFIX_BYTES: usize = 17;
/// Encoded size of an entry without its payload: prefix, term, index, CRC, length.
pub(crate) const ENTRY_OVERHEAD: usize = PREFIX_BYTES + 16 + 8;

impl Record {
    /// The group it belongs to.
    #[must_use]
    pub fn group(&self) -> GroupReplica {
        match self {
            Self::Entry { group, .. }
            | Self::Vote { group, .. }
            | Self::Truncate { group, .. }
            | Self::Purge { group, .. }
            | Self::Removed { group } => *group,
        }
    }

    /// Number of bytes that [`encode`](Self::encode) appends.
    pub(crate) fn encoded_len(&self) -> usize {
        match self {
            Self::Entry { payload, .. } => ENTRY_OVERHEAD + payload.len(),
            Self::Vote { vote, .. } => PREFIX_BYTES + 4 + vote.len(),
            Self::Truncate { .. } => PREFIX_BYTES + 8,
            Self::Purge { .. } => PREFIX_BYTES + 16,
            Self::Removed { .. } => PREFIX_BYTES,
        }
    }

    /// Appends its bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Entry { group, id, payload } => {
                let prefix = entry_prefix(*group, *id);
                out.put_slice(&prefix);
                out.put_u32_le(entry_crc(&prefix, payload));
                put_bytes(out, payload);
            }
            Self::Vote { group, vote } => {
                put_prefix(out, VOTE, *group);
                put_bytes(out, vote);
            }
            Self::Truncate { group, after } => {
                put_prefix(out, TRUNCATE, *group);
                out.put_u64_le(after.get());
            }
            Self::Purge { group, upto } => {
                put_prefix(out, PURGE, *group);
                put_log_id(out, *upto);
            }
            Self::Removed { group } => put_prefix(out, REMOVED, *group),
        }
    }

    /// Takes one record from the front of `input`; `None` when the bytes are not a record.
    pub(crate) fn decode(input: &mut Bytes) -> Option<Self> {
        let kind = input.try_get_u8().ok()?;
        let group = get_group(input)?;
        match kind {
            ENTRY => {
                let id = get_log_id(input)?;
                let crc = input.try_get_u32_le().ok()?;
                let payload = get_bytes(input)?;
                (entry_crc(&entry_prefix(group, id), &payload) == crc).then_some(Self::Entry { group, id, payload })
            }
            VOTE => Some(Self::Vote { group, vote: get_bytes(input)? }),
            TRUNCATE => Some(Self::Truncate { group, after: get_log_index(input)? }),
            PURGE => Some(Self::Purge { group, upto: get_log_id(input)? }),
            REMOVED => Some(Self::Removed { group }),
            _ => None,
        }
    }

    /// All records of a batch; `None` when they do not fill `payload` exactly.
    pub(crate) fn decode_all(mut payload: Bytes) -> Option<Vec<Self>> {
        let mut records = Vec::new();
        while !payload.is_empty() {
            records.push(Self::decode(&mut payload)?);
        }
        Some(records)
    }
}

fn entry_prefix(group: GroupReplica, id: LogId) -> Vec<u8> {
    let mut prefix = Vec::with_capacity(ENTRY_OVERHEAD);
    put_prefix(&mut prefix, ENTRY, group);
    put_log_id(&mut prefix, id);
    prefix
}

/// An entry has its own CRC because it is read alone, without its batch.
fn entry_crc(prefix: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(prefix), payload)
}

fn put_prefix(out: &mut Vec<u8>, kind: u8, group: GroupReplica) {
    out.put_u8(kind);
    put_group(out, group);
}

/// A length of at most [`super::SUBMISSION_MAX_BYTES`], which the log checks when records come in.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

fn get_bytes(input: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(input.try_get_u32_le().ok()?).ok()?;
    (length <= input.len()).then(|| input.split_to(length))
}

/// Appends group and replica, 16 bytes.
pub(crate) fn put_group(out: &mut Vec<u8>, group: GroupReplica) {
    out.put_u64_le(group.group.get());
    out.put_u64_le(group.replica.get());
}

/// Takes what [`put_group`] wrote.
pub(crate) fn get_group(input: &mut impl Buf) -> Option<GroupReplica> {
    let group = GroupId::new(input.try_get_u64_le().ok()?);
    let replica = ReplicaId::new(input.try_get_u64_le().ok()?);
    Some(GroupReplica { group, replica })
}

/// Appends term and index, 16 bytes.
pub(crate) fn put_log_id(out: &mut Vec<u8>, id: LogId) {
    out.put_u64_le(id.term.get());
    out.put_u64_le(id.index.get());
}

/// Takes what [`put_log_id`] wrote; `None` for a position that no log reaches.
pub(crate) fn get_log_id(input: &mut impl Buf) -> Option<LogId> {
    let term = input.try_get_u64_le().ok()?;
    LogId::from_outside(term, input.try_get_u64_le().ok()?)
}

/// Takes an index; `None` for one that no log reaches.
pub(crate) fn get_log_index(input: &mut impl Buf) -> Option<LogIndex> {
    LogIndex::from_outside(input.try_get_u64_le().ok()?)
}

/// Takes the number of a segment or batch; `None` for one that no log reaches, so that counting on does not overflow.
pub(crate) fn get_number(input: &mut impl Buf) -> Option<u64> {
    reachable(input.try_get_u64_le().ok()?)
}

/// The number of a segment or batch, if a log can reach it.
pub(crate) fn reachable(number: u64) -> Option<u64> {
    (number <= u64::MAX / 2).then_some(number)
}

#[cfg(test)]
pub(crate) mod tests {
    use ebla_model::id::Term;

    use super::*;

    pub(crate) fn group(number: u64, replica: u64) -> GroupReplica {
        GroupReplica { group: GroupId::new(number), replica: ReplicaId::new(replica) }
    }

    pub(crate) fn log_id(term: u64, index: u64) -> LogId {
        LogId { term: Term::new(term), index: LogIndex::new(index) }
    }

    fn samples() -> Vec<Record> {
        let group = group(7, 2);
        vec![
            Record::Entry { group, id: log_id(3, 11), payload: Bytes::from_static(b"cells") },
            Record::Vote { group, vote: Bytes::from_static(b"me") },
            Record::Truncate { group, after: LogIndex::new(10) },
            Record::Purge { group, upto: log_id(3, 9) },
            Record::Removed { group },
        ]
    }

    #[test]
    fn every_kind_is_read_back() {
        let mut out = Vec::new();
        for record in samples() {
            let before = out.len();
            record.encode(&mut out);
            assert_eq!(out.len() - before, record.encoded_len());
        }
        assert_eq!(Record::decode_all(out.into()), Some(samples()));
    }

    #[test]
    fn the_bytes_of_an_entry_are_those_of_the_format() {
        let mut out = Vec::new();
        samples()[0].encode(&mut out);
        let mut expected = vec![1];
        for number in [7_u64, 2, 3, 11] {
            expected.extend(number.to_le_bytes());
        }
        let crc = crc32c::crc32c(&[&expected[..], b"cells"].concat());
        expected.extend(crc.to_le_bytes());
        expected.extend(5_u32.to_le_bytes());
        expected.extend(b"cells");
        assert_eq!(out, expected);
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        for record in samples() {
            let mut out = Vec::new();
            record.encode(&mut out);
            for cut in 0..out.len() {
                assert_eq!(Record::decode(&mut Bytes::copy_from_slice(&out[..cut])), None);
            }
            out[0] = 77;
            assert_eq!(Record::decode(&mut Bytes::from(out)), None);
        }
    }

    #[test]
    fn an_entry_with_any_flipped_bit_is_refused() {
        let mut out = Vec::new();
        samples()[0].encode(&mut out);
        for at in 0..out.len() {
            let mut spoilt = out.clone();
            spoilt[at] ^= 4;
            let back = Record::decode(&mut Bytes::from(spoilt));
            assert!(!matches!(back, Some(Record::Entry { .. })), "flipped bit in byte {at} was not detected");
        }
    }
}

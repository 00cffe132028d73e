//! Content of the registry and its encoding: readable text with one checksum.
//!
//! ```text
//!   ebla-registry 1
//!   cluster 0123456789abcdef0123456789abcdef
//!   server 3
//!   epoch 41
//!   segment 17
//!   replica 5 1 live g5-r1
//!   replica 6 2 live g6-r2.1 4 1200
//!   origin 5 1 seed
//!   origin 6 2 division 5 80
//!   tombstone 4 2
//!   discard g6-r2
//!   crc32c 8a2b01ff
//! ```
//!
//! `replica`: group, replica, state, folder, and the log id (term, index) of its last installed snapshot, if any.
//! `origin`: what created the replica of a new group: the seed of the group, or the division of a group at an index of its log.
//! `tombstone`: group and the highest replica id that was removed here; ids only grow, so lower ones are removed too.
//! `discard`: a folder that an installation has replaced and that may be deleted. The last line is the CRC-32C of all
//! bytes before it. Lines are in this order, sorted, so equal states have equal bytes; other bytes are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ebla_model::id::{ClusterId, GroupId, LogId, LogIndex, MasterEpoch, ReplicaId, ServerId};

use crate::log::GroupReplica;

const NAME: &str = "ebla-registry ";
/// The format that this release reads and writes.
pub(super) const FORMAT: u32 = 1;
const CHECKSUM: &str = "crc32c ";

/// The highest segment that is accepted from the file: no log reaches it, and the number of the next one does not overflow.
const SEGMENT_MAX: u64 = u64::MAX / 2;

/// Identity of the server. Fixed for the lifetime of its data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Its id in the cluster.
    pub server: ServerId,
}

/// Lifecycle state of a replica's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// Its folder is being created.
    Creating,
    /// It takes part in its group.
    Live,
    /// It may have lost acknowledged data. It takes no part in its group until it is replaced under another id.
    Quarantined,
    /// Its folder is being deleted.
    Removing,
}

impl ReplicaState {
    const ALL: [Self; 4] = [Self::Creating, Self::Live, Self::Quarantined, Self::Removing];

    fn name(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Live => "live",
            Self::Quarantined => "quarantined",
            Self::Removing => "removing",
        }
    }
}

/// What created a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaOrigin {
    /// It was created empty for a group that existed.
    #[default]
    Empty,
    /// It is one of the first replicas of a group that the master created.
    Seed,
    /// Its group was created by the division of `parent`.
    Division {
        /// The group that was divided.
        parent: GroupId,
        /// The index of the division in the parent's log.
        index: LogIndex,
    },
}

/// One replica of this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    /// Name of its folder in `groups/`.
    pub folder: String,
    /// Its lifecycle state.
    pub state: ReplicaState,
    /// The last entry of the last snapshot that was installed, if any. The log may end below it.
    pub installed: Option<LogId>,
    /// What created it.
    pub origin: ReplicaOrigin,
}

/// Why bytes are not a registry that this release can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DecodeError {
    /// They are not the bytes that were written.
    Damaged(String),
    /// A later release wrote them, in this format.
    LaterFormat(u32),
}

impl From<&str> for DecodeError {
    fn from(wrong: &str) -> Self {
        Self::Damaged(wrong.to_owned())
    }
}

/// Content of the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) identity: Option<Identity>,
    pub(super) epoch: MasterEpoch,
    pub(super) segment: u64,
    pub(super) replicas: BTreeMap<GroupReplica, ReplicaRecord>,
    pub(super) tombstones: BTreeMap<GroupId, ReplicaId>,
    pub(super) discards: BTreeSet<String>,
}

impl State {
    pub(super) fn is_removed(&self, group: GroupReplica) -> bool {
        let below = self.tombstones.get(&group.group).is_some_and(|removed| group.replica <= *removed);
        below && !self.replicas.contains_key(&group)
    }

    pub(super) fn add_tombstone(&mut self, group: GroupReplica) {
        self.replicas.remove(&group);
        let highest = self.tombstones.entry(group.group).or_insert(group.replica);
        *highest = group.replica.max(*highest);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = format!("{NAME}{FORMAT}\n");
        // Writing to a string cannot fail.
        let _always_ok = self.write_lines(&mut text);
        let checksum = crc32c::crc32c(text.as_bytes());
        let _always_ok = writeln!(text, "{CHECKSUM}{checksum:08x}");
        text.into_bytes()
    }

    fn write_lines(&self, text: &mut String) -> std::fmt::Result {
        if let Some(identity) = self.identity {
            writeln!(text, "cluster {}\nserver {}", identity.cluster, identity.server)?;
        }
        writeln!(text, "epoch {}\nsegment {}", self.epoch, self.segment)?;
        for (group, record) in &self.replicas {
            let (state, folder) = (record.state.name(), &record.folder);
            write!(text, "replica {} {} {state} {folder}", group.group, group.replica)?;
            if let Some(id) = record.installed {
                write!(text, " {} {}", id.term, id.index)?;
            }
            writeln!(text)?;
        }
        for (group, record) in &self.replicas {
            match record.origin {
                ReplicaOrigin::Empty => {}
                ReplicaOrigin::Seed => writeln!(text, "origin {} {} seed", group.group, group.replica)?,
                ReplicaOrigin::Division { parent, index } => {
                    writeln!(text, "origin {} {} division {parent} {index}", group.group, group.replica)?;
                }
            }
        }
        for (group, replica) in &self.tombstones {
            writeln!(text, "tombstone {group} {replica}")?;
        }
        for folder in &self.discards {
            writeln!(text, "discard {folder}")?;
        }
        Ok(())
    }

    /// Reads what [`Self::encode`] wrote; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the file is not text")?;
        let lines = lines_of_this_format(checked_body(text)?)?;
        let mut state = Self::default();
        let mut cluster = None;
        for line in lines.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let read = state.read_line(&words, &mut cluster);
            read.ok_or_else(|| DecodeError::Damaged(format!("invalid line {line:?}")))?;
        }
        // No release wrote lines in another order or form; what they would mean is not known.
        if state.encode() == bytes {
            Ok(state)
        } else {
            Err("the lines are not in the form in which they are written".into())
        }
    }

    fn read_line(&mut self, words: &[&str], cluster: &mut Option<ClusterId>) -> Option<()> {
        match words {
            ["cluster", id] => *cluster = Some(id.parse().ok()?),
            ["server", id] => self.identity = Some(Identity { cluster: (*cluster)?, server: id.parse().ok()? }),
            ["epoch", epoch] => self.epoch = epoch.parse().ok()?,
            ["segment", segment] => self.segment = segment.parse().ok().filter(|number| *number <= SEGMENT_MAX)?,
            ["replica", group, replica, state, folder, installed @ ..] => {
                let group = GroupReplica { group: group.parse().ok()?, replica: replica.parse().ok()? };
                let state = ReplicaState::ALL.into_iter().find(|known| known.name() == *state)?;
                let installed = match installed {
                    [] => None,
                    [term, index] => Some(LogId::from_outside(term.parse().ok()?, index.parse().ok()?)?),
                    _ => return None,
                };
                let origin = ReplicaOrigin::default();
                self.replicas.insert(group, ReplicaRecord { folder: folder_name(folder)?, state, installed, origin });
            }
            ["origin", group, replica, origin @ ..] => {
                let group = GroupReplica { group: group.parse().ok()?, replica: replica.parse().ok()? };
                self.replicas.get_mut(&group)?.origin = match origin {
                    ["seed"] => ReplicaOrigin::Seed,
                    ["division", parent, index] => {
                        ReplicaOrigin::Division { parent: parent.parse().ok()?, index: index.parse().ok()? }
                    }
                    _ => return None,
                };
            }
            ["tombstone", group, replica] => {
                self.tombstones.insert(group.parse().ok()?, replica.parse().ok()?);
            }
            ["discard", folder] => {
                self.discards.insert(folder_name(folder)?);
            }
            _ => return None,
        }
        Some(())
    }
}

/// The name, if the folder is in `groups/`: another one must not be opened or deleted.
fn folder_name(name: &str) -> Option<String> {
    let is_plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    is_plain.then(|| name.to_owned())
}

/// The lines after the first one, which names the format.
fn lines_of_this_format(body: &str) -> Result<&str, DecodeError> {
    let format = body.strip_prefix(NAME).and_then(|rest| rest.split_once('\n'));
    let format = format.and_then(|(number, lines)| Some((number.parse::<u32>().ok()?, lines)));
    match format {
        Some((FORMAT, lines)) => Ok(lines),
        Some((later, _)) if later > FORMAT => Err(DecodeError::LaterFormat(later)),
        _ => Err("the file has no known format".into()),
    }
}

/// The text before the last line, which must be its checksum.
fn checked_body(text: &str) -> Result<&str, DecodeError> {
    let at = text.rfind(CHECKSUM).ok_or("the checksum is missing")?;
    let (body, last) = text.split_at(at);
    let written = last.strip_prefix(CHECKSUM).and_then(|rest| rest.strip_suffix('\n'));
    let written = written.filter(|digits| digits.len() == 8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match written {
        Some(checksum) if checksum == crc32c::crc32c(body.as_bytes()) => Ok(body),
        Some(_) => Err("the checksum does not match".into()),
        None => Err("the file is truncated".into()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ebla_model::id::Term;

    use super::*;

    pub(in crate::registry) fn group(number: u64, replica: u64) -> GroupReplica {
        GroupReplica { group: GroupId::new(number), replica: ReplicaId::new(replica) }
    }

    pub(in crate::registry) fn full() -> State {
        let record = |folder: &str, state, installed| {
            let origin = match state {
                ReplicaState::Live => ReplicaOrigin::Seed,
                ReplicaState::Creating => ReplicaOrigin::Division { parent: GroupId::new(5), index: LogIndex::new(80) },
                _ => ReplicaOrigin::Empty,
            };
            ReplicaRecord { folder: folder.to_owned(), state, installed, origin }
        };
        let replicas = BTreeMap::from([
            (group(5, 1), record("g5-r1", ReplicaState::Live, None)),
            (
                group(6, 2),
                record(
                    "g6-r2.1",
                    ReplicaState::Quarantined,
                    Some(LogId { term: Term::new(4), index: LogIndex::new(1200) }),
                ),
            ),
            (group(7, 1), record("g7-r1", ReplicaState::Creating, None)),
            (group(8, 1), record("g8-r1", ReplicaState::Removing, None)),
        ]);
        State {
            identity: Some(Identity { cluster: ClusterId::new(0xabc), server: ServerId::new(3) }),
            epoch: MasterEpoch::new(41),
            segment: 17,
            replicas,
            tombstones: BTreeMap::from([(GroupId::new(4), ReplicaId::new(2))]),
            discards: BTreeSet::from(["g6-r2".to_owned()]),
        }
    }

    #[test]
    fn encoding_round_trips() {
        for state in [State::default(), full()] {
            assert_eq!(State::decode(&state.encode()), Ok(state));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_detected() {
        let bytes = full().encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let read = State::decode(&flipped);
                assert!(read.is_err() || read == Ok(full()), "byte {at}, bit {bit}");
            }
            assert!(State::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    /// These lines with their checksum.
    pub(in crate::registry) fn sealed(lines: &[u8]) -> Vec<u8> {
        [lines, format!("{CHECKSUM}{:08x}\n", crc32c::crc32c(lines)).as_bytes()].concat()
    }

    #[test]
    fn a_later_format_is_distinguished_from_damage() {
        let decoded = |format: &str| State::decode(&sealed(format!("{NAME}{format}\nepoch 0\nsegment 0\n").as_bytes()));
        assert_eq!(decoded("1"), Ok(State::default()));
        assert_eq!(decoded("2"), Err(DecodeError::LaterFormat(2)));
        for format in ["0", "01", "-1", "one", "99999999999"] {
            assert!(matches!(decoded(format), Err(DecodeError::Damaged(_))), "{format}");
        }
    }

    #[test]
    fn lines_that_no_release_wrote_are_refused() {
        let valid = "ebla-registry 1\nepoch 1\nsegment 2\nreplica 5 1 live g5-r1\n";
        assert!(State::decode(&sealed(valid.as_bytes())).is_ok());
        let cluster = format!("cluster {}", ClusterId::new(7));
        let changes = [
            ("epoch 1\n", ""),
            ("epoch 1\nsegment 2", "segment 2\nepoch 1"),
            ("epoch 1", "epoch 01"),
            ("epoch 1", &format!("{cluster}\nepoch 1")),
            ("segment 2", "segment 18446744073709551615"),
            ("live g5-r1", "live ../g5-r1"),
            ("live g5-r1", "live .."),
            ("live g5-r1", "live "),
            ("live g5-r1", "live g5-r1 1 18446744073709551615"),
            ("live g5-r1", "live g5-r1\ndiscard /"),
        ];
        for (from, to) in changes {
            let changed = valid.replace(from, to);
            assert!(State::decode(&sealed(changed.as_bytes())).is_err(), "{changed}");
        }
    }

    #[test]
    fn a_tombstone_covers_its_replica_and_all_before_it() {
        let mut state = full();
        state.add_tombstone(group(5, 3));
        state.add_tombstone(group(5, 2));
        assert!(state.is_removed(group(5, 3)));
        assert!(state.is_removed(group(5, 2)));
        assert!(!state.is_removed(group(5, 1)), "it exists here");
        assert!(!state.is_removed(group(5, 4)));
    }
}

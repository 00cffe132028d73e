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
//!   tombstone 4 2
//!   discard g6-r2
//!   crc32c 8a2b01ff
//! ```
//!
//! `replica`: group, replica, state, folder, and the log id (term, index) of its last installed snapshot, if any.
//! `tombstone`: group and the highest replica id that was removed here; ids only grow, so lower ones are removed too.
//! `discard`: a folder that an installation has replaced and that may be deleted. The last line is the CRC-32C of all
//! bytes before it. Lines are in this order, sorted, so equal states have equal bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use ebla_model::id::{ClusterId, GroupId, LogId, MasterEpoch, ReplicaId, ServerId};

use crate::log::GroupReplica;

const HEADER: &str = "ebla-registry 1\n";
const CHECKSUM: &str = "crc32c ";

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

/// One replica of this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRecord {
    /// Name of its folder in `groups/`.
    pub folder: String,
    /// Its lifecycle state.
    pub state: ReplicaState,
    /// The last entry of the last snapshot that was installed, if any. The log may end below it.
    pub installed: Option<LogId>,
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
        let mut text = String::from(HEADER);
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
        for (group, replica) in &self.tombstones {
            writeln!(text, "tombstone {group} {replica}")?;
        }
        for folder in &self.discards {
            writeln!(text, "discard {folder}")?;
        }
        Ok(())
    }

    /// Reads what [`Self::encode`] wrote; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "the file is not text".to_owned())?;
        let body = checked_body(text)?;
        let lines = body.strip_prefix(HEADER).ok_or("the file has an unknown version or none")?;
        let mut state = Self::default();
        let mut cluster = None;
        for line in lines.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            state.read_line(&words, &mut cluster).ok_or_else(|| format!("invalid line {line:?}"))?;
        }
        Ok(state)
    }

    fn read_line(&mut self, words: &[&str], cluster: &mut Option<ClusterId>) -> Option<()> {
        match words {
            ["cluster", id] => *cluster = Some(id.parse().ok()?),
            ["server", id] => self.identity = Some(Identity { cluster: (*cluster)?, server: id.parse().ok()? }),
            ["epoch", epoch] => self.epoch = epoch.parse().ok()?,
            ["segment", segment] => self.segment = segment.parse().ok()?,
            ["replica", group, replica, state, folder, installed @ ..] => {
                let group = GroupReplica { group: group.parse().ok()?, replica: replica.parse().ok()? };
                let state = ReplicaState::ALL.into_iter().find(|known| known.name() == *state)?;
                let installed = match installed {
                    [] => None,
                    [term, index] => Some(LogId { term: term.parse().ok()?, index: index.parse().ok()? }),
                    _ => return None,
                };
                self.replicas.insert(group, ReplicaRecord { folder: (*folder).to_owned(), state, installed });
            }
            ["tombstone", group, replica] => {
                self.tombstones.insert(group.parse().ok()?, replica.parse().ok()?);
            }
            ["discard", folder] => {
                self.discards.insert((*folder).to_owned());
            }
            _ => return None,
        }
        Some(())
    }
}

/// The text before the last line, which must be its checksum.
fn checked_body(text: &str) -> Result<&str, String> {
    let at = text.rfind(CHECKSUM).ok_or("the checksum is missing")?;
    let (body, last) = text.split_at(at);
    let written = last.strip_prefix(CHECKSUM).and_then(|rest| rest.strip_suffix('\n'));
    let written = written.filter(|digits| digits.len() == 8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    match written {
        Some(checksum) if checksum == crc32c::crc32c(body.as_bytes()) => Ok(body),
        Some(_) => Err("the checksum does not match".to_owned()),
        None => Err("the file is truncated".to_owned()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ebla_model::id::{LogIndex, Term};

    use super::*;

    pub(in crate::registry) fn group(number: u64, replica: u64) -> GroupReplica {
        GroupReplica { group: GroupId::new(number), replica: ReplicaId::new(replica) }
    }

    fn full() -> State {
        let record = |folder: &str, state, installed| ReplicaRecord { folder: folder.to_owned(), state, installed };
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

    #[test]
    fn a_later_version_is_refused() {
        let text = "ebla-registry 2\nepoch 0\nsegment 0\n";
        let text = format!("{text}crc32c {:08x}\n", crc32c::crc32c(text.as_bytes()));
        assert!(State::decode(text.as_bytes()).unwrap_err().contains("version"));
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

//! The index of each group's accepted records. They are readable as soon as a submission returns, durable or not.
//!
//! The entries of a group are one run of indexes. The front of the run is *durable*: written, synced, with a known location
//! on disk. The rest is *pending*: in memory, waiting to be written. When a batch is durable its entries move from pending
//! to durable. An entry that was truncated in the meantime is recognised by its serial number and skipped.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use ebla_model::id::{LogId, LogIndex, Term};

use super::error::LogError;
use super::record::{ENTRY_OVERHEAD, GroupReplica, Record};

/// The location of a record on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub(crate) segment: u64,
    /// Bytes from the start of the segment.
    pub(crate) offset: u32,
    /// Bytes of the whole record.
    pub(crate) len: u32,
}

/// An entry of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IndexEntry {
    /// Not durable yet: its payload.
    Pending(LogId, Bytes),
    /// On disk, at this location.
    Durable(LogId, RecordLocation),
}

/// All groups.
#[derive(Debug, Default)]
pub(crate) struct Index {
    groups: BTreeMap<GroupReplica, Group>,
}

#[derive(Debug)]
enum Group {
    Live(LiveGroup),
    Quarantined,
}

#[derive(Debug, Default)]
struct LiveGroup {
    vote: Option<Bytes>,
    purged: Option<LogId>,
    /// Index of the first entry, durable or pending.
    first: LogIndex,
    durable: VecDeque<DurableEntry>,
    pending: VecDeque<PendingEntry>,
    /// Bytes of the durable records.
    durable_bytes: u64,
    /// Serial number of the last accepted record of any kind; 0 before the first.
    last_serial: u64,
    /// In recovery: entries up to this index were in released segments. A later record must purge them.
    missing_upto: Option<LogIndex>,
}

#[derive(Clone, Copy, Debug)]
struct DurableEntry {
    term: Term,
    location: RecordLocation,
}

#[derive(Debug)]
struct PendingEntry {
    term: Term,
    payload: Bytes,
    serial: u64,
}

/// Bounds of a group's entries: they decide whether a record can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    purged: Option<LogIndex>,
    last: Option<LogIndex>,
}

impl Bounds {
    /// The bounds after `record`, or why it cannot follow.
    fn after(self, record: &Record) -> Result<Self, LogError> {
        let refuse = |expected, got| Err(LogError::OutOfOrder { group: record.group(), expected, got });
        match record {
            Record::Entry { id, .. } => {
                let expected = self.last.or(self.purged).unwrap_or_default().plus(1);
                let is_first = self.last.or(self.purged).is_none() && id.index == LogIndex::default();
                if id.index == expected || is_first {
                    Ok(Self { last: Some(id.index), ..self })
                } else {
                    refuse(expected, id.index)
                }
            }
            Record::Truncate { after, .. } if self.purged.is_some_and(|purged| *after < purged) => {
                refuse(self.purged.unwrap_or_default(), *after)
            }
            Record::Truncate { after, .. } => Ok(Self { last: self.last.map(|last| last.min(*after)), ..self }),
            Record::Purge { upto, .. } => {
                let purged = self.purged.max(Some(upto.index));
                Ok(Self { purged, last: self.last.filter(|last| Some(*last) > purged) })
            }
            Record::Vote { .. } | Record::Removed { .. } => Ok(self),
        }
    }
}

impl LiveGroup {
    fn len(&self) -> u64 {
        (self.durable.len() + self.pending.len()) as u64
    }

    fn end(&self) -> LogIndex {
        self.first.plus(self.len())
    }

    fn bounds(&self) -> Bounds {
        let last = (self.len() > 0).then(|| self.end().previous()).or(self.missing_upto);
        Bounds { purged: self.purged.map(|id| id.index), last }
    }

    fn last(&self) -> Option<LogId> {
        let pending = self.pending.back().map(|entry| entry.term);
        match pending.or_else(|| self.durable.back().map(|entry| entry.term)) {
            Some(term) => Some(LogId { term, index: self.end().previous() }),
            None => self.purged,
        }
    }

    fn synced(&self) -> Option<LogId> {
        match self.durable.back() {
            Some(entry) => {
                Some(LogId { term: entry.term, index: self.first.plus(self.durable.len() as u64).previous() })
            }
            None => self.purged,
        }
    }

    fn push(&mut self, id: LogId, payload: Bytes, serial: u64) {
        if self.len() == 0 {
            self.first = id.index;
        }
        self.pending.push_back(PendingEntry { term: id.term, payload, serial });
    }

    fn mark_durable(&mut self, serial: u64, location: RecordLocation) {
        if let Some(entry) = self.pending.pop_front_if(|entry| entry.serial == serial) {
            self.durable_bytes += u64::from(location.len);
            self.durable.push_back(DurableEntry { term: entry.term, location });
        }
    }

    fn truncate(&mut self, after: LogIndex) {
        while self.len() > 0 && self.end() > after.plus(1) {
            if self.pending.pop_back().is_none()
                && let Some(entry) = self.durable.pop_back()
            {
                self.durable_bytes -= u64::from(entry.location.len);
            }
        }
        let purged = self.purged.unwrap_or_default().index;
        self.missing_upto =
            self.missing_upto.map(|missing_upto| missing_upto.min(after)).filter(|missing_upto| *missing_upto > purged);
    }

    fn purge(&mut self, upto: LogId) {
        self.purged = self.purged.max(Some(upto));
        self.missing_upto = self.missing_upto.filter(|missing_upto| *missing_upto > upto.index);
        while self.len() > 0 && self.first <= upto.index {
            match self.durable.pop_front() {
                Some(entry) => self.durable_bytes -= u64::from(entry.location.len),
                None => drop(self.pending.pop_front()),
            }
            self.first = self.first.next();
        }
    }

    fn find(&self, index: LogIndex) -> Option<IndexEntry> {
        if index < self.first {
            return None;
        }
        let at = usize::try_from(index.since(self.first)).ok()?;
        if let Some(entry) = self.durable.get(at) {
            return Some(IndexEntry::Durable(LogId { term: entry.term, index }, entry.location));
        }
        let entry = self.pending.get(at - self.durable.len())?;
        Some(IndexEntry::Pending(LogId { term: entry.term, index }, entry.payload.clone()))
    }
}

impl IndexEntry {
    fn payload_len(&self) -> u64 {
        match self {
            Self::Pending(_, payload) => payload.len() as u64,
            Self::Durable(_, location) => u64::from(location.len) - ENTRY_OVERHEAD as u64,
        }
    }
}

impl Index {
    /// Adds an empty group unless it exists.
    ///
    /// # Errors
    /// When the group is quarantined.
    pub(crate) fn add(&mut self, group: GroupReplica) -> Result<(), LogError> {
        match self.groups.entry(group).or_insert_with(|| Group::Live(LiveGroup::default())) {
            Group::Live(_) => Ok(()),
            Group::Quarantined => Err(LogError::Quarantined(group)),
        }
    }

    /// Loads a group from the header of a segment: `last` is the index of its last entry above `purged`.
    ///
    /// # Errors
    /// When the group is known and has another last entry: entries are missing.
    pub(crate) fn load_header_group(
        &mut self,
        group: GroupReplica,
        vote: Option<Bytes>,
        purged: Option<LogId>,
        last: Option<LogIndex>,
    ) -> Result<(), LogError> {
        let known = self.groups.contains_key(&group);
        let Group::Live(live) = self.groups.entry(group).or_insert_with(|| Group::Live(LiveGroup::default())) else {
            return Ok(());
        };
        live.vote = vote;
        if let Some(purged) = purged {
            live.purge(purged);
        }
        if !known {
            live.missing_upto = last;
        }
        let found = live.bounds().last.filter(|last| *last > LogIndex::default());
        if found == last.filter(|last| *last > LogIndex::default()) {
            return Ok(());
        }
        Err(LogError::OutOfOrder { group, expected: last.unwrap_or_default(), got: found.unwrap_or_default() })
    }

    /// The groups with missing entries that no record has purged.
    pub(crate) fn incomplete(&self) -> Vec<GroupReplica> {
        let lacks = |state: &Group| matches!(state, Group::Live(live) if live.missing_upto.is_some());
        self.groups.iter().filter(|(_, state)| lacks(state)).map(|(group, _)| *group).collect()
    }

    /// Quarantines a damaged group and drops its entries.
    pub(crate) fn quarantine(&mut self, group: GroupReplica) {
        self.groups.insert(group, Group::Quarantined);
    }

    /// Drops every group for which `stays` is false.
    pub(crate) fn retain(&mut self, stays: impl Fn(GroupReplica) -> bool) {
        self.groups.retain(|group, _| stays(*group));
    }

    /// Whether all of `records` can follow, in order.
    ///
    /// # Errors
    /// The first that cannot; nothing is changed.
    pub(crate) fn check(&self, records: &[Record]) -> Result<(), LogError> {
        let mut seen: BTreeMap<GroupReplica, Option<Bounds>> = BTreeMap::new();
        for record in records {
            let group = record.group();
            let before = match seen.get(&group) {
                Some(bounds) => *bounds,
                None => self.bounds(record)?,
            };
            let after = match (record, before) {
                (Record::Removed { .. }, _) => None,
                (_, Some(bounds)) => Some(bounds.after(record)?),
                (_, None) => return Err(LogError::UnknownGroup(group)),
            };
            seen.insert(group, after);
        }
        Ok(())
    }

    /// The bounds before `record`; `None` for a quarantined group, which can only be removed.
    fn bounds(&self, record: &Record) -> Result<Option<Bounds>, LogError> {
        let group = record.group();
        match (self.groups.get(&group), record) {
            (Some(Group::Live(live)), _) => Ok(Some(live.bounds())),
            (_, Record::Removed { .. }) => Ok(None),
            (Some(Group::Quarantined), _) => Err(LogError::Quarantined(group)),
            (None, _) => Err(LogError::UnknownGroup(group)),
        }
    }

    /// Accepts a checked record. `serial` identifies it until it is durable.
    pub(crate) fn accept(&mut self, record: &Record, serial: u64) {
        if let Record::Removed { group } = record {
            self.groups.remove(group);
            return;
        }
        let Some(Group::Live(live)) = self.groups.get_mut(&record.group()) else { return };
        live.last_serial = serial;
        match record {
            Record::Entry { id, payload, .. } => live.push(*id, payload.clone(), serial),
            Record::Vote { vote, .. } => live.vote = Some(vote.clone()),
            Record::Truncate { after, .. } => live.truncate(*after),
            Record::Purge { upto, .. } => live.purge(*upto),
            Record::Removed { .. } => {}
        }
    }

    /// Marks the entry with this `serial` as durable at `location`.
    pub(crate) fn mark_durable(&mut self, group: GroupReplica, serial: u64, location: RecordLocation) {
        if let Some(Group::Live(live)) = self.groups.get_mut(&group) {
            live.mark_durable(serial, location);
        }
    }

    fn live(&self, group: GroupReplica) -> Result<&LiveGroup, LogError> {
        match self.groups.get(&group) {
            Some(Group::Live(live)) => Ok(live),
            Some(Group::Quarantined) => Err(LogError::Quarantined(group)),
            None => Err(LogError::UnknownGroup(group)),
        }
    }

    /// The existing entries of `range`, from the first on, until their payloads exceed `bytes_max`; at least one.
    ///
    /// # Errors
    /// When the group is unknown or quarantined.
    pub(crate) fn find(
        &self,
        group: GroupReplica,
        range: Range<LogIndex>,
        bytes_max: u64,
    ) -> Result<Vec<IndexEntry>, LogError> {
        let live = self.live(group)?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        for index in range.start.max(live.first).until(range.end.min(live.end())) {
            let Some(entry) = live.find(index) else { break };
            bytes += entry.payload_len();
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            found.push(entry);
        }
        Ok(found)
    }

    /// The id of the last entry, or the last purged one when there is none.
    pub(crate) fn last(&self, group: GroupReplica) -> Option<LogId> {
        self.live(group).ok()?.last()
    }

    /// The id up to which all entries are durable.
    pub(crate) fn synced(&self, group: GroupReplica) -> Option<LogId> {
        self.live(group).ok()?.synced()
    }

    /// Serial number of the group's last accepted record.
    pub(crate) fn last_serial(&self, group: GroupReplica) -> Option<u64> {
        Some(self.live(group).ok()?.last_serial)
    }

    /// The last purged id.
    pub(crate) fn purged(&self, group: GroupReplica) -> Option<LogId> {
        self.live(group).ok()?.purged
    }

    /// The vote.
    pub(crate) fn vote(&self, group: GroupReplica) -> Option<Bytes> {
        self.live(group).ok()?.vote.clone()
    }

    /// Every group that is not quarantined.
    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupReplica> {
        self.groups.iter().filter(|(_, group)| matches!(group, Group::Live(_))).map(|(group, _)| *group)
    }

    /// The groups whose first entry is in `segment` or before, with the bytes of all their entries; the largest first.
    pub(crate) fn pins(&self, segment: u64) -> Vec<(GroupReplica, u64)> {
        let pin = |(group, state): (&GroupReplica, &Group)| match state {
            Group::Live(live) if live.durable.front().is_some_and(|entry| entry.location.segment <= segment) => {
                Some((*group, live.durable_bytes))
            }
            Group::Live(_) | Group::Quarantined => None,
        };
        let mut pins: Vec<(GroupReplica, u64)> = self.groups.iter().filter_map(pin).collect();
        pins.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        pins
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::tests::{group, log_id};

    fn id(index: u64) -> LogId {
        log_id(1, index)
    }

    fn entry(index: u64) -> Record {
        Record::Entry { group: group(1, 1), id: id(index), payload: vec![0; 10].into() }
    }

    fn truncate(after: u64) -> Record {
        Record::Truncate { group: group(1, 1), after: LogIndex::new(after) }
    }

    fn purge(index: u64) -> Record {
        Record::Purge { group: group(1, 1), upto: id(index) }
    }

    fn location(index: u64) -> RecordLocation {
        RecordLocation { segment: 1, offset: u32::try_from(index).unwrap() * 100, len: 51 }
    }

    /// Entries 1 to 4 with serials 1 to 4; the first two are durable.
    fn filled() -> Index {
        let mut index = Index::default();
        index.add(group(1, 1)).unwrap();
        for n in 1..5 {
            index.check(&[entry(n)]).unwrap();
            index.accept(&entry(n), n);
        }
        index.mark_durable(group(1, 1), 1, location(1));
        index.mark_durable(group(1, 1), 2, location(2));
        index
    }

    fn indexes(range: Range<u64>) -> Range<LogIndex> {
        LogIndex::new(range.start)..LogIndex::new(range.end)
    }

    fn found(index: &Index, range: Range<u64>, bytes_max: u64) -> Vec<(u64, bool)> {
        let describe = |found| match found {
            IndexEntry::Pending(id, _) => (id.index.get(), false),
            IndexEntry::Durable(id, _) => (id.index.get(), true),
        };
        index.find(group(1, 1), indexes(range), bytes_max).unwrap().into_iter().map(describe).collect()
    }

    #[test]
    fn entries_are_found_durable_or_pending() {
        let index = filled();
        assert_eq!(found(&index, 0..9, 1000), [(1, true), (2, true), (3, false), (4, false)]);
        assert_eq!(found(&index, 2..4, 1000), [(2, true), (3, false)]);
        assert_eq!(found(&index, 2..4, 5), [(2, true)], "at least one is returned");
        assert_eq!(found(&index, 1..9, 20), [(1, true), (2, true)]);
        assert_eq!(found(&index, 7..9, 1000), []);
        assert_eq!((index.last(group(1, 1)), index.synced(group(1, 1))), (Some(id(4)), Some(id(2))));
    }

    #[test]
    fn a_truncated_entry_stays_truncated_when_its_batch_becomes_durable() {
        let mut index = filled();
        index.accept(&truncate(2), 5);
        let again = Record::Entry { group: group(1, 1), id: log_id(2, 3), payload: Bytes::new() };
        index.accept(&again, 6);
        index.mark_durable(group(1, 1), 3, location(3));
        index.mark_durable(group(1, 1), 4, location(4));
        assert_eq!(found(&index, 0..9, 1000), [(1, true), (2, true), (3, false)]);
        index.mark_durable(group(1, 1), 6, location(6));
        assert_eq!(index.synced(group(1, 1)), Some(log_id(2, 3)));
    }

    #[test]
    fn purging_moves_the_front_and_leaves_the_id() {
        let mut index = filled();
        index.accept(&purge(3), 5);
        assert_eq!(found(&index, 0..9, 1000), [(4, false)]);
        assert_eq!(index.purged(group(1, 1)), Some(id(3)));
        index.accept(&purge(20), 6);
        assert_eq!((index.last(group(1, 1)), index.synced(group(1, 1))), (Some(id(20)), Some(id(20))));
        index.check(&[entry(21)]).unwrap();
        assert!(index.check(&[entry(5)]).is_err());
    }

    #[test]
    fn a_submission_is_checked_as_a_whole() {
        let index = filled();
        index.check(&[truncate(2), entry(3), entry(4), purge(4), entry(5)]).unwrap();
        for bad in [
            vec![entry(6)],
            vec![entry(5), entry(5)],
            vec![purge(4), truncate(3)],
            vec![truncate(2), entry(5)],
            vec![Record::Removed { group: group(1, 1) }, entry(5)],
            vec![Record::Vote { group: group(2, 1), vote: Bytes::new() }],
        ] {
            assert!(index.check(&bad).is_err(), "{bad:?}");
        }
        assert_eq!(found(&index, 0..9, 1000).len(), 4, "nothing was changed");
    }

    #[test]
    fn a_quarantined_group_serves_nothing_and_can_only_be_removed() {
        let mut index = filled();
        index.quarantine(group(1, 1));
        assert!(matches!(index.find(group(1, 1), indexes(0..9), 10), Err(LogError::Quarantined(_))));
        assert!(matches!(index.check(&[entry(5)]), Err(LogError::Quarantined(_))));
        assert!(matches!(index.add(group(1, 1)), Err(LogError::Quarantined(_))));
        let removed = Record::Removed { group: group(1, 1) };
        index.check(std::slice::from_ref(&removed)).unwrap();
        index.accept(&removed, 9);
        index.add(group(1, 1)).unwrap();
    }

    #[test]
    fn pins_name_the_groups_that_hold_a_segment() {
        let index = filled();
        assert_eq!(index.pins(1), [(group(1, 1), 102)]);
        assert_eq!(index.pins(0), []);
    }
}

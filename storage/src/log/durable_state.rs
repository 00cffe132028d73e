//! State of each group according to the written log: the content of the next segment's header, and the oldest segment that
//! is still needed.
//!
//! It follows the records as they are *written*, not as they are accepted: a segment may be released only when durable
//! records show that nothing of it is needed. The writer owns it; recovery rebuilds it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use ebla_model::id::{LogId, LogIndex};

use super::record::{GroupReplica, Record};
use super::segment::{HeaderGroup, HeaderGroupState, SegmentHeader};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct DurableState {
    groups: BTreeMap<GroupReplica, GroupState>,
    /// See [`SegmentHeader::all_quarantined`].
    pub(crate) all_quarantined: bool,
    /// Cached result of [`first_needed`]; `None` inside: no group has entries.
    first_needed: Option<Option<u64>>,
}

#[derive(Clone, Debug)]
enum GroupState {
    Live(LiveGroup),
    Quarantined,
}

#[derive(Clone, Debug, Default)]
struct LiveGroup {
    vote: Option<Bytes>,
    purged: Option<LogId>,
    /// From index `first` on, entries are in `segment`, up to the next run. Ascending in both.
    runs: VecDeque<Run>,
    /// Index of the last entry above `purged`; it may be in a segment that was not read.
    last: Option<LogIndex>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: LogIndex,
    segment: u64,
}

impl LiveGroup {
    fn append(&mut self, index: LogIndex, segment: u64) {
        if self.runs.back().is_none_or(|run| run.segment != segment) {
            self.runs.push_back(Run { first: index, segment });
        }
        self.last = Some(index);
    }

    fn truncate(&mut self, after: LogIndex) {
        while self.runs.back().is_some_and(|run| run.first > after) {
            self.runs.pop_back();
        }
        self.last = self.last.map(|last| last.min(after)).filter(|last| self.is_above_purged(*last));
    }

    /// Whether an entry can have this index. 0 means "none": logs begin at 1, or at 0 and never end there.
    fn is_above_purged(&self, index: LogIndex) -> bool {
        index > self.purged.unwrap_or_default().index
    }

    fn purge(&mut self, upto: LogId) {
        self.purged = self.purged.max(Some(upto));
        self.last = self.last.filter(|last| *last > upto.index);
        if self.last.is_none() {
            self.runs.clear();
        }
        while self.runs.get(1).is_some_and(|next| next.first <= upto.index.plus(1)) {
            self.runs.pop_front();
        }
    }
}

impl DurableState {
    /// Applies a record of `segment`. Records of a quarantined group have no effect, except its removal.
    pub(crate) fn apply(&mut self, record: &Record, segment: u64) {
        if let Record::Removed { group } = record {
            self.groups.remove(group);
            self.first_needed = None;
            return;
        }
        let state = self.groups.entry(record.group()).or_insert_with(|| GroupState::Live(LiveGroup::default()));
        let GroupState::Live(live) = state else { return };
        match record {
            Record::Entry { id, .. } => {
                let is_first_entry = live.runs.is_empty();
                live.append(id.index, segment);
                if is_first_entry && self.first_needed == Some(None) {
                    self.first_needed = None;
                }
            }
            Record::Vote { vote, .. } => live.vote = Some(vote.clone()),
            Record::Truncate { after, .. } => {
                live.truncate(*after);
                self.first_needed = None;
            }
            Record::Purge { upto, .. } => {
                live.purge(*upto);
                self.first_needed = None;
            }
            Record::Removed { .. } => {}
        }
    }

    /// Loads the header of a segment, which holds all groups of its time. A group that is not in it had been removed by
    /// then. A quarantined group stays quarantined.
    pub(crate) fn load_header(&mut self, header: &SegmentHeader) {
        self.all_quarantined |= header.all_quarantined;
        let carried: BTreeSet<GroupReplica> = header.groups.iter().map(|carried| carried.group).collect();
        self.groups.retain(|group, _| carried.contains(group));
        self.first_needed = None;
        for HeaderGroup { group, state } in &header.groups {
            match state {
                HeaderGroupState::Quarantined => self.quarantine(*group),
                HeaderGroupState::Live { vote, purged, last } => {
                    self.load_live_group(*group, vote.as_ref(), *purged, *last)
                }
            }
        }
    }

    fn load_live_group(
        &mut self,
        group: GroupReplica,
        vote: Option<&Bytes>,
        purged: Option<LogId>,
        last: Option<LogIndex>,
    ) {
        let state = self.groups.entry(group).or_insert_with(|| GroupState::Live(LiveGroup::default()));
        let GroupState::Live(live) = state else { return };
        live.vote = vote.cloned().or_else(|| live.vote.take());
        if let Some(purged) = purged {
            live.purge(purged);
        }
        live.last = last;
    }

    /// Quarantines the group.
    pub(crate) fn quarantine(&mut self, group: GroupReplica) {
        self.groups.insert(group, GroupState::Quarantined);
        self.first_needed = None;
    }

    /// A state in which every group is quarantined: `groups` by name, and any other.
    pub(crate) fn all_quarantined(groups: &BTreeSet<GroupReplica>) -> Self {
        let groups = groups.iter().map(|group| (*group, GroupState::Quarantined)).collect();
        Self { groups, all_quarantined: true, first_needed: None }
    }

    /// Whether the group is known.
    pub(crate) fn contains(&self, group: GroupReplica) -> bool {
        self.groups.contains_key(&group)
    }

    /// Whether the group is quarantined.
    pub(crate) fn is_quarantined(&self, group: GroupReplica) -> bool {
        matches!(self.groups.get(&group), Some(GroupState::Quarantined))
    }

    /// The quarantined groups.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = GroupReplica> {
        self.groups.iter().filter(|(_, state)| matches!(state, GroupState::Quarantined)).map(|(group, _)| *group)
    }

    /// The groups for the header of a new segment.
    pub(crate) fn header_groups(&self) -> Vec<HeaderGroup> {
        let header_state = |state: &GroupState| match state {
            GroupState::Quarantined => HeaderGroupState::Quarantined,
            GroupState::Live(live) => {
                HeaderGroupState::Live { vote: live.vote.clone(), purged: live.purged, last: live.last }
            }
        };
        self.groups.iter().map(|(group, state)| HeaderGroup { group: *group, state: header_state(state) }).collect()
    }

    /// The first segment that holds an entry of a group, or `active` when none does.
    pub(crate) fn oldest(&mut self, active: u64) -> u64 {
        let first = match self.first_needed {
            Some(known) => known,
            None => *self.first_needed.insert(first_needed(&self.groups)),
        };
        first.unwrap_or(active).min(active)
    }
}

fn first_needed(groups: &BTreeMap<GroupReplica, GroupState>) -> Option<u64> {
    let first = |state: &GroupState| match state {
        GroupState::Live(live) => live.runs.front().map(|run| run.segment),
        GroupState::Quarantined => None,
    };
    groups.values().filter_map(first).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::tests::{group, log_id};

    fn entry(tablet: u64, index: u64) -> Record {
        Record::Entry { group: group(tablet, 1), id: log_id(1, index), payload: Bytes::new() }
    }

    fn purge(tablet: u64, index: u64) -> Record {
        Record::Purge { group: group(tablet, 1), upto: log_id(1, index) }
    }

    fn filled() -> DurableState {
        let mut state = DurableState::default();
        for (record, segment) in [(entry(1, 1), 4), (entry(1, 2), 4), (entry(2, 1), 5), (entry(1, 3), 6)] {
            state.apply(&record, segment);
        }
        state
    }

    #[test]
    fn the_oldest_segment_is_the_first_with_a_live_entry() {
        let mut state = filled();
        assert_eq!(state.oldest(6), 4);
        state.apply(&purge(1, 1), 6);
        assert_eq!(state.oldest(6), 4);
        state.apply(&purge(1, 2), 6);
        assert_eq!(state.oldest(6), 5);
        state.apply(&Record::Removed { group: group(2, 1) }, 6);
        assert_eq!(state.oldest(6), 6);
        state.apply(&purge(1, 9), 6);
        assert_eq!(state.oldest(7), 7);
        state.apply(&entry(1, 10), 7);
        assert_eq!(state.oldest(8), 7);
    }

    #[test]
    fn truncation_forgets_segments_too() {
        let mut state = filled();
        state.apply(&purge(1, 2), 6);
        state.apply(&Record::Truncate { group: group(1, 1), after: LogIndex::new(2) }, 6);
        state.apply(&purge(2, 1), 6);
        assert_eq!(state.oldest(6), 6);
        state.apply(&entry(1, 3), 7);
        assert_eq!(state.oldest(8), 7);
    }

    #[test]
    fn a_header_carries_the_last_vote_and_the_highest_purge() {
        let mut state = filled();
        state.apply(&Record::Vote { group: group(1, 1), vote: Bytes::from_static(b"a") }, 4);
        state.apply(&Record::Vote { group: group(1, 1), vote: Bytes::from_static(b"b") }, 4);
        state.apply(&purge(1, 2), 4);
        state.apply(&purge(1, 1), 4);
        state.quarantine(group(2, 1));
        let live = HeaderGroupState::Live {
            vote: Some(Bytes::from_static(b"b")),
            purged: Some(log_id(1, 2)),
            last: Some(LogIndex::new(3)),
        };
        let carried = state.header_groups();
        assert_eq!(carried[0], HeaderGroup { group: group(1, 1), state: live });
        assert_eq!(carried[1], HeaderGroup { group: group(2, 1), state: HeaderGroupState::Quarantined });
        assert_eq!(state.oldest(9), 6, "a quarantined group pins nothing");
    }

    #[test]
    fn a_damaged_group_stays_so_until_it_is_removed() {
        let mut state = filled();
        state.quarantine(group(1, 1));
        state.apply(&entry(1, 4), 6);
        assert!(state.is_quarantined(group(1, 1)));
        state.apply(&Record::Removed { group: group(1, 1) }, 6);
        assert!(!state.is_quarantined(group(1, 1)));
    }
}

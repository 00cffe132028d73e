//! What the written log says of each group: what the header of the next segment must carry, and which is the first
//! segment that is still needed.
//!
//! It follows the records as they are *written*, not as they are accepted: a segment may go only when durable records
//! say that nothing of it is needed. The writer owns it; recovery rebuilds it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use ebla_model::id::LogId;

use super::record::{GroupId, Record};
use super::segment::{CarriedGroup, CarriedState, SegmentHeader};

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    groups: BTreeMap<GroupId, Account>,
    /// See [`SegmentHeader::all_quarantined`].
    pub(crate) all_quarantined: bool,
    /// The result of [`Self::first_needed`] since entries were last forgotten; `None` inside: no group has entries.
    first_needed: Option<Option<u64>>,
}

#[derive(Clone, Debug)]
enum Account {
    Live(Live),
    Quarantined,
}

#[derive(Clone, Debug, Default)]
struct Live {
    vote: Option<Bytes>,
    purged: Option<LogId>,
    /// From index `first` on, entries lie in `segment`, up to the next run. Ascending in both.
    runs: VecDeque<Run>,
    /// Index of the last entry above `purged`; it may lie in a segment that was not read.
    last: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    segment: u64,
}

impl Live {
    fn append(&mut self, index: u64, segment: u64) {
        if self.runs.back().is_none_or(|run| run.segment != segment) {
            self.runs.push_back(Run { first: index, segment });
        }
        self.last = Some(index);
    }

    fn truncate(&mut self, after: u64) {
        while self.runs.back().is_some_and(|run| run.first > after) {
            self.runs.pop_back();
        }
        self.last = self.last.map(|last| last.min(after)).filter(|last| self.is_above_purged(*last));
    }

    /// Whether there can be an entry of this index. 0 stands for "none": logs begin at 1, or at 0 and never end there.
    fn is_above_purged(&self, index: u64) -> bool {
        index > self.purged.map_or(0, |purged| purged.index)
    }

    fn purge(&mut self, upto: LogId) {
        self.purged = self.purged.max(Some(upto));
        self.last = self.last.filter(|last| *last > upto.index);
        if self.last.is_none() {
            self.runs.clear();
        }
        while self.runs.get(1).is_some_and(|next| next.first <= upto.index.saturating_add(1)) {
            self.runs.pop_front();
        }
    }
}

impl Ledger {
    /// Follows a record that stands in `segment`. Records of a quarantined group change nothing, except its removal.
    pub(crate) fn apply(&mut self, record: &Record, segment: u64) {
        if let Record::Removed { group } = record {
            self.groups.remove(group);
            self.first_needed = None;
            return;
        }
        let account = self.groups.entry(record.group()).or_insert_with(|| Account::Live(Live::default()));
        let Account::Live(live) = account else { return };
        match record {
            Record::Entry { id, .. } => {
                let begins = live.runs.is_empty();
                live.append(id.index, segment);
                if begins && self.first_needed == Some(None) {
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

    /// Takes over what the header of a segment carries: all groups of its time. A group that it does not carry had been
    /// removed by then. A group found damaged stays so.
    pub(crate) fn adopt(&mut self, header: &SegmentHeader) {
        self.all_quarantined |= header.all_quarantined;
        let carried: BTreeSet<GroupId> = header.groups.iter().map(|carried| carried.group).collect();
        self.groups.retain(|group, _| carried.contains(group));
        self.first_needed = None;
        for CarriedGroup { group, state } in &header.groups {
            match state {
                CarriedState::Quarantined => self.quarantine(*group),
                CarriedState::Live { vote, purged, last } => self.adopt_live(*group, vote.as_ref(), *purged, *last),
            }
        }
    }

    fn adopt_live(&mut self, group: GroupId, vote: Option<&Bytes>, purged: Option<LogId>, last: Option<u64>) {
        let account = self.groups.entry(group).or_insert_with(|| Account::Live(Live::default()));
        let Account::Live(live) = account else { return };
        live.vote = vote.cloned().or_else(|| live.vote.take());
        if let Some(purged) = purged {
            live.purge(purged);
        }
        live.last = last;
    }

    /// From now on the group counts as damaged.
    pub(crate) fn quarantine(&mut self, group: GroupId) {
        self.groups.insert(group, Account::Quarantined);
        self.first_needed = None;
    }

    /// A ledger in which every group counts as damaged: `groups` by name, and any other.
    pub(crate) fn all_quarantined(groups: &BTreeSet<GroupId>) -> Self {
        let groups = groups.iter().map(|group| (*group, Account::Quarantined)).collect();
        Self { groups, all_quarantined: true, first_needed: None }
    }

    /// Whether the group is in it.
    pub(crate) fn knows(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Whether the group is known to be damaged.
    pub(crate) fn is_quarantined(&self, group: GroupId) -> bool {
        matches!(self.groups.get(&group), Some(Account::Quarantined))
    }

    /// The groups known to be damaged.
    pub(crate) fn quarantined(&self) -> impl Iterator<Item = GroupId> {
        self.groups.iter().filter(|(_, account)| matches!(account, Account::Quarantined)).map(|(group, _)| *group)
    }

    /// What the header of a segment begun now carries.
    pub(crate) fn carried(&self) -> Vec<CarriedGroup> {
        let state = |account: &Account| match account {
            Account::Quarantined => CarriedState::Quarantined,
            Account::Live(live) => CarriedState::Live { vote: live.vote.clone(), purged: live.purged, last: live.last },
        };
        self.groups.iter().map(|(group, account)| CarriedGroup { group: *group, state: state(account) }).collect()
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

fn first_needed(groups: &BTreeMap<GroupId, Account>) -> Option<u64> {
    let first = |account: &Account| match account {
        Account::Live(live) => live.runs.front().map(|run| run.segment),
        Account::Quarantined => None,
    };
    groups.values().filter_map(first).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::tests::group;

    fn entry(tablet: u64, index: u64) -> Record {
        Record::Entry { group: group(tablet, 1), id: LogId { term: 1, index }, payload: Bytes::new() }
    }

    fn purge(tablet: u64, index: u64) -> Record {
        Record::Purge { group: group(tablet, 1), upto: LogId { term: 1, index } }
    }

    fn filled() -> Ledger {
        let mut ledger = Ledger::default();
        for (record, segment) in [(entry(1, 1), 4), (entry(1, 2), 4), (entry(2, 1), 5), (entry(1, 3), 6)] {
            ledger.apply(&record, segment);
        }
        ledger
    }

    #[test]
    fn the_oldest_segment_is_the_first_with_an_entry_that_counts() {
        let mut ledger = filled();
        assert_eq!(ledger.oldest(6), 4);
        ledger.apply(&purge(1, 1), 6);
        assert_eq!(ledger.oldest(6), 4);
        ledger.apply(&purge(1, 2), 6);
        assert_eq!(ledger.oldest(6), 5);
        ledger.apply(&Record::Removed { group: group(2, 1) }, 6);
        assert_eq!(ledger.oldest(6), 6);
        ledger.apply(&purge(1, 9), 6);
        assert_eq!(ledger.oldest(7), 7);
        ledger.apply(&entry(1, 10), 7);
        assert_eq!(ledger.oldest(8), 7);
    }

    #[test]
    fn truncation_forgets_segments_too() {
        let mut ledger = filled();
        ledger.apply(&purge(1, 2), 6);
        ledger.apply(&Record::Truncate { group: group(1, 1), after: 2 }, 6);
        ledger.apply(&purge(2, 1), 6);
        assert_eq!(ledger.oldest(6), 6);
        ledger.apply(&entry(1, 3), 7);
        assert_eq!(ledger.oldest(8), 7);
    }

    #[test]
    fn a_header_carries_the_last_vote_and_the_highest_purge() {
        let mut ledger = filled();
        ledger.apply(&Record::Vote { group: group(1, 1), vote: Bytes::from_static(b"a") }, 4);
        ledger.apply(&Record::Vote { group: group(1, 1), vote: Bytes::from_static(b"b") }, 4);
        ledger.apply(&purge(1, 2), 4);
        ledger.apply(&purge(1, 1), 4);
        ledger.quarantine(group(2, 1));
        let live = CarriedState::Live {
            vote: Some(Bytes::from_static(b"b")),
            purged: Some(LogId { term: 1, index: 2 }),
            last: Some(3),
        };
        let carried = ledger.carried();
        assert_eq!(carried[0], CarriedGroup { group: group(1, 1), state: live });
        assert_eq!(carried[1], CarriedGroup { group: group(2, 1), state: CarriedState::Quarantined });
        assert_eq!(ledger.oldest(9), 6, "a quarantined group pins nothing");
    }

    #[test]
    fn a_damaged_group_stays_so_until_it_is_removed() {
        let mut ledger = filled();
        ledger.quarantine(group(1, 1));
        ledger.apply(&entry(1, 4), 6);
        assert!(ledger.is_quarantined(group(1, 1)));
        ledger.apply(&Record::Removed { group: group(1, 1) }, 6);
        assert!(!ledger.is_quarantined(group(1, 1)));
    }
}

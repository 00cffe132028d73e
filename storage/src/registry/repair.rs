//! Repair at start: compares the registry with the folders after a crash and decides what to do. Pure.
//!
//! Changes are ordered so that each interrupted one can be recognised:
//!
//! | change | order | a crash leaves | repair |
//! |---|---|---|---|
//! | create | record `creating`; create `x.tmp`; rename to `x`; record `live` | `x.tmp` | delete it and the record |
//! | | | `x` | record `live` |
//! | install | create `y.tmp`; rename to `y`; record folder `y`, discard `x`; delete `x` | `y.tmp` | delete it |
//! | | | `y` not recorded | move it to lost and found: the leader sends it again |
//! | | | `x` discarded | delete it |
//! | remove | record `removing`; delete `x`; record the tombstone | `x` or not | delete it, record the tombstone |
//!
//! A live replica without its folder has lost acknowledged data: it is quarantined. An unknown folder is moved to lost and
//! found, where an operator can inspect it.

use std::collections::BTreeSet;

use super::state::{ReplicaState, State};

/// Suffix of an unfinished folder.
pub(super) const TEMPORARY: &str = ".tmp";

/// The repair: folders first, the registry last, so that a crash in between repeats the same repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Repair {
    pub(super) delete: BTreeSet<String>,
    /// Folders to move to lost and found.
    pub(super) unknown: BTreeSet<String>,
    /// Live replicas whose folder is missing.
    pub(super) lost: BTreeSet<String>,
    pub(super) state: State,
}

/// The repair for this registry and these folders.
pub(super) fn plan(recorded: &State, folders: &BTreeSet<String>) -> Repair {
    let mut repair = Repair { state: recorded.clone(), ..Repair::default() };
    for (group, record) in &recorded.replicas {
        let exists = folders.contains(&record.folder);
        match (record.state, exists) {
            (ReplicaState::Creating, true) => repair.set(*group, ReplicaState::Live),
            (ReplicaState::Creating, false) => {
                repair.state.replicas.remove(group);
            }
            (ReplicaState::Live, false) => {
                repair.lost.insert(record.folder.clone());
                repair.set(*group, ReplicaState::Quarantined);
            }
            (ReplicaState::Live | ReplicaState::Quarantined, _) => {}
            (ReplicaState::Removing, _) => repair.state.add_tombstone(*group),
        }
    }
    repair.state.discards.clear();
    repair.classify_folders(recorded, folders);
    repair
}

impl Repair {
    fn set(&mut self, group: crate::log::GroupReplica, state: ReplicaState) {
        if let Some(record) = self.state.replicas.get_mut(&group) {
            record.state = state;
        }
    }

    fn classify_folders(&mut self, recorded: &State, folders: &BTreeSet<String>) {
        let kept: BTreeSet<_> = self.state.replicas.values().map(|record| &record.folder).collect();
        let removing = recorded.replicas.values().filter(|record| record.state == ReplicaState::Removing);
        let discarded: BTreeSet<_> = removing.map(|record| &record.folder).chain(&recorded.discards).collect();
        for folder in folders {
            if kept.contains(folder) {
                continue;
            }
            if discarded.contains(folder) || folder.ends_with(TEMPORARY) {
                self.delete.insert(folder.clone());
            } else {
                self.unknown.insert(folder.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::group;
    use super::super::state::{ReplicaOrigin, ReplicaRecord};
    use super::*;

    fn recorded(state: ReplicaState) -> State {
        let mut recorded = State::default();
        let origin = ReplicaOrigin::Seed;
        let record = ReplicaRecord { folder: "x".to_owned(), state, installed: None, origin };
        recorded.replicas.insert(group(5, 1), record);
        recorded
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn state_after(repair: &Repair) -> Option<ReplicaState> {
        repair.state.replicas.get(&group(5, 1)).map(|record| record.state)
    }

    #[test]
    fn a_creation_that_was_not_renamed_is_undone() {
        let repair = plan(&recorded(ReplicaState::Creating), &names(&["x.tmp"]));
        assert_eq!(state_after(&repair), None);
        assert_eq!(repair.delete, names(&["x.tmp"]));
        assert!(!repair.state.is_removed(group(5, 1)), "it may be created again");
    }

    #[test]
    fn a_creation_that_was_renamed_is_live() {
        let repair = plan(&recorded(ReplicaState::Creating), &names(&["x"]));
        assert_eq!(state_after(&repair), Some(ReplicaState::Live));
        assert!(repair.delete.is_empty() && repair.unknown.is_empty());
    }

    #[test]
    fn a_live_replica_without_its_folder_is_quarantined() {
        let repair = plan(&recorded(ReplicaState::Live), &names(&[]));
        assert_eq!(state_after(&repair), Some(ReplicaState::Quarantined));
        assert_eq!(repair.lost, names(&["x"]));
    }

    #[test]
    fn a_removal_is_finished() {
        for folders in [names(&["x"]), names(&[])] {
            let repair = plan(&recorded(ReplicaState::Removing), &folders);
            assert_eq!(repair.delete, folders);
            assert!(repair.state.is_removed(group(5, 1)));
        }
    }

    #[test]
    fn discarded_folders_are_deleted_and_unknown_ones_are_moved() {
        let mut before = recorded(ReplicaState::Live);
        before.discards.insert("old".to_owned());
        let repair = plan(&before, &names(&["x", "old", "unknown"]));
        assert_eq!(repair.delete, names(&["old"]));
        assert_eq!(repair.unknown, names(&["unknown"]));
        assert!(repair.state.discards.is_empty());
        assert_eq!(state_after(&repair), Some(ReplicaState::Live));
    }

    #[test]
    fn a_repair_repeated_changes_nothing_more() {
        let repair = plan(&recorded(ReplicaState::Creating), &names(&["x"]));
        assert_eq!(plan(&repair.state, &names(&["x"])), Repair { state: repair.state.clone(), ..Repair::default() });
    }
}

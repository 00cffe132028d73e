//! Comparison of the contents of each tablet, and of the state of its group, on all replicas of the group at the end.
//!
//! Cells of dropped families and expired cells are not compared: no read returns them, and each replica removes them at a compaction of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use ebla_model::codec::{self, CellKey};
use ebla_model::id::{FamilyId, GroupId, LogIndex, TabletId};
use ebla_storage::store::{Direction, StoreError};
use ebla_tablet_server::tablet::Tablet;
use ebla_tablet_server::tablet::core::state::{GroupState, MetaEdit};

use crate::cluster::SimCluster;

/// The contents of a replica: last applied entry, range, and the cells in its range.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    group: GroupId,
    applied: LogIndex,
    range: String,
    generation: u64,
    cells: u64,
    hash: u64,
    /// Hash of the state of its group: schemas, sessions, tokens, operations and moves.
    state: u64,
}

/// All differences between replicas, as text; empty when all are equal and complete.
pub(crate) fn differences(cluster: &SimCluster) -> Vec<String> {
    let mut tablets: BTreeMap<TabletId, BTreeMap<&str, Content>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for host in &cluster.servers {
        let Some(hosted) = host.hosted() else {
            wrong.push(format!("{} does not run", host.name));
            continue;
        };
        for group in hosted.quarantined() {
            wrong.push(format!("{} has put {group} into quarantine", host.name));
        }
        for tablet in hosted.tablets() {
            match content(&tablet) {
                Ok(content) => {
                    tablets.entry(tablet.id()).or_default().insert(&host.name, content);
                }
                Err(error) => wrong.push(format!("{} cannot read tablet {}: {error}", host.name, tablet.id())),
            }
        }
    }
    for (tablet, replicas) in &tablets {
        let mut contents = replicas.values();
        let first = contents.next();
        if contents.any(|other| Some(other) != first) {
            wrong.push(format!("replicas of tablet {tablet} differ: {replicas:?}"));
        }
        if replicas.len() != cluster.servers.len().min(3) {
            wrong.push(format!("tablet {tablet} has {} replicas", replicas.len()));
        }
    }
    wrong
}

/// Fails when cells cannot be read.
fn content(tablet: &Tablet) -> Result<Content, StoreError> {
    let applied_state = tablet.state_machine().applied_state();
    let store = tablet.state_machine().store();
    let metadata = tablet.metadata().unwrap();
    let (lower, upper) = codec::range_bounds(&metadata.stored_range(&metadata.descriptor.range));
    let mut hash = DefaultHasher::new();
    let mut cells = 0;
    let view = store.view();
    let families: BTreeSet<FamilyId> = metadata.table.schema.families.iter().map(|family| family.id).collect();
    // Its age floors are those that a compaction would use now at the latest.
    let state = tablet.state_machine().with_state(GroupState::canonical);
    let floors = state.tables.get(&metadata.descriptor.table).map(|known| &known.floors);
    for cell in view.cells(&lower, upper.as_deref(), Direction::Forward)? {
        let cell = cell?;
        let key = CellKey::decode(&cell.0).unwrap();
        let is_expired = floors.and_then(|floors| floors.get(&key.family)).is_some_and(|floor| key.timestamp < *floor);
        if is_expired || !families.contains(&key.family) {
            continue;
        }
        cell.hash(&mut hash);
        cells += 1;
    }
    Ok(Content {
        group: metadata.descriptor.group,
        applied: applied_state.applied.index,
        range: format!("{:?}", metadata.descriptor.range),
        generation: metadata.descriptor.generation.get(),
        cells,
        hash: hash.finish(),
        state: state_hash(&state),
    })
}

/// Without what each replica may forget at a time of its own.
fn state_hash(canonical: &GroupState) -> u64 {
    let edits = canonical.save();
    let mut hash = DefaultHasher::new();
    for edit in edits {
        if let MetaEdit::Put(key, value) = edit {
            (key.encode(), value).hash(&mut hash);
        }
    }
    hash.finish()
}

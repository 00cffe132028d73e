//! Whether all replicas of each tablet hold the same, in the end.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use ebla_model::codec;
use ebla_model::id::TabletId;
use ebla_storage::tablet::Direction;
use ebla_tablet_server::tablet::Tablet;

use crate::world::World;

/// What a replica holds: its last entry, its shape, its visible part of the cells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    applied: u64,
    range: String,
    generation: u64,
    cells: u64,
    hash: u64,
}

/// Every difference between replicas, in words; nothing when all are equal and all are there.
pub(crate) fn differences(world: &World) -> Vec<String> {
    let mut tablets: BTreeMap<TabletId, BTreeMap<&str, Content>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for machine in &world.servers {
        let Some(hosted) = machine.hosted() else {
            wrong.push(format!("{} does not run", machine.name));
            continue;
        };
        for group in hosted.quarantined() {
            wrong.push(format!("{} has put {group} into quarantine", machine.name));
        }
        for tablet in hosted.tablets() {
            tablets.entry(tablet.id()).or_default().insert(&machine.name, content(&tablet));
        }
    }
    for (tablet, replicas) in &tablets {
        let mut contents = replicas.values();
        let first = contents.next();
        if contents.any(|other| Some(other) != first) {
            wrong.push(format!("replicas of tablet {tablet} differ: {replicas:?}"));
        }
        if replicas.len() != world.servers.len().min(3) {
            wrong.push(format!("tablet {tablet} has {} replicas", replicas.len()));
        }
    }
    wrong
}

fn content(tablet: &Tablet) -> Content {
    let applied_state = tablet.state_machine().applied_state();
    let store = tablet.state_machine().store();
    let (lower, upper) = codec::range_bounds(&applied_state.metadata.descriptor.range);
    let mut hash = DefaultHasher::new();
    let mut cells = 0;
    let view = store.view();
    for cell in view.cells(&lower, upper.as_deref(), Direction::Forward).unwrap() {
        cell.unwrap().hash(&mut hash);
        cells += 1;
    }
    Content {
        applied: applied_state.applied.index,
        range: format!("{:?}", applied_state.metadata.descriptor.range),
        generation: applied_state.metadata.descriptor.generation.get(),
        cells,
        hash: hash.finish(),
    }
}

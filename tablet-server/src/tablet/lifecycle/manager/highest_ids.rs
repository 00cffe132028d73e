//! The highest ids that this server knows: of its replicas, also the removed ones, and of what its groups have applied.

use ebla_model::highest_ids::HighestIds;

use super::TabletManager;
use crate::raft::GroupReplica;
use crate::tablet::core::applied_state::AppliedState;

impl TabletManager {
    /// The highest ids that this server knows. It knows those of replicas that do not run only as far as its registry does.
    #[must_use]
    pub fn highest_ids(&self) -> HighestIds {
        let mut highest = HighestIds { server: self.server(), ..HighestIds::default() };
        let here = self.registry().replicas().into_iter().map(|(id, _record)| id);
        for GroupReplica { group, replica } in here.chain(self.registry().tombstones()) {
            highest.group = highest.group.max(group);
            highest.replica = highest.replica.max(replica);
        }
        for group in self.groups() {
            add_applied(&mut highest, &group.state_machine().applied_state());
        }
        highest
    }
}

fn add_applied(highest: &mut HighestIds, applied_state: &AppliedState) {
    let metadata = &applied_state.metadata;
    highest.operation = highest.operation.max(applied_state.highest_operation);
    highest.add_group(&metadata.descriptor);
    metadata.tablets.values().for_each(|tablet| highest.add_tablet(&tablet.descriptor));
    for departure in metadata.departures.values() {
        highest.add_tablet(&departure.tablet);
        highest.add_group(&departure.target);
    }
    highest.table = metadata.dropped.last().map_or(highest.table, |dropped| highest.table.max(*dropped));
}

//! The highest ids that a server knows, in its reports.

use ebla_model::highest_ids::HighestIds;
use ebla_model::id::{GroupId, OperationId, ReplicaId, ServerId, TableId, TabletId};

use crate::record;

/// The highest ids as a message.
pub fn highest_ids_to_proto(ids: &HighestIds) -> record::HighestIds {
    record::HighestIds {
        server: ids.server.get(),
        table: ids.table.get(),
        group: ids.group.get(),
        tablet: ids.tablet.get(),
        replica: ids.replica.get(),
        operation: ids.operation.get(),
    }
}

/// The highest ids of a message.
pub fn highest_ids_from_proto(ids: &record::HighestIds) -> HighestIds {
    HighestIds {
        server: ServerId::new(ids.server),
        table: TableId::new(ids.table),
        group: GroupId::new(ids.group),
        tablet: TabletId::new(ids.tablet),
        replica: ReplicaId::new(ids.replica),
        operation: OperationId::new(ids.operation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_ids_survive_a_round_trip() {
        let message = record::HighestIds { server: 1, table: 2, group: 3, tablet: 4, replica: 5, operation: 6 };
        assert_eq!(highest_ids_to_proto(&highest_ids_from_proto(&message)), message);
    }
}

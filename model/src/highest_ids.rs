//! The highest ids that are in use: a counter that gives one of them again has gone back in time.
//!
//! Ids ascend, and none is given twice (ARCHITECTURE.md, "Ids"). So an id that is given now is above every one that was known
//! before. When it is not, Chubby was restored from a backup that is older than these ids.

use crate::id::{GroupId, OperationId, ReplicaId, ServerId, TableId, TabletId};
use crate::metadata::{GroupDescriptor, Membership, TabletDescriptor};

/// The highest known id of each kind; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HighestIds {
    /// Tablet servers.
    pub server: ServerId,
    /// Tables.
    pub table: TableId,
    /// Groups.
    pub group: GroupId,
    /// Tablets.
    pub tablet: TabletId,
    /// Replicas, of any group.
    pub replica: ReplicaId,
    /// Admin operations.
    pub operation: OperationId,
}

impl HighestIds {
    /// Raises each id to that of `other`, if that is higher.
    pub fn raise(&mut self, other: &Self) {
        self.server = self.server.max(other.server);
        self.table = self.table.max(other.table);
        self.group = self.group.max(other.group);
        self.tablet = self.tablet.max(other.tablet);
        self.replica = self.replica.max(other.replica);
        self.operation = self.operation.max(other.operation);
    }

    /// Counts a group with its replicas and their servers.
    pub fn add_group(&mut self, group: &GroupDescriptor) {
        self.group = self.group.max(group.group);
        self.add_members(&group.membership);
    }

    /// Counts a tablet with its table and its group.
    pub fn add_tablet(&mut self, tablet: &TabletDescriptor) {
        self.table = self.table.max(tablet.table);
        self.tablet = self.tablet.max(tablet.tablet);
        self.group = self.group.max(tablet.group);
        self.add_members(&tablet.membership);
    }

    fn add_members(&mut self, membership: &Membership) {
        for replica in membership.replicas() {
            self.replica = self.replica.max(replica.replica);
            self.server = self.server.max(replica.server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyRange;

    #[test]
    fn the_highest_of_each_kind_counts() {
        let group = GroupDescriptor::initial(GroupId::new(4), &[2, 9, 3].map(ServerId::new));
        let mut highest = HighestIds { operation: OperationId::new(8), ..HighestIds::default() };
        highest.add_group(&group);
        highest.add_tablet(&group.new_tablet(TableId::new(5), TabletId::new(7), KeyRange::all()));
        highest.raise(&HighestIds { tablet: TabletId::new(6), table: TableId::new(6), ..HighestIds::default() });
        let expected = HighestIds {
            server: ServerId::new(9),
            table: TableId::new(6),
            group: GroupId::new(4),
            tablet: TabletId::new(7),
            replica: ReplicaId::new(3),
            operation: OperationId::new(8),
        };
        assert_eq!(highest, expected);
    }
}

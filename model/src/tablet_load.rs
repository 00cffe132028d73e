//! The load of a tablet, as its leader measures and reports it.

use std::time::Duration;

use crate::capacity::Usage;
use crate::id::TableId;
use crate::key::RowKey;

/// A tablet with fewer reads and writes per second than this is quiet.
pub const QUIET_PER_SECOND: u64 = 10;

/// A tablet with fewer reads and writes per second is never hot, and neither is a row of it.
pub const HOT_PER_SECOND: u64 = 2_000;
/// A hot tablet has at least this part of the load of the cluster.
const HOT_PERCENT: u64 = 50;

/// The load of a tablet. All zero at a replica that does not lead, and in the reports of earlier releases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TabletLoad {
    /// Rows that are read by their keys, and batches of scans, per second. A burst is forgotten after about a minute.
    pub reads_per_second: u64,
    /// Rows that are written per second.
    pub writes_per_second: u64,
    /// For how long the leader has seen fewer than [`QUIET_PER_SECOND`] reads and writes per second. It starts again when the tablet is
    /// split or moved and when another replica leads.
    pub quiet_for: Duration,
    /// The row that most of the reads and writes are of, if the tablet is busy. A key that is longer than 256 bytes is cut there.
    pub hot_row: Option<RowKey>,
}

impl TabletLoad {
    /// Reads and writes per second.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        self.reads_per_second.saturating_add(self.writes_per_second)
    }

    /// What has most of the load, if it is so much that an operator should act. `table`: that of the tablet.
    ///
    /// A row of METADATA is never named: the cluster itself reads and writes it. A tablet with a hot row is not hot besides, because it is
    /// the row that cannot be divided.
    #[must_use]
    pub fn hotspot(&self, table: TableId, cluster: ClusterLoad) -> Option<Hotspot> {
        let used = self.per_second();
        if used < HOT_PER_SECOND {
            return None;
        }
        if self.hot_row.is_some() {
            return (table != TableId::METADATA).then_some(Hotspot::Row);
        }
        let percent = Usage { used, limit: cluster.per_second }.percent()?;
        (cluster.servers > 1 && percent >= HOT_PERCENT).then_some(Hotspot::Tablet { percent })
    }
}

/// The load of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterLoad {
    /// Reads and writes per second of all tablets.
    pub per_second: u64,
    /// Its tablet servers: the load of a single one cannot be spread.
    pub servers: usize,
}

/// What has most of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hotspot {
    /// One row has most of the load of its tablet.
    Row,
    /// The tablet has this part of the load of the cluster.
    Tablet {
        /// In percent.
        percent: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId::new(5);

    fn load(reads_per_second: u64, hot_row: Option<&str>) -> TabletLoad {
        let hot_row = hot_row.map(|row| RowKey::new(row.to_owned()));
        TabletLoad { reads_per_second, writes_per_second: 1, hot_row, ..TabletLoad::default() }
    }

    fn cluster(per_second: u64) -> ClusterLoad {
        ClusterLoad { per_second, servers: 3 }
    }

    #[test]
    fn a_row_is_hot_when_it_has_most_of_a_busy_tablet() {
        let found = |reads, row, table| load(reads, row).hotspot(table, cluster(1_000_000));
        assert_eq!(found(1_999, Some("a"), TABLE), Some(Hotspot::Row));
        assert_eq!(found(1_998, Some("a"), TABLE), None, "few requests");
        assert_eq!(found(5_000, Some("a"), TableId::METADATA), None);
    }

    #[test]
    fn a_tablet_is_hot_when_it_has_half_of_the_load_of_several_servers() {
        let busy = load(2_999, None);
        let found = |per_second, servers| busy.hotspot(TABLE, ClusterLoad { per_second, servers });
        assert_eq!(found(6_000, 2), Some(Hotspot::Tablet { percent: 50 }));
        assert_eq!(found(6_100, 2), None);
        assert_eq!(found(3_000, 1), None, "a single server");
        assert_eq!(found(0, 2), None, "the load of the cluster is not known");
        assert_eq!(load(1_998, None).hotspot(TABLE, cluster(1_999)), None, "few requests");
        assert_eq!(busy.hotspot(TableId::METADATA, cluster(3_000)), Some(Hotspot::Tablet { percent: 100 }));
        assert_eq!(load(2_999, Some("a")).hotspot(TABLE, cluster(3_000)), Some(Hotspot::Row), "a row, not the tablet");
    }
}

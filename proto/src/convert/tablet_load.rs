//! The load of a tablet in its leader's reports.

use std::time::Duration;

use ebla_model::key::RowKey;
use ebla_model::tablet_load::TabletLoad;

use crate::record;

/// The load of a tablet.
#[must_use]
pub fn tablet_load_to_proto(load: &TabletLoad) -> record::TabletLoad {
    record::TabletLoad {
        reads_per_second: load.reads_per_second,
        writes_per_second: load.writes_per_second,
        quiet_millis: u64::try_from(load.quiet_for.as_millis()).unwrap_or(u64::MAX),
        hot_row: load.hot_row.as_ref().map(|row| row.bytes().clone()),
    }
}

/// Inverse of [`tablet_load_to_proto`]. It cannot fail: this only informs.
#[must_use]
pub fn tablet_load_from_proto(load: &record::TabletLoad) -> TabletLoad {
    TabletLoad {
        reads_per_second: load.reads_per_second,
        writes_per_second: load.writes_per_second,
        quiet_for: Duration::from_millis(load.quiet_millis),
        hot_row: load.hot_row.clone().map(RowKey::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_survive_a_round_trip() {
        let busy = TabletLoad {
            reads_per_second: 7,
            writes_per_second: 9,
            quiet_for: Duration::from_millis(1_500),
            hot_row: Some(RowKey::new("k")),
        };
        for load in [TabletLoad::default(), busy] {
            assert_eq!(tablet_load_from_proto(&tablet_load_to_proto(&load)), load);
        }
    }
}

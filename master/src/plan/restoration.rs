//! What must be restored before METADATA can be read: Chubby's file `root`, and the rows of METADATA's own tablets, which are in the root tablet. The
//! servers' reports have both.
//!
//! ```text
//!   lost                            who sees it                  restored from
//!   the file `root`                 a process without a copy     the report of the leader of METADATA's group
//!   rows of METADATA's tablets      a process without a cache    the reports, guarded by generation
//!   rows of other tablets           every reader of METADATA     the reports, by the plan of the next round
//! ```
//!
//! A row that cannot be decoded counts as lost: it is removed where a tablet is known to have its keys, and written again. Nothing is restored while
//! Chubby is [`super::behind`]: then a recovery decides.

use ebla_model::id::{GroupId, TableId};
use ebla_model::key::RowKey;
use ebla_model::metadata::parse_row_key;

use super::{Action, behind, stale_root, stale_rows};
use crate::cluster::ClusterSnapshot;

/// The file `root`, if Chubby has none or an old one. Needs servers and Chubby's files of the snapshot.
#[must_use]
pub fn lost_root(cluster: &ClusterSnapshot) -> Option<Action> {
    if behind::actions(cluster).is_some() {
        return None;
    }
    // Without a file nothing shows whether a report is older than it: only a leader writes it.
    let has_leader = cluster.leader_reports().contains_key(&GroupId::METADATA);
    stale_root(cluster).filter(|_write| cluster.root.is_some() || has_leader)
}

/// The rows of METADATA's own tablets that are lost or old. `cluster.metadata` and `cluster.damaged_rows` are those of the root tablet.
#[must_use]
pub fn lost_rows(cluster: &ClusterSnapshot) -> Vec<Action> {
    if behind::actions(cluster).is_some() {
        return Vec::new();
    }
    let rows = stale_rows(cluster).into_iter().filter(|tablet| tablet.table == TableId::METADATA);
    damaged_rows(cluster).into_iter().chain(rows.map(Action::WriteRow)).collect()
}

/// The removal of rows of METADATA that cannot be decoded: those that a reported tablet writes again or that are inside its range, and those
/// whose keys no tablet can have. Another one stays: its tablet may return.
pub(super) fn damaged_rows(cluster: &ClusterSnapshot) -> Vec<Action> {
    let tablets = cluster.tablets();
    let is_replaced = |row: &&RowKey| match parse_row_key(row) {
        Err(_not_a_row) => true,
        Ok((table, end)) => tablets.values().filter(|tablet| tablet.table == table).any(|tablet| {
            let ends_inside = end.as_ref().is_some_and(|end| tablet.range.contains(end.as_bytes()));
            tablet.row_key() == **row || (ends_inside && end.as_ref() != Some(tablet.range.start()))
        }),
    };
    cluster.damaged_rows.iter().filter(is_replaced).cloned().map(Action::RemoveDamagedRow).collect()
}

//! A Chubby that is behind: it lacks changes that the tablet servers have seen, because it was restored from an older backup or
//! has lost data.
//!
//! Three facts show it, and none can be seen otherwise: ids ascend and each is given by a counter first, so a counter at or
//! below an id in use has gone back; master epochs ascend, so a server that has accepted a later epoch than that of the
//! master that holds the lock has seen a later Chubby; and a schema is written there before servers get it.
//!
//! The file `behind` records it before the counters are raised, so that it is known until a recovery has removed the file. Until
//! then nothing is changed: an intent that Chubby has again, such as a drop of rows, may have been completed long ago.

use std::collections::BTreeMap;

use ebla_model::id::{SchemaVersion, ServerId, TableId};

use super::counters::low_counters;
use super::{Action, counters, deleted};
use crate::cluster::ClusterSnapshot;

/// What shows that Chubby is behind, in words; empty when nothing does.
#[must_use]
pub fn reasons(cluster: &ClusterSnapshot) -> Vec<String> {
    let low = low_counters(cluster).into_iter().map(|(counter, next)| {
        format!("the counter {} is not above {}, which is in use", counter.name(), next.saturating_sub(1))
    });
    let refused: Vec<ServerId> =
        cluster.servers.iter().filter(|(_id, server)| server.later_epoch).map(|(id, _server)| *id).collect();
    let refusals = refused.into_iter().map(|id| format!("tablet server {id} has accepted a later master epoch"));
    let schemas = later_schemas(cluster).into_iter().map(|(table, (known, stored))| {
        format!("table {table} has schema version {known} on tablet servers and {stored} in the lock service")
    });
    low.chain(refusals).chain(schemas).collect()
}

/// The tables of which servers have a later schema than Chubby, with both versions. Schemas are written to Chubby first, and read after the reports.
fn later_schemas(cluster: &ClusterSnapshot) -> BTreeMap<TableId, (SchemaVersion, SchemaVersion)> {
    let mut later = BTreeMap::new();
    for reported in cluster.tablet_reports() {
        let table = reported.descriptor.table;
        let Some(stored) = cluster.tables.get(&table).map(|schema| schema.version) else { continue };
        if reported.schema_version > stored {
            let versions = later.entry(table).or_insert((reported.schema_version, stored));
            versions.0 = versions.0.max(reported.schema_version);
        }
    }
    later
}

/// The only actions while Chubby is behind; `None` when it is not.
#[must_use]
pub fn actions(cluster: &ClusterSnapshot) -> Option<Vec<Action>> {
    let reasons = reasons(cluster);
    let record = match &cluster.behind {
        Some(_recorded) => None,
        None if reasons.is_empty() => return None,
        None => Some(Action::RecordBehind(reasons)),
    };
    Some(record.into_iter().chain(counters::raises(cluster)).chain(deleted::unknown_tables(cluster)).collect())
}

//! A Chubby that is behind: it lacks changes that the tablet servers have seen, because it was restored from an older backup or
//! has lost data.
//!
//! Two facts show it, and neither can be seen otherwise: ids ascend and each is given by a counter first, so a counter at or
//! below an id in use has gone back; and master epochs ascend, so a server that has accepted a later epoch than that of the
//! master that holds the lock has seen a later Chubby.
//!
//! The file `behind` records it before the counters are raised, so that it is known until a recovery has removed the file. Until
//! then nothing is changed: an intent that Chubby has again, such as a drop of rows, may have been completed long ago.

use ebla_model::id::ServerId;

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
    low.chain(refusals).collect()
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

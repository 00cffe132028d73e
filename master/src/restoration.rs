//! Restores what METADATA cannot be read without ([`crate::plan::restoration`]): the reconciler does so when METADATA could not be read, and
//! a check that an operator requests always looks for it.

use std::collections::BTreeMap;

use ebla_model::error::Error;
use ebla_model::id::ServerId;
use tracing::info;

use crate::active::ActiveMaster;
use crate::cluster::{ClusterSnapshot, Server};
use crate::plan::Action;
use crate::plan::restoration::{lost_root, lost_rows};
use crate::{observation, reconciler};

/// What must be restored now, as far as it can be seen: without the location of the root tablet its rows cannot be read.
///
/// # Errors
/// When Chubby cannot be read, or the root tablet.
pub(crate) async fn lost(
    master: &ActiveMaster,
    servers: &BTreeMap<ServerId, Server>,
) -> Result<(ClusterSnapshot, Vec<Action>), Error> {
    let observed = ClusterSnapshot { servers: servers.clone(), ..ClusterSnapshot::default() };
    let snapshot = observation::with_chubby(master, observed).await?;
    if let Some(root) = lost_root(&snapshot) {
        return Ok((snapshot, vec![root]));
    }
    let own = observation::read_own_rows(master).await?;
    let snapshot = ClusterSnapshot { metadata: own.rows, damaged_rows: own.damaged, ..snapshot };
    let lost = lost_rows(&snapshot);
    Ok((snapshot, lost))
}

/// Restores it. Returns what was done.
///
/// # Errors
/// As [`lost`], and errors of the writes. Safe to repeat.
pub(crate) async fn restore(master: &ActiveMaster, servers: &BTreeMap<ServerId, Server>) -> Result<Vec<Action>, Error> {
    let mut restored = Vec::new();
    // First the location of the root tablet, then its rows.
    for _stage in 0..2 {
        let (_snapshot, actions) = lost(master, servers).await?;
        for action in actions {
            reconciler::execute(master, &action).await?;
            info!(%action, "restored what METADATA cannot be read without");
            restored.push(action);
        }
    }
    Ok(restored)
}

//! Keeps the times of problems: after each observation of the reconciler, and between its rounds.
//!
//! A round may be a minute after the last one, which would be too late for the beginning of a problem. Between two rounds only the servers are
//! asked; METADATA is taken as it was last read.

use std::time::Duration;

use tracing::debug;

use crate::active::ActiveMaster;
use crate::cluster::ClusterSnapshot;
use crate::health::Health;
use crate::observation;
use crate::problems::{MetadataState, problems};

/// Between two observations: a problem that has begun is recorded this much later at most. A report lists all tablets of a server, so it is
/// not requested each second.
const OBSERVATION_PERIOD: Duration = Duration::from_secs(10);

/// Takes the problems in a snapshot.
pub(crate) fn record(master: &ActiveMaster, snapshot: &ClusterSnapshot, metadata: MetadataState) {
    let health = Health::of(snapshot, master.replicas());
    master.observe_problems(problems(snapshot, &health, metadata));
}

/// Observes the problems until it is dropped. `metadata`: whether the last round could read it.
pub(crate) async fn watch(master: &ActiveMaster, metadata: MetadataState) {
    loop {
        tokio::time::sleep(OBSERVATION_PERIOD).await;
        match observation::observe_without_metadata(master).await {
            Ok(snapshot) => record(master, &snapshot, metadata),
            Err(error) => debug!(%error, "cannot read cluster state; problems keep their times"),
        }
    }
}

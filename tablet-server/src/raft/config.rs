//! The configuration of a group, and openraft's settings derived from it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_storage::log::GroupReplica;
use openraft::{Config, SnapshotPolicy, StepDownPolicy};

use super::error::StartError;
use super::storage::blocking::BlockingPools;
use super::transport::message::GroupOrigin;

/// Times of the Raft protocol: constants of the cluster, the same on every server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTimings {
    /// The interval of a leader's heartbeats.
    pub heartbeat: Duration,
    /// A follower without a message from the leader campaigns when `election_max`, its promise to the leader, has expired and
    /// then a random time has passed that lies between `election_min` ...
    pub election_min: Duration,
    /// ... and `election_max`. A follower also refuses to vote for others for this time after a leader's message, so it bounds
    /// the leader lease.
    pub election_max: Duration,
}

impl Default for RaftTimings {
    /// A lost leader is replaced after 1.3 to 2 s of silence (docs/inside/decisions/0006-election-times.md).
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_secs(1),
        }
    }
}

/// The configuration with which a replica's group starts.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Identifies the group and the replica.
    pub group: GroupReplica,
    /// The server that holds the replica.
    pub server: ServerId,
    /// What created the group; its messages carry it.
    pub origin: GroupOrigin,
    /// Vote after restart: how long the replica keeps out of elections at first. `Some(election_max)` for a replica that ran
    /// before; `None` for a new one and where all voters died together.
    pub vote_holdoff: Option<Duration>,
    /// Whether the replica campaigns at once instead of after the election timeout: for one replica of a new group.
    pub campaign_at_start: bool,
    /// Times of the Raft protocol.
    pub timings: RaftTimings,
    /// The folder for checkpoints that are being sent, on the file system of the replica's store.
    pub scratch: PathBuf,
    /// The thread pools of the state machine.
    pub pools: BlockingPools,
    /// The largest number of bytes of proposed commands that wait for their outcome in this group.
    pub proposal_bytes_max: usize,
}

impl GroupConfig {
    /// The defaults: no vote hold-off, no immediate campaign, 64 MiB of proposals.
    pub fn new(group: GroupReplica, server: ServerId, scratch: PathBuf, pools: BlockingPools) -> Self {
        Self {
            group,
            server,
            origin: GroupOrigin::default(),
            vote_holdoff: None,
            campaign_at_start: false,
            timings: RaftTimings::default(),
            scratch,
            pools,
            proposal_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// The largest number of entries in one append, beside the bound in bytes.
const ENTRIES_MAX: u64 = 4096;

pub(super) fn openraft_config(config: &GroupConfig) -> Result<Arc<Config>, StartError> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let RaftTimings { heartbeat, election_min, election_max } = config.timings;
    let settings = Config {
        cluster_name: "group".to_owned(),
        heartbeat_interval: millis(heartbeat),
        election_timeout_min: millis(election_min),
        election_timeout_max: millis(election_max),
        enable_elect: config.vote_holdoff.is_none(),
        // A follower that was partitioned must not return with a higher term that forces the leader to step down. A message of the
        // leader ends a pre-vote (`become_following` of openraft), so one that is granted late cannot break a newer promise.
        enable_pre_vote: Some(true),
        // After a restart a leader must win an election again: restoring its leadership could ignore another leader's lease.
        enable_leader_restore: Some(false),
        // The driver transfers leadership itself, after it has suspended lease reads.
        removed_leader_step_down: StepDownPolicy::Never,
        // The store is its own snapshot; log compaction is done by `Group::purge` alone.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: u64::MAX,
        max_payload_entries: ENTRIES_MAX,
        max_append_entries: Some(ENTRIES_MAX),
        api_batch_capacity: ENTRIES_MAX,
        backoff: "50ms 100ms 200ms ...1s".to_owned(),
        ..Config::default()
    };
    settings.validate().map(Arc::new).map_err(|error| StartError::Settings(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A follower of another release keeps its own promise: if that were shorter than the lease of a leader of this release, a read of the
    /// leader could miss what others have committed.
    #[test]
    fn the_promise_of_followers_is_that_of_earlier_releases() {
        assert_eq!(RaftTimings::default().election_max, Duration::from_secs(1), "a change needs a cluster version");
    }
}

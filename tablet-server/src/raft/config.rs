//! What a group is started with, and openraft's settings made from it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_storage::log::GroupId;
use openraft::{Config, SnapshotPolicy, StepDownPolicy};

use super::fault::StartError;
use super::link::Origin;
use super::state_machine::Pools;

/// Times of the protocol: constants of the cluster, the same on every server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTimings {
    /// A leader that has nothing to say says so this often.
    pub heartbeat: Duration,
    /// A follower that hears nothing stands for election when `election_max`, its promise to the leader, has run out, and
    /// then a random time between this ...
    pub election_min: Duration,
    /// ... and this. Also how long it refuses to vote for others after a leader's message, and so the life of a read lease.
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

/// What a replica's group is started with.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Which replica of which tablet.
    pub group: GroupId,
    /// The server that it is on.
    pub server: ServerId,
    /// What created the group; travels with its messages.
    pub origin: Origin,
    /// Keeps the replica out of elections at first: `Some(election_max)` for one that ran before; `None` for a new one
    /// and where all voters died together.
    pub wait_before_voting: Option<Duration>,
    /// Stands for election at once instead of after the election time: for one replica of a new group.
    pub elect_now: bool,
    /// Times of the protocol.
    pub timings: RaftTimings,
    /// Folder for checkpoints on their way, on the file system of the replica's store.
    pub scratch: PathBuf,
    /// The threads that the state machine runs on.
    pub pools: Pools,
    /// Bytes of commands that may wait for their outcome in this group.
    pub proposal_bytes_max: usize,
}

impl GroupConfig {
    /// The usual settings: no wait before voting, no hurry to elect, 64 MiB of proposals.
    pub fn new(group: GroupId, server: ServerId, scratch: PathBuf, pools: Pools) -> Self {
        Self {
            group,
            server,
            origin: Origin::default(),
            wait_before_voting: None,
            elect_now: false,
            timings: RaftTimings::default(),
            scratch,
            pools,
            proposal_bytes_max: 64 * 1024 * 1024,
        }
    }
}

/// Entries in one append, beside the bound in bytes.
const ENTRIES_MAX: u64 = 4096;

pub(super) fn openraft_config(config: &GroupConfig) -> Result<Arc<Config>, StartError> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let RaftTimings { heartbeat, election_min, election_max } = config.timings;
    let settings = Config {
        cluster_name: "tablet".to_owned(),
        heartbeat_interval: millis(heartbeat),
        election_timeout_min: millis(election_min),
        election_timeout_max: millis(election_max),
        enable_elect: config.wait_before_voting.is_none(),
        // A follower that was cut off must not come back with a term that deposes the leader.
        enable_pre_vote: Some(true),
        // After a restart leadership is won again, or another's lease could be ignored.
        enable_leader_restore: Some(false),
        // The driver hands leadership over itself, after the read gate is shut.
        removed_leader_step_down: StepDownPolicy::Never,
        // The store is its own snapshot; the log is purged by `Group::purge` alone.
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

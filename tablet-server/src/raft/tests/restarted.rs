//! The replica of a server fails and starts again, while the server goes on.

use std::time::Duration;

use super::VERY_SLOW;
use super::cluster::{Cluster, Transport, group_replica, until};

/// Longer than the start of a replica takes whose log is durable.
const START_MAX: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_starts_again_only_when_all_that_it_has_submitted_is_durable() {
    // The core of a follower waits for its disk at an election, and cannot be stopped meanwhile.
    let mut cluster = Cluster::start(3, Transport::Direct, VERY_SLOW).await;
    cluster.write("first").await;
    cluster.settled().await;
    let leader = cluster.leader().await;
    let follower = *cluster.servers.iter().find(|server| **server != leader).unwrap();
    let (id, log) = (group_replica(follower), cluster.node(follower).log.clone());
    cluster.block_disk(follower);
    cluster.write("second").await;
    until("the follower has an entry that is not durable", || log.last(id) > log.synced(id)).await;
    let last = log.last(id);
    cluster.stop_replica(follower).await;
    // If it started now, it would acknowledge an entry to the leader that it could still lose.
    let started = tokio::time::timeout(START_MAX, cluster.start_replica(follower)).await;
    assert!(started.is_err(), "it has started");
    cluster.unblock_disk(follower);
    cluster.start_replica(follower).await;
    assert!(log.synced(id) >= last, "{:?} of {last:?}", log.synced(id));
    cluster.settled().await;
}

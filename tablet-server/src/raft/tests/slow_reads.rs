//! Log entries that are on disk only, and a disk that is slow to return them.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::{Cluster, FirstElection, QUICK, Transport, now, until};

/// A follower needs old entries, which the leader has on disk only, and the disk hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_waits_for_old_entries_keeps_its_lease() {
    let mut cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    let behind = cluster.servers[2];
    cluster.write("first").await;
    cluster.kill(behind).await;
    for number in 0..5 {
        cluster.write(&number.to_string()).await;
    }
    // After a restart no log has entries in memory.
    let (one, other) = (cluster.servers[0], cluster.servers[1]);
    cluster.kill(one).await;
    cluster.kill(other).await;
    cluster.up(one, None, FirstElection::Immediate).await;
    cluster.up(other, None, FirstElection::ByTimeout).await;
    let leader = cluster.leader().await;
    let group = Arc::clone(&cluster.node(leader).group);
    until("a lease", || group.can_lease_read(now())).await;
    cluster.block_reads(leader);
    cluster.up(behind, Some(QUICK.election_max), FirstElection::ByTimeout).await;
    let end = now() + 3 * QUICK.election_max;
    let mut lapses = 0;
    while now() < end {
        lapses += u32::from(!group.can_lease_read(now()));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The machine may be busy, but not for most of the time.
    assert!(lapses < 100, "no lease at {lapses} of some 360 moments");
    cluster.unblock_reads(leader);
    cluster.settled().await;
}

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
    // With few entries, the leader reads all that the follower lacks before the disk hangs, while the follower is down. With 60 it has to read again
    // when the follower is back.
    for number in 0..60 {
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
    until("a read of old entries", || cluster.has_waiting_read(leader)).await;
    let end = now() + 3 * QUICK.election_max;
    let (mut lapses, mut moments) = (0, 0);
    while now() < end {
        lapses += u32::from(!group.can_lease_read(now()));
        moments += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(cluster.has_waiting_read(leader), "the disk hangs for the whole time");
    // Before a failure is reported: the runtime waits for its threads, one of which may wait for the disk.
    cluster.unblock_reads(leader);
    // The machine may be busy, but not for most of the time.
    assert!(lapses * 4 < moments, "no lease at {lapses} of {moments} moments");
    cluster.settled().await;
}

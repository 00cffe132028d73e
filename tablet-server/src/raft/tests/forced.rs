//! A replica that becomes the only voter of its group, because the others are lost.

use ebla_model::id::ServerId;

use super::cluster::{Cluster, FirstElection, QUICK, Transport, replica_on};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_last_replica_leads_alone_with_all_that_it_has_and_gets_new_peers() {
    let mut cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    let [survivor, second, third] = [1, 2, 3].map(ServerId::new);
    cluster.write("first").await;
    cluster.settled().await;
    cluster.kill(second).await;
    cluster.kill(third).await;
    cluster.kill(survivor).await;
    cluster.force_membership(survivor);
    cluster.up(survivor, None, FirstElection::Immediate).await;
    cluster.write("second").await;
    let group = &cluster.node(survivor).group;
    assert_eq!(cluster.node(survivor).machine.commands(), [&b"first"[..], b"second"]);
    assert_eq!(group.status().membership.replicas().collect::<Vec<_>>(), [replica_on(survivor)]);
    // A lost replica is no member: its votes and messages change nothing.
    cluster.up(second, None, FirstElection::Immediate).await;
    cluster.write("third").await;
    assert_eq!(cluster.leader_now(), Some(survivor));
    assert_eq!(cluster.node(second).machine.count(), 0, "it has flushed nothing and is sent nothing");
}

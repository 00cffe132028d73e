//! Snapshots: which follower gets one, on which disks, and how many there are at once.

use std::time::Duration;

use ebla_model::id::{LogId, LogIndex, ServerId};
use ebla_model::metadata::Membership;
use ebla_proto::raft::SnapshotPart;
use ebla_proto::raft::raft_client::RaftClient;
use ebla_runtime::Runtime;
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::VERY_SLOW;
use super::bad_messages::{Sender, client, reason};
use super::cluster::{Cluster, FirstElection, QUICK, TABLET, Transport, until};

/// Long enough for several attempts to send a snapshot.
const ATTEMPTS: Duration = Duration::from_millis(1_800);

/// A cluster whose last result is a follower that is down and needs a snapshot. `count` commands were written.
async fn with_a_late_follower(transport: Transport, count: u64) -> (Cluster, ServerId) {
    let mut cluster = Cluster::start(3, transport, QUICK).await;
    let leader = cluster.leader().await;
    let follower = *cluster.servers.iter().find(|server| **server != leader).unwrap();
    cluster.write("before").await;
    cluster.kill(follower).await;
    for number in 1..count {
        cluster.write(&number.to_string()).await;
    }
    let purged = LogIndex::new(count * 2 / 3);
    for node in cluster.nodes() {
        node.machine.flush();
        node.group.purge(purged).await;
    }
    let group = &cluster.node(leader).group;
    until("the purge", || group.status().purged.is_some_and(|id| id.index == purged)).await;
    (cluster, follower)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_that_needs_purged_entries_gets_a_snapshot() {
    for transport in [Transport::Direct, Transport::Grpc] {
        let (mut cluster, follower) = with_a_late_follower(transport, 301).await;
        cluster.up(follower, Some(QUICK.election_max), FirstElection::ByTimeout).await;
        cluster.write("after").await;
        cluster.settled().await;
        assert_eq!(cluster.node(follower).machine.count(), 302);
        // The installed snapshot survives the next restart.
        cluster.kill(follower).await;
        cluster.up(follower, Some(QUICK.election_max), FirstElection::ByTimeout).await;
        cluster.write("again").await;
        cluster.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_with_very_little_disk_space_gets_its_snapshot_when_it_has_more() {
    let (mut cluster, follower) = with_a_late_follower(Transport::Grpc, 31).await;
    // At half of the reserve the server would have less after the snapshot.
    for free in [9, 10] {
        cluster.set_free_mebibytes(follower, free);
        if free == 9 {
            cluster.up(follower, Some(QUICK.election_max), FirstElection::ByTimeout).await;
        }
        tokio::time::sleep(ATTEMPTS).await;
        assert!(cluster.node(follower).machine.count() <= 1);
    }
    cluster.set_free_mebibytes(follower, 11);
    cluster.write("after").await;
    cluster.settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_waits_until_its_sender_has_a_free_place() {
    for transport in [Transport::Direct, Transport::Grpc] {
        let (mut cluster, follower) = with_a_late_follower(transport, 31).await;
        // At both servers: the leadership may move.
        let mut taken = Vec::new();
        until("all places are taken", || {
            for node in cluster.nodes() {
                while let Some(permit) = node.network.snapshots().send_permit(TABLET).now_or_never() {
                    taken.push(permit.unwrap());
                }
            }
            taken.len() == 4
        })
        .await;
        cluster.up(follower, Some(QUICK.election_max), FirstElection::ByTimeout).await;
        tokio::time::sleep(ATTEMPTS).await;
        assert!(cluster.node(follower).machine.count() <= 1, "{transport:?}");
        drop(taken);
        cluster.write("after").await;
        cluster.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_receiver_refuses_a_third_snapshot_until_one_of_two_has_ended() {
    let cluster = Cluster::start(3, Transport::Grpc, VERY_SLOW).await;
    cluster.write("first").await;
    cluster.settled().await;
    let leader = cluster.leader().await;
    let to = cluster.servers.iter().copied().find(|server| *server != leader).unwrap();
    let term = cluster.node(leader).group.leadership().unwrap().term;
    let sender = Sender { from: leader, to, term, last: LogId { term, index: cluster.node(to).machine.last() } };
    let header = || SnapshotPart { part: Some(sender.snapshot_header(&Membership::initial(&cluster.servers))) };
    let runtime = Runtime::system("peer");
    let open = |client: &RaftClient<Channel>| {
        let (parts, received) = mpsc::channel(1);
        parts.try_send(header()).unwrap();
        let mut client = client.clone();
        let reply = async move { client.install_snapshot(ReceiverStream::new(received)).await.unwrap().into_inner() };
        (parts, Box::pin(reply))
    };
    let client = client(&cluster, to, &runtime);
    let budget = cluster.node(to).network.snapshots();
    let (one, mut first) = open(&client);
    let (_other, mut second) = open(&client);
    until("both have their places", || {
        assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
        budget.free_to_receive() == 0
    })
    .await;
    let (_parts, third) = open(&client);
    let refused = reason(third.await);
    assert!(refused.contains("receives 2 other snapshots"), "{refused}");
    // A sender that ends without the end part frees its place, and so does one that disconnects.
    drop(one);
    let refused = reason(first.await);
    assert!(refused.contains("end part is missing"), "{refused}");
    assert_eq!(budget.free_to_receive(), 1);
    drop(second);
    until("both places are free", || budget.free_to_receive() == 2).await;
    cluster.write("second").await;
    cluster.settled().await;
}

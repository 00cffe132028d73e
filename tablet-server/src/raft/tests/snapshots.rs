//! Snapshots: which follower gets one, on which disks, and how many there are at once.

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::{LogId, LogIndex, ServerId};
use ebla_model::metadata::Membership;
use ebla_proto::raft::raft_client::RaftClient;
use ebla_proto::raft::{SnapshotChunk, SnapshotPart, snapshot_part};
use ebla_runtime::Runtime;
use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::VERY_SLOW;
use super::bad_messages::{Sender, client, reason, with_a_sender_ahead_by};
use super::cluster::{Cluster, DAMAGED, FirstElection, QUICK, TABLET, Transport, until};
use crate::raft::storage::snapshot::PART_TIMEOUT;

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
    let (cluster, sender) = with_a_sender_ahead_by(0).await;
    let to = sender.to;
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

/// The client calls the service in memory: time that is paused would not wait for sockets.
#[tokio::test]
async fn a_sender_that_stops_in_the_middle_of_a_snapshot_is_given_up() {
    let cluster = Cluster::start(1, Transport::Direct, VERY_SLOW).await;
    let to = cluster.leader().await;
    let node = cluster.node(to);
    let term = node.group.leadership().unwrap().term;
    let sender = Sender { from: ServerId::new(2), to, term, last: LogId { term, index: node.machine.last() } };
    let header = sender.snapshot_header(&Membership::initial(&cluster.servers));
    let chunk = |offset: u64| {
        let data = Bytes::from_static(b"never");
        let chunk = SnapshotChunk { file: "commands".to_owned(), offset, crc32c: crc32c::crc32c(&data), data };
        SnapshotPart { part: Some(snapshot_part::Part::Chunk(chunk)) }
    };
    let (network, scratch) = (cluster.inline_network(to), cluster.scratch(to));
    let free_and_folders =
        || (network.snapshots().free_to_receive(), fs::read_dir(&scratch).map_or(0, Iterator::count));
    let mut client = RaftClient::new(network.service());
    let (parts, received) = mpsc::channel(1);

    tokio::time::pause();
    let started = tokio::time::Instant::now();
    // If the sender is never given up, the test fails instead of waiting for ever.
    let reply = tokio::time::timeout(PART_TIMEOUT * 4, client.install_snapshot(ReceiverStream::new(received)));
    let send = async {
        parts.send(SnapshotPart { part: Some(header) }).await.unwrap();
        // A slow sender is not a silent one: each part has a deadline of its own.
        for offset in [0, 5] {
            tokio::time::sleep(PART_TIMEOUT * 2 / 3).await;
            assert_eq!(free_and_folders(), (1, 1), "the snapshot is being received");
            parts.send(chunk(offset)).await.unwrap();
        }
        // The stream stays open.
        parts
    };
    let (reply, _parts) = tokio::join!(reply, send);
    let given_up = reason(reply.expect("the sender is given up").unwrap().into_inner());
    assert!(given_up.contains("no part of the snapshot has arrived for 30s"), "{given_up}");
    assert_eq!(started.elapsed().as_secs(), 70, "30 seconds after the last part");
    assert_eq!(free_and_folders(), (2, 0), "the place is free and the files are deleted");
}

/// Damaged after its sender had read it: the replica keeps what it has, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_snapshot_that_arrives_damaged_replaces_nothing() {
    let (cluster, sender) = with_a_sender_ahead_by(10).await;
    let to = sender.to;
    let header = sender.snapshot_header(&Membership::initial(&cluster.servers));
    let data = Bytes::from_static(DAMAGED);
    let chunk = SnapshotChunk { file: "commands".to_owned(), offset: 0, crc32c: crc32c::crc32c(&data), data };
    let parts = [header, snapshot_part::Part::Chunk(chunk), snapshot_part::Part::End(true)];
    let parts = futures::stream::iter(parts.map(|part| SnapshotPart { part: Some(part) }));
    let mut client = client(&cluster, to, &Runtime::system("peer"));
    let refused = reason(client.install_snapshot(parts).await.unwrap().into_inner());
    assert!(refused.contains("nothing was replaced: the list is damaged"), "{refused}");
    assert_eq!(fs::read_dir(cluster.scratch(to)).map_or(0, Iterator::count), 0, "the files are deleted");
    cluster.write("second").await;
    cluster.settled().await;
    assert_eq!(cluster.node(to).machine.count(), 2);
}

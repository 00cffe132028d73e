//! A leader whose disk hangs.

use std::sync::Arc;

use bytes::Bytes;

use super::cluster::{Cluster, Transport, now, replica_on, until};
use super::{SLOW, replica};
use crate::raft::{ProposeError, ReadIndexError};

/// openraft's core waits for the disk as soon as it has seen a later term, so it never publishes that it leads no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_disk_hangs_hands_over_and_refers_to_others() {
    for transport in [Transport::Direct, Transport::Grpc] {
        let cluster = Cluster::start(3, transport, SLOW).await;
        cluster.write("before").await;
        let leader = cluster.leader().await;
        let group = Arc::clone(&cluster.node(leader).group);
        let term = group.leadership().unwrap().term;
        until("a lease", || group.can_lease_read(now())).await;
        // Not the applied index of the status, which may not include the last entry yet.
        let applied = cluster.node(leader).machine.last();
        cluster.block_disk(leader);
        let stuck = group.propose(vec![Bytes::from_static(b"stuck")], Some(term));
        let to = *cluster.servers.iter().find(|server| **server != leader).unwrap();
        let transfer = async {
            until("the entry stored by a quorum", || group.status().committed.unwrap_or_default().index > applied)
                .await;
            let read = group.wait_for_read_index(now() + 100 * SLOW.election_max);
            tokio::join!(group.transfer_leadership(replica(to)), read)
        };
        let (stuck, (_not_known_here, read)) = tokio::join!(stuck, transfer);
        assert_eq!(stuck, [Err(ProposeError::Unknown)], "the new leader has it");
        assert!(matches!(read, Err(ReadIndexError::NotLeader { .. })), "{read:?}");
        until("the new leader", || cluster.node(to).group.leadership().is_some()).await;
        assert!(group.leadership().is_none() && !group.status().is_leader && !group.watch().borrow().is_leader);
        assert!(!group.can_lease_read(now()));
        let refused = group.wait_for_read_index(now() + 100 * SLOW.election_max).await;
        assert!(matches!(refused, Err(ReadIndexError::NotLeader { .. })), "{refused:?}");
        let refused = group.propose(vec![Bytes::from_static(b"refused")], Some(term)).await;
        assert!(matches!(refused.as_slice(), [Err(ProposeError::NotLeader { .. })]), "{refused:?}");
        cluster.write("after").await;
        assert_eq!(cluster.node(to).machine.commands(), ["before", "stuck", "after"]);
        cluster.unblock_disk(leader);
        until("the old leader follows", || group.status().leader == Some(replica_on(to))).await;
        cluster.settled().await;
    }
}

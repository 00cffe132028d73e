//! Groups of three replicas: election, loss of a leader, restart, snapshot, leadership transfer, membership, leader lease.

mod bad_messages;
mod cluster;
mod ended;
mod forced;
mod hanging_disk;
mod restarted;
mod slow_reads;
mod snapshots;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::{ReplicaId, ServerId};

use self::cluster::{Cluster, FirstElection, QUICK, Transport, now, replica_on, until};
use super::{Group, MembershipChange, MembershipError, ProposeError, RaftTimings, ReadIndexError};

/// A lease outlives the restart of a replica, on a busy machine too.
const SLOW: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_secs(3),
    election_max: Duration::from_secs(5),
};

/// Elections by timeout come so late that every earlier change of leader was intended, however busy the machine is.
const VERY_SLOW: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_secs(15),
    election_max: Duration::from_secs(25),
};

/// The random part of the election timeout is as long as the promise, and both are long for a busy machine.
const WIDE: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(5_900),
    election_max: Duration::from_secs(6),
};

fn replica(server: ServerId) -> ReplicaId {
    replica_on(server).replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_seeded_group_elects_before_the_election_timeout() {
    for transport in [Transport::Direct, Transport::Grpc] {
        let start = now();
        let cluster = Cluster::start(3, transport, VERY_SLOW).await;
        cluster.leader().await;
        let took = now() - start;
        println!("{transport:?}: three replicas started and one elected in {took:?}");
        assert!(took < VERY_SLOW.election_min, "elected at start, not by timeout");
        cluster.write("first").await;
        cluster.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_of_one_leads_itself_and_its_lease_never_expires() {
    let cluster = Cluster::start(1, Transport::Direct, QUICK).await;
    let leader = cluster.leader().await;
    cluster.write("alone").await;
    until("a lease read", || cluster.node(leader).group.can_lease_read(now())).await;
    cluster.node(leader).group.wait_for_read_index(now() + QUICK.election_max).await.unwrap();
}

/// Proposes to the group that leads, until the command is acknowledged or its outcome is unknown; true when acknowledged.
async fn propose_somewhere(groups: &[Arc<Group>], command: &Bytes) -> bool {
    loop {
        for group in groups {
            let Some(leadership) = group.leadership() else { continue };
            match group.propose(vec![command.clone()], Some(leadership.term)).await.remove(0) {
                Ok(_) => return true,
                Err(ProposeError::Unknown) => return false,
                Err(ProposeError::NotLeader { .. } | ProposeError::Stopped) => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_acknowledged_is_lost_with_a_leader() {
    const COMMANDS: u64 = 10_000;
    for transport in [Transport::Direct, Transport::Grpc] {
        let mut cluster = Cluster::start(3, transport, QUICK).await;
        let first = cluster.leader().await;
        let groups: Vec<_> = cluster.nodes().map(|node| Arc::clone(&node.group)).collect();
        let next = Arc::new(AtomicU64::new(0));
        let proposers = (0..32).map(|_| {
            let (groups, next) = (groups.clone(), Arc::clone(&next));
            async move {
                let mut acknowledged = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= COMMANDS {
                        return acknowledged;
                    }
                    let command = Bytes::from(number.to_string());
                    if propose_somewhere(&groups, &command).await {
                        acknowledged.push(command);
                    }
                }
            }
        });
        let killer = async {
            until("half of the work", || next.load(Ordering::SeqCst) > COMMANDS / 2).await;
            cluster.kill(first).await;
        };
        let (acknowledged, ()) = tokio::join!(futures::future::join_all(proposers), killer);
        let acknowledged: BTreeSet<Bytes> = acknowledged.into_iter().flatten().collect();
        println!("{transport:?}: {} of {COMMANDS} acknowledged", acknowledged.len());
        // The outcome of commands in flight at the killed leader is unknown; all others were acknowledged.
        assert!(acknowledged.len() as u64 > COMMANDS / 10 * 9);
        cluster.up(first, Some(QUICK.election_max), FirstElection::ByTimeout).await;
        cluster.write("after").await;
        cluster.settled().await;
        for node in cluster.nodes() {
            let applied: BTreeSet<Bytes> = node.machine.commands().into_iter().collect();
            assert!(acknowledged.is_subset(&applied), "an acknowledged command is gone");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_connection_breaks_is_replaced_when_the_promise_to_it_ends() {
    let mut cluster = Cluster::start(3, Transport::Grpc, WIDE).await;
    let first = cluster.leader().await;
    cluster.write("before").await;
    cluster.settled().await;
    let term = cluster.node(first).group.status().term;
    cluster.kill(first).await;
    let lost = now();
    until("another leader", || cluster.leader_now().is_some_and(|leader| leader != first)).await;
    let took = now() - lost;
    println!("another leader after {took:?}");
    assert!(took < WIDE.election_max + WIDE.election_min, "as late as for a silent leader");
    assert!(cluster.nodes().all(|node| node.group.status().term > term));
    cluster.write("after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_learns_from_replies_which_servers_lack_disk_space() {
    let cluster = Cluster::start(3, Transport::Grpc, QUICK).await;
    let set_free = |server: ServerId, free| cluster.set_free_mebibytes(server, free);
    let refuses = |leader: ServerId| {
        let capacity = &cluster.node(leader).capacity;
        capacity.refusal(leader, cluster.servers.iter().copied()).is_some()
    };
    for server in &cluster.servers {
        set_free(*server, 90);
    }
    cluster.write("before").await;
    assert!(!cluster.servers.iter().any(|server| refuses(*server)));
    // An election may change the leader at any time: the condition is that of the present one.
    let leader = cluster.leader().await;
    let mut followers = cluster.servers.iter().copied().filter(|server| *server != leader);
    let (one, other) = (followers.next().unwrap(), followers.next().unwrap());
    set_free(one, 10);
    set_free(other, 10);
    until("the present leader refuses", || cluster.leader_now().is_some_and(refuses)).await;
    set_free(other, 90);
    until("the first leader accepts", || cluster.leader_now() != Some(leader) || !refuses(leader)).await;
    cluster.write("after").await;
}

/// The batches with records that each server has written: those besides commit markers and new segments.
fn batches(cluster: &Cluster) -> Vec<u64> {
    let stats = cluster.nodes().map(|node| node.log.stats());
    stats.map(|stats| stats.batches - stats.commit_markers).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_by_itself_is_synced_once_on_each_server() {
    const WRITES: u64 = 50;
    let cluster = Cluster::start(3, Transport::Direct, SLOW).await;
    loop {
        let leader = cluster.leader().await;
        cluster.settled().await;
        let (term, before) = (cluster.node(leader).group.status().term, batches(&cluster));
        for number in 0..WRITES {
            cluster.write(&number.to_string()).await;
        }
        cluster.settled().await;
        let written: Vec<u64> = batches(&cluster).iter().zip(&before).map(|(after, before)| after - before).collect();
        // A vote is synced too: if a busy machine caused an election, count again.
        if cluster.node(leader).group.status().term == term {
            // Writes one after another: one round of syncs each. A lagging follower may sync two together.
            println!("{WRITES} writes, batches {written:?}");
            assert!(written.iter().all(|batches| *batches <= WRITES));
            assert_eq!(written.iter().max(), Some(&WRITES));
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writes_share_their_syncs() {
    const WRITES: usize = 200;
    let cluster = Cluster::start(3, Transport::Direct, SLOW).await;
    let leader = cluster.leader().await;
    cluster.settled().await;
    let before = batches(&cluster);
    let commands = (0..WRITES).map(|number| Bytes::from(number.to_string())).collect();
    let outcomes = cluster.node(leader).group.propose(commands, None).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let written: u64 = batches(&cluster).iter().zip(&before).map(|(after, before)| after - before).sum();
    println!("{WRITES} writes at once, {written} batches on three servers");
    assert!(written < WRITES as u64, "fewer than one sync per write, over all servers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_power_loss_of_all_servers_loses_no_acknowledged_write() {
    let mut cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    for number in 0..200 {
        cluster.write(&number.to_string()).await;
    }
    for server in cluster.servers.clone() {
        cluster.kill(server).await;
    }
    for server in cluster.servers.clone() {
        // All voters died together: no leader can rely on a forgotten promise.
        let first = if server.get() == 1 { FirstElection::Immediate } else { FirstElection::ByTimeout };
        cluster.up(server, None, first).await;
    }
    cluster.write("after").await;
    cluster.settled().await;
    for node in cluster.nodes() {
        assert_eq!(node.machine.count(), 201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_purge_ends_at_the_last_flushed_entry() {
    let cluster = Cluster::start(1, Transport::Direct, QUICK).await;
    let leader = cluster.leader().await;
    for number in 0..20 {
        cluster.write(&number.to_string()).await;
    }
    let node = cluster.node(leader);
    node.machine.flush();
    let flushed = node.machine.last();
    for number in 0..20 {
        cluster.write(&number.to_string()).await;
    }
    node.group.purge(flushed).await;
    until("the purge", || node.group.status().purged.is_some_and(|id| id.index == flushed)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leadership_is_transferred_under_load() {
    for transport in [Transport::Direct, Transport::Grpc] {
        let cluster = Cluster::start(3, transport, VERY_SLOW).await;
        let leader = cluster.leader().await;
        let to = *cluster.servers.iter().find(|server| **server != leader).unwrap();
        let groups: Vec<_> = cluster.nodes().map(|node| Arc::clone(&node.group)).collect();
        let stop = AtomicU64::new(0);
        let (groups, stop) = (&groups, &stop);
        let writers = futures::future::join_all((0..16).map(|writer| async move {
            let mut longest = Duration::ZERO;
            while stop.load(Ordering::SeqCst) == 0 {
                let start = now();
                propose_somewhere(groups, &Bytes::from(writer.to_string())).await;
                longest = longest.max(now() - start);
            }
            longest
        }));
        let transfer = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let start = now();
            let transferred = cluster.node(leader).group.transfer_leadership(replica(to)).await;
            until("the new leader", || cluster.leader_now() == Some(to)).await;
            let took = now() - start;
            stop.store(1, Ordering::SeqCst);
            (transferred, took)
        };
        let (longest, (transferred, took)) = tokio::join!(writers, transfer);
        transferred.unwrap();
        assert_eq!(cluster.node(leader).network.counters().read().transfers, 1);
        println!("{transport:?}: transferred in {took:?}, longest write {:?}", longest.into_iter().max().unwrap());
        assert!(took < VERY_SLOW.election_min, "without an election by timeout");
        assert!(!cluster.node(leader).group.can_lease_read(now()));
        cluster.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_proposal_for_another_term_is_refused() {
    let cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let group = &cluster.node(leader).group;
    let term = group.leadership().unwrap().term;
    let outcome = group.propose(vec![Bytes::from_static(b"stale")], Some(term.next())).await;
    assert!(matches!(outcome.as_slice(), [Err(ProposeError::NotLeader { .. })]));
    let outcome = group.propose(vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")], Some(term)).await;
    assert_eq!(outcome, [Ok(Bytes::from_static(b"1")), Ok(Bytes::from_static(b"2"))]);
    let follower = cluster.nodes().find(|node| node.group.leadership().is_none()).unwrap();
    let outcome = follower.group.propose(vec![Bytes::from_static(b"c")], None).await;
    assert_eq!(outcome, [Err(ProposeError::NotLeader { hint: Some(replica_on(leader)) })]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_need_a_lease_without_suspension_or_a_quorum() {
    let cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let group = &cluster.node(leader).group;
    until("a lease", || group.can_lease_read(now())).await;
    let suspension = group.suspend_lease_reads();
    assert!(!group.can_lease_read(now()));
    group.wait_for_read_index(now() + QUICK.election_max).await.unwrap();
    drop(suspension);
    assert!(group.can_lease_read(now()));
    for other in cluster.servers.iter().filter(|server| **server != leader) {
        assert!(!cluster.node(*other).group.can_lease_read(now()));
        let refused = cluster.node(*other).group.wait_for_read_index(now() + QUICK.election_max).await;
        assert_eq!(refused, Err(ReadIndexError::NotLeader { hint: Some(replica_on(leader)) }));
        cluster.local_peers.partition(leader, *other);
    }
    until("the end of the lease", || !group.can_lease_read(now())).await;
    assert!(group.wait_for_read_index(now() + QUICK.heartbeat).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lease_reads_are_suspended_until_the_fate_of_a_handover_is_known() {
    let cluster = Cluster::start(3, Transport::Direct, SLOW).await;
    let leader = cluster.leader().await;
    let node = cluster.node(leader);
    let term = node.group.leadership().unwrap().term;
    let is_suspended = || node.group.lease_suspensions().is_suspended(term);
    let others: Vec<_> = cluster.servers.iter().copied().filter(|server| *server != leader).collect();
    others.iter().for_each(|other| cluster.block_disk(*other));
    let command = Bytes::from_static(b"handover");
    let propose = node.group.propose_holding(command.clone(), term, node.group.suspend_lease_reads());
    assert!(tokio::time::timeout(Duration::from_millis(50), propose).await.is_err());
    assert!(is_suspended(), "the caller has gone, and the entry may still be applied");
    others.iter().for_each(|other| cluster.unblock_disk(*other));
    until("the entry applied, and lease reads", || node.machine.count() == 1 && !is_suspended()).await;
    // In no log: its fate is known at once, although the term goes on.
    let refused = node.group.propose_holding(command, term.next(), node.group.suspend_lease_reads()).await;
    assert!(matches!(refused, Err(ProposeError::NotLeader { .. })) && !is_suspended());
    assert_eq!(node.group.leadership().map(|leadership| leadership.term), Some(term));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_isolated_follower_does_not_disrupt_the_leader_when_it_returns() {
    let cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let term = cluster.node(leader).group.leadership().unwrap().term;
    let alone = *cluster.servers.iter().find(|server| **server != leader).unwrap();
    for other in &cluster.servers {
        cluster.local_peers.partition(alone, *other);
    }
    tokio::time::sleep(QUICK.election_max * 3).await;
    cluster.local_peers.heal();
    cluster.write("after").await;
    cluster.settled().await;
    assert_eq!(cluster.node(leader).group.leadership().map(|leadership| leadership.term), Some(term));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_moves_from_one_server_to_another() {
    for transport in [Transport::Direct, Transport::Grpc] {
        let mut cluster = Cluster::start(3, transport, QUICK).await;
        let leader = cluster.leader().await;
        for number in 0..50 {
            cluster.write(&number.to_string()).await;
        }
        let (leaves, comes) = (*cluster.servers.iter().find(|server| **server != leader).unwrap(), ServerId::new(4));
        cluster.add_empty(comes).await;
        let group = Arc::clone(&cluster.node(leader).group);
        let before = group.status().membership_log_id;
        let added = group.change_membership(MembershipChange::AddLearner(replica_on(comes)), before).await.unwrap();
        let caught_up = || cluster.node(comes).machine.count() == 50;
        until("the new replica has everything", caught_up).await;
        let stale = group.change_membership(MembershipChange::AddLearner(replica_on(comes)), before).await;
        assert!(matches!(stale, Err(MembershipError::Stale(_))), "{stale:?}");
        let others = cluster.servers.iter().copied().filter(|server| *server != leaves).chain([comes]);
        let voters: BTreeSet<_> = others.map(replica).collect();
        let mut without_leader = voters.clone();
        without_leader.remove(&replica(leader));
        let refused = group.change_membership(MembershipChange::Voters(without_leader), Some(added)).await;
        assert!(matches!(refused, Err(MembershipError::Refused(_))));
        let changed = group.change_membership(MembershipChange::Voters(voters.clone()), Some(added)).await.unwrap();
        let status = group.status();
        assert_eq!((status.membership.voters, status.membership_log_id), (vec![voters], Some(changed)));
        cluster.kill(leaves).await;
        cluster.write("after").await;
        cluster.settled().await;
        assert_eq!(cluster.node(comes).machine.count(), 51);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_removed_replica_that_returns_does_not_disrupt_the_leader() {
    let mut cluster = Cluster::start(3, Transport::Direct, SLOW).await;
    let leader = cluster.leader().await;
    cluster.write("before").await;
    let (leaves, comes) = (*cluster.servers.iter().find(|server| **server != leader).unwrap(), ServerId::new(4));
    cluster.kill(leaves).await;
    cluster.add_empty(comes).await;
    let group = Arc::clone(&cluster.node(leader).group);
    let before = group.status().membership_log_id;
    let added = group.change_membership(MembershipChange::AddLearner(replica_on(comes)), before).await.unwrap();
    group.catch_up(replica(comes), cluster::LIVENESS_TIMEOUT).await.unwrap();
    let others = cluster.servers.iter().copied().filter(|server| *server != leaves).chain([comes]);
    group.change_membership(MembershipChange::Voters(others.map(replica).collect()), Some(added)).await.unwrap();
    let term = group.leadership().unwrap().term;
    cluster.up(leaves, Some(SLOW.election_max), FirstElection::ByTimeout).await;
    // Long enough for it to campaign more than once.
    tokio::time::sleep(SLOW.election_max * 3).await;
    cluster.write("after").await;
    assert_eq!(group.leadership().map(|leadership| leadership.term), Some(term));
    assert!(cluster.node(leaves).group.leadership().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn catch_up_of_a_missing_learner_times_out() {
    let cluster = Cluster::start(3, Transport::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let group = Arc::clone(&cluster.node(leader).group);
    let before = group.status().membership_log_id;
    let absent = ServerId::new(4);
    let added = group.change_membership(MembershipChange::AddLearner(replica_on(absent)), before).await.unwrap();
    assert_eq!(group.catch_up(replica(absent), QUICK.election_max).await, Err(MembershipError::LearnerBehind));
    let gone = MembershipChange::RemoveLearners([replica(absent)].into());
    group.change_membership(gone, Some(added)).await.unwrap();
    assert_eq!(group.status().membership.replicas.len(), 3);
}

/// A leader, a follower that restarts, and a third replica that was partitioned from the leader: can the third one be elected
/// while the leader, now partitioned from both, still reads by its lease?
async fn two_leaders_read_at_once(vote_holdoff: Option<Duration>) -> bool {
    let mut cluster = Cluster::start(3, Transport::Direct, SLOW).await;
    let old = cluster.leader().await;
    let others: Vec<_> = cluster.servers.iter().copied().filter(|server| *server != old).collect();
    let (restarts, third) = (others[0], others[1]);
    cluster.write("before").await;
    cluster.settled().await;
    cluster.local_peers.partition(old, third);
    // The promise of the third replica expires; the other follower still keeps its own.
    tokio::time::sleep(SLOW.election_max + SLOW.heartbeat).await;
    cluster.kill(restarts).await;
    cluster.local_peers.partition(old, restarts);
    cluster.up(restarts, vote_holdoff, FirstElection::ByTimeout).await;
    let old_group = Arc::clone(&cluster.node(old).group);
    let new_group = Arc::clone(&cluster.node(third).group);
    assert!(old_group.can_lease_read(now()), "the old leader still has its lease");
    let mut both = false;
    while old_group.can_lease_read(now()) {
        new_group.campaign().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        both |= new_group.leadership().is_some() && old_group.can_lease_read(now());
    }
    until("a new leader", || new_group.leadership().is_some() || cluster.node(restarts).group.leadership().is_some())
        .await;
    both
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restarted_follower_keeps_the_promise_it_has_forgotten() {
    assert!(!two_leaders_read_at_once(Some(SLOW.election_max)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_vote_holdoff_the_promise_is_broken() {
    assert!(two_leaders_read_at_once(None).await, "this test would not notice a missing hold-off");
}

/// The followers hold a command in memory and answer only after the leader can send them nothing more: their promise counts
/// from when they received the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_late_response_extends_no_lease_and_confirms_no_read_index() {
    let cluster = Cluster::start(3, Transport::Direct, SLOW).await;
    let old = cluster.leader().await;
    let others: Vec<_> = cluster.servers.iter().copied().filter(|server| *server != old).collect();
    cluster.write("before").await;
    cluster.settled().await;
    let group = &cluster.node(old).group;
    for other in &others {
        cluster.block_disk(*other);
    }
    let (arrived, half) = (SLOW.heartbeat * 2, SLOW.election_max / 2);
    let write = group.propose(vec![Bytes::from_static(b"slow")], None);
    // The read arrives when half of the promise time is over and no follower can be reached.
    let read = async {
        tokio::time::sleep(arrived + half).await;
        group.wait_for_read_index(now() + SLOW.election_max).await
    };
    let script = async {
        tokio::time::sleep(arrived).await;
        for other in &others {
            cluster.local_peers.partition(old, *other);
        }
        let promised = now() + SLOW.election_max;
        tokio::time::sleep(half + SLOW.heartbeat).await;
        // The first response commits the entry, and openraft sends a commit notice to the other follower; then that one answers
        // the entry.
        cluster.unblock_disk(others[0]);
        until("the entry is applied", || cluster.node(old).machine.count() == 2).await;
        tokio::time::sleep(SLOW.heartbeat).await;
        cluster.unblock_disk(others[1]);
        until("the end of all promises", || now() > promised).await;
        group.can_lease_read(now())
    };
    let (written, read, can_lease_read) = tokio::join!(write, read, script);
    assert!(written[0].is_ok(), "two of three have it");
    assert!(!can_lease_read, "the lease outlives the promise");
    assert!(read.is_err(), "no quorum was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a measurement, not a check"]
async fn proposals_per_second() {
    for transport in [Transport::Direct, Transport::Grpc] {
        let cluster = Cluster::start(3, transport, RaftTimings::default()).await;
        let leader = cluster.leader().await;
        let group = &cluster.node(leader).group;
        for clients in [1_u64, 16, 128] {
            let command = Bytes::from(vec![b'x'; 1000]);
            let (start, end) = (now(), now() + Duration::from_secs(3));
            let counts = futures::future::join_all((0..clients).map(|_| async {
                let mut count = 0_u64;
                while now() < end {
                    group.propose(vec![command.clone()], None).await.remove(0).unwrap();
                    count += 1;
                }
                count
            }));
            let done: u64 = counts.await.into_iter().sum();
            let seconds = (now() - start).as_secs_f64();
            println!("{transport:?}: {clients} clients: {:.0} proposals/s of 1000 bytes", done as f64 / seconds);
        }
        let start = now();
        let reads = 100_000_u32;
        let granted = (0..reads).filter(|_| group.can_lease_read(now())).count();
        println!("{transport:?}: lease read check {:?} each, {granted} of {reads} granted", (now() - start) / reads);
    }
}

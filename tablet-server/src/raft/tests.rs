//! Groups of three replicas: election, loss of a leader, restart, snapshot, transfer, membership, and the promise behind
//! reads without asking.

mod cluster;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::{ReplicaId, ServerId};

use self::cluster::{Cluster, Links, QUICK, now, replica_on, until};
use super::{ChangeError, Group, MembershipChange, ProposeError, RaftTimings, ReadError};

/// A lease outlives the restart of a replica, on a busy machine too.
const PATIENT: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_secs(3),
    election_max: Duration::from_secs(5),
};

/// Elections by timeout come so late that what is done before one was done by decision, however busy the machine is.
const SEDATE: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_secs(15),
    election_max: Duration::from_secs(25),
};

/// The random part of an election's time is as long as the promise, and both are long for a busy machine.
const EVEN: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(100),
    election_min: Duration::from_millis(5_900),
    election_max: Duration::from_secs(6),
};

fn replica(server: ServerId) -> ReplicaId {
    replica_on(server).replica
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_seeded_group_elects_without_waiting_its_time_out() {
    for links in [Links::Direct, Links::Grpc] {
        let start = now();
        let cluster = Cluster::start(3, links, SEDATE).await;
        cluster.leader().await;
        let took = now() - start;
        println!("{links:?}: three replicas started and one elected in {took:?}");
        assert!(took < SEDATE.election_min, "by its own decision, not by timeout");
        cluster.write("first").await;
        cluster.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_of_one_leads_itself_and_reads_without_a_lease() {
    let cluster = Cluster::start(1, Links::Direct, QUICK).await;
    let leader = cluster.leader().await;
    cluster.write("alone").await;
    until("a permit", || cluster.node(leader).group.read_permit(now()).is_some()).await;
    cluster.node(leader).group.read_barrier(now() + QUICK.election_max).await.unwrap();
}

/// Proposes to whoever of the groups leads, until acknowledged or its outcome is unknown; true when acknowledged.
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
    for links in [Links::Direct, Links::Grpc] {
        let mut cluster = Cluster::start(3, links, QUICK).await;
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
        println!("{links:?}: {} of {COMMANDS} acknowledged", acknowledged.len());
        // What was under way at a leader that fell, in its log or in its hands, stays undecided; the rest went on.
        assert!(acknowledged.len() as u64 > COMMANDS / 10 * 9);
        cluster.up(first, Some(QUICK.election_max), false).await;
        cluster.write("after").await;
        cluster.settled().await;
        for node in cluster.nodes() {
            let applied: BTreeSet<Bytes> = node.machine.commands().into_iter().collect();
            assert!(acknowledged.is_subset(&applied), "an acknowledged command is gone");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_whose_connection_breaks_is_succeeded_when_the_promise_to_it_ends() {
    let mut cluster = Cluster::start(3, Links::Grpc, EVEN).await;
    let first = cluster.leader().await;
    cluster.write("before").await;
    cluster.settled().await;
    let term = cluster.node(first).group.status().term;
    cluster.kill(first).await;
    let lost = now();
    until("another leader", || cluster.leader_now().is_some_and(|leader| leader != first)).await;
    let took = now() - lost;
    println!("another leader after {took:?}");
    assert!(took < EVEN.election_max + EVEN.election_min, "as late as for a leader that is silent");
    assert!(cluster.nodes().all(|node| node.group.status().term > term));
    cluster.write("after").await;
}

/// Batches with records that each server has written: what was synced beside marks and new segments.
fn batches(cluster: &Cluster) -> Vec<u64> {
    let stats = cluster.nodes().map(|node| node.log.stats());
    stats.map(|stats| stats.batches - stats.marks).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_by_itself_is_synced_once_on_each_server() {
    const WRITES: u64 = 50;
    let cluster = Cluster::start(3, Links::Direct, PATIENT).await;
    loop {
        let leader = cluster.leader().await;
        cluster.settled().await;
        let (term, before) = (cluster.node(leader).group.status().term, batches(&cluster));
        for number in 0..WRITES {
            cluster.write(&number.to_string()).await;
        }
        cluster.settled().await;
        let written: Vec<u64> = batches(&cluster).iter().zip(&before).map(|(after, before)| after - before).collect();
        // A vote is synced too: where the machine was too busy for heartbeats, count again.
        if cluster.node(leader).group.status().term == term {
            // One after another: one round of syncs each. A follower that lags may take two at once.
            println!("{WRITES} writes, batches {written:?}");
            assert!(written.iter().all(|batches| *batches <= WRITES));
            assert_eq!(written.iter().max(), Some(&WRITES));
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_that_come_together_share_their_syncs() {
    const WRITES: usize = 200;
    let cluster = Cluster::start(3, Links::Direct, PATIENT).await;
    let leader = cluster.leader().await;
    cluster.settled().await;
    let before = batches(&cluster);
    let commands = (0..WRITES).map(|number| Bytes::from(number.to_string())).collect();
    let outcomes = cluster.node(leader).group.propose(commands, None).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let written: u64 = batches(&cluster).iter().zip(&before).map(|(after, before)| after - before).sum();
    println!("{WRITES} writes at once, {written} batches on three servers");
    assert!(written < WRITES as u64, "fewer than one sync a write, over all servers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_that_lost_its_power_has_everything_acknowledged() {
    let mut cluster = Cluster::start(3, Links::Direct, QUICK).await;
    for number in 0..200 {
        cluster.write(&number.to_string()).await;
    }
    for server in cluster.servers.clone() {
        cluster.kill(server).await;
    }
    for server in cluster.servers.clone() {
        // All voters died together: nobody can count on a forgotten promise.
        cluster.up(server, None, server.get() == 1).await;
    }
    cluster.write("after").await;
    cluster.settled().await;
    for node in cluster.nodes() {
        assert_eq!(node.machine.count(), 201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_that_the_log_no_longer_reaches_gets_a_snapshot() {
    for links in [Links::Direct, Links::Grpc] {
        let mut cluster = Cluster::start(3, links, QUICK).await;
        let leader = cluster.leader().await;
        let follower = *cluster.servers.iter().find(|server| **server != leader).unwrap();
        cluster.write("before").await;
        cluster.kill(follower).await;
        for number in 0..300 {
            cluster.write(&number.to_string()).await;
        }
        let group = Arc::clone(&cluster.node(leader).group);
        for node in cluster.nodes() {
            node.machine.flush();
            node.group.purge(200).await;
        }
        until("the purge", || group.status().purged.is_some_and(|id| id.index == 200)).await;
        cluster.up(follower, Some(QUICK.election_max), false).await;
        cluster.write("after").await;
        cluster.settled().await;
        assert_eq!(cluster.node(follower).machine.count(), 302);
        // What it got by snapshot survives its next restart.
        cluster.kill(follower).await;
        cluster.up(follower, Some(QUICK.election_max), false).await;
        cluster.write("again").await;
        cluster.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_purge_reaches_no_further_than_the_disk() {
    let cluster = Cluster::start(1, Links::Direct, QUICK).await;
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
async fn leadership_is_handed_over_under_load() {
    for links in [Links::Direct, Links::Grpc] {
        let cluster = Cluster::start(3, links, SEDATE).await;
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
        let hand_over = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let start = now();
            let handed = cluster.node(leader).group.transfer(replica(to)).await;
            until("the new leader", || cluster.leader_now() == Some(to)).await;
            let took = now() - start;
            stop.store(1, Ordering::SeqCst);
            (handed, took)
        };
        let (longest, (handed, took)) = tokio::join!(writers, hand_over);
        handed.unwrap();
        println!("{links:?}: handed over in {took:?}, longest write {:?}", longest.into_iter().max().unwrap());
        assert!(took < SEDATE.election_min, "without an election by timeout");
        assert!(cluster.node(leader).group.read_permit(now()).is_none());
        cluster.settled().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_proposal_of_another_term_is_surely_not_made() {
    let cluster = Cluster::start(3, Links::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let group = &cluster.node(leader).group;
    let term = group.leadership().unwrap().term;
    let outcome = group.propose(vec![Bytes::from_static(b"stale")], Some(term + 1)).await;
    assert!(matches!(outcome.as_slice(), [Err(ProposeError::NotLeader { .. })]));
    let outcome = group.propose(vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")], Some(term)).await;
    assert_eq!(outcome, [Ok(Bytes::from_static(b"1")), Ok(Bytes::from_static(b"2"))]);
    let follower = cluster.nodes().find(|node| node.group.leadership().is_none()).unwrap();
    let outcome = follower.group.propose(vec![Bytes::from_static(b"c")], None).await;
    assert_eq!(outcome, [Err(ProposeError::NotLeader { hint: Some(replica_on(leader)) })]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_need_a_lease_an_open_gate_or_a_majority() {
    let cluster = Cluster::start(3, Links::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let group = &cluster.node(leader).group;
    until("a lease", || group.read_permit(now()).is_some()).await;
    let closed = group.close_reads();
    assert!(group.read_permit(now()).is_none());
    group.read_barrier(now() + QUICK.election_max).await.unwrap();
    drop(closed);
    assert!(group.read_permit(now()).is_some());
    for other in cluster.servers.iter().filter(|server| **server != leader) {
        assert!(cluster.node(*other).group.read_permit(now()).is_none());
        let refused = cluster.node(*other).group.read_barrier(now() + QUICK.election_max).await;
        assert_eq!(refused, Err(ReadError::NotLeader { hint: Some(replica_on(leader)) }));
        cluster.hood.cut(leader, *other);
    }
    until("the end of the lease", || group.read_permit(now()).is_none()).await;
    assert!(group.read_barrier(now() + QUICK.heartbeat).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_isolated_follower_does_not_depose_the_leader_when_it_returns() {
    let cluster = Cluster::start(3, Links::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let term = cluster.node(leader).group.leadership().unwrap().term;
    let alone = *cluster.servers.iter().find(|server| **server != leader).unwrap();
    for other in &cluster.servers {
        cluster.hood.cut(alone, *other);
    }
    tokio::time::sleep(QUICK.election_max * 3).await;
    cluster.hood.heal();
    cluster.write("after").await;
    cluster.settled().await;
    assert_eq!(cluster.node(leader).group.leadership().map(|leadership| leadership.term), Some(term));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_moves_from_one_server_to_another() {
    for links in [Links::Direct, Links::Grpc] {
        let mut cluster = Cluster::start(3, links, QUICK).await;
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
        assert!(matches!(stale, Err(ChangeError::Stale(_))), "{stale:?}");
        let others = cluster.servers.iter().copied().filter(|server| *server != leaves).chain([comes]);
        let voters: BTreeSet<_> = others.map(replica).collect();
        let mut without_leader = voters.clone();
        without_leader.remove(&replica(leader));
        let refused = group.change_membership(MembershipChange::Voters(without_leader), Some(added)).await;
        assert!(matches!(refused, Err(ChangeError::Refused(_))));
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
async fn a_removed_replica_that_returns_does_not_depose_the_leader() {
    let mut cluster = Cluster::start(3, Links::Direct, PATIENT).await;
    let leader = cluster.leader().await;
    cluster.write("before").await;
    let (leaves, comes) = (*cluster.servers.iter().find(|server| **server != leader).unwrap(), ServerId::new(4));
    cluster.kill(leaves).await;
    cluster.add_empty(comes).await;
    let group = Arc::clone(&cluster.node(leader).group);
    let before = group.status().membership_log_id;
    let added = group.change_membership(MembershipChange::AddLearner(replica_on(comes)), before).await.unwrap();
    group.catch_up(replica(comes), cluster::LIVE).await.unwrap();
    let others = cluster.servers.iter().copied().filter(|server| *server != leaves).chain([comes]);
    group.change_membership(MembershipChange::Voters(others.map(replica).collect()), Some(added)).await.unwrap();
    let term = group.leadership().unwrap().term;
    cluster.up(leaves, Some(PATIENT.election_max), false).await;
    // Long enough for it to stand for election more than once.
    tokio::time::sleep(PATIENT.election_max * 3).await;
    cluster.write("after").await;
    assert_eq!(group.leadership().map(|leadership| leadership.term), Some(term));
    assert!(cluster.node(leaves).group.leadership().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_learner_that_is_not_there_is_not_waited_for_for_ever() {
    let cluster = Cluster::start(3, Links::Direct, QUICK).await;
    let leader = cluster.leader().await;
    let group = Arc::clone(&cluster.node(leader).group);
    let before = group.status().membership_log_id;
    let absent = ServerId::new(4);
    let added = group.change_membership(MembershipChange::AddLearner(replica_on(absent)), before).await.unwrap();
    assert_eq!(group.catch_up(replica(absent), QUICK.election_max).await, Err(ChangeError::Behind));
    let gone = MembershipChange::RemoveLearners([replica(absent)].into());
    group.change_membership(gone, Some(added)).await.unwrap();
    assert_eq!(group.status().membership.replicas.len(), 3);
}

/// A leader, a follower that restarts, and a third that had been cut off from the leader: can the third be elected while
/// the leader, now cut off from both, still reads by its lease?
async fn two_leaders_read_at_once(wait_before_voting: Option<Duration>) -> bool {
    let mut cluster = Cluster::start(3, Links::Direct, PATIENT).await;
    let old = cluster.leader().await;
    let others: Vec<_> = cluster.servers.iter().copied().filter(|server| *server != old).collect();
    let (restarts, third) = (others[0], others[1]);
    cluster.write("before").await;
    cluster.settled().await;
    cluster.hood.cut(old, third);
    // The third one's own promise runs out; the other follower still keeps its.
    tokio::time::sleep(PATIENT.election_max + PATIENT.heartbeat).await;
    cluster.kill(restarts).await;
    cluster.hood.cut(old, restarts);
    cluster.up(restarts, wait_before_voting, false).await;
    let old_group = Arc::clone(&cluster.node(old).group);
    let new_group = Arc::clone(&cluster.node(third).group);
    assert!(old_group.read_permit(now()).is_some(), "the old leader still has its lease");
    let mut both = false;
    while old_group.read_permit(now()).is_some() {
        new_group.elect().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        both |= new_group.leadership().is_some() && old_group.read_permit(now()).is_some();
    }
    until("a new leader", || new_group.leadership().is_some() || cluster.node(restarts).group.leadership().is_some())
        .await;
    both
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restarted_follower_keeps_the_promise_it_has_forgotten() {
    assert!(!two_leaders_read_at_once(Some(PATIENT.election_max)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_wait_before_voting_the_promise_is_broken() {
    assert!(two_leaders_read_at_once(None).await, "this test would not notice a missing wait");
}

/// The followers have a command in their memory and answer only after the leader can send them nothing more: what
/// they promised counts from when they got it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_that_comes_late_prolongs_no_lease_and_confirms_no_read() {
    let cluster = Cluster::start(3, Links::Direct, PATIENT).await;
    let old = cluster.leader().await;
    let others: Vec<_> = cluster.servers.iter().copied().filter(|server| *server != old).collect();
    cluster.write("before").await;
    cluster.settled().await;
    let group = &cluster.node(old).group;
    for other in &others {
        cluster.stick(*other, true);
    }
    let (arrived, half) = (PATIENT.heartbeat * 2, PATIENT.election_max / 2);
    let write = group.propose(vec![Bytes::from_static(b"slow")], None);
    // It comes when the promises are half over, and nobody can be asked about it.
    let read = async {
        tokio::time::sleep(arrived + half).await;
        group.read_barrier(now() + PATIENT.election_max).await
    };
    let script = async {
        tokio::time::sleep(arrived).await;
        for other in &others {
            cluster.hood.cut(old, *other);
        }
        let promised = now() + PATIENT.election_max;
        tokio::time::sleep(half + PATIENT.heartbeat).await;
        // One answer commits the entry, which is news for the other follower; then that one answers, to the entry.
        cluster.stick(others[0], false);
        until("the entry is applied", || cluster.node(old).machine.count() == 2).await;
        tokio::time::sleep(PATIENT.heartbeat).await;
        cluster.stick(others[1], false);
        until("the end of all promises", || now() > promised).await;
        group.read_permit(now())
    };
    let (written, read, permit) = tokio::join!(write, read, script);
    assert!(written[0].is_ok(), "two of three have it");
    assert_eq!(permit, None, "the lease is longer than what was promised");
    assert!(read.is_err(), "nobody was asked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a measurement, not a check"]
async fn proposals_per_second() {
    for links in [Links::Direct, Links::Grpc] {
        let cluster = Cluster::start(3, links, RaftTimings::default()).await;
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
            println!("{links:?}: {clients} clients: {:.0} proposals/s of 1000 bytes", done as f64 / seconds);
        }
        let start = now();
        let reads = 100_000_u32;
        let granted = (0..reads).filter(|_| group.read_permit(now()).is_some()).count();
        println!("{links:?}: read permit {:?} each, {granted} of {reads} granted", (now() - start) / reads);
    }
}

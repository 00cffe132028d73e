//! Rows are written and read through every server; requests of a master.

use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Check, Client, Modify, ReadOptions, RowWrite};
use ebla_model::id::{ClusterId, LogId, OperationId, Sequence, SessionId};
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::{Micros, Reason};
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::{control, convert};
use ebla_runtime::blocking::spawn_thread;
use ebla_runtime::{Clock, Runtime};
use ebla_tablet_server::tablet::{ModifyRequest, RowMutations, WriteId};

use super::fixture::{Fixture, GROUP, TABLE, TABLET, TIMEOUT, schema, until};
use super::rows::{add, expect_rows, increment, key, payload, scan, set, sum, write};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_are_written_and_read_through_every_server() {
    let fixture = Fixture::start(1 << 20).await;
    write(fixture.server(0).cluster(), 0, 300, 100).await;
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, 300, 100);
    }
    for n in 1..=30 {
        let cluster = fixture.server(usize::try_from(n % 3).unwrap()).cluster();
        assert_eq!(increment(cluster, &RowKey::new("counter")).await, n);
    }
    let cluster = fixture.server(1).cluster();
    let check = |then: Vec<Bytes>, otherwise: Vec<Bytes>| Check {
        row: RowKey::new("once"),
        predicate: None,
        then,
        otherwise,
        token: None,
    };
    let first = cluster.check(TABLE, check(Vec::new(), vec![set("q", "x")]), cluster.deadline(TIMEOUT)).await;
    assert!(!first.unwrap());
    let second = cluster.check(TABLE, check(vec![set("q", "y")], Vec::new()), cluster.deadline(TIMEOUT)).await;
    assert!(second.unwrap());
    let unknown = RowWrite {
        row: key(1),
        mutations: vec![convert::mutation_to_bytes(&Mutation::DeleteFamily { family: "nope".to_owned() })],
        token: None,
    };
    let refused = cluster.mutate_row(TABLE, unknown, cluster.deadline(TIMEOUT)).await.unwrap_err();
    assert_eq!(refused.reason, Reason::NotFoundFamily);
    fixture.stop().await;
}

fn write_id(sequence: u64) -> WriteId {
    let (session, sequence) = (SessionId::new(u128::MAX), Sequence::new(sequence));
    WriteId { session, sequence, lowest_outstanding: Sequence::new(1) }
}

/// Writes `row` directly to the tablet, like a former release that did not validate keys.
async fn plant(fixture: &Fixture, row: RowKey, sequence: u64) {
    let leader = fixture.leader(TABLET).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    let mutation = Mutation::SetCell {
        family: "cf".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(b"planted"),
    };
    let write = RowMutations { id: write_id(sequence), row, mutations: vec![mutation], token: None };
    tablet.write(tablet.descriptor().unwrap().generation, vec![write], TIMEOUT).await.unwrap()[0].as_ref().unwrap();
}

/// Its response was lost, and the family was removed before it was sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_that_was_applied_is_acknowledged_after_its_family_is_gone() {
    let fixture = Fixture::start(1 << 20).await;
    plant(&fixture, key(1), 1).await;
    let leader = fixture.leader(TABLET).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    let mut without = schema();
    without.version = without.version.next();
    without.families.retain(|family| family.name.as_str() != "cf");
    tablet.set_schema(without, TIMEOUT).await.unwrap();
    plant(&fixture, key(1), 1).await;
    let id = write_id(2);
    let mutations = vec![convert::mutation_from_bytes(&set("q", "x")).unwrap()];
    let write = RowMutations { id, row: key(1), mutations, token: None };
    let refused = tablet.write(tablet.descriptor().unwrap().generation, vec![write], TIMEOUT).await.unwrap();
    assert_eq!(refused[0].as_ref().unwrap_err().error.reason, Reason::NotFoundFamily);
    fixture.stop().await;
}

/// It may have been replaced, and a later leader may have added the family or made the value a counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_cannot_reach_the_others_refuses_no_write_by_what_it_has_applied() {
    let mut fixture = Fixture::start(1 << 20).await;
    plant(&fixture, key(1), 1).await;
    let leader = fixture.leader(TABLET).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    let generation = tablet.descriptor().unwrap().generation;
    let refused = async |timeout| {
        let qualifier = Bytes::from_static(b"q");
        let mutation = Mutation::SetCell {
            family: "none".to_owned(),
            qualifier: qualifier.clone(),
            timestamp: WriteTime::Server,
            value: Bytes::new(),
        };
        let write = RowMutations { id: write_id(2), row: key(1), mutations: vec![mutation], token: None };
        let unknown = tablet.write(generation, vec![write], timeout).await.map(|mut rows| rows.remove(0));
        let rules = vec![Rule { family: "cf".to_owned(), qualifier, operation: Operation::Increment(1) }];
        let modify = ModifyRequest { generation, id: write_id(3), row: key(1), rules, token: None };
        let no_counter = tablet.modify(modify, timeout).await;
        [unknown.flatten().unwrap_err(), no_counter.unwrap_err()].map(|failure| failure.error.reason)
    };
    assert_eq!(refused(TIMEOUT).await, [Reason::NotFoundFamily, Reason::FailedPrecondition]);
    for at in [(leader + 1) % 3, (leader + 2) % 3] {
        fixture.servers[at].take().unwrap().abort().await;
    }
    until("the end of the lease", || !tablet.group().raft().can_lease_read(Clock::system().monotonic())).await;
    for reason in refused(Duration::from_millis(200)).await {
        assert!(matches!(reason, Reason::Deadline | Reason::NotLeader | Reason::NoLeader), "{reason}");
    }
    fixture.stop().await;
}

/// The errors of a cluster handle, which validates no keys, for writes of these rows: all at once, then each by each call.
async fn write_unvalidated(fixture: &Fixture, rows: &[RowKey]) -> Vec<Option<Reason>> {
    let cluster = fixture.server(0).cluster();
    let deadline = || cluster.deadline(TIMEOUT);
    let write = |row: &RowKey| RowWrite { row: row.clone(), mutations: vec![set("q", "v")], token: None };
    let mut answers = cluster.mutate_rows(TABLE, rows.iter().map(write).collect(), deadline()).await;
    for row in rows {
        answers.push(cluster.mutate_row(TABLE, write(row), deadline()).await);
        let then = vec![set("q", "v")];
        let check = Check { row: row.clone(), predicate: None, then: then.clone(), otherwise: then, token: None };
        answers.push(cluster.check(TABLE, check, deadline()).await.map(drop));
        let rule = Rule { family: "cf".to_owned(), qualifier: Bytes::new(), operation: Operation::Increment(1) };
        let modify = Modify { row: row.clone(), rules: vec![convert::rule_to_bytes(&rule)], token: None };
        answers.push(cluster.modify(TABLE, &modify, deadline()).await.map(drop));
    }
    answers.into_iter().map(|answer| answer.err().map(|error| error.reason)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_with_illegal_keys_are_not_written_but_existing_ones_can_be_deleted() {
    let fixture = Fixture::start(1 << 20).await;
    let (longest, too_long) = (RowKey::new(vec![b'k'; 4096]), RowKey::new(vec![b'k'; 4097]));
    assert_eq!(write_unvalidated(&fixture, std::slice::from_ref(&longest)).await, [None; 4]);
    let refused = Some(Reason::InvalidArgument);
    assert_eq!(write_unvalidated(&fixture, &[RowKey::EMPTY, too_long.clone()]).await, [refused; 8]);
    let mixed = write_unvalidated(&fixture, &[RowKey::EMPTY, longest.clone()]).await;
    assert_eq!(mixed[..2], [refused, None], "one bad row does not hold up the others");

    plant(&fixture, RowKey::EMPTY, 1).await;
    plant(&fixture, too_long.clone(), 2).await;
    let cluster = fixture.server(1).cluster();
    let keys = async || -> Vec<RowKey> { scan(cluster).await.into_iter().map(|(row, _value)| row).collect() };
    assert_eq!(keys().await, [RowKey::EMPTY, longest.clone(), too_long.clone()]);
    let shown = public_keys(fixture.server(2).address()).await;
    assert_eq!(shown, [longest.clone(), too_long.clone()], "clients of the public API treat an empty key as an error");

    let delete = convert::mutation_to_bytes(&Mutation::DeleteRow);
    for row in [RowKey::EMPTY, too_long] {
        let both = RowWrite { row: row.clone(), mutations: vec![delete.clone(), set("q", "v")], token: None };
        let answer = cluster.mutate_row(TABLE, both, cluster.deadline(TIMEOUT)).await;
        assert_eq!(answer.unwrap_err().reason, Reason::InvalidArgument, "a deletion alone");
        let alone = RowWrite { row, mutations: vec![delete.clone()], token: None };
        cluster.mutate_row(TABLE, alone, cluster.deadline(TIMEOUT)).await.unwrap();
    }
    assert_eq!(keys().await, [longest]);
    fixture.stop().await;
}

/// The keys of a full scan through the public API.
async fn public_keys(address: &str) -> Vec<RowKey> {
    let client = Client::endpoint(address, Runtime::system("public"));
    let rows = client.table(&schema().name).read_rows(RowSet::all(), ReadOptions::default()).await.unwrap();
    rows.into_iter().map(|row| row.key).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_additions_are_applied_once_each_and_survive_a_failover() {
    let mut fixture = Fixture::start(1 << 20).await;
    let mut adders = tokio::task::JoinSet::new();
    for at in 0..3 {
        let cluster = fixture.server(at).cluster().clone();
        adders.spawn(async move {
            for _ in 0..20 {
                let rows = (1..4).map(|n| RowWrite { row: key(n), mutations: vec![add(1), add(2)], token: None });
                for result in cluster.mutate_rows(TABLE, rows.collect(), cluster.deadline(TIMEOUT)).await {
                    result.unwrap();
                }
            }
        });
    }
    adders.join_all().await;
    let lost = fixture.leader(TABLET).await;
    fixture.servers[lost].take().unwrap().abort().await;
    let cluster = fixture.server((lost + 1) % 3).cluster();
    for row in 1..4 {
        assert_eq!(sum(cluster, row).await, 180);
    }
    // Plain writes are refused in an aggregate family.
    let set = convert::mutation_to_bytes(&Mutation::SetCell {
        family: "sum".to_owned(),
        qualifier: Bytes::new(),
        timestamp: WriteTime::Server,
        value: Bytes::new(),
    });
    let write = RowWrite { row: key(1), mutations: vec![add(1), set], token: None };
    let refused = cluster.mutate_row(TABLE, write, cluster.deadline(TIMEOUT)).await.unwrap_err();
    assert_eq!(refused.reason, Reason::InvalidArgument);
    assert_eq!(sum(cluster, 1).await, 180, "nothing of it was written");
    fixture.stop().await;
}

/// More conditional writes than the read pool has threads wait for the state of the group, as during a long checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_are_served_while_conditional_writes_wait_for_a_held_state() {
    let fixture = Fixture::start(1 << 20).await;
    let leader = fixture.leader(TABLET).await;
    let server = fixture.server(leader);
    write(server.cluster(), 0, 20, 100).await;
    let group = server.tablet_manager().group(GROUP).unwrap();
    let (holding, held) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let state_machine = std::sync::Arc::clone(group.state_machine());
    let holder = spawn_thread("holder", move || {
        state_machine.with_state(|_state| {
            holding.send(()).unwrap();
            released.recv().unwrap();
        });
    });
    held.recv().unwrap();
    let mut counters = tokio::task::JoinSet::new();
    for n in 0..16 {
        let cluster = server.cluster().clone();
        counters.spawn(async move { increment(&cluster, &RowKey::new(format!("counter-{n}"))).await });
    }
    // They have begun to wait.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let rows = tokio::time::timeout(Duration::from_secs(20), scan(server.cluster())).await;
    assert_eq!(rows.unwrap().len(), 20, "a read needs a thread of the pool");
    release.send(()).unwrap();
    holder.unwrap().join();
    while let Some(counted) = counters.join_next().await {
        assert_eq!(counted.unwrap(), 1);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn servers_of_one_process_need_no_address_for_each_other() {
    let nobody = "127.0.0.1:9".to_owned();
    let fixture = Fixture::start_at(1 << 20, Some(nobody)).await;
    for at in 0..3 {
        let cluster = fixture.server(at).cluster();
        write(cluster, 0, 30, 100).await;
        expect_rows(&scan(cluster).await, 30, 100);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_are_accepted_only_from_the_newest_master_of_this_cluster() {
    let fixture = Fixture::start(1 << 20).await;
    let mut control = ControlClient::new(Runtime::system("test").net.channel(fixture.server(0).address()));
    let order = |cluster: u128, epoch: u64| control::ReportRequest {
        fence: Some(control::Fence {
            cluster: Bytes::copy_from_slice(&ClusterId::new(cluster).to_bytes()),
            master_epoch: epoch,
        }),
    };
    let report = control.report(order(7, 5)).await.unwrap().into_inner();
    assert_eq!(report.replicas.len(), 2, "METADATA's group, and that of the table");
    assert_eq!(report.replicas.iter().map(|replica| replica.tablets.len()).sum::<usize>(), 3);
    assert!(control.report(order(8, 6)).await.is_err(), "another cluster");
    let stale = control.report(order(7, 4)).await.unwrap_err();
    assert_eq!(ebla_proto::status::from_status(&stale).0.reason, Reason::StaleEpoch);

    // A dropped replica is not created again.
    let manager = fixture.server(0).tablet_manager();
    let replica = manager.tablet(TABLET).unwrap().replica();
    let fence = order(7, 5).fence;
    let membership_log_id = Some(convert::log_id_to_proto(LogId::SEED));
    let drop_it = control::DropReplicaRequest {
        fence: fence.clone(),
        group: GROUP.get(),
        replica: replica.get(),
        membership_log_id,
    };
    // Not by an order that knows only an earlier membership than the replica itself.
    let earlier = Some(convert::log_id_to_proto(LogId::default()));
    let old_order = control::DropReplicaRequest { membership_log_id: earlier, ..drop_it.clone() };
    let refused = control.drop_replica(old_order).await.unwrap_err();
    assert_eq!(ebla_proto::status::from_status(&refused).0.reason, Reason::WrongTablet);
    assert!(manager.tablet(TABLET).is_some());
    control.drop_replica(drop_it.clone()).await.unwrap();
    control.drop_replica(drop_it).await.unwrap();
    assert!(manager.tablet(TABLET).is_none());
    let (group, of_another) = {
        let other = fixture.server(1).tablet_manager().group(GROUP).unwrap();
        (other.descriptor(), other.replica())
    };
    let make = control::CreateReplicaRequest {
        empty: false,
        fence,
        group: Some(convert::group_to_proto(&group)),
        replica: replica.get(),
    };
    // Nor is one that is a member on another server: an order for a server that had this address before.
    let order = control::CreateReplicaRequest { empty: true, replica: of_another.get(), ..make.clone() };
    let refused = ebla_proto::status::from_status(&control.create_replica(order).await.unwrap_err()).0;
    assert!(refused.message.contains("the replica is a member on server"), "{refused}");
    assert!(manager.group(GROUP).is_none());
    assert_eq!(control.create_replica(make).await.unwrap().into_inner().outcome, "removed");
    // Two of three replicas continue.
    write(fixture.server(0).cluster(), 0, 20, 100).await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_tablet_refuses_writes() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 20, 100).await;
    let leader = fixture.leader(TABLET).await;
    let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
    tablet.drop_range(OperationId::new(1), KeyRange::prefix(b"row-00001"), TIMEOUT).await.unwrap();
    tablet.drop_range(OperationId::new(1), KeyRange::prefix(b"row-00001"), TIMEOUT).await.unwrap();
    let twice = tablet.drop_range(OperationId::new(1), KeyRange::all(), TIMEOUT).await.unwrap_err();
    assert_eq!(twice.error.reason, Reason::Busy, "another operation with the same number is not acknowledged");
    assert_eq!(scan(cluster).await.len(), 10);
    tablet.group().drop_table(OperationId::new(2), TABLE, TIMEOUT).await.unwrap();
    tablet.group().drop_table(OperationId::new(2), TABLE, TIMEOUT).await.unwrap();
    let gone = tablet.descriptor().unwrap_err();
    assert_eq!(gone.error.reason, Reason::TabletDropped);
    let write = RowWrite { row: key(1), mutations: vec![set("q", "x")], token: None };
    let refused = cluster.mutate_row(TABLE, write, cluster.deadline(Duration::from_secs(2))).await;
    assert!(refused.is_err());
    fixture.stop().await;
}

/// A write that was evaluated before its row is dropped must not be applied afterwards: the row would have a part of what was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drop_of_rows_waits_for_writes_that_were_evaluated() {
    const ROUNDS: u64 = 3;
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    let counter = RowKey::new("counter");
    for round in 1..=ROUNDS {
        while increment(cluster, &counter).await < 5 {}
        let leader = fixture.leader(TABLET).await;
        let tablet = fixture.server(leader).tablet_manager().tablet(TABLET).unwrap();
        // So slow that the next writes wait for the first one in the queue.
        fixture.sync_delays.iter().for_each(|delay| delay.set(Duration::from_millis(100)));
        let first = write(cluster, 0, 1, 100);
        let evaluated = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            increment(cluster, &counter).await
        };
        let drop_rows = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            tablet.drop_range(OperationId::new(round), KeyRange::prefix(b"counter"), TIMEOUT).await.unwrap();
        };
        let ((), incremented, ()) = tokio::join!(first, evaluated, drop_rows);
        fixture.sync_delays.iter().for_each(|delay| delay.set(Duration::ZERO));
        let next = increment(cluster, &counter).await;
        // It was incremented before the drop, or after it.
        assert!((incremented, next) == (6, 1) || (incremented, next) == (1, 2), "{incremented}, then {next}");
    }
    fixture.stop().await;
}

/// Overwrites in a family that keeps one version: 24 megabytes, of which only the last twenty values are visible.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn excess_versions_are_removed_from_every_replica() {
    const ROWS: u32 = 20;
    const ROUNDS: u32 = 1_200;
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    let value = |row: u32, round: u32| payload(row * ROUNDS + round, 1000);
    for round in 0..ROUNDS {
        let overwrite = |row| Mutation::SetCell {
            family: "last".to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp: WriteTime::At(Micros::from_millis(i64::from(round) + 1)),
            value: value(row, round).into(),
        };
        let write =
            |row| RowWrite { row: key(row), mutations: vec![convert::mutation_to_bytes(&overwrite(row))], token: None };
        let rows = (0..ROWS).map(write).collect();
        for result in cluster.mutate_rows(TABLE, rows, cluster.deadline(TIMEOUT)).await {
            result.unwrap();
        }
    }
    // Versions since the last pass remain: the next pass waits for 4,096 cells.
    let most = u64::from(ROWS) + 4_096;
    let deadline = cluster.deadline(TIMEOUT);
    for at in 0..3 {
        let tablet = fixture.server(at).tablet_manager().tablet(TABLET).unwrap();
        loop {
            let cells = tablet.digest().await.unwrap().cells;
            if cells <= most {
                break;
            }
            assert!(!deadline.has_passed(&Clock::system()), "{cells} cells on server {at}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let rows = scan(cluster).await;
    let last: Vec<_> = (0..ROWS).map(|row| (key(row), Bytes::from(value(row, ROUNDS - 1)))).collect();
    assert_eq!(rows, last);
    fixture.stop().await;
}

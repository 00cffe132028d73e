//! Tests of the directory over Chubby, and of METADATA writes to a fake cluster.

#[expect(dead_code, reason = "the tests of the client use the rest of it")]
#[path = "../../client/src/tests/fake.rs"]
mod fake;

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::testing::faulty::FaultyChubby;
use ebla_chubby::{Chubby, Write, paths};
use ebla_client as client;
use ebla_client::locate::LeaderHint;
use ebla_client::{Cluster, ClusterOptions, Directory, Freshness};
use ebla_model::id::{ServerId, TableId, TabletId, Term};
use ebla_model::metadata::{TabletDescriptor, first_tablets};
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventCause, TabletEventKind};
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;

use self::fake::{Fake, TABLE, key};
use crate::{Annotations, CasOutcome, ChubbyDirectory, Metadata, PutOutcome};

const TIMEOUT: Duration = Duration::from_secs(60);

fn server(id: u64, address: &str) -> Write {
    let server = record::Server { server: id, address: address.to_owned(), ..Default::default() };
    Write::put(paths::server(ServerId::new(id)), convert::encode_record(server))
}

fn schema(name: &TableName, id: u64, state: TableState) -> TableSchema {
    TableSchema { state, ..TableSchema::new(TableId::new(id), name.clone(), Vec::new()).unwrap() }
}

#[tokio::test]
async fn it_reports_the_last_master_while_none_is_active() {
    let runtime = Runtime::system("test");
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
    let directory = ChubbyDirectory::start(chubby.shared(), &runtime);
    directory.ready().await;
    assert_eq!(directory.last_master(), None, "none was ever active");
    let mut changes = directory.changes();
    let master = record::Master { address: "master:1".to_owned(), ..Default::default() };
    let write = Write::put(paths::MASTER, convert::encode_record(master));
    chubby.transact(Vec::new(), vec![write]).await.unwrap();
    while directory.master().is_none() {
        changes.changed().await.unwrap();
    }
    assert_eq!(directory.last_master(), None, "one is active");
    chubby.transact(Vec::new(), vec![Write::delete(paths::MASTER)]).await.unwrap();
    while directory.last_master().is_none() {
        changes.changed().await.unwrap();
    }
    assert_eq!(directory.last_master().unwrap().0.address, "master:1");
}

#[tokio::test]
async fn it_knows_for_how_long_it_has_not_watched_chubby() {
    let runtime = Runtime::system("test");
    let chubby = FaultyChubby::new(Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared());
    chubby.start_outage();
    let directory = ChubbyDirectory::start(chubby.shared(), &runtime);
    let grows = async {
        while directory.unwatched_for() <= Duration::from_millis(50) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, grows).await.unwrap();
    chubby.end_outage();
    directory.ready().await;
    assert_eq!(directory.unwatched_for(), Duration::ZERO);
}

#[tokio::test]
async fn it_follows_chubby_and_keeps_addresses_of_servers_without_a_lease() {
    let runtime = Runtime::system("test");
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
    let name: TableName = "projects/p/instances/i/tables/t".parse().unwrap();
    let [root, _metadata] = first_tablets(&[ServerId::new(1)]);
    let writes = vec![
        Write::put(paths::ROOT, convert::descriptor_to_bytes(&root)),
        server(1, "one:1"),
        Write::put(paths::name(&name), "7"),
        Write::put(paths::table(TableId::new(7)), convert::schema_to_bytes(&schema(&name, 7, TableState::Creating))),
    ];
    chubby.transact(Vec::new(), writes).await.unwrap();
    let directory = ChubbyDirectory::start(chubby.shared(), &runtime);
    directory.ready().await;
    assert_eq!(directory.root().await.unwrap(), root);
    assert_eq!(directory.table(&name, Freshness::Cached).await.unwrap(), None, "the table is still being created");

    let mut changes = directory.changes();
    let active = schema(&name, 7, TableState::Active);
    let writes = vec![
        Write::put(paths::table(TableId::new(7)), convert::schema_to_bytes(&active)),
        Write::delete(paths::server(ServerId::new(1))),
        server(2, "two:1"),
    ];
    chubby.transact(Vec::new(), writes).await.unwrap();
    while directory.servers().iter().all(|server| server.server != 2) {
        changes.changed().await.unwrap();
    }
    assert_eq!(directory.table(&name, Freshness::Cached).await.unwrap(), Some(TableId::new(7)));
    assert_eq!(directory.servers().len(), 1);
    assert_eq!(directory.address(ServerId::new(1)).await.as_deref(), Some("one:1"));
    assert_eq!(directory.servers_that_may_run().len(), 2, "leases may have been lost before the watch");
    assert_eq!(directory.highest_server(), ServerId::new(2));

    let absent: TableName = "projects/p/instances/i/tables/absent".parse().unwrap();
    assert_eq!(directory.table(&absent, Freshness::Fresh).await.unwrap(), None);
    runtime.tasks.stop(Duration::from_secs(30)).await;
    assert_eq!(directory.table(&name, Freshness::Cached).await.unwrap(), Some(TableId::new(7)));
}

#[tokio::test]
async fn metadata_is_never_overwritten_by_an_older_descriptor() {
    let fake = Fake::new(&[]);
    let (directory, transport) = (Arc::new(fake.clone()), Arc::new(fake.clone()));
    let options = ClusterOptions { directory, transport, runtime: Runtime::system("test"), home: None };
    let cluster = Cluster::new(options);
    let metadata = Metadata::new(cluster.clone());
    // Only a hang reaches it.
    let far = || cluster.deadline(Duration::from_secs(30));
    let server = ServerId::new(1);
    let parent = metadata.read_table(TABLE, far()).await.unwrap().remove(0).descriptor;
    let child = TabletId::new(99);
    let (left, right) = parent.split(&key("m"), child).unwrap();
    let annotations = Annotations {
        leader: Some(LeaderHint { server, term: Term::new(7) }),
        events: vec![NewTabletEvent {
            kind: TabletEventKind::Split,
            cause: TabletEventCause::Size,
            detail: "of tablet 1".to_owned(),
        }],
        server: Some(server),
    };
    metadata.put_split(&left, &right, &annotations, far()).await.unwrap();
    metadata.put_split(&left, &right, &annotations, far()).await.unwrap();
    let late = metadata.put_descriptor(&parent, &Annotations::default(), far()).await.unwrap();
    assert_eq!(late, CasOutcome::Superseded(right.clone()));
    assert_eq!(metadata.delete(&parent, far()).await.unwrap(), CasOutcome::Superseded(right.clone()));
    let listed = metadata.read_table(TABLE, far()).await.unwrap();
    let tablets: Vec<&TabletDescriptor> = listed.iter().map(|entry| &entry.descriptor).collect();
    assert_eq!(tablets, [&left, &right]);
    assert!(listed.iter().all(|entry| entry.leader.is_some_and(|leader| leader.term == Term::new(7))));
    // Written twice: by the leader, and for the caller.
    let events = cluster.read_tablet_events(ebla_model::metadata::table_range(TABLE), far()).await.unwrap();
    let shown: Vec<_> = events.iter().map(|row| (row.descriptor.tablet, row.events.len())).collect();
    assert_eq!(shown, [(left.tablet, 2), (right.tablet, 2)]);
    let first = &events[0].events[0];
    assert_eq!((first.what.as_str(), first.cause.as_str(), first.tablet), ("split", "size", left.tablet));
    assert_eq!((first.server, first.detail.as_str()), (Some(server), "of tablet 1"));
    assert_eq!(metadata.delete(&left, far()).await.unwrap(), CasOutcome::Applied);
    assert_eq!(metadata.delete(&left, far()).await.unwrap(), CasOutcome::Applied);
    assert_eq!(metadata.read_table(TABLE, far()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_row_of_a_merged_tablet_replaces_the_rows_of_both() {
    let fake = Fake::new(&["m"]);
    let (directory, transport) = (Arc::new(fake.clone()), Arc::new(fake.clone()));
    let options = ClusterOptions { directory, transport, runtime: Runtime::system("test"), home: None };
    let cluster = Cluster::new(options);
    let metadata = Metadata::new(cluster.clone());
    let far = || cluster.deadline(Duration::from_secs(30));
    let listed = async || -> Vec<TabletDescriptor> {
        metadata.read_table(TABLE, far()).await.unwrap().into_iter().map(|entry| entry.descriptor).collect()
    };
    let [left, right]: [TabletDescriptor; 2] = listed().await.try_into().unwrap();
    let merged = right.merge(&TabletDescriptor { group: right.group, ..left.clone() }).unwrap();
    let annotations = Annotations::default();
    for _again in 0..2 {
        assert_eq!(metadata.put_tablet(&merged, &annotations, far()).await.unwrap(), PutOutcome::Written);
        assert_eq!(listed().await, std::slice::from_ref(&merged));
    }
    // A delayed write of the tablet that is gone: the next writer of the merged tablet's row removes it.
    metadata.put_descriptor(&left, &annotations, far()).await.unwrap();
    assert_eq!(listed().await.len(), 2);
    metadata.put_tablet(&merged, &annotations, far()).await.unwrap();
    assert_eq!(listed().await, std::slice::from_ref(&merged));
    // Split again: the right half waits, and a late writer of the merged tablet removes nothing.
    let (low, high) = merged.split(&key("c"), TabletId::new(99)).unwrap();
    assert_eq!(metadata.put_tablet(&high, &annotations, far()).await.unwrap(), PutOutcome::Waiting);
    for half in [&low, &high] {
        assert_eq!(metadata.put_tablet(half, &annotations, far()).await.unwrap(), PutOutcome::Written);
    }
    metadata.put_tablet(&merged, &annotations, far()).await.unwrap();
    assert_eq!(listed().await, [low, high]);
}

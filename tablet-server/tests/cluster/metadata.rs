//! Tablets of METADATA split behind rows, and lookups continue in the next one.

use std::collections::BTreeMap;

use ebla_client::Client;
use ebla_client::locate::Level;
use ebla_model::Reason;
use ebla_model::id::{GroupId, TableId, TabletId};
use ebla_model::metadata::{TabletDescriptor, root_range, table_range};
use ebla_runtime::{Clock, Runtime};

use super::fixture::{Fixture, GROUP, TABLE, TABLET, TIMEOUT, schema};
use super::rows::{expect_rows, key, scan, write};

/// Returns when METADATA lists these tablets of a table.
async fn listed(fixture: &Fixture, table: TableId, expected: &[&TabletDescriptor]) {
    let cluster = fixture.server(0).cluster();
    let deadline = cluster.deadline(TIMEOUT);
    loop {
        let rows = cluster.read_metadata(table_range(table), deadline).await.unwrap();
        // A master lists the root tablet too.
        let listed = rows.iter().map(|row| &row.descriptor).filter(|tablet| tablet.tablet != TabletId::ROOT);
        let listed: Vec<_> = listed.collect();
        if listed == expected {
            return;
        }
        assert!(!deadline.has_passed(&Clock::system()), "METADATA lists {listed:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

async fn client(fixture: &Fixture) -> Client {
    Client::connect_cluster(fixture.server(1).address(), Runtime::system("client")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lookup_continues_in_the_next_tablet_of_metadata() {
    let fixture = Fixture::start(1 << 20).await;
    let cluster = fixture.server(0).cluster();
    write(cluster, 0, 400, 200).await;
    let group = fixture.led_group(GROUP).await;
    let first = group.tablet(TABLET).unwrap();
    let (_, c) = first.split(Some(key(200)), TIMEOUT).await.unwrap();
    let (a, b) = first.split(Some(key(100)), TIMEOUT).await.unwrap();
    listed(&fixture, TABLE, &[&a, &b, &c]).await;

    // The rows of a and b are in one tablet, that of c in the next one.
    let metadata = fixture.led_group(GroupId::METADATA).await;
    let second = metadata.tablet(TabletId::FIRST_METADATA).unwrap();
    let (left, right) = second.split(Some(b.row_key().successor()), TIMEOUT).await.unwrap();
    listed(&fixture, TableId::METADATA, &[&left, &right]).await;
    let one_row = metadata.tablet(right.tablet).unwrap().split(None, TIMEOUT).await.unwrap_err();
    assert_eq!(one_row.error.reason, Reason::FailedPrecondition);

    // One lookup finds all of them.
    let name = schema().name;
    let together = client(&fixture).await;
    for number in [50, 150, 250] {
        together.locate(&name, &key(number)).await.unwrap();
    }
    let counts = together.low_level().unwrap().lookup_counts();
    assert_eq!(counts.found().values().sum::<u64>(), 1, "{counts:?}");

    // The row of b is gone. A lookup of its keys begins in the first tablet and finds the row in the second, by one round trip.
    let membership = group.descriptor().membership_log_id;
    let merged = group.merge(membership, (b.tablet, c.tablet), TIMEOUT).await.unwrap();
    listed(&fixture, TABLE, &[&a, &merged]).await;
    let found = client(&fixture).await.locate(&name, &key(150)).await.unwrap();
    assert_eq!(*found.tablet.descriptor, merged);
    let hop = found.trace.iter().find(|hop| hop.level == Level::Tablet).unwrap();
    assert_eq!(hop.round_trips, 1, "{found:?}");

    // They merge again; the root tablet never does.
    let membership = metadata.descriptor().membership_log_id;
    let refused = metadata.merge(membership, (TabletId::ROOT, left.tablet), TIMEOUT).await.unwrap_err();
    assert_eq!(refused.error.reason, Reason::FailedPrecondition);
    let whole = metadata.merge(membership, (left.tablet, right.tablet), TIMEOUT).await.unwrap();
    assert_eq!(whole.range.start(), root_range().end().unwrap());
    listed(&fixture, TableId::METADATA, &[&whole]).await;
    // A server chooses the place behind a row.
    let (left, right) = metadata.tablet(whole.tablet).unwrap().split(None, TIMEOUT).await.unwrap();
    assert_eq!(left.range.end(), Some(&a.row_key().successor()));
    listed(&fixture, TableId::METADATA, &[&left, &right]).await;
    write(cluster, 0, 400, 300).await;
    for at in 0..3 {
        expect_rows(&scan(fixture.server(at).cluster()).await, 400, 300);
    }
    let counts: Vec<BTreeMap<u32, u64>> =
        (0..3).map(|at| fixture.server(at).cluster().lookup_counts().found().clone()).collect();
    assert!(counts.iter().flat_map(BTreeMap::keys).all(|round_trips| *round_trips <= 6), "{counts:?}");
    fixture.stop().await;
}

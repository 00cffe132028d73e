//! METADATA at size: twenty tablets of its second level, while tables are created, split, merged, moved and deleted, METADATA's own tablets
//! split and merge, and a master is replaced. Then lost rows and the lost location of the root tablet are restored.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, also in its helpers")]

use std::collections::BTreeSet;

use ebla_chubby::{Write, paths};
use ebla_client::admin::{Admin, CheckDepth, CheckMode};
use ebla_client::locate::Level;
use ebla_client::metadata::MetadataTablet;
use ebla_client::{Client, Cluster, MetadataRow, RowWrite};
use ebla_model::error::Reason;
use ebla_model::id::{Generation, GroupId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_routing::Metadata;
use ebla_runtime::units::ByteSize;

use crate::life::{TIMEOUT, TestCluster, name, set, soon, start_master};

/// The size above which servers split a tablet of METADATA by themselves: a few of its rows.
const SPLIT_BYTES: u64 = 4 << 10;
const SECOND_LEVEL: usize = 20;
const TABLES: usize = 5;
const TABLETS: usize = 24;
/// The paper: at most six round trips when all levels of the cache are stale.
const ROUND_TRIPS_MAX: u32 = 6;

fn row(number: usize) -> RowKey {
    RowKey::new(format!("{number:03}"))
}

async fn create(admin: &Admin, name: &TableName) {
    let splits: Vec<RowKey> = (1..TABLETS).map(row).collect();
    admin.create_table(name, &[("a".to_owned(), None)], &splits).await.unwrap();
}

/// METADATA's tablets without the root.
async fn second_level(client: &Client) -> Vec<MetadataTablet> {
    let mut tablets = client.metadata_tablets().await.unwrap();
    tablets.retain(|tablet| tablet.descriptor.tablet != TabletId::ROOT);
    tablets
}

/// A client with an empty cache finds every tablet of these tables, within the bound of round trips, and can write to it.
async fn lookups_are_right(cluster: &TestCluster, tables: &[TableName]) {
    let address = cluster.address();
    for name in tables {
        let client = Client::connect_cluster(&address, cluster.runtime.clone()).await.unwrap();
        for number in 0..TABLETS {
            let found = client.locate(name, &row(number)).await.unwrap();
            assert!(found.tablet.descriptor.range.contains(row(number).as_bytes()), "{name} {number}: {found:?}");
            if number == 0 {
                let levels: Vec<Level> = found.trace.iter().map(|hop| hop.level).collect();
                assert_eq!(levels, [Level::Root, Level::Metadata, Level::Tablet], "{found:?}");
            }
            client.table(name).mutate_row(&row(number), &set("a")).await.unwrap();
        }
        let counts = client.low_level().unwrap().lookup_counts();
        assert!(counts.most() >= 3 && counts.most() <= ROUND_TRIPS_MAX, "{counts:?}");
    }
}

/// METADATA and the descriptors of the groups agree.
async fn check_finds_nothing(admin: &Admin) {
    let last = parking_lot::Mutex::new(Vec::new());
    let sound = async || match admin.check(CheckDepth::Metadata, CheckMode::ReadOnly).await {
        Ok(reply) => {
            *last.lock() = reply.findings.clone();
            reply.findings.is_empty()
        }
        Err(_not_now) => false,
    };
    let waits = async {
        while !sound().await {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, waits).await.is_ok(), "{:?}", last.lock());
}

/// Repeats an order that must not run at the same time as another one of its group.
async fn order<T>(call: impl AsyncFn() -> Result<T, ebla_model::error::Error>) -> T {
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => {
                assert_eq!(error.reason, Reason::Busy, "{error}");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

/// Splits tablets of METADATA until there are enough; those that servers have split by themselves count.
async fn split_metadata(client: &Client, admin: &Admin) -> BTreeSet<TabletId> {
    let mut unsplittable = BTreeSet::new();
    loop {
        let tablets = second_level(client).await;
        if tablets.len() >= SECOND_LEVEL {
            return tablets.iter().map(|tablet| tablet.descriptor.tablet).collect();
        }
        let largest = tablets.iter().filter(|tablet| !unsplittable.contains(&tablet.descriptor.tablet));
        let largest = largest.max_by_key(|tablet| tablet.rows).unwrap().descriptor.tablet;
        match admin.split_tablet(largest).await {
            Ok((left, right)) => assert_eq!(left.range.end(), Some(right.range.start())),
            // A merge of user tablets may have left it with one row; or it is being split by its server.
            Err(error) if error.reason == Reason::FailedPrecondition => drop(unsplittable.insert(largest)),
            Err(error) => assert_eq!(error.reason, Reason::Busy, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_tablets_of_metadata_are_split_merged_and_restored() {
    let mut cluster = TestCluster::start_with(|options| ebla_tablet_server::ServerOptions {
        metadata_split_bytes: ByteSize::new(SPLIT_BYTES),
        ..options
    })
    .await;
    let admin = cluster.client.admin();
    let tables: Vec<TableName> = (0..TABLES).map(|number| name(&format!("t{number}"))).collect();
    for table in &tables {
        create(&admin, table).await;
    }
    // The location cache of this client becomes stale again and again.
    let stale = Client::connect_cluster(&cluster.address(), cluster.runtime.clone()).await.unwrap();
    let reads = async |until: &parking_lot::Mutex<bool>| {
        let mut round = 0;
        while !*until.lock() {
            round += 1;
            for table in &tables {
                let key = row(round * 7 % TABLETS);
                stale.table(table).mutate_row(&key, &set("a")).await.unwrap();
                assert!(stale.table(table).read_row(&key, None).await.unwrap().is_some());
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let is_done = parking_lot::Mutex::new(false);
    let changes = async {
        soon("servers split METADATA by themselves", async || second_level(&cluster.client).await.len() > 2).await;
        let before = split_metadata(&cluster.client, &admin).await;
        // Tables are created and deleted, their tablets split, merged and moved.
        let temporary = name("temporary");
        create(&admin, &temporary).await;
        for (number, table) in tables.iter().enumerate() {
            let at = row(3 + number).successor();
            let (left, right) = order(async || admin.split(table, Some(&at), &RowKey::EMPTY).await).await;
            let to = if left.group == GroupId::new(2) { GroupId::new(3) } else { GroupId::new(2) };
            order(async || admin.move_tablet(right.tablet, to).await).await;
            order(async || admin.merge_tablets(left.tablet, Some(right.tablet)).await).await;
        }
        admin.delete_table(&temporary).await.unwrap();
        // METADATA's tablets merge, pair by pair, and split again.
        for pair in second_level(&cluster.client).await.chunks_exact(2).take(6) {
            let (left, right) = (&pair[0].descriptor, &pair[1].descriptor);
            match admin.merge_tablets(left.tablet, Some(right.tablet)).await {
                Ok((merged, gone)) => assert_eq!((merged.tablet, gone), (right.tablet, left.tablet)),
                // Its server has split it meanwhile.
                Err(error) => assert_ne!(error.reason, Reason::Internal, "{error}"),
            }
        }
        let merged: BTreeSet<_> = second_level(&cluster.client).await.iter().map(|one| one.descriptor.tablet).collect();
        assert!(before.difference(&merged).count() >= 3, "{before:?} {merged:?}");
        split_metadata(&cluster.client, &admin).await;
        *is_done.lock() = true;
    };
    tokio::join!(changes, reads(&is_done));
    let counts = stale.low_level().unwrap().lookup_counts();
    assert!(counts.most() <= ROUND_TRIPS_MAX && counts.found().values().sum::<u64>() > 10, "{counts:?}");
    lookups_are_right(&cluster, &tables).await;
    let root = admin.split_tablet(TabletId::ROOT).await.unwrap_err();
    assert_eq!(root.reason, Reason::FailedPrecondition, "{root}");
    check_finds_nothing(&admin).await;

    // A new master reads all of it, and its tables can be changed.
    cluster.master.stop().await;
    cluster.master = start_master(&cluster.chubby, &cluster.runtime).await;
    create(&admin, &name("later")).await;
    check_finds_nothing(&admin).await;

    lost_rows_are_restored(&mut cluster, &tables).await;
    cluster.stop().await;
}

/// Writes these bytes in place of the descriptor of a row.
async fn overwrite(handle: &Cluster, row: &RowKey, value: bytes::Bytes) {
    let damage = Mutation::SetCell {
        family: "location".to_owned(),
        qualifier: "descriptor".into(),
        timestamp: WriteTime::At(ebla_model::Micros::new(0)),
        value,
    };
    let mutations = vec![ebla_proto::convert::mutation_to_bytes(&damage)];
    let write = RowWrite { row: row.clone(), mutations, token: None };
    handle.mutate_row(TableId::METADATA, write, handle.deadline(TIMEOUT)).await.unwrap();
}

async fn lost_rows_are_restored(cluster: &mut TestCluster, tables: &[TableName]) {
    let admin = cluster.client.admin();
    let before = second_level(&cluster.client).await;
    let handle = cluster.client.low_level().unwrap().clone();
    let (metadata, deadline) = (Metadata::new(handle.clone()), handle.deadline(TIMEOUT));
    let rows = metadata.read_range(KeyRange::all(), deadline).await.unwrap();
    cluster.master.stop().await;
    // Every third row of the users' tablets is lost, and one cannot be decoded any more.
    let of_users: Vec<_> = rows.iter().filter(|row| row.descriptor.table.get() > 0).collect();
    for lost in of_users.iter().step_by(3) {
        metadata.delete(&lost.descriptor, deadline).await.unwrap();
    }
    overwrite(&handle, &of_users[1].key, "damaged".into()).await;
    // Half of the rows of METADATA's own tablets, and the location of the root tablet.
    for lost in before.iter().step_by(2) {
        metadata.delete(&lost.descriptor, deadline).await.unwrap();
    }
    let root = cluster.chubby.read(paths::ROOT).await.unwrap().unwrap().value;
    cluster.chubby.transact(Vec::new(), vec![Write::delete(paths::ROOT.to_owned())]).await.unwrap();

    cluster.master = start_master(&cluster.chubby, &cluster.runtime).await;
    soon("the location of the root tablet is back", async || {
        cluster.chubby.read(paths::ROOT).await.unwrap().is_some_and(|file| file.value == root)
    })
    .await;
    check_finds_nothing(&admin).await;
    // A tablet of METADATA may have been split meanwhile.
    assert!(second_level(&cluster.client).await.len() >= before.len());
    let restored = metadata.read_range(KeyRange::all(), handle.deadline(TIMEOUT)).await.unwrap();
    let keys = |rows: &[MetadataRow]| -> Vec<_> {
        rows.iter().filter(|row| row.descriptor.table.get() > 0).map(|row| row.key.clone()).collect()
    };
    assert_eq!(keys(&restored), keys(&rows));
    lookups_are_right(cluster, tables).await;

    // An operator does not wait for the next round.
    for lost in before.iter().skip(1).step_by(2) {
        metadata.delete(&lost.descriptor, handle.deadline(TIMEOUT)).await.unwrap();
    }
    let found = admin.check(CheckDepth::Metadata, CheckMode::Repair).await.unwrap();
    assert!(found.findings.is_empty() && !found.repaired.is_empty(), "{found:?}");
    assert!(second_level(&cluster.client).await.len() >= before.len());

    false_rows_are_replaced(cluster, tables, &handle, &metadata).await;
}

/// Rows that say what no tablet has had: a later generation, a split, and another tablet.
async fn false_rows_are_replaced(cluster: &TestCluster, tables: &[TableName], handle: &Cluster, metadata: &Metadata) {
    let admin = cluster.client.admin();
    let rows = metadata.read_range(KeyRange::all(), handle.deadline(TIMEOUT)).await.unwrap();
    let of_users: Vec<_> = rows.iter().filter(|row| row.descriptor.table.get() > 0).collect();
    let ahead = |row: &MetadataRow, tablet: TabletId, range: KeyRange| {
        let generation = Generation::new(row.descriptor.generation.get() + 7);
        TabletDescriptor { generation, tablet, range, ..row.descriptor.clone() }
    };
    let [one, split, other] = [of_users[2], of_users[TABLETS], of_users[2 * TABLETS]];
    let unknown = |number: u64| TabletId::new(1_000_000 + number);
    let at = split.descriptor.range.start().successor();
    let halves = split.descriptor.range.clone().split_at(&at).unwrap();
    let false_rows = [
        ahead(one, one.descriptor.tablet, one.descriptor.range.clone()),
        ahead(split, split.descriptor.tablet, halves.0),
        ahead(split, unknown(1), halves.1),
        ahead(other, unknown(2), other.descriptor.range.clone()),
    ];
    for row in &false_rows {
        overwrite(handle, &row.row_key(), ebla_proto::convert::descriptor_to_bytes(row)).await;
    }
    let found = admin.check(CheckDepth::Metadata, CheckMode::ReadOnly).await.unwrap();
    let false_ones = found.findings.iter().filter(|finding| finding.problem.contains("which no replica has"));
    assert_eq!(false_ones.count(), false_rows.len(), "{found:?}");
    let repaired = admin.check(CheckDepth::Metadata, CheckMode::Repair).await.unwrap();
    assert!(repaired.findings.is_empty(), "{repaired:?}");
    let after = metadata.read_range(KeyRange::all(), handle.deadline(TIMEOUT)).await.unwrap();
    let of = |rows: &[MetadataRow]| -> Vec<TabletDescriptor> {
        rows.iter().filter(|row| row.descriptor.table.get() > 0).map(|row| row.descriptor.clone()).collect()
    };
    assert_eq!(of(&after), of(&rows));
    lookups_are_right(cluster, tables).await;
}

//! The master with real tablet servers in one process: the first start of a cluster, the life of a table, and a new
//! master that finishes incomplete jobs.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail, also in its helpers")]

use std::path::Path;
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{Counter, SharedChubby, Write, next_ids, paths};
use ebla_client::admin::FamilyChange;
use ebla_client::table::ReadOptions;
use ebla_client::{Client, Table};
use ebla_master::{Master, MasterConfig};
use ebla_model::cell::FamilyName;
use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::id::{GroupId, OperationId, ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::{control, convert, record};
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};
use prost::Message;

/// How long a test waits for an event.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Three servers, a master, and their data.
pub(crate) struct TestCluster {
    pub(crate) chubby: SharedChubby,
    servers: Vec<TabletServer>,
    pub(crate) master: Master,
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
    local_servers: LocalServers,
    data: tempfile::TempDir,
}

impl TestCluster {
    pub(crate) async fn start() -> Self {
        Self::start_with(|options| options).await
    }

    /// As [`Self::start`], with servers of these options.
    pub(crate) async fn start_with(change: impl Fn(ServerOptions) -> ServerOptions) -> Self {
        ebla_runtime::logging::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let data = tempfile::tempdir().unwrap();
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let local_servers = LocalServers::default();
        let mut servers = Vec::new();
        for number in 0..3 {
            let config = server_config(data.path(), number, &local_servers);
            let config = ServerConfig { options: change(config.options), ..config };
            servers.push(TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap());
        }
        let master = start_master(&chubby, &runtime).await;
        let client = Client::connect_cluster(servers[0].address(), runtime.clone()).await.unwrap();
        Self { chubby, servers, master, client, runtime, local_servers, data }
    }

    pub(crate) async fn stop(self) {
        self.master.stop().await;
        for server in self.servers {
            server.stop().await;
        }
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }

    /// The address of the first server.
    pub(crate) fn address(&self) -> String {
        self.servers[0].address().to_owned()
    }

    async fn identity(&self) -> record::Cluster {
        convert::decode_record(self.chubby.read(paths::CLUSTER).await.unwrap().unwrap().value).unwrap()
    }

    pub(crate) fn table(&self, name: &TableName) -> Table {
        self.client.table(name)
    }

    /// The number of replicas on all servers, as the master reports it.
    async fn replicas(&self) -> u64 {
        let status = self.client.admin().status().await.unwrap();
        status.servers.iter().map(|server| server.replicas).sum()
    }
}

pub(crate) fn server_config(data: &Path, number: usize, local_servers: &LocalServers) -> ServerConfig {
    ServerConfig::new(data.join(number.to_string()), "127.0.0.1:0", ServerOptions::up(local_servers.clone()))
}

pub(crate) async fn start_master(chubby: &SharedChubby, runtime: &Runtime) -> Master {
    start_master_with(MasterConfig::new("127.0.0.1:0", 3), chubby, runtime).await
}

pub(crate) async fn start_master_with(config: MasterConfig, chubby: &SharedChubby, runtime: &Runtime) -> Master {
    let master = Master::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    master
}

pub(crate) fn name(table: &str) -> TableName {
    TableName::from_parts("p", "inst", table).unwrap()
}

pub(crate) fn key(text: &'static str) -> RowKey {
    RowKey::new(text)
}

pub(crate) fn set(family: &str) -> Vec<Mutation> {
    vec![Mutation::SetCell {
        family: family.to_owned(),
        qualifier: "q".into(),
        timestamp: WriteTime::Server,
        value: "value".into(),
    }]
}

pub(crate) async fn keys(table: &Table) -> Vec<String> {
    let rows = table.read_rows(RowSet::all(), ReadOptions::default()).await.unwrap();
    rows.iter().map(|row| row.key.to_string()).collect()
}

fn reason<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Reason {
    outcome.unwrap_err().reason
}

/// Polls until the condition holds.
pub(crate) async fn soon<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let waits = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, waits).await.is_ok(), "{what}");
}

/// The proxy in front of a master repeats the call when that master fails. The operation of the first attempt must not end after the
/// second one: it would drop rows that are written since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_drop_of_rows_ends_the_operation_of_the_first_attempt() {
    let cluster = TestCluster::start().await;
    let (name, admin) = (name("repeated"), cluster.client.admin());
    admin.create_table(&name, &[("a".to_owned(), None)], &[]).await.unwrap();
    let table = cluster.table(&name);
    table.mutate_row(&key("grape"), &set("a")).await.unwrap();
    // What a master leaves that fails before it has sent anything to the groups.
    let schema = cluster.chubby.list(paths::TABLES).await.unwrap().0.pop().unwrap();
    let operation = next_ids(&*cluster.chubby, Counter::Operations, 1).await.unwrap().start;
    let range = Some(convert::key_range_to_proto(&KeyRange::prefix(b"gr")));
    let intent = control::ApplyRequest {
        table: paths::parse_table(&schema.path).unwrap().get(),
        kind: Some(control::apply_request::Kind::DropRange(control::DropRange { operation, range })),
        ..Default::default()
    };
    let file = paths::operation(OperationId::new(operation));
    cluster.chubby.transact(vec![], vec![Write::put(file.clone(), intent.encode_to_vec())]).await.unwrap();

    admin.drop_row_range(&name, &key("gr")).await.unwrap();
    assert!(cluster.chubby.read(&file).await.unwrap().is_none(), "the first operation has ended too");
    table.mutate_row(&key("grape"), &set("a")).await.unwrap();
    assert_eq!(keys(&table).await, ["grape"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_created_changed_split_and_deleted() {
    let cluster = TestCluster::start().await;
    assert_eq!(cluster.identity().await.state(), record::ClusterState::Running);
    let admin = cluster.client.admin();
    let (name, families) = (name("fruit"), [("a".to_owned(), None), ("b".to_owned(), Some(GcRule::MaxVersions(1)))]);
    admin.create_table(&name, &families, &[key("p"), key("g")]).await.unwrap();
    assert_eq!(reason(admin.create_table(&name, &families, &[]).await), Reason::AlreadyExists);
    assert_eq!(admin.list_tables("p", "inst").await.unwrap(), std::slice::from_ref(&name));
    let listed = cluster.client.tablets(&name).await.unwrap();
    let ranges: Vec<_> = listed.iter().map(|(tablet, _leader)| tablet.range.to_string()).collect();
    assert_eq!(ranges, ["[, g)", "[g, p)", "[p, -)"]);
    assert!(listed.iter().all(|(tablet, _leader)| tablet.membership.replicas.len() == 3));

    let table = cluster.table(&name);
    for row in ["apple", "grape", "pear"] {
        table.mutate_row(&key(row), &set("a")).await.unwrap();
    }
    assert_eq!(keys(&table).await, ["apple", "grape", "pear"]);

    let changes = [FamilyChange::Create(("c".to_owned(), None)), FamilyChange::Drop("b".to_owned())];
    let mut changed = admin.modify_families(&name, &changes).await.unwrap();
    changed.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(changed, [("a".to_owned(), None), ("c".to_owned(), None)]);
    table.mutate_row(&key("grape"), &set("c")).await.unwrap();
    assert_eq!(reason(table.mutate_row(&key("grape"), &set("b")).await), Reason::NotFoundFamily);

    admin.drop_row_range(&name, &key("gr")).await.unwrap();
    assert_eq!(keys(&table).await, ["apple", "pear"]);

    let refused = async |at: RowKey| admin.split(&name, Some(&at), &RowKey::EMPTY).await.unwrap_err();
    for illegal in [RowKey::EMPTY, RowKey::new(vec![b'q'; 4097])] {
        let error = refused(illegal).await;
        assert_eq!(error.reason, Reason::InvalidArgument);
        assert!(error.message.contains("let the server choose"), "{error}");
    }
    let error = refused(key("p")).await;
    assert_eq!(error.reason, Reason::FailedPrecondition);
    assert!(error.message.contains("[p, -) cannot be split at p"), "{error}");
    let (left, right) = admin.split(&name, Some(&key("q")), &RowKey::EMPTY).await.unwrap();
    assert_eq!((left.range.to_string(), right.range.to_string()), ("[p, q)".to_owned(), "[q, -)".to_owned()));
    assert_eq!(keys(&table).await, ["apple", "pear"]);
    soon("the new half has a leader", || async { admin.status().await.is_ok_and(|status| status.tablets_led == 6) })
        .await;

    admin.delete_table(&name).await.unwrap();
    assert_eq!(reason(admin.delete_table(&name).await), Reason::NotFoundTable);
    assert!(admin.list_tables("p", "inst").await.unwrap().is_empty());
    assert!(table.mutate_row(&key("apple"), &set("a")).await.is_err());
    soon("only METADATA's replicas remain", || async { cluster.replicas().await == 6 }).await;
    assert!(cluster.chubby.list(paths::OPERATIONS).await.unwrap().0.is_empty());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tablets_are_merged() {
    let cluster = TestCluster::start().await;
    let (admin, name) = (cluster.client.admin(), name("fruit"));
    admin.create_table(&name, &[("a".to_owned(), None)], &[key("p")]).await.unwrap();
    let table = cluster.table(&name);
    for row in ["apple", "grape", "lemon", "pear"] {
        table.mutate_row(&key(row), &set("a")).await.unwrap();
    }
    let (low, middle) = admin.split(&name, Some(&key("g")), &RowKey::EMPTY).await.unwrap();
    let (_middle, high) = admin.split(&name, Some(&key("l")), &RowKey::EMPTY).await.unwrap();
    let tablets = async || -> Vec<TabletDescriptor> {
        cluster.client.tablets(&name).await.unwrap().into_iter().map(|(tablet, _leader)| tablet).collect()
    };
    let before = tablets().await;
    assert_eq!(before.len(), 4);

    // Its leaders record what has happened to the tablets, and why.
    let has_happened = async |tablet: TabletId, what: &str, cause: &str| {
        let rows = cluster.client.tablet_events(Some(&name)).await.unwrap();
        let mut events = rows.into_iter().flat_map(|row| row.events);
        events.any(|event| (event.tablet, event.what.as_str(), event.cause.as_str()) == (tablet, what, cause))
    };
    for tablet in [low.tablet, middle.tablet, high.tablet] {
        soon("a split is recorded", || has_happened(tablet, "split", "operator")).await;
    }
    assert!(has_happened(before[3].tablet, "created", "operator").await);

    // With the next one, then with one before it. Listings show it at once.
    let (merged, removed) = admin.merge_tablets(low.tablet, None).await.unwrap();
    assert_eq!((merged.tablet, removed, merged.range.to_string()), (middle.tablet, low.tablet, "[, l)".to_owned()));
    assert_eq!(tablets().await, [&merged, &before[2], &before[3]].map(Clone::clone));
    let (whole, removed) = admin.merge_tablets(high.tablet, Some(middle.tablet)).await.unwrap();
    assert_eq!((whole.tablet, removed, whole.range.to_string()), (high.tablet, middle.tablet, "[, p)".to_owned()));
    assert_eq!(tablets().await, [&whole, &before[3]].map(Clone::clone));
    table.mutate_row(&key("banana"), &set("a")).await.unwrap();
    assert_eq!(keys(&table).await, ["apple", "banana", "grape", "lemon", "pear"]);

    let refused = async |tablet, with| admin.merge_tablets(tablet, with).await.unwrap_err();
    assert_eq!(refused(low.tablet, None).await.reason, Reason::NotFound, "it is gone");
    assert_eq!(refused(whole.tablet, Some(whole.tablet)).await.reason, Reason::InvalidArgument);
    let root = refused(TabletId::ROOT, None).await;
    assert!(root.message.contains("root tablet"), "{root}");
    let status = admin.status().await.unwrap();
    assert_eq!(status.tablets, 4, "two of METADATA, two of the table");

    // The last tablet is in another group: one of the two moves first.
    assert_ne!(whole.group, before[3].group);
    let (all, removed) = admin.merge_tablets(whole.tablet, None).await.unwrap();
    assert_eq!((all.tablet, removed, all.range.to_string()), (before[3].tablet, whole.tablet, "[, -)".to_owned()));
    assert_eq!(tablets().await, std::slice::from_ref(&all));
    soon("a merge is recorded", || has_happened(all.tablet, "merged", "operator")).await;
    assert_eq!(keys(&table).await, ["apple", "banana", "grape", "lemon", "pear"]);
    admin.delete_table(&name).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tablet_is_moved_to_another_group() {
    let cluster = TestCluster::start().await;
    let (admin, name) = (cluster.client.admin(), name("fruit"));
    admin.create_table(&name, &[("a".to_owned(), None)], &[key("g"), key("p")]).await.unwrap();
    let table = cluster.table(&name);
    for row in ["apple", "grape", "lemon", "pear"] {
        table.mutate_row(&key(row), &set("a")).await.unwrap();
    }
    let tablets = async || -> Vec<TabletDescriptor> {
        cluster.client.tablets(&name).await.unwrap().into_iter().map(|(tablet, _leader)| tablet).collect()
    };
    let before = tablets().await;
    let (first, second) = (&before[0], &before[1]);
    assert_ne!(first.group, second.group);
    let preview = admin.preview_move(first.tablet, second.group).await.unwrap();
    assert_eq!(preview.target.unwrap().group, second.group.get());
    let preview = admin.preview_merge(first.tablet, Some(second.tablet)).await.unwrap();
    assert!([first, second].iter().any(|tablet| preview.moved == tablet.tablet.get()), "one must move before");
    assert_eq!(tablets().await, before, "nothing has changed");
    let (moved, source) = admin.move_tablet(first.tablet, second.group).await.unwrap();
    assert_eq!((moved.group, source, moved.generation), (second.group, first.group, first.generation.next()));
    assert_eq!(tablets().await[0], moved, "listings show it at once");
    table.mutate_row(&key("banana"), &set("a")).await.unwrap();
    assert_eq!(keys(&table).await, ["apple", "banana", "grape", "lemon", "pear"]);
    // Families that are added later reach the tablet in its new group, and rows are dropped there.
    let family = FamilyChange::Create(("late".to_owned(), None));
    admin.modify_families(&name, &[family]).await.unwrap();
    table.mutate_row(&key("cherry"), &set("late")).await.unwrap();
    admin.drop_row_range(&name, &key("a")).await.unwrap();
    assert_eq!(keys(&table).await, ["banana", "cherry", "grape", "lemon", "pear"]);
    let (back, _source) = admin.move_tablet(first.tablet, first.group).await.unwrap();
    assert_eq!((back.group, back.generation), (first.group, moved.generation.next()));
    assert_eq!(keys(&table).await, ["banana", "cherry", "grape", "lemon", "pear"]);
    let moves_are_recorded = async || {
        let rows = cluster.client.tablet_events(Some(&name)).await.unwrap();
        let events = rows.iter().flat_map(|row| &row.events).filter(|event| event.tablet == first.tablet);
        events.filter(|event| (event.what.as_str(), event.cause.as_str()) == ("moved", "operator")).count() >= 2
    };
    soon("both moves are recorded", moves_are_recorded).await;

    let refused = async |tablet, group| {
        let preview = admin.preview_move(tablet, group).await.unwrap_err();
        let error = admin.move_tablet(tablet, group).await.unwrap_err();
        assert_eq!((preview.reason, &preview.message), (error.reason, &error.message));
        error
    };
    for (tablet, group, reason, says) in [
        (first.tablet, first.group, Reason::FailedPrecondition, "already"),
        (first.tablet, GroupId::METADATA, Reason::FailedPrecondition, "group 1"),
        (first.tablet, GroupId::new(999), Reason::NotFound, "ebla group list"),
        (TabletId::new(999), first.group, Reason::NotFound, "ebla tablet list"),
        (TabletId::FIRST_METADATA, first.group, Reason::FailedPrecondition, "METADATA"),
    ] {
        let error = refused(tablet, group).await;
        assert!(error.reason == reason && error.message.contains(says), "{tablet} to {group}: {error}");
    }
    admin.delete_table(&name).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_share_groups_and_a_group_is_divided() {
    let cluster = TestCluster::start().await;
    let (admin, family) = (cluster.client.admin(), [("a".to_owned(), None)]);
    let (first, second) = (name("first"), name("second"));
    let cuts: Vec<RowKey> = ["b", "c", "d", "e", "f"].map(key).to_vec();
    // Two creations at once agree on the groups.
    let (one, other) =
        tokio::join!(admin.create_table(&first, &family, &cuts), admin.create_table(&second, &family, &cuts[..2]));
    one.unwrap();
    other.unwrap();
    let counts = async || -> Vec<u64> { admin.groups().await.unwrap().iter().map(|one| one.tablets).collect() };
    assert_eq!(counts().await, [2, 3, 3, 3], "METADATA's group, and one for each server");
    let listed = cluster.client.tablets(&first).await.unwrap();
    let groups: Vec<GroupId> = listed.iter().map(|(tablet, _leader)| tablet.group).collect();
    assert!(groups.windows(3).all(|three| three[0] != three[1] && three[1] != three[2] && three[0] != three[2]));

    let table = cluster.table(&first);
    for row in ["apple", "banana", "cherry", "date", "elder", "fig"] {
        table.mutate_row(&key(row), &set("a")).await.unwrap();
    }
    let before = keys(&table).await;
    let (left, right, moved) = admin.divide_group(groups[0]).await.unwrap();
    assert_eq!((left.group, right.membership.replicas.len()), (groups[0], 3));
    assert!((1..=2).contains(&moved), "{moved} of three tablets");
    let mut listed = cluster.client.tablets(&first).await.unwrap();
    listed.extend(cluster.client.tablets(&second).await.unwrap());
    let in_right = listed.iter().filter(|(tablet, _leader)| tablet.group == right.group).count();
    assert_eq!(in_right as u64, moved, "METADATA lists the tablets in their new group");
    assert_eq!(keys(&table).await, before);
    assert_eq!(reason(admin.divide_group(GroupId::new(999)).await), Reason::NotFound);

    for name in [&first, &second] {
        admin.delete_table(name).await.unwrap();
    }
    soon("all groups but METADATA's are empty", async || counts().await == [2, 0, 0, 0, 0]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tablets_are_created_at_once() {
    let cluster = TestCluster::start().await;
    let (admin, clock) = (cluster.client.admin(), &cluster.runtime.clock);
    let cuts: Vec<RowKey> = (1..1000).map(|number| RowKey::new(format!("{number:04}"))).collect();
    let begun = clock.monotonic();
    admin.create_table(&name("wide"), &[("a".to_owned(), None)], &cuts).await.unwrap();
    let created = clock.monotonic().saturating_sub(begun);
    assert_eq!(cluster.client.tablets(&name("wide")).await.unwrap().len(), 1000);
    cluster.table(&name("wide")).mutate_row(&key("0500"), &set("a")).await.unwrap();
    let begun = clock.monotonic();
    admin.delete_table(&name("wide")).await.unwrap();
    println!("1000 tablets: created in {created:?}, deleted in {:?}", clock.monotonic().saturating_sub(begun));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_table_shares_nothing_with_the_deleted_one() {
    let cluster = TestCluster::start().await;
    let (admin, name) = (cluster.client.admin(), name("again"));
    for round in ["first", "second"] {
        admin.create_table(&name, &[("a".to_owned(), None)], &[]).await.unwrap();
        let table = cluster.client.table(&name);
        assert!(keys(&table).await.is_empty(), "{round}");
        table.mutate_row(&key(round), &set("a")).await.unwrap();
        assert_eq!(keys(&table).await, [round]);
        admin.delete_table(&name).await.unwrap();
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_master_creates_no_second_root_and_finishes_incomplete_jobs() {
    let mut cluster = TestCluster::start().await;
    let before = cluster.identity().await;
    cluster.client.admin().create_table(&name("doomed"), &[("a".to_owned(), None)], &[]).await.unwrap();
    cluster.master.stop().await;
    let half_created = leave_half_created(&cluster).await;
    leave_half_deleted(&cluster, &name("doomed")).await;

    cluster.master = start_master(&cluster.chubby, &cluster.runtime).await;
    assert_eq!(cluster.identity().await, before);
    let admin = cluster.client.admin();
    // A caller that creates the same table learns that it exists once it can be used.
    let again = admin.create_table(&half_created, &[("a".to_owned(), None)], &[]).await;
    assert_eq!(reason(again), Reason::AlreadyExists);
    let table = cluster.table(&half_created);
    table.mutate_row(&key("x"), &set("a")).await.unwrap();
    assert_eq!(keys(&table).await, ["x"]);
    let left = || async {
        let files = cluster.chubby.list("").await.unwrap().0;
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        let open = [paths::GROUPS, paths::PLANS, paths::OPERATIONS];
        let tables = paths.iter().filter(|path| path.starts_with(paths::TABLES)).count();
        tables == 1 && !paths.iter().any(|path| open.iter().any(|prefix| path.starts_with(prefix)))
    };
    soon("the half-deleted table is deleted", left).await;
    soon("its replicas are removed", || async { cluster.replicas().await == 9 }).await;
    cluster.stop().await;
}

/// The state after a master stopped right after it had recorded a new table.
async fn leave_half_created(cluster: &TestCluster) -> TableName {
    let name = name("half-created");
    let chubby = &*cluster.chubby;
    let table = TableId::new(next_ids(chubby, Counter::Tables, 1).await.unwrap().start);
    let tablet = TabletId::new(next_ids(chubby, Counter::Tablets, 1).await.unwrap().start);
    let schema = TableSchema::new(table, name.clone(), [(FamilyName::new("a").unwrap(), None)]).unwrap();
    let servers: Vec<ServerId> = cluster.servers.iter().map(TabletServer::id).collect();
    let group = GroupId::new(next_ids(chubby, Counter::Groups, 1).await.unwrap().start);
    let group = GroupDescriptor::initial(group, &servers);
    let first = group.new_tablet(table, tablet, KeyRange::all());
    let first_tablets = vec![convert::descriptor_to_proto(&first)];
    let operation = next_ids(chubby, Counter::Operations, 1).await.unwrap().start;
    let plan = convert::encode_record(record::TablePlan { first_tablets, operation, ..Default::default() });
    let new_group = Some(convert::group_to_proto(&group));
    let new_group = convert::encode_record(record::GroupPlan { group: new_group, ..Default::default() });
    let writes = vec![
        Write::put(paths::name(&name), table.to_string()),
        Write::put(paths::table(table), convert::schema_to_bytes(&schema)),
        Write::put(paths::plan(table), plan),
        Write::put(paths::group(group.group), new_group),
    ];
    chubby.transact(vec![], writes).await.unwrap();
    name
}

/// The state after a master stopped right after it had recorded a deletion.
async fn leave_half_deleted(cluster: &TestCluster, name: &TableName) {
    let chubby = &*cluster.chubby;
    let (files, _revision) = chubby.list(paths::TABLES).await.unwrap();
    let schemas = files.iter().map(|file| convert::schema_from_bytes(file.value.clone()).unwrap());
    let schema = schemas.into_iter().find(|schema| schema.name == *name).unwrap();
    let deleting = TableSchema { state: TableState::Deleting, ..schema };
    let operation = next_ids(chubby, Counter::Operations, 1).await.unwrap().start;
    let kind = Some(control::apply_request::Kind::DropOperation(operation));
    let order = control::ApplyRequest { table: deleting.table.get(), kind, ..Default::default() };
    let writes = vec![
        Write::put(paths::table(deleting.table), convert::schema_to_bytes(&deleting)),
        Write::delete(paths::name(name)),
        Write::put(format!("{}{operation}", paths::OPERATIONS), order.encode_to_vec()),
    ];
    chubby.transact(vec![], writes).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_down_removes_replicas_of_deleted_tables() {
    let mut cluster = TestCluster::start().await;
    let (admin, name) = (cluster.client.admin(), name("short-lived"));
    admin.create_table(&name, &[("a".to_owned(), None)], &[key("m")]).await.unwrap();
    cluster.table(&name).mutate_row(&key("x"), &set("a")).await.unwrap();
    cluster.servers.pop().unwrap().abort().await;
    admin.delete_table(&name).await.unwrap();
    soon("the others have removed it", || async { cluster.replicas().await == 4 }).await;
    let records = cluster.chubby.list(paths::DELETED).await.unwrap().0.len();
    assert_eq!(records, 1, "the third still has its tablets");

    let config = server_config(cluster.data.path(), 2, &cluster.local_servers);
    let server = TabletServer::start(config, cluster.chubby.clone(), cluster.runtime.clone()).await.unwrap();
    assert_eq!(server.id(), ServerId::new(3), "its data folder is its identity");
    cluster.servers.push(server);
    soon("the third has removed it", || async { cluster.replicas().await == 6 }).await;
    assert_eq!(cluster.client.admin().status().await.unwrap().health.unwrap().unknown_tables, 0);
    // A new master observes the cluster at once.
    let mut left = 1;
    for _ in 0..20 {
        cluster.master.stop().await;
        cluster.master = start_master(&cluster.chubby, &cluster.runtime).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        left = cluster.chubby.list(paths::DELETED).await.unwrap().0.len();
        if left == 0 {
            break;
        }
    }
    assert_eq!(left, 0, "the record of the deletion is removed");
    cluster.stop().await;
}

//! An outage of Chubby during a change: no response claims that the change was not made, and the change is finished
//! after the outage.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::embedded::Embedded;
use ebla_chubby::testing::faulty::FaultyChubby;
use ebla_chubby::{Chubby, File, Write, paths};
use ebla_client::{Admin, Client};
use ebla_master::{Master, MasterConfig};
use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_proto::admin;
use ebla_proto::services::bigtable_instance_admin_client::BigtableInstanceAdminClient;
use ebla_proto::status::from_status;
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};
use tonic::transport::Endpoint;

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

struct TestCluster {
    chubby: Arc<FaultyChubby>,
    server: TabletServer,
    master: Master,
    admin: Admin,
    runtime: Runtime,
    _data: tempfile::TempDir,
}

impl TestCluster {
    async fn start() -> Self {
        let runtime = Runtime::system("test");
        let data = tempfile::tempdir().unwrap();
        let chubby = FaultyChubby::new(Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared());
        let options = ServerOptions::up(LocalServers::default());
        let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
        let server = TabletServer::start(config, chubby.shared(), runtime.clone()).await.unwrap();
        let master =
            Master::start(MasterConfig::new("127.0.0.1:0", 1), chubby.shared(), runtime.clone()).await.unwrap();
        within(master.ready()).await;
        let admin = Client::connect_cluster(server.address(), runtime.clone()).await.unwrap().admin();
        Self { chubby, server, master, admin, runtime, _data: data }
    }

    async fn stop(self) {
        self.master.stop().await;
        self.server.stop().await;
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }

    async fn create(&self, table: &TableName) -> Result<(), Error> {
        within(self.admin.create_table(table, &[("a".to_owned(), None)], &[])).await
    }

    async fn files(&self, prefix: &str) -> Vec<File> {
        self.chubby.list(prefix).await.unwrap().0
    }

    /// Waits until the table is visible, or no longer visible.
    async fn until_seen(&self, table: &TableName, seen: bool) {
        let waiting = async {
            while self.admin.get_table(table).await.is_ok() != seen {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within(waiting).await;
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_commit_is_ambiguous_is_finished_later() {
    let cluster = TestCluster::start().await;
    let table = TableName::from_parts("p", "inst", "t").unwrap();
    cluster.chubby.start_outage_after(paths::PLANS);
    assert_eq!(cluster.create(&table).await.unwrap_err().reason, Reason::OutcomeUnknown);
    cluster.chubby.end_outage();
    cluster.until_seen(&table, true).await;

    cluster.chubby.start_outage_after(paths::OPERATIONS);
    let deleted = within(cluster.admin.delete_table(&table)).await;
    assert_eq!(deleted.unwrap_err().reason, Reason::OutcomeUnknown);
    cluster.chubby.end_outage();
    cluster.until_seen(&table, false).await;
    assert_eq!(cluster.create(&table).await, Ok(()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_waits_for_chubby_during_an_outage() {
    let cluster = TestCluster::start().await;
    let table = TableName::from_parts("p", "inst", "t").unwrap();
    cluster.chubby.start_outage();
    let (created, ()) = tokio::join!(cluster.create(&table), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.chubby.end_outage();
    });
    assert_eq!(created, Ok(()));
    cluster.stop().await;
}

/// Another call creates it when its tables are gone, and sets a policy.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_created_during_its_deletion_keeps_its_policy() {
    let cluster = TestCluster::start().await;
    let table = TableName::from_parts("p", "inst", "t").unwrap();
    assert_eq!(cluster.create(&table).await, Ok(()));
    let name = "projects/p/instances/inst";
    let (record, policy) = (paths::instance(&name.parse().unwrap()), paths::instance_access("p", "inst"));
    let mut held = cluster.chubby.hold_before(paths::INSTANCE_ACCESS);
    let channel =
        Endpoint::from_shared(format!("http://{}", cluster.server.address())).unwrap().connect().await.unwrap();
    let mut instances = BigtableInstanceAdminClient::new(channel);
    let request = admin::DeleteInstanceRequest { name: name.to_owned() };
    let (deleted, ()) = tokio::join!(within(instances.delete_instance(request)), async {
        within(held.reached()).await;
        let created = [&record, &policy].map(|path| Write::put(path.clone(), Bytes::new()));
        cluster.chubby.transact(Vec::new(), created.to_vec()).await.unwrap();
        held.release();
    });
    assert_eq!(deleted.map(drop).map_err(|status| from_status(&status).0.reason), Err(Reason::Conflict));
    assert_eq!((cluster.files(&record).await.len(), cluster.files(&policy).await.len()), (1, 1));
    cluster.stop().await;
}

/// A transaction that was sent before the restoration of a backup may arrive after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_ends_after_a_restoration_takes_no_table_from_its_name() {
    let cluster = TestCluster::start().await;
    let table = TableName::from_parts("p", "inst", "t").unwrap();
    assert_eq!(cluster.create(&table).await, Ok(()));
    let files = [cluster.files(paths::TABLES).await, cluster.files(paths::NAMES).await].concat();
    assert_eq!(files.len(), 2);
    let mut held = cluster.chubby.hold_before(paths::DELETED);
    let (deleted, ()) = tokio::join!(within(cluster.admin.delete_table(&table)), async {
        within(held.reached()).await;
        let operations = cluster.files(paths::OPERATIONS).await;
        let lost = operations.into_iter().map(|file| Write::delete(file.path));
        let restored = files.iter().map(|file| Write::put(file.path.clone(), file.value.clone()));
        cluster.chubby.transact(Vec::new(), lost.chain(restored).collect()).await.unwrap();
        held.release();
    });
    assert_eq!(deleted, Ok(()), "its tablets are dropped");
    let left = [cluster.files(paths::TABLES).await, cluster.files(paths::NAMES).await].concat();
    let contents =
        |files: &[File]| files.iter().map(|file| (file.path.clone(), file.value.clone())).collect::<Vec<_>>();
    assert_eq!(contents(&left), contents(&files));
    cluster.stop().await;
}

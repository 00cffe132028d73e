//! Two masters, one tablet server: the standby takes over when the active master stops or crashes, and clients that
//! call through a tablet server do not notice.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{SharedChubby, paths};
use ebla_client::Client;
use ebla_master::{Master, MasterConfig};
use ebla_model::schema::TableName;
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

struct TestCluster {
    chubby: SharedChubby,
    server: TabletServer,
    first: Master,
    second: Master,
    client: Client,
    runtime: Runtime,
    _data: tempfile::TempDir,
}

impl TestCluster {
    /// The first master is active, the second a standby. `ttl`: of both locks.
    async fn start(ttl: Duration) -> Self {
        ebla_runtime::logging::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let data = tempfile::tempdir().unwrap();
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let options = ServerOptions::up(LocalServers::default());
        let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
        let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
        let start = || async {
            let config = MasterConfig { lease_ttl: ttl, ..MasterConfig::new("127.0.0.1:0", 1) };
            Master::start(config, chubby.clone(), runtime.clone()).await.unwrap()
        };
        let first = start().await;
        within(first.ready()).await;
        let second = start().await;
        let client = Client::connect_cluster(server.address(), runtime.clone()).await.unwrap();
        Self { chubby, server, first, second, client, runtime, _data: data }
    }

    async fn stop(self) {
        self.second.stop().await;
        self.server.stop().await;
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }

    /// The address in the master lock.
    async fn active_address(&self) -> Option<String> {
        let file = self.chubby.read(paths::MASTER).await.unwrap()?;
        Some(convert::decode_record::<record::Master>(file.value).unwrap().address)
    }

    async fn epoch(&self) -> u64 {
        within(self.client.admin().status()).await.unwrap().master_epoch
    }

    async fn create(&self, table: &str) {
        let name = TableName::from_parts("p", "inst", table).unwrap();
        within(self.client.admin().create_table(&name, &[("a".to_owned(), None)], &[])).await.unwrap();
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, what).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_at_once_when_the_master_stops() {
    // The lease is too long to expire: the first master must release the lock.
    let cluster = TestCluster::start(Duration::from_secs(3600)).await;
    cluster.create("before").await;
    assert_eq!(cluster.active_address().await.as_deref(), Some(cluster.first.address()));
    let epoch = cluster.epoch().await;
    cluster.first.stop().await;
    within(cluster.second.ready()).await;
    assert_eq!(cluster.active_address().await.as_deref(), Some(cluster.second.address()));
    assert!(cluster.epoch().await > epoch);
    cluster.create("after").await;
    assert_eq!(cluster.client.admin().list_tables("p", "inst").await.unwrap().len(), 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_from_a_crashed_master_after_its_lease() {
    let cluster = TestCluster::start(Duration::from_secs(1)).await;
    cluster.first.abort().await;
    assert_eq!(
        cluster.active_address().await.as_deref(),
        Some(cluster.first.address()),
        "the lease outlives its holder"
    );
    // No master is active now: the call waits for the next one.
    cluster.create("between").await;
    assert_eq!(cluster.active_address().await.as_deref(), Some(cluster.second.address()));
    within(cluster.second.ready()).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_succeed_while_masters_change() {
    let mut cluster = TestCluster::start(Duration::from_secs(3600)).await;
    let mut created = 0;
    for round in 0..4 {
        let stopping = cluster.first.stop();
        let names = [format!("r{round}-a"), format!("r{round}-b")];
        let calls = async {
            for name in &names {
                cluster.create(name).await;
            }
        };
        tokio::join!(stopping, calls);
        created += names.len();
        let config = MasterConfig { lease_ttl: Duration::from_secs(3600), ..MasterConfig::new("127.0.0.1:0", 1) };
        let third = Master::start(config, cluster.chubby.clone(), cluster.runtime.clone()).await.unwrap();
        cluster.first = std::mem::replace(&mut cluster.second, third);
        assert_eq!(within(cluster.client.admin().list_tables("p", "inst")).await.unwrap().len(), created);
    }
    cluster.first.stop().await;
    cluster.stop().await;
}

//! Two masters, one tablet server: the second waits, takes over when the first stops or dies, and whoever calls through a
//! tablet server need not know.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{SharedChubby, paths};
use ebla_client::Client;
use ebla_master::{Master, MasterConfig};
use ebla_model::schema::TableName;
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_tablet_server::{Neighbours, ServerConfig, ServerOptions, TabletServer};

/// How long a test waits for what must happen some time.
const PATIENCE: Duration = Duration::from_secs(60);

struct House {
    chubby: SharedChubby,
    server: TabletServer,
    first: Master,
    second: Master,
    client: Client,
    runtime: Runtime,
    _data: tempfile::TempDir,
}

impl House {
    /// The first master is in office, the second waits. `ttl`: of both.
    async fn open(ttl: Duration) -> Self {
        ebla_runtime::telemetry::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let data = tempfile::tempdir().unwrap();
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let options = ServerOptions::up(Neighbours::default());
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

    async fn close(self) {
        self.second.stop().await;
        self.server.stop().await;
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }

    /// The address that the lock names.
    async fn in_office(&self) -> Option<String> {
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
    tokio::time::timeout(PATIENCE, what).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_at_once_when_the_master_stops() {
    // Nobody could wait such a lease out: what is seen is the office being given up.
    let house = House::open(Duration::from_secs(3600)).await;
    house.create("before").await;
    assert_eq!(house.in_office().await.as_deref(), Some(house.first.address()));
    let epoch = house.epoch().await;
    house.first.stop().await;
    within(house.second.ready()).await;
    assert_eq!(house.in_office().await.as_deref(), Some(house.second.address()));
    assert!(house.epoch().await > epoch);
    house.create("after").await;
    assert_eq!(house.client.admin().list_tables("p", "inst").await.unwrap().len(), 2);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_from_a_master_that_died_after_its_lease() {
    let house = House::open(Duration::from_secs(1)).await;
    house.first.abort().await;
    assert_eq!(house.in_office().await.as_deref(), Some(house.first.address()), "a lease outlives its holder");
    // Called while nobody is in office: it is handed to the next master.
    house.create("between").await;
    assert_eq!(house.in_office().await.as_deref(), Some(house.second.address()));
    within(house.second.ready()).await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_go_on_while_masters_change() {
    let mut house = House::open(Duration::from_secs(3600)).await;
    let mut made = 0;
    for round in 0..4 {
        let stopping = house.first.stop();
        let names = [format!("r{round}-a"), format!("r{round}-b")];
        let calls = async {
            for name in &names {
                house.create(name).await;
            }
        };
        tokio::join!(stopping, calls);
        made += names.len();
        let config = MasterConfig { lease_ttl: Duration::from_secs(3600), ..MasterConfig::new("127.0.0.1:0", 1) };
        let third = Master::start(config, house.chubby.clone(), house.runtime.clone()).await.unwrap();
        house.first = std::mem::replace(&mut house.second, third);
        assert_eq!(within(house.client.admin().list_tables("p", "inst")).await.unwrap().len(), made);
    }
    house.first.stop().await;
    house.close().await;
}

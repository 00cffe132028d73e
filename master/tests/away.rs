//! Chubby goes away in the middle of a change: whoever asked for it is never told that nothing was done, and it is finished
//! when Chubby is back.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::sync::Arc;
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::fleeting::Fleeting;
use ebla_chubby::paths;
use ebla_client::{Admin, Client};
use ebla_master::{Master, MasterConfig};
use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tablet_server::{Neighbours, ServerConfig, ServerOptions, TabletServer};

/// How long a test waits for what must happen some time.
const PATIENCE: Duration = Duration::from_secs(60);

struct House {
    chubby: Arc<Fleeting>,
    server: TabletServer,
    master: Master,
    admin: Admin,
    runtime: Runtime,
    _data: tempfile::TempDir,
}

impl House {
    async fn open() -> Self {
        let runtime = Runtime::system("test");
        let data = tempfile::tempdir().unwrap();
        let chubby = Fleeting::new(Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared());
        let options = ServerOptions::up(Neighbours::default());
        let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
        let server = TabletServer::start(config, chubby.shared(), runtime.clone()).await.unwrap();
        let master =
            Master::start(MasterConfig::new("127.0.0.1:0", 1), chubby.shared(), runtime.clone()).await.unwrap();
        within(master.ready()).await;
        let admin = Client::connect_cluster(server.address(), runtime.clone()).await.unwrap().admin();
        Self { chubby, server, master, admin, runtime, _data: data }
    }

    async fn close(self) {
        self.master.stop().await;
        self.server.stop().await;
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }

    async fn create(&self, table: &TableName) -> Result<(), Error> {
        within(self.admin.create_table(table, &[("a".to_owned(), None)], &[])).await
    }

    /// Waits until the table can be seen, or not any more.
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
    tokio::time::timeout(PATIENCE, what).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_first_answer_was_lost_is_in_doubt_and_is_finished_later() {
    let house = House::open().await;
    let table = TableName::from_parts("p", "inst", "t").unwrap();
    house.chubby.leave_after(paths::PLANS);
    assert_eq!(house.create(&table).await.unwrap_err().reason, Reason::OutcomeUnknown);
    house.chubby.come_back();
    house.until_seen(&table, true).await;

    house.chubby.leave_after(paths::OPERATIONS);
    let deleted = within(house.admin.delete_table(&table)).await;
    assert_eq!(deleted.unwrap_err().reason, Reason::OutcomeUnknown);
    house.chubby.come_back();
    house.until_seen(&table, false).await;
    assert_eq!(house.create(&table).await, Ok(()));
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_chubby_has_not_heard_of_waits_for_it() {
    let house = House::open().await;
    let table = TableName::from_parts("p", "inst", "t").unwrap();
    house.chubby.leave();
    let (made, ()) = tokio::join!(house.create(&table), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        house.chubby.come_back();
    });
    assert_eq!(made, Ok(()));
    house.close().await;
}

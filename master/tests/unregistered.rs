//! Servers that are not registered and respond: what they report is not judged by files of Chubby that were read before.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{
    Chubby, Compare, Error, File, Revision, Session, SharedChubby, TransactionOutcome, WatchStream, Write, paths,
};
use ebla_client::Client;
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, TabletServer};
use futures::future::BoxFuture;
use tokio::sync::Notify;

use super::life::{TIMEOUT, name, server_config, soon, start_master};

/// A service that holds one list of all tables back, after it was made.
#[derive(Debug)]
struct HoldingChubby {
    chubby: SharedChubby,
    /// Whether the next list is held back.
    holds: AtomicBool,
    /// Wakes the test when a list is held back.
    held: Notify,
    /// Lets it go.
    release: Notify,
}

impl HoldingChubby {
    fn new(chubby: SharedChubby) -> Arc<Self> {
        Arc::new(Self { chubby, holds: AtomicBool::new(false), held: Notify::new(), release: Notify::new() })
    }

    fn hold_next(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    async fn until_held(&self) {
        tokio::time::timeout(TIMEOUT, self.held.notified()).await.unwrap();
    }
}

impl Chubby for HoldingChubby {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
        self.chubby.read(path)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
        Box::pin(async move {
            let listed = self.chubby.list(prefix).await;
            if prefix == paths::TABLES && self.holds.swap(false, Ordering::Relaxed) {
                self.held.notify_one();
                self.release.notified().await;
            }
            listed
        })
    }

    fn transact(&self, compares: Vec<Compare>, writes: Vec<Write>) -> BoxFuture<'_, Result<TransactionOutcome, Error>> {
        self.chubby.transact(compares, writes)
    }

    fn watch<'a>(&'a self, prefix: &'a str, after: Revision) -> BoxFuture<'a, Result<WatchStream, Error>> {
        self.chubby.watch(prefix, after)
    }

    fn open_session(&self, ttl: Duration) -> BoxFuture<'_, Result<Arc<dyn Session>, Error>> {
        self.chubby.open_session(ttl)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_table_on_an_unregistered_server_is_not_unknown() {
    let (runtime, data) = (Runtime::system("test"), tempfile::tempdir().unwrap());
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let (local_servers, mut servers) = (LocalServers::default(), Vec::new());
    for number in 0..3 {
        let config = server_config(data.path(), number, &local_servers);
        servers.push(TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap());
    }
    let holding = HoldingChubby::new(chubby.clone());
    let as_chubby: SharedChubby = Arc::clone(&holding) as SharedChubby;
    let master = start_master(&as_chubby, &runtime).await;
    let client = Client::connect_cluster(servers.first().unwrap().address(), runtime.clone()).await.unwrap();
    let (admin, families) = (client.admin(), [("a".to_owned(), None)]);
    admin.create_table(&name("first"), &families, &[]).await.unwrap();

    // The third server loses its registration, and serves. The master observes that.
    let third = servers.last().unwrap();
    let path = paths::server(third.id());
    let registration = chubby.read(&path).await.unwrap().unwrap().value;
    holding.hold_next();
    chubby.transact(vec![], vec![Write::delete(path.clone())]).await.unwrap();
    holding.until_held().await;
    let before = third.tablet_manager().tablets().len();
    admin.create_table(&name("second"), &families, &[]).await.unwrap();
    soon("the third server has the new tablet", || async { third.tablet_manager().tablets().len() > before }).await;
    chubby.transact(vec![], vec![Write::put(path, registration)]).await.unwrap();
    holding.hold_next();
    holding.release.notify_one();

    // The next round has begun: this one has judged the tablet.
    holding.until_held().await;
    assert_eq!(admin.status().await.unwrap().health.unwrap().unknown_tables, 0);
    holding.release.notify_one();
    master.stop().await;
    for server in servers {
        server.stop().await;
    }
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

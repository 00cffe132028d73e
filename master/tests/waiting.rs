//! How often the master looks at a cluster of which a registered server does not respond.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{
    Chubby, Compare, Error, File, Revision, Session, SharedChubby, TransactionOutcome, WatchStream, Write, paths,
};
use ebla_model::id::ServerId;
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, TabletServer};
use futures::future::BoxFuture;

use super::life::{server_config, soon, start_master};

/// A service that counts the lists of all tables: one in each round of the reconciler.
#[derive(Debug)]
struct CountingChubby {
    chubby: SharedChubby,
    rounds: AtomicU32,
}

impl Chubby for CountingChubby {
    fn read<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<File>, Error>> {
        self.chubby.read(path)
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<(Vec<File>, Revision), Error>> {
        if prefix == paths::TABLES {
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        self.chubby.list(prefix)
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

/// Registers a server at an address where nothing listens.
async fn register_silent(chubby: &SharedChubby, server: ServerId) {
    let record = record::Server { server: server.get(), address: "127.0.0.1:1".to_owned(), ..Default::default() };
    let write = Write::put(paths::server(server), convert::encode_record(record));
    chubby.transact(Vec::new(), vec![write]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_become_rare_while_a_server_does_not_respond_and_an_event_starts_one() {
    let (runtime, data) = (Runtime::system("test"), tempfile::tempdir().unwrap());
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let (local_servers, mut servers) = (LocalServers::default(), Vec::new());
    for number in 0..3 {
        let config = server_config(data.path(), number, &local_servers);
        servers.push(TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap());
    }
    let counting = Arc::new(CountingChubby { chubby: chubby.clone(), rounds: AtomicU32::new(0) });
    let as_chubby: SharedChubby = Arc::clone(&counting) as SharedChubby;
    let master = start_master(&as_chubby, &runtime).await;
    let rounds = || counting.rounds.load(Ordering::Relaxed);

    register_silent(&chubby, ServerId::new(98)).await;
    let first = rounds();
    soon("the silent server is noticed", || async { rounds() >= first + 2 }).await;
    let before = rounds();
    tokio::time::sleep(Duration::from_secs(17)).await;
    let during = rounds() - before;
    // A round each second would be more than ten, also with jitter.
    assert!((1..=5).contains(&during), "{during} rounds in 17 s");

    // The pause is 16 s by now, and has just begun.
    let before = rounds();
    register_silent(&chubby, ServerId::new(99)).await;
    let started = runtime.clock.monotonic();
    soon("the event starts a round", || async { rounds() > before }).await;
    let took = runtime.clock.monotonic() - started;
    assert!(took < Duration::from_secs(9), "the event was noticed after {took:?}");
    master.stop().await;
    for server in servers {
        server.stop().await;
    }
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

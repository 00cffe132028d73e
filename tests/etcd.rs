//! Chubby on a real etcd of three members: the common suite, frozen members, everything killed.
//!
//! Runs with each installed etcd; missing ones are skipped with a message.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test may fail, and then says where")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ebla_chubby::etcd::Etcd;
use ebla_chubby::testing::conformance::{Reopen, ServiceUnderTest, run_all};
use ebla_chubby::{Chubby, Counter, Error, Revision, SharedChubby, TransactionOutcome, WatchEvent, Write, next_ids};
use ebla_runtime::Runtime;
use ebla_tests::etcd::{Build, EtcdCluster};
use futures::future::BoxFuture;
use futures::lock::Mutex;

/// The shortest lease that etcd grants with its usual election time.
const LEASE_SHORT: Duration = Duration::from_secs(2);
/// The lease of masters and tablet servers.
const LEASE: Duration = Duration::from_secs(10);
const LIVE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// Three members of each build that is here.
async fn clusters() -> Vec<EtcdCluster> {
    let mut clusters = Vec::new();
    for build in [Build::Debian, Build::PyPi] {
        match EtcdCluster::start(3, build).await {
            Ok(cluster) => clusters.push(cluster),
            Err(skip) => eprintln!("skipped with {build:?}: {skip}"),
        }
    }
    clusters
}

fn etcd(prefix: &str, endpoints: &[String]) -> SharedChubby {
    Etcd::with_prefix(prefix, endpoints, &Runtime::system("test")).unwrap().shared()
}

/// The service under one prefix; reopening kills every member and starts it again.
fn service_under_test(cluster: Arc<Mutex<EtcdCluster>>, prefix: String) -> BoxFuture<'static, ServiceUnderTest> {
    Box::pin(async move {
        let chubby = etcd(&prefix, &cluster.lock().await.endpoints());
        let reopen: Reopen = Box::new(move || {
            Box::pin(async move {
                revive(&mut *cluster.lock().await).await;
                service_under_test(cluster, prefix).await
            })
        });
        ServiceUnderTest { chubby, lease_time: LEASE_SHORT, reopen: Some(reopen) }
    })
}

/// Kills what still runs, and starts all members again.
async fn revive(cluster: &mut EtcdCluster) {
    cluster.stop();
    (0..cluster.len()).for_each(|at| cluster.restart(at).unwrap());
    cluster.wait_ready().await.unwrap();
}

/// Retries a call while etcd is unavailable.
async fn eventually<T, F: Future<Output = Result<T, Error>>>(call: impl Fn() -> F) -> T {
    let wait = async {
        loop {
            match call().await {
                Ok(value) => return value,
                Err(error) => eprintln!("not yet: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(LIVE, wait).await.unwrap()
}

async fn put(chubby: &dyn Chubby, write: Write) {
    // Putting the same again does no harm.
    let outcome = eventually(|| chubby.transact(vec![], vec![write.clone()])).await;
    assert!(matches!(outcome, TransactionOutcome::Committed(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_conforms() {
    for cluster in clusters().await {
        let cluster = Arc::new(Mutex::new(cluster));
        let count = AtomicU32::new(0);
        let make = || async {
            let number = count.fetch_add(1, Ordering::SeqCst);
            service_under_test(cluster.clone(), format!("/suite-{number}/")).await
        };
        run_all(make).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_survives_frozen_members_and_a_watch_reports_a_gap() {
    let clock = Runtime::system("test").clock;
    for mut cluster in clusters().await {
        let chubby = etcd("/frozen/", &cluster.endpoints());
        let mut session = chubby.open_session(LEASE).await.unwrap();
        put(&*chubby, Write::put_leased("servers/1", "x", session.lease())).await;
        let mut may_be_revoked = false;
        let (_files, now) = chubby.list("").await.unwrap();
        let mut watch = chubby.watch("", now).await.unwrap();
        for at in 0..cluster.len() {
            let leader = cluster.leader().await;
            cluster.pause(at);
            let frozen = clock.monotonic();
            // Longer than the lease: without renewals at the other members it would be over.
            while clock.monotonic() - frozen < LEASE + Duration::from_secs(1) {
                if eventually(|| chubby.read("servers/1")).await.is_none() {
                    assert!(may_be_revoked, "the leased file is gone while member {at} is frozen");
                    tokio::time::timeout(LIVE, session.lost()).await.expect("a session ends with its lease");
                    session = eventually(|| chubby.open_session(LEASE)).await;
                    put(&*chubby, Write::put_leased("servers/1", "x", session.lease())).await;
                    may_be_revoked = false;
                }
                assert!(session.is_alive() || may_be_revoked, "member {at} is frozen");
                tokio::time::sleep(PAUSE).await;
            }
            cluster.resume(at);
            // A leader that was frozen revokes the leases that are over by its own clock, after it has lost the leadership:
            // issue 15247 of etcd. Both builds have this fault.
            may_be_revoked |= leader.is_none_or(|leader| leader == at);
            cluster.wait_ready().await.unwrap();
        }
        let event = tokio::time::timeout(LIVE, watch.next()).await.unwrap();
        assert_eq!(event, Some(WatchEvent::Gap), "the member of the watch was frozen too");
        session.close().await;
        assert_eq!(eventually(|| chubby.read("servers/1")).await, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_survives_a_restart_of_all_members_and_sessions_are_accurate() {
    for mut cluster in clusters().await {
        let chubby = etcd("/killed/", &cluster.endpoints());
        let session = chubby.open_session(LEASE).await.unwrap();
        put(&*chubby, Write::put("kept", "1")).await;
        put(&*chubby, Write::put_leased("leased", "x", session.lease())).await;
        assert_eq!(next_ids(&*chubby, Counter::Tables, 5).await.unwrap(), 1..6);
        cluster.stop();
        let away = chubby.read("kept").await;
        assert!(matches!(away, Err(Error::Unavailable(_))), "{away:?}");
        revive(&mut cluster).await;

        assert_eq!(eventually(|| chubby.read("kept")).await.unwrap().value, "1");
        assert_eq!(eventually(|| next_ids(&*chubby, Counter::Tables, 1)).await.start, 6);
        let file = eventually(|| chubby.read("leased")).await;
        // The file may have expired between the two reads, but then the session was not renewed either.
        if session.is_alive() && file.is_none() {
            tokio::time::timeout(LIVE, session.lost()).await.unwrap();
        }
        if !session.is_alive() {
            let next = eventually(|| chubby.open_session(LEASE)).await;
            put(&*chubby, Write::put_leased("leased", "y", next.lease())).await;
            assert!(next.is_alive());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_is_lost_at_the_next_renewal() {
    for cluster in clusters().await {
        let chubby = etcd("/forgotten/", &cluster.endpoints());
        let session = eventually(|| chubby.open_session(LEASE)).await;
        let endpoint = cluster.endpoints().remove(0);
        let mut client = etcd_client::Client::connect([endpoint], None).await.unwrap();
        client.lease_revoke(i64::try_from(session.lease().get()).unwrap()).await.unwrap();
        tokio::time::timeout(LIVE, session.lost()).await.unwrap();
        assert!(!session.is_alive());
        let write = Write::put_leased("leased", "x", session.lease());
        assert_eq!(chubby.transact(vec![], vec![write]).await, Err(Error::LeaseLost));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_a_compacted_or_future_revision_is_a_gap() {
    for cluster in clusters().await {
        let chubby = etcd("/gap/", &cluster.endpoints());
        for _ in 0..10 {
            put(&*chubby, Write::put("w", "x")).await;
        }
        let (_files, now) = eventually(|| chubby.list("w")).await;
        let mut ahead = eventually(|| chubby.watch("w", Revision::new(now.get() + 1_000))).await;
        assert_eq!(ahead.next().await, Some(WatchEvent::Gap));

        compact(&cluster.endpoints()[0], now);
        let mut behind = eventually(|| chubby.watch("w", Revision::new(now.get() - 5))).await;
        let event = tokio::time::timeout(LIVE, behind.next()).await.unwrap();
        assert_eq!(event, Some(WatchEvent::Gap));
        assert_eq!(behind.next().await, None);
    }
}

/// Makes etcd forget its history below `revision`, through its JSON gateway.
fn compact(endpoint: &str, revision: Revision) {
    let address = endpoint.strip_prefix("http://").unwrap();
    let body = format!("{{\"revision\": {revision}, \"physical\": true}}");
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v3/kv/compaction HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_created_during_an_outage_works_afterwards() {
    for mut cluster in clusters().await {
        cluster.stop();
        let chubby = etcd("/away/", &cluster.endpoints());
        assert!(matches!(chubby.open_session(LEASE).await, Err(Error::Unavailable(_))));
        (0..cluster.len()).for_each(|at| cluster.restart(at).unwrap());
        let session = eventually(|| chubby.open_session(LEASE)).await;
        put(&*chubby, Write::put_leased("a", "x", session.lease())).await;
    }
}

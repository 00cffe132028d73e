//! A server with a stored identity: while Chubby is unavailable, and with the Chubby of another cluster.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::path::Path;
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::etcd::Etcd;
use ebla_chubby::{Chubby as _, SharedChubby, Write, paths};
use ebla_model::Reason;
use ebla_model::id::{ClusterId, ServerId};
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_proto::status::from_status;
use ebla_proto::{admin, convert, record};
use ebla_runtime::Runtime;
use ebla_storage::registry::{Identity, Registry};
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tonic::Request;
use tonic::transport::Channel;

const OURS: ClusterId = ClusterId::new(5);
const SERVER: ServerId = ServerId::new(3);

/// The data folder of a server of our cluster.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    Registry::open(folder.path()).unwrap().set_identity(Identity { cluster: OURS, server: SERVER }).unwrap();
    folder
}

async fn start(folder: &Path, chubby: SharedChubby, runtime: &Runtime) -> TabletServer {
    let config = ServerConfig::new(folder, "127.0.0.1:0", ServerOptions::up(LocalServers::default()));
    TabletServer::start(config, chubby, runtime.child("server")).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_an_identity_starts_while_chubby_is_unavailable() {
    let (folder, runtime) = (folder(), Runtime::system("test"));
    // No server listens there.
    let chubby = Etcd::new(&["http://127.0.0.1:1".to_owned()], &runtime).unwrap().shared();
    let server = start(folder.path(), chubby, &runtime).await;
    assert_eq!((server.id(), server.directory().cluster()), (SERVER, Some(OURS)));
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(30)).await;
}

/// Why a table of this name was not created within this time.
async fn creation_failure(
    mut client: BigtableTableAdminClient<Channel>,
    table_id: String,
    timeout: Duration,
) -> Reason {
    let parent = "projects/p/instances/i".to_owned();
    let mut request = Request::new(admin::CreateTableRequest { parent, table_id, ..Default::default() });
    request.set_timeout(timeout);
    from_status(&client.create_table(request).await.unwrap_err()).0.reason
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_calls_that_wait_for_a_master_hold_a_bounded_number_of_bytes() {
    let (folder, runtime) = (folder(), Runtime::system("test"));
    let chubby = Etcd::new(&["http://127.0.0.1:1".to_owned()], &runtime).unwrap().shared();
    let server = start(folder.path(), chubby, &runtime).await;
    let client = BigtableTableAdminClient::new(runtime.net.channel(server.address()));
    let create = |bytes: usize, timeout| creation_failure(client.clone(), "t".repeat(bytes), timeout);
    let (large, long, short) = (15 << 20, Duration::from_secs(300), Duration::from_millis(500));
    // The calls arrive in any order. So the fourth one is repeated until the others are there, and they are if it was there before.
    let hold = async || loop {
        let ended = create(large, long).await;
        if ended != Reason::ResourceExhausted {
            return ended;
        }
        tokio::time::sleep(short / 10).await;
    };
    let mut waiting: FuturesUnordered<_> = (0..3).map(|_| hold()).collect();
    let refused = async {
        while create(large, short).await != Reason::ResourceExhausted {
            tokio::time::sleep(short).await;
        }
        create(1, short).await
    };
    let small = tokio::select! {
        ended = waiting.next() => panic!("a call ended with {ended:?}"),
        small = tokio::time::timeout(long / 5, refused) => small.expect("a fourth call is refused"),
    };
    assert_ne!(small, Reason::ResourceExhausted, "there is room for small calls");
    drop(waiting);
    let admitted = async { while create(large, short).await == Reason::ResourceExhausted {} };
    tokio::time::timeout(long / 5, admitted).await.expect("the bytes of cancelled calls are free");
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(30)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_does_not_join_another_cluster() {
    let (folder, runtime) = (folder(), Runtime::system("test"));
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
    let other = record::Cluster { cluster: ClusterId::new(6).to_bytes().to_vec().into(), ..Default::default() };
    let write = Write::put(paths::CLUSTER, convert::encode_record(other));
    chubby.transact(Vec::new(), vec![write]).await.unwrap();
    let server = start(folder.path(), chubby.shared(), &runtime).await;
    let refused = server.registration_refused().await;
    assert_eq!(refused.reason, Reason::FailedPrecondition, "{refused}");
    assert_eq!(server.directory().cluster(), Some(OURS), "its cached copy of its own cluster is unchanged");
    server.stop().await;
    assert_eq!(chubby.list(paths::SERVERS).await.unwrap().0, Vec::new());
    runtime.tasks.stop(Duration::from_secs(30)).await;
}

//! A server with a stored identity: while Chubby is unavailable, and with the Chubby of another cluster.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::path::Path;
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::etcd::Etcd;
use ebla_chubby::{Chubby as _, SharedChubby, Write, paths};
use ebla_model::Reason;
use ebla_model::id::{ClusterId, ServerId};
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_storage::registry::{Identity, Registry};
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};

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

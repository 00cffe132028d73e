//! The active cluster version: while a server of an earlier release is registered, quotas are refused; without it the next version becomes
//! active, unless it is held; then a master of an earlier release does not start.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::testing::faulty::FaultyChubby;
use ebla_chubby::{Counter, SharedChubby, Write, next_ids, paths};
use ebla_client::Client;
use ebla_client::admin::{Admin, ExecutionMode, VersionHold};
use ebla_master::{Master, MasterConfig};
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::Reason;
use ebla_model::id::ServerId;
use ebla_model::quota::QuotaLimits;
use ebla_model::schema::TableName;
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn read_cluster(chubby: &SharedChubby) -> record::Cluster {
    convert::decode_record(chubby.read(paths::CLUSTER).await.unwrap().unwrap().value).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_version_waits_for_every_server_and_for_the_operator() {
    let runtime = Runtime::system("test");
    let data = tempfile::tempdir().unwrap();
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let options = ServerOptions::up(LocalServers::default());
    let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
    let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    server.ready().await;
    // A server of an earlier release registers no versions.
    let old = ServerId::new(next_ids(chubby.as_ref(), Counter::Servers, 1).await.unwrap().start);
    let registered = record::Server {
        server: old.get(),
        address: "127.0.0.1:1".to_owned(),
        release: "0.0.9".to_owned(),
        ..Default::default()
    };
    let registration = Write::put(paths::server(old), convert::encode_record(registered));
    chubby.transact(Vec::new(), vec![registration]).await.unwrap();
    let upgrade_delay = Duration::from_millis(100);
    let config = || MasterConfig { bootstrap_servers: 1, upgrade_delay, ..MasterConfig::new("127.0.0.1:0", 1) };
    let master = Master::start(config(), chubby.clone(), runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    assert_eq!(read_cluster(&chubby).await.version, 1, "a server of an earlier release can read it");

    let name = TableName::from_parts("p", "i", "t").unwrap();
    let client = Client::endpoint(server.address(), runtime.clone());
    client.admin().create_table(&name, &[("f".to_owned(), None)], &[]).await.unwrap();
    let admin = Admin::connect(server.address(), &runtime);
    let status = admin.upgrade_status().await.unwrap();
    assert_eq!((status.active_version, status.next_version, status.held), (1, 2, false));
    let expected = "tablet server 2 (127.0.0.1:1) runs release 0.0.9, which supports versions 1: restart it with a release that supports \
                    version 2";
    assert_eq!(status.obstacles, [expected]);
    let roles: Vec<_> = status.processes.iter().map(|process| (process.server, process.active)).collect();
    assert_eq!(roles, [(0, true), (1, false), (2, false)]);
    let limits = QuotaLimits { cells: Some(1000), ..QuotaLimits::default() };
    let refused = admin.set_quota(&name, None, limits).await.unwrap_err();
    assert_eq!(refused.reason, Reason::FailedPrecondition);
    assert!(refused.message.contains("see ebla cluster upgrade status"), "{refused}");

    let held = admin.hold_upgrade(ExecutionMode::Execute, VersionHold::Hold).await.unwrap();
    assert_eq!((held.active_version, held.was_held), (1, false));
    chubby.transact(Vec::new(), vec![Write::delete(paths::server(old))]).await.unwrap();
    tokio::time::sleep(20 * upgrade_delay).await;
    let status = admin.upgrade_status().await.unwrap();
    assert_eq!((status.active_version, status.held, status.obstacles.len()), (1, true, 1), "{status:?}");
    assert!(admin.hold_upgrade(ExecutionMode::DryRun, VersionHold::Continue).await.unwrap().was_held);
    assert!(read_cluster(&chubby).await.version_held, "a dry run changes nothing");

    assert!(admin.hold_upgrade(ExecutionMode::Execute, VersionHold::Continue).await.unwrap().was_held);
    let active = async {
        while admin.upgrade_status().await.unwrap().active_version < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, active).await.unwrap();
    let cluster = read_cluster(&chubby).await;
    assert_eq!((cluster.version, cluster.active_version, cluster.version_held), (2, 2, false));
    assert_eq!(cluster.state(), record::ClusterState::Running);
    admin.set_quota(&name, None, limits).await.unwrap();
    assert_eq!(admin.upgrade_status().await.unwrap().next_version, 0, "the upgrade is complete");

    // A later release has changed the cluster: this one cannot start another master.
    let later = record::Cluster { active_version: ClusterVersion::NEWEST.next().get(), ..cluster };
    chubby.transact(Vec::new(), vec![Write::put(paths::CLUSTER, convert::cluster_to_bytes(later))]).await.unwrap();
    let refused = Master::start(config(), chubby.clone(), runtime.clone()).await.unwrap_err();
    assert_eq!(refused.reason, Reason::FailedPrecondition);
    assert!(refused.message.contains("is older than this cluster, in which version 3 is active"), "{refused}");
    master.stop().await;
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

/// A server of an earlier release, which registers no versions. It takes an id and never responds.
async fn register_earlier(chubby: &SharedChubby) -> ServerId {
    let server = ServerId::new(next_ids(chubby.as_ref(), Counter::Servers, 1).await.unwrap().start);
    let address = "127.0.0.1:1".to_owned();
    let registered = record::Server { server: server.get(), address, ..Default::default() };
    let registration = Write::put(paths::server(server), convert::encode_record(registered));
    chubby.transact(Vec::new(), vec![registration]).await.unwrap();
    server
}

async fn remove(chubby: &SharedChubby, server: ServerId) {
    chubby.transact(Vec::new(), vec![Write::delete(paths::server(server))]).await.unwrap();
}

/// A server that starts on the folder of another one replaces its registration, so the list of the master may name the earlier process.
#[tokio::test(flavor = "multi_thread")]
async fn no_version_becomes_active_while_a_server_of_an_earlier_release_registers() {
    let runtime = Runtime::system("test");
    let data = tempfile::tempdir().unwrap();
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let faulty = FaultyChubby::new(chubby.clone());
    let options = ServerOptions::up(LocalServers::default());
    let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
    let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    server.ready().await;
    let upgrade_delay = Duration::from_millis(100);
    let config = MasterConfig { bootstrap_servers: 1, upgrade_delay, ..MasterConfig::new("127.0.0.1:0", 1) };

    let mut creation = faulty.hold_before(paths::CLUSTER);
    let master = Master::start(config, faulty.shared(), runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, creation.reached()).await.unwrap();
    let earlier = register_earlier(&chubby).await;
    creation.release();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    assert_eq!(read_cluster(&chubby).await.active_version, 1, "the first version of the cluster");

    let mut activation = faulty.hold_before(paths::CLUSTER);
    remove(&chubby, earlier).await;
    tokio::time::timeout(TIMEOUT, activation.reached()).await.unwrap();
    let earlier = register_earlier(&chubby).await;
    activation.release();
    tokio::time::sleep(20 * upgrade_delay).await;
    assert_eq!(read_cluster(&chubby).await.active_version, 1, "a server that supports only this one is registered");

    remove(&chubby, earlier).await;
    let active = async {
        while read_cluster(&chubby).await.active_version < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, active).await.unwrap();
    master.stop().await;
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_begins_with_the_newest_version() {
    let runtime = Runtime::system("test");
    let data = tempfile::tempdir().unwrap();
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let options = ServerOptions::up(LocalServers::default());
    let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
    let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    let config = MasterConfig { bootstrap_servers: 1, ..MasterConfig::new("127.0.0.1:0", 1) };
    let master = Master::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    assert_eq!(read_cluster(&chubby).await.active_version, ClusterVersion::NEWEST.get());
    master.stop().await;
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

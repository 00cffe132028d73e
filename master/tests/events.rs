//! Events of the cluster and its registration, over the API: they are in Chubby, so the next master has them too.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_client::Client;
use ebla_client::admin::{Admin, ExecutionMode};
use ebla_client::cluster_events::ClusterEvent;
use ebla_master::{Master, MasterConfig};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until an event of this name is recorded; returns all events.
async fn until_recorded(admin: &Admin, name: &str) -> Vec<ClusterEvent> {
    let recorded = async {
        loop {
            // No master may be active for a moment.
            let events = admin.cluster_events(0).await.unwrap_or_default();
            if events.iter().any(|event| event.what == name) {
                return events;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, recorded).await.unwrap()
}

fn names(events: &[ClusterEvent]) -> Vec<&str> {
    events.iter().map(|event| event.what.as_str()).collect()
}

/// The event of this name. A slow machine may cause others, such as `server-lost`.
fn of_name<'a>(events: &'a [ClusterEvent], name: &str) -> &'a ClusterEvent {
    events.iter().find(|event| event.what == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_and_changes_of_tables_are_kept_for_the_next_master() {
    let runtime = Runtime::system("test");
    let data = tempfile::tempdir().unwrap();
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let local = LocalServers::default();
    let mut servers = Vec::new();
    for number in 0..3 {
        let folder = data.path().join(format!("server-{number}"));
        let config = ServerConfig::new(&folder, "127.0.0.1:0", ServerOptions::up(local.clone()));
        servers.push(TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap());
    }
    let config = || MasterConfig {
        bootstrap_servers: 2,
        cluster_name: "test-1".parse().unwrap(),
        ..MasterConfig::new("127.0.0.1:0", 1)
    };
    let master = Master::start(config(), chubby.clone(), runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    let address = servers.first().unwrap().address().to_owned();
    let admin = &Admin::connect(&address, &runtime);

    let name = TableName::from_parts("p", "i", "t").unwrap();
    let client = Client::endpoint(&address, runtime.clone());
    client.admin().create_table(&name, &[("f".to_owned(), None)], &[]).await.unwrap();
    let events = until_recorded(admin, "table-created").await;
    let created = of_name(&events, "table-created");
    assert!(of_name(&events, "master-elected").number < created.number, "{events:?}");
    assert!(created.detail.starts_with(&name.to_string()) && created.table.is_some(), "{created:?}");
    assert_eq!(created.cause, "operator");

    let drained = servers.last().unwrap().id();
    admin.drain_server(ExecutionMode::DryRun, drained).await.unwrap();
    admin.drain_server(ExecutionMode::Execute, drained).await.unwrap();
    let events = until_recorded(admin, "drain-finished").await;
    let of_drain = ["drain-requested", "drain-finished"].map(|name| of_name(&events, name));
    assert!(of_drain.iter().all(|event| event.server == Some(drained)), "{of_drain:?}");
    assert!(of_drain.is_sorted_by_key(|event| event.number), "{of_drain:?}");
    assert!(admin.undrain_server(ExecutionMode::Execute, drained).await.unwrap());
    // A server that is registered cannot be removed, and only the first refusal is an event.
    for mode in [ExecutionMode::DryRun, ExecutionMode::Execute, ExecutionMode::Execute] {
        admin.remove_server(mode, drained).await.unwrap_err();
    }
    let events = until_recorded(admin, "removal-refused").await;
    let refused = of_name(&events, "removal-refused");
    assert_eq!((refused.cause.as_str(), refused.server), ("operator", Some(drained)));
    assert!(refused.detail.starts_with(&format!("server {drained}")), "{refused:?}");
    let events = until_recorded(admin, "drain-ended").await;
    let ended = of_name(&events, "drain-ended").number;
    let after = |number| async move { admin.cluster_events(number).await.unwrap() };
    assert!(after(ended).await.iter().all(|event| event.number > ended), "only later ones");
    assert!(after(ended - 1).await.iter().any(|event| event.number == ended));

    let registered = async {
        loop {
            let described = admin.describe_cluster().await.unwrap();
            // The first registration may be of a cluster without groups; the next one follows within 15 s.
            if described.registration.as_ref().is_some_and(|registration| registration.tables == 1) {
                return described;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let described = tokio::time::timeout(TIMEOUT, registered).await.unwrap();
    let registration = described.registration.unwrap();
    assert_eq!((registration.name.as_str(), registration.servers, registration.masters), ("test-1", 3, 1));
    assert_eq!((registration.master.as_str(), registration.servers_responding), (master.address(), 3));
    assert!(registration.tablets >= 3 && registration.groups >= 2, "{registration:?}");
    assert!(described.age_millis < 60_000 && described.cluster.len() == 16, "{}", described.age_millis);

    let standby = Master::start(config(), chubby.clone(), runtime.clone()).await.unwrap();
    master.stop().await;
    tokio::time::timeout(TIMEOUT, standby.ready()).await.unwrap();
    client.admin().delete_table(&name).await.unwrap();
    let later = until_recorded(admin, "table-deleted").await;
    assert_eq!(later.get(..events.len()), Some(&events[..]), "the next master has the events of the first one");
    assert!(names(&later).iter().filter(|name| **name == "master-elected").count() >= 2, "{later:?}");
    assert!(later.is_sorted_by_key(|event| event.number));
    // The first master has stopped: it gave its lease back, as its last event.
    let of_lease: Vec<&str> = names(&later).into_iter().filter(|name| name.starts_with("master-")).collect();
    assert_eq!(of_lease, ["master-elected", "master-lease-released", "master-elected"]);
    assert_eq!(of_name(&later, "master-lease-released").detail, of_name(&later, "master-elected").detail);
    assert_eq!(names(&later).iter().filter(|name| **name == "removal-refused").count(), 1, "{later:?}");
    standby.stop().await;
    for server in servers {
        server.stop().await;
    }
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

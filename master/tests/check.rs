//! The check of a cluster over its API: a lost row of METADATA is found and repaired, a folder that was set aside is only found.

use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_client::Client;
use ebla_client::admin::{Admin, CheckDepth, CheckMode};
use ebla_master::{Master, MasterConfig};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::schema::TableName;
use ebla_proto::operate::CheckReply;
use ebla_routing::Metadata;
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

fn problems(reply: &CheckReply) -> Vec<&str> {
    reply.findings.iter().map(|finding| finding.problem.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_row_is_repaired_and_a_folder_set_aside_is_shown() {
    let runtime = Runtime::system("test");
    let data = tempfile::tempdir().unwrap();
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let options = ServerOptions::up(LocalServers::default());
    let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
    let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    let master = MasterConfig { bootstrap_servers: 1, ..MasterConfig::new("127.0.0.1:0", 1) };
    let master = Master::start(master, chubby, runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    let name = TableName::from_parts("p", "i", "t").unwrap();
    let client = Client::endpoint(server.address(), runtime.clone());
    let split = RowKey::new("m");
    client.admin().create_table(&name, &[("f".to_owned(), None)], &[split]).await.unwrap();
    let admin = Admin::connect(server.address(), &runtime);

    let sound = admin.check(CheckDepth::Contents, CheckMode::ReadOnly).await.unwrap();
    assert_eq!(problems(&sound), [""; 0]);
    // The root tablet, METADATA's other one, and two of the table.
    assert_eq!((sound.tables, sound.tablets, sound.compared, sound.not_compared), (1, 4, 4, 0));

    let metadata = Metadata::new(server.cluster().clone());
    let deadline = server.cluster().deadline(TIMEOUT);
    let rows = metadata.read_range(KeyRange::all(), deadline).await.unwrap();
    let lost = rows.into_iter().map(|row| row.descriptor).find(|row| row.range.start() == &RowKey::new("m")).unwrap();
    metadata.delete(&lost, deadline).await.unwrap();
    let found = admin.check(CheckDepth::Metadata, CheckMode::ReadOnly).await.unwrap();
    let expected = format!("METADATA lacks tablet {} of table {}", lost.tablet, lost.table);
    assert!(problems(&found).concat().starts_with(&expected), "{found:?}");
    assert!(found.findings.iter().all(|finding| finding.repairable) && found.compared == 0, "{found:?}");
    let repaired = admin.check(CheckDepth::Metadata, CheckMode::Repair).await.unwrap();
    assert!(repaired.repaired.concat().starts_with(&expected) && repaired.findings.is_empty(), "{repaired:?}");

    std::fs::create_dir_all(data.path().join("set-aside").join("g9-r9.0")).unwrap();
    let found = admin.check(CheckDepth::Metadata, CheckMode::Repair).await.unwrap();
    let finding = found.findings.first().unwrap();
    assert!(finding.problem.contains("has set 1 folders aside") && !finding.repairable, "{found:?}");
    assert!(finding.next_step.contains("set-aside"), "{found:?}");
    master.stop().await;
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

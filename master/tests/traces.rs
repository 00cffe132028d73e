//! The master's part of an admin call: what it waited for, between the server that has passed the call on and those that have carried it out.

use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_client::Client;
use ebla_client::admin::Admin;
use ebla_master::{Master, MasterConfig};
use ebla_model::schema::TableName;
use ebla_proto::trace::{ListReply, ListRequest, Record};
use ebla_runtime::Runtime;
use ebla_runtime::trace::TraceOptions;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_call_is_shown_with_the_masters_part_and_that_of_the_servers() {
    let runtime = Runtime::system("test");
    let data = tempfile::tempdir().unwrap();
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    // Every operation is slow.
    let traces = TraceOptions { slow: Duration::ZERO, ..TraceOptions::default() };
    let mut options = ServerOptions::up(LocalServers::default());
    options.traces = traces;
    let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
    let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    let config = MasterConfig { bootstrap_servers: 1, traces, ..MasterConfig::new("127.0.0.1:0", 1) };
    let master = Master::start(config, chubby, runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    let name = TableName::from_parts("p", "i", "t").unwrap();
    let client = Client::endpoint(server.address(), runtime.clone());
    client.admin().create_table(&name, &[("f".to_owned(), None)], &[]).await.unwrap();

    let admin = Admin::connect(server.address(), &runtime);
    let list = async |request| {
        let ListReply { records, unreachable } = admin.traces(request).await.unwrap();
        assert_eq!(unreachable, []);
        records
    };
    let records = list(ListRequest::default()).await;
    let create = |is_wanted: &dyn Fn(&Record) -> bool| {
        records.iter().find(|record| record.method == "CreateTable" && is_wanted(record)).unwrap().clone()
    };
    let at_front = create(&|record| record.origin == "admin");
    let at_master = create(&|record| record.server == 0);
    assert_eq!((at_front.server, at_master.parent), (server.id().get(), at_front.span));
    assert_eq!((at_front.trace_high, at_front.trace_low), (at_master.trace_high, at_master.trace_low));
    let stages: Vec<_> = at_master.stages.iter().map(|time| time.stage.as_str()).collect();
    // This Chubby is in memory and answers at once, so nothing waits for it.
    assert!(["server", "forward"].iter().all(|stage| stages.contains(stage)), "{at_master:?}");
    let ordered: Vec<_> = records.iter().filter(|record| record.parent == at_master.span).collect();
    // The row of METADATA is written without a call: its tablet is in this process.
    let is_ordered = |record: &&Record| record.method == "CreateTablets" && record.server != 0;
    assert!(ordered.iter().any(is_ordered), "{ordered:?}");
    let server_only = list(ListRequest { server: server.id().get(), ..ListRequest::default() }).await;
    assert!(!server_only.is_empty() && server_only.iter().all(|record| record.server != 0));
    master.stop().await;
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

//! A slow write says where its time went; a trace goes from a client through two servers to a collector.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::Admin;
use ebla_proto::data;
use ebla_proto::otlp::trace_service_server::{TraceService, TraceServiceServer};
use ebla_proto::otlp::{ExportTraceServiceRequest, ExportTraceServiceResponse, Span};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::trace::{ListReply, ListRequest, Record};
use ebla_runtime::{Runtime, ServeOptions, serve};
use ebla_tablet_server::CollectorAddress;
use tokio::sync::mpsc;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::fixture::{Fixture, TABLE, TABLET, TIMEOUT, schema};
use super::rows::set;

/// By how much syncs are delayed: far above what a write takes on a busy machine, and below what makes a disk count as slow.
const DELAY: Duration = Duration::from_millis(400);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";

/// Writes a row through the public API of a server, in the trace of the tests.
async fn mutate_row(runtime: &Runtime, fixture: &Fixture, through: usize) {
    let mut client = BigtableClient::new(runtime.net.channel(fixture.server(through).address()));
    let mut request = Request::new(data::MutateRowRequest {
        table_name: schema().name.as_str().to_owned(),
        row_key: Bytes::from_static(b"a secret key"),
        mutations: vec![set("q", "x")],
        ..Default::default()
    });
    request.metadata_mut().insert("traceparent", format!("00-{TRACE}-{CLIENT_SPAN}-01").parse().unwrap());
    request.set_timeout(TIMEOUT);
    client.mutate_row(request).await.unwrap();
}

/// The records of the trace of the tests, from all servers, asked for at one of them.
async fn records(runtime: &Runtime, fixture: &Fixture, at: usize, request: ListRequest) -> Vec<Record> {
    let admin = Admin::connect(fixture.server(at).address(), runtime);
    let ListReply { records, unreachable } = admin.traces(request).await.unwrap();
    assert_eq!(unreachable, []);
    let is_of_test = |record: &Record| format!("{:016x}{:016x}", record.trace_high, record.trace_low) == TRACE;
    records.into_iter().filter(is_of_test).collect()
}

/// The stage that took the longest, and whether it took at least the delay.
fn longest(record: &Record) -> (&str, bool) {
    let longest = record.stages.iter().max_by_key(|stage| stage.total_micros).unwrap();
    (&longest.stage, u128::from(longest.total_micros) >= DELAY.as_micros() * 9 / 10)
}

/// The record of the front and that of the leader, of a write that one server forwards to another.
async fn slow_write(fixture: &Fixture, runtime: &Runtime, leader: usize) -> (Record, Record) {
    let front = (leader + 1) % 3;
    mutate_row(runtime, fixture, front).await;
    // From the third server.
    let records = records(runtime, fixture, (leader + 2) % 3, ListRequest::default()).await;
    let of = |at: usize| {
        let server = fixture.server(at).id().get();
        records.iter().find(|record| record.server == server).unwrap().clone()
    };
    (of(front), of(leader))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_write_says_whether_the_disk_of_the_leader_or_the_followers_are_slow() {
    let (fixture, runtime) = (Fixture::start(1 << 20).await, Runtime::system("client"));
    let leader = fixture.leader(TABLET).await;
    fixture.sync_delays[leader].set(DELAY);
    let (at_front, at_leader) = slow_write(&fixture, &runtime, leader).await;
    fixture.sync_delays[leader].set(Duration::ZERO);
    assert_eq!(longest(&at_front), ("forward", true), "{at_front:?}");
    assert_eq!(longest(&at_leader), ("sync", true), "{at_leader:?}");
    assert_eq!((at_front.method.as_str(), at_leader.method.as_str()), ("MutateRow", "Write"));
    assert_eq!((at_leader.parent, at_front.leader), (at_front.span, at_leader.server));
    for record in [&at_front, &at_leader] {
        assert_eq!((record.kept.as_str(), record.code), ("slow", 0));
        assert_eq!(
            (record.table_id, record.tablet, record.table.as_str()),
            (TABLE.get(), TABLET.get(), schema().name.as_str())
        );
    }
    assert_eq!(at_leader.batch.as_ref().map(|batch| batch.writes), Some(1));
    assert!(!format!("{at_front:?}{at_leader:?}").contains("secret"), "records contain no keys");
    fixture.stop().await;

    let fixture = Fixture::start(1 << 20).await;
    let leader = fixture.leader(TABLET).await;
    for follower in (0..3).filter(|at| *at != leader) {
        fixture.sync_delays[follower].set(DELAY);
    }
    let (at_front, at_leader) = slow_write(&fixture, &runtime, leader).await;
    fixture.sync_delays.iter().for_each(|delay| delay.set(Duration::ZERO));
    assert_eq!(longest(&at_leader), ("replication", true), "{at_leader:?}");
    // One follower has to answer for a majority, the other one may do.
    let followers = &at_leader.followers;
    assert!((1..=2).contains(&followers.len()) && at_front.followers.is_empty(), "{at_leader:?}");
    for follower in followers {
        assert!(follower.is_measured && follower.server != at_leader.server, "{follower:?}");
        assert!(u128::from(follower.sync_micros) >= DELAY.as_micros() * 9 / 10, "{follower:?}");
        assert!(follower.queue_micros + follower.sync_micros <= follower.total_micros, "{follower:?}");
        let waited = follower.answered_micros - follower.sent_micros;
        assert!(follower.total_micros <= waited && waited <= at_leader.elapsed_micros, "{follower:?}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn records_are_selected_by_server_table_and_kind() {
    let (fixture, runtime) = (Fixture::start(1 << 20).await, Runtime::system("client"));
    let front = (fixture.leader(TABLET).await + 1) % 3;
    mutate_row(&runtime, &fixture, front).await;
    let list = async |request| records(&runtime, &fixture, 0, request).await;
    let sampled = ListRequest { sampled: true, ..ListRequest::default() };
    // Sampled, because the client has said so.
    let all = list(sampled.clone()).await;
    assert!(all.len() >= 2, "{all:?}");
    let server = fixture.server(front).id().get();
    let of_front = list(ListRequest { server, ..sampled.clone() }).await;
    assert_eq!(of_front.iter().map(|record| record.server).collect::<Vec<_>>(), [server]);
    let table = schema().name.as_str().to_owned();
    assert_eq!(list(ListRequest { table, ..sampled.clone() }).await.len(), all.len());
    let table = "projects/p/instances/inst/tables/other".to_owned();
    assert_eq!(list(ListRequest { table, ..sampled.clone() }).await, []);
    assert_eq!(list(ListRequest { since_micros: i64::MAX, ..sampled.clone() }).await, []);
    assert_eq!(list(ListRequest { limit: 1, ..sampled }).await.len(), 1);
    let admin = Admin::connect(fixture.server(0).address(), &runtime);
    let unknown = admin.traces(ListRequest { server: 99, ..ListRequest::default() }).await.unwrap();
    assert_eq!(unknown.unreachable.iter().map(|missing| missing.server).collect::<Vec<_>>(), [99]);
    fixture.stop().await;
}

/// A collector that passes spans on to the test.
struct Collector(mpsc::Sender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for spans in request.into_inner().resource_spans.into_iter().flat_map(|resource| resource.scope_spans) {
            for span in spans.spans {
                // The test may have ended.
                let _ended = self.0.send(span).await;
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_sampled_trace_reaches_a_collector_from_both_servers_of_a_forwarded_call() {
    let runtime = Runtime::system("client");
    let (sender, mut received) = mpsc::channel(10_000);
    let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
    let address: CollectorAddress = format!("http://{}", listener.local_addr()).parse().unwrap();
    serve(&runtime.tasks, listener, Routes::new(TraceServiceServer::new(Collector(sender))), ServeOptions::default());
    let fixture = Fixture::start_exporting(address).await;
    let leader = fixture.leader(TABLET).await;
    mutate_row(&runtime, &fixture, (leader + 1) % 3).await;
    let mut spans: BTreeMap<String, Span> = BTreeMap::new();
    let arrived = async {
        while !(spans.contains_key("MutateRow") && spans.contains_key("Write") && spans.contains_key("sync")) {
            let span = received.recv().await.unwrap();
            if hex(&span.trace_id) == TRACE {
                spans.insert(span.name.clone(), span);
            }
        }
    };
    tokio::time::timeout(TIMEOUT, arrived).await.unwrap();
    assert_eq!(hex(&spans["MutateRow"].parent_span_id), CLIENT_SPAN);
    assert_eq!(spans["Write"].parent_span_id, spans["MutateRow"].span_id);
    assert_eq!(spans["sync"].parent_span_id, spans["Write"].span_id);
    assert!(spans["sync"].start_time_unix_nano >= spans["Write"].start_time_unix_nano);
    assert!(spans["sync"].end_time_unix_nano <= spans["Write"].end_time_unix_nano);
    fixture.stop().await;
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

//! A collector of the test receives what a recorder keeps.

use std::collections::BTreeSet;

use ebla_model::id::{GroupId, LogIndex, ServerId, TableId, TabletId, Term};
use ebla_proto::otlp::ExportTraceServiceResponse;
use ebla_proto::otlp::trace_service_server::{TraceService, TraceServiceServer};
use ebla_runtime::trace::{Batch, Outcome, SampleRate, Stage, TabletIds, TraceContext, TraceOptions};
use ebla_runtime::{ServeOptions, serve};
use tokio::sync::mpsc;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::*;

const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// Longer than any export takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A collector.
struct Collector(mpsc::Sender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).await.map_err(|_closed| Status::unavailable("the test has ended"))?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn recorder(runtime: &Runtime) -> Arc<Recorder> {
    let options = TraceOptions { sample: SampleRate::ALWAYS, ..TraceOptions::default() };
    Recorder::new(ServerId::new(3), options, runtime.clock.clone())
}

#[tokio::test]
async fn a_collector_receives_spans_with_their_parents_and_stages() {
    let runtime = Runtime::system("test");
    let (sender, mut received) = mpsc::channel(16);
    let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
    let address: CollectorAddress = format!("http://{}", listener.local_addr()).parse().unwrap();
    let routes = Routes::new(TraceServiceServer::new(Collector(sender)));
    serve(&runtime.tasks, listener, routes, ServeOptions::default());
    let recorder = recorder(&runtime);
    start_trace_export(&recorder, &address, &runtime).unwrap();
    let operation = recorder.begin("MutateRow", Origin::Data, TraceContext::parse(HEADER));
    operation.set_tablet(TabletIds { table: TableId::new(5), tablet: TabletId::new(6), group: GroupId::new(7) });
    let began = operation.now();
    let after = |millis| began + Duration::from_millis(millis);
    let batch = Batch { term: Term::new(2), index: LogIndex::new(9), writes: 4 };
    let stages = [(Stage::Propose, after(1), after(1)), (Stage::Sync, after(1), after(41))];
    operation.join_batch(batch, (Stage::Queue, began, after(1)), &stages);
    // Of another row of the same call.
    operation.join_batch(batch, (Stage::Queue, began, after(1)), &stages);
    let work = FollowerWork { queue: Duration::ZERO, sync: Duration::from_millis(5), total: Duration::from_millis(6) };
    let follower = FollowerTime { server: ServerId::new(4), sent: after(2), answered: after(9), work: Some(work) };
    operation.set_followers(&[follower]);
    operation.end(Outcome::of_code(14));
    recorder.begin("ReadRows", Origin::Data, None).end(Outcome::OK);
    let request = tokio::time::timeout(PATIENCE, received.recv()).await.unwrap().unwrap();
    let spans: Vec<_> = request.resource_spans[0].scope_spans[0].spans.clone();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    // No time was spent in `propose`.
    assert_eq!(names, ["MutateRow", "queue", "sync", "Append", "ReadRows"]);
    let length = |span: &Span| Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano);
    let attribute = |span: &Span, key: &str| {
        span.attributes.iter().find(|one| one.key == key).and_then(|one| one.value.clone()).and_then(|any| any.value)
    };
    let is_number = |number| Some(any_value::Value::IntValue(number));
    assert_eq!((length(&spans[2]), length(&spans[3])), (Duration::from_millis(40), Duration::from_millis(7)));
    assert_eq!(attribute(&spans[3], "ebla.follower"), is_number(4));
    assert_eq!(attribute(&spans[3], "ebla.follower.sync_micros"), is_number(5_000));
    let ids: BTreeSet<_> = spans.iter().map(|span| span.span_id.clone()).collect();
    assert_eq!(ids.len(), spans.len(), "their ids differ");
    assert!(spans[1..4].iter().all(|span| span.parent_span_id == spans[0].span_id));
    let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
    assert_eq!((&spans[0].trace_id[..], &spans[1].trace_id[..]), (&trace[..], &trace[..]));
    assert_eq!(spans[0].parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes().to_vec());
    assert_eq!(spans[0].status.as_ref().map(|status| status.message.as_str()), Some("UNAVAILABLE"));
    assert!(spans[4].parent_span_id.is_empty());
    for (key, value) in [("ebla.table_id", 5), ("ebla.tablet", 6), ("ebla.group", 7), ("ebla.batch.index", 9)] {
        assert_eq!(attribute(&spans[0], key), is_number(value), "{key}");
    }
    // The collector has them a moment before the exporter has its answer.
    let counted = async {
        while recorder.counts().exported.get() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, counted).await.unwrap();
    assert_eq!((recorder.counts().exported.get(), recorder.counts().dropped.get()), (2, 0));
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn records_are_dropped_and_counted_when_no_collector_answers() {
    let runtime = Runtime::system("test");
    let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
    let address: CollectorAddress = listener.local_addr().to_string().parse().unwrap();
    drop(listener);
    let recorder = recorder(&runtime);
    start_trace_export(&recorder, &address, &runtime).unwrap();
    recorder.begin("ReadRows", Origin::Data, None).end(Outcome::OK);
    let dropped = async {
        while recorder.counts().dropped.get() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, dropped).await.unwrap();
    assert_eq!(recorder.counts().exported.get(), 0);
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_collector_with_https_is_refused_without_certificates() {
    let runtime = Runtime::system("test");
    let recorder = recorder(&runtime);
    let address: CollectorAddress = "https://127.0.0.1:4317".parse().unwrap();
    let refused = start_trace_export(&recorder, &address, &runtime).unwrap_err();
    assert!(refused.message.contains("--tls-ca"), "{refused}");
    assert!(recorder.export_queue(1).is_some(), "no exporter has the queue");
}

#[test]
fn collectors_have_addresses() {
    for (text, shown) in [
        ("http://127.0.0.1:4317", "http://127.0.0.1:4317"),
        ("https://collector:4317/", "https://collector:4317"),
        ("[::1]:4317", "http://[::1]:4317"),
    ] {
        assert_eq!(text.parse::<CollectorAddress>().map(|address| address.to_string()), Ok(shown.to_owned()));
    }
    for text in
        ["", "collector", "http://", "http://:4317", "http://h:0", "http://h:70000", "grpc://h:1", "http://h/v1:4317"]
    {
        assert!(text.parse::<CollectorAddress>().is_err(), "{text}");
    }
}

//! Small calls on one stream, against a server that the test controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_proto::status::to_status;
use ebla_proto::tablet::call::Request as CallRequest;
use ebla_proto::tablet::call_reply::Outcome;
use ebla_proto::tablet::tablets_server::{Tablets, TabletsServer};
use ebla_proto::{record, tablet};
use ebla_runtime::call_stream::{self, Received};
use ebla_runtime::{Runtime, ServeOptions, serve};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use tokio::sync::Notify;
use tonic::{Request, Response, Status, Streaming};

use super::fake::Fake;
use crate::grpc_transport::GrpcTransport;
use crate::transport::{CallError, Target, Transport};

const TIMEOUT: Duration = Duration::from_secs(10);

/// A server that responds to writes of the row `slow` when the test allows it, never to those of `lost`, and at once to others.
/// A read of `large` is too large for the stream, and one of `endless` has messages of a mebibyte.
#[derive(Clone, Default)]
struct Server {
    release_slow: Arc<Notify>,
    /// Ends the open streams.
    end_streams: Arc<Notify>,
    streams: Arc<AtomicUsize>,
    received: Arc<AtomicUsize>,
    unary_writes: Arc<AtomicUsize>,
    /// Notified when the work for a write of `lost` is dropped.
    lost_dropped: Arc<Notify>,
    endless_messages: Arc<AtomicUsize>,
}

impl Server {
    fn serve(&self, call: tablet::Call) -> BoxFuture<'static, tablet::CallReply> {
        self.received.fetch_add(1, Ordering::SeqCst);
        let server = self.clone();
        async move {
            let outcome = match call.request {
                Some(CallRequest::Read(read)) if ["large", "endless"].iter().any(|row| read.rows[0].start == *row) => {
                    Outcome::Oversized(true)
                }
                Some(CallRequest::Read(_)) => Outcome::Read(reply("stream")),
                Some(CallRequest::Write(write)) if write.rows[0].row == "slow" => {
                    server.release_slow.notified().await;
                    Outcome::Write(tablet::WriteReply::default())
                }
                Some(CallRequest::Write(write)) if write.rows[0].row == "lost" => {
                    let _notifies = NotifyOnDrop(Arc::clone(&server.lost_dropped));
                    std::future::pending().await
                }
                Some(CallRequest::Write(_)) => Outcome::Write(tablet::WriteReply::default()),
                _ => {
                    let detail = Some(tablet::TabletError { retry_after_micros: Some(7), ..Default::default() });
                    let (reason, message) = (Reason::Busy.name().to_owned(), "full".to_owned());
                    Outcome::Error(tablet::CallError { reason, message, detail })
                }
            };
            tablet::CallReply { call: call.call, outcome: Some(outcome) }
        }
        .boxed()
    }
}

/// Notifies when it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn reply(response: &'static str) -> tablet::ReadReply {
    tablet::ReadReply { response: response.into(), finished: true, ..Default::default() }
}

fn not_expected<T>() -> Result<Response<T>, Status> {
    Err(to_status(&Error::internal("the call must use the stream")))
}

#[tonic::async_trait]
impl Tablets for Server {
    type ReadStream = BoxStream<'static, Result<tablet::ReadReply, Status>>;
    type ExchangeStream = BoxStream<'static, Result<tablet::CallReply, Status>>;

    async fn read(&self, request: Request<tablet::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        if request.get_ref().rows[0].start == "endless" {
            let count = Arc::clone(&self.endless_messages);
            let messages = stream::repeat_with(move || {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(tablet::ReadReply { response: vec![0; 1 << 20].into(), ..Default::default() })
            });
            return Ok(Response::new(messages.boxed()));
        }
        Ok(Response::new(stream::iter([Ok(reply("call"))]).boxed()))
    }

    async fn write(&self, _request: Request<tablet::WriteRequest>) -> Result<Response<tablet::WriteReply>, Status> {
        self.unary_writes.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(tablet::WriteReply::default()))
    }

    async fn check(&self, _request: Request<tablet::CheckRequest>) -> Result<Response<tablet::CheckReply>, Status> {
        self.unary_writes.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(tablet::CheckReply::default()))
    }

    async fn modify(&self, _request: Request<tablet::ModifyRequest>) -> Result<Response<tablet::ModifyReply>, Status> {
        self.unary_writes.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(tablet::ModifyReply::default()))
    }

    async fn sample(&self, _request: Request<tablet::SampleRequest>) -> Result<Response<tablet::SampleReply>, Status> {
        not_expected()
    }

    async fn exchange(
        &self,
        calls: Request<Streaming<tablet::Call>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        self.streams.fetch_add(1, Ordering::SeqCst);
        let (server, end) = (self.clone(), Arc::clone(&self.end_streams));
        let receive = move |call: tablet::Call| match call.request {
            Some(CallRequest::Cancel(_)) => Received::Cancellation(call.call),
            _ => Received::Call(Some(call.call), server.serve(call)),
        };
        let replies = call_stream::replies(calls.into_inner(), 10, std::future::pending(), receive);
        Ok(Response::new(replies.take_until(async move { end.notified().await }.boxed()).boxed()))
    }
}

/// A server, the transport to it, and its address.
async fn start(runtime: &Runtime) -> (Server, GrpcTransport, Target) {
    let server = Server::default();
    let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
    let target = Target { server: ServerId::new(1), address: listener.local_addr().to_string() };
    let routes = tonic::service::Routes::new(TabletsServer::new(server.clone()));
    serve(&runtime.tasks, listener, routes, ServeOptions::default());
    let transport = GrpcTransport::new(runtime.clone(), Arc::new(Fake::new(&[])));
    (server, transport, target)
}

fn write(row: &'static str, bytes: usize) -> tablet::WriteRequest {
    let mutations = vec![vec![0; bytes].into()];
    tablet::WriteRequest {
        rows: vec![tablet::RowMutations { row: row.into(), mutations, ..Default::default() }],
        ..Default::default()
    }
}

fn read(row: &str) -> tablet::ReadRequest {
    let (start, end) = (row.to_owned().into(), Some(format!("{row}\0").into()));
    tablet::ReadRequest { rows: vec![record::KeyRange { start, end }], ..Default::default() }
}

async fn read_response(transport: &GrpcTransport, target: &Target, row: &str) -> String {
    let replies: Vec<_> = transport.read(target, read(row), TIMEOUT).await.unwrap().try_collect().await.unwrap();
    assert_eq!(replies.len(), 1);
    String::from_utf8(replies[0].response.to_vec()).unwrap()
}

#[tokio::test]
async fn replies_arrive_in_any_order_on_one_stream() {
    let runtime = Runtime::system("test");
    let (server, transport, target) = start(&runtime).await;
    let mut slow = transport.write(&target, write("slow", 10), TIMEOUT);
    assert!((&mut slow).now_or_never().is_none());
    transport.write(&target, write("fast", 10), TIMEOUT).await.unwrap();
    assert_eq!(read_response(&transport, &target, "small").await, "stream");
    assert!((&mut slow).now_or_never().is_none());
    server.release_slow.notify_one();
    slow.await.unwrap();
    assert_eq!(server.streams.load(Ordering::SeqCst), 1);
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn large_requests_and_replies_are_calls_of_their_own() {
    let runtime = Runtime::system("test");
    let (server, transport, target) = start(&runtime).await;
    assert_eq!(read_response(&transport, &target, "large").await, "call");
    transport.write(&target, write("lost", 1 << 20), TIMEOUT).await.unwrap();
    assert_eq!(server.unary_writes.load(Ordering::SeqCst), 1);
    let check = tablet::CheckRequest { then: vec![vec![0; 1 << 20].into()], ..Default::default() };
    transport.check(&target, check, TIMEOUT).await.unwrap();
    let modify = tablet::ModifyRequest { rules: vec![vec![0; 1 << 20].into()], ..Default::default() };
    transport.modify(&target, modify, TIMEOUT).await.unwrap();
    assert_eq!(server.unary_writes.load(Ordering::SeqCst), 3);
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn reads_whose_messages_are_not_taken_block_no_other_call() {
    let runtime = Runtime::system("test");
    let (server, transport, target) = start(&runtime).await;
    let mut unread = Vec::new();
    // More than the window of a connection holds.
    for _ in 0..100 {
        unread.push(transport.read(&target, read("endless"), TIMEOUT).await.unwrap());
    }
    while server.endless_messages.load(Ordering::SeqCst) < 100 {
        tokio::task::yield_now().await;
    }
    transport.write(&target, write("fast", 10), TIMEOUT).await.unwrap();
    assert_eq!(read_response(&transport, &target, "small").await, "stream");
    assert_eq!(read_response(&transport, &target, "large").await, "call");
    drop(unread);
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn an_error_on_the_stream_has_its_reason_and_detail() {
    let runtime = Runtime::system("test");
    let (_server, transport, target) = start(&runtime).await;
    let CallError { error, detail } =
        transport.check(&target, tablet::CheckRequest::default(), TIMEOUT).await.unwrap_err();
    assert_eq!((error.reason, error.message.as_str()), (Reason::Busy, "full"));
    assert_eq!(detail.unwrap().retry_after_micros, Some(7));
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn pending_calls_fail_when_the_stream_ends_and_the_next_call_opens_another() {
    let runtime = Runtime::system("test");
    let (server, transport, target) = start(&runtime).await;
    let mut lost = transport.write(&target, write("lost", 10), TIMEOUT);
    assert!((&mut lost).now_or_never().is_none());
    transport.write(&target, write("fast", 10), TIMEOUT).await.unwrap();
    assert_eq!(server.received.load(Ordering::SeqCst), 2);
    server.end_streams.notify_waiters();
    // The server has received the call, so it may have been applied.
    assert_eq!(lost.await.unwrap_err().error.reason, Reason::OutcomeUnknown);
    transport.write(&target, write("fast", 10), TIMEOUT).await.unwrap();
    assert_eq!(server.streams.load(Ordering::SeqCst), 2);
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_drops_a_small_call_whose_caller_has_gone() {
    let runtime = Runtime::system("test");
    let (server, transport, target) = start(&runtime).await;
    let mut lost = transport.write(&target, write("lost", 10), TIMEOUT);
    assert!((&mut lost).now_or_never().is_none());
    transport.write(&target, write("fast", 10), TIMEOUT).await.unwrap();
    assert_eq!(server.received.load(Ordering::SeqCst), 2);
    drop(lost);
    let dropped = server.lost_dropped.notified();
    tokio::time::timeout(Duration::from_secs(60), dropped).await.expect("within a generous time");
    assert_eq!(read_response(&transport, &target, "small").await, "stream");
    assert_eq!(server.streams.load(Ordering::SeqCst), 1);
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn without_a_server_a_small_call_was_certainly_not_applied() {
    let runtime = Runtime::system("test");
    let transport = GrpcTransport::new(runtime.clone(), Arc::new(Fake::new(&[])));
    let target = Target { server: ServerId::new(1), address: "127.0.0.1:1".to_owned() };
    let error = transport.write(&target, write("row", 10), TIMEOUT).await.unwrap_err();
    assert_eq!(error.error.reason, Reason::Unavailable, "{error}");
    runtime.tasks.stop(Duration::ZERO).await;
}

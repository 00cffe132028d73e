//! Real reads over real connections, with smaller limits and a manual clock.

use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::Bytes;
use ebla_proto::data::{ReadRowsRequest, ReadRowsResponse};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::status::{from_status, to_status};
use ebla_runtime::{Net, ServeOptions, Tasks, serve};
use futures::stream::{self, FuturesUnordered};
use futures::{StreamExt, TryStreamExt};
use tonic::codegen::{BoxFuture, BoxStream, Service};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::*;
use crate::middleware::{CallFuture, CallRequest, CallResponse, GrpcService};

const MIB: usize = 1 << 20;
/// Messages of one response, of a mebibyte each.
const MESSAGES: usize = 20;

/// A ReadRows that produces messages as fast as they are taken.
#[derive(Clone, Default)]
struct Rows {
    /// The number of responses with a source.
    sources: ResourceCounter,
}

impl NamedService for Rows {
    const NAME: &'static str = "google.bigtable.v2.Bigtable";
}

impl tonic::server::ServerStreamingService<ReadRowsRequest> for Rows {
    type Response = ReadRowsResponse;
    type ResponseStream = BoxStream<ReadRowsResponse>;
    type Future = BoxFuture<tonic::Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: tonic::Request<ReadRowsRequest>) -> Self::Future {
        let source = self.sources.try_reserve(1, usize::MAX).unwrap();
        let account = request.extensions().get::<ReadAccount>().cloned().unwrap();
        Box::pin(async move {
            account.begin(MIB, 0).map_err(|error| to_status(&error))?;
            let messages = stream::iter(0..MESSAGES).map(move |_| {
                let _held_by_the_stream = (&source, account.hold(0));
                Ok(ReadRowsResponse { last_scanned_row_key: Bytes::from(vec![0; MIB]), ..Default::default() })
            });
            Ok(tonic::Response::new(messages.boxed() as BoxStream<_>))
        })
    }
}

impl Service<CallRequest> for Rows {
    type Response = CallResponse;
    type Error = Infallible;
    type Future = CallFuture;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: CallRequest) -> CallFuture {
        let rows = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::<ReadRowsResponse, ReadRowsRequest>::default();
            Ok(tonic::server::Grpc::new(codec).server_streaming(rows, request).await)
        })
    }
}

struct Fixture {
    tasks: Tasks,
    clock: Clock,
    rows: Rows,
    budget: ResponseBudget,
    address: String,
}

impl Fixture {
    async fn start(total: usize) -> Self {
        let (tasks, clock, rows) = (Tasks::new("test"), Clock::manual(), Rows::default());
        let budget = ResponseBudget::new(ResponseBytes { total, ..Default::default() }, clock.clone());
        let listener = Net::tcp().listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        let service = rows.clone().with(ReadBudget::new(ReadService::Public, budget.clone()));
        serve(&tasks, listener, Routes::default().add_service(service), ServeOptions::default());
        Self { tasks, clock, rows, budget, address }
    }

    /// A client with a connection of its own, which says that it is a peer's: any client can, to open thousands of reads.
    fn client(&self) -> BigtableClient<Channel> {
        BigtableClient::new(Net::tcp().peer_channel(&self.address)).max_decoding_message_size(2 * MIB)
    }

    /// Opens this number of reads, and returns those that are not refused.
    async fn open(&self, client: &BigtableClient<Channel>, count: usize) -> Vec<Streaming<ReadRowsResponse>> {
        let open = |_| {
            let mut client = client.clone();
            async move { client.read_rows(ReadRowsRequest::default()).await }
        };
        let mut opening: FuturesUnordered<_> = (0..count).map(open).collect();
        let mut opened = Vec::new();
        while let Some(response) = timely(opening.next()).await {
            match response {
                Ok(response) => opened.push(response.into_inner()),
                Err(status) => assert_eq!(from_status(&status).0.reason, Reason::Busy, "{status}"),
            }
        }
        opened
    }

    /// Lets this time pass and sweeps, again and again, until the condition holds: a read that still makes progress is stalled later.
    async fn pass(&self, time: Duration, until: impl Fn() -> bool) {
        timely(async {
            while !until() {
                self.clock.advance(time);
                self.budget.sweep();
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    async fn until_unused(&self) {
        timely(async {
            while self.budget.in_use() > 0 || !self.budget.0.streams.lock().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

async fn timely<T>(waited_for: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), waited_for).await.expect("within a generous time")
}

/// Reads a response to its end; returns the number of its messages.
async fn read_all(response: Streaming<ReadRowsResponse>) -> Result<usize, Status> {
    timely(response.try_fold(0, async |count, _message| Ok(count + 1))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_whose_responses_are_not_read_hold_a_bounded_number_of_bytes_and_another_client_is_served() {
    let fixture = Fixture::start(64 * MIB).await;
    let (greedy, other) = (fixture.client(), fixture.client());
    let mut unread = fixture.open(&greedy, 1_000).await;
    assert!((8..1_000).contains(&unread.len()), "{} are open", unread.len());
    // Reads that were refused have released what they were charged, so there may be room for some more.
    while let Some(response) = fixture.open(&greedy, 1).await.pop() {
        unread.push(response);
        assert!(unread.len() < 1_000, "this connection is never beyond its share");
    }
    // Half of the total, and a message or two for each thread that passed the check at the same time.
    let in_use = fixture.budget.in_use();
    assert!(in_use <= 40 * MIB, "{in_use} bytes");
    let [response] = fixture.open(&other, 1).await.try_into().unwrap();
    assert_eq!(read_all(response).await.unwrap(), MESSAGES);
    drop(unread);
    fixture.until_unused().await;
    let [response] = fixture.open(&greedy, 1).await.try_into().unwrap();
    assert_eq!(read_all(response).await.unwrap(), MESSAGES, "it reads again");
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_of_one_connection_that_are_read_all_end() {
    let fixture = Fixture::start(16 * MIB).await;
    let opened = fixture.open(&fixture.client(), 100).await;
    assert!(!opened.is_empty());
    // All at the same time: HTTP/2 lets those that are not read block the connection.
    let mut reading: FuturesUnordered<_> = opened.into_iter().map(read_all).collect();
    while let Some(read) = reading.next().await {
        assert_eq!(read.unwrap(), MESSAGES);
    }
    fixture.until_unused().await;
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_whose_client_takes_nothing_for_a_minute_is_ended() {
    let fixture = Fixture::start(64 * MIB).await;
    let client = fixture.client();
    let [mut response] = fixture.open(&client, 1).await.try_into().unwrap();
    assert!(timely(response.message()).await.unwrap().is_some());
    let timeout = fixture.budget.0.limits.stall_timeout;
    fixture.pass(timeout, || fixture.rows.sources.in_use() == 0).await;
    // The messages that the transport holds come first.
    let mut read = 1;
    let ended = loop {
        match timely(response.message()).await {
            Ok(Some(_message)) => read += 1,
            Ok(None) => panic!("the response is complete"),
            Err(status) => break status,
        }
    };
    assert!(read < MESSAGES, "{read}");
    assert_eq!((ended.code(), from_status(&ended).0.reason), (Code::DeadlineExceeded, Reason::Deadline));
    assert!(ended.message().contains("not read for 60s"), "{ended}");
    drop(response);
    fixture.until_unused().await;
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_connection_that_reads_nothing_is_closed_when_memory_is_short() {
    let fixture = Fixture::start(32 * MIB).await;
    let clients: Vec<_> = (0..3).map(|_| fixture.client()).collect();
    let mut unread = Vec::new();
    for client in &clients {
        unread.push(fixture.open(client, 100).await);
        // The next one finds room: the shares become smaller.
        fixture.budget.sweep();
    }
    assert!(unread.iter().all(|streams| !streams.is_empty()));
    assert!(fixture.budget.in_use() >= 24 * MIB, "{} bytes", fixture.budget.in_use());
    fixture.pass(STALLED, || fixture.budget.in_use() < 24 * MIB).await;
    let [response] = fixture.open(&fixture.client(), 1).await.try_into().unwrap();
    assert_eq!(read_all(response).await.unwrap(), MESSAGES);
    fixture.tasks.stop(Duration::ZERO).await;
}

#[test]
fn memory_that_is_used_up_has_no_room_until_some_is_released() {
    let budget = ResponseBudget::new(ResponseBytes { total: 100, ..Default::default() }, Clock::manual());
    let memory = budget.memory();
    let (first, second) = (memory.charge(99), memory.charge(500));
    assert_eq!((memory.has_room(), budget.in_use()), (false, 599), "what is in memory is counted, whatever the limit");
    drop(second);
    assert!(memory.has_room());
    drop(first);
    assert_eq!(budget.in_use(), 0);
    assert!(Memory::default().has_room());
}

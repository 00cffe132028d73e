//! The budget alone, and real calls over real connections with smaller limits.

use std::convert::Infallible;
use std::time::Duration;

use ebla_proto::{
    data::{MutateRowRequest, MutateRowResponse, ReadRowsRequest, RowSet},
    status::from_status,
};
use ebla_runtime::{Net, ServeOptions, Tasks, serve};
use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{sync::Semaphore, task::JoinSet};
use tonic::{
    Code,
    codegen::{BoxFuture, Service},
    server::NamedService,
    service::Routes,
};

use super::*;
use crate::middleware::CallResponse;

/// The messages that begin in each piece of a body.
fn started(pieces: &[&[u8]]) -> Vec<usize> {
    let mut reader = MessageReader::default();
    pieces.iter().map(|piece| reader.read(piece)).collect()
}

#[test]
fn messages_are_counted_when_their_length_is_known_however_they_are_cut() {
    assert_eq!(started(&[&[0, 0, 0, 0, 3, 1, 2, 3]]), [3]);
    assert_eq!(started(&[&[0, 0, 0, 0], &[3, 1], &[2, 3]]), [0, 3, 0]);
    assert_eq!(started(&[&[0, 0, 0, 0, 2, 9, 9, 0, 0, 0, 1, 0], &[7]]), [258, 0]);
    assert_eq!(started(&[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 4], &[]]), [4, 0]);
    assert_eq!(started(&[&[0, 0xff, 0xff, 0xff, 0xff]]), [0xffff_ffff]);
}

#[test]
fn large_messages_leave_room_for_small_ones() {
    let budget = RequestBudget::new(RequestBytes { total: 80 << 20, connection: usize::MAX });
    let connection = ResourceCounter::default();
    let large = budget.charge(&connection, 70 << 20).unwrap();
    let refused = budget.charge(&connection, SMALL_BYTES + 1).unwrap_err();
    assert_eq!(refused.reason, Reason::ResourceExhausted);
    assert_eq!(connection.in_use(), 70 << 20, "a refused message is not charged");
    let small: Vec<_> = (0..160).map(|_| budget.charge(&connection, SMALL_BYTES).unwrap()).collect();
    assert!(budget.charge(&connection, 1).is_err(), "the total limits small messages, too");
    drop((large, small));
    assert_eq!((budget.used.in_use(), connection.in_use()), (0, 0));
}

/// A MutateRow that is answered when there is a permit for it.
#[derive(Clone)]
struct Slow {
    answers: Arc<Semaphore>,
    arrived: Arc<Semaphore>,
}

impl NamedService for Slow {
    const NAME: &'static str = "google.bigtable.v2.Bigtable";
}

impl tonic::server::UnaryService<MutateRowRequest> for Slow {
    type Response = MutateRowResponse;
    type Future = BoxFuture<tonic::Response<MutateRowResponse>, Status>;

    fn call(&mut self, _request: tonic::Request<MutateRowRequest>) -> Self::Future {
        let slow = self.clone();
        Box::pin(async move {
            slow.arrived.add_permits(1);
            slow.answers.acquire().await.unwrap().forget();
            Ok(tonic::Response::new(MutateRowResponse {}))
        })
    }
}

impl Service<CallRequest> for Slow {
    type Response = CallResponse;
    type Error = Infallible;
    type Future = CallFuture;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: CallRequest) -> CallFuture {
        let slow = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::<MutateRowResponse, MutateRowRequest>::default();
            let mut grpc = tonic::server::Grpc::new(codec).apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), None);
            Ok(grpc.unary(slow, request).await)
        })
    }
}

struct Fixture {
    tasks: Tasks,
    slow: Slow,
    budget: RequestBudget,
    address: String,
}

async fn fixture(bounds: RequestBytes) -> Fixture {
    let slow = Slow { answers: Arc::new(Semaphore::new(0)), arrived: Arc::new(Semaphore::new(0)) };
    let budget = RequestBudget::new(bounds);
    let tasks = Tasks::new("test");
    let listener = Net::tcp().listen("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().to_string();
    let routes = Routes::default().add_service(slow.clone().with(budget.clone()));
    serve(&tasks, listener, routes, ServeOptions::default());
    Fixture { tasks, slow, budget, address }
}

impl Fixture {
    /// A client with a connection of its own.
    fn client(&self) -> ebla_proto::services::bigtable_client::BigtableClient<tonic::transport::Channel> {
        ebla_proto::services::bigtable_client::BigtableClient::new(Net::tcp().channel(&self.address))
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    async fn until_budget_is_free(&self) {
        let free = async {
            while self.budget.used.in_use() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timely(free).await;
    }
}

fn request(bytes: usize) -> MutateRowRequest {
    MutateRowRequest { mutations: vec![Bytes::from(vec![0; bytes])], ..Default::default() }
}

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_beyond_the_budget_are_refused() {
    let fixture = fixture(RequestBytes { total: 8 * MIB, connection: 64 * MIB }).await;
    let clients: Vec<_> = (0..10).map(|_| fixture.client()).collect();
    let call = |number: usize| {
        let mut client = clients[number % 10].clone();
        async move { client.mutate_row(request(MIB)).await }
    };
    let mut answers: FuturesUnordered<_> = (0..100).map(call).collect();
    // Six fit into seven eighths of the whole, with what is around them. They are not answered before all others are.
    for _ in 0..94 {
        let refused = timely(answers.next()).await.unwrap().unwrap_err();
        assert_eq!(from_status(&refused).0.reason, Reason::ResourceExhausted, "{refused}");
    }
    assert!((6 * MIB..8 * MIB).contains(&fixture.budget.used.in_use()), "{} bytes", fixture.budget.used.in_use());
    fixture.slow.answers.add_permits(7);
    for _ in 0..6 {
        timely(answers.next()).await.unwrap().unwrap();
    }
    fixture.until_budget_is_free().await;
    assert!(clients[0].clone().mutate_row(request(6 * MIB)).await.is_ok(), "there is room again");
    fixture.tasks.stop(Duration::ZERO).await;
}

async fn timely<T>(waited_for: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), waited_for).await.expect("within a generous time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_cannot_take_what_all_share() {
    let fixture = fixture(RequestBytes { total: 64 * MIB, connection: 4 * MIB }).await;
    let (mut greedy, mut other) = (fixture.client(), fixture.client());
    let mut first = greedy.clone();
    let mut under_way = JoinSet::new();
    under_way.spawn(async move { first.mutate_row(request(3 * MIB)).await });
    timely(fixture.slow.arrived.acquire()).await.unwrap().forget();
    let refused = greedy.mutate_row(request(2 * MIB)).await.unwrap_err();
    assert_eq!(from_status(&refused).0.reason, Reason::ResourceExhausted);
    assert!(refused.message().contains("this connection"), "{refused}");
    fixture.slow.answers.add_permits(2);
    other.mutate_row(request(2 * MIB)).await.unwrap();
    timely(under_way.join_next()).await.unwrap().unwrap().unwrap();
    fixture.until_budget_is_free().await;
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_call_releases_its_charge() {
    let fixture = fixture(RequestBytes { total: 8 * MIB, connection: 8 * MIB }).await;
    let mut client = fixture.client();
    let mut calls = JoinSet::new();
    calls.spawn(async move { client.mutate_row(request(3 * MIB)).await });
    timely(fixture.slow.arrived.acquire()).await.unwrap().forget();
    calls.abort_all();
    fixture.until_budget_is_free().await;
    fixture.tasks.stop(Duration::ZERO).await;
}

/// A body whose bytes arrive one by one.
struct Trickle {
    bytes: std::vec::IntoIter<u8>,
    next: Pin<Box<tokio::time::Sleep>>,
}

impl Trickle {
    /// A message of `length` bytes: its prefix, then a byte each second.
    fn message(length: u32) -> Self {
        let prefix = [&[0][..], &length.to_be_bytes()].concat();
        let content = vec![7; usize::try_from(length).unwrap()];
        Self { bytes: [prefix, content].concat().into_iter(), next: Box::pin(tokio::time::sleep(Duration::ZERO)) }
    }
}

impl Body for Trickle {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        ready!(self.next.as_mut().poll(context));
        let end = self.next.deadline() + Duration::from_secs(1);
        self.next.as_mut().reset(end);
        Poll::Ready(self.bytes.next().map(|byte| Ok(Frame::data(Bytes::from(vec![byte])))))
    }
}

/// Reads a body that arrives at a byte a second: the number of bytes, the error, and the time it took.
async fn trickle(length: u32, budget: &RequestBudget) -> (usize, Option<Status>, Duration) {
    let (connection, used) = (ResourceCounter::default(), Arc::default());
    let charges = Charges { budget: budget.clone(), connection, bytes_max: MESSAGE_BYTES_MAX, used };
    let mut body = CountedBody::new(tonic::body::Body::new(Trickle::message(length)), charges);
    let started = tokio::time::Instant::now();
    let mut read = 0;
    loop {
        match std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            Some(Ok(_frame)) => read += 1,
            Some(Err(status)) => return (read, Some(status), started.elapsed()),
            None => return (read, None, started.elapsed()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_at_a_byte_a_second_is_ended_and_releases_its_charge() {
    let budget = RequestBudget::new(RequestBytes::default());
    let length = u32::try_from(100 * MIB).unwrap();
    let (read, status, took) = trickle(length, &budget).await;
    let status = status.unwrap();
    assert_eq!(from_status(&status).0.reason, Reason::Deadline, "{status}");
    assert!(status.message().contains("within 130s: 104857600 bytes"), "{status}");
    assert!((130..132).contains(&took.as_secs()) && read < 132, "{read} bytes in {took:?}");
    assert_eq!(budget.used.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_small_request_may_arrive_slowly() {
    let budget = RequestBudget::new(RequestBytes::default());
    let (read, status, _took) = trickle(20, &budget).await;
    assert!(status.is_none() && read == 25, "{read} {status:?}");
}

#[test]
fn the_time_to_arrive_depends_on_the_size() {
    let seconds = [0, MIB - 1, 10 * MIB, 256 * MIB].map(|bytes| arrival_timeout(bytes).as_secs());
    assert_eq!(seconds, [30, 30, 40, 286]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_rows_have_small_requests() {
    let fixture = fixture(RequestBytes::default()).await;
    let read = |bytes: usize| {
        let rows = RowSet { row_keys: vec![Bytes::from(vec![b'k'; bytes])], row_ranges: Vec::new() };
        let request = ReadRowsRequest { rows: Some(rows), ..Default::default() };
        let mut client = fixture.client();
        async move { client.read_rows(request).await.map(drop) }
    };
    let refused = timely(read(READ_BYTES_MAX)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("the limit of this call is 4194304"), "{refused}");
    assert_eq!(fixture.slow.arrived.available_permits(), 0, "it was not decoded");
    fixture.slow.answers.add_permits(2);
    let smaller = timely(read(READ_BYTES_MAX - 100)).await;
    assert!(smaller.is_ok(), "{smaller:?}");
    timely(fixture.client().mutate_row(request(READ_BYTES_MAX))).await.unwrap();
    fixture.tasks.stop(Duration::ZERO).await;
}

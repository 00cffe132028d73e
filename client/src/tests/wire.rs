//! The gRPC transport and the locate directory against servers on real sockets, with the fake cluster behind them.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::Reason;
use ebla_model::id::ServerId;
use ebla_model::key::RowSet;
use ebla_proto::locate::locate_server::{Locate, LocateServer};
use ebla_proto::locate::{ClusterReply, ClusterRequest, CountersReply, CountersRequest, TableName};
use ebla_proto::status::{to_status, to_status_with};
use ebla_proto::tablet::call::Request as CallRequest;
use ebla_proto::tablet::call_reply::Outcome;
use ebla_proto::tablet::tablets_server::{Tablets, TabletsServer};
use ebla_proto::{convert, record, tablet};
use ebla_runtime::call_stream::{self, Received};
use ebla_runtime::{Runtime, ServeOptions, serve};
use futures::future;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};

use super::fake::{ClusterEvent, Fake, TABLE, key};
use crate::client::Client;
use crate::directory::Directory;
use crate::transport::{CallError, Target, Transport};
use crate::{Read, ReadOptions};

/// One server of the fake cluster.
#[derive(Clone)]
struct Server {
    fake: Fake,
    id: ServerId,
    addresses: Arc<Mutex<Vec<record::Server>>>,
}

const TIMEOUT: Duration = Duration::from_secs(10);

fn status(error: CallError) -> Status {
    match error.detail {
        Some(detail) => to_status_with(&error.error, &detail),
        None => to_status(&error.error),
    }
}

impl Server {
    async fn small_call(self, call: tablet::Call) -> tablet::CallReply {
        let (target, timeout) = (self.target(), Duration::from_micros(call.timeout_micros));
        let outcome = match call.request.unwrap() {
            CallRequest::Read(request) => match self.fake.read(&target, request, timeout).await {
                Ok(mut replies) => replies
                    .next()
                    .await
                    .unwrap()
                    .map(|reply| if reply.finished { Outcome::Read(reply) } else { Outcome::Oversized(true) }),
                Err(error) => Err(error),
            },
            CallRequest::Write(request) => self.fake.write(&target, request, timeout).await.map(Outcome::Write),
            CallRequest::Check(request) => self.fake.check(&target, request, timeout).await.map(Outcome::Check),
            CallRequest::Modify(request) => self.fake.modify(&target, request, timeout).await.map(Outcome::Modify),
            CallRequest::Cancel(_) => Err(ebla_model::Error::internal("a cancellation is no call").into()),
        };
        let outcome = outcome.unwrap_or_else(|CallError { error, detail }| {
            let (reason, message) = (error.reason.name().to_owned(), error.message);
            Outcome::Error(tablet::CallError { reason, message, detail: detail.map(|detail| *detail) })
        });
        tablet::CallReply { call: call.call, outcome: Some(outcome) }
    }

    fn target(&self) -> Target {
        Target { server: self.id, address: String::new() }
    }
}

#[tonic::async_trait]
impl Tablets for Server {
    type ReadStream = BoxStream<'static, Result<tablet::ReadReply, Status>>;
    type ExchangeStream = BoxStream<'static, Result<tablet::CallReply, Status>>;

    async fn read(&self, request: Request<tablet::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let stream = self.fake.read(&self.target(), request.into_inner(), TIMEOUT).await.map_err(status)?;
        Ok(Response::new(stream.map_err(status).boxed()))
    }

    async fn write(&self, request: Request<tablet::WriteRequest>) -> Result<Response<tablet::WriteReply>, Status> {
        self.fake.write(&self.target(), request.into_inner(), TIMEOUT).await.map(Response::new).map_err(status)
    }

    async fn check(&self, request: Request<tablet::CheckRequest>) -> Result<Response<tablet::CheckReply>, Status> {
        self.fake.check(&self.target(), request.into_inner(), TIMEOUT).await.map(Response::new).map_err(status)
    }

    async fn modify(&self, request: Request<tablet::ModifyRequest>) -> Result<Response<tablet::ModifyReply>, Status> {
        self.fake.modify(&self.target(), request.into_inner(), TIMEOUT).await.map(Response::new).map_err(status)
    }

    async fn exchange(
        &self,
        calls: Request<Streaming<tablet::Call>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let server = self.clone();
        let receive = move |call: tablet::Call| match call.request {
            Some(CallRequest::Cancel(_)) => Received::Cancellation(call.call),
            _ => Received::Call(Some(call.call), server.clone().small_call(call).boxed()),
        };
        Ok(Response::new(call_stream::replies(calls.into_inner(), 10, future::pending(), receive).boxed()))
    }

    async fn sample(&self, request: Request<tablet::SampleRequest>) -> Result<Response<tablet::SampleReply>, Status> {
        self.fake.sample(&self.target(), request.into_inner(), TIMEOUT).await.map(Response::new).map_err(status)
    }
}

#[tonic::async_trait]
impl Locate for Server {
    async fn cluster(&self, _request: Request<ClusterRequest>) -> Result<Response<ClusterReply>, Status> {
        let root = self.fake.root().await.map_err(|error| to_status(&error))?;
        Ok(Response::new(ClusterReply {
            root: Some(convert::descriptor_to_proto(&root)),
            servers: self.addresses.lock().clone(),
            tables: vec![TableName { name: "projects/p/instances/i/tables/t".to_owned(), table: TABLE.get() }],
            ..Default::default()
        }))
    }

    async fn counters(&self, _request: Request<CountersRequest>) -> Result<Response<CountersReply>, Status> {
        Ok(Response::new(CountersReply::default()))
    }
}

/// Starts three servers, each with its own task group; returns the address of the first.
async fn start(fake: &Fake, runtime: &Runtime) -> (String, Vec<Runtime>) {
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let mut runtimes = Vec::new();
    for id in 1..=3 {
        let runtime = runtime.child("server");
        let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        addresses.lock().push(record::Server { server: id, address, ..Default::default() });
        let server = Server { fake: fake.clone(), id: ServerId::new(id), addresses: Arc::clone(&addresses) };
        let mut routes = tonic::service::Routes::new(TabletsServer::new(server.clone()));
        routes = routes.add_service(LocateServer::new(server));
        serve(&runtime.tasks, listener, routes, ServeOptions::default());
        runtimes.push(runtime);
    }
    let first = addresses.lock()[0].address.clone();
    (first, runtimes)
}

#[tokio::test]
async fn an_external_client_reads_and_writes_over_grpc_during_splits_and_elections() {
    let fake = Fake::new(&["r0030", "r0060"]);
    let rows = fake.fill(100);
    super::schedule_splits_and_elections(&fake);
    let runtime = Runtime::system("test");
    let (address, _servers) = start(&fake, &runtime).await;
    let client = Client::connect_cluster(&address, runtime.clone()).await.unwrap();
    let table = client.table(&"projects/p/instances/i/tables/t".parse().unwrap());
    let read: Vec<_> = table.stream_rows(RowSet::all(), ReadOptions::default()).try_collect().await.unwrap();
    assert_eq!(read.into_iter().map(|row| row.key).collect::<Vec<_>>(), rows);
    fake.trigger(ClusterEvent::Lead { key: "r0001", server: 2 });
    let mutations = vec![ebla_model::mutation::Mutation::DeleteRow];
    let results = table.mutate_rows(&rows.iter().map(|row| (row.clone(), mutations.clone())).collect::<Vec<_>>()).await;
    assert!(results.unwrap().iter().all(Result::is_ok));
    assert!(table.read_row(&rows[3], None).await.unwrap().is_none());
    assert_eq!(client.tablets(table.name()).await.unwrap().len(), 3, "METADATA does not list the splits");
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_scan_survives_the_stop_of_its_server() {
    let fake = Fake::new(&[]);
    fake.fill(30);
    let runtime = Runtime::system("test");
    let (address, servers) = start(&fake, &runtime).await;
    let client = Client::connect_cluster(&address, runtime.clone()).await.unwrap();
    let cluster = client.low_level().unwrap();
    let mut parts = cluster.read_rows(Read::new(TABLE, RowSet::all()), cluster.deadline(TIMEOUT));
    let mut rows = parts.try_next().await.unwrap().unwrap().rows;
    fake.trigger(ClusterEvent::Lead { key: "a", server: 2 });
    servers[0].tasks.stop(Duration::ZERO).await;
    while let Some(part) = parts.try_next().await.unwrap() {
        rows += part.rows;
    }
    assert_eq!(rows, 30);
    cluster.mutate_row(TABLE, super::set(&key("r0001"), "w"), cluster.deadline(TIMEOUT)).await.unwrap();
    runtime.tasks.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn an_address_without_a_server_fails_at_once() {
    let error = Client::connect_cluster("127.0.0.1:1", Runtime::system("test")).await.unwrap_err();
    assert_eq!(error.reason, Reason::Unavailable, "{error}");
}

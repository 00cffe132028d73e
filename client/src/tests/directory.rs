//! Tests of the directory over tablet servers.

use std::sync::Arc;

use ebla_model::id::ServerId;
use ebla_proto::locate::locate_server::{Locate, LocateServer};
use ebla_proto::locate::{ClusterReply, ClusterRequest, CountersReply, CountersRequest};
use ebla_proto::record;
use ebla_runtime::{Runtime, ServeOptions, serve};
use parking_lot::Mutex;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::Client;
use crate::directory::{Directory, LocateDirectory};

/// A fake tablet server that knows the address of server 1 and counts its requests.
#[derive(Clone, Default)]
struct FakeLocate {
    address: Arc<Mutex<String>>,
    requests: Arc<Mutex<usize>>,
}

#[tonic::async_trait]
impl Locate for FakeLocate {
    async fn cluster(&self, _request: Request<ClusterRequest>) -> Result<Response<ClusterReply>, Status> {
        *self.requests.lock() += 1;
        let server = record::Server { server: 1, address: self.address.lock().clone(), ..Default::default() };
        Ok(Response::new(ClusterReply { servers: vec![server], ..Default::default() }))
    }

    async fn counters(&self, _request: Request<CountersRequest>) -> Result<Response<CountersReply>, Status> {
        Err(Status::unimplemented("not supported by the fake"))
    }
}

/// A server that lists one server, and its address.
async fn serve_one(runtime: &Runtime) -> (FakeLocate, String) {
    let fake = FakeLocate::default();
    *fake.address.lock() = "one:1".to_owned();
    let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
    let seed = listener.local_addr().to_string();
    serve(&runtime.tasks, listener, Routes::new(LocateServer::new(fake.clone())), ServeOptions::default());
    (fake, seed)
}

#[tokio::test]
async fn an_unreachable_address_is_fetched_again() {
    let runtime = Runtime::system("test");
    let (fake, seed) = serve_one(&runtime).await;
    let first = ServerId::new(1);
    let directory = LocateDirectory::new(vec![seed], &runtime);
    assert_eq!(directory.address(first).await.as_deref(), Some("one:1"));
    *fake.address.lock() = "elsewhere:1".to_owned();
    assert_eq!(directory.address(first).await.as_deref(), Some("one:1"), "the address is not marked as unreachable");
    assert_eq!(*fake.requests.lock(), 1);

    directory.mark_unreachable(first);
    // A recent reply is not fetched again, so that a failed server does not cause many requests.
    while directory.address(first).await.as_deref() != Some("elsewhere:1") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(*fake.requests.lock(), 2);
    assert_eq!(directory.address(first).await.as_deref(), Some("elsewhere:1"));
    assert_eq!(*fake.requests.lock(), 2, "the new address is not marked as unreachable");
    runtime.tasks.stop(std::time::Duration::from_secs(30)).await;
}

#[tokio::test]
async fn an_address_without_a_server_is_passed_over() {
    let runtime = Runtime::system("test");
    let (_fake, seed) = serve_one(&runtime).await;
    // No process listens at the first address.
    let client = Client::connect_any(&["127.0.0.1:1".to_owned(), seed], runtime.clone()).await.unwrap();
    let servers = client.servers().await.unwrap();
    assert_eq!(servers.first().map(|server| server.address.as_str()), Some("one:1"));
    runtime.tasks.stop(std::time::Duration::from_secs(30)).await;
}

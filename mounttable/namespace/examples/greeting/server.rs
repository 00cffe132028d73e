//! A service with one method that mounts itself, like code generated from a `.proto` file.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ebla_mounttable_namespace::publisher::{PairState, PublisherStatus};
use ebla_mounttable_namespace::{Namespace, Publisher};
use ebla_mounttable_tree::{Error, Reason, Target};
use ebla_runtime::{Runtime, ServeOptions, Tasks, serve};
use futures::future::BoxFuture;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response};
use tonic_prost::ProstCodec;

/// The time for calls to finish.
const GRACE: Duration = Duration::from_secs(3);

/// A server of greetings, mounted under a name while it runs.
pub(crate) struct Greeter {
    address: String,
    publisher: Publisher,
    serving: Tasks,
}

impl Greeter {
    /// Listens, and mounts itself under `name`, with a refresh every `period`.
    pub(crate) async fn start(
        runtime: &Runtime,
        names: &Namespace,
        name: &str,
        listen: &str,
        period: Duration,
    ) -> Result<Self, Error> {
        let listen = runtime.net.listen(listen).await;
        let listener = listen.map_err(|error| Error::new(Reason::Unavailable, format!("listen: {error}")))?;
        let address = listener.local_addr().to_string();
        let serving = runtime.tasks.child("greeter");
        serve(&serving, listener, Routes::new(Greetings(address.as_str().into())), ServeOptions::default());

        let publisher = Publisher::start(names, period);
        publisher.add_server(address.parse()?).await;
        publisher.add_name(name, Target::Leaf).await;
        let mut status = publisher.status();
        // Returns after the first mount, so that clients find it.
        let is_mounted = |status: &PublisherStatus| status.pairs.iter().any(|pair| pair.state == PairState::Mounted);
        let mounted = status.wait_for(is_mounted).await;
        mounted.map_err(|_| Error::new(Reason::Unavailable, "the publisher has ended"))?;
        Ok(Self { address, publisher, serving })
    }

    /// Its address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Unmounts first, so that no new clients come, and then stops.
    pub(crate) async fn stop(self) {
        self.publisher.shutdown().await;
        self.serving.stop(GRACE).await;
    }
}

/// The service; its replies contain the address.
#[derive(Clone)]
struct Greetings(Arc<str>);

impl NamedService for Greetings {
    const NAME: &'static str = "demo.Greeter";
}

impl UnaryService<String> for Greetings {
    type Response = String;
    type Future = Ready<Result<Response<String>, tonic::Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        ready(Ok(Response::new(format!("hello, {}, says {}", request.into_inner(), self.0))))
    }
}

impl Service<http::Request<Body>> for Greetings {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(Grpc::new(ProstCodec::default()).unary(service, request).await) })
    }
}

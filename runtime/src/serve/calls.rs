//! The calls of a connection: refused by an overloaded server, or answered by the routes within their timeouts.

use std::convert::Infallible;
use std::future::{Ready, ready};

use futures::future::{BoxFuture, Either};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service as HyperService;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Status, TimeoutExpired};
use tower::ServiceExt;

use super::streams::Streams;
use super::{ConnectionInfo, LoadShed};
use crate::call_timeout;

type Answer = Result<Response<Body>, Infallible>;

/// What answers the calls of a connection.
pub(super) struct Calls {
    load_shed: LoadShed,
    routes: Routes,
    info: ConnectionInfo,
    streams: Streams,
}

impl Calls {
    pub(super) const fn new(load_shed: LoadShed, routes: Routes, info: ConnectionInfo, streams: Streams) -> Self {
        Self { load_shed, routes, info, streams }
    }
}

impl HyperService<Request<Incoming>> for Calls {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Answer>, BoxFuture<'static, Answer>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        if let Some(headers) = self.load_shed.refusal(&self.info, request.uri().path()) {
            self.streams.refuse_next();
            let mut response = Response::new(Body::empty());
            *response.headers_mut() = headers;
            return Either::Left(ready(Ok(response)));
        }
        let timeout = call_timeout::requested(request.headers());
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.info.clone());
        let answered = self.routes.clone().oneshot(request);
        Either::Right(Box::pin(async move {
            let Some(timeout) = timeout else { return answered.await };
            let passed = |_elapsed| Ok(Status::from_error(Box::new(TimeoutExpired(()))).into_http());
            tokio::time::timeout(timeout, answered).await.unwrap_or_else(passed)
        }))
    }
}

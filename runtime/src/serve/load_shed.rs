//! Refuses calls of an overloaded server before they reach the routes, so that a refusal costs as little as possible.

use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::Either;
use http::{Request, Response};
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;

type Refuse = dyn Fn(&Request<Body>) -> Option<Response<Body>> + Send + Sync;

/// Which calls a server refuses at once, and with which response. Clones share the decision.
#[derive(Clone, Default)]
pub struct LoadShed(Option<Arc<Refuse>>);

impl LoadShed {
    /// Refuses a call for which `refuse` returns a response. `refuse` sees each call of the server, with the [`super::ConnectionInfo`] in its extensions, and
    /// must not block.
    #[must_use]
    pub fn new(refuse: impl Fn(&Request<Body>) -> Option<Response<Body>> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(refuse)))
    }

    /// The response to a call that is refused.
    #[must_use]
    pub fn refusal(&self, request: &Request<Body>) -> Option<Response<Body>> {
        self.0.as_ref().and_then(|refuse| refuse(request))
    }
}

impl fmt::Debug for LoadShed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "LoadShed" } else { "LoadShed(never)" })
    }
}

/// The routes of a server, for the calls that are not refused.
#[derive(Clone)]
pub(super) struct SheddingRoutes {
    load_shed: LoadShed,
    routes: Routes,
}

impl SheddingRoutes {
    pub(super) fn new(load_shed: LoadShed, routes: Routes) -> Self {
        // Otherwise the router clones all its routes for each call.
        Self { load_shed, routes: routes.prepare() }
    }
}

impl Service<Request<Body>> for SheddingRoutes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<Ready<Result<Response<Body>, Infallible>>, <Routes as Service<Request<Body>>>::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.routes, context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.load_shed.refusal(&request) {
            Some(refusal) => Either::Left(ready(Ok(refusal))),
            None => Either::Right(self.routes.call(request)),
        }
    }
}

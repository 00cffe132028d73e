//! Middleware of gRPC services: what is done around each call, such as authentication, admission, budgets and metrics.
//!
//! A service with middleware is a service again, with the same name, so several layers are nested.

use std::convert::Infallible;
use std::task::{Context, Poll};

use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

/// A call: its headers, and its body, which may not have arrived.
pub(crate) type CallRequest = http::Request<tonic::body::Body>;
/// The response to a call, which may be an error.
pub(crate) type CallResponse = http::Response<tonic::body::Body>;
/// The result of a call.
pub(crate) type CallFuture = BoxFuture<CallResponse, Infallible>;

/// A gRPC service: tonic's servers, and those with middleware.
pub(crate) trait GrpcService:
    Service<CallRequest, Response = CallResponse, Error = Infallible, Future: Send + 'static> + Clone + Send + 'static
{
    /// The same service, with `middleware` around each call.
    fn with<M: Middleware>(self, middleware: M) -> WithMiddleware<Self, M> {
        WithMiddleware { service: self, middleware }
    }
}

impl<S> GrpcService for S where
    S: Service<CallRequest, Response = CallResponse, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + 'static
{
}

/// What is done around the calls of a service.
pub(crate) trait Middleware {
    /// Answers a call, with or without `service`, which is ready.
    fn call(&self, service: &mut impl GrpcService, request: CallRequest) -> CallFuture;
}

/// A service with middleware around its calls.
#[derive(Clone, Debug)]
pub(crate) struct WithMiddleware<S, M> {
    service: S,
    middleware: M,
}

impl<S: NamedService, M> NamedService for WithMiddleware<S, M> {
    const NAME: &'static str = S::NAME;
}

impl<S: GrpcService, M: Middleware> Service<CallRequest> for WithMiddleware<S, M> {
    type Response = CallResponse;
    type Error = Infallible;
    type Future = CallFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: CallRequest) -> CallFuture {
        self.middleware.call(&mut self.service, request)
    }
}

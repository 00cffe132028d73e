//! Authentication: determines the caller from the headers of a call, and compares its limits, before its body is read.

use std::convert::Infallible;
use std::future::ready;
use std::task::{Context, Poll};

use ebla_model::access::{Identity, Member};
use ebla_model::{Error, Reason};
use ebla_proto::status::{to_status, to_status_after};
use ebla_runtime::ConnectionInfo;
use ebla_runtime::tls::Role;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

use super::audit::Decision;
use super::limits::{CallMeter, Exceeded};
use super::{AccessControl, Caller, Enforced, KnownCaller};

/// The header with a token, as official clients send it.
const AUTHORIZATION: &str = "authorization";
/// The header by which a caller names a request.
const REQUEST_ID: &str = "x-request-id";
/// The longest name of a request that is recorded.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// A service whose requests have a [`Caller`] among their extensions.
#[derive(Clone, Debug)]
pub(in crate::front) struct WithCaller<S> {
    service: S,
    access: AccessControl,
}

impl<S> WithCaller<S> {
    /// Authenticates the callers of `service`.
    pub(in crate::front) const fn new(service: S, access: AccessControl) -> Self {
        Self { service, access }
    }
}

impl<S: NamedService> NamedService for WithCaller<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<tonic::body::Body>> for WithCaller<S>
where
    S: Service<
            http::Request<tonic::body::Body>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future: Send + 'static,
        >,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        match self.access.identify(&request, certificate_identity(&request)) {
            Ok(caller) => match self.access.begin(&caller, request.uri().path()) {
                Ok(meter) => {
                    request.extensions_mut().insert(caller);
                    self.call_metered(request, meter)
                }
                Err(Exceeded { error, delay }) => Box::pin(ready(Ok(to_status_after(&error, delay).into_http()))),
            },
            Err(error) => Box::pin(ready(Ok(to_status(&error).into_http()))),
        }
    }
}

impl<S> WithCaller<S>
where
    S: Service<
            http::Request<tonic::body::Body>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future: Send + 'static,
        >,
{
    /// Calls the service; the bytes of request and response are charged to `meter`.
    fn call_metered(
        &mut self,
        request: http::Request<tonic::body::Body>,
        meter: Option<CallMeter>,
    ) -> BoxFuture<http::Response<tonic::body::Body>, Infallible> {
        let Some(meter) = meter else { return Box::pin(self.service.call(request)) };
        let called = self.service.call(request.map(|body| meter.body(body)));
        Box::pin(async move { called.await.map(|response| response.map(|body| meter.body(body))) })
    }
}

/// The identity in the verified certificate of the connection: `certificate:NAME`, of a user or of a mounttable, which creates its table.
fn certificate_identity<B>(request: &http::Request<B>) -> Option<Member> {
    let identity = request.extensions().get::<ConnectionInfo>()?.security.identity()?;
    let is_caller = matches!(identity.role(), Role::Client | Role::Mounttable);
    is_caller.then(|| Member::Certificate(identity.name().to_owned()))
}

impl AccessControl {
    /// The caller of a request with these headers. `certificate`: the name that its connection has proved. With a token the caller is whom
    /// the token names, and only that.
    ///
    /// # Errors
    /// `Unauthenticated` when access control is on and the request has no valid token, nor a certificate.
    fn identify<B>(&self, request: &http::Request<B>, certificate: Option<Member>) -> Result<Caller, Error> {
        let Some(enforced) = &self.enforced else { return Ok(Caller::Anybody) };
        let known = enforced.identity(request.headers(), certificate);
        let method = request.uri().path();
        match known {
            Ok((identity, expiry)) => Ok(Caller::Known(KnownCaller {
                identity,
                expiry,
                peer: peer(request),
                request: request_id(request.headers()),
            })),
            Err(error) => {
                let (peer, request) = (peer(request), request_id(request.headers()));
                enforced.audit.record_unauthenticated(&peer, &request, method, Decision::Refused(error.reason));
                Err(error)
            }
        }
    }
}

impl Enforced {
    fn identity(
        &self,
        headers: &http::HeaderMap,
        certificate: Option<Member>,
    ) -> Result<(std::sync::Arc<Identity>, Option<ebla_model::Micros>), Error> {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let token = match (given.next(), given.next(), certificate) {
            // The certificate may be that of a proxy, whose rights are none of the user.
            (Some(token), None, _certificate) => token,
            (None, _, Some(name)) => return Ok((Identity::new(name, []).into(), None)),
            (None, _, None) => return Err(refused("this server needs a token: authorization: Bearer TOKEN")),
            (Some(_), Some(_), _) => return Err(refused("more than one authorization header")),
        };
        let token = token.to_str().ok().and_then(|header| header.split_once(' '));
        let token = token.filter(|(scheme, _token)| scheme.eq_ignore_ascii_case("bearer"));
        let (_scheme, token) = token.ok_or_else(|| refused("the authorization header is not \"Bearer TOKEN\""))?;
        let verified = self.tokens.verify(token.trim())?;
        let expiry = Some(verified.expiry());
        Ok((verified.identity, expiry))
    }
}

fn refused(message: &str) -> Error {
    Error::new(Reason::Unauthenticated, message)
}

fn peer<B>(request: &http::Request<B>) -> String {
    let info = request.extensions().get::<ConnectionInfo>();
    info.and_then(|info| info.peer).map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

/// The caller's name of the request, if it has one of visible characters.
fn request_id(headers: &http::HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    given.filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).unwrap_or_default().to_owned()
}

//! Authentication: determines the caller from the headers of a call, and compares its limits, before its body is read.

use std::future::ready;

use ebla_model::access::{Identity, Member};
use ebla_model::{Error, Reason};
use ebla_proto::status::{to_status, to_status_after};
use ebla_runtime::ConnectionInfo;
use ebla_runtime::tls::Role;
use ebla_runtime::trace::{self, Operation};
use tonic::codegen::http;

use super::audit::Decision;
use super::limits::{CallMeter, Exceeded};
use super::{AccessControl, Caller, Enforced, KnownCaller};
use crate::middleware::{CallFuture, CallRequest, GrpcService, Middleware};

/// The header with a token, as official clients send it.
const AUTHORIZATION: &str = "authorization";
/// The header by which a caller names a request.
const REQUEST_ID: &str = "x-request-id";
/// The longest name of a request that is recorded.
const REQUEST_ID_BYTES_MAX: usize = 64;

/// Puts a [`Caller`] among the extensions of each request, and what counts the call if the caller has limits: see [`Metering`].
impl Middleware for AccessControl {
    fn call(&self, service: &mut impl GrpcService, mut request: CallRequest) -> CallFuture {
        match self.identify(&request, certificate_identity(request.extensions())) {
            Ok(caller) => match self.begin(&caller, request.uri().path()) {
                Ok(meter) => {
                    let extensions = request.extensions_mut();
                    extensions.insert(caller);
                    if let Some(meter) = meter {
                        extensions.insert(meter);
                    }
                    trace::with_current(Operation::accept_sampling);
                    Box::pin(service.call(request))
                }
                Err(Exceeded { error, delay }) => Box::pin(ready(Ok(to_status_after(&error, delay).into_http()))),
            },
            Err(error) => Box::pin(ready(Ok(to_status(&error).into_http()))),
        }
    }
}

/// Charges requests and responses to the caller's limits, as [`AccessControl`] around it has found them.
///
/// It is inside of the budget of responses: a response that waits for its caller's rate has no message in memory yet, and its client is not
/// treated as one that does not read.
#[derive(Clone, Copy, Debug)]
pub(in crate::front) struct Metering;

impl Middleware for Metering {
    fn call(&self, service: &mut impl GrpcService, mut request: CallRequest) -> CallFuture {
        let Some(meter) = request.extensions_mut().remove::<CallMeter>() else {
            return Box::pin(service.call(request));
        };
        let called = service.call(request.map(|body| meter.request(body)));
        Box::pin(async move { called.await.map(|response| response.map(|body| meter.response(body))) })
    }
}

/// The identity in the verified certificate of the connection: `certificate:NAME`, of a user or of a mounttable, which creates its table.
pub(super) fn certificate_identity(extensions: &http::Extensions) -> Option<Member> {
    let identity = extensions.get::<ConnectionInfo>()?.security.identity()?;
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
                peer: peer(request.extensions()),
                request: request_id(request.headers()),
            })),
            Err(error) => {
                let (peer, request) = (peer(request.extensions()), request_id(request.headers()));
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

/// The address from which a request comes.
pub(super) fn peer(extensions: &http::Extensions) -> String {
    let info = extensions.get::<ConnectionInfo>();
    info.and_then(|info| info.peer).map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
}

/// The caller's name of the request, if it has one of visible characters.
fn request_id(headers: &http::HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    given.filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).unwrap_or_default().to_owned()
}

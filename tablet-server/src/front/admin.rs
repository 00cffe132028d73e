//! Admin calls: forwarded, undecoded, to the active master, which serves the same services.
//!
//! ```text
//!   client --- any admin call ---> any tablet server --- the same bytes ---> the master named by Chubby's file
//! ```
//!
//! A call is retried until its deadline. It is sent again when it was surely not executed (no master yet, no
//! connection, "not the master"), after reading the file again. When the connection breaks while the master executes the
//! call, only idempotent calls are sent again: creating a table twice would report an error for a call that succeeded.
//!
//! When Chubby is unavailable, the call goes to the last known master. That master steps down when its lease expires, a few
//! seconds later: then changes wait for Chubby until their deadline, and the error says so.
//!
//! The master defines which methods exist; this module does not know them. All are unary.

use std::{
    convert::Infallible,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use ebla_chubby::{SharedChubby, paths};
use ebla_client::{Deadline, channel::Channels};
use ebla_model::{Error, Reason};
use ebla_proto::{
    convert::decode_record,
    raw::Raw,
    record,
    status::{from_status, is_unavailable, to_status},
};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::{
    Runtime,
    net::Windows,
    trace::{self, Stage, TRACEPARENT},
};
use tonic::{
    Request, Response, Status,
    codegen::{BoxFuture, Service, http},
    server::{NamedService, UnaryService},
};

use super::MESSAGE_BYTES_MAX;
use super::access::{AccessControl, AdminOutcome, AuthorizedCall};
use crate::deadline;

/// The largest admin request. Creating a table with thousands of split keys takes a few hundred KiB.
pub(super) const REQUEST_BYTES_MAX: usize = 16 << 20;

/// The pause before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// No attempt starts with less time left than this.
const ATTEMPT_TIME_MIN: Duration = Duration::from_millis(100);
/// Timeout of reading the master's address from Chubby: two of its members may be unresponsive.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// A client of the active master. Cheap to clone.
#[derive(Clone)]
pub struct MasterClient {
    inner: Arc<Inner>,
}

struct Inner {
    chubby: SharedChubby,
    directory: ChubbyDirectory,
    channels: Channels,
    runtime: Runtime,
}

impl MasterClient {
    /// A client of the master that this Chubby names; `directory` is a copy of Chubby's files.
    pub fn new(chubby: SharedChubby, directory: ChubbyDirectory, runtime: Runtime) -> Self {
        let channels = Channels::to_peers(&runtime, Windows::CALLS);
        Self { inner: Arc::new(Inner { chubby, directory, channels, runtime }) }
    }

    /// Forwards a call until the master responds or the deadline passes.
    async fn call(&self, call: AuthorizedCall, deadline: Deadline) -> Result<Bytes, Status> {
        let (path, message) = call.into_parts();
        let clock = &self.inner.runtime.clock;
        loop {
            let status = match self.attempt(path.clone(), message.clone(), deadline).await {
                Ok(response) => return Ok(response),
                Err(status) => status,
            };
            let (error, _) = from_status(&status);
            let pause = self.inner.runtime.rng.jitter(RETRY_PAUSE);
            // An attempt just before the deadline times out, and would hide the errors of the earlier attempts.
            if deadline.remaining(clock) <= pause + ATTEMPT_TIME_MIN || !is_safe_to_retry(&error, path.path()) {
                return Err(client_status(&status, &error));
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(
        &self,
        path: http::uri::PathAndQuery,
        message: Bytes,
        deadline: Deadline,
    ) -> Result<Bytes, Status> {
        let located = self.locate(deadline).await.map_err(|error| to_status(&error))?;
        let response = self.send(&located.address, path, message, deadline).await;
        let Some(lookup_error) = located.lookup_error else { return response };
        response.map_err(|status| explain_outage(status, &lookup_error))
    }

    async fn send(
        &self,
        address: &str,
        path: http::uri::PathAndQuery,
        message: Bytes,
        deadline: Deadline,
    ) -> Result<Bytes, Status> {
        let mut grpc =
            tonic::client::Grpc::new(self.inner.channels.get(address)).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let left = deadline.remaining(&self.inner.runtime.clock);
        let mut request = Request::new(message);
        request.set_timeout(left);
        let _master = trace::stage(Stage::Master);
        if let Some(header) = trace::context().and_then(|context| context.traceparent().parse().ok()) {
            request.metadata_mut().insert(TRACEPARENT, header);
        }
        let call = async {
            let closed = |error: tonic::transport::Error| Status::from_error(Box::new(error));
            grpc.ready().await.map_err(closed)?;
            grpc.unary(request, path, Raw).await.map(Response::into_inner)
        };
        let silence =
            |_elapsed| to_status(&Error::new(Reason::OutcomeUnknown, "the master did not respond before the deadline"));
        tokio::time::timeout(left, call).await.map_err(silence)?
    }

    /// The address of the active master, from Chubby or else from the directory's copy.
    async fn locate(&self, deadline: Deadline) -> Result<MasterAddress, Error> {
        let timeout = deadline.remaining(&self.inner.runtime.clock).min(LOOKUP_TIMEOUT);
        let read = tokio::time::timeout(timeout, self.inner.chubby.read(paths::MASTER)).await;
        let lookup_error = match read {
            Ok(Ok(Some(file))) => {
                let address = decode_record::<record::Master>(file.value)?.address;
                return Ok(MasterAddress { address, lookup_error: None });
            }
            Ok(Ok(None)) => return Err(Error::new(Reason::Unavailable, "no active master")),
            Ok(Err(error)) => Error::from(error),
            Err(_elapsed) => Error::new(Reason::Unavailable, "Chubby did not respond in time"),
        };
        let known = self.inner.directory.master().filter(|_| !deadline.has_passed(&self.inner.runtime.clock));
        match known {
            Some(master) => Ok(MasterAddress { address: master.address, lookup_error: Some(lookup_error) }),
            None => Err(lock_service_unavailable(&lookup_error)),
        }
    }
}

/// A master's address, and why it may be outdated.
struct MasterAddress {
    address: String,
    lookup_error: Option<Error>,
}

/// The error of a call that waited for Chubby until its deadline.
fn lock_service_unavailable(lookup_error: &Error) -> Error {
    let message = format!("the lock service is unavailable, and the master cannot act without it ({lookup_error})");
    Error::new(Reason::Unavailable, message)
}

/// The error of a call to the last known master: if it is unreachable or not active, Chubby's outage is the cause.
fn explain_outage(status: Status, lookup_error: &Error) -> Status {
    let (error, _) = from_status(&status);
    if is_unavailable(error.reason) { to_status(&lock_service_unavailable(lookup_error)) } else { status }
}

/// Whether a call may be sent again without being executed twice.
fn is_safe_to_retry(error: &Error, path: &str) -> bool {
    match error.reason {
        Reason::OutcomeUnknown => is_idempotent(path),
        reason => is_unavailable(reason),
    }
}

/// Calls that read only, or have no further effect the second time.
fn is_idempotent(path: &str) -> bool {
    let method = path.rsplit('/').next().unwrap_or_default();
    ["Get", "List", "Check", "Generate", "Test", "Wait", "Cancel", "Status", "DropRowRange"]
        .iter()
        .any(|start| method.starts_with(start))
}

/// The status for the client: the master's own error, or the fate of the connection.
fn client_status(status: &Status, error: &Error) -> Status {
    match error.reason {
        Reason::OutcomeUnknown => to_status(&Error::new(
            Reason::OutcomeUnknown,
            format!("the master may have executed this call; check the result before retrying ({error})"),
        )),
        _ if status.details().is_empty() => to_status(error),
        _ => Status::with_details(status.code(), status.message(), Bytes::copy_from_slice(status.details())),
    }
}

/// A service that forwards all of its calls to the master. `S`: the generated server whose name it has.
pub struct AdminProxy<S> {
    master: MasterClient,
    access: AccessControl,
    service: PhantomData<fn() -> S>,
}

impl<S> AdminProxy<S> {
    /// A proxy for this master, with access control for the callers that it has determined.
    pub(super) const fn new(master: MasterClient, access: AccessControl) -> Self {
        Self { master, access, service: PhantomData }
    }
}

impl<S> Clone for AdminProxy<S> {
    fn clone(&self) -> Self {
        Self::new(self.master.clone(), self.access.clone())
    }
}

impl<S: NamedService> NamedService for AdminProxy<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: 'static> Service<http::Request<tonic::body::Body>> for AdminProxy<S> {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let path = request.uri().path_and_query().cloned();
        let call = ForwardedCall { master: self.master.clone(), access: self.access.clone(), path };
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Raw).apply_max_message_size_config(Some(REQUEST_BYTES_MAX), None);
            Ok(grpc.unary(call, request).await)
        })
    }
}

/// One call to forward.
struct ForwardedCall {
    master: MasterClient,
    access: AccessControl,
    path: Option<http::uri::PathAndQuery>,
}

impl UnaryService<Bytes> for ForwardedCall {
    type Response = Bytes;
    type Future = BoxFuture<Response<Bytes>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (master, access, path) = (self.master.clone(), self.access.clone(), self.path.clone());
        Box::pin(async move {
            let path = path.ok_or_else(|| to_status(&Error::unimplemented("the request path names no method")))?;
            let timeout = deadline::public_time_left(&request, deadline::CALL_TIMEOUT);
            let deadline = Deadline::after(&master.inner.runtime.clock, timeout);
            let refused = |error: Error| to_status(&error);
            let caller = access.caller(request.extensions()).map_err(refused)?;
            match access.admin(&caller, path, request.into_inner()).await.map_err(refused)? {
                AdminOutcome::Forward(call) => master.call(call, deadline).await.map(Response::new),
                AdminOutcome::ForwardFiltered(call, filter) => {
                    let answer = master.call(call, deadline).await?;
                    filter.apply(answer).map(Response::new).map_err(refused)
                }
                AdminOutcome::Answer(answer) => Ok(Response::new(answer)),
            }
        })
    }
}

#[cfg(test)]
mod tests;

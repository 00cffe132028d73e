//! Admin calls: handed, unread, to the master in office, which serves the same services.
//!
//! ```text
//!   client --- any admin call ---> any tablet server --- the same bytes ---> the master that Chubby's file names
//! ```
//!
//! A call is tried until its deadline. It is sent again when it was surely not carried out (no master yet, no
//! connection, "not the master any more"), with the file read anew each time. When the connection breaks while the
//! master is at work, only calls that may be repeated are: a table that was made twice would be an error to whoever
//! made it once.
//!
//! When Chubby does not answer, the master that it named last is asked. That one leaves office when its lease ends, a few seconds
//! later: then changes wait for Chubby, within their deadline, and are told so at its end.
//!
//! Which methods exist is the master's business; nothing here knows them. All are unary.

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
use ebla_runtime::Runtime;
use tonic::{
    Request, Response, Status,
    codegen::{BoxFuture, Service, http},
    server::{NamedService, UnaryService},
};

use super::limits;

/// The largest admin request. A table made with thousands of splits is a few hundred KiB.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// How long to wait before the file is read again.
const PAUSE: Duration = Duration::from_millis(100);
/// No attempt begins with less time than this.
const ATTEMPT_MIN: Duration = Duration::from_millis(100);
/// How long Chubby may take to name the master: two of its members may be silent.
const NAMING_MAX: Duration = Duration::from_secs(2);

/// The way to the master in office. Cheap to clone.
#[derive(Clone)]
pub struct Master {
    shared: Arc<Shared>,
}

struct Shared {
    chubby: SharedChubby,
    directory: ChubbyDirectory,
    channels: Channels,
    runtime: Runtime,
}

impl Master {
    /// The master that this Chubby names; `directory` is a copy of its files.
    pub fn new(chubby: SharedChubby, directory: ChubbyDirectory, runtime: Runtime) -> Self {
        let channels = Channels::new(runtime.net.clone());
        Self { shared: Arc::new(Shared { chubby, directory, channels, runtime }) }
    }

    /// Hands over a call until the master answers or the deadline passes.
    async fn call(&self, path: http::uri::PathAndQuery, message: Bytes, deadline: Deadline) -> Result<Bytes, Status> {
        let clock = &self.shared.runtime.clock;
        loop {
            let status = match self.attempt(path.clone(), message.clone(), deadline).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            let (error, _) = from_status(&status);
            let pause = self.shared.runtime.rng.jitter(PAUSE);
            // An attempt in the last moment fails for lack of time, and would hide why the ones before failed.
            if deadline.remaining(clock) <= pause + ATTEMPT_MIN || !may_be_sent_again(&error, path.path()) {
                return Err(told(&status, &error));
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
        let named = self.named(deadline).await.map_err(|error| to_status(&error))?;
        let answer = self.ask(&named.address, path, message, deadline).await;
        let Some(away) = named.away else { return answer };
        answer.map_err(|status| explained(status, &away))
    }

    async fn ask(
        &self,
        address: &str,
        path: http::uri::PathAndQuery,
        message: Bytes,
        deadline: Deadline,
    ) -> Result<Bytes, Status> {
        let mut grpc = tonic::client::Grpc::new(self.shared.channels.get(address))
            .max_decoding_message_size(limits::MESSAGE_BYTES_MAX);
        let left = deadline.remaining(&self.shared.runtime.clock);
        let mut request = Request::new(message);
        request.set_timeout(left);
        let call = async {
            let closed = |error: tonic::transport::Error| Status::from_error(Box::new(error));
            grpc.ready().await.map_err(closed)?;
            grpc.unary(request, path, Raw).await.map(Response::into_inner)
        };
        let silence = |_elapsed| to_status(&Error::new(Reason::OutcomeUnknown, "the master did not answer in time"));
        tokio::time::timeout(left, call).await.map_err(silence)?
    }

    /// The master in office, as Chubby says, or as it said last.
    async fn named(&self, deadline: Deadline) -> Result<Named, Error> {
        let limit = deadline.remaining(&self.shared.runtime.clock).min(NAMING_MAX);
        let asked = tokio::time::timeout(limit, self.shared.chubby.read(paths::MASTER)).await;
        let away = match asked {
            Ok(Ok(Some(file))) => {
                let address = decode_record::<record::Master>(file.value)?.address;
                return Ok(Named { address, away: None });
            }
            Ok(Ok(None)) => return Err(Error::new(Reason::Unavailable, "no master is in office")),
            Ok(Err(error)) => Error::from(error),
            Err(_elapsed) => Error::new(Reason::Unavailable, "no answer in time"),
        };
        let known = self.shared.directory.master().filter(|_| !deadline.has_passed(&self.shared.runtime.clock));
        match known {
            Some(master) => Ok(Named { address: master.address, away: Some(away) }),
            None => Err(waits(&away)),
        }
    }
}

/// A master's address, and why it is an old one if it is.
struct Named {
    address: String,
    away: Option<Error>,
}

/// What a caller hears who waited for Chubby in vain.
fn waits(away: &Error) -> Error {
    let message = format!("the lock service is away, and what the master does waits for it ({away})");
    Error::new(Reason::Unavailable, message)
}

/// The answer of a master that Chubby named some time ago: that it is not there, or not in office, is not the whole story.
fn explained(status: Status, away: &Error) -> Status {
    let (error, _) = from_status(&status);
    if is_unavailable(error.reason) { to_status(&waits(away)) } else { status }
}

/// Whether sending a call again cannot do it twice.
fn may_be_sent_again(error: &Error, path: &str) -> bool {
    match error.reason {
        Reason::OutcomeUnknown => is_repeatable(path),
        reason => is_unavailable(reason),
    }
}

/// Calls that change nothing, or nothing more the second time.
fn is_repeatable(path: &str) -> bool {
    let method = path.rsplit('/').next().unwrap_or_default();
    ["Get", "List", "Check", "Generate", "Test", "Wait", "Cancel", "Status", "DropRowRange"]
        .iter()
        .any(|start| method.starts_with(start))
}

/// What the client hears: the master's own words, or what became of the connection.
fn told(status: &Status, error: &Error) -> Status {
    match error.reason {
        Reason::OutcomeUnknown => to_status(&Error::new(
            Reason::OutcomeUnknown,
            format!("the master may have carried this out; look before trying again ({error})"),
        )),
        _ if status.details().is_empty() => to_status(error),
        _ => Status::with_details(status.code(), status.message(), Bytes::copy_from_slice(status.details())),
    }
}

/// A service that hands all of its calls to the master. `S`: the generated server whose name it bears.
pub struct Relay<S> {
    master: Master,
    bears_the_name_of: PhantomData<fn() -> S>,
}

impl<S> Relay<S> {
    /// A relay to this master.
    pub const fn new(master: Master) -> Self {
        Self { master, bears_the_name_of: PhantomData }
    }
}

impl<S> Clone for Relay<S> {
    fn clone(&self) -> Self {
        Self::new(self.master.clone())
    }
}

impl<S: NamedService> NamedService for Relay<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: 'static> Service<http::Request<tonic::body::Body>> for Relay<S> {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let path = request.uri().path_and_query().cloned();
        let call = HandOver { master: self.master.clone(), path };
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Raw).apply_max_message_size_config(Some(REQUEST_BYTES_MAX), None);
            Ok(grpc.unary(call, request).await)
        })
    }
}

/// One call on its way.
struct HandOver {
    master: Master,
    path: Option<http::uri::PathAndQuery>,
}

impl UnaryService<Bytes> for HandOver {
    type Response = Bytes;
    type Future = BoxFuture<Response<Bytes>, Status>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (master, path) = (self.master.clone(), self.path.clone());
        Box::pin(async move {
            let path = path.ok_or_else(|| to_status(&Error::unimplemented("no method was named")))?;
            let limit = limits::timeout(request.metadata(), limits::CALL);
            let deadline = Deadline::after(&master.shared.runtime.clock, limit);
            master.call(path, request.into_inner(), deadline).await.map(Response::new)
        })
    }
}

#[cfg(test)]
mod tests;

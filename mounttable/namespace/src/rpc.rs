//! Calls to tables: one channel per server, the caller's identity, a timeout, and hedging across equivalent servers.

use std::future::Future;
use std::time::Duration;

use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::{Error, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_client::MountTableClient;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::entry::{MountEntry, ObjectLocation};
use crate::namespace::Namespace;
use crate::recipients::TOKEN_WITHHELD;

/// The largest reply: a name may have very many servers.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The delay after which the next server is asked too.
const HEDGE_DELAY: Duration = Duration::from_millis(300);

/// The first reply from several servers.
#[derive(Debug)]
pub(crate) struct FirstReply<T> {
    /// The server that replied.
    pub(crate) location: ObjectLocation,
    /// Its result; a refusal is a result too.
    pub(crate) outcome: Result<T, Error>,
}

/// Asks the most preferred server, and further ones when it is unavailable or slow; returns the first reply. The call
/// may be executed more than once.
///
/// # Errors
/// `UNAVAILABLE` when all servers are.
pub(crate) async fn first_reply<T, F>(
    locations: &[ObjectLocation],
    call: impl Fn(ObjectLocation) -> F,
) -> Result<FirstReply<T>, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut remaining = locations.iter();
    let mut in_flight = FuturesUnordered::new();
    let mut failure = Error::new(Reason::Unavailable, "no server to ask");
    loop {
        if let Some(location) = remaining.next() {
            let answer = call(location.clone());
            in_flight.push(async move { FirstReply { location: location.clone(), outcome: answer.await } });
        }
        let answered = match remaining.len() {
            0 => in_flight.next().await,
            // A timeout cancels nothing: requests in flight continue.
            _ => tokio::time::timeout(HEDGE_DELAY, in_flight.next()).await.ok().flatten(),
        };
        match answered {
            Some(FirstReply { outcome: Err(error), .. }) if error.reason == Reason::Unavailable => failure = error,
            Some(answered) => return Ok(answered),
            None => {}
        }
        if remaining.len() == 0 && in_flight.is_empty() {
            return Err(failure);
        }
    }
}

/// The first success of concurrent calls. The others then have `grace` to finish, and are dropped afterwards: servers
/// complete what they have received.
///
/// # Errors
/// The last error, when all calls fail.
pub(crate) async fn first_success<T>(
    calls: impl IntoIterator<Item = impl Future<Output = Result<T, Error>>>,
    grace: Duration,
) -> Result<T, Error> {
    let mut in_flight: FuturesUnordered<_> = calls.into_iter().collect();
    let mut failure = Error::new(Reason::Unavailable, "no server to ask");
    while let Some(outcome) = in_flight.next().await {
        match outcome {
            Ok(done) => {
                let others = in_flight.map(drop).collect::<()>();
                // What is not finished by then is not awaited any longer.
                drop(tokio::time::timeout(grace, others).await);
                return Ok(done);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

impl Namespace {
    /// A client for the table at `location`.
    pub(crate) fn client(&self, location: &ObjectLocation) -> MountTableClient<Channel> {
        MountTableClient::new(self.0.channels.get(location.host_port())).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// A request to the server at `location` with the caller's identity and the timeout.
    pub(crate) fn request<M>(&self, location: &ObjectLocation, message: M) -> Request<M> {
        let mut request = self.request_without_timeout(location, message);
        request.set_timeout(self.0.timeout);
        request
    }

    /// A request to the server at `location` with the caller's identity.
    pub(crate) fn request_without_timeout<M>(&self, location: &ObjectLocation, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some((header, identity)) = self.identity_for(location) {
            request.metadata_mut().insert(header, identity);
        }
        request
    }

    /// The result of a call to `location`. A refusal says so when the caller's token was not sent there.
    pub(crate) fn result<T>(&self, location: &ObjectLocation, answer: Result<Response<T>, Status>) -> Result<T, Error> {
        answer.map(Response::into_inner).map_err(|status| self.error(location, &status))
    }

    /// The error in a status from `location`, as in [`Self::result`].
    pub(crate) fn error(&self, location: &ObjectLocation, status: &Status) -> Error {
        let error = rpc_error(location, status);
        let was_withheld = self.0.identity.is_some() && self.identity_for(location).is_none();
        match error.reason {
            Reason::NoAccess | Reason::NotAuthenticated if was_withheld => {
                let server = location.host_port();
                Error::new(error.reason, format!("{}; {TOKEN_WITHHELD} {server}, which is mounted", error.message))
            }
            _ => error,
        }
    }

    /// One step of a resolution at the table at `location`.
    pub(crate) async fn resolve_step(&self, location: ObjectLocation) -> Result<MountEntry, Error> {
        let request = self.request(&location, wire::ResolveStepRequest { name: location.name.clone() });
        self.result(&location, self.client(&location).resolve_step(request).await).map(MountEntry::from_wire)
    }
}

/// The result of a call to `location`.
pub(crate) fn rpc_result<T>(location: &ObjectLocation, answer: Result<Response<T>, Status>) -> Result<T, Error> {
    answer.map(Response::into_inner).map_err(|status| rpc_error(location, &status))
}

/// The error in a status from `location`.
pub(crate) fn rpc_error(location: &ObjectLocation, status: &Status) -> Error {
    let error = messages::error(status);
    match error.reason {
        // The client cancels no call whose reply it awaits, so `CANCELLED` means that the deadline was exceeded.
        Reason::Unavailable | Reason::Cancelled => {
            Error::new(Reason::Unavailable, format!("{}: {}", location.address, error.message))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::{pending, ready};

    use super::*;

    fn locations(count: usize) -> Vec<ObjectLocation> {
        (1..=count).map(|port| ObjectLocation::new(&format!("h:{port}").parse().unwrap(), "a")).collect()
    }

    fn dead<T>() -> Result<T, Error> {
        Err(Error::new(Reason::Unavailable, "dead"))
    }

    #[tokio::test]
    async fn dead_servers_are_skipped_and_a_refusal_is_an_answer() {
        let call = |location: ObjectLocation| {
            ready(match location.host_port() {
                "h:1" | "h:2" => dead(),
                "h:3" => Err(Error::new(Reason::NoAccess, "no")),
                _ => Ok(()),
            })
        };
        let answered = first_reply(&locations(4), call).await.unwrap();
        assert_eq!((answered.location.host_port(), answered.outcome.unwrap_err().reason), ("h:3", Reason::NoAccess));
        assert_eq!(first_reply(&locations(2), call).await.unwrap_err().message, "dead");
        assert_eq!(first_reply::<(), _>(&[], |_| ready(dead())).await.unwrap_err().reason, Reason::Unavailable);
    }

    #[tokio::test]
    async fn one_success_is_enough_and_the_others_have_some_time() {
        let finished = parking_lot::Mutex::new(Vec::new());
        let call = |number: u8| {
            let finished = &finished;
            async move {
                match number {
                    0 => pending().await,
                    1 => return dead(),
                    2 => {}
                    _ => tokio::task::yield_now().await,
                }
                finished.lock().push(number);
                Ok(number)
            }
        };
        let outcome = first_success([0, 1, 2, 3].map(call), Duration::from_millis(50)).await;
        assert_eq!((outcome.unwrap(), finished.lock().clone()), (2, vec![2, 3]));
        let outcome = first_success([1, 1].map(call), Duration::from_millis(50)).await;
        assert_eq!(outcome.unwrap_err().message, "dead");
    }

    #[tokio::test]
    async fn a_silent_server_does_not_hold_up_the_next() {
        let call = |location: ObjectLocation| {
            if location.host_port() == "h:1" { pending().boxed() } else { ready(Ok(())).boxed() }
        };
        assert_eq!(first_reply(&locations(2), call).await.unwrap().location.host_port(), "h:2");
    }
}

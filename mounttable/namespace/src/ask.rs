//! Asking tables: one channel to each, calls with the caller's names and a time limit, the next server when one is
//! dead.

use std::future::Future;
use std::time::Duration;

use ebla_mounttable::service::messages;
use ebla_mounttable::{Error, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_client::MountTableClient;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::entry::{MountEntry, Place};
use crate::namespace::Namespace;

/// The largest answer that is taken: a name may have very many servers.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A server that has not answered for so long has the next one asked beside it.
const PATIENCE: Duration = Duration::from_millis(300);

/// What one of several servers said.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    /// Which one.
    pub(crate) place: Place,
    /// Its answer, or why it refuses: that is an answer too.
    pub(crate) outcome: Result<T, Error>,
}

/// Asks the most preferred server, and others when it is dead or slow: what the first says that says anything. All are
/// asked for the same thing, so the call must be one that may be made twice.
///
/// # Errors
/// `UNAVAILABLE` when all are dead.
pub(crate) async fn first<T, F>(places: &[Place], call: impl Fn(Place) -> F) -> Result<Answered<T>, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut waiting = places.iter();
    let mut asked = FuturesUnordered::new();
    let mut failure = Error::new(Reason::Unavailable, "there is no server to ask");
    loop {
        if let Some(place) = waiting.next() {
            let answer = call(place.clone());
            asked.push(async move { Answered { place: place.clone(), outcome: answer.await } });
        }
        let answered = match waiting.len() {
            0 => asked.next().await,
            // Nobody is lost: who was asked already goes on.
            _ => tokio::time::timeout(PATIENCE, asked.next()).await.ok().flatten(),
        };
        match answered {
            Some(Answered { outcome: Err(error), .. }) if error.reason == Reason::Unavailable => failure = error,
            Some(answered) => return Ok(answered),
            None => {}
        }
        if waiting.len() == 0 && asked.is_empty() {
            return Err(failure);
        }
    }
}

impl Namespace {
    /// Where the table at `place` is asked.
    pub(crate) fn client(&self, place: &Place) -> MountTableClient<Channel> {
        MountTableClient::new(self.0.channels.get(place.host_port())).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// The message with who asks, and for how long.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = self.unlimited(message);
        request.set_timeout(self.0.timeout);
        request
    }

    /// The message with who asks.
    pub(crate) fn unlimited<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some((header, identity)) = &self.0.identity {
            request.metadata_mut().insert(*header, identity.clone());
        }
        request
    }

    /// One step of a resolution, asked of the table at `place`.
    pub(crate) async fn resolve_step(&self, place: Place) -> Result<MountEntry, Error> {
        let request = self.request(wire::ResolveStepRequest { name: place.name.clone() });
        told(&place, self.client(&place).resolve_step(request).await).map(MountEntry::from_wire)
    }
}

/// What the server at `place` told.
pub(crate) fn told<T>(place: &Place, answer: Result<Response<T>, Status>) -> Result<T, Error> {
    answer.map(Response::into_inner).map_err(|status| failure(place, &status))
}

/// The error that a status of the server at `place` tells.
pub(crate) fn failure(place: &Place, status: &Status) -> Error {
    let error = messages::error(status);
    match error.reason {
        // Nobody here takes back a call and then looks at its answer: its time was over.
        Reason::Unavailable | Reason::Cancelled => {
            Error::new(Reason::Unavailable, format!("{}: {}", place.address, error.message))
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::{pending, ready};

    use super::*;

    fn places(count: usize) -> Vec<Place> {
        (1..=count).map(|port| Place::new(&format!("h:{port}").parse().unwrap(), "a")).collect()
    }

    fn dead<T>() -> Result<T, Error> {
        Err(Error::new(Reason::Unavailable, "dead"))
    }

    #[tokio::test]
    async fn dead_servers_are_skipped_and_a_refusal_is_an_answer() {
        let call = |place: Place| {
            ready(match place.host_port() {
                "h:1" | "h:2" => dead(),
                "h:3" => Err(Error::new(Reason::NoAccess, "no")),
                _ => Ok(()),
            })
        };
        let answered = first(&places(4), call).await.unwrap();
        assert_eq!((answered.place.host_port(), answered.outcome.unwrap_err().reason), ("h:3", Reason::NoAccess));
        assert_eq!(first(&places(2), call).await.unwrap_err().message, "dead");
        assert_eq!(first::<(), _>(&[], |_| ready(dead())).await.unwrap_err().reason, Reason::Unavailable);
    }

    #[tokio::test]
    async fn a_silent_server_does_not_hold_up_the_next() {
        let call = |place: Place| if place.host_port() == "h:1" { pending().boxed() } else { ready(Ok(())).boxed() };
        assert_eq!(first(&places(2), call).await.unwrap().place.host_port(), "h:2");
    }
}

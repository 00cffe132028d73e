//! Listing over all tables that are mounted in each other: the shell around [`frontier`].
//!
//! Some tables are asked at the same time. The stream is all there is to it: dropped, nobody goes on.

pub mod frontier;

use std::future::ready;
use std::sync::Arc;

use ebla_mounttable::service::messages;
use ebla_mounttable::{Error, Pattern, naming};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply::Reply;
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, stream};
use tonic::{Status, Streaming};

use crate::ask::{failure, first, told};
use crate::entry::{MountEntry, Place};
use crate::glob::frontier::{Found, Frontier, Visit};
use crate::namespace::Namespace;
use crate::roots::with_hint;

pub use crate::glob::frontier::{GlobEntry, GlobError};

/// Tables that are asked at the same time.
const TOGETHER: usize = 16;

/// What a table says of a name below it.
type Heard = Result<Found, (String, Error)>;

impl Namespace {
    /// Every name that a pattern asks for: `*`, `?` and `[a-z]` in an element, `...` at the end for everything below,
    /// `***` for everything that mount tables keep. A rooted pattern begins with a server, and so do the names of its
    /// results.
    ///
    /// What cannot be listed is an item of its own, and the rest goes on. In no order.
    ///
    /// # Errors
    /// `BAD_PATTERN`; `NO_MOUNT_TABLE` for a relative pattern without roots; `BAD_ADDRESS`.
    pub fn glob(&self, pattern: &str) -> Result<BoxStream<'static, Result<GlobEntry, GlobError>>, Error> {
        let (prefix, pattern) = match naming::split_address(pattern) {
            (address, rest) if naming::is_rooted(pattern) => (format!("/{address}"), rest),
            _ => (String::new(), pattern.to_owned()),
        };
        let entry = self.roots().entry(&prefix).map_err(|error| with_hint(&pattern, error))?;
        let frontier = Frontier::begin(prefix, entry, pattern.parse()?);
        let listing = Listing { namespace: self.clone(), frontier, asked: SelectAll::new() };
        let next = |mut listing: Listing| async move { listing.next().await.map(|item| (item, listing)) };
        Ok(stream::unfold(listing, next).boxed())
    }
}

struct Listing {
    namespace: Namespace,
    frontier: Frontier,
    asked: SelectAll<BoxStream<'static, (Arc<Visit>, Heard)>>,
}

impl Listing {
    async fn next(&mut self) -> Option<Result<GlobEntry, GlobError>> {
        loop {
            if let Some(item) = self.frontier.tell() {
                return Some(item);
            }
            while self.asked.len() < TOGETHER
                && let Some(visit) = self.frontier.next_visit()
            {
                self.asked.push(listed(self.namespace.clone(), Arc::new(visit)));
            }
            match self.asked.next().await? {
                (visit, Ok(found)) => self.frontier.found(&visit, found),
                (visit, Err((name, error))) => self.frontier.failed(&visit, &name, error),
            }
        }
    }
}

/// What the first server of a visit that answers says.
fn listed(namespace: Namespace, visit: Arc<Visit>) -> BoxStream<'static, (Arc<Visit>, Heard)> {
    let asked = Arc::clone(&visit);
    let opened = async move {
        let open = |place: Place| open(&namespace, place, &asked.rest);
        let answered = first(&asked.entry.places(), open).await;
        match answered.and_then(|it| Ok((it.place, it.outcome?))) {
            Ok((place, replies)) => replies.filter_map(move |reply| ready(heard(&place, reply))).boxed(),
            Err(error) => stream::once(ready(Err((String::new(), error)))).boxed(),
        }
    };
    stream::once(opened).flatten().map(move |heard| (Arc::clone(&visit), heard)).boxed()
}

async fn open(namespace: &Namespace, place: Place, rest: &Pattern) -> Result<Streaming<wire::GlobReply>, Error> {
    let message = wire::GlobRequest { receiver: place.name.clone(), pattern: rest.to_string() };
    told(&place, namespace.client(&place).glob(namespace.request(message)).await)
}

fn heard(place: &Place, reply: Result<wire::GlobReply, Status>) -> Option<Heard> {
    match reply.map(|reply| reply.reply) {
        Ok(Some(Reply::Entry(entry))) => {
            let has_children = entry.has_children;
            let entry = MountEntry::from_wire(entry);
            Some(Ok(Found { name: entry.suffix.clone(), entry, has_children }))
        }
        Ok(Some(Reply::Error(error))) => Some(Err((error.name, messages::error_in(error.failure.unwrap_or_default())))),
        Ok(Some(Reply::Summary(_)) | None) => None,
        Err(status) => Some(Err((String::new(), failure(place, &status)))),
    }
}

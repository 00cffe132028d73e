//! Listing across all tables that are mounted in each other: the shell around [`frontier`].
//!
//! Several tables are asked concurrently. Dropping the stream stops all work.

pub mod frontier;

use std::future::ready;
use std::sync::Arc;

use ebla_mounttable_tree::messages;
use ebla_mounttable_tree::{Error, Pattern, naming};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply::Reply;
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt, stream};
use tonic::{Status, Streaming};

use crate::entry::{MountEntry, ObjectLocation};
use crate::glob::frontier::{Found, Frontier, Visit};
use crate::namespace::Namespace;
use crate::roots::with_hint;
use crate::rpc::first_reply;

pub use crate::glob::frontier::{GlobEntry, GlobError};

/// The number of tables that are asked concurrently.
const CONCURRENCY: usize = 16;

/// A match or an error from a table.
type ReceivedMatch = Result<Found, (String, Error)>;

impl Namespace {
    /// Lists the names that match a pattern: `*`, `?` and `[a-z]` in an element, `...` at the end for everything below,
    /// `***` for everything in mount tables. A rooted pattern begins with a server, and so do the names of its results.
    ///
    /// Errors of parts of the listing are items of the stream; the rest continues. The order is unspecified.
    ///
    /// # Errors
    /// `BAD_PATTERN`; `NO_MOUNT_TABLE` for a relative pattern without roots; `BAD_ADDRESS`.
    pub fn glob(&self, pattern: &str) -> Result<BoxStream<'static, Result<GlobEntry, GlobError>>, Error> {
        let (prefix, pattern) = match naming::split_address(pattern) {
            (address, rest) if naming::is_rooted(pattern) => (format!("/{address}"), rest),
            _ => (String::new(), pattern.to_owned()),
        };
        let entry = self.entry(&prefix).map_err(|error| with_hint(&pattern, error))?;
        let frontier = Frontier::begin(prefix, entry, pattern.parse()?);
        let listing = Listing { namespace: self.clone(), frontier, streams: SelectAll::new() };
        let next = |mut listing: Listing| async move { listing.next().await.map(|item| (item, listing)) };
        Ok(stream::unfold(listing, next).boxed())
    }
}

struct Listing {
    namespace: Namespace,
    frontier: Frontier,
    streams: SelectAll<BoxStream<'static, (Arc<Visit>, ReceivedMatch)>>,
}

impl Listing {
    async fn next(&mut self) -> Option<Result<GlobEntry, GlobError>> {
        loop {
            if let Some(item) = self.frontier.next_result() {
                return Some(item);
            }
            while self.streams.len() < CONCURRENCY
                && let Some(visit) = self.frontier.next_visit()
            {
                self.streams.push(list_servers(self.namespace.clone(), Arc::new(visit)));
            }
            match self.streams.next().await? {
                (visit, Ok(found)) => self.frontier.found(&visit, found),
                (visit, Err((name, error))) => self.frontier.failed(&visit, &name, error),
            }
        }
    }
}

/// The replies of the first server of a visit that answers.
fn list_servers(namespace: Namespace, visit: Arc<Visit>) -> BoxStream<'static, (Arc<Visit>, ReceivedMatch)> {
    let requested = Arc::clone(&visit);
    let opened = async move {
        let open = |location: ObjectLocation| open(&namespace, location, &requested.rest);
        let answered = first_reply(&requested.entry.locations(), open).await;
        match answered.and_then(|it| Ok((it.location, it.outcome?))) {
            Ok((location, replies)) => {
                replies.filter_map(move |reply| ready(received(&namespace, &location, reply))).boxed()
            }
            Err(error) => stream::once(ready(Err((String::new(), error)))).boxed(),
        }
    };
    stream::once(opened).flatten().map(move |received| (Arc::clone(&visit), received)).boxed()
}

async fn open(
    namespace: &Namespace,
    location: ObjectLocation,
    rest: &Pattern,
) -> Result<Streaming<wire::GlobReply>, Error> {
    let message = wire::GlobRequest { receiver: location.name.clone(), pattern: rest.to_string() };
    let request = namespace.request(&location, message);
    namespace.result(&location, namespace.client(&location).glob(request).await)
}

fn received(
    namespace: &Namespace,
    location: &ObjectLocation,
    reply: Result<wire::GlobReply, Status>,
) -> Option<ReceivedMatch> {
    match reply.map(|reply| reply.reply) {
        Ok(Some(Reply::Entry(entry))) => {
            let has_children = entry.has_children;
            let entry = MountEntry::from_wire(entry);
            Some(Ok(Found { name: entry.suffix.clone(), entry, has_children }))
        }
        Ok(Some(Reply::Error(error))) => Some(Err((error.name, messages::error_in(error.failure.unwrap_or_default())))),
        Ok(Some(Reply::Summary(_)) | None) => None,
        Err(status) => Some(Err((String::new(), namespace.error(location, &status)))),
    }
}

//! `?watch=1`: the servers of a name and their changes, as server-sent events.

use std::convert::Infallible;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::watch_reply::Reply;
use futures::StreamExt;
use serde::Serialize;
use tonic::Status;

use crate::gateway::http_error::HttpError;
use crate::gateway::json::{self, Resolved, Server};
use crate::gateway::listing::check_first;
use crate::service::ReplyStream;

/// The first event.
#[derive(Debug, Serialize)]
struct Snapshot {
    /// `None`: the name does not resolve.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Resolved>,
}

/// The change since the previous event.
#[derive(Debug, Serialize)]
struct Change {
    added: Vec<Server>,
    updated: Vec<Server>,
    removed: Vec<String>,
    gone: bool,
    suffix: String,
}

/// The changes as a response that ends when the watcher disconnects, or with the event `refusal`.
pub(super) async fn answer(replies: ReplyStream<wire::WatchReply>) -> Result<Response, HttpError> {
    let events = check_first(replies).await?.map(|reply| Ok::<_, Infallible>(event(reply)));
    Ok(Sse::new(events).into_response())
}

fn event(reply: Result<wire::WatchReply, Status>) -> Event {
    match reply.map(|message| message.reply) {
        Ok(Some(Reply::Snapshot(snapshot))) => {
            named("snapshot", &Snapshot { entry: snapshot.entry.map(Resolved::from) })
        }
        Ok(Some(Reply::Change(change))) => {
            let wire::watch_reply::Change { added, updated, removed, gone, suffix } = change;
            let (added, updated) = (json::servers(added), json::servers(updated));
            named("change", &Change { added, updated, removed, gone, suffix })
        }
        // A heartbeat becomes a comment: programs ignore it, and proxies keep the connection open.
        Ok(Some(Reply::Heartbeat(_)) | None) => Event::default().comment(""),
        Err(status) => named("refusal", &HttpError::from(status).into_body()),
    }
}

fn named(name: &str, data: &impl Serialize) -> Event {
    // JSON on one line cannot end the event.
    Event::default().event(name).data(json::text(data))
}

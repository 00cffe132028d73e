//! `?watch=1`: where a name leads, and what changes of that, as server-sent events.

use std::convert::Infallible;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::watch_reply::Reply;
use futures::StreamExt;
use serde::Serialize;
use tonic::Status;

use crate::gateway::json::{self, Resolved, Server};
use crate::gateway::listing::begun;
use crate::gateway::refusal::Refusal;
use crate::service::Messages;

/// The first event.
#[derive(Debug, Serialize)]
struct Snapshot {
    /// `None`: the name leads nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Resolved>,
}

/// What has changed since the event before.
#[derive(Debug, Serialize)]
struct Change {
    added: Vec<Server>,
    updated: Vec<Server>,
    removed: Vec<String>,
    gone: bool,
    suffix: String,
}

/// The changes as an answer that ends when the watcher goes, or with the event `refusal`.
pub(super) async fn answer(replies: Messages<wire::WatchReply>) -> Result<Response, Refusal> {
    let events = begun(replies).await?.map(|reply| Ok::<_, Infallible>(event(reply)));
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
        // Nothing has happened. A comment says so: no program hears of it, and what is between here and there does not hang up.
        Ok(Some(Reply::Heartbeat(_)) | None) => Event::default().comment(""),
        Err(status) => named("refusal", &Refusal::from(status).told()),
    }
}

fn named(name: &str, data: &impl Serialize) -> Event {
    // JSON on one line: nothing in it ends the event.
    Event::default().event(name).data(json::text(data))
}

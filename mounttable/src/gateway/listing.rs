//! `?glob=`: a listing as lines of JSON, told as it is found.
//!
//! The last line is the summary. A listing that ends with a refusal, or without either, was broken off.

use std::convert::Infallible;
use std::pin::Pin;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply::{Error as Unread, Reply};
use futures::stream::{self, Peekable};
use futures::{Stream, StreamExt};
use http::header;
use serde::Serialize;

use crate::gateway::json::{self, Server};
use crate::gateway::refusal::{Refusal, Told};
use crate::service::Messages;

/// Entries of a listing when nothing is said of their number.
pub const ENTRIES: u32 = 1_000;

/// Most entries of one listing.
pub const ENTRIES_MAX: u32 = 100_000;

/// Lines of JSON.
const CONTENT_TYPE: &str = "application/jsonl";

/// A line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Entry(Entry),
    Error(Failed),
    Summary(Summary),
    Refusal(Told),
}

/// A name that the pattern asks for.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    servers: Vec<Server>,
    has_children: bool,
}

/// A node that is left out; the listing goes on.
#[derive(Debug, Serialize)]
struct Failed {
    name: String,
    reason: String,
    message: String,
}

/// What the listing came to.
#[derive(Debug, Serialize)]
struct Summary {
    entries: u64,
    omitted: bool,
    truncated: bool,
}

/// A stream of which the first message has come.
pub(super) type Begun<T> = Peekable<Messages<T>>;

/// A stream whose first message is not a refusal: that still can be an answer of its own, with a status.
pub(super) async fn begun<T: Send + 'static>(messages: Messages<T>) -> Result<Begun<T>, Refusal> {
    let mut messages = messages.peekable();
    if let Some(Err(refused)) = Pin::new(&mut messages).peek().await {
        return Err(refused.clone().into());
    }
    Ok(messages)
}

/// The listing as an answer, of up to `limit` entries.
pub(super) async fn answer(replies: Messages<wire::GlobReply>, limit: u32) -> Result<Response, Refusal> {
    let lines = lines(begun(replies).await?, limit.into()).map(|line| Ok::<_, Infallible>(json::text(&line) + "\n"));
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::from_stream(lines)).into_response())
}

/// One line a reply. Behind the last line the listing is dropped, which ends it.
fn lines(replies: Begun<wire::GlobReply>, limit: u64) -> impl Stream<Item = Line> {
    stream::unfold(Some((replies, 0_u64)), move |listing| async move {
        let (mut replies, told) = listing?;
        let line = match replies.next().await?.map(|message| message.reply) {
            Ok(Some(Reply::Entry(_))) if told == limit => {
                Line::Summary(Summary { entries: told, omitted: false, truncated: true })
            }
            Ok(Some(reply)) => line(reply),
            Ok(None) => return None,
            Err(status) => Line::Refusal(Refusal::from(status).told()),
        };
        let rest = match line {
            Line::Entry(_) => Some((replies, told.saturating_add(1))),
            Line::Error(_) => Some((replies, told)),
            Line::Summary(_) | Line::Refusal(_) => None,
        };
        Some((line, rest))
    })
}

fn line(reply: Reply) -> Line {
    match reply {
        Reply::Entry(entry) => {
            let wire::Entry { name, servers, has_children, .. } = entry;
            Line::Entry(Entry { name, servers: json::servers(servers), has_children })
        }
        Reply::Error(Unread { name, failure }) => {
            let wire::Failure { reason, message } = failure.unwrap_or_default();
            Line::Error(Failed { name, reason, message })
        }
        Reply::Summary(summary) => {
            Line::Summary(Summary { entries: summary.entries, omitted: summary.omitted, truncated: false })
        }
    }
}

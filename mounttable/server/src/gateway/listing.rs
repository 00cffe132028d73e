//! `?glob=`: a listing as lines of JSON, sent while it is found.
//!
//! The last line is the summary. A listing that ends with a refusal, or without either, is incomplete.

use std::convert::Infallible;
use std::pin::Pin;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply::{Error as GlobError, Reply};
use futures::stream::{self, Peekable};
use futures::{Stream, StreamExt};
use http::header;
use serde::Serialize;

use crate::gateway::http_error::{ErrorBody, HttpError};
use crate::gateway::json::{self, Server};
use crate::service::ReplyStream;

/// The default for the number of entries.
pub const ENTRIES: u32 = 1_000;

/// The largest number of entries of one listing.
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
    Refusal(ErrorBody),
}

/// A matching name.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    servers: Vec<Server>,
    has_children: bool,
}

/// A node that could not be read; the listing continues.
#[derive(Debug, Serialize)]
struct Failed {
    name: String,
    reason: String,
    message: String,
}

/// The summary.
#[derive(Debug, Serialize)]
struct Summary {
    entries: u64,
    omitted: bool,
    truncated: bool,
}

/// A stream whose first message has arrived.
pub(super) type PeekableReplies<T> = Peekable<ReplyStream<T>>;

/// Waits for the first message: if it is an error, the response can still have an error status.
pub(super) async fn check_first<T: Send + 'static>(messages: ReplyStream<T>) -> Result<PeekableReplies<T>, HttpError> {
    let mut messages = messages.peekable();
    if let Some(Err(refused)) = Pin::new(&mut messages).peek().await {
        return Err(refused.clone().into());
    }
    Ok(messages)
}

/// The listing as a response, with at most `limit` entries.
pub(super) async fn answer(replies: ReplyStream<wire::GlobReply>, limit: u32) -> Result<Response, HttpError> {
    let lines =
        lines(check_first(replies).await?, limit.into()).map(|line| Ok::<_, Infallible>(json::text(&line) + "\n"));
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::from_stream(lines)).into_response())
}

/// One line per reply. After the last line the stream is dropped, which ends the listing.
fn lines(replies: PeekableReplies<wire::GlobReply>, limit: u64) -> impl Stream<Item = Line> {
    stream::unfold(Some((replies, 0_u64)), move |listing| async move {
        let (mut replies, sent) = listing?;
        let line = match replies.next().await?.map(|message| message.reply) {
            Ok(Some(Reply::Entry(_))) if sent == limit => {
                Line::Summary(Summary { entries: sent, omitted: false, truncated: true })
            }
            Ok(Some(reply)) => line(reply),
            Ok(None) => return None,
            Err(status) => Line::Refusal(HttpError::from(status).into_body()),
        };
        let rest = match line {
            Line::Entry(_) => Some((replies, sent.saturating_add(1))),
            Line::Error(_) => Some((replies, sent)),
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
        Reply::Error(GlobError { name, failure }) => {
            let wire::Failure { reason, message } = failure.unwrap_or_default();
            Line::Error(Failed { name, reason, message })
        }
        Reply::Summary(summary) => {
            Line::Summary(Summary { entries: summary.entries, omitted: summary.omitted, truncated: false })
        }
    }
}

//! An etcd watch as a stream of events that ends with a gap at the first failure.
//!
//! A watcher can always list again and watch from there, so nothing is repaired here: a member that stops responding,
//! a broken connection, a compacted or unknown revision, and a consumer that is too slow all end in a gap.

use etcd_client::{EventType, WatchStream as Responses};
use tokio::sync::mpsc;
use tracing::debug;

use super::files::{Keys, revision};
use super::member::{Member, status};
use super::members::{Members, RetryPolicy};
use super::{CALL_TIMEOUT, signed};
use crate::{Error, Revision, WatchEvent, WatchStream};

/// Events that a slow watcher may be behind before it receives a gap.
const WATCH_EVENTS_MAX: usize = 1_024;

/// A watch that a member has started.
struct OpenedWatch {
    responses: Responses,
    /// The revision of that member when the watch started; `None` when it rejected the watch.
    revision: Option<Revision>,
}

/// Watches the changes under `prefix` after the revision `after`.
pub(super) async fn begin(members: &Members, keys: &Keys, prefix: &str, after: Revision) -> Result<WatchStream, Error> {
    let (prefix, start) = (keys.key(prefix), signed(after.get()).saturating_add(1));
    let call = |member: Member| {
        let prefix = prefix.clone();
        async move {
            let mut responses = member.watch(prefix, start).await?;
            let first = responses.message().await.map_err(status)?;
            let first = first.filter(|first| first.created() && !first.canceled());
            Ok(OpenedWatch { responses, revision: first.map(|first| revision(first.header())) })
        }
    };
    let opened = members.call(RetryPolicy::Always, CALL_TIMEOUT, call).await?;
    let (sender, receiver) = mpsc::channel(WATCH_EVENTS_MAX);
    if has_revision(members, keys, opened.revision, after).await? {
        let keys = keys.clone();
        members
            .tasks()
            .spawn_until_stopped("etcd watch", async move { forward(opened.responses, &keys, &sender).await });
    } else {
        gap(&sender, "the revision is unknown to etcd");
    }
    Ok(WatchStream::new(receiver))
}

/// Whether the store has reached the revision `after`. A member may lag behind. A store that was restored from a
/// backup is at an older revision, and would send nothing until it reaches `after` again.
async fn has_revision(members: &Members, keys: &Keys, at: Option<Revision>, after: Revision) -> Result<bool, Error> {
    match at {
        None => Ok(false),
        Some(at) if at >= after => Ok(true),
        Some(_lags) => Ok(super::files::now(members, keys).await? >= after),
    }
}

/// Forwards events until the watch ends or its consumer is dropped.
async fn forward(mut responses: Responses, keys: &Keys, events: &mpsc::Sender<WatchEvent>) {
    loop {
        let answer = tokio::select! {
            answer = responses.message() => answer,
            () = events.closed() => return,
        };
        let answer = match answer {
            Ok(Some(answer)) if !answer.canceled() => answer,
            Ok(Some(ended)) => return gap(events, &format!("canceled by etcd: {}", ended.cancel_reason())),
            Ok(None) => return gap(events, "the stream ended"),
            Err(error) => return gap(events, &error.to_string()),
        };
        for event in answer.events().iter().filter_map(|event| event_of(keys, event)) {
            if events.capacity() <= 1 {
                return gap(events, "the consumer is too slow");
            }
            if events.try_send(event).is_err() {
                return;
            }
        }
    }
}

/// The last slot of the channel is reserved for this.
fn gap(events: &mpsc::Sender<WatchEvent>, why: &str) {
    debug!(why, "watch ended");
    // A dropped consumer needs no gap.
    drop(events.try_send(WatchEvent::Gap));
}

fn event_of(keys: &Keys, event: &etcd_client::Event) -> Option<WatchEvent> {
    let file = keys.file(event.kv()?)?;
    Some(match event.event_type() {
        EventType::Put => WatchEvent::Put(file),
        EventType::Delete => WatchEvent::Deleted { path: file.path, revision: file.modified },
    })
}

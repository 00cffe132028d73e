//! A watch of etcd's as a stream of events that ends with a gap at the first trouble.
//!
//! Whoever watches can list again and watch from there, so nothing is mended here: a member that falls silent, a
//! connection that breaks, a revision that is forgotten or never was, a consumer that is too slow, all end in a gap.

use etcd_client::{EventType, WatchStream as Answers};
use tokio::sync::mpsc;
use tracing::debug;

use super::files::{Keys, revision};
use super::member::{Member, status};
use super::members::{Members, Repeat};
use super::{BOUND, signed};
use crate::{Error, Event, Revision, WatchStream};

/// Events that a slow watcher may be behind before it is told of a gap.
const WATCH_EVENTS_MAX: usize = 1_024;

/// A watch that stands at a member.
struct Standing {
    answers: Answers,
    /// The revision of that member when it began; `None` when it was refused at once.
    revision: Option<Revision>,
}

/// Watches what is under `prefix` from behind `after`.
pub(super) async fn begin(members: &Members, keys: &Keys, prefix: &str, after: Revision) -> Result<WatchStream, Error> {
    let (prefix, start) = (keys.key(prefix), signed(after.get()).saturating_add(1));
    let call = |member: Member| {
        let prefix = prefix.clone();
        async move {
            let mut answers = member.watch(prefix, start).await?;
            let first = answers.message().await.map_err(status)?;
            let first = first.filter(|first| first.created() && !first.canceled());
            Ok(Standing { answers, revision: first.map(|first| revision(first.header())) })
        }
    };
    let standing = members.ask(Repeat::Freely, BOUND, call).await?;
    let (sender, receiver) = mpsc::channel(WATCH_EVENTS_MAX);
    if is_possible(members, keys, standing.revision, after).await? {
        let keys = keys.clone();
        members.tasks().spawn_until_stopped("etcd watch", async move { pump(standing.answers, &keys, &sender).await });
    } else {
        gap(&sender, "the revision is not of this history");
    }
    Ok(WatchStream::new(receiver))
}

/// Whether the store has been at `after`. A member may lag behind; a store that was restored from a backup has gone back,
/// and would tell nothing until it gets there again.
async fn is_possible(members: &Members, keys: &Keys, at: Option<Revision>, after: Revision) -> Result<bool, Error> {
    match at {
        None => Ok(false),
        Some(at) if at >= after => Ok(true),
        Some(_lags) => Ok(super::files::now(members, keys).await? >= after),
    }
}

/// Hands events on until the watch ends or nobody listens.
async fn pump(mut answers: Answers, keys: &Keys, events: &mpsc::Sender<Event>) {
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            () = events.closed() => return,
        };
        let answer = match answer {
            Ok(Some(answer)) if !answer.canceled() => answer,
            Ok(Some(ended)) => return gap(events, &format!("ended by etcd: {}", ended.cancel_reason())),
            Ok(None) => return gap(events, "the stream ended"),
            Err(error) => return gap(events, &error.to_string()),
        };
        for event in answer.events().iter().filter_map(|event| event_of(keys, event)) {
            if events.capacity() <= 1 {
                return gap(events, "the watcher is too slow");
            }
            if events.try_send(event).is_err() {
                return;
            }
        }
    }
}

/// The last place of the channel is kept for this.
fn gap(events: &mpsc::Sender<Event>, why: &str) {
    debug!(why, "watch ended");
    // A watcher that has left needs no gap.
    drop(events.try_send(Event::Gap));
}

fn event_of(keys: &Keys, event: &etcd_client::Event) -> Option<Event> {
    let file = keys.file(event.kv()?)?;
    Some(match event.event_type() {
        EventType::Put => Event::Put(file),
        EventType::Delete => Event::Deleted { path: file.path, revision: file.modified },
    })
}

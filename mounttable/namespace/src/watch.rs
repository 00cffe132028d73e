//! Watching a name: the current servers, and every change.

use std::time::Duration;

use ebla_mounttable_tree::{Error, Reason, Target, TargetFlags};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::watch_reply::{Change, Reply};
use futures::stream::{self, BoxStream, StreamExt};
use tonic::Streaming;

use crate::entry::{MountEntry, ObjectLocation, Server};
use crate::namespace::Namespace;
use crate::rpc::first_reply;

/// The time without a message after which a server counts as unavailable; it sends a heartbeat every ten seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The delay before the next connection after an unexpected end.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);

/// The servers of a name; `None`: it does not resolve.
pub type WatchState = Option<MountEntry>;

impl Namespace {
    /// The servers of a name, in the table that holds it: the current state, then every change of the servers or their
    /// kind. Moved deadlines are not reported.
    ///
    /// When the watched server becomes unavailable, another one is watched, and an unchanged state is not reported
    /// again.
    ///
    /// # Errors
    /// As the last item: `NO_ACCESS`, also when rights are revoked later, and other errors of a table; `UNAVAILABLE`
    /// only before the first state.
    pub fn watch(&self, name: &str) -> BoxStream<'static, Result<WatchState, Error>> {
        let watcher =
            Watcher { namespace: self.clone(), name: name.to_owned(), reported: None, current: None, skipped: None };
        let next = |watcher: Option<Watcher>| async move {
            let mut watcher = watcher?;
            let item = watcher.next().await;
            let rest = item.is_ok().then_some(watcher);
            Some((item, rest))
        };
        stream::unfold(Some(watcher), next).boxed()
    }
}

struct Watcher {
    namespace: Namespace,
    name: String,
    /// The last reported state.
    reported: Option<WatchState>,
    current: Option<WatchStream>,
    /// The table that was left because the name continues at a mounted one.
    skipped: Option<ObjectLocation>,
}

/// A watch at a table.
struct WatchStream {
    location: ObjectLocation,
    replies: Streaming<wire::WatchReply>,
    /// The last state from it.
    state: WatchState,
}

impl Watcher {
    /// The next state that differs from the reported one.
    async fn next(&mut self) -> Result<WatchState, Error> {
        loop {
            match self.next_update().await {
                Ok(Some(state)) if self.reported.as_ref().is_none_or(|reported| !is_same(reported, &state)) => {
                    self.reported = Some(state.clone());
                    return Ok(state);
                }
                Ok(_) => {}
                Err(error) if error.reason == Reason::Unavailable && self.reported.is_some() => {
                    self.current = None;
                    tokio::time::sleep(self.namespace.0.runtime.rng.jitter(RECONNECT_DELAY)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The next state from the table, if the table holds the name.
    async fn next_update(&mut self) -> Result<Option<WatchState>, Error> {
        let stream = match &mut self.current {
            Some(stream) => stream,
            none => none.insert(open(&self.namespace, &self.name).await?),
        };
        let silent = |why| Error::new(Reason::Unavailable, format!("{}: {why}", stream.location.address));
        let message = match tokio::time::timeout(SILENCE_TIMEOUT, stream.replies.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return Err(silent("the watch ended")),
            Ok(Err(status)) => return Err(self.namespace.error(&stream.location, &status)),
            Err(_) => return Err(silent("no message in time")),
        };
        stream.state = match message.reply {
            Some(Reply::Snapshot(snapshot)) => snapshot.entry.map(MountEntry::from_wire),
            Some(Reply::Change(change)) => changed(stream.state.take(), &change),
            Some(Reply::Heartbeat(_)) | None => return Ok(None),
        };
        let leads_on = |entry: &MountEntry| entry.target == Target::MountTable && !entry.suffix.is_empty();
        // If it does continue, the next resolution leads to another table; otherwise the mounted server is not a mount
        // table.
        if stream.state.as_ref().is_some_and(leads_on) && self.skipped.as_ref() != Some(&stream.location) {
            self.skipped = self.current.take().map(|stream| stream.location);
            return Ok(None);
        }
        Ok(Some(stream.state.clone()))
    }
}

/// Watches at the first server that answers, of the table that holds the name.
async fn open(namespace: &Namespace, name: &str) -> Result<WatchStream, Error> {
    namespace.flush(name);
    let locations = namespace.resolve_to_mount_table(name).await?.locations();
    let open = |location: ObjectLocation| async move {
        let message = wire::WatchRequest { name: location.name.clone(), include_refresh: false };
        let request = namespace.request(&location, message);
        namespace.result(&location, namespace.client(&location).watch(request).await)
    };
    let answered = first_reply(&locations, open).await?;
    Ok(WatchStream { location: answered.location, replies: answered.outcome?, state: None })
}

/// The state after a change.
fn changed(before: WatchState, change: &Change) -> WatchState {
    if change.gone {
        return None;
    }
    let entry = before.unwrap_or(MountEntry { servers: Vec::new(), suffix: String::new(), target: Target::Object });
    let reported = || change.updated.iter().chain(&change.added);
    let flags = |it: &wire::Server| TargetFlags { serves_mount_table: it.serves_mount_table, is_leaf: it.is_leaf };
    let target = reported().next().map_or(entry.target, |it| Target::from(flags(it)));
    let is_reported = |server: &Server| reported().any(|it| it.address == server.address.as_str());
    let is_removed = |server: &Server| change.removed.iter().any(|it| *it == server.address.as_str());
    let mut servers: Vec<_> = entry.servers.into_iter().filter(|it| !is_reported(it) && !is_removed(it)).collect();
    servers.extend(reported().filter_map(Server::from_wire));
    Some(MountEntry { servers, suffix: change.suffix.clone(), target })
}

/// Whether two states differ at most in deadlines and the order of servers.
fn is_same(one: &WatchState, other: &WatchState) -> bool {
    let comparable = |state: &WatchState| {
        state.as_ref().map(|entry| {
            let mut addresses: Vec<_> = entry.servers.iter().map(|server| server.address.to_string()).collect();
            addresses.sort();
            (addresses, entry.suffix.clone(), entry.target)
        })
    };
    comparable(one) == comparable(other)
}

//! Watching a name: what it leads to, at once and whenever that has changed.

use std::time::Duration;

use ebla_mounttable::{Error, Reason, Target};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::watch_reply::{Change, Reply};
use futures::stream::{self, BoxStream, StreamExt};
use tonic::Streaming;

use crate::ask::{failure, first, told};
use crate::entry::{MountEntry, Place, Server};
use crate::namespace::Namespace;

/// A server that has told nothing for so long is not there any more: every ten seconds it tells that it still looks.
const SILENCE: Duration = Duration::from_secs(30);

/// Before somebody is asked again after an end that nobody explained.
const PAUSE: Duration = Duration::from_millis(500);

/// What a name leads to; `None` is nowhere.
pub type State = Option<MountEntry>;

impl Namespace {
    /// What a name leads to, in the table that holds it: first as it is, then again whenever servers have come, gone or become
    /// another sort. That a deadline has moved is no news.
    ///
    /// When the server that tells goes away, another one is asked, and what is still the same is not told again.
    ///
    /// # Errors
    /// As the last item: `NO_ACCESS`, also when rights are lost later, and what else a table refuses; `UNAVAILABLE` only before
    /// anything was told.
    pub fn watch(&self, name: &str) -> BoxStream<'static, Result<State, Error>> {
        let watcher = Watcher { namespace: self.clone(), name: name.to_owned(), told: None, table: None, left: None };
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
    /// What the caller knows.
    told: Option<State>,
    table: Option<Watched>,
    /// The table that was left because the name leads on from there.
    left: Option<Place>,
}

/// A table that tells of the name.
struct Watched {
    place: Place,
    replies: Streaming<wire::WatchReply>,
    /// What it told.
    state: State,
}

impl Watcher {
    /// The next news.
    async fn next(&mut self) -> Result<State, Error> {
        loop {
            match self.hear().await {
                Ok(Some(state)) if self.told.as_ref().is_none_or(|told| !is_same(told, &state)) => {
                    self.told = Some(state.clone());
                    return Ok(state);
                }
                Ok(_) => {}
                Err(error) if error.reason == Reason::Unavailable && self.told.is_some() => {
                    self.table = None;
                    tokio::time::sleep(self.namespace.0.runtime.rng.jitter(PAUSE)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What the table tells next, if it is about the name.
    async fn hear(&mut self) -> Result<Option<State>, Error> {
        let watched = match &mut self.table {
            Some(watched) => watched,
            none => none.insert(open(&self.namespace, &self.name).await?),
        };
        let silent = |why| Error::new(Reason::Unavailable, format!("{}: {why}", watched.place.address));
        let message = match tokio::time::timeout(SILENCE, watched.replies.message()).await {
            Ok(Ok(Some(message))) => message,
            Ok(Ok(None)) => return Err(silent("it does not watch any more")),
            Ok(Err(status)) => return Err(failure(&watched.place, &status)),
            Err(_) => return Err(silent("it is silent")),
        };
        watched.state = match message.reply {
            Some(Reply::Snapshot(snapshot)) => snapshot.entry.map(MountEntry::from_wire),
            Some(Reply::Change(change)) => changed(watched.state.take(), &change),
            Some(Reply::Heartbeat(_)) | None => return Ok(None),
        };
        let leads_on = |entry: &MountEntry| entry.target == Target::MountTable && !entry.suffix.is_empty();
        // If it does lead on, the way comes to another table; otherwise the mounted server is no mount table after all.
        if watched.state.as_ref().is_some_and(leads_on) && self.left.as_ref() != Some(&watched.place) {
            self.left = self.table.take().map(|watched| watched.place);
            return Ok(None);
        }
        Ok(Some(watched.state.clone()))
    }
}

/// The first server of the table that holds the name which answers.
async fn open(namespace: &Namespace, name: &str) -> Result<Watched, Error> {
    namespace.flush(name);
    let places = namespace.resolve_to_mount_table(name).await?.places();
    let open = |place: Place| async move {
        let request = namespace.request(wire::WatchRequest { name: place.name.clone(), include_refresh: false });
        told(&place, namespace.client(&place).watch(request).await)
    };
    let answered = first(&places, open).await?;
    Ok(Watched { place: answered.place, replies: answered.outcome?, state: None })
}

/// What a name leads to after a change.
fn changed(before: State, change: &Change) -> State {
    if change.gone {
        return None;
    }
    let entry = before.unwrap_or(MountEntry { servers: Vec::new(), suffix: String::new(), target: Target::Object });
    let told = || change.updated.iter().chain(&change.added);
    let target = told().next().map_or(entry.target, |it| Target::of(it.serves_mount_table, it.is_leaf));
    let is_told_of = |server: &Server| told().any(|it| it.address == server.address.as_str());
    let is_removed = |server: &Server| change.removed.iter().any(|it| *it == server.address.as_str());
    let mut servers: Vec<_> = entry.servers.into_iter().filter(|it| !is_told_of(it) && !is_removed(it)).collect();
    servers.extend(told().filter_map(Server::from_wire));
    Some(MountEntry { servers, suffix: change.suffix.clone(), target })
}

/// Whether two states differ in nothing but deadlines and the order of servers.
fn is_same(one: &State, other: &State) -> bool {
    let kept = |state: &State| {
        state.as_ref().map(|entry| {
            let mut addresses: Vec<_> = entry.servers.iter().map(|server| server.address.to_string()).collect();
            addresses.sort();
            (addresses, entry.suffix.clone(), entry.target)
        })
    };
    kept(one) == kept(other)
}

//! MountTable.Watch: polls a name, and reports changes.

use std::time::Duration;

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::Caller;
use ebla_mounttable_tree::mount::MountedServer;
use ebla_mounttable_tree::name::NodeName;
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::watch_reply;

use crate::service::watch::{self, RefreshEvents, WatchState};
use crate::service::{ReplySink, Service, messages};

/// The polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The number of polls without a change after which a heartbeat is sent.
const UNCHANGED_POLLS_MAX: u32 = 40;

impl<S: Store + Environment + Clone + 'static> Service<S> {
    /// Polls until the watcher disconnects or loses its rights.
    pub(super) async fn watch_name(
        &self,
        caller: &Caller,
        name: &NodeName,
        refreshes: RefreshEvents,
        sink: &ReplySink<wire::WatchReply>,
    ) -> Result<(), Error> {
        let mut seen: Option<WatchState> = None;
        let mut unchanged_polls = 0_u32;
        while sink.is_open() {
            let now: WatchState = match self.table.resolve(caller, name).await {
                Ok(found) => Some(found),
                Err(error) => match error.reason {
                    Reason::NoSuchName | Reason::NoSuchNameRoot => None,
                    // The current state is unknown: the reported one stays.
                    Reason::Unavailable | Reason::Contention => {
                        tokio::time::sleep(POLL_INTERVAL).await;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            unchanged_polls = unchanged_polls.saturating_add(1);
            let news = match &seen {
                None => {
                    let entry = now.as_ref().map(|found| messages::resolved(found, caller, 0));
                    Some(watch_reply::Reply::Snapshot(watch_reply::Snapshot { entry }))
                }
                Some(before) => watch::change(before, &now, refreshes).map(changed),
            };
            let beat = || watch_reply::Reply::Heartbeat(watch_reply::Heartbeat {});
            let reply = news.or_else(|| (unchanged_polls > UNCHANGED_POLLS_MAX).then(beat));
            if reply.is_some() {
                unchanged_polls = 0;
                sink.send(wire::WatchReply { reply }).await?;
            }
            seen = Some(now);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

fn changed(change: watch::WatchChange) -> watch_reply::Reply {
    let servers = |servers: &[MountedServer]| {
        servers.iter().map(|server| messages::server(server, server.address.to_string())).collect()
    };
    watch_reply::Reply::Change(watch_reply::Change {
        added: servers(&change.added),
        updated: servers(&change.updated),
        removed: change.removed.iter().map(|server| server.address.to_string()).collect(),
        gone: change.is_gone,
        suffix: change.suffix,
    })
}

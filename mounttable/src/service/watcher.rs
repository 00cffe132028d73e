//! MountTable.Watch: looks at a name again and again, and tells what is news.

use std::time::Duration;

use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::watch_reply;

use crate::error::{Error, Reason};
use crate::identity::Caller;
use crate::mount::MountedServer;
use crate::name::NodeName;
use crate::service::watch::{self, Refreshes, State};
use crate::service::{Outlet, Service, messages};
use crate::store::{Store, Surroundings};

/// How often a watched name is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// After so many looks without news the watcher is told that somebody still looks.
const LOOKS_SILENT_MAX: u32 = 40;

impl<S: Store + Surroundings + Clone + 'static> Service<S> {
    /// Looks again and again, until the watcher goes away or may not know any more.
    pub(super) async fn watch_on(
        &self,
        caller: &Caller,
        name: &NodeName,
        refreshes: Refreshes,
        outlet: &Outlet<wire::WatchReply>,
    ) -> Result<(), Error> {
        let mut seen: Option<State> = None;
        let mut silent = 0_u32;
        while outlet.is_open() {
            let now: State = match self.table.resolve(caller, name).await {
                Ok(found) => Some(found),
                Err(error) => match error.reason {
                    Reason::NoSuchName | Reason::NoSuchNameRoot => None,
                    // Whatever it leads to, it is not known now: what was told stays told.
                    Reason::Unavailable | Reason::Contention => {
                        tokio::time::sleep(LOOK).await;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            silent = silent.saturating_add(1);
            let news = match &seen {
                None => {
                    let entry = now.as_ref().map(|found| messages::resolved(found, caller, 0));
                    Some(watch_reply::Reply::Snapshot(watch_reply::Snapshot { entry }))
                }
                Some(before) => watch::change(before, &now, refreshes).map(changed),
            };
            let beat = || watch_reply::Reply::Heartbeat(watch_reply::Heartbeat {});
            let reply = news.or_else(|| (silent > LOOKS_SILENT_MAX).then(beat));
            if reply.is_some() {
                silent = 0;
                outlet.send(wire::WatchReply { reply }).await?;
            }
            seen = Some(now);
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

fn changed(change: watch::Change) -> watch_reply::Reply {
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

//! MountTable.Watch: polls a name, and reports changes.

use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::Caller;
use ebla_mounttable_tree::mount::MountedServer;
use ebla_mounttable_tree::name::NodeName;
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_mounttable_tree::table::PathVersion;
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::watch_reply;

use crate::service::watch::{self, RefreshEvents, WatchState};
use crate::service::{ReplySink, Service, messages};

/// The polling interval of a name with few servers.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The number of servers for which a poll waits for another [`POLL_INTERVAL`].
const SERVERS_PER_INTERVAL: usize = 1_000;

/// The longest polling interval.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The time without a change after which a heartbeat is sent.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The result of a poll.
struct Polled {
    state: WatchState,
    /// The versions of the path, read before the state.
    version: PathVersion,
}

impl Polled {
    fn servers(&self) -> &[MountedServer] {
        self.state.as_ref().map_or(&[], |found| &found.servers)
    }

    /// Whether another read would find the same state.
    fn is_current(&self, version: &PathVersion, now: Micros) -> bool {
        self.version == *version && self.servers().iter().all(|server| !server.deadline.is_over(now))
    }

    /// The time until the next poll: in proportion to the work of one.
    fn pause(&self) -> Duration {
        let more = u32::try_from(self.servers().len() / SERVERS_PER_INTERVAL).unwrap_or(u32::MAX);
        POLL_INTERVAL.saturating_mul(more.saturating_add(1)).min(POLL_INTERVAL_MAX)
    }
}

impl<S: Store + Environment + Clone + 'static> Service<S> {
    /// Polls until the watcher disconnects or loses its rights.
    pub(super) async fn watch_name(
        &self,
        caller: &Caller,
        name: &NodeName,
        refreshes: RefreshEvents,
        sink: &ReplySink<wire::WatchReply>,
    ) -> Result<(), Error> {
        let mut seen: Option<Polled> = None;
        let mut silence = Duration::ZERO;
        while sink.is_open() {
            let polled = match self.poll(caller, name, seen.as_ref()).await {
                Ok(polled) => polled,
                // The current state is unknown: the reported one stays.
                Err(error) if matches!(error.reason, Reason::Unavailable | Reason::Contention) => {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut reply = polled.as_ref().and_then(|now| news(seen.as_ref(), now, caller, refreshes));
            seen = polled.or(seen);
            if reply.is_none() && silence >= SILENCE_MAX {
                reply = Some(watch_reply::Reply::Heartbeat(watch_reply::Heartbeat {}));
                // Deadlines also change with the known outages: the next poll reads everything.
                seen = seen.map(|seen| Polled { version: PathVersion::default(), ..seen });
            }
            if reply.is_some() {
                silence = Duration::ZERO;
                sink.send(wire::WatchReply { reply }).await?;
            }
            let pause = seen.as_ref().map_or(POLL_INTERVAL, Polled::pause);
            silence = silence.saturating_add(pause);
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// The state of a name; `None` if it is as `seen`, which the versions of the path show without reading the servers.
    async fn poll(&self, caller: &Caller, name: &NodeName, seen: Option<&Polled>) -> Result<Option<Polled>, Error> {
        let is_missing = |error: &Error| matches!(error.reason, Reason::NoSuchName | Reason::NoSuchNameRoot);
        let version = match self.table.path_version(name).await {
            Err(error) if is_missing(&error) => PathVersion::default(),
            version => version?,
        };
        if seen.is_some_and(|seen| seen.is_current(&version, self.table.now())) {
            return Ok(None);
        }
        let state = match self.table.resolve(caller, name).await {
            Err(error) if is_missing(&error) => None,
            found => Some(found?),
        };
        Ok(Some(Polled { state, version }))
    }
}

/// The message about a new state.
fn news(
    before: Option<&Polled>,
    now: &Polled,
    caller: &Caller,
    refreshes: RefreshEvents,
) -> Option<watch_reply::Reply> {
    match before {
        None => {
            let entry = now.state.as_ref().map(|found| messages::resolved(found, caller, 0));
            Some(watch_reply::Reply::Snapshot(watch_reply::Snapshot { entry }))
        }
        Some(before) => watch::change(&before.state, &now.state, refreshes).map(changed),
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

#[cfg(test)]
mod tests {
    use ebla_mounttable_tree::access::Permissions;
    use ebla_mounttable_tree::identity::UserId;
    use ebla_mounttable_tree::mount::{Deadline, MountMode, Target};
    use ebla_mounttable_tree::store::Freshness;
    use ebla_mounttable_tree::store::cache::CacheOptions;
    use ebla_mounttable_tree::store::caching::CachingStore;
    use ebla_mounttable_tree::store::memory::MemoryStore;
    use ebla_mounttable_tree::table::{Mount, Resolved, Table, TableOptions};
    use ebla_runtime::Runtime;

    use super::*;
    use crate::service::identity::{AuthMethod, Authenticator};

    #[test]
    fn a_name_with_many_servers_is_polled_less_often() {
        let server = |number: usize| MountedServer {
            address: format!("h{number}:1").parse().unwrap(),
            target: Target::Object,
            deadline: Deadline::FOREVER,
            ttl: Duration::ZERO,
            mounter: UserId::server(),
        };
        for (servers, millis) in [(0, 250), (999, 250), (1_000, 500), (10_000, 2_750), (50_000, 5_000)] {
            let servers = (0..servers).map(server).collect();
            let state = Some(Resolved { servers, suffix: String::new(), freshness: Freshness::Recent });
            let polled = Polled { state, version: PathVersion::default() };
            assert_eq!(polled.pause(), Duration::from_millis(millis));
        }
    }

    /// While the versions of a path are the same, its servers are neither read nor compared.
    #[tokio::test]
    async fn the_servers_of_a_name_are_read_again_after_a_change_only() {
        let memory = MemoryStore::at(Micros::from_millis(1_000_000));
        let cache_handle = CachingStore::new(memory.clone(), CacheOptions::default()).cache_handle();
        let table = Table::new(memory.clone(), TableOptions::default());
        table.setup(Permissions::open()).await.unwrap();
        let authenticator = Authenticator::new(AuthMethod::Development, Vec::new());
        let tasks = Runtime::system("test").tasks.clone();
        let service = Service::new(table, "names", authenticator, cache_handle, tasks);
        let (bob, name): (_, NodeName) = (Caller::new(vec!["bob".parse().unwrap()], &[]), "a".parse().unwrap());
        let mount = |server: &str| {
            let (address, ttl) = (server.parse().unwrap(), Duration::from_secs(60));
            Mount { address, target: Target::Object, ttl, mode: MountMode::Add }
        };
        service.table.mount(&bob, &name, &mount("h:1")).await.unwrap();
        let first = service.poll(&bob, &name, None).await.unwrap().unwrap();
        assert!(service.poll(&bob, &name, Some(&first)).await.unwrap().is_none());
        service.table.mount(&bob, &name, &mount("h:2")).await.unwrap();
        let second = service.poll(&bob, &name, Some(&first)).await.unwrap().unwrap();
        assert_eq!((first.servers().len(), second.servers().len()), (1, 2));
        assert!(service.poll(&bob, &name, Some(&second)).await.unwrap().is_none());
        memory.advance(Duration::from_secs(61));
        let expired = service.poll(&bob, &name, Some(&second)).await.unwrap().unwrap();
        assert_eq!(expired.state, None);
    }
}

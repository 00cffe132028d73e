//! KeepMounted: servers that one stream refreshes regularly.
//!
//! The first mount of a server is an ordinary one. Afterwards its node is cached as it was read, and one conditional
//! change extends the deadline, if the node has the same incarnation, is alive, and has the same permissions; otherwise
//! it is mounted again.

use std::collections::BTreeMap;

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::Caller;
use ebla_mounttable_tree::mount::{Deadline, MountMode, MountedServer};
use ebla_mounttable_tree::name::NodeName;
use ebla_mounttable_tree::node::Node;
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_mounttable_tree::table::Mount;
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::keep_mounted_reply;
use futures::{StreamExt, TryFutureExt};
use parking_lot::Mutex;
use tonic::Streaming;

use crate::service::identity::Session;
use crate::service::{ReplySink, Service, messages};

/// The number of mounts of one message in flight.
const CONCURRENCY: usize = 32;

/// The capacity of a stream's cache; when it is full, it is cleared, and the servers are mounted again.
const CACHE_BYTES_MAX: usize = 4 << 20;

/// The largest number of mounts in one message.
const MOUNTS_MAX: usize = 1_000;

type MountsByServer = BTreeMap<(NodeName, String), (Node, MountedServer)>;

/// The mounts of one stream. Their nodes are bare.
#[derive(Debug, Default)]
struct MountCache {
    /// Held for one operation, never across an await.
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    mounts: MountsByServer,
    /// The approximate size of the mounts.
    bytes: usize,
}

impl MountCache {
    fn get(&self, name: &NodeName, mount: &Mount) -> Option<(Node, MountedServer)> {
        let entries = self.entries.lock();
        let mount_of_server = entries.mounts.get(&(name.clone(), mount.address.to_string()));
        // The stored cell contains both.
        mount_of_server.filter(|(_, server)| server.target == mount.target && server.ttl == mount.ttl).cloned()
    }

    fn insert(&self, name: NodeName, node: Node, server: MountedServer) {
        let mut entries = self.entries.lock();
        let bytes = size(&node, &server);
        if entries.bytes.saturating_add(bytes) > CACHE_BYTES_MAX {
            *entries = Entries::default();
        }
        let replaced = entries.mounts.insert((name, server.address.to_string()), (node, server));
        // Names and addresses of a replaced entry are the same; those of its users may not be.
        let freed = replaced.map_or(0, |(node, server)| size(&node, &server));
        entries.bytes = entries.bytes.saturating_add(bytes).saturating_sub(freed);
    }
}

/// The approximate size of an entry, with its key.
fn size(node: &Node, server: &MountedServer) -> usize {
    let texts = [node.name.as_str(), node.name.as_str(), server.address.as_str(), server.address.as_str()];
    let users = [node.creator.as_str(), server.mounter.as_str()];
    let text: usize = texts.iter().chain(&users).map(|text| text.len()).sum();
    text.saturating_add(size_of::<(NodeName, String, Node, MountedServer)>())
}

impl<S: Store + Environment + Clone + 'static> Service<S> {
    /// Answers every message of the stream, until it or the session ends. A change in progress is completed.
    pub(super) async fn keep_mounted_stream(
        &self,
        Session { caller, expiry }: &Session,
        requests: &mut Streaming<wire::KeepMountedRequest>,
        sink: &ReplySink<wire::KeepMountedReply>,
    ) -> Result<(), Error> {
        let mounts = MountCache::default();
        while let Some(request) = expiry.limit(requests.message().map_err(|status| messages::error(&status))).await? {
            sink.send(self.refresh_batch(caller, &mounts, request).await?).await?;
        }
        Ok(())
    }

    async fn refresh_batch(
        &self,
        caller: &Caller,
        mounts: &MountCache,
        request: wire::KeepMountedRequest,
    ) -> Result<wire::KeepMountedReply, Error> {
        if request.mounts.len() > MOUNTS_MAX {
            let wrong = format!("{} mounts in one message, at most {MOUNTS_MAX} are allowed", request.mounts.len());
            return Err(Error::new(Reason::BadRequest, wrong));
        }
        let mut results = Vec::with_capacity(request.mounts.len());
        let mut in_flight = futures::stream::iter(request.mounts)
            .map(|message| async move { self.refresh_one(caller, mounts, message).await })
            .buffered(CONCURRENCY);
        while let Some(outcome) = in_flight.next().await {
            results.push(match outcome {
                Ok(deadline) => {
                    keep_mounted_reply::Result { deadline_micros: messages::deadline(deadline), failure: None }
                }
                Err(error) => {
                    keep_mounted_reply::Result { deadline_micros: None, failure: Some(messages::failure(&error)) }
                }
            });
        }
        Ok(wire::KeepMountedReply { results })
    }

    async fn refresh_one(
        &self,
        caller: &Caller,
        mounts: &MountCache,
        message: wire::MountRequest,
    ) -> Result<Deadline, Error> {
        self.write_switch.check()?;
        let name: NodeName = message.name.parse()?;
        let mount = messages::mount(&message)?;
        if mount.mode == MountMode::Replace {
            return Err(Error::new(Reason::BadRequest, "replace is not allowed with KeepMounted"));
        }
        if let Some((node, server)) = mounts.get(&name, &mount)
            && let Some(deadline) = self.table.refresh(&node, &server, mount.ttl).await?
        {
            return Ok(deadline);
        }
        let mounted = self.table.mount(caller, &name, &mount).await?;
        let mounter = caller.user_id();
        let server = MountedServer {
            address: mount.address,
            target: mount.target,
            deadline: mounted.deadline,
            ttl: mount.ttl,
            mounter,
        };
        mounts.insert(name, mounted.node, server);
        Ok(mounted.deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap as Map;
    use std::time::Duration;

    use ebla_model::Micros;
    use ebla_mounttable_tree::Permissions;
    use ebla_mounttable_tree::file::Stickiness;
    use ebla_mounttable_tree::identity::UserId;
    use ebla_mounttable_tree::mount::Target;
    use ebla_mounttable_tree::node::{Epoch, Incarnation};

    use super::*;

    fn entry(number: usize) -> (NodeName, Node, MountedServer) {
        let name: NodeName = format!("{}/{number}", "n".repeat(500)).parse().unwrap();
        let node = Node {
            name: name.clone(),
            incarnation: Incarnation::new(1),
            version: 1,
            epoch: Epoch::Alive(0),
            parent: Incarnation::new(2),
            creator: UserId::server(),
            created: Micros::ZERO,
            stickiness: Stickiness::Collected,
            permissions: Permissions::default(),
            servers: Vec::new(),
            children: Map::new(),
        };
        let server = MountedServer {
            address: "h:1".parse().unwrap(),
            target: Target::Object,
            deadline: Deadline::FOREVER,
            ttl: Duration::ZERO,
            mounter: UserId::server(),
        };
        (name, node, server)
    }

    #[test]
    fn the_cache_of_a_stream_is_bounded_in_bytes() {
        let cache = MountCache::default();
        for number in 0..10_000 {
            let (name, node, server) = entry(number);
            cache.insert(name, node, server);
        }
        let entries = cache.entries.lock();
        let bytes: usize = entries.mounts.values().map(|(node, server)| size(node, server)).sum();
        assert_eq!(entries.bytes, bytes);
        assert!(bytes <= CACHE_BYTES_MAX && entries.mounts.len() > 100, "{} entries", entries.mounts.len());
    }

    #[test]
    fn an_entry_that_is_replaced_is_counted_once() {
        let cache = MountCache::default();
        for _ in 0..2 {
            let (name, node, server) = entry(1);
            cache.insert(name, node, server);
        }
        let (_, node, server) = entry(1);
        assert_eq!(cache.entries.lock().bytes, size(&node, &server));
    }
}

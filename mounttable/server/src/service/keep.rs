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
use futures::StreamExt;
use parking_lot::Mutex;
use tonic::Streaming;

use crate::service::{ReplySink, Service, messages};

/// The number of mounts of one message in flight.
const CONCURRENCY: usize = 32;

/// The capacity of a stream's cache; when it is full, it is cleared, and the servers are mounted again.
const ENTRIES_MAX: usize = 10_000;

/// The largest number of mounts in one message.
const MOUNTS_MAX: usize = 1_000;

type MountsByServer = BTreeMap<(NodeName, String), (Node, MountedServer)>;

/// The mounts of one stream.
#[derive(Debug, Default)]
struct MountCache {
    /// Held for one operation, never across an await.
    mounts: Mutex<MountsByServer>,
}

impl MountCache {
    fn get(&self, name: &NodeName, mount: &Mount) -> Option<(Node, MountedServer)> {
        let mounts = self.mounts.lock();
        let mount_of_server = mounts.get(&(name.clone(), mount.address.to_string()));
        // The stored cell contains both.
        mount_of_server.filter(|(_, server)| server.target == mount.target && server.ttl == mount.ttl).cloned()
    }

    fn insert(&self, name: NodeName, node: Node, server: MountedServer) {
        let mut mounts = self.mounts.lock();
        if mounts.len() >= ENTRIES_MAX {
            mounts.clear();
        }
        mounts.insert((name, server.address.to_string()), (node, server));
    }
}

impl<S: Store + Environment + Clone + 'static> Service<S> {
    /// Answers every message of the stream, until it ends.
    pub(super) async fn keep_mounted_stream(
        &self,
        caller: &Caller,
        requests: &mut Streaming<wire::KeepMountedRequest>,
        sink: &ReplySink<wire::KeepMountedReply>,
    ) -> Result<(), Error> {
        let mounts = MountCache::default();
        while let Some(request) = requests.message().await.map_err(|status| messages::error(&status))? {
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

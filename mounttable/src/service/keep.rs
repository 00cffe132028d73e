//! KeepMounted: servers that are mounted again and again, on one stream.
//!
//! The first mount of a server is an ordinary one. From then on its node is remembered as it was, and one change moves the
//! deadline if the node is still that one, alive, and under the same permissions; else it is mounted in full again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::keep_mounted_reply;
use futures::StreamExt;
use tonic::Streaming;

use crate::error::{Error, Reason};
use crate::identity::Caller;
use crate::mount::{Deadline, MountMode, MountedServer};
use crate::name::NodeName;
use crate::node::Node;
use crate::service::{Outlet, Service, messages};
use crate::store::{Store, Surroundings};
use crate::table::Mount;

/// Mounts of one message that are under way at the same time.
const TOGETHER: usize = 32;

/// Servers that one stream remembers; when there are more, all are forgotten and mounted in full.
const REMEMBERED_MAX: usize = 10_000;

/// Most mounts of one message.
const MOUNTS_MAX: usize = 1_000;

type Remembered = BTreeMap<(NodeName, String), (Node, MountedServer)>;

/// What one stream has mounted.
#[derive(Debug, Default)]
struct Keeper {
    /// Held for a look, never while anybody waits.
    remembered: Mutex<Remembered>,
}

impl Keeper {
    fn recall(&self, name: &NodeName, mount: &Mount) -> Option<(Node, MountedServer)> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let known = remembered.get(&(name.clone(), mount.address.to_string()));
        // What is stored of the server says both.
        known.filter(|(_, server)| server.target == mount.target && server.ttl == mount.ttl).cloned()
    }

    fn remember(&self, name: NodeName, node: Node, server: MountedServer) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert((name, server.address.to_string()), (node, server));
    }
}

impl<S: Store + Surroundings + Clone + 'static> Service<S> {
    /// Answers every message of the stream, until its end.
    pub(super) async fn keep_all(
        &self,
        caller: &Caller,
        requests: &mut Streaming<wire::KeepMountedRequest>,
        outlet: &Outlet<wire::KeepMountedReply>,
    ) -> Result<(), Error> {
        let keeper = Keeper::default();
        while let Some(request) = requests.message().await.map_err(|status| messages::error(&status))? {
            outlet.send(self.keep_batch(caller, &keeper, request).await?).await?;
        }
        Ok(())
    }

    async fn keep_batch(
        &self,
        caller: &Caller,
        keeper: &Keeper,
        request: wire::KeepMountedRequest,
    ) -> Result<wire::KeepMountedReply, Error> {
        if request.mounts.len() > MOUNTS_MAX {
            let wrong = format!("{} mounts in one message, at most {MOUNTS_MAX} are allowed", request.mounts.len());
            return Err(Error::new(Reason::BadRequest, wrong));
        }
        let mut results = Vec::with_capacity(request.mounts.len());
        let mut under_way = futures::stream::iter(request.mounts)
            .map(|message| async move { self.keep(caller, keeper, message).await })
            .buffered(TOGETHER);
        while let Some(outcome) = under_way.next().await {
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

    async fn keep(&self, caller: &Caller, keeper: &Keeper, message: wire::MountRequest) -> Result<Deadline, Error> {
        self.switch.check()?;
        let name: NodeName = message.name.parse()?;
        let mount = messages::mount(&message)?;
        if mount.mode == MountMode::Replace {
            return Err(Error::new(Reason::BadRequest, "what is kept mounted replaces nothing"));
        }
        if let Some((node, server)) = keeper.recall(&name, &mount)
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
        keeper.remember(name, mounted.node, server);
        Ok(mounted.deadline)
    }
}

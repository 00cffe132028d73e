//! Answers of a group's leader to clients that are lost while a request changes where its tablets are.
//!
//! The group that gets a tablet must know the writes that the other one has applied, or a write that is sent again is applied twice.
//! That shows only if the write is applied before the change, its answer is lost, and it is sent again afterwards. Links that are cut at
//! random hardly bring this about: a division or a move needs the links between the replicas, and clients are never cut off. So a plan may
//! lose the answers of the leader to all clients, and nothing else, from a moment before the request to its end. A client waits three seconds
//! for an answer, then it sends the write again.

use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;

use crate::cluster::{SimCluster, SimHost};
use crate::plan::CLIENTS;
use crate::time;

/// For how long answers are lost before the request: every worker has a write in progress by then.
const LOST_BEFORE: Duration = Duration::from_millis(400);

/// Sends the request to another server than the leader, which could not answer, while the leader's answers to clients are lost.
pub(crate) async fn during<T>(
    cluster: &SimCluster,
    group: GroupId,
    request: impl AsyncFnOnce(&SimHost) -> Result<T, Error>,
) -> Result<T, Error> {
    let (leader, other) =
        leader_and_other(cluster, group).ok_or_else(|| Error::new(Reason::Unavailable, "the group has no leader"))?;
    let _silence = Silence::begin(cluster, leader);
    tokio::time::sleep(LOST_BEFORE).await;
    request(other).await
}

/// What the server sends to clients is lost until this is dropped, also when the request times out; what they send arrives.
struct Silence<'a> {
    cluster: &'a SimCluster,
    server: &'a SimHost,
}

impl<'a> Silence<'a> {
    fn begin(cluster: &'a SimCluster, server: &'a SimHost) -> Self {
        turmoil::partition_oneway(server.name.as_str(), CLIENTS);
        cluster.trace.lock().count(time::elapsed(), &server.name, "answers-lost", "");
        Self { cluster, server }
    }
}

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        turmoil::repair_oneway(self.server.name.as_str(), CLIENTS);
        self.cluster.note(&self.server.name, "answers-arrive", "");
    }
}

/// The leader of a group, and another server.
fn leader_and_other(cluster: &SimCluster, group: GroupId) -> Option<(&SimHost, &SimHost)> {
    let leads = |host: &&SimHost| {
        let replica = host.hosted().and_then(|hosted| hosted.group(group));
        replica.is_some_and(|replica| replica.is_leader())
    };
    let leader = cluster.servers.iter().find(leads)?;
    let other = cluster.servers.iter().find(|host| host.name != leader.name)?;
    Some((leader, other))
}

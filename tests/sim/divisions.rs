//! Divisions of groups, and answers that are lost around them.
//!
//! The new group of a division must know the writes that the divided group has applied, or a write that is sent again is applied
//! twice. That shows only if the write is applied before the division, its answer is lost, and it is sent again afterwards. Links
//! that are cut at random hardly bring this about: a division needs the links between all replicas, and clients are never cut off.
//! So a plan may lose the answers of the leader to all clients, and nothing else, from a moment before the division to its end. A client
//! waits three seconds for an answer, then it sends the write again.

use std::time::Duration;

use ebla_client::Admin;
use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;
use ebla_runtime::Runtime;

use crate::cluster::{SimCluster, SimHost};
use crate::load::{any_admin, outcome_name};
use crate::plan::CLIENTS;
use crate::time;

/// For how long answers are lost before the division is requested: every worker has a write in progress by then.
const LOST_BEFORE: Duration = Duration::from_millis(400);
/// Timeout of a division.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Divides the group with the most tablets.
pub(crate) async fn request_division(cluster: &SimCluster, runtime: &Runtime) {
    let admin = any_admin(cluster, runtime);
    let mut silent = None;
    let divided = async {
        let groups = admin.groups().await?;
        let of_tables = groups.into_iter().filter(|one| one.group.group != GroupId::METADATA);
        let largest = of_tables.max_by_key(|one| one.tablets).map(|one| one.group.group);
        let largest = largest.ok_or_else(|| Error::new(Reason::Unavailable, "no group responds"))?;
        if !cluster.loses_answers {
            return admin.divide_group(largest).await;
        }
        let (leader, other) = leader_and_other(cluster, largest)
            .ok_or_else(|| Error::new(Reason::Unavailable, "the group has no leader"))?;
        silent = Some(leader);
        lose_answers(cluster, leader);
        tokio::time::sleep(LOST_BEFORE).await;
        // The leader could not answer.
        Admin::connect(&other.address(), runtime).divide_group(largest).await
    };
    let outcome = tokio::time::timeout(TIMEOUT, divided).await;
    if let Some(leader) = silent {
        turmoil::repair_oneway(leader.name.as_str(), CLIENTS);
        cluster.note(&leader.name, "answers-arrive", "");
    }
    let kind = if matches!(outcome, Ok(Ok(_))) { "divided" } else { "not-divided" };
    cluster.trace.lock().count(time::elapsed(), "overseer", kind, outcome_name(&outcome));
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

/// What the server sends to clients is lost from now on; what they send arrives.
fn lose_answers(cluster: &SimCluster, server: &SimHost) {
    turmoil::partition_oneway(server.name.as_str(), CLIENTS);
    cluster.trace.lock().count(time::elapsed(), &server.name, "answers-lost", "");
}

//! Drain: a server that stops gracefully transfers its leaderships first, so that no group waits for an election.
//!
//! A leadership goes to the voter that holds most of the log, on a server that is registered in Chubby. A draining server has
//! released its own registration before; so servers that stop at the same time do not transfer to each other, and the last
//! one keeps its leaderships until it stops.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_routing::ChubbyDirectory;
use futures::StreamExt as _;
use tracing::debug;

use crate::raft::TransferError;
use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

/// Leaderships transferred at a time.
const CONCURRENCY: usize = 32;
/// The pause before the remaining leaderships are checked again: an election may be in progress.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// How long to wait for the news that all other servers are stopping, too.
const PEER_STOP_WAIT: Duration = Duration::from_millis(500);

/// The result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// No leadership is left.
    Complete,
    /// This number of leaderships is left, and no other server is registered: the whole cluster is stopping.
    NoOtherServer(usize),
    /// This number of leaderships is left although other servers are registered.
    Incomplete(usize),
}

/// Transfers the leaderships of this server to others, within `timeout`.
pub async fn transfer_leaderships(
    manager: &TabletManager,
    directory: &ChubbyDirectory,
    timeout: Duration,
) -> DrainOutcome {
    // Transfers in progress at the timeout end by themselves or with the process.
    let _late = tokio::time::timeout(timeout, transfer_all(manager, directory)).await;
    let left = led_groups(manager).len();
    if left == 0 {
        return DrainOutcome::Complete;
    }
    match tokio::time::timeout(PEER_STOP_WAIT, no_other_server(manager.server(), directory)).await {
        Ok(()) => DrainOutcome::NoOtherServer(left),
        Err(_elapsed) => DrainOutcome::Incomplete(left),
    }
}

/// Returns when no other server is registered. A stopping server releases its registration before it refuses leaderships;
/// this server may see the refusal first.
async fn no_other_server(own: ServerId, directory: &ChubbyDirectory) {
    let mut changes = directory.changes();
    while !transfer_candidates(own, directory, &BTreeSet::new()).is_empty() {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Transfers the leaderships of this server to these servers, each once.
pub async fn release_leaderships(manager: &TabletManager, candidates: &BTreeSet<ServerId>) {
    let groups: Vec<_> = led_groups(manager).into_iter().filter(|group| has_candidate(group, candidates)).collect();
    let transfers =
        futures::stream::iter(groups).map(|group| async move { transfer_leadership(&group, candidates).await });
    transfers.buffer_unordered(CONCURRENCY).collect::<Vec<_>>().await;
}

async fn transfer_all(manager: &TabletManager, directory: &ChubbyDirectory) {
    // Servers that did not accept a leadership.
    let mut refusing = BTreeSet::new();
    loop {
        let candidates = transfer_candidates(manager.server(), directory, &refusing);
        let groups: Vec<_> =
            led_groups(manager).into_iter().filter(|group| has_candidate(group, &candidates)).collect();
        if groups.is_empty() {
            return;
        }
        let candidates = &candidates;
        let transfers =
            futures::stream::iter(groups).map(|group| async move { transfer_leadership(&group, candidates).await });
        let refused: Vec<_> = transfers.buffer_unordered(CONCURRENCY).filter_map(std::future::ready).collect().await;
        refusing.extend(refused);
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// The groups whose leader is on this server, including those that do not serve yet.
fn led_groups(manager: &TabletManager) -> Vec<Arc<TabletGroup>> {
    let here = |group: &Arc<TabletGroup>| group.leader().is_some_and(|leader| leader.server == manager.server());
    manager.groups().into_iter().filter(here).collect()
}

/// The servers that may receive a leadership.
fn transfer_candidates(
    own: ServerId,
    directory: &ChubbyDirectory,
    refusing: &BTreeSet<ServerId>,
) -> BTreeSet<ServerId> {
    let registered = directory.servers().into_iter().map(|server| ServerId::new(server.server));
    registered.filter(|server| *server != own && !refusing.contains(server)).collect()
}

fn has_candidate(group: &TabletGroup, candidates: &BTreeSet<ServerId>) -> bool {
    let membership = group.raft().status().membership;
    membership.replicas().any(|replica| membership.is_voter(replica.replica) && candidates.contains(&replica.server))
}

/// Transfers one leadership to the best candidate. Returns the server that did not accept it.
async fn transfer_leadership(group: &TabletGroup, candidates: &BTreeSet<ServerId>) -> Option<ServerId> {
    let raft = group.raft();
    let candidate = raft.status().transfer_candidate(|replica| candidates.contains(&replica.server))?;
    match raft.transfer_leadership(candidate.replica).await {
        Ok(()) => None,
        Err(error) => {
            debug!(group = %group.id(), to = %candidate.server, %error, "leadership not transferred");
            (error == TransferError::TargetNotElected).then_some(candidate.server)
        }
    }
}

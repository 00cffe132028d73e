//! A server that leaves in order hands its leaderships over first: then nobody waits for an election.
//!
//! A leadership goes to the voter that holds most of the log, on a server that is registered with Chubby. Whoever leaves
//! has given up its own registration before; so servers that leave at the same time do not hand to each other, and the last
//! one keeps what it leads until it ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::ServerId;
use ebla_routing::ChubbyDirectory;
use futures::StreamExt as _;
use tracing::debug;

use crate::raft::TransferError;
use crate::tablet::Tablet;
use crate::tablet::hosted::Hosted;

/// Leaderships handed over at a time.
const AT_ONCE: usize = 32;
/// The pause before what could not be handed over is looked at again: an election may be under way.
const PAUSE: Duration = Duration::from_millis(20);

/// How long the other servers are given to say that they leave too.
const FAREWELL: Duration = Duration::from_millis(500);

/// What is still led here after the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// So many tablets, and no other server is registered: the whole cluster stops.
    Alone(usize),
    /// So many tablets, though there are other servers.
    Refused(usize),
}

/// Hands over what is led here, for at most `limit`.
pub async fn hand_over(hosted: &Hosted, directory: &ChubbyDirectory, limit: Duration) -> Left {
    // What was begun when the time is over ends by itself or with the process.
    let _late = tokio::time::timeout(limit, hand_over_all(hosted, directory)).await;
    let left = led(hosted).len();
    if left == 0 {
        return Left::Nothing;
    }
    match tokio::time::timeout(FAREWELL, alone(hosted.server(), directory)).await {
        Ok(()) => Left::Alone(left),
        Err(_elapsed) => Left::Refused(left),
    }
}

/// Returns when no other server is registered. A server that stops gives up its registration before it refuses leaderships; that
/// may be heard of later here than the refusal.
async fn alone(own: ServerId, directory: &ChubbyDirectory) {
    let mut changes = directory.changes();
    while !heirs(own, directory, &BTreeSet::new()).is_empty() {
        if changes.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

async fn hand_over_all(hosted: &Hosted, directory: &ChubbyDirectory) {
    // Servers that were offered a leadership and did not take it.
    let mut silent = BTreeSet::new();
    loop {
        let heirs = heirs(hosted.server(), directory, &silent);
        let led: Vec<_> = led(hosted).into_iter().filter(|tablet| has_heir(tablet, &heirs)).collect();
        if led.is_empty() {
            return;
        }
        let heirs = &heirs;
        let offers = futures::stream::iter(led).map(|tablet| async move { offer(&tablet, heirs).await });
        let refused: Vec<_> = offers.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
        silent.extend(refused);
        tokio::time::sleep(PAUSE).await;
    }
}

/// The tablets whose leader is here, also those that do not serve yet.
fn led(hosted: &Hosted) -> Vec<Arc<Tablet>> {
    let here = |tablet: &Arc<Tablet>| tablet.leader().is_some_and(|leader| leader.server == hosted.server());
    hosted.tablets().into_iter().filter(here).collect()
}

/// The servers that may be handed a leadership.
fn heirs(own: ServerId, directory: &ChubbyDirectory, silent: &BTreeSet<ServerId>) -> BTreeSet<ServerId> {
    let registered = directory.servers().into_iter().map(|server| ServerId::new(server.server));
    registered.filter(|server| *server != own && !silent.contains(server)).collect()
}

fn has_heir(tablet: &Tablet, heirs: &BTreeSet<ServerId>) -> bool {
    let membership = tablet.group().status().membership;
    membership.replicas().any(|replica| membership.is_voter(replica.replica) && heirs.contains(&replica.server))
}

/// Offers one leadership to the best heir; the server that did not take it.
async fn offer(tablet: &Tablet, heirs: &BTreeSet<ServerId>) -> Option<ServerId> {
    let group = tablet.group();
    let heir = group.status().successor(|replica| heirs.contains(&replica.server))?;
    match group.transfer(heir.replica).await {
        Ok(()) => None,
        Err(error) => {
            debug!(tablet = %tablet.id(), to = %heir.server, %error, "not handed over");
            (error == TransferError::NotTaken).then_some(heir.server)
        }
    }
}

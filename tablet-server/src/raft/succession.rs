//! A leader whose connection breaks: its followers do not wait as long as for one that is merely silent.
//!
//! A process that dies takes its connections with it, and its peers see that at once. openraft sees silence only: it keeps
//! the promise to the leader (the longest election time), and then waits a random time more, because the leader may be slow.
//! Here the first stays and the second is short: just long enough that two followers seldom stand at the same moment.
//!
//! That is a hint and no decision. openraft refuses to stand while the promise holds, and the pre-vote asks the other
//! voters whether theirs has run out: a leader that lives, and has only lost a connection, is heard again and stays.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::id::TabletId;
use ebla_runtime::Rng;

use super::group::Group;
use super::link::Header;
use super::network::Network;

/// Followers stand for election this far apart, at random; a round of votes takes a few milliseconds.
const SPREAD: Duration = Duration::from_millis(150);
/// Attempts, each after twice the time, before the usual election time takes over: the first may have the shorter log.
const ATTEMPTS: u32 = 4;

/// The senders of the frames of one stream. Dropped with it: then the connection has broken, or either side ends.
pub(super) struct Voices {
    network: Arc<Network>,
    last: BTreeMap<TabletId, Header>,
}

impl Voices {
    pub(super) const fn new(network: Arc<Network>) -> Self {
        Self { network, last: BTreeMap::new() }
    }

    /// A frame has come.
    pub(super) fn heard(&mut self, header: Header) {
        self.last.insert(header.tablet, header);
    }
}

impl Drop for Voices {
    fn drop(&mut self) {
        for header in self.last.values() {
            self.network.line_broke(header);
        }
    }
}

/// Prepares to succeed the leader that sent what this header was on.
pub(super) fn prepare(group: &Arc<Group>, header: &Header, rng: &Rng) {
    let status = group.status();
    if status.leader.is_some_and(|leader| leader.replica == header.from) {
        let succeed = succeed(Arc::downgrade(group), status.term, rng.fork());
        group.tasks().spawn_until_stopped("raft-succession", succeed);
    }
}

/// Stands for election when the promise to the leader of `term` has run out; not the group itself, which would never go.
async fn succeed(group: Weak<Group>, term: u64, rng: Rng) {
    let Some(promise) = group.upgrade().map(|group| group.timings().election_max) else { return };
    tokio::time::sleep(promise).await;
    let mut spread = SPREAD;
    for _ in 0..ATTEMPTS {
        tokio::time::sleep(spread.mul_f64(rng.below(1_000) as f64 / 1_000.0)).await;
        let Some(group) = group.upgrade().filter(|group| group.status().term == term) else { return };
        group.elect().await;
        spread *= 2;
    }
}

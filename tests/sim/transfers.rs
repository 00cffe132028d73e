//! Cuts of a link in the middle of a large message: an append or a snapshot between tablet servers, or a request that one forwards to another.
//!
//! The network carries a large message in many segments, each of which arrives after a time of its own. When a link is cut, the segments that are on it
//! are lost, while earlier ones have arrived. After that the connection carries nothing more, also when the link is whole again, until HTTP/2 closes
//! it because a probe gets no response. Cuts at random moments seldom hit such a message: its transfer takes a few milliseconds.

use std::time::Duration;

use ebla_runtime::Rng;
use ebla_tests::cluster::{Direction, Node};
use ebla_tests::faults::fault::{Fault, FaultKind, Target};
use turmoil::{Protocol, Segment, Sim};

use crate::cluster::SimCluster;

/// A link that carries at least this number of bytes at one moment carries a large message.
const LARGE_BYTES: usize = 256 << 10;
/// In each millisecond in which a large message is on a link, the link is cut with a probability of one in this number, so that the lost part is not
/// always the first one.
const ONE_IN: u64 = 2;
/// The minimum duration of a cut in milliseconds, and the span above it.
const LASTS_MS: (u64, u64) = (50, 1_500);
/// More than half of the cuts are in both directions.
const DIRECTIONS: [Direction; 5] = [Direction::Both, Direction::Both, Direction::Both, Direction::Out, Direction::In];

/// Decides which link is cut in the middle of a message, and when.
#[derive(Debug)]
pub(crate) struct TransferCuts {
    /// The mean time between two cuts.
    mean: Duration,
    /// No cut before this time.
    next: Duration,
    rng: Rng,
}

impl TransferCuts {
    /// `from`: the time since the start of the simulation, as in the other method.
    pub(crate) fn new(mean: Duration, rng: Rng, from: Duration) -> Self {
        Self { mean, next: from + rng.jitter(mean), rng }
    }

    /// The cut that is due now, if there is a large message on a link between two tablet servers.
    pub(crate) fn due(&mut self, now: Duration, sim: &Sim<'_>, cluster: &SimCluster) -> Option<Fault> {
        if now < self.next {
            return None;
        }
        let links = loaded_links(sim, cluster);
        let link = *links.get(self.pick(links.len()))?;
        if self.rng.below(ONE_IN) != 0 {
            return None;
        }
        self.next = now + self.rng.jitter(self.mean);
        let direction = DIRECTIONS[self.pick(DIRECTIONS.len())];
        let lasts = Duration::from_millis(LASTS_MS.0 + self.rng.below(LASTS_MS.1));
        Some(Fault::new(FaultKind::Partition(direction), Target::Links(vec![link]), lasts))
    }

    fn pick(&self, count: usize) -> usize {
        usize::try_from(self.rng.below(count as u64)).unwrap()
    }
}

/// Whether a large message is on the link between these hosts.
pub(crate) fn is_loaded(sim: &Sim<'_>, cluster: &SimCluster, a: &str, b: &str) -> bool {
    let name = |node: Node| cluster.host(node).name.as_str();
    loaded_links(sim, cluster).into_iter().map(|(c, d)| (name(c), name(d))).any(|link| link == (a, b) || link == (b, a))
}

/// The links between two tablet servers with large messages on them.
fn loaded_links(sim: &Sim<'_>, cluster: &SimCluster) -> Vec<(Node, Node)> {
    let mut addresses = Vec::new();
    sim.links(|links| {
        for link in links {
            let pair = link.pair();
            let bytes: usize = link.map(|message| data_bytes(message.protocol())).sum();
            if bytes >= LARGE_BYTES {
                addresses.push(pair);
            }
        }
    });
    let server = |name: &str| cluster.servers.iter().position(|host| host.name == name).map(Node::TabletServer);
    let mut links = Vec::new();
    for pair in addresses {
        let (a, b) = sim.reverse_lookup_pair(pair);
        links.extend(server(&a).zip(server(&b)));
    }
    links
}

fn data_bytes(message: &Protocol) -> usize {
    match message {
        Protocol::Tcp(Segment::Data(_, bytes)) => bytes.len(),
        Protocol::Tcp(_) | Protocol::Udp(_) => 0,
    }
}

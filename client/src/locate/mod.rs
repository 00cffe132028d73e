//! Tablet locations: the three-level lookup of the paper (§5.1), without IO.
//!
//! ```text
//!   Chubby file `root`  ->  root tablet  ->  METADATA tablet  ->  the tablet of a row
//!        (level 0)           (level 1)          (level 2)            (the requested tablet)
//! ```
//!
//! [`cache`] stores locations, [`resolver`] chooses the next request of a lookup. Neither does IO: the shell in
//! [`crate::Cluster`] sends the requests and returns the responses; a test supplies its own responses and counts them.
//! An empty cache costs three round trips, a cache that is stale at every level costs six. Every location here may be
//! stale; each request carries the tablet's generation, so a stale location never gives a wrong answer.
//!
//! A tablet's replicas are those of its group, and so is its leader: one response that names a new leader redirects the
//! requests to all tablets of the group.

pub mod cache;
mod group;
pub mod messages;
mod pending;
pub mod resolver;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{GroupId, ServerId, TableId, TabletId, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;

/// Which tablet of a table is searched for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// The tablet that holds this key.
    At(RowKey),
    /// The tablet that holds the keys just below this one, or the last tablet: a descending scan begins there.
    Below(Option<RowKey>),
}

impl Probe {
    /// Whether a tablet with this range matches.
    pub fn is_in(&self, range: &KeyRange) -> bool {
        match self {
            Self::At(key) => range.contains(key.as_bytes()),
            Self::Below(None) => range.end().is_none(),
            Self::Below(Some(key)) => range.start() < key && range.end().is_none_or(|end| key <= end),
        }
    }
}

/// A position in a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The table.
    pub table: TableId,
    /// The position in it.
    pub probe: Probe,
}

impl Position {
    /// The position of a key.
    pub const fn at(table: TableId, key: RowKey) -> Self {
        Self { table, probe: Probe::At(key) }
    }
}

/// The presumed leader of a tablet's group and its term. A wrong hint costs a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// The server.
    pub server: ServerId,
    /// The Raft term of its leadership.
    pub term: Term,
}

/// A tablet in the location cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedTablet {
    /// The newest descriptor of the tablet, with the newest membership of its group.
    pub descriptor: Arc<TabletDescriptor>,
    /// The keys for which it counts: the descriptor's range without the ranges of newer descriptors.
    pub range: KeyRange,
    /// The presumed leader of its group.
    pub leader: Option<LeaderHint>,
    /// The last presumed leader that did not lead or did not respond. Peers with stale state may name it again.
    pub(crate) rejected_leader: Option<LeaderHint>,
}

impl CachedTablet {
    /// A tablet without a known leader.
    pub const fn new(descriptor: Arc<TabletDescriptor>, range: KeyRange) -> Self {
        Self { descriptor, range, leader: None, rejected_leader: None }
    }

    /// Whether the hint names a rejected leader that is not among the known replicas: the tablet has other replicas
    /// now, and METADATA lists them.
    pub(crate) fn is_superseded_by(&self, hint: LeaderHint) -> bool {
        is_rejected(self.rejected_leader, hint) && self.descriptor.membership.replica_on(hint.server).is_none()
    }

    /// The server to try next: the presumed leader, then the voters in turn, beginning with number `round_robin_start`.
    /// Servers in `tried` are skipped. `None` when all were tried.
    pub fn choose_server(&self, tried: &[ServerId], round_robin_start: usize) -> Option<ServerId> {
        let hinted = self.leader.map(|leader| leader.server).filter(|server| !tried.contains(server));
        hinted.or_else(|| self.next_voter(tried, round_robin_start))
    }

    fn next_voter(&self, tried: &[ServerId], round_robin_start: usize) -> Option<ServerId> {
        let membership = &self.descriptor.membership;
        let is_voter = |replica| membership.voters.iter().any(|voters| voters.contains(replica));
        let voters: Vec<ServerId> = membership
            .replicas
            .iter()
            .filter(|(replica, _server)| is_voter(replica))
            .map(|(_replica, server)| *server)
            .collect();
        let first = round_robin_start.checked_rem(voters.len()).unwrap_or(0);
        voters.iter().cycle().skip(first).take(voters.len()).find(|server| !tried.contains(server)).copied()
    }
}

/// Whether this leader was rejected in this term or a later one.
fn is_rejected(rejected: Option<LeaderHint>, hint: LeaderHint) -> bool {
    rejected.is_some_and(|known| known.server == hint.server && hint.term <= known.term)
}

/// The level that a hop of a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The root tablet.
    Root,
    /// A tablet of METADATA.
    Metadata,
    /// The requested tablet.
    Tablet,
}

/// The source of a hop's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The cache of this client.
    Cache,
    /// The Chubby file of the root tablet, or a server that watches it.
    Chubby,
    /// A row of the root tablet.
    RootTablet,
    /// A row of another METADATA tablet.
    MetadataTablet,
}

/// One level of a lookup: its result, its source and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The level.
    pub level: Level,
    /// Where it was found.
    pub source: Source,
    /// Which tablet it is.
    pub tablet: TabletId,
    /// The group that holds the tablet.
    pub group: GroupId,
    /// Round trips, wrong guesses included.
    pub round_trips: u32,
    /// The total time of the round trips.
    pub took: Duration,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "root tablet",
            Self::Metadata => "METADATA tablet",
            Self::Tablet => "tablet",
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cache => "cache",
            Self::Chubby => "Chubby",
            Self::RootTablet => "root tablet",
            Self::MetadataTablet => "METADATA tablet",
        })
    }
}

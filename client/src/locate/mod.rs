//! Where tablets are: the three-level lookup of the paper (§5.1), as values.
//!
//! ```text
//!   Chubby file `root`  ->  root tablet  ->  METADATA tablet  ->  the tablet of a row
//!        (level 0)           (level 1)          (level 2)            (what is asked for)
//! ```
//!
//! [`cache`] remembers what was learnt, [`resolver`] says which question comes next. Neither does IO: the shell in
//! [`crate::Cluster`] asks the questions and brings the answers, a test brings answers of its own and counts them.
//! An empty cache costs three round trips, a cache that is stale at every level six. Everything here is a picture that
//! may be old; the tablet's own generation, checked with each request, keeps an old picture from giving a wrong answer.

pub mod cache;
pub mod resolver;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;

/// Which place in a table's rows is looked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// The tablet that holds this key.
    At(RowKey),
    /// The tablet that holds the keys just below this one, or the last tablet: where a descending scan begins.
    Below(Option<RowKey>),
}

impl Probe {
    /// Whether a tablet with this range is the one that is looked for.
    pub fn is_in(&self, range: &KeyRange) -> bool {
        match self {
            Self::At(key) => range.contains(key.as_bytes()),
            Self::Below(None) => range.end().is_none(),
            Self::Below(Some(key)) => range.start() < key && range.end().is_none_or(|end| key <= end),
        }
    }
}

/// A place in a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The table.
    pub table: TableId,
    /// The place in it.
    pub probe: Probe,
}

impl Position {
    /// The place of a key.
    pub const fn at(table: TableId, key: RowKey) -> Self {
        Self { table, probe: Probe::At(key) }
    }
}

/// Who seems to lead a tablet, and since which term. Wrong costs a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// The server.
    pub server: ServerId,
    /// The Raft term in which it led.
    pub term: u64,
}

/// A tablet as the cache knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// What was learnt of the tablet.
    pub descriptor: Arc<TabletDescriptor>,
    /// The keys for which it is believed: the descriptor's range, less what newer descriptors claim.
    pub range: KeyRange,
    /// Who seems to lead it.
    pub leader: Option<LeaderHint>,
    /// Who was believed to lead it and did not, or was silent. Peers that have not noticed may name it again.
    pub(crate) shunned: Option<LeaderHint>,
}

impl Located {
    /// A tablet of which nobody is known to lead it.
    pub const fn new(descriptor: Arc<TabletDescriptor>, range: KeyRange) -> Self {
        Self { descriptor, range, leader: None, shunned: None }
    }

    /// Somebody says who leads. Older terms, and who was shunned in that term, change nothing.
    pub(crate) fn hear(&mut self, hint: LeaderHint) {
        if !self.shuns(hint) && self.leader.is_none_or(|known| known.term <= hint.term) {
            self.leader = Some(hint);
        }
    }

    /// Whether a leader is named whom [`Self::hear`] does not believe, because it was asked in vain, and whom no round over the
    /// voters would come to: the tablet has other replicas by now, and METADATA knows them.
    pub(crate) fn is_outgrown_by(&self, hint: LeaderHint) -> bool {
        self.shuns(hint) && self.descriptor.membership.replica_on(hint.server).is_none()
    }

    /// Whether this leader was asked in vain, in this term or a later one.
    fn shuns(&self, hint: LeaderHint) -> bool {
        self.shunned.is_some_and(|known| known.server == hint.server && hint.term <= known.term)
    }

    /// A server answered as the leader.
    pub(crate) fn confirm(&mut self, server: ServerId) {
        let term = self.leader.or(self.shunned).map_or(0, |known| known.term);
        self.leader = Some(LeaderHint { server, term });
        self.shunned = None;
    }

    /// A server does not lead, or is silent.
    pub(crate) fn shun(&mut self, server: ServerId) {
        if let Some(known) = self.leader.filter(|known| known.server == server) {
            self.leader = None;
            self.shunned = Some(known);
        }
    }

    /// The server to ask next: the presumed leader, then the voters in turn, beginning at the `rotor`-th, each unless
    /// it is among `tried`. `None` when all were tried.
    pub fn choose(&self, tried: &[ServerId], rotor: usize) -> Option<ServerId> {
        let hinted = self.leader.map(|leader| leader.server).filter(|server| !tried.contains(server));
        hinted.or_else(|| self.voter(tried, rotor))
    }

    fn voter(&self, tried: &[ServerId], rotor: usize) -> Option<ServerId> {
        let membership = &self.descriptor.membership;
        let is_voter = |replica| membership.voters.iter().any(|voters| voters.contains(replica));
        let voters: Vec<ServerId> = membership
            .replicas
            .iter()
            .filter(|(replica, _server)| is_voter(replica))
            .map(|(_replica, server)| *server)
            .collect();
        let first = rotor.checked_rem(voters.len()).unwrap_or(0);
        voters.iter().cycle().skip(first).take(voters.len()).find(|server| !tried.contains(server)).copied()
    }
}

/// What a hop of a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The root tablet.
    Root,
    /// A tablet of METADATA.
    Metadata,
    /// The tablet that was asked for.
    Tablet,
}

/// Where a hop found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This client's own cache.
    Cache,
    /// The Chubby file of the root tablet, or a server that watches it.
    Chubby,
    /// A row of the root tablet.
    RootTablet,
    /// A row of another METADATA tablet.
    MetadataTablet,
}

/// One level of a lookup: what was found, where, at what cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// What was looked for.
    pub level: Level,
    /// Where it was found.
    pub source: Source,
    /// Which tablet it is.
    pub tablet: TabletId,
    /// Round trips it took, wrong guesses included.
    pub round_trips: u32,
    /// How long they took together.
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

//! Ids: one type each, so that a server's id cannot be used as a tablet's.
//!
//! ARCHITECTURE.md, "Ids", says who allocates which. No id is ever reused; the only arithmetic is "the next one",
//! except for the indexes of a log, which can be counted.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Text that is not a valid id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid id: {0}")]
pub struct ParseIdError(#[from] ParseIntError);

macro_rules! counted_id {
    ($(#[$doc:meta])* $name:ident($integer:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name($integer);

        impl $name {
            /// The id with this number.
            pub const fn new(number: $integer) -> Self {
                Self(number)
            }

            /// Its number.
            pub const fn get(self) -> $integer {
                self.0
            }

            /// The one that follows.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                Ok(Self(text.parse()?))
            }
        }
    };
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(u128);

        impl $name {
            /// The id with these bits.
            pub const fn new(bits: u128) -> Self {
                Self(bits)
            }

            /// Its bits.
            pub const fn get(self) -> u128 {
                self.0
            }

            /// Big endian, as on wire and disk.
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// Reads what [`Self::to_bytes`] wrote; `None` unless it is 16 bytes.
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(|array| Self(u128::from_be_bytes(array)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                Ok(Self(u128::from_str_radix(text, 16)?))
            }
        }
    };
}

random_id! {
    /// A cluster. Stored in each server's data folder, so that a folder of another cluster is refused.
    ClusterId
}
random_id! {
    /// One incarnation of a front or of a direct client that writes.
    SessionId
}

counted_id! {
    /// A tablet server, identified by its data folder: an emptied folder is a new server.
    ServerId(u64)
}
counted_id! {
    /// A table. A recreated table is another one.
    TableId(u64)
}
counted_id! {
    /// A tablet. The left child of a split keeps it.
    TabletId(u64)
}
counted_id! {
    /// A replication group: a Raft group that holds tablets.
    GroupId(u64)
}
counted_id! {
    /// A replica among those of its group: the Raft node id.
    ReplicaId(u64)
}
counted_id! {
    /// A Raft term: each election begins a new one, and a term has one leader at most.
    Term(u64)
}
counted_id! {
    /// The index of an entry in a Raft log, from 1.
    LogIndex(u64)
}
counted_id! {
    /// Rises whenever a tablet's range changes.
    Generation(u64)
}
counted_id! {
    /// One attempt to copy a tablet ahead of its move, drawn at random: no other attempt has it.
    CopyId(u64)
}
counted_id! {
    /// A column family among those of its table. A recreated family is another one.
    FamilyId(u32)
}
counted_id! {
    /// A write among those of its session.
    Sequence(u64)
}
counted_id! {
    /// An admin operation, which each group applies once.
    OperationId(u64)
}
counted_id! {
    /// A master's term: the create revision of the master's lock.
    MasterEpoch(u64)
}
counted_id! {
    /// One run of a server's process.
    Incarnation(u64)
}
counted_id! {
    /// Rises by one with each change of a table's schema.
    SchemaVersion(u64)
}

/// The highest term and the highest index that are accepted from outside. No log reaches them, and counting on from them
/// does not overflow.
const OUTSIDE_MAX: u64 = u64::MAX / 2;

impl Term {
    /// A term that was read from disk or sent by another server; `None` for one that no group reaches.
    pub const fn from_outside(number: u64) -> Option<Self> {
        if number <= OUTSIDE_MAX { Some(Self(number)) } else { None }
    }
}

impl LogIndex {
    /// An index that was read from disk or sent by another server; `None` for one that no log reaches.
    pub const fn from_outside(number: u64) -> Option<Self> {
        if number <= OUTSIDE_MAX { Some(Self(number)) } else { None }
    }

    /// The index of the entry before; 0 before 0.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The index `count` entries later, or the highest index.
    #[must_use]
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// Number of entries after `earlier`, up to and including this one; 0 if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The indexes from this one on, before `end`.
    pub fn until(self, end: Self) -> impl Iterator<Item = Self> {
        (self.0..end.0).map(Self)
    }
}

impl TableId {
    /// METADATA, the table of tablet locations.
    pub const METADATA: Self = Self(0);
}

impl GroupId {
    /// The group of METADATA's tablets. It holds no others.
    pub const METADATA: Self = Self(1);
}

impl TabletId {
    /// The root tablet: locations of METADATA's own tablets.
    pub const ROOT: Self = Self(1);
    /// The tablet that holds the rest of METADATA in a new cluster.
    pub const FIRST_METADATA: Self = Self(2);
}

impl FamilyId {
    /// METADATA's `location`: descriptor and leader hint.
    pub const LOCATION: Self = Self(1);
    /// METADATA's `events`: the tablet's history.
    pub const EVENTS: Self = Self(2);
}

/// A position in a group's Raft log; a later term comes later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogId {
    /// The leader's term.
    pub term: Term,
    /// Counts entries, without gaps.
    pub index: LogIndex,
}

impl LogId {
    /// Start of every group's log: the initial state and membership count as applied here. Term 0, because no vote of a
    /// real term may be implied; an index above zero, because there is initial state.
    pub const SEED: Self = Self { term: Term(0), index: LogIndex(10) };

    /// A position that was read from disk or sent by another server; `None` for one that no log reaches.
    pub fn from_outside(term_number: u64, index_number: u64) -> Option<Self> {
        Some(Self { term: Term::from_outside(term_number)?, index: LogIndex::from_outside(index_number)? })
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_parse() {
        assert_eq!("17".parse(), Ok(TabletId::new(17)));
        assert_eq!(TabletId::new(17).to_string(), "17");
        let cluster = ClusterId::new(0xabc);
        assert_eq!(cluster.to_string().parse(), Ok(cluster));
        assert_eq!(ClusterId::from_bytes(&cluster.to_bytes()), Some(cluster));
        assert_eq!(ClusterId::from_bytes(b"short"), None);
        assert!("seven".parse::<ServerId>().is_err());
    }

    #[test]
    fn log_ids_order_by_term_first() {
        let id = |term, index| LogId { term: Term(term), index: LogIndex(index) };
        assert!(id(1, 9) < id(2, 1));
        assert!(LogId::SEED < id(1, 11));
    }

    #[test]
    fn positions_that_no_log_reaches_are_refused() {
        let highest = u64::MAX / 2;
        assert_eq!(LogId::from_outside(0, highest), Some(LogId { term: Term(0), index: LogIndex(highest) }));
        assert_eq!(LogId::from_outside(highest + 1, 0), None);
        assert_eq!(LogId::from_outside(0, u64::MAX), None);
    }

    #[test]
    fn log_indexes_count_without_overflow() {
        let (zero, five, highest) = (LogIndex(0), LogIndex(5), LogIndex(u64::MAX));
        assert_eq!((five.previous(), zero.previous()), (LogIndex(4), zero));
        assert_eq!((five.plus(2), highest.plus(1)), (LogIndex(7), highest));
        assert_eq!((five.since(LogIndex(2)), zero.since(five)), (3, 0));
        assert_eq!(LogIndex(3).until(five).collect::<Vec<_>>(), [LogIndex(3), LogIndex(4)]);
    }
}

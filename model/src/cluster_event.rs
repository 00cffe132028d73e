//! Events of the cluster as a whole: what has happened to its servers, masters, tables and repairs, and why. The active master records
//! them in Chubby (`events/<number>`). Events of single tablets are in METADATA: [`crate::tablet_event`].

use std::fmt;

use crate::id::{ServerId, TableId};

/// The longest detail that is recorded, in bytes; a longer one is cut.
pub const DETAIL_BYTES_MAX: usize = 300;

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterEventKind {
    /// A master has won the election: it has the master lock.
    MasterElected,
    /// A master has given its lease, the master lock, back: it stops, or begins a new term.
    MasterLeaseReleased,
    /// The term of a master has ended, and it has not given its lease back.
    MasterLeaseLost,
    /// A new tablet server is up.
    ServerJoined,
    /// A tablet server does not respond to the master; it may still have its lease.
    ServerLost,
    /// A tablet server has a lease in Chubby that it did not have before.
    ServerLeaseAcquired,
    /// A tablet server has no lease in Chubby any more; it may still respond.
    ServerLeaseLost,
    /// A tablet server is up again.
    ServerReturned,
    /// The drain of a tablet server was requested.
    DrainRequested,
    /// A drained tablet server has no replica any more.
    DrainFinished,
    /// The drain of a tablet server was ended: it may get replicas again.
    DrainEnded,
    /// The drain of a tablet server was refused.
    DrainRefused,
    /// A tablet server was removed.
    ServerRemoved,
    /// The removal of a tablet server was refused.
    RemovalRefused,
    /// A tablet server refuses writes, because its disk has too little space.
    WritesRefused,
    /// A tablet server accepts writes again.
    WritesAccepted,
    /// Tablets have fewer live replicas than they should have.
    UnderReplicated,
    /// All tablets have all their replicas again.
    FullyReplicated,
    /// Replica repair has begun.
    RepairStarted,
    /// Replica repair waits, because no server has room for a new replica.
    RepairWaits,
    /// Replica repair has finished.
    RepairFinished,
    /// Tablets have no majority of replicas and cannot be written.
    QuorumLost,
    /// All tablets have a majority again.
    QuorumRestored,
    /// Groups were recovered from one replica each.
    GroupsRecovered,
    /// METADATA cannot be read.
    MetadataUnreadable,
    /// METADATA can be read again.
    MetadataReadable,
    /// Servers have tablets of tables that Chubby does not know.
    UnknownTables,
    /// Chubby knows all tables again.
    NoUnknownTables,
    /// Changes of tables and of the cluster are refused, because Chubby lacks changes that servers have seen.
    ChangesRefused,
    /// Changes are accepted again.
    ChangesAccepted,
    /// A table was created.
    TableCreated,
    /// The schema of a table has changed.
    SchemaChanged,
    /// A table exceeds a quota, so writes to it, or to families of it, are refused.
    QuotaExceeded,
    /// A table keeps its quotas again, or exceeds fewer of them.
    QuotaKept,
    /// A table was deleted.
    TableDeleted,
    /// A later cluster version is active.
    VersionActivated,
}

impl ClusterEventKind {
    /// All kinds.
    pub const ALL: [Self; 36] = [
        Self::MasterElected,
        Self::MasterLeaseReleased,
        Self::MasterLeaseLost,
        Self::ServerJoined,
        Self::ServerLost,
        Self::ServerLeaseAcquired,
        Self::ServerLeaseLost,
        Self::ServerReturned,
        Self::DrainRequested,
        Self::DrainFinished,
        Self::DrainEnded,
        Self::DrainRefused,
        Self::ServerRemoved,
        Self::RemovalRefused,
        Self::WritesRefused,
        Self::WritesAccepted,
        Self::UnderReplicated,
        Self::FullyReplicated,
        Self::RepairStarted,
        Self::RepairWaits,
        Self::RepairFinished,
        Self::QuorumLost,
        Self::QuorumRestored,
        Self::GroupsRecovered,
        Self::MetadataUnreadable,
        Self::MetadataReadable,
        Self::UnknownTables,
        Self::NoUnknownTables,
        Self::ChangesRefused,
        Self::ChangesAccepted,
        Self::TableCreated,
        Self::SchemaChanged,
        Self::QuotaExceeded,
        Self::QuotaKept,
        Self::TableDeleted,
        Self::VersionActivated,
    ];

    /// Its name in Chubby and in outputs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MasterElected => "master-elected",
            Self::MasterLeaseReleased => "master-lease-released",
            Self::MasterLeaseLost => "master-lease-lost",
            Self::ServerJoined => "server-joined",
            Self::ServerLost => "server-lost",
            Self::ServerLeaseAcquired => "server-lease-acquired",
            Self::ServerLeaseLost => "server-lease-lost",
            Self::ServerReturned => "server-returned",
            Self::DrainRequested => "drain-requested",
            Self::DrainFinished => "drain-finished",
            Self::DrainEnded => "drain-ended",
            Self::DrainRefused => "drain-refused",
            Self::ServerRemoved => "server-removed",
            Self::RemovalRefused => "removal-refused",
            Self::WritesRefused => "writes-refused",
            Self::WritesAccepted => "writes-accepted",
            Self::UnderReplicated => "under-replicated",
            Self::FullyReplicated => "fully-replicated",
            Self::RepairStarted => "repair-started",
            Self::RepairWaits => "repair-waits",
            Self::RepairFinished => "repair-finished",
            Self::QuorumLost => "quorum-lost",
            Self::QuorumRestored => "quorum-restored",
            Self::GroupsRecovered => "groups-recovered",
            Self::MetadataUnreadable => "metadata-unreadable",
            Self::MetadataReadable => "metadata-readable",
            Self::UnknownTables => "unknown-tables",
            Self::NoUnknownTables => "no-unknown-tables",
            Self::ChangesRefused => "changes-refused",
            Self::ChangesAccepted => "changes-accepted",
            Self::TableCreated => "table-created",
            Self::SchemaChanged => "schema-changed",
            Self::QuotaExceeded => "quota-exceeded",
            Self::QuotaKept => "quota-kept",
            Self::TableDeleted => "table-deleted",
            Self::VersionActivated => "version-activated",
        }
    }

    /// Why it has happened.
    #[must_use]
    pub const fn cause(self) -> ClusterEventCause {
        match self {
            Self::MasterElected => ClusterEventCause::Election,
            Self::DrainRequested
            | Self::DrainEnded
            | Self::DrainRefused
            | Self::ServerRemoved
            | Self::RemovalRefused
            | Self::GroupsRecovered
            | Self::TableCreated
            | Self::SchemaChanged
            | Self::TableDeleted => ClusterEventCause::Operator,
            Self::MasterLeaseReleased
            | Self::DrainFinished
            | Self::QuotaExceeded
            | Self::QuotaKept
            | Self::RepairStarted
            | Self::RepairWaits
            | Self::RepairFinished
            | Self::VersionActivated => ClusterEventCause::Master,
            Self::MasterLeaseLost
            | Self::ServerJoined
            | Self::ServerLost
            | Self::ServerLeaseAcquired
            | Self::ServerLeaseLost
            | Self::ServerReturned
            | Self::WritesRefused
            | Self::WritesAccepted
            | Self::UnderReplicated
            | Self::FullyReplicated
            | Self::QuorumLost
            | Self::QuorumRestored
            | Self::MetadataUnreadable
            | Self::MetadataReadable
            | Self::UnknownTables
            | Self::NoUnknownTables
            | Self::ChangesRefused
            | Self::ChangesAccepted => ClusterEventCause::Observation,
        }
    }
}

impl fmt::Display for ClusterEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why something has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterEventCause {
    /// By order of an operator, or of a client of the admin API.
    Operator,
    /// A decision of the master.
    Master,
    /// An election.
    Election,
    /// The master has seen it.
    Observation,
}

impl ClusterEventCause {
    /// Its name in Chubby and in outputs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Master => "master",
            Self::Election => "election",
            Self::Observation => "observed",
        }
    }
}

/// An event that must be recorded. Its time is that of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewClusterEvent {
    /// What has happened.
    pub kind: ClusterEventKind,
    /// The tablet server that it has happened to, if there is one.
    pub server: Option<ServerId>,
    /// The table that it has happened to, if there is one.
    pub table: Option<TableId>,
    detail: String,
}

impl NewClusterEvent {
    /// An event, with more about it for people: at most [`DETAIL_BYTES_MAX`] bytes of `detail` are kept.
    #[must_use]
    pub fn new(kind: ClusterEventKind, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > DETAIL_BYTES_MAX {
            let cut = (0..=DETAIL_BYTES_MAX - '…'.len_utf8()).rev().find(|at| detail.is_char_boundary(*at));
            detail.truncate(cut.unwrap_or_default());
            detail.push('…');
        }
        Self { kind, server: None, table: None, detail }
    }

    /// The same, about a tablet server.
    #[must_use]
    pub fn of_server(self, server: ServerId) -> Self {
        Self { server: Some(server), ..self }
    }

    /// The same, about a table.
    #[must_use]
    pub fn of_table(self, table: TableId) -> Self {
        Self { table: Some(table), ..self }
    }

    /// More about it, for people; at most [`DETAIL_BYTES_MAX`] bytes.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_distinct() {
        let names: BTreeSet<_> = ClusterEventKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ClusterEventKind::ALL.len());
    }

    #[test]
    fn a_long_detail_is_cut_between_characters() {
        let kind = ClusterEventKind::TableCreated;
        assert_eq!(NewClusterEvent::new(kind, "web").detail(), "web");
        let exact = "x".repeat(DETAIL_BYTES_MAX);
        assert_eq!(NewClusterEvent::new(kind, exact.clone()).detail(), exact);
        for long in ["x".repeat(DETAIL_BYTES_MAX + 1), "ä".repeat(DETAIL_BYTES_MAX), "日本".repeat(DETAIL_BYTES_MAX)]
        {
            let event = NewClusterEvent::new(kind, long);
            assert!(event.detail().len() <= DETAIL_BYTES_MAX && event.detail().ends_with('…'), "{}", event.detail());
        }
    }
}

//! Records: stored in Chubby, METADATA and the replicas.
//!
//! The version of a record is checked before its content is used. A record that does not decode is `DataDamaged`: no release
//! has written it.

use bytes::{Buf, Bytes};
use ebla_model::{
    Error, Generation, GroupDescriptor, GroupId, KeyRange, LogId, LogIndex, Membership, Micros, ReplicaId, RowKey,
    Sequence, ServerId, TableId, TabletDescriptor, TabletId, Term, idempotency::TokenRecord, session::SessionWindow,
};
use prost::Message;

use super::cluster_version::ACTIVE_VERSION;
use super::schema::QUOTAS_VERSION;
use super::{VERSION, check_versions, required};
use crate::record;

/// A message that is stored by itself and has a version.
pub trait Record: Message + Default {
    /// Its name in errors.
    const NAME: &'static str;

    /// The latest version that this release supports.
    const VERSION_MAX: u32 = VERSION;

    /// The version that its writer set.
    fn version(&self) -> u32;

    /// The version field.
    fn version_mut(&mut self) -> &mut u32;
}

macro_rules! records {
    ($($kind:ident = $name:literal $(up to $version:expr)?;)*) => {$(
        impl Record for record::$kind {
            const NAME: &'static str = $name;
            $(const VERSION_MAX: u32 = $version;)?

            fn version(&self) -> u32 {
                self.version
            }

            fn version_mut(&mut self) -> &mut u32 {
                &mut self.version
            }
        }
    )*};
}

records! {
    InstanceAccess = "policy of an instance";
    TableAccess = "policies of a table";
    AuthorizedView = "authorized view";
    TabletDescriptor = "tablet descriptor";
    GroupDescriptor = "group descriptor";
    TabletRecord = "tablet record";
    GroupPlan = "group plan";
    DeletedTable = "record of a deleted table";
    TableSchema = "table schema" up to QUOTAS_VERSION;
    Server = "server record";
    Master = "master record";
    Cluster = "cluster record" up to ACTIVE_VERSION;
    TablePlan = "table plan";
    TabletEvent = "tablet event";
    Session = "session record";
    IdempotencyToken = "idempotency token";
    DirectoryCopy = "copy of the directory";
    Behind = "record of what Chubby lacks";
    LostServer = "record of a lost tablet server";
    DrainedServer = "record of a drained tablet server";
    ClusterEvent = "event of the cluster";
    ClusterRegistration = "registration of the cluster";
    Instance = "instance record";
    AppProfile = "app profile record";
    FinishedOperation = "finished operation";
    Departure = "departure record";
    Arrival = "arrival record";
    DroppedRows = "dropped rows";
}

/// Encodes a record and sets the first version. Records with several versions have separate functions below.
pub fn encode_record<R: Record>(mut record: R) -> Bytes {
    *record.version_mut() = VERSION;
    record.encode_to_vec().into()
}

/// Decodes a record and checks its version.
///
/// # Errors
/// `DataDamaged` when it does not decode or has an unknown version.
pub fn decode_record<R: Record>(bytes: impl Buf) -> Result<R, Error> {
    let record = R::decode(bytes).map_err(|error| Error::damaged(format!("read {}: {error}", R::NAME)))?;
    check_record::<R>(record.version())?;
    Ok(record)
}

pub(super) fn check_record<R: Record>(version: u32) -> Result<(), Error> {
    check_versions(version, R::VERSION_MAX, R::NAME)
}

/// A position in a tablet's log.
pub const fn log_id_to_proto(id: LogId) -> record::LogId {
    record::LogId { term: id.term.get(), index: id.index.get() }
}

/// A position in a tablet's log.
pub const fn log_id_from_proto(id: &record::LogId) -> LogId {
    LogId { term: Term::new(id.term), index: LogIndex::new(id.index) }
}

/// A range of keys.
pub fn key_range_to_proto(range: &KeyRange) -> record::KeyRange {
    record::KeyRange { start: range.start().bytes().clone(), end: range.end().map(|end| end.bytes().clone()) }
}

/// A range of keys.
///
/// # Errors
/// `DataDamaged` when it is empty.
pub fn key_range_from_proto(range: &record::KeyRange) -> Result<KeyRange, Error> {
    KeyRange::new(RowKey::new(range.start.clone()), range.end.clone().map(RowKey::new))
        .ok_or_else(|| Error::damaged("key range is empty"))
}

/// Voters and learners.
pub fn membership_to_proto(membership: &Membership) -> record::Membership {
    record::Membership {
        voters: membership
            .voters
            .iter()
            .map(|set| record::VoterSet { replicas: set.iter().map(|replica| replica.get()).collect() })
            .collect(),
        replicas: membership
            .replicas()
            .map(|replica| record::Replica { replica: replica.replica.get(), server: replica.server.get() })
            .collect(),
    }
}

/// Voters and learners.
pub fn membership_from_proto(membership: &record::Membership) -> Membership {
    let set = |set: &record::VoterSet| set.replicas.iter().copied().map(ReplicaId::new).collect();
    Membership {
        voters: membership.voters.iter().map(set).collect(),
        replicas: membership
            .replicas
            .iter()
            .map(|replica| (ReplicaId::new(replica.replica), ServerId::new(replica.server)))
            .collect(),
    }
}

/// A tablet.
pub fn descriptor_to_proto(descriptor: &TabletDescriptor) -> record::TabletDescriptor {
    record::TabletDescriptor {
        version: VERSION,
        table: descriptor.table.get(),
        tablet: descriptor.tablet.get(),
        range: Some(key_range_to_proto(&descriptor.range)),
        generation: descriptor.generation.get(),
        membership: Some(membership_to_proto(&descriptor.membership)),
        membership_log_id: Some(log_id_to_proto(descriptor.membership_log_id)),
        group: descriptor.group.get(),
    }
}

/// A tablet.
///
/// # Errors
/// `DataDamaged` when a part is missing or the version is another.
pub fn descriptor_from_proto(descriptor: &record::TabletDescriptor) -> Result<TabletDescriptor, Error> {
    check_record::<record::TabletDescriptor>(descriptor.version)?;
    let range = required(descriptor.range.as_ref(), "tablet descriptor: range")?;
    let membership = required(descriptor.membership.as_ref(), "tablet descriptor: membership")?;
    let log_id = required(descriptor.membership_log_id.as_ref(), "tablet descriptor: membership log id")?;
    Ok(TabletDescriptor {
        table: TableId::new(descriptor.table),
        tablet: TabletId::new(descriptor.tablet),
        range: key_range_from_proto(range)?,
        generation: Generation::new(descriptor.generation),
        group: GroupId::new(descriptor.group),
        membership: membership_from_proto(membership),
        membership_log_id: log_id_from_proto(log_id),
    })
}

/// A group.
pub fn group_to_proto(group: &GroupDescriptor) -> record::GroupDescriptor {
    record::GroupDescriptor {
        version: VERSION,
        group: group.group.get(),
        membership: Some(membership_to_proto(&group.membership)),
        membership_log_id: Some(log_id_to_proto(group.membership_log_id)),
    }
}

/// A group.
///
/// # Errors
/// `DataDamaged` when a part is missing or the version is another.
pub fn group_from_proto(group: &record::GroupDescriptor) -> Result<GroupDescriptor, Error> {
    check_record::<record::GroupDescriptor>(group.version)?;
    let membership = required(group.membership.as_ref(), "group descriptor: membership")?;
    let log_id = required(group.membership_log_id.as_ref(), "group descriptor: membership log id")?;
    Ok(GroupDescriptor {
        group: GroupId::new(group.group),
        membership: membership_from_proto(membership),
        membership_log_id: log_id_from_proto(log_id),
    })
}

/// A group descriptor as stored in replicas.
pub fn group_to_bytes(group: &GroupDescriptor) -> Bytes {
    group_to_proto(group).encode_to_vec().into()
}

/// A group descriptor as stored in replicas.
///
/// # Errors
/// As [`group_from_proto`].
pub fn group_from_bytes(bytes: impl Buf) -> Result<GroupDescriptor, Error> {
    group_from_proto(&decode_record(bytes)?)
}

/// A tablet as the state of its group stores it, without the replicas.
pub fn tablet_record_to_proto(tablet: &TabletDescriptor) -> record::TabletRecord {
    record::TabletRecord {
        version: VERSION,
        table: tablet.table.get(),
        tablet: tablet.tablet.get(),
        range: Some(key_range_to_proto(&tablet.range)),
        generation: tablet.generation.get(),
    }
}

/// A tablet of `group`.
///
/// # Errors
/// `DataDamaged` when the range is missing or the version is another.
pub fn tablet_record_from_proto(
    tablet: &record::TabletRecord,
    group: &GroupDescriptor,
) -> Result<TabletDescriptor, Error> {
    check_record::<record::TabletRecord>(tablet.version)?;
    let range = key_range_from_proto(required(tablet.range.as_ref(), "tablet record: range")?)?;
    let generation = Generation::new(tablet.generation);
    Ok(group.tablet(TableId::new(tablet.table), TabletId::new(tablet.tablet), range, generation))
}

/// A tablet descriptor as stored in METADATA and replicas.
pub fn descriptor_to_bytes(descriptor: &TabletDescriptor) -> Bytes {
    descriptor_to_proto(descriptor).encode_to_vec().into()
}

/// A tablet descriptor as stored in METADATA and replicas.
///
/// # Errors
/// As [`descriptor_from_proto`].
pub fn descriptor_from_bytes(bytes: impl Buf) -> Result<TabletDescriptor, Error> {
    descriptor_from_proto(&decode_record(bytes)?)
}

/// A session as stored in a tablet.
pub fn session_to_proto(session: &SessionWindow) -> record::Session {
    let entry = |(sequence, result): (&Sequence, &Option<Bytes>)| record::SessionEntry {
        sequence: sequence.get(),
        result: result.clone(),
    };
    record::Session {
        version: VERSION,
        lowest_outstanding: session.lowest_outstanding.get(),
        applied: session.applied.iter().map(entry).collect(),
        last_used_micros: session.last_used.get(),
    }
}

/// A session as stored in a tablet.
///
/// # Errors
/// `DataDamaged` when the version is another.
pub fn session_from_proto(session: &record::Session) -> Result<SessionWindow, Error> {
    check_record::<record::Session>(session.version)?;
    Ok(SessionWindow {
        lowest_outstanding: Sequence::new(session.lowest_outstanding),
        applied: session.applied.iter().map(|entry| (Sequence::new(entry.sequence), entry.result.clone())).collect(),
        last_used: Micros::new(session.last_used_micros),
    })
}

/// The record of a write with an idempotency token.
pub fn token_record_to_bytes(token: &TokenRecord) -> Bytes {
    encode_record(record::IdempotencyToken {
        version: VERSION,
        until_micros: token.expires_at.get(),
        result: token.result.clone(),
    })
}

/// The record of a write with an idempotency token.
///
/// # Errors
/// `DataDamaged` when it does not decode or the version is another.
pub fn token_record_from_bytes(bytes: impl Buf) -> Result<TokenRecord, Error> {
    let token = decode_record::<record::IdempotencyToken>(bytes)?;
    Ok(TokenRecord { expires_at: Micros::new(token.until_micros), result: token.result })
}

/// A stored value that is invalid.
pub(super) fn damaged(part: &str, error: &Error) -> Error {
    Error::damaged(format!("{part}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> TabletDescriptor {
        let range = KeyRange::new(RowKey::new("a"), Some(RowKey::new("m"))).unwrap();
        let servers = [1, 2, 3].map(ServerId::new);
        TabletDescriptor::initial(TableId::new(7), TabletId::new(9), range, &servers)
    }

    #[test]
    fn descriptors_come_back() {
        let sent = descriptor();
        assert_eq!(descriptor_from_bytes(descriptor_to_bytes(&sent)), Ok(sent));
        let open = TabletDescriptor { range: KeyRange::all(), ..descriptor() };
        assert_eq!(descriptor_from_proto(&descriptor_to_proto(&open)), Ok(open));
    }

    #[test]
    fn joint_memberships_come_back() {
        let mut membership = Membership::initial(&[1, 2, 3].map(ServerId::new));
        membership.voters.push([ReplicaId::new(2), ReplicaId::new(4)].into());
        membership.replicas.insert(ReplicaId::new(4), ServerId::new(8));
        assert_eq!(membership_from_proto(&membership_to_proto(&membership)), membership);
    }

    #[test]
    fn sessions_come_back() {
        let mut sent = SessionWindow::default();
        sent.record(Sequence::new(4), Sequence::new(2), Some(Bytes::from("answer")), Micros::new(50));
        sent.record(Sequence::new(5), Sequence::new(2), None, Micros::new(60));
        assert_eq!(session_from_proto(&session_to_proto(&sent)), Ok(sent));
    }

    #[test]
    fn token_records_round_trip() {
        for result in [None, Some(Bytes::new()), Some(Bytes::from("answer"))] {
            let sent = TokenRecord { expires_at: Micros::new(50), result };
            assert_eq!(token_record_from_bytes(token_record_to_bytes(&sent)), Ok(sent));
        }
        assert!(token_record_from_bytes(&b""[..]).is_err(), "no version at all");
    }

    #[test]
    fn records_of_another_version_are_not_believed() {
        let mut record = descriptor_to_proto(&descriptor());
        record.version = VERSION + 1;
        let error = descriptor_from_bytes(Bytes::from(record.encode_to_vec())).unwrap_err();
        assert_eq!(error.reason, ebla_model::Reason::DataDamaged);
        assert!(error.message.contains("version 2"), "{error}");
        assert!(decode_record::<record::Server>(&b""[..]).is_err(), "no version at all");
        let server = record::Server { server: 3, ..Default::default() };
        assert_eq!(decode_record::<record::Server>(encode_record(server)).unwrap().server, 3);
    }

    #[test]
    fn missing_parts_are_damage() {
        let whole = descriptor_to_proto(&descriptor());
        let parts = [
            record::TabletDescriptor { range: None, ..whole.clone() },
            record::TabletDescriptor { membership: None, ..whole.clone() },
            record::TabletDescriptor { membership_log_id: None, ..whole },
        ];
        for part in parts {
            assert!(descriptor_from_proto(&part).is_err());
        }
        let empty = record::KeyRange { start: Bytes::from("b"), end: Some(Bytes::from("a")) };
        assert!(key_range_from_proto(&empty).is_err());
    }
}

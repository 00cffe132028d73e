//! Meta keys: the keys of a group's `default` column family, all replica state besides the cells.
//!
//! | key | value |
//! |---|---|
//! | `group` | `ebla.record.GroupDescriptor`, opaque here |
//! | `tablets/` + u64 BE | `ebla.record.TabletRecord`, opaque here |
//! | `tables/` + u64 BE | `ebla.record.TableSchema`, opaque here |
//! | `dropped/` + u64 BE | a table that was dropped: the id of the operation, opaque here |
//! | `applied` | version 1, term (u64 BE), index (u64 BE): the last log entry whose effect is in this store |
//! | `last_time` | version 1, microseconds (i64 BE): the greatest log time applied |
//! | `gc_time` | version 1, microseconds (i64 BE): the time at which reads judge garbage |
//! | `leapt` | version 1, microseconds (i64 BE): how much of the log's time were leaps; absent: none |
//! | `floors/` + u64 BE of the table | version 1, then per family in rising order: id (u32 BE), microseconds (i64 BE) |
//! | `sessions/` + 16 bytes | `ebla.record.Session`, opaque here |
//! | `operations/` + u64 BE | an applied admin operation: empty, or, if it dropped rows, `ebla.record.DroppedRows`, opaque here |
//! | `departures/` + u64 BE of the tablet | a tablet that moves to another group: `ebla.record.Departure`, opaque here |
//! | `arrivals/` + u64 BE of the tablet | a tablet that moves to this group: `ebla.record.Arrival`, opaque here |
//! | `ticket_floor` | version 1, term 0, index (u64 BE): lower tickets of moves are void; absent: none |
//! | `placement/` + u64 BE of the table | where the cells of the table's families are (placement.rs); absent: in `lg0`. Local to the replica |
//! | `tokens/` + escaped stored row, kind of call, token | `ebla.record.IdempotencyToken`, opaque here |
//!
//! `applied` is written in the same batch as the data it covers, and column families are only flushed together, so after
//! any crash it matches the cells exactly. Keys are ASCII so that a dump is readable. No name is a prefix of another.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_model::id::{FamilyId, LogId, LogIndex, OperationId, SessionId, TableId, TabletId, Term};
use ebla_model::time::Micros;

use super::error::StoreError;

/// First byte of every value whose layout is defined in this file.
const VERSION: u8 = 1;

/// A key of the `default` column family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaKey {
    /// `group`: the membership; `ebla.record.GroupDescriptor`.
    Group,
    /// `tablets/<id>`: range and generation of a tablet; `ebla.record.TabletRecord`.
    Tablet(TabletId),
    /// `tables/<id>`: families as of the last applied schema command; `ebla.record.TableSchema`.
    Table(TableId),
    /// `dropped/<id>`: a table that was dropped.
    Dropped(TableId),
    /// `applied`: [`encode_log_id`].
    Applied,
    /// `last_time`: [`encode_micros`].
    LastTime,
    /// `gc_time`: [`encode_micros`].
    GcTime,
    /// `floors/<table>`: [`encode_floors`].
    Floors(TableId),
    /// `leapt`: [`encode_micros`].
    Leapt,
    /// `sessions/<id>`: the applied writes of a session; `ebla.record.Session`.
    Session(SessionId),
    /// `operations/<id>`: an applied admin operation.
    Operation(OperationId),
    /// `departures/<tablet>`: a tablet that moves to another group; `ebla.record.Departure`.
    Departure(TabletId),
    /// `arrivals/<tablet>`: a tablet that moves to this group; `ebla.record.Arrival`.
    Arrival(TabletId),
    /// `ticket_floor`: [`encode_log_id`] with term 0.
    TicketFloor,
    /// `placement/<table>`: where the cells of its families are, [`super::TablePlacement`]. Only this crate writes it.
    Placement(TableId),
    /// `tokens/<stored row, kind of call, token>`: a write with an idempotency token; `ebla.record.IdempotencyToken`.
    Token(Bytes),
}

impl MetaKey {
    /// Prefix of all tablet keys.
    pub const TABLETS: &'static [u8] = b"tablets/";
    /// Prefix of all table keys.
    pub const TABLES: &'static [u8] = b"tables/";
    /// Prefix of all keys of dropped tables.
    pub const DROPPED: &'static [u8] = b"dropped/";
    /// Prefix of all keys of age floors.
    pub const FLOORS: &'static [u8] = b"floors/";
    /// Prefix of all session keys.
    pub const SESSIONS: &'static [u8] = b"sessions/";
    /// Prefix of all operation keys.
    pub const OPERATIONS: &'static [u8] = b"operations/";
    /// Prefix of all keys of tablets that depart.
    pub const DEPARTURES: &'static [u8] = b"departures/";
    /// Prefix of all keys of tablets that arrive.
    pub const ARRIVALS: &'static [u8] = b"arrivals/";
    /// Prefix of all keys of placements.
    pub const PLACEMENTS: &'static [u8] = b"placement/";
    /// Prefix of all keys of idempotency tokens.
    pub const TOKENS: &'static [u8] = b"tokens/";

    /// The key's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Group => b"group".to_vec(),
            Self::Tablet(id) => numbered(Self::TABLETS, id.get()),
            Self::Table(id) => numbered(Self::TABLES, id.get()),
            Self::Dropped(id) => numbered(Self::DROPPED, id.get()),
            Self::Applied => b"applied".to_vec(),
            Self::LastTime => b"last_time".to_vec(),
            Self::GcTime => b"gc_time".to_vec(),
            Self::Floors(id) => numbered(Self::FLOORS, id.get()),
            Self::Leapt => b"leapt".to_vec(),
            Self::Session(id) => [Self::SESSIONS, &id.to_bytes()].concat(),
            Self::Operation(id) => numbered(Self::OPERATIONS, id.get()),
            Self::Departure(id) => numbered(Self::DEPARTURES, id.get()),
            Self::Arrival(id) => numbered(Self::ARRIVALS, id.get()),
            Self::TicketFloor => b"ticket_floor".to_vec(),
            Self::Placement(id) => numbered(Self::PLACEMENTS, id.get()),
            Self::Token(key) => [Self::TOKENS, key].concat(),
        }
    }

    /// The key of these bytes; `None` for a key that no release wrote.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            b"group" => Some(Self::Group),
            b"applied" => Some(Self::Applied),
            b"last_time" => Some(Self::LastTime),
            b"gc_time" => Some(Self::GcTime),
            b"leapt" => Some(Self::Leapt),
            b"ticket_floor" => Some(Self::TicketFloor),
            _ => Self::decode_named(bytes),
        }
    }

    fn decode_named(bytes: &[u8]) -> Option<Self> {
        if let Some(key) = bytes.strip_prefix(Self::TOKENS) {
            return Some(Self::Token(Bytes::copy_from_slice(key)));
        }
        if let Some(id) = bytes.strip_prefix(Self::SESSIONS) {
            return SessionId::from_bytes(id).map(Self::Session);
        }
        let number = |prefix: &[u8]| Some(u64::from_be_bytes(bytes.strip_prefix(prefix)?.try_into().ok()?));
        number(Self::OPERATIONS)
            .map(|id| Self::Operation(OperationId::new(id)))
            .or_else(|| number(Self::TABLETS).map(|id| Self::Tablet(TabletId::new(id))))
            .or_else(|| number(Self::TABLES).map(|id| Self::Table(TableId::new(id))))
            .or_else(|| number(Self::FLOORS).map(|id| Self::Floors(TableId::new(id))))
            .or_else(|| number(Self::DROPPED).map(|id| Self::Dropped(TableId::new(id))))
            .or_else(|| number(Self::DEPARTURES).map(|id| Self::Departure(TabletId::new(id))))
            .or_else(|| number(Self::PLACEMENTS).map(|id| Self::Placement(TableId::new(id))))
            .or_else(|| number(Self::ARRIVALS).map(|id| Self::Arrival(TabletId::new(id))))
    }
}

fn numbered(prefix: &[u8], id: u64) -> Vec<u8> {
    [prefix, &id.to_be_bytes()].concat()
}

/// The value of `applied`.
#[must_use]
pub fn encode_log_id(id: LogId) -> Bytes {
    let mut value = vec![VERSION];
    value.extend(id.term.get().to_be_bytes());
    value.extend(id.index.get().to_be_bytes());
    value.into()
}

/// Reads the value of `applied`.
///
/// # Errors
/// [`StoreError::Damaged`] when it is not one.
pub fn decode_log_id(value: &[u8]) -> Result<LogId, StoreError> {
    let mut rest = body(value, "decode applied index")?;
    let numbers = take_u64(&mut rest).zip(take_u64(&mut rest));
    let id = numbers.map(|(term, index)| LogId { term: Term::new(term), index: LogIndex::new(index) });
    whole(id, rest, "decode applied index")
}

/// The value of `last_time`, `gc_time` and `leapt`.
#[must_use]
pub fn encode_micros(time: Micros) -> Bytes {
    let mut value = vec![VERSION];
    value.extend(time.get().to_be_bytes());
    value.into()
}

/// Reads the value of `last_time`, `gc_time` or `leapt`.
///
/// # Errors
/// [`StoreError::Damaged`] when it is not one.
pub fn decode_micros(value: &[u8]) -> Result<Micros, StoreError> {
    let mut rest = body(value, "decode tablet time")?;
    let time = take_micros(&mut rest);
    whole(time, rest, "decode tablet time")
}

/// The value of `floors/<table>`.
#[must_use]
pub fn encode_floors(floors: &BTreeMap<FamilyId, Micros>) -> Bytes {
    let mut value = vec![VERSION];
    for (family, floor) in floors {
        value.extend(family.get().to_be_bytes());
        value.extend(floor.get().to_be_bytes());
    }
    value.into()
}

/// Reads the value of `floors/<table>`.
///
/// # Errors
/// [`StoreError::Damaged`] when it is not one.
pub fn decode_floors(value: &[u8]) -> Result<BTreeMap<FamilyId, Micros>, StoreError> {
    let mut rest = body(value, "decode age floors")?;
    let mut floors = BTreeMap::new();
    while let Some((family, after)) = rest.split_first_chunk::<4>() {
        rest = after;
        let Some(floor) = take_micros(&mut rest) else { break };
        floors.insert(FamilyId::new(u32::from_be_bytes(*family)), floor);
    }
    let expected = 1 + floors.len() * 12;
    whole((value.len() == expected).then_some(floors), rest, "decode age floors")
}

fn body<'v>(value: &'v [u8], context: &'static str) -> Result<&'v [u8], StoreError> {
    match value.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((version, _)) => Err(StoreError::damaged(context, format!("unknown version {version}"))),
        None => Err(StoreError::damaged(context, "the value is empty")),
    }
}

fn whole<T>(read: Option<T>, rest: &[u8], context: &'static str) -> Result<T, StoreError> {
    match read {
        Some(read) if rest.is_empty() => Ok(read),
        _ => Err(StoreError::damaged(context, "the value has the wrong length")),
    }
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    let (head, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(u64::from_be_bytes(*head))
}

fn take_micros(rest: &mut &[u8]) -> Option<Micros> {
    let (head, tail) = rest.split_first_chunk::<8>()?;
    *rest = tail;
    Some(Micros::new(i64::from_be_bytes(*head)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back_and_unknown_ones_are_none() {
        let keys = [
            MetaKey::Group,
            MetaKey::Tablet(TabletId::new(3)),
            MetaKey::Table(TableId::new(4)),
            MetaKey::Dropped(TableId::new(5)),
            MetaKey::Applied,
            MetaKey::LastTime,
            MetaKey::GcTime,
            MetaKey::Floors(TableId::new(6)),
            MetaKey::Leapt,
            MetaKey::Session(SessionId::new(7)),
            MetaKey::Operation(OperationId::new(9)),
            MetaKey::Departure(TabletId::new(10)),
            MetaKey::Arrival(TabletId::new(11)),
            MetaKey::TicketFloor,
            MetaKey::Placement(TableId::new(12)),
            MetaKey::Token(Bytes::from_static(b"row\0\x01\x01token")),
        ];
        for key in keys {
            assert_eq!(MetaKey::decode(&key.encode()), Some(key));
        }
        assert_eq!(MetaKey::decode(b"sessions/short"), None);
        assert_eq!(MetaKey::decode(b"weather"), None);
    }

    #[test]
    fn values_read_back() {
        let id = LogId { term: Term::new(3), index: LogIndex::new(1 << 40) };
        assert_eq!(decode_log_id(&encode_log_id(id)).unwrap(), id);
        let time = Micros::new(-5);
        assert_eq!(decode_micros(&encode_micros(time)).unwrap(), time);
        let floors = BTreeMap::from([(FamilyId::new(1), Micros::new(10)), (FamilyId::new(900), Micros::new(20))]);
        assert_eq!(decode_floors(&encode_floors(&floors)).unwrap(), floors);
        assert!(decode_floors(&encode_floors(&BTreeMap::new())).unwrap().is_empty());
    }

    #[test]
    fn damaged_values_are_refused() {
        assert!(decode_log_id(&[]).is_err());
        assert!(decode_log_id(&[1, 2, 3]).is_err());
        assert!(decode_log_id(&[2; 17]).is_err(), "a version that no release wrote");
        assert!(decode_micros(&[1; 10]).is_err(), "one byte too many");
        assert!(decode_floors(&[1, 0, 0, 0, 1, 9]).is_err(), "a family without its floor");
        assert!(decode_floors(&[1, 0, 0]).is_err());
    }

    fn value_examples() -> Vec<Vec<u8>> {
        let id = LogId { term: Term::new(3), index: LogIndex::new(9) };
        let floors = BTreeMap::from([(FamilyId::new(1), Micros::new(10)), (FamilyId::new(900), Micros::new(20))]);
        let keys = [MetaKey::Session(SessionId::new(7)), MetaKey::Floors(TableId::new(6)), MetaKey::LastTime];
        let values = [encode_log_id(id), encode_micros(Micros::new(-5)), encode_floors(&floors)];
        keys.iter().map(MetaKey::encode).chain(values.map(|value| value.to_vec())).collect()
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(10_000))]

        #[test]
        fn keys_and_values_are_refused_or_round_trip(bytes in crate::inputs::inputs(value_examples())) {
            if let Some(key) = MetaKey::decode(&bytes) {
                assert_eq!(key.encode(), bytes);
            }
            if let Ok(id) = decode_log_id(&bytes) {
                assert_eq!(encode_log_id(id), bytes);
            }
            if let Ok(time) = decode_micros(&bytes) {
                assert_eq!(encode_micros(time), bytes);
            }
            if let Ok(floors) = decode_floors(&bytes) {
                assert_eq!(decode_floors(&encode_floors(&floors)).unwrap(), floors);
            }
        }
    }
}

//! The state of a group as read from its meta keys, one key after another. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::id::{FamilyId, LogId, LogIndex, OperationId, SessionId, TableId, TabletId};
use ebla_model::idempotency::TokenTable;
use ebla_model::metadata::GroupDescriptor;
use ebla_model::schema::TableSchema;
use ebla_model::session::SessionWindow;
use ebla_model::tablet_move::{Arrival, Departure, DroppedRows};
use ebla_model::time::Micros;
use ebla_proto::{convert, record};
use ebla_storage::store::layout::{self, MetaKey};

use super::{DirtyKeys, GroupState, TableState};

/// Collects a state from its meta keys.
#[derive(Default)]
pub(super) struct StateLoader {
    applied: Option<LogId>,
    group: Option<GroupDescriptor>,
    tablets: Vec<record::TabletRecord>,
    schemas: BTreeMap<TableId, TableSchema>,
    floors: BTreeMap<TableId, BTreeMap<FamilyId, Micros>>,
    dropped: BTreeSet<TableId>,
    time: Micros,
    gc_time: Micros,
    sessions: BTreeMap<SessionId, SessionWindow>,
    jumped: Duration,
    tokens: TokenTable,
    operations: BTreeMap<OperationId, Option<DroppedRows>>,
    departures: BTreeMap<TabletId, Departure>,
    arrivals: BTreeMap<TabletId, Arrival>,
    ticket_floor: LogIndex,
}

impl StateLoader {
    /// Takes over one key.
    pub(super) fn load_key(&mut self, key: &[u8], value: &Bytes) -> Result<(), Error> {
        let unknown = || Error::damaged(format!("unknown meta key {:?}", Bytes::copy_from_slice(key)));
        match MetaKey::decode(key).ok_or_else(unknown)? {
            MetaKey::Applied => self.applied = Some(layout::decode_log_id(value)?),
            MetaKey::LastTime => self.time = layout::decode_micros(value)?,
            MetaKey::GcTime => self.gc_time = layout::decode_micros(value)?,
            MetaKey::Leapt => self.jumped = layout::decode_micros(value)?.since(Micros::ZERO),
            MetaKey::Group => self.group = Some(convert::group_from_bytes(value.clone())?),
            MetaKey::Tablet(id) => {
                let tablet: record::TabletRecord = convert::decode_record(value.clone())?;
                check_key(id, TabletId::new(tablet.tablet))?;
                self.tablets.push(tablet);
            }
            MetaKey::Table(id) => {
                let schema = convert::schema_from_bytes(value.clone())?;
                check_key(id, schema.table)?;
                self.schemas.insert(id, schema);
            }
            MetaKey::Floors(id) => _ = self.floors.insert(id, layout::decode_floors(value)?),
            MetaKey::Dropped(id) => _ = self.dropped.insert(id),
            MetaKey::Session(id) => {
                let session = convert::decode_record::<record::Session>(value.clone())?;
                self.sessions.insert(id, convert::session_from_proto(&session)?);
            }
            MetaKey::Token(key) => self.tokens.restore(key, convert::token_record_from_bytes(value.clone())?),
            MetaKey::Operation(id) => {
                let dropped = (!value.is_empty()).then(|| convert::tablet_move::dropped_rows_from_bytes(value.clone()));
                self.operations.insert(id, dropped.transpose()?);
            }
            MetaKey::Departure(id) => {
                let departure = convert::tablet_move::departure_from_bytes(value.clone())?;
                check_key(id, departure.tablet.tablet)?;
                self.departures.insert(id, departure);
            }
            MetaKey::Arrival(id) => {
                _ = self.arrivals.insert(id, convert::tablet_move::arrival_from_bytes(value.clone())?);
            }
            // Local to the store, which has read it.
            MetaKey::Placement(_) => {}
            MetaKey::TicketFloor => self.ticket_floor = layout::decode_log_id(value)?.index,
        }
        Ok(())
    }

    /// The state, if no key is missing.
    pub(super) fn finish(mut self) -> Result<GroupState, Error> {
        let missing = |what: &str| Error::damaged(format!("read group state: {what} is missing"));
        let descriptor = self.group.ok_or_else(|| missing("group"))?;
        let mut tables = BTreeMap::new();
        for (id, schema) in self.schemas {
            let floors = self.floors.remove(&id).unwrap_or_default();
            tables.insert(id, TableState { schema: Arc::new(schema), floors });
        }
        let mut tablets = BTreeMap::new();
        for record in self.tablets {
            let tablet = convert::tablet_record_from_proto(&record, &descriptor)?;
            if !tables.contains_key(&tablet.table) {
                return Err(missing("the schema of a tablet"));
            }
            tablets.insert(tablet.tablet, tablet);
        }
        Ok(GroupState {
            descriptor,
            tablets,
            tables,
            dropped: self.dropped,
            applied: self.applied.ok_or_else(|| missing("applied"))?,
            time: self.time,
            gc_time: self.gc_time,
            sessions: self.sessions,
            jumped: self.jumped,
            tokens: self.tokens,
            operations: self.operations,
            departures: self.departures,
            arrivals: self.arrivals,
            ticket_floor: self.ticket_floor,
            floors_raised_at: Micros::ZERO,
            dirty: DirtyKeys::default(),
        })
    }
}

/// A value must be stored under the id that it names.
fn check_key<I: PartialEq + Display>(key: I, value: I) -> Result<(), Error> {
    if key == value { Ok(()) } else { Err(Error::damaged(format!("the value of {value} is stored under {key}"))) }
}

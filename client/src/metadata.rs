//! Rows of METADATA: their decoding, and the filter of a lookup.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::error::Error;
use ebla_model::filter::Filter;
use ebla_model::id::{Generation, ServerId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{DESCRIPTOR_QUALIFIER, EVENTS_FAMILY, LEADER_QUALIFIER, LOCATION_FAMILY, TabletDescriptor};
use ebla_model::time::Micros;
use ebla_proto::{convert, record};
use prost::Message;

use crate::locate::LeaderHint;
use crate::locate::messages::TabletLocation;
use crate::read::whole_rows;
use crate::wire;

/// A row of METADATA.
#[derive(Clone, Debug)]
pub struct MetadataRow {
    /// The row's key.
    pub key: RowKey,
    /// The tablet.
    pub descriptor: TabletDescriptor,
    /// The leader that was last recorded.
    pub leader: Option<LeaderHint>,
}

/// What METADATA knows of the history of a tablet: of its row, which has listed other tablets before.
#[derive(Clone, Debug)]
pub struct TabletEvents {
    /// The tablet that the row lists.
    pub descriptor: TabletDescriptor,
    /// The last 64 events, in the order of their times.
    pub events: Vec<TabletEvent>,
}

/// An event of a tablet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TabletEvent {
    /// When it was recorded.
    pub time: Micros,
    /// What has happened: a name of `ebla_model::tablet_event`.
    pub what: String,
    /// Why: a name of `ebla_model::tablet_event`.
    pub cause: String,
    /// More about it.
    pub detail: String,
    /// The server that has recorded it; `None`: the master.
    pub server: Option<ServerId>,
    /// The tablet.
    pub tablet: TabletId,
    /// Its generation.
    pub generation: Generation,
}

/// The value of a column in a row.
fn value<'a>(row: &'a Row, qualifier: &[u8]) -> Option<&'a Bytes> {
    let is_column = |family: &str, of_cell: &[u8]| family == LOCATION_FAMILY && of_cell == qualifier;
    row.cells.iter().find(|cell| is_column(cell.family.as_str(), &cell.qualifier)).map(|cell| &cell.value)
}

/// Decodes a row; `None` for a row that has no descriptor, only events.
fn decode_row(row: &Row) -> Result<Option<MetadataRow>, Error> {
    let Some(descriptor) = value(row, DESCRIPTOR_QUALIFIER) else { return Ok(None) };
    let leader = value(row, LEADER_QUALIFIER).and_then(|leader| record::LeaderHint::decode(leader.clone()).ok());
    Ok(Some(MetadataRow {
        key: row.key.clone(),
        descriptor: convert::descriptor_from_bytes(descriptor.clone())?,
        leader: leader.as_ref().map(wire::leader_hint),
    }))
}

/// Decodes the events of a row; `None` for a row that has no descriptor.
fn decode_row_events(row: &Row) -> Result<Option<TabletEvents>, Error> {
    let Some(MetadataRow { descriptor, .. }) = decode_row(row)? else { return Ok(None) };
    let cells = row.cells.iter().filter(|cell| cell.family.as_str() == EVENTS_FAMILY);
    // An event that cannot be decoded only informs: it is left out.
    let decoded =
        cells.filter_map(|cell| Some((cell.timestamp, record::TabletEvent::decode(cell.value.clone()).ok()?)));
    let event = |(time, event): (Micros, record::TabletEvent)| TabletEvent {
        time,
        what: event.what,
        cause: event.cause,
        detail: event.detail,
        server: (event.server > 0).then(|| ServerId::new(event.server)),
        tablet: TabletId::new(event.tablet),
        generation: Generation::new(event.generation),
    };
    let mut events: Vec<TabletEvent> = decoded.map(event).collect();
    events.sort_by_key(|event| (event.time, event.generation));
    Ok(Some(TabletEvents { descriptor, events }))
}

/// The events in a response of METADATA.
pub(crate) fn decode_events(response: Bytes) -> Result<Vec<TabletEvents>, Error> {
    whole_rows(response)?.iter().filter_map(|row| decode_row_events(row).transpose()).collect()
}

/// The rows in a response of METADATA.
pub(crate) fn decode_rows(response: Bytes) -> Result<Vec<MetadataRow>, Error> {
    whole_rows(response)?.iter().filter_map(|row| decode_row(row).transpose()).collect()
}

/// The tablet locations in a response of METADATA, for the resolver.
pub(crate) fn decode_locations(response: Bytes) -> Result<Vec<TabletLocation>, Error> {
    let location = |row: MetadataRow| TabletLocation { descriptor: Arc::new(row.descriptor), leader: row.leader };
    Ok(decode_rows(response)?.into_iter().map(location).collect())
}

/// The filter of a lookup: the newest descriptor and leader.
pub(crate) fn location_filter() -> Bytes {
    static FILTER: LazyLock<Bytes> = LazyLock::new(|| {
        let family = Filter::FamilyNameRegex(Bytes::from_static(LOCATION_FAMILY.as_bytes()));
        convert::filter_to_bytes(&Filter::Chain(vec![family, Filter::CellsPerColumnLimit(1)]))
    });
    FILTER.clone()
}

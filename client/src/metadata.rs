//! Rows of METADATA: their decoding, and the filter of a lookup.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::error::Error;
use ebla_model::filter::Filter;
use ebla_model::id::{Generation, ServerId, TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::{
    DESCRIPTOR_QUALIFIER, EVENTS_FAMILY, LEADER_QUALIFIER, LOCATION_FAMILY, TabletDescriptor, obsolete_row_keys,
};
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

/// Rows of METADATA, and the keys of those that cannot be decoded.
#[derive(Clone, Debug, Default)]
pub struct ReadableRows {
    /// The rows.
    pub rows: Vec<MetadataRow>,
    /// The keys of rows whose descriptor cannot be decoded or belongs to another key.
    pub damaged: Vec<RowKey>,
}

impl ReadableRows {
    /// Adds the rows in a response of METADATA.
    pub(crate) fn add(&mut self, response: Bytes) -> Result<(), Error> {
        for row in whole_rows(response)? {
            match decode_row(&row) {
                Ok(Some(decoded)) if decoded.descriptor.row_key() == decoded.key => self.rows.push(decoded),
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => self.damaged.push(row.key),
            }
        }
        Ok(())
    }
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

/// A tablet of METADATA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataTablet {
    /// The tablet.
    pub descriptor: TabletDescriptor,
    /// The leader that was last recorded.
    pub leader: Option<LeaderHint>,
    /// How many tablets it lists.
    pub rows: u64,
    /// Its approximate size in bytes; `None` when it has changed between the reads.
    pub size_bytes: Option<u64>,
}

/// METADATA's own tablets. `rows`: all of METADATA; `samples`: the end key of each tablet and the bytes up to it, as of `Cluster::sample`.
pub(crate) fn metadata_tablets(rows: &[MetadataRow], samples: &[(RowKey, u64)]) -> Vec<MetadataTablet> {
    // A row that a merge has left behind overlaps that of the merged tablet.
    let obsolete = obsolete_row_keys(rows.iter().map(|row| &row.descriptor));
    let listed: Vec<&MetadataRow> = rows.iter().filter(|row| !obsolete.contains(&row.key)).collect();
    let own = listed.iter().filter(|row| row.descriptor.table == TableId::METADATA);
    own.map(|row| {
        let range = &row.descriptor.range;
        let before = |end: &RowKey| samples.iter().find(|(known, _bytes)| known == end).map(|(_end, bytes)| *bytes);
        let first = if range.start().is_empty() { Some(0) } else { before(range.start()) };
        let last = before(range.end().unwrap_or(&RowKey::EMPTY));
        let bytes = first.zip(last).map(|(first, last)| last.saturating_sub(first));
        MetadataTablet {
            descriptor: row.descriptor.clone(),
            leader: row.leader,
            rows: listed.iter().filter(|row| range.contains(row.key.as_bytes())).count() as u64,
            size_bytes: bytes,
        }
    })
    .collect()
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

/// The tablet locations in a response of METADATA, for the resolver. A row that cannot be decoded is left out: the other tablets can be found.
pub(crate) fn decode_locations(response: Bytes) -> Result<Vec<TabletLocation>, Error> {
    let mut read = ReadableRows::default();
    read.add(response)?;
    let location = |row: MetadataRow| TabletLocation { descriptor: Arc::new(row.descriptor), leader: row.leader };
    Ok(read.rows.into_iter().map(location).collect())
}

/// The filter of a lookup: the newest descriptor and leader.
pub(crate) fn location_filter() -> Bytes {
    static FILTER: LazyLock<Bytes> = LazyLock::new(|| {
        let family = Filter::FamilyNameRegex(Bytes::from_static(LOCATION_FAMILY.as_bytes()));
        convert::filter_to_bytes(&Filter::Chain(vec![family, Filter::CellsPerColumnLimit(1)]))
    });
    FILTER.clone()
}

#[cfg(test)]
mod tests {
    use ebla_model::key::KeyRange;
    use ebla_model::metadata::{GroupDescriptor, first_tablets};

    use super::*;

    #[test]
    fn the_tablets_of_metadata_have_their_rows_and_bytes() {
        let servers = [ServerId::new(1)];
        let table = TableId::new(5);
        let [root, rest] = first_tablets(&servers);
        let user = |tablet: u64, range| {
            let tablet = TabletId::new(tablet);
            GroupDescriptor::initial(ebla_model::id::GroupId::new(7), &servers).new_tablet(table, tablet, range)
        };
        let low = user(10, KeyRange::new(RowKey::EMPTY, Some(RowKey::new("m"))).unwrap());
        let high = user(11, KeyRange::new(RowKey::new("m"), None).unwrap());
        let at = low.row_key().successor();
        let (left, right) = rest.split(&at, TabletId::new(3)).unwrap();
        let row = |descriptor: &TabletDescriptor| MetadataRow {
            key: descriptor.row_key(),
            descriptor: descriptor.clone(),
            leader: None,
        };
        let rows: Vec<MetadataRow> = [&root, &left, &right, &low, &high].into_iter().map(row).collect();
        let samples = [(root.range.end().unwrap().clone(), 300), (at.clone(), 350)];
        let found = metadata_tablets(&rows, &samples);
        let found: Vec<_> = found.iter().map(|one| (one.descriptor.tablet.get(), one.rows, one.size_bytes)).collect();
        // The last tablet was split between the two reads.
        assert_eq!(found, [(1, 3, Some(300)), (2, 1, Some(50)), (3, 1, None)]);
        let all = [samples.to_vec(), vec![(RowKey::EMPTY, 400)]].concat();
        assert_eq!(metadata_tablets(&rows, &all).last().unwrap().size_bytes, Some(50));
    }
}

//! Rows of METADATA: their decoding, and the filter of a lookup.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::error::Error;
use ebla_model::filter::Filter;
use ebla_model::key::RowKey;
use ebla_model::metadata::{DESCRIPTOR_QUALIFIER, LEADER_QUALIFIER, LOCATION_FAMILY, TabletDescriptor};
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

//! METADATA's rows, for those who keep them: the master, and the leader of a tablet that split.
//!
//! A row is written after the fact and by several writers, so each change is a compare-and-set: a descriptor replaces
//! another only when its (generation, membership log id) is higher. A writer that comes late finds itself superseded,
//! which is no error. Descriptor and leader are written at timestamp zero, so that there is one cell of each.

use std::sync::Arc;
use std::sync::LazyLock;

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ServerId, TableId};
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::{
    self, DESCRIPTOR_QUALIFIER, EVENTS_FAMILY, EVENTS_KEPT, LEADER_QUALIFIER, LOCATION_FAMILY, TabletDescriptor,
};
use ebla_proto::data::{self, mutation, row_filter, value_range};
use ebla_proto::{convert, record};
use futures::TryStreamExt;
use futures::future::BoxFuture;
use prost::Message;

use crate::cluster::{Check, Cluster};
use crate::deadline::Deadline;
use crate::locate::LeaderHint;
use crate::locate::resolver::Listed;
use crate::read::whole_rows;
use crate::scan::Read;
use crate::wire;

/// Times a writer begins again because the row changed under it.
const CONFLICTS_MAX: usize = 16;

/// METADATA through a cluster handle. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metadata {
    cluster: Cluster,
}

/// A row of METADATA.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The row's key.
    pub key: RowKey,
    /// The tablet.
    pub descriptor: TabletDescriptor,
    /// Who seemed to lead it when somebody last noted it.
    pub leader: Option<LeaderHint>,
}

/// What became of a guarded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// It was made, or had been made before.
    Done,
    /// The row holds something newer, which stays.
    Superseded(TabletDescriptor),
}

/// What is noted together with a descriptor.
#[derive(Clone, Debug, Default)]
pub struct Note {
    /// Who leads the tablet.
    pub leader: Option<LeaderHint>,
    /// What happened, in a word or two such as `split`, and at which server.
    pub event: Option<(String, ServerId)>,
}

/// A row as a writer sees it.
struct Seen {
    /// The descriptor's bytes, to compare with.
    value: Option<Bytes>,
    descriptor: Option<TabletDescriptor>,
    /// The place after the newest event.
    event_slot: u64,
}

impl Metadata {
    pub(crate) const fn new(cluster: Cluster) -> Self {
        Self { cluster }
    }

    /// All tablets of a table as METADATA lists them, in key order.
    ///
    /// # Errors
    /// As [`Self::read_range`].
    pub fn read_table(&self, table: TableId, deadline: Deadline) -> BoxFuture<'_, Result<Vec<Entry>, Error>> {
        Box::pin(async move { self.read_range(metadata::table_range(table), deadline).await })
    }

    /// The rows of METADATA in a range of its keys. `KeyRange::all()` is every tablet of the cluster.
    ///
    /// # Errors
    /// `DataDamaged` when a row is no tablet's, `Deadline` or `Unavailable` when METADATA could not be read in time.
    pub fn read_range(&self, rows: KeyRange, deadline: Deadline) -> BoxFuture<'_, Result<Vec<Entry>, Error>> {
        Box::pin(async move {
            let read =
                Read { filter: Some(location_filter()), ..Read::new(TableId::METADATA, RowSet::from_ranges([rows])) };
            let mut parts = self.cluster.read_rows(read, deadline);
            let mut entries = Vec::new();
            while let Some(part) = parts.try_next().await? {
                for row in whole_rows(part.response)? {
                    entries.extend(entry(&row)?);
                }
            }
            Ok(entries)
        })
    }

    /// Writes a tablet's row, unless a newer one stands there.
    ///
    /// # Errors
    /// `Conflict` when others kept changing the row; else as [`Cluster::check`]. Safe to repeat.
    pub fn put_descriptor<'a>(
        &'a self,
        descriptor: &'a TabletDescriptor,
        note: &'a Note,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Guarded, Error>> {
        Box::pin(async move {
            let row = descriptor.row_key();
            let value = convert::descriptor_to_bytes(descriptor);
            for _attempt in 0..CONFLICTS_MAX {
                let seen = self.see(&row, deadline).await?;
                if seen.value.as_ref() == Some(&value) && note.event.is_none() && note.leader.is_none() {
                    return Ok(Guarded::Done);
                }
                if let Some(newer) = seen.descriptor.clone().filter(|stored| is_newer(stored, descriptor)) {
                    return Ok(Guarded::Superseded(newer));
                }
                let mutations = put_mutations(descriptor, &value, note, seen.event_slot);
                if self.swap(&row, &seen, mutations, deadline).await? {
                    return Ok(Guarded::Done);
                }
            }
            Err(Error::new(Reason::Conflict, "the METADATA row keeps changing"))
        })
    }

    /// Writes both halves of a split: the new row before the old one is overwritten, so that no key is ever unlisted.
    ///
    /// # Errors
    /// As [`Self::put_descriptor`]. Safe to repeat.
    pub fn put_split<'a>(
        &'a self,
        left: &'a TabletDescriptor,
        right: &'a TabletDescriptor,
        note: &'a Note,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.put_descriptor(left, note, deadline).await?;
            self.put_descriptor(right, note, deadline).await?;
            Ok(())
        })
    }

    /// Notes who leads a tablet, if METADATA lists it.
    ///
    /// # Errors
    /// As [`Cluster::check`].
    pub fn put_leader<'a>(
        &'a self,
        descriptor: &'a TabletDescriptor,
        leader: LeaderHint,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let check = Check {
                row: descriptor.row_key(),
                predicate: Some(encode(&descriptor_column())),
                then: vec![set(LOCATION_FAMILY, LEADER_QUALIFIER, 0, leader_value(leader))],
                otherwise: Vec::new(),
                token: None,
            };
            self.cluster.check(TableId::METADATA, check, deadline).await.map(drop)
        })
    }

    /// Removes a tablet's row, unless a newer tablet stands there.
    ///
    /// # Errors
    /// As [`Self::put_descriptor`]. Safe to repeat.
    pub fn delete<'a>(
        &'a self,
        descriptor: &'a TabletDescriptor,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Guarded, Error>> {
        Box::pin(async move {
            let row = descriptor.row_key();
            for _attempt in 0..CONFLICTS_MAX {
                let seen = self.see(&row, deadline).await?;
                match seen.descriptor.clone() {
                    None if seen.value.is_none() => return Ok(Guarded::Done),
                    Some(stored) if is_newer(&stored, descriptor) => return Ok(Guarded::Superseded(stored)),
                    _present => {}
                }
                let delete = mutation::Mutation::DeleteFromRow(mutation::DeleteFromRow {});
                if self.swap(&row, &seen, vec![mutated(delete)], deadline).await? {
                    return Ok(Guarded::Done);
                }
            }
            Err(Error::new(Reason::Conflict, "the METADATA row keeps changing"))
        })
    }

    async fn see(&self, row: &RowKey, deadline: Deadline) -> Result<Seen, Error> {
        let read = Read::new(TableId::METADATA, RowSet::from_ranges([KeyRange::single(row.clone())]));
        let mut parts = self.cluster.read_rows(read, deadline);
        let mut found = None;
        while let Some(part) = parts.try_next().await? {
            found = whole_rows(part.response)?.pop().or(found);
        }
        let Some(row) = found else { return Ok(Seen { value: None, descriptor: None, event_slot: 0 }) };
        let value = value(&row, LOCATION_FAMILY, DESCRIPTOR_QUALIFIER).cloned();
        let descriptor = value.as_ref().map(parse_descriptor).transpose()?;
        Ok(Seen { value, descriptor, event_slot: next_event_slot(&row) })
    }

    /// Applies `mutations` if the row's descriptor is still the one that was seen.
    async fn swap(&self, row: &RowKey, seen: &Seen, mutations: Vec<Bytes>, deadline: Deadline) -> Result<bool, Error> {
        let check = match &seen.value {
            Some(value) => Check {
                row: row.clone(),
                predicate: Some(encode(&chain(vec![descriptor_column(), exactly(value)]))),
                then: mutations,
                otherwise: Vec::new(),
                token: None,
            },
            None => Check {
                row: row.clone(),
                predicate: Some(encode(&descriptor_column())),
                then: Vec::new(),
                otherwise: mutations,
                token: None,
            },
        };
        let matched = self.cluster.check(TableId::METADATA, check, deadline).await?;
        Ok(matched == seen.value.is_some())
    }
}

/// Whether what stands in a row is newer than what is to be written. Rows are shared by tablets that follow each other
/// (the right half of a split takes its parent's row), and of those the generation decides.
fn is_newer(stored: &TabletDescriptor, written: &TabletDescriptor) -> bool {
    if stored.tablet == written.tablet {
        stored.fence() > written.fence()
    } else {
        stored.generation > written.generation
    }
}

fn put_mutations(descriptor: &TabletDescriptor, value: &Bytes, note: &Note, event_slot: u64) -> Vec<Bytes> {
    let mut mutations = vec![set(LOCATION_FAMILY, DESCRIPTOR_QUALIFIER, 0, value.clone())];
    if let Some(leader) = note.leader {
        mutations.push(set(LOCATION_FAMILY, LEADER_QUALIFIER, 0, leader_value(leader)));
    }
    if let Some((what, server)) = &note.event {
        let event = record::TabletEvent {
            version: convert::VERSION,
            what: what.clone(),
            server: server.get(),
            generation: descriptor.generation.get(),
        };
        let qualifier = (event_slot % EVENTS_KEPT).to_string();
        // One cell for each place: what stood there is forgotten, versions and all.
        mutations.push(delete_column(EVENTS_FAMILY, qualifier.as_bytes()));
        mutations.push(set(EVENTS_FAMILY, qualifier.as_bytes(), -1, event.encode_to_vec().into()));
    }
    mutations
}

/// The place after that of the newest event.
fn next_event_slot(row: &Row) -> u64 {
    let events = row.cells.iter().filter(|cell| cell.family.as_str() == EVENTS_FAMILY);
    let newest = events.filter_map(|cell| Some((cell.timestamp, slot(&cell.qualifier)?))).max();
    newest.map_or(0, |(_time, slot)| slot + 1)
}

fn slot(qualifier: &[u8]) -> Option<u64> {
    std::str::from_utf8(qualifier).ok()?.parse::<u64>().ok().filter(|slot| *slot < EVENTS_KEPT)
}

fn leader_value(leader: LeaderHint) -> Bytes {
    record::LeaderHint { server: leader.server.get(), term: leader.term }.encode_to_vec().into()
}

fn value<'a>(row: &'a Row, family: &str, qualifier: &[u8]) -> Option<&'a Bytes> {
    let cell = row.cells.iter().find(|cell| cell.family.as_str() == family && cell.qualifier == qualifier)?;
    Some(&cell.value)
}

fn parse_descriptor(value: &Bytes) -> Result<TabletDescriptor, Error> {
    convert::descriptor_from_bytes(value.clone())
}

/// The tablet of a row; `None` for a row that has no descriptor, only events.
fn entry(row: &Row) -> Result<Option<Entry>, Error> {
    let Some(stored) = value(row, LOCATION_FAMILY, DESCRIPTOR_QUALIFIER) else { return Ok(None) };
    let leader = value(row, LOCATION_FAMILY, LEADER_QUALIFIER);
    let leader = leader.and_then(|leader| record::LeaderHint::decode(leader.clone()).ok());
    Ok(Some(Entry {
        key: row.key.clone(),
        descriptor: parse_descriptor(stored)?,
        leader: leader.as_ref().map(wire::leader_hint),
    }))
}

/// The tablets in an answer of METADATA, for the resolver.
pub(crate) fn listed(response: Bytes) -> Result<Vec<Listed>, Error> {
    let mut listed = Vec::new();
    for row in whole_rows(response)? {
        let entry = entry(&row)?;
        listed.extend(entry.map(|entry| Listed { descriptor: Arc::new(entry.descriptor), leader: entry.leader }));
    }
    Ok(listed)
}

/// The filter that a lookup reads with: descriptor and leader, the newest of each.
pub(crate) fn location_filter() -> Bytes {
    static FILTER: LazyLock<Bytes> = LazyLock::new(|| {
        let family = row_filter::Filter::FamilyNameRegexFilter(LOCATION_FAMILY.to_owned());
        encode(&chain(vec![filter(family), filter(row_filter::Filter::CellsPerColumnLimitFilter(1))]))
    });
    FILTER.clone()
}

fn descriptor_column() -> data::RowFilter {
    chain(vec![
        filter(row_filter::Filter::FamilyNameRegexFilter(LOCATION_FAMILY.to_owned())),
        filter(row_filter::Filter::ColumnQualifierRegexFilter(Bytes::from_static(DESCRIPTOR_QUALIFIER))),
    ])
}

fn exactly(value: &Bytes) -> data::RowFilter {
    filter(row_filter::Filter::ValueRangeFilter(data::ValueRange {
        start_value: Some(value_range::StartValue::StartValueClosed(value.clone())),
        end_value: Some(value_range::EndValue::EndValueClosed(value.clone())),
    }))
}

const fn filter(filter: row_filter::Filter) -> data::RowFilter {
    data::RowFilter { filter: Some(filter) }
}

const fn chain(filters: Vec<data::RowFilter>) -> data::RowFilter {
    filter(row_filter::Filter::Chain(row_filter::Chain { filters }))
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn mutated(mutation: mutation::Mutation) -> Bytes {
    encode(&data::Mutation { mutation: Some(mutation), ..Default::default() })
}

fn set(family: &str, qualifier: &[u8], timestamp_micros: i64, value: Bytes) -> Bytes {
    mutated(mutation::Mutation::SetCell(mutation::SetCell {
        family_name: family.to_owned(),
        column_qualifier: Bytes::copy_from_slice(qualifier),
        timestamp_micros,
        value,
    }))
}

fn delete_column(family: &str, qualifier: &[u8]) -> Bytes {
    mutated(mutation::Mutation::DeleteFromColumn(mutation::DeleteFromColumn {
        family_name: family.to_owned(),
        column_qualifier: Bytes::copy_from_slice(qualifier),
        time_range: None,
    }))
}

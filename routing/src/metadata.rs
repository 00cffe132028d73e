//! Writes and reads of METADATA rows. The writers are the master and the leaders of tablets.
//!
//! A row is written after the change that it describes, and by several writers, so each write is a compare-and-set: a
//! descriptor replaces another only if its (generation, membership log id) is higher. A late writer is superseded,
//! which is not an error. Descriptor and leader have timestamp zero, so that there is one cell of each.

use std::ops::Bound;

use bytes::Bytes;
use ebla_client::locate::LeaderHint;
use ebla_client::locate::resolver::PREFETCH_ROWS;
use ebla_client::metadata::{MetadataRow, ReadableRows};
use ebla_client::read::whole_rows;
use ebla_client::{Check, Cluster, Deadline, Read};
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::filter::Filter;
use ebla_model::id::{ServerId, TableId};
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::limit::RowLimit;
use ebla_model::metadata::{
    self, DESCRIPTOR_QUALIFIER, EVENTS_FAMILY, EVENTS_KEPT, LEADER_QUALIFIER, LOCATION_FAMILY, RowUpdate,
    TabletDescriptor,
};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::tablet_event::{NewTabletEvent, TabletEventKind};
use ebla_model::time::Micros;
use ebla_proto::{convert, record};
use futures::TryStreamExt;
use futures::future::BoxFuture;
use prost::Message;

/// The maximum number of compare-and-set attempts of one write.
const CONFLICTS_MAX: usize = 16;

/// The timestamp of descriptor and leader.
const ZERO: WriteTime = WriteTime::At(Micros::new(0));

/// METADATA through a cluster handle. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metadata {
    cluster: Cluster,
}

/// The outcome of a compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasOutcome {
    /// The write is applied, now or by an earlier attempt.
    Applied,
    /// The row has a newer descriptor, which stays.
    Superseded(TabletDescriptor),
}

/// The outcome of writing the row of a tablet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The row is written, or a newer one is there, and no older row is left in the tablet's range.
    Written,
    /// Nothing is written: the tablet before this one must be listed first. Repeat the call later.
    Waiting,
}

/// What a write records besides the descriptor.
#[derive(Clone, Debug, Default)]
pub struct Annotations {
    /// The leader of the tablet.
    pub leader: Option<LeaderHint>,
    /// Events of the tablet, oldest first.
    pub events: Vec<NewTabletEvent>,
    /// The server that records them; `None`: the master does.
    pub server: Option<ServerId>,
}

/// The state of a row before a write.
struct StoredRow {
    /// The encoded descriptor, for the comparison.
    value: Option<Bytes>,
    descriptor: Option<TabletDescriptor>,
    /// The slot after the newest event.
    event_slot: u64,
}

impl Metadata {
    /// METADATA of this cluster.
    pub const fn new(cluster: Cluster) -> Self {
        Self { cluster }
    }

    /// All tablets of a table that METADATA lists, in key order.
    ///
    /// # Errors
    /// As [`Self::read_range`].
    pub fn read_table(&self, table: TableId, deadline: Deadline) -> BoxFuture<'_, Result<Vec<MetadataRow>, Error>> {
        self.read_range(metadata::table_range(table), deadline)
    }

    /// The rows of METADATA in a key range. `KeyRange::all()` lists every tablet of the cluster.
    ///
    /// # Errors
    /// As [`Cluster::read_metadata`].
    pub fn read_range(&self, rows: KeyRange, deadline: Deadline) -> BoxFuture<'_, Result<Vec<MetadataRow>, Error>> {
        self.cluster.read_metadata(rows, deadline)
    }

    /// As [`Self::read_range`]; rows that cannot be decoded are no error.
    ///
    /// # Errors
    /// As [`Cluster::read_readable_metadata`].
    pub fn read_readable(&self, rows: KeyRange, deadline: Deadline) -> BoxFuture<'_, Result<ReadableRows, Error>> {
        self.cluster.read_readable_metadata(rows, deadline)
    }

    /// Deletes a row whose descriptor cannot be decoded or belongs to another key. Another row stays.
    ///
    /// # Errors
    /// `Conflict` when other writers keep changing the row; otherwise as [`Cluster::check`]. Safe to repeat.
    pub fn delete_damaged<'a>(&'a self, row: &'a RowKey, deadline: Deadline) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for _attempt in 0..CONFLICTS_MAX {
                let Some(found) = self.read_cells(row, deadline).await? else { return Ok(()) };
                let Some(value) = descriptor_value(&found).cloned() else { return Ok(()) };
                if convert::descriptor_from_bytes(value.clone()).is_ok_and(|decoded| decoded.row_key() == *row) {
                    return Ok(());
                }
                let stored = StoredRow { value: Some(value), descriptor: None, event_slot: 0 };
                let delete = vec![convert::mutation_to_bytes(&Mutation::DeleteRow)];
                if self.compare_and_set(row, &stored, delete, deadline).await? {
                    return Ok(());
                }
            }
            Err(contended())
        })
    }

    /// Replaces a row that describes a state that no tablet has had; without `to` it is deleted. A row with another descriptor than `present` stays.
    ///
    /// # Errors
    /// `Conflict` when other writers keep changing the row; otherwise as [`Cluster::check`]. Safe to repeat.
    pub fn replace_false<'a>(
        &'a self,
        present: &'a TabletDescriptor,
        to: Option<&'a TabletDescriptor>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let row = present.row_key();
            for _attempt in 0..CONFLICTS_MAX {
                let stored = self.read_row(&row, deadline).await?;
                if stored.descriptor.as_ref() != Some(present) {
                    return Ok(());
                }
                let delete = || vec![convert::mutation_to_bytes(&Mutation::DeleteRow)];
                let replace = |to: &TabletDescriptor| {
                    let value = convert::descriptor_to_bytes(to);
                    let mut mutations = put_mutations(to, &value, &Annotations::default(), &stored);
                    // It is that of another tablet or term.
                    mutations.push(delete_column(LOCATION_FAMILY, LEADER_QUALIFIER));
                    mutations
                };
                if self.compare_and_set(&row, &stored, to.map_or_else(delete, replace), deadline).await? {
                    return Ok(());
                }
            }
            Err(contended())
        })
    }

    /// Writes the row of a tablet, unless the row has a newer descriptor.
    ///
    /// # Errors
    /// `Conflict` when other writers keep changing the row; otherwise as [`Cluster::check`]. Safe to repeat.
    pub fn put_descriptor<'a>(
        &'a self,
        descriptor: &'a TabletDescriptor,
        annotations: &'a Annotations,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<CasOutcome, Error>> {
        Box::pin(async move {
            let row = descriptor.row_key();
            for _attempt in 0..CONFLICTS_MAX {
                let stored = self.read_row(&row, deadline).await?;
                if let Some(outcome) = self.try_put(descriptor, &stored, annotations, deadline).await? {
                    return Ok(outcome);
                }
            }
            Err(contended())
        })
    }

    /// One attempt to write the row of a tablet; `None` when the row has changed since `stored` was read.
    async fn try_put(
        &self,
        descriptor: &TabletDescriptor,
        stored: &StoredRow,
        annotations: &Annotations,
        deadline: Deadline,
    ) -> Result<Option<CasOutcome>, Error> {
        let value = convert::descriptor_to_bytes(descriptor);
        if stored.value.as_ref() == Some(&value) && annotations.events.is_empty() && annotations.leader.is_none() {
            return Ok(Some(CasOutcome::Applied));
        }
        if let Some(newer) = stored.descriptor.clone().filter(|stored| is_newer(stored, descriptor)) {
            return Ok(Some(CasOutcome::Superseded(newer)));
        }
        let mutations = put_mutations(descriptor, &value, annotations, stored);
        let is_applied = self.compare_and_set(&descriptor.row_key(), stored, mutations, deadline).await?;
        Ok(is_applied.then_some(CasOutcome::Applied))
    }

    /// Writes the row of a tablet as [`Self::put_descriptor`] does, unless the row of the tablet before it must be written
    /// first, and then removes the rows of older tablets in its range. In this order every key stays listed after a split and
    /// after a merge. The writer is the leader of the tablet, or has just received the descriptor from it.
    ///
    /// # Errors
    /// As [`Self::put_descriptor`]. Safe to repeat.
    pub fn put_tablet<'a>(
        &'a self,
        descriptor: &'a TabletDescriptor,
        annotations: &'a Annotations,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<PutOutcome, Error>> {
        Box::pin(async move {
            let row = descriptor.row_key();
            for _attempt in 0..CONFLICTS_MAX {
                let listed = self.read_listed(descriptor, deadline).await?;
                let RowUpdate::Write(superfluous) = metadata::row_update(descriptor, &listed) else {
                    return Ok(PutOutcome::Waiting);
                };
                let stored = self.read_row(&row, deadline).await?;
                if stored.descriptor.as_ref() != listed.iter().find(|one| one.row_key() == row) {
                    // It has changed since, and with it what must be listed first.
                    continue;
                }
                match self.try_put(descriptor, &stored, annotations, deadline).await? {
                    None => {}
                    // The writer of the newer tablet removes what that replaces.
                    Some(CasOutcome::Superseded(_newer)) => return Ok(PutOutcome::Written),
                    Some(CasOutcome::Applied) => {
                        for old in &superfluous {
                            self.delete(old, deadline).await?;
                        }
                        return Ok(PutOutcome::Written);
                    }
                }
            }
            Err(contended())
        })
    }

    /// The descriptors that [`metadata::row_update`] needs. A lookup does not read more rows after a key either.
    async fn read_listed(&self, of: &TabletDescriptor, deadline: Deadline) -> Result<Vec<TabletDescriptor>, Error> {
        let mut rows = self.read_range(metadata::rows_near(of), deadline).await?;
        let own = of.row_key();
        let is_listed = rows.iter().any(|row| row.key == own && row.descriptor.generation == of.generation);
        if let Some(after) = metadata::rows_after(of).filter(|_after| !is_listed) {
            rows.extend(self.cluster.read_metadata_rows(after, RowLimit::new(PREFETCH_ROWS), deadline).await?);
        }
        Ok(rows.into_iter().map(|row| row.descriptor).collect())
    }

    /// Writes both halves of a split: the new row before the old one is overwritten, so that every key stays listed.
    ///
    /// # Errors
    /// As [`Self::put_descriptor`]. Safe to repeat.
    pub fn put_split<'a>(
        &'a self,
        left: &'a TabletDescriptor,
        right: &'a TabletDescriptor,
        annotations: &'a Annotations,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            self.put_descriptor(left, annotations, deadline).await?;
            self.put_descriptor(right, annotations, deadline).await?;
            Ok(())
        })
    }

    /// Records the leader of a tablet, if METADATA lists the tablet.
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
                predicate: Some(convert::filter_to_bytes(&descriptor_column())),
                then: vec![set(LOCATION_FAMILY, LEADER_QUALIFIER, ZERO, leader_value(leader))],
                otherwise: Vec::new(),
                token: None,
            };
            self.cluster.check(TableId::METADATA, check, deadline).await.map(drop)
        })
    }

    /// Deletes the row of a tablet, unless the row has a newer descriptor.
    ///
    /// # Errors
    /// As [`Self::put_descriptor`]. Safe to repeat.
    pub fn delete<'a>(
        &'a self,
        descriptor: &'a TabletDescriptor,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<CasOutcome, Error>> {
        Box::pin(async move {
            let row = descriptor.row_key();
            for _attempt in 0..CONFLICTS_MAX {
                let stored = self.read_row(&row, deadline).await?;
                match stored.descriptor.clone() {
                    None if stored.value.is_none() => return Ok(CasOutcome::Applied),
                    Some(newer) if is_newer(&newer, descriptor) => return Ok(CasOutcome::Superseded(newer)),
                    _present => {}
                }
                let delete = vec![convert::mutation_to_bytes(&Mutation::DeleteRow)];
                if self.compare_and_set(&row, &stored, delete, deadline).await? {
                    return Ok(CasOutcome::Applied);
                }
            }
            Err(contended())
        })
    }

    async fn read_cells(&self, row: &RowKey, deadline: Deadline) -> Result<Option<Row>, Error> {
        let read = Read::new(TableId::METADATA, RowSet::from_ranges([KeyRange::single(row.clone())]));
        let mut parts = self.cluster.read_rows(read, deadline);
        let mut found = None;
        while let Some(part) = parts.try_next().await? {
            found = whole_rows(part.response)?.pop().or(found);
        }
        Ok(found)
    }

    async fn read_row(&self, row: &RowKey, deadline: Deadline) -> Result<StoredRow, Error> {
        let Some(row) = self.read_cells(row, deadline).await? else {
            return Ok(StoredRow { value: None, descriptor: None, event_slot: 0 });
        };
        let value = descriptor_value(&row).cloned();
        let descriptor = value.clone().map(convert::descriptor_from_bytes).transpose()?;
        Ok(StoredRow { value, descriptor, event_slot: next_event_slot(&row) })
    }

    /// Applies `mutations` if the row's descriptor has not changed since it was read.
    async fn compare_and_set(
        &self,
        row: &RowKey,
        stored: &StoredRow,
        mutations: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<bool, Error> {
        let check = match &stored.value {
            Some(value) => Check {
                row: row.clone(),
                predicate: Some(convert::filter_to_bytes(&Filter::Chain(vec![
                    descriptor_column(),
                    value_equals(value),
                ]))),
                then: mutations,
                otherwise: Vec::new(),
                token: None,
            },
            None => Check {
                row: row.clone(),
                predicate: Some(convert::filter_to_bytes(&descriptor_column())),
                then: Vec::new(),
                otherwise: mutations,
                token: None,
            },
        };
        let matched = self.cluster.check(TableId::METADATA, check, deadline).await?;
        Ok(matched == stored.value.is_some())
    }
}

/// Whether the stored descriptor is newer than the written one. Successive tablets share a row (the right half of a
/// split takes the row of its parent); for them the generation decides.
fn is_newer(stored: &TabletDescriptor, written: &TabletDescriptor) -> bool {
    if stored.tablet == written.tablet {
        stored.fence() > written.fence()
    } else {
        stored.generation > written.generation
    }
}

fn contended() -> Error {
    Error::new(Reason::Conflict, "too much contention on the METADATA row; retry")
}

fn put_mutations(
    descriptor: &TabletDescriptor,
    value: &Bytes,
    annotations: &Annotations,
    stored: &StoredRow,
) -> Vec<Bytes> {
    let mut mutations = vec![set(LOCATION_FAMILY, DESCRIPTOR_QUALIFIER, ZERO, value.clone())];
    if let Some(leader) = annotations.leader {
        mutations.push(set(LOCATION_FAMILY, LEADER_QUALIFIER, ZERO, leader_value(leader)));
    }
    // A creation is repeated until the table is complete.
    let is_new = |event: &&NewTabletEvent| event.kind != TabletEventKind::Created || stored.value.is_none();
    for (event, slot) in annotations.events.iter().filter(is_new).zip(stored.event_slot..) {
        let event = record::TabletEvent {
            version: convert::VERSION,
            what: event.kind.name().to_owned(),
            server: annotations.server.map_or(0, ServerId::get),
            generation: descriptor.generation.get(),
            cause: event.cause.name().to_owned(),
            detail: event.detail.clone(),
            tablet: descriptor.tablet.get(),
        };
        let qualifier = (slot % EVENTS_KEPT).to_string();
        // One cell for each slot: the old event is deleted with all its versions.
        mutations.push(delete_column(EVENTS_FAMILY, qualifier.as_bytes()));
        mutations.push(set(EVENTS_FAMILY, qualifier.as_bytes(), WriteTime::Server, event.encode_to_vec().into()));
    }
    mutations
}

/// The slot after that of the newest event.
fn next_event_slot(row: &Row) -> u64 {
    let events = row.cells.iter().filter(|cell| cell.family.as_str() == EVENTS_FAMILY);
    let newest = events.filter_map(|cell| Some((cell.timestamp, slot(&cell.qualifier)?))).max();
    newest.map_or(0, |(_time, slot)| slot + 1)
}

fn slot(qualifier: &[u8]) -> Option<u64> {
    std::str::from_utf8(qualifier).ok()?.parse::<u64>().ok().filter(|slot| *slot < EVENTS_KEPT)
}

fn leader_value(leader: LeaderHint) -> Bytes {
    record::LeaderHint { server: leader.server.get(), term: leader.term.get() }.encode_to_vec().into()
}

fn descriptor_value(row: &Row) -> Option<&Bytes> {
    let is_descriptor = |family: &str, qualifier: &[u8]| family == LOCATION_FAMILY && qualifier == DESCRIPTOR_QUALIFIER;
    row.cells.iter().find(|cell| is_descriptor(cell.family.as_str(), &cell.qualifier)).map(|cell| &cell.value)
}

fn descriptor_column() -> Filter {
    Filter::Chain(vec![
        Filter::FamilyNameRegex(Bytes::from_static(LOCATION_FAMILY.as_bytes())),
        Filter::ColumnQualifierRegex(Bytes::from_static(DESCRIPTOR_QUALIFIER)),
    ])
}

fn value_equals(value: &Bytes) -> Filter {
    Filter::ValueRange { start: Bound::Included(value.clone()), end: Bound::Included(value.clone()) }
}

fn set(family: &str, qualifier: &[u8], timestamp: WriteTime, value: Bytes) -> Bytes {
    convert::mutation_to_bytes(&Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::copy_from_slice(qualifier),
        timestamp,
        value,
    })
}

fn delete_column(family: &str, qualifier: &[u8]) -> Bytes {
    convert::mutation_to_bytes(&Mutation::DeleteColumn {
        family: family.to_owned(),
        qualifier: Bytes::copy_from_slice(qualifier),
        start: Micros::new(0),
        end: None,
    })
}

//! The table of key heat, as tablet servers write it and the master folds and reads it.
//!
//! ```text
//!   row       table id, start of the step of time in milliseconds: 8 bytes each, big endian
//!   family    the length of the step (`ebla_model::heat::HeatStep`)
//!   column    who has counted: a server's id and incarnation; empty after folding
//!   version   the start of the step
//!   value     `HeatWindow`
//! ```
//!
//! A step of time of a table has a cell for each server that led tablets of it. A cell that is written again has the same content or a later
//! one of the same writer, so writers need no comparison. The row of table 0, METADATA, which has no key heat, says what was folded.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_client::read::whole_rows;
use ebla_client::{Cluster, Deadline, Read, RowWrite};
use ebla_model::cell::{Cell, Row};
use ebla_model::cluster_version::Feature;
use ebla_model::error::Error;
use ebla_model::filter::Filter;
use ebla_model::heat::{HeatStep, HeatWindow, fold};
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::{TableName, TableState};
use ebla_model::time::Micros;
use ebla_proto::convert;
use futures::TryStreamExt as _;
use tracing::warn;

use crate::ChubbyDirectory;

/// The versions of the record of what was folded: one for each day.
const PROGRESS_VERSION_MICROS: i64 = 24 * 3_600 * 1_000_000;

/// The table of key heat. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HeatTable {
    cluster: Cluster,
    table: TableId,
}

impl HeatTable {
    /// The table, if the cluster has it and all processes can read it.
    #[must_use]
    pub fn find(directory: &ChubbyDirectory, cluster: &Cluster) -> Option<Self> {
        if Feature::KeyHeat.check(directory.active_version()).is_err() {
            return None;
        }
        let schema = directory.known_table_policies(&TableName::heat(), None).table?.0;
        (schema.state == TableState::Active).then(|| Self { cluster: cluster.clone(), table: schema.table })
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> TableId {
        self.table
    }

    /// Writes what was counted in the step of time that begins at `start`, by table. `source`: who has counted. Safe to repeat.
    ///
    /// # Errors
    /// The first error of a row; the other rows may have been written.
    pub async fn write(
        &self,
        (step, start): (HeatStep, Micros),
        source: &Bytes,
        windows: &BTreeMap<TableId, HeatWindow>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let row = |(table, window): (&TableId, &HeatWindow)| {
            write_of(row_key(*table, start), step, source.clone(), start, convert::heat_window_to_bytes(window))
        };
        let rows: Vec<RowWrite> = windows.iter().map(row).collect();
        self.cluster.mutate_rows(self.table, rows, deadline).await.into_iter().collect()
    }

    /// What was counted of a table from `from` until before `to`, by step of time, ascending; what several servers have counted in one step
    /// is folded. A value that does not decode is left out, and logged.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn read(
        &self,
        table: TableId,
        step: HeatStep,
        (from, to): (Micros, Micros),
        deadline: Deadline,
    ) -> Result<Vec<(Micros, HeatWindow)>, Error> {
        let Some(range) = KeyRange::new(row_key(table, from), Some(row_key(table, to))) else { return Ok(Vec::new()) };
        let filter = Filter::Chain(vec![family(step), Filter::CellsPerColumnLimit(1)]);
        let read = Read {
            filter: Some(convert::filter_to_bytes(&filter)),
            ..Read::new(self.table, RowSet::from_ranges([range]))
        };
        let mut parts = self.cluster.read_rows(read, deadline);
        let mut steps = Vec::new();
        while let Some(part) = parts.try_next().await? {
            for row in whole_rows(part.response)? {
                let Some(start) = start_of(&row.key) else { continue };
                let windows: Vec<HeatWindow> = row.cells.iter().filter_map(|cell| decode(&row, cell)).collect();
                // Also a single one: what is kept of each step is bounded.
                steps.push((start, fold(&windows)));
            }
        }
        Ok(steps)
    }

    /// How far steps of this length were folded. `now`: the present time.
    ///
    /// # Errors
    /// Those of a read.
    pub async fn folded(&self, step: HeatStep, now: Micros, deadline: Deadline) -> Result<Folded, Error> {
        let read = Read::new(self.table, RowSet::from_ranges([KeyRange::single(progress_key())]));
        let mut parts = self.cluster.read_rows(read, deadline);
        let mut records = Vec::new();
        while let Some(part) = parts.try_next().await? {
            let rows = whole_rows(part.response)?;
            let cells = rows.iter().flat_map(|row| &row.cells);
            let of_step = cells.filter(|cell| cell.qualifier == step.family().as_bytes());
            records.extend(of_step.filter_map(|cell| millis(&cell.value)));
        }
        Ok(Folded::of(records, now))
    }

    /// Records up to when steps of this length were folded. `now`: the present time.
    ///
    /// # Errors
    /// Those of a write.
    pub async fn set_folded(
        &self,
        step: HeatStep,
        until: Micros,
        now: Micros,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let write = record(step, until, now);
        self.cluster.mutate_row(self.table, write, deadline).await
    }

    /// As [`Self::set_folded`], and deletes all earlier records, also those that are later than the present time.
    ///
    /// # Errors
    /// Those of a write.
    pub async fn replace_folded(
        &self,
        step: HeatStep,
        until: Micros,
        now: Micros,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let delete = Mutation::DeleteColumn {
            family: HeatStep::Hour.family().to_owned(),
            qualifier: Bytes::from_static(step.family().as_bytes()),
            start: Micros::new(0),
            end: None,
        };
        // One write of a row: there is no time without a record.
        let mut write = record(step, until, now);
        write.mutations.insert(0, convert::mutation_to_bytes(&delete));
        self.cluster.mutate_row(self.table, write, deadline).await
    }
}

/// How far steps of one length were folded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Up to when; `None`: never, as far as records say that are not later than now.
    pub until: Option<Micros>,
    /// Whether a record is later than now: a master had a clock that was ahead. It says nothing about what was folded.
    pub is_ahead: bool,
}

impl Folded {
    fn of(records: impl IntoIterator<Item = Micros>, now: Micros) -> Self {
        let mut folded = Self::default();
        for record in records {
            if record > now {
                folded.is_ahead = true;
            } else {
                folded.until = folded.until.max(Some(record));
            }
        }
        folded
    }
}

/// The write that records up to when steps of this length were folded.
fn record(step: HeatStep, until: Micros, now: Micros) -> RowWrite {
    let version = Micros::new(now.get() - now.get().rem_euclid(PROGRESS_VERSION_MICROS));
    let value = Bytes::copy_from_slice(&millis_bytes(until));
    let column = Bytes::from_static(step.family().as_bytes());
    // The family that is kept longest.
    write_of(progress_key(), HeatStep::Hour, column, version, value)
}

fn write_of(row: RowKey, step: HeatStep, qualifier: Bytes, version: Micros, value: Bytes) -> RowWrite {
    let mutation = Mutation::SetCell {
        family: step.family().to_owned(),
        qualifier,
        timestamp: WriteTime::At(version.truncate_to_millis()),
        value,
    };
    RowWrite { row, mutations: vec![convert::mutation_to_bytes(&mutation)], token: None }
}

fn family(step: HeatStep) -> Filter {
    Filter::FamilyNameRegex(Bytes::from_static(step.family().as_bytes()))
}

fn decode(row: &Row, cell: &Cell) -> Option<HeatWindow> {
    let decoded = convert::heat_window_from_bytes(&cell.value);
    decoded.inspect_err(|error| warn!(row = %row.key, %error, "a value of key heat does not decode")).ok()
}

fn row_key(table: TableId, start: Micros) -> RowKey {
    RowKey::new([table.get().to_be_bytes(), millis_bytes(start)].concat())
}

fn progress_key() -> RowKey {
    row_key(TableId::METADATA, Micros::new(0))
}

fn millis_bytes(time: Micros) -> [u8; 8] {
    u64::try_from(time.get().div_euclid(1_000)).unwrap_or(0).to_be_bytes()
}

fn millis(bytes: &[u8]) -> Option<Micros> {
    let millis = u64::from_be_bytes(bytes.try_into().ok()?);
    // Far less than what fits: damaged values must not overflow.
    i64::try_from(millis).ok().filter(|millis| *millis < 1 << 50).map(Micros::from_millis)
}

fn start_of(row: &RowKey) -> Option<Micros> {
    millis(row.as_bytes().get(8..)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_by_table_and_then_by_time() {
        let key = |table: u64, millis| row_key(TableId::new(table), Micros::from_millis(millis));
        assert!(key(1, 9_999) < key(2, 5) && key(2, 5) < key(2, 300) && key(2, 300) < key(256, 0));
        assert_eq!(start_of(&key(7, 1_700_000_000_000)), Some(Micros::from_millis(1_700_000_000_000)));
        assert_eq!((start_of(&RowKey::new("short")), start_of(&RowKey::new(vec![255_u8; 16]))), (None, None));
        assert!(progress_key() < key(1, 0), "no table of a user");
    }

    #[test]
    fn a_record_that_is_later_than_now_counts_as_absent() {
        let folded = |records: &[i64]| Folded::of(records.iter().copied().map(Micros::new), Micros::new(100));
        assert_eq!(folded(&[]), Folded::default());
        assert_eq!(folded(&[40, 90, 60]), Folded { until: Some(Micros::new(90)), is_ahead: false });
        assert_eq!(folded(&[100]), Folded { until: Some(Micros::new(100)), is_ahead: false });
        assert_eq!(folded(&[40, 101]), Folded { until: Some(Micros::new(40)), is_ahead: true });
        assert_eq!(folded(&[5_000]), Folded { until: None, is_ahead: true });
    }
}

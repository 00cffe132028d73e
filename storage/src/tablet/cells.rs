//! Rows and columns out of the sorted cells of a store.
//!
//! A cell's key is `row, family id, qualifier, inverted timestamp` (`ebla_model::codec`), so a row, a family of it and a
//! column each are one contiguous range, newest version first within a column. Three ways to read them, the cheapest that
//! answers is right:
//!
//! | want | call | costs |
//! |---|---|---|
//! | versions of one column | [`read_column`] | one seek, asks the row filter |
//! | a row | [`read_row`] | one seek, asks the row filter |
//! | many rows | [`RowScan`] | one seek, then steps; seeks over families not asked for |
//!
//! Families come in order of id, not of name: sorting for the public API is the reader's. What garbage rules hide is still
//! here: judging that is `ebla_model::gc`'s.

use std::collections::BTreeSet;

use bytes::Bytes;
use ebla_model::codec::{self, CodecError, ColumnKey};
use ebla_model::id::FamilyId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::time::Micros;

use super::TabletStore;
use super::error::StoreError;
use super::scan::{Direction, Reach, Scan, ScanPlan, View, row_prefix_of};

/// A cell as it is stored, without its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCell {
    /// The family, by id.
    pub family: FamilyId,
    /// The column in the family.
    pub qualifier: Bytes,
    /// The version.
    pub timestamp: Micros,
    /// The content, without its tag.
    pub value: Bytes,
}

/// A row as it is stored: at least one cell; family ids and qualifiers rising, timestamps falling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow {
    /// The row.
    pub key: RowKey,
    /// Its cells of the families asked for.
    pub cells: Vec<StoredCell>,
}

/// Which families a read is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Families {
    /// All there are.
    All,
    /// These.
    Only(BTreeSet<FamilyId>),
}

impl Families {
    fn has(&self, family: FamilyId) -> bool {
        match self {
            Self::All => true,
            Self::Only(wanted) => wanted.contains(&family),
        }
    }
}

/// The stored cells of one row, none when it does not exist.
///
/// # Errors
/// [`StoreError::Expired`]: take a new view. [`StoreError::NotCached`] when `reach` ends at the cache. Else when the
/// store cannot be read.
pub fn read_row(
    view: &View<'_>,
    row: &RowKey,
    families: &Families,
    reach: Reach,
) -> Result<Vec<StoredCell>, StoreError> {
    let prefix = codec::row_prefix(row);
    let upper = codec::prefix_end(&prefix);
    let scan = view.scan(&ScanPlan::new(&prefix, upper.as_deref()).within(reach))?;
    let mut rows = RowScan::over(scan, Direction::Forward, families.clone());
    Ok(rows.next_row()?.map(|row| row.cells).unwrap_or_default())
}

/// The newest `versions_max` stored versions of one column, newest first.
///
/// # Errors
/// As [`read_row`].
pub fn read_column(
    view: &View<'_>,
    row: &RowKey,
    (family, qualifier): (FamilyId, &Bytes),
    versions_max: usize,
) -> Result<Vec<StoredCell>, StoreError> {
    let prefix = codec::column_prefix(row, family, qualifier);
    let upper = codec::prefix_end(&prefix);
    let mut scan = view.scan(&ScanPlan::new(&prefix, upper.as_deref()))?;
    let mut cells = Vec::new();
    while cells.len() < versions_max {
        let Some((key, value)) = scan.entry() else { break };
        let timestamp = version_of(key.strip_prefix(prefix.as_slice()).unwrap_or_default())?;
        cells.push(StoredCell { family, qualifier: qualifier.clone(), timestamp, value: content(value)? });
        scan.step()?;
    }
    Ok(cells)
}

/// Goes through the rows of a range.
pub struct RowScan<'v> {
    scan: Scan<'v>,
    direction: Direction,
    families: Families,
}

impl<'v> RowScan<'v> {
    /// The rows of `range` that have cells in `families`, from its start on or from its end back.
    ///
    /// # Errors
    /// As [`read_row`].
    pub fn new(
        view: &'v View<'_>,
        range: &KeyRange,
        direction: Direction,
        families: Families,
    ) -> Result<Self, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        Ok(Self::over(view.cells(&lower, upper.as_deref(), direction)?, direction, families))
    }

    fn over(scan: Scan<'v>, direction: Direction, families: Families) -> Self {
        Self { scan, direction, families }
    }

    /// The next row that has cells in the families asked for, `None` at the end.
    ///
    /// # Errors
    /// When the store cannot be read or holds what is no cell. The end was then *not* reached.
    pub fn next_row(&mut self) -> Result<Option<StoredRow>, StoreError> {
        while let Some((key, _)) = self.scan.entry() {
            let prefix = row_prefix_of(key).ok_or_else(|| damaged(CodecError::Truncated))?.to_vec();
            let cells = self.cells_of(&prefix)?;
            if !cells.is_empty() {
                let (row, _) = codec::unescape(&prefix).map_err(damaged)?;
                return Ok(Some(StoredRow { key: RowKey::new(row), cells }));
            }
        }
        Ok(None)
    }

    /// Reads on to the end of the row with this prefix.
    fn cells_of(&mut self, row: &[u8]) -> Result<Vec<StoredCell>, StoreError> {
        let mut cells: Vec<StoredCell> = Vec::new();
        let mut column = Column::default();
        while let Some((key, value)) = self.scan.entry() {
            let Some(rest) = key.strip_prefix(row) else { break };
            let family = family_of(rest)?;
            if self.families.has(family) {
                let (qualifier, timestamp) = column.split(rest)?;
                cells.push(StoredCell { family, qualifier, timestamp, value: content(value)? });
                self.scan.step()?;
            } else {
                self.pass(row, family)?;
            }
        }
        if self.direction == Direction::Reverse {
            cells.reverse();
        }
        Ok(cells)
    }

    /// Goes past the cells of a family that nobody asked for: a few steps, then a seek, which costs as much as ten.
    fn pass(&mut self, row: &[u8], family: FamilyId) -> Result<(), StoreError> {
        const STEPS_MAX: usize = 8;
        let mut prefix = row.to_vec();
        prefix.extend(family.get().to_be_bytes());
        for _ in 0..STEPS_MAX {
            self.scan.step()?;
            if !self.scan.entry().is_some_and(|(key, _)| key.starts_with(&prefix)) {
                return Ok(());
            }
        }
        match (self.direction, codec::prefix_end(&prefix)) {
            (Direction::Forward, Some(end)) => self.scan.seek(&end),
            // No key equals a family's prefix, so this finds the last cell before the family.
            (Direction::Reverse, _) => self.scan.seek(&prefix),
            (Direction::Forward, None) => Ok(()),
        }
    }
}

/// The column of the cell before: versions of one column share its decoded qualifier.
#[derive(Default)]
struct Column {
    /// Family id and escaped qualifier.
    prefix: Vec<u8>,
    qualifier: Bytes,
}

impl Column {
    /// Qualifier and timestamp of what follows the row in a key.
    fn split(&mut self, rest: &[u8]) -> Result<(Bytes, Micros), StoreError> {
        if !self.prefix.is_empty()
            && let Some(version) = rest.strip_prefix(self.prefix.as_slice())
        {
            return Ok((self.qualifier.clone(), version_of(version)?));
        }
        let key = ColumnKey::decode(rest).map_err(damaged)?;
        let (prefix, _) = rest.split_last_chunk::<8>().ok_or_else(|| damaged(CodecError::Truncated))?;
        self.prefix.clear();
        self.prefix.extend_from_slice(prefix);
        self.qualifier = key.qualifier.clone();
        Ok((key.qualifier, key.timestamp))
    }
}

/// What a delete finds where it is to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// So few cells that each one is deleted by its key.
    Few(Vec<Vec<u8>>),
    /// Too many, or too many deleted ones between them: one range tombstone is cheaper, now and for later reads.
    Many,
}

/// Above this many cells a delete writes a range tombstone.
pub const SINGLE_DELETES_MAX: usize = 16;
/// How many deleted keys a probe passes before it gives up counting.
const PROBE_SKIPS_MAX: u64 = 64;

/// How best to delete the cells with `lower <= key < upper`: reads at most one key more than [`SINGLE_DELETES_MAX`].
///
/// Replicas may answer differently (their compactions differ) and still end with the same cells.
///
/// # Errors
/// As [`read_row`].
pub fn probe(view: &View<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<Probe, StoreError> {
    match probe_keys(view, lower, upper) {
        Err(StoreError::TooManySkipped) => Ok(Probe::Many),
        other => other,
    }
}

fn probe_keys(view: &View<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<Probe, StoreError> {
    let mut scan = view.scan(&ScanPlan::new(lower, upper).skipping_at_most(PROBE_SKIPS_MAX))?;
    let mut keys = Vec::new();
    while let Some((key, _)) = scan.entry() {
        if keys.len() == SINGLE_DELETES_MAX {
            return Ok(Probe::Many);
        }
        keys.push(key.to_vec());
        scan.step()?;
    }
    Ok(Probe::Few(keys))
}

/// The bounds of the versions of a column with `start <= timestamp < end` (without `end`: all from `start` on).
///
/// They cross when there are none. Timestamps are inverted in keys: the newest version has the least key.
#[must_use]
pub fn version_bounds(
    row: &RowKey,
    (family, qualifier): (FamilyId, &[u8]),
    start: Micros,
    end: Option<Micros>,
) -> (Vec<u8>, Vec<u8>) {
    let at = |time: Micros| codec::encode_parts(row.as_bytes(), family, qualifier, time);
    // The key of `end` itself is excluded and lies below all wanted ones: what follows it directly is the bound.
    let lower = match end {
        Some(end) => successor(at(end)),
        None => codec::column_prefix(row, family, qualifier),
    };
    (lower, successor(at(start)))
}

impl TabletStore {
    /// [`TabletStore::sizes`] by rows: first row of each piece and the piece's bytes. Pieces within one row are joined.
    ///
    /// # Errors
    /// When the store cannot be read or holds what is no cell.
    pub fn row_sizes(&self, range: &KeyRange) -> Result<Vec<(RowKey, u64)>, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        let mut rows: Vec<(RowKey, u64)> = Vec::new();
        for (key, bytes) in self.sizes(&lower, upper.as_deref())? {
            let (row, _) = codec::unescape(&key).map_err(damaged)?;
            match rows.last_mut() {
                Some((last, size)) if last.bytes() == &row => *size += bytes,
                _ => rows.push((RowKey::new(row), bytes)),
            }
        }
        Ok(rows)
    }

    /// About how many bytes the rows of `range` take in files. What is not flushed is not counted.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub fn row_range_bytes(&self, range: &KeyRange) -> Result<u64, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        self.range_bytes(&lower, upper.as_deref())
    }
}

fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn family_of(rest: &[u8]) -> Result<FamilyId, StoreError> {
    let (family, _) = rest.split_first_chunk::<4>().ok_or_else(|| damaged(CodecError::Truncated))?;
    Ok(FamilyId::new(u32::from_be_bytes(*family)))
}

/// The timestamp from the last eight bytes of a key.
fn version_of(bytes: &[u8]) -> Result<Micros, StoreError> {
    let inverted = bytes.try_into().map_err(|_| damaged(CodecError::TrailingBytes))?;
    let micros = i64::try_from(!u64::from_be_bytes(inverted)).map_err(|_| damaged(CodecError::NegativeTimestamp))?;
    Ok(Micros::new(micros))
}

fn content(stored: &[u8]) -> Result<Bytes, StoreError> {
    codec::decode_value(Bytes::copy_from_slice(stored)).map_err(damaged)
}

fn damaged(error: CodecError) -> StoreError {
    StoreError::damaged("decode cell", error.to_string())
}

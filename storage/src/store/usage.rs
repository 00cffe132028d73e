//! What the families of a range of rows cost, for accounting and quotas.
//!
//! RocksDB knows the sizes of files, and cells of several families share them. So some thousands of cells are read: all of them if the range
//! has no more, else those of windows that are distributed over the range by bytes. The families of a locality group share its files in
//! the proportions of these cells.

use std::collections::BTreeMap;

use ebla_model::codec;
use ebla_model::id::FamilyId;
use ebla_model::key::KeyRange;
use ebla_model::locality::Residence;
use ebla_model::quota::{FamilyUsage, TableUsage};

use super::cell_family::CellFamily;
use super::error::StoreError;
use super::placement::family_of;
use super::scan::{Scan, ScanPlan, View, row_prefix_of};
use super::{GroupStore, Handle};

/// A range with at most this number of cells is counted exactly.
const COUNTED_CELLS_MAX: u64 = 4_096;
/// It is read as long as it has at most this number of bytes.
const COUNTED_BYTES_MAX: u64 = 4 << 20;
/// The number of windows of a larger range, about.
const WINDOWS: u64 = 16;
/// A window ends with the first row that ends after this number of cells,
const WINDOW_CELLS: u64 = 256;
/// at the latest after this one,
const WINDOW_CELLS_MAX: u64 = 2_048;
/// or after this number of bytes.
const WINDOW_BYTES_MAX: u64 = 1 << 20;

/// The cells of a family that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    cells: u64,
    /// Of keys and values.
    bytes: u64,
}

/// The cells that were read, by family.
#[derive(Clone, Debug, Default)]
struct Sample {
    families: BTreeMap<FamilyId, Counted>,
    total: Counted,
    /// Whether they are all cells of the range.
    is_whole: bool,
}

/// What a column family has in the range.
#[derive(Clone, Copy, Debug, Default)]
struct InFiles {
    /// Of its files.
    bytes: u64,
    /// Of keys and values.
    data_bytes: u64,
    cells: u64,
}

impl Sample {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let Some(family) = family_of(key) else { return };
        let bytes = (key.len() + value.len()) as u64;
        for counted in [self.families.entry(family).or_default(), &mut self.total] {
            counted.cells += 1;
            counted.bytes += bytes;
        }
    }

    /// Reads from the scan's position. Whether its end was reached.
    fn window(&mut self, scan: &mut Scan<'_>) -> Result<bool, StoreError> {
        let (mut cells, mut bytes) = (0, 0);
        let mut row: Vec<u8> = Vec::new();
        while let Some((key, value)) = scan.entry() {
            let prefix = row_prefix_of(key).unwrap_or_default();
            let is_enough = cells >= WINDOW_CELLS && prefix != row.as_slice();
            if is_enough || cells >= WINDOW_CELLS_MAX || bytes >= WINDOW_BYTES_MAX {
                return Ok(false);
            }
            if prefix != row.as_slice() {
                row = prefix.to_vec();
            }
            self.add(key, value);
            cells += 1;
            bytes += (key.len() + value.len()) as u64;
            scan.step()?;
        }
        Ok(true)
    }
}

impl GroupStore {
    /// What the families of the rows in `range` (as stored) cost; reads and writes are not counted here. `unflushed_bytes`: what is not in
    /// files yet, which the families share in proportion to their cells.
    ///
    /// Exact up to some thousands of cells, beyond that an estimate. Cells that are deleted and still in files count as bytes, in proportion too.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn family_usage(&self, range: &KeyRange, unflushed_bytes: u64) -> Result<TableUsage, StoreError> {
        let (lower, upper) = codec::range_bounds(range);
        let sample = self.with_view(|view| self.sample(view, (&lower, upper.as_deref())))?;
        let mut groups: BTreeMap<CellFamily, (InFiles, Counted)> = BTreeMap::new();
        let placements = self.placements();
        let place = |family: FamilyId| placements.of_family(&lower, family).current;
        for (family, counted) in &sample.families {
            let (_files, sum) = groups.entry(place(*family)).or_default();
            sum.cells += counted.cells;
            sum.bytes += counted.bytes;
        }
        for (family, (files, _sum)) in &mut groups {
            *files = self.in_files(&self.cell_family(*family)?, &lower, upper.as_deref())?;
        }
        let usage = |(id, counted): (&FamilyId, &Counted)| {
            let family = place(*id);
            let (files, sum) = groups.get(&family).copied().unwrap_or_default();
            let unflushed = part(unflushed_bytes, counted.bytes, sample.total.bytes);
            let usage = FamilyUsage {
                files_bytes: part(files.bytes, counted.bytes, sum.bytes),
                unflushed_bytes: unflushed,
                resident_bytes: match family.options.residence {
                    Residence::Memory => part(files.data_bytes, counted.bytes, sum.bytes),
                    Residence::Files => 0,
                },
                cells: part(files.cells, counted.cells, sum.cells).saturating_add(part(
                    unflushed,
                    counted.cells,
                    counted.bytes,
                )),
                ..FamilyUsage::default()
            };
            let exact = FamilyUsage { cells: counted.cells, unflushed_bytes: unflushed.min(counted.bytes), ..usage };
            (*id, if sample.is_whole { exact } else { usage })
        };
        Ok(sample.families.iter().map(usage).collect())
    }

    /// The cells of the range if they are few, else those of some windows.
    fn sample(&self, view: &View<'_>, (lower, upper): (&[u8], Option<&[u8]>)) -> Result<Sample, StoreError> {
        let plan = ScanPlan::new(lower, upper).without_filling_cache();
        let mut scan = view.scan(&plan)?;
        let mut whole = Sample { is_whole: true, ..Sample::default() };
        while let Some((key, value)) = scan.entry() {
            if whole.total.cells >= COUNTED_CELLS_MAX || whole.total.bytes >= COUNTED_BYTES_MAX {
                return self.sample_windows(view, &plan, (lower, upper), whole);
            }
            whole.add(key, value);
            scan.step()?;
        }
        Ok(whole)
    }

    /// `beginning`: the first cells of the range, which are the sample if nothing is in files.
    fn sample_windows(
        &self,
        view: &View<'_>,
        plan: &ScanPlan<'_>,
        (lower, upper): (&[u8], Option<&[u8]>),
        beginning: Sample,
    ) -> Result<Sample, StoreError> {
        let pieces = self.pieces_in_files(view, (lower, upper), WINDOWS)?;
        if pieces.len() < 2 {
            return Ok(Sample { is_whole: false, ..beginning });
        }
        let mut sample = Sample::default();
        let mut scan = view.scan(plan)?;
        for (key, _bytes) in pieces {
            scan.seek(&key)?;
            if sample.window(&mut scan)? {
                break;
            }
        }
        Ok(sample)
    }

    fn in_files(&self, cells: &Handle<'_>, lower: &[u8], upper: Option<&[u8]>) -> Result<InFiles, StoreError> {
        let bytes = self.column_family_bytes(cells, lower, upper);
        if bytes == 0 {
            return Ok(InFiles::default());
        }
        let files = self.files_of(cells)?;
        // Each deletion has an entry, and so has what it deletes.
        let live = files.entries.saturating_sub(files.deletions.saturating_mul(2));
        Ok(InFiles {
            bytes,
            data_bytes: part(files.data_bytes, bytes, files.bytes),
            cells: part(live, bytes, files.bytes),
        })
    }
}

/// `of * share / whole`; zero without a whole.
fn part(of: u64, share: u64, whole: u64) -> u64 {
    let part = u128::from(of) * u128::from(share) / u128::from(whole.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use ebla_model::key::RowKey;
    use ebla_model::time::Micros;
    use tempfile::TempDir;

    use super::super::{Batch, SharedResources, StoreOptions};
    use super::*;

    fn family(number: u32) -> FamilyId {
        FamilyId::new(number)
    }

    /// A store with rows of a large family 1, three cells of 1,000 bytes, and of a small family 2, one cell of 10 bytes.
    fn store(dir: &TempDir, rows: usize) -> GroupStore {
        let shared = SharedResources::new(StoreOptions { cache_bytes: 4 << 20, ..StoreOptions::up() }).unwrap();
        let store = GroupStore::create(&dir.path().join("store"), &shared).unwrap();
        for row in 0..rows {
            let mut batch = Batch::new();
            let row = format!("row{row:06}");
            // Bytes that compress badly.
            let noise: Vec<u8> = (0..250_u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
            for version in 0..3 {
                let key = codec::encode_parts(row.as_bytes(), family(1), b"q", Micros::new(version));
                batch.put(key, codec::encode_value(&noise));
            }
            batch.put(
                codec::encode_parts(row.as_bytes(), family(2), b"q", Micros::ZERO),
                codec::encode_value(&[b'x'; 10]),
            );
            store.write(&batch).unwrap();
        }
        store
    }

    fn usage(store: &GroupStore, range: &KeyRange) -> [FamilyUsage; 2] {
        let unflushed = store.unflushed_bytes().unwrap();
        let usage = store.family_usage(range, unflushed).unwrap();
        [1, 2].map(|number| usage.get(&family(number)).copied().unwrap_or_default())
    }

    #[test]
    fn few_cells_are_counted_exactly() {
        let dir = TempDir::new().unwrap();
        let store = store(&dir, 100);
        let [large, small] = usage(&store, &KeyRange::all());
        assert_eq!((large.cells, small.cells), (300, 100));
        assert_eq!((large.files_bytes, small.files_bytes), (0, 0), "nothing is flushed");
        assert!((300_000..400_000).contains(&large.unflushed_bytes), "{large:?}");
        assert!(small.unflushed_bytes < 10_000, "{small:?}");
        store.flush().unwrap();
        let [large, small] = usage(&store, &KeyRange::all());
        assert_eq!((large.cells, small.cells), (300, 100));
        let files = store.range_bytes(b"", None).unwrap();
        assert!(large.files_bytes + small.files_bytes <= files && large.files_bytes > 50 * small.files_bytes);
        let half = KeyRange::new(RowKey::default(), Some(RowKey::new("row000050"))).unwrap();
        assert_eq!(usage(&store, &half).map(|family| family.cells), [150, 50]);
        assert_eq!(usage(&store, &KeyRange::prefix(b"absent")), [FamilyUsage::default(); 2]);
    }

    #[test]
    fn many_cells_are_estimated() {
        let dir = TempDir::new().unwrap();
        let store = store(&dir, 10_000);
        store.flush().unwrap();
        store.compact().unwrap();
        let [large, small] = usage(&store, &KeyRange::all());
        let is_near = |estimate: u64, exact: u64| estimate.abs_diff(exact) <= exact / 10;
        assert!(is_near(large.cells, 30_000) && is_near(small.cells, 10_000), "{large:?} {small:?}");
        let files = store.range_bytes(b"", None).unwrap();
        assert!(is_near(large.files_bytes + small.files_bytes, files), "{large:?} {small:?} {files}");
        assert!((40..120).contains(&(large.files_bytes / small.files_bytes.max(1))), "{large:?} {small:?}");
        let half = KeyRange::new(RowKey::default(), Some(RowKey::new("row005000"))).unwrap();
        let [large, _small] = usage(&store, &half);
        assert!(large.cells.abs_diff(15_000) < 2_000, "{large:?}");
    }

    #[test]
    fn unflushed_cells_are_estimated_too() {
        let dir = TempDir::new().unwrap();
        let store = store(&dir, 2_000);
        let [large, small] = usage(&store, &KeyRange::all());
        assert!(large.cells.abs_diff(6_000) < 600 && small.cells.abs_diff(2_000) < 200, "{large:?} {small:?}");
        assert!(large.unflushed_bytes > 5 << 20, "{large:?}");
    }

    #[test]
    fn a_part_of_nothing_is_nothing() {
        assert_eq!((part(10, 1, 4), part(10, 0, 0), part(u64::MAX, 3, 1)), (2, 0, u64::MAX));
    }
}

//! Size distribution of a tablet's keys, from which a split point is chosen.
//!
//! RocksDB estimates the bytes of a key range from its files' indexes without reading data. It has no list of keys to split
//! at, so this module bisects: it takes the key in the middle between two existing ones, queries the sizes of both sides,
//! and continues with the larger pieces. A store with little on disk is scanned instead, including its unflushed data.
//!
//! It also says what the locality groups of a range cost in files, and what they contain.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use ebla_model::locality::StoredBytes;
use rocksdb::{Range, properties};

use super::error::StoreError;
use super::scan::{Direction, Scan, View, end_of_keys};
use super::{GroupStore, Handle};

/// Below this many bytes in files the cells are scanned: at most this and the memtables are read, once.
const SCANNED_BYTES: u64 = 4 << 20;
/// Approximate number of pieces of a range.
const PIECES: u64 = 64;
/// Maximum number of bisections of a range: each costs two seeks.
const HALVINGS_MAX: usize = 512;

/// The cells from `first` to `last` (both exist) and their bytes in files.
struct Piece {
    first: Vec<u8>,
    last: Vec<u8>,
    bytes: u64,
}

impl GroupStore {
    /// Bytes of all files of this store, including cells outside its tablet's range.
    ///
    /// After a split both children count the shared files: use [`Self::range_bytes`] to decide whether a tablet is too large.
    ///
    /// # Errors
    /// When the store lacks a family.
    pub fn size_bytes(&self) -> Result<u64, StoreError> {
        let sizes =
            self.families()?.into_iter().map(|family| self.database().get_column_family_metadata_cf(&family).size);
        Ok(sizes.sum())
    }

    /// A number that differs after each flush or compaction: sizes in files are unchanged while it is.
    ///
    /// # Errors
    /// When the store lacks a family, or RocksDB does not know the number.
    pub fn files_version(&self) -> Result<u64, StoreError> {
        // Each number ascends, and no column family disappears while the store is open: so the sum is another one.
        let mut sum = 0;
        for cells in self.all_cells()? {
            let version = self.database().property_int_value_cf(&cells, properties::CURRENT_SUPER_VERSION_NUMBER);
            let version = version.map_err(StoreError::engine("read the version of the files"))?;
            sum += version.ok_or_else(|| StoreError::damaged("read the version of the files", "RocksDB has none"))?;
        }
        Ok(sum)
    }

    /// Approximate size of the cells with `lower <= key < upper` in files. Unflushed data is not counted.
    ///
    /// # Errors
    /// When the store lacks a family.
    pub fn range_bytes(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<u64, StoreError> {
        let end = upper.map_or_else(end_of_keys, <[u8]>::to_vec);
        if end.as_slice() <= lower {
            return Ok(0);
        }
        Ok(self.all_cells()?.iter().map(|cells| self.file_bytes(cells, lower, &end)).sum())
    }

    /// Approximate bytes of the cells with `lower <= key < upper` in files, by the number of their locality group; groups without cells
    /// there are absent. Unflushed data is not counted.
    ///
    /// RocksDB knows the bytes of keys and values of whole files alone: a range counts as compressed like its column family as a whole.
    ///
    /// # Errors
    /// When the store lacks a family, or RocksDB does not know the sizes.
    pub fn bytes_by_group(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<BTreeMap<u32, StoredBytes>, StoreError> {
        let end = upper.map_or_else(end_of_keys, <[u8]>::to_vec);
        let mut groups: BTreeMap<u32, StoredBytes> = BTreeMap::new();
        if end.as_slice() <= lower {
            return Ok(groups);
        }
        for (family, cells) in self.cell_handles()? {
            let files = self.file_bytes(&cells, lower, &end);
            if files > 0 {
                let data = self.data_bytes(&cells, files)?;
                groups.entry(family.group).or_default().add(StoredBytes { files, data });
            }
        }
        Ok(groups)
    }

    fn file_bytes(&self, cells: &Handle<'_>, lower: &[u8], end: &[u8]) -> u64 {
        let sizes = self.database().get_approximate_sizes_cf(cells, &[Range::new(lower, end)]);
        sizes.first().copied().unwrap_or(0)
    }

    /// The keys and values in `files` bytes of a column family's files.
    fn data_bytes(&self, cells: &Handle<'_>, files: u64) -> Result<u64, StoreError> {
        let all = self.files_of(cells)?;
        let data = u128::from(files) * u128::from(all.data_bytes) / u128::from(all.bytes.max(1));
        Ok(u64::try_from(data).unwrap_or(u64::MAX))
    }

    /// What all files of a column family contain.
    pub(super) fn files_of(&self, cells: &Handle<'_>) -> Result<FileTotals, StoreError> {
        let text = self.database().property_value_cf(cells, properties::AGGREGATED_TABLE_PROPERTIES);
        let text = text.map_err(StoreError::engine("read the contents of files"))?;
        let totals = text.as_deref().and_then(totals_of);
        let totals =
            totals.ok_or_else(|| StoreError::damaged("read the contents of files", "RocksDB does not know them"))?;
        Ok(FileTotals { bytes: self.database().get_column_family_metadata_cf(cells).size, ..totals })
    }

    /// Approximate bytes of the cells of one column family with `lower <= key < upper` in files.
    pub(super) fn column_family_bytes(&self, cells: &Handle<'_>, lower: &[u8], upper: Option<&[u8]>) -> u64 {
        let end = upper.map_or_else(end_of_keys, <[u8]>::to_vec);
        if end.as_slice() <= lower { 0 } else { self.file_bytes(cells, lower, &end) }
    }

    /// About `pieces` pieces of similar size of what is in files, as the first keys of [`Self::sizes`]. Empty when a view has no cells.
    pub(super) fn pieces_in_files(
        &self,
        view: &View<'_>,
        (lower, upper): (&[u8], Option<&[u8]>),
        pieces: u64,
    ) -> Result<Vec<(Bytes, u64)>, StoreError> {
        let bytes = self.range_bytes(lower, upper)?;
        let mut forward = view.cells(lower, upper, Direction::Forward)?;
        let mut backward = view.cells(lower, upper, Direction::Reverse)?;
        match (forward.entry(), backward.entry()) {
            (Some((first, _)), Some((last, _))) => {
                let whole = Piece { first: first.to_vec(), last: last.to_vec(), bytes };
                self.halved((&mut forward, &mut backward), whole, pieces)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Divides the cells with `lower <= key < upper` into some tens of pieces of similar size. Returns each piece's first key,
    /// ascending, and its bytes (on disk, or of keys and values when little is on disk). Empty when there are no cells.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn sizes(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<(Bytes, u64)>, StoreError> {
        let on_disk = self.range_bytes(lower, upper)?;
        self.with_view(|view| {
            if on_disk < SCANNED_BYTES {
                return scanned(view.cells(lower, upper, Direction::Forward)?);
            }
            self.pieces_in_files(view, (lower, upper), PIECES)
        })
    }

    fn halved(
        &self,
        (forward, backward): Both<'_, '_>,
        whole: Piece,
        pieces: u64,
    ) -> Result<Vec<(Bytes, u64)>, StoreError> {
        let enough = (whole.bytes / pieces).max(1);
        let mut open = VecDeque::from([whole]);
        let mut done = Vec::new();
        let mut halvings = 0;
        // Breadth first: when the limit is reached, the whole range is divided about equally.
        while let Some(piece) = open.pop_front() {
            let is_large = piece.bytes > enough && halvings < HALVINGS_MAX;
            let cut = if is_large { self.cut((forward, backward), &piece)? } else { None };
            halvings += 1;
            match cut {
                Some((left, right)) => open.extend([left, right]),
                None => done.push((Bytes::from(piece.first), piece.bytes)),
            }
        }
        done.sort_unstable();
        Ok(done)
    }

    /// Both halves of a piece, divided at an existing key; `None` when it has only one key.
    fn cut(&self, (forward, backward): Both<'_, '_>, piece: &Piece) -> Result<Option<(Piece, Piece)>, StoreError> {
        let Some(middle) = between(&piece.first, &piece.last) else { return Ok(None) };
        forward.seek(&middle)?;
        let Some((middle, _)) = forward.entry() else { return Ok(None) };
        // The last key before it. With existing keys as ends each bisection makes progress, also on clustered keys.
        backward.seek(middle)?;
        backward.step()?;
        let Some((left_last, _)) = backward.entry() else { return Ok(None) };
        let left_bytes = self.range_bytes(&piece.first, Some(middle))?.min(piece.bytes);
        let left = Piece { first: piece.first.clone(), last: left_last.to_vec(), bytes: left_bytes };
        let right = Piece { first: middle.to_vec(), last: piece.last.clone(), bytes: piece.bytes - left_bytes };
        Ok(Some((left, right)))
    }
}

/// What the files of a column family contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileTotals {
    /// Of the files.
    pub(super) bytes: u64,
    /// Of keys and values.
    pub(super) data_bytes: u64,
    /// Cells and deletions.
    pub(super) entries: u64,
    /// Deletions among them.
    pub(super) deletions: u64,
}

/// What RocksDB's text of table properties says: `name=value`, separated by `; `. Not the bytes of the files.
fn totals_of(text: &str) -> Option<FileTotals> {
    let number = |name: &str| {
        let mut values = text.split(';').filter_map(|property| property.trim().strip_prefix(name)?.strip_prefix('='));
        values.next()?.trim().parse::<u64>().ok()
    };
    Some(FileTotals {
        bytes: 0,
        data_bytes: number("raw key size")? + number("raw value size")?,
        entries: number("# entries")?,
        deletions: number("# deletions")?,
    })
}

/// One scan of the same cells in each direction.
type Both<'s, 'v> = (&'s mut Scan<'v>, &'s mut Scan<'v>);

/// A key in the middle between two, above the first and at most the last; `None` unless `first < last`.
fn between(first: &[u8], last: &[u8]) -> Option<Vec<u8>> {
    if first >= last {
        return None;
    }
    let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
    let (low, high) = (eight_bytes(first, common), eight_bytes(last, common));
    let middle = low + (high - low).div_ceil(2);
    let mut key = first.get(..common)?.to_vec();
    key.extend(middle.to_be_bytes());
    while key.len() > common && key.last() == Some(&0) {
        key.pop();
    }
    // Eight bytes may not distinguish them (00s against nothing): then use the last key itself.
    Some(if key.as_slice() > first && key.as_slice() <= last { key } else { last.to_vec() })
}

fn eight_bytes(key: &[u8], from: usize) -> u64 {
    let mut bytes = [0; 8];
    for (to, byte) in bytes.iter_mut().zip(key.iter().skip(from)) {
        *to = *byte;
    }
    u64::from_be_bytes(bytes)
}

/// Scans and counts all cells, and joins adjacent pieces until about [`PIECES`] are left.
fn scanned(mut scan: Scan<'_>) -> Result<Vec<(Bytes, u64)>, StoreError> {
    let mut pieces: Vec<(Bytes, u64)> = Vec::new();
    let mut enough = 1;
    let mut total = 0;
    while let Some((key, value)) = scan.entry() {
        let bytes = (key.len() + value.len()) as u64;
        total += bytes;
        match pieces.last_mut() {
            Some((_, size)) if *size < enough => *size += bytes,
            _ => pieces.push((Bytes::copy_from_slice(key), bytes)),
        }
        if pieces.len() as u64 > 2 * PIECES {
            enough = total / PIECES;
            pieces = joined(pieces, enough);
        }
        scan.step()?;
    }
    Ok(joined(pieces, (total / PIECES).max(1)))
}

fn joined(pieces: Vec<(Bytes, u64)>, enough: u64) -> Vec<(Bytes, u64)> {
    let mut joined: Vec<(Bytes, u64)> = Vec::new();
    for (key, bytes) in pieces {
        match joined.last_mut() {
            Some((_, size)) if *size < enough => *size += bytes,
            _ => joined.push((key, bytes)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_lies_above_the_first_and_at_most_at_the_last() {
        let keys: [&[u8]; 7] = [b"", b"\0", b"\0\0\0\0\0\0\0\0\0\x01", b"a", b"a\0", b"ab", b"\xff\xff\xff"];
        for first in keys {
            for last in keys {
                match between(first, last) {
                    Some(middle) => assert!(first < middle.as_slice() && middle.as_slice() <= last),
                    None => assert!(first >= last),
                }
            }
        }
        assert_eq!(between(b"a", b"c"), Some(b"b".to_vec()));
    }

    #[test]
    fn the_contents_of_files_are_read_from_a_text() {
        let text = "# data blocks=2; # entries=9; # deletions=2; raw key size=300; raw average key size=3.0; \
                    raw value size=40; filter block size=7";
        let expected = FileTotals { bytes: 0, data_bytes: 340, entries: 9, deletions: 2 };
        assert_eq!(totals_of(text), Some(expected));
        assert_eq!(totals_of("raw key size=300"), None);
    }

    #[test]
    fn adjacent_pieces_are_joined_until_they_are_large_enough() {
        let pieces = (0..10u8).map(|i| (Bytes::from(vec![i]), 1)).collect();
        let joined = joined(pieces, 3);
        assert_eq!(joined.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [3, 3, 3, 1]);
        assert_eq!(joined.get(1).unwrap().0, Bytes::from(vec![3]));
    }
}

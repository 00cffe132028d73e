//! The record of what changes in a tablet while it is copied to another group.
//!
//! A copy is read while the tablet is served, part by part. Whatever changes after the record has begun is in it: keys of cells, ranges of
//! keys, idempotency tokens. It does not have their contents; who takes the changes then reads the present content, which may be newer than
//! the changes that were taken: then the newer ones are in the next lot. So a copy is right when every change was taken and sent after it
//! was applied.
//!
//! Changes are noted where they are written to the store, whatever has caused them: writes, deletions of row ranges, garbage collection.
//! Both noting and taking happen under the lock of the group's state. So at the moment of a take, every change of an applied entry is in
//! the store and in what is taken, and no change is dropped between the two.
//!
//! The record is in the memory of one replica. It is *given up* when it becomes too large, or when the store is replaced: then nothing more
//! can be taken, and the copy is worth nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::error::{Error, Reason};
use ebla_model::id::CopyId;
use ebla_model::key::KeyRange;
use ebla_storage::store::layout::MetaKey;
use parking_lot::Mutex;

use crate::tablet::core::apply::CellEdit;
use crate::tablet::core::state::MetaEdit;

/// Maximum memory of a record, in bytes: 200,000 cells with keys of 100 bytes.
const MEMORY_MAX: usize = 32 << 20;
/// Memory of an entry besides its key, in bytes.
const ENTRY_BYTES: usize = 64;

/// The changes of a tablet since some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::tablet) struct Changes {
    /// The cells that were stored or removed one by one, with the length of the value that was stored last.
    pub(in crate::tablet) cells: BTreeMap<Bytes, usize>,
    /// The ranges that were removed, as in `RemovedCells`.
    pub(in crate::tablet) removed: Vec<(Bytes, Bytes)>,
    /// The tokens that were recorded, with the length of the record, which contains the response.
    pub(in crate::tablet) tokens: BTreeMap<Bytes, usize>,
}

/// The size of a record, readable without a lock.
#[derive(Debug, Default)]
pub(in crate::tablet) struct RecordGauge {
    /// What the changes would need in messages, with a part for each, in bytes.
    content: AtomicUsize,
    is_given_up: AtomicBool,
}

impl RecordGauge {
    /// What the changes that were not taken would need in messages, in bytes.
    pub(in crate::tablet) fn content_bytes(&self) -> usize {
        self.content.load(Ordering::Relaxed)
    }

    /// Whether the record is given up.
    pub(in crate::tablet) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Acquire)
    }
}

/// The record of one tablet.
#[derive(Debug)]
struct ChangeRecord {
    /// The keys of the tablet's cells and tokens; without an upper bound, to the end.
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    changes: Changes,
    memory: usize,
    memory_max: usize,
    gauge: Arc<RecordGauge>,
}

impl ChangeRecord {
    fn new(rows: &KeyRange, memory_max: usize) -> Self {
        let (lower, upper) = codec::range_bounds(rows);
        Self { lower, upper, changes: Changes::default(), memory: 0, memory_max, gauge: Arc::default() }
    }

    fn note_cells(&mut self, edits: &[CellEdit]) {
        for edit in edits {
            match edit {
                CellEdit::Put(key, value) => self.note_cell(key, value.len()),
                CellEdit::Delete(key) => self.note_cell(key, 0),
                CellEdit::DeleteRange(from, to) => self.note_range(from, to.as_deref()),
            }
        }
    }

    fn note_meta(&mut self, edits: &[MetaEdit]) {
        for edit in edits {
            // A token that has expired needs no mention: it expires in the target too.
            if let MetaEdit::Put(MetaKey::Token(key), value) = edit
                && self.has(key)
            {
                let earlier = self.changes.tokens.insert(Bytes::copy_from_slice(key), value.len());
                self.count(key.len(), value.len(), earlier);
            }
        }
    }

    fn note_cell(&mut self, key: &[u8], value_bytes: usize) {
        if self.has(key) {
            let earlier = self.changes.cells.insert(Bytes::copy_from_slice(key), value_bytes);
            self.count(key.len(), value_bytes, earlier);
        }
    }

    fn note_range(&mut self, from: &[u8], to: Option<&[u8]>) {
        let from = from.max(self.lower.as_slice());
        let to = match (to, self.upper.as_deref()) {
            (Some(to), Some(upper)) => Some(to.min(upper)),
            (to, upper) => to.or(upper),
        };
        if !self.gauge.is_given_up()
            && to.is_none_or(|to| from < to)
            && self.upper.as_deref().is_none_or(|upper| from < upper)
        {
            let (from, to) = (Bytes::copy_from_slice(from), Bytes::copy_from_slice(to.unwrap_or_default()));
            let bytes = from.len() + to.len();
            self.changes.removed.push((from, to));
            self.count(bytes, 0, None);
        }
    }

    /// Whether a key is the tablet's, and the record is kept.
    fn has(&self, key: &[u8]) -> bool {
        let is_inside = key >= self.lower.as_slice() && self.upper.as_deref().is_none_or(|upper| key < upper);
        is_inside && !self.gauge.is_given_up()
    }

    /// Counts an entry. `earlier`: the length of the value that it had, if it is not new.
    fn count(&mut self, key_bytes: usize, value_bytes: usize, earlier: Option<usize>) {
        let before = self.gauge.content_bytes();
        let content = match earlier {
            Some(earlier) => (before + value_bytes).saturating_sub(earlier),
            None => {
                self.memory += key_bytes + ENTRY_BYTES;
                before + key_bytes + value_bytes + ENTRY_BYTES
            }
        };
        self.gauge.content.store(content, Ordering::Relaxed);
        if self.memory > self.memory_max {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.changes = Changes::default();
        self.memory = 0;
        self.gauge.content.store(0, Ordering::Relaxed);
        self.gauge.is_given_up.store(true, Ordering::Release);
    }

    fn take(&mut self) -> Option<Changes> {
        if self.gauge.is_given_up() {
            return None;
        }
        self.memory = 0;
        self.gauge.content.store(0, Ordering::Relaxed);
        Some(std::mem::take(&mut self.changes))
    }
}

/// The records of a replica.
#[derive(Debug, Default)]
pub(in crate::tablet) struct ChangeRecords {
    /// Locked to note, take, add or remove; all but the removal happen under the lock of the group's state, which is taken first.
    by_copy: Mutex<BTreeMap<CopyId, ChangeRecord>>,
}

impl ChangeRecords {
    /// Begins a record of these stored rows. The caller holds the state.
    pub(in crate::tablet) fn begin(&self, copy: CopyId, rows: &KeyRange) -> Arc<RecordGauge> {
        let record = ChangeRecord::new(rows, MEMORY_MAX);
        let gauge = Arc::clone(&record.gauge);
        self.by_copy.lock().insert(copy, record);
        gauge
    }

    /// Notes what is being written to the store. The caller holds the state.
    pub(in crate::tablet) fn note(&self, cells: &[CellEdit], meta: &[MetaEdit]) {
        for record in self.by_copy.lock().values_mut() {
            record.note_cells(cells);
            record.note_meta(meta);
        }
    }

    /// Takes the changes since the beginning or the last take. The caller holds the state.
    ///
    /// # Errors
    /// `Busy` when the record was given up.
    pub(in crate::tablet) fn take(&self, copy: CopyId) -> Result<Changes, Error> {
        let taken = self.by_copy.lock().get_mut(&copy).and_then(ChangeRecord::take);
        taken.ok_or_else(|| Error::new(Reason::Busy, "the tablet changes faster than it can be copied"))
    }

    /// Gives all records up: the store is replaced. The caller holds the state.
    pub(in crate::tablet) fn give_up(&self) {
        self.by_copy.lock().values_mut().for_each(ChangeRecord::give_up);
    }

    /// Ends a record.
    pub(in crate::tablet) fn end(&self, copy: CopyId) {
        self.by_copy.lock().remove(&copy);
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::key::RowKey;

    use super::*;

    fn record(memory_max: usize) -> ChangeRecord {
        let rows = KeyRange::new(RowKey::new("b"), Some(RowKey::new("y"))).unwrap();
        ChangeRecord::new(&rows, memory_max)
    }

    fn put(key: &str, value: &str) -> CellEdit {
        CellEdit::Put(key.into(), value.into())
    }

    fn remove(from: &str, to: Option<&str>) -> CellEdit {
        CellEdit::DeleteRange(from.into(), to.map(Into::into))
    }

    fn token(key: &'static str, value: &'static str) -> MetaEdit {
        MetaEdit::Put(MetaKey::Token(Bytes::from_static(key.as_bytes())), Bytes::from_static(value.as_bytes()))
    }

    /// The changes as text: ranges, then cells with the lengths of their values, then tokens.
    fn text(changes: &Changes) -> String {
        let show = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let ranges = changes.removed.iter().map(|(from, to)| format!("-{}..{}", show(from), show(to)));
        let cells = changes.cells.iter().map(|(key, bytes)| format!("{}:{bytes}", show(key)));
        let tokens = changes.tokens.iter().map(|(key, bytes)| format!("token {}:{bytes}", show(key)));
        ranges.chain(cells).chain(tokens).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_changes_in_the_tablet_is_recorded_once_with_its_last_length() {
        let mut record = record(1 << 20);
        record.note_cells(&[put("a", "outside"), put("c", "12345"), put("c", "123"), put("z", "outside")]);
        record.note_cells(&[
            CellEdit::Delete("d".into()),
            remove("e", Some("f")),
            remove("x", None),
            remove("a", Some("c")),
        ]);
        record.note_cells(&[remove("a", Some("b")), remove("y\0\u{1}", None), remove("z", None)]);
        record.note_meta(&[
            token("g", "1234"),
            token("a", "outside"),
            token("g", "12"),
            MetaEdit::Delete(MetaKey::Token("h".into())),
        ]);
        let (lower, upper) = codec::range_bounds(&KeyRange::new(RowKey::new("b"), Some(RowKey::new("y"))).unwrap());
        assert_eq!((lower, upper), (b"b\0\x01".to_vec(), Some(b"y\0\x01".to_vec())), "rows end with two bytes");
        let content = record.gauge.content_bytes();
        let changes = record.take().unwrap();
        assert_eq!(text(&changes), "-e..f -x..y\0\u{1} -b\0\u{1}..c c:3 d:0 token g:2");
        assert_eq!(content, 10 + (1 + 3) + 1 + (1 + 2) + 6 * ENTRY_BYTES);
        assert_eq!(record.gauge.content_bytes(), 0);
    }

    #[test]
    fn a_change_between_two_takes_is_in_the_second_one() {
        let mut record = record(1 << 20);
        record.note_cells(&[put("c", "1")]);
        assert_eq!(text(&record.take().unwrap()), "c:1");
        record.note_cells(&[CellEdit::Delete("c".into()), put("d", "22")]);
        record.note_meta(&[token("c", "1")]);
        assert_eq!(text(&record.take().unwrap()), "c:0 d:2 token c:1");
        assert_eq!(record.take(), Some(Changes::default()));
    }

    #[test]
    fn a_record_that_is_too_large_is_given_up_for_ever() {
        let mut record = record(3 * (1 + ENTRY_BYTES));
        record.note_cells(&[put("c", "1"), put("d", "1"), put("c", "2"), put("e", "1")]);
        assert!(!record.gauge.is_given_up(), "a cell counts once");
        record.note_cells(&[put("f", "1")]);
        assert!(record.gauge.is_given_up());
        record.note_cells(&[put("c", "1"), remove("c", Some("d"))]);
        record.note_meta(&[token("c", "1")]);
        assert_eq!(record.take(), None);
        assert_eq!((record.memory, &record.changes), (0, &Changes::default()));
    }

    #[test]
    fn records_end_and_are_given_up_with_the_store() {
        let records = ChangeRecords::default();
        let rows = KeyRange::all();
        let (first, second) = (CopyId::new(1), CopyId::new(2));
        let gauge = records.begin(first, &rows);
        records.note(&[put("c", "1")], &[]);
        let later = records.begin(second, &rows);
        records.note(&[put("d", "1")], &[token("e", "1")]);
        assert_eq!(text(&records.take(first).unwrap()), "c:1 d:1 token e:1");
        assert_eq!(text(&records.take(second).unwrap()), "d:1 token e:1");
        records.end(second);
        assert_eq!(records.take(second).unwrap_err().reason, Reason::Busy);
        records.give_up();
        assert!(gauge.is_given_up() && !later.is_given_up());
        assert_eq!(records.take(first).unwrap_err().reason, Reason::Busy);
    }
}

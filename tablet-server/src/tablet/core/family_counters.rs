//! How many cells of each family of a tablet were read and written, for accounting (`ebla_model::quota`).
//!
//! The counters belong to this process: they begin at zero when it starts, and when the tablet arrives in the group.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ebla_model::cell::{Cell, FamilyName};
use ebla_model::id::{FamilyId, TabletId};
use ebla_model::schema::{Family, TableSchema};

/// The counters of a tablet.
#[derive(Clone, Debug, Default)]
pub struct FamilyCounters {
    families: Vec<FamilyCounter>,
}

#[derive(Clone, Debug)]
struct FamilyCounter {
    id: FamilyId,
    name: FamilyName,
    cells: Arc<CellCounts>,
}

#[derive(Debug, Default)]
struct CellCounts {
    read: AtomicU64,
    written: AtomicU64,
}

impl FamilyCounters {
    /// Counters for the families of this schema. Those that existed before go on.
    #[must_use]
    pub fn new(schema: &TableSchema, before: Option<&Self>) -> Self {
        let cells = |id: FamilyId| {
            let known = before.and_then(|before| before.families.iter().find(|family| family.id == id));
            known.map(|known| Arc::clone(&known.cells)).unwrap_or_default()
        };
        let counter =
            |family: &Family| FamilyCounter { id: family.id, name: family.name.clone(), cells: cells(family.id) };
        Self { families: schema.families.iter().map(counter).collect() }
    }

    /// Counts the cells of a row that a read has met, which are sorted by family.
    pub fn count_read(&self, cells: &[Cell]) {
        for family in cells.chunk_by(|one, next| one.family == next.family) {
            let of = |counter: &&FamilyCounter| family.first().is_some_and(|cell| cell.family == counter.name);
            if let Some(counter) = self.families.iter().find(of) {
                counter.cells.read.fetch_add(family.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Counts cells that writes have stored, and deletions.
    pub fn count_written(&self, family: FamilyId, cells: u64) {
        if let Some(counter) = self.families.iter().find(|counter| counter.id == family) {
            counter.cells.written.fetch_add(cells, Ordering::Relaxed);
        }
    }

    /// Each family with the cells that were read and written.
    pub fn counts(&self) -> impl Iterator<Item = (FamilyId, u64, u64)> {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.families.iter().map(move |family| (family.id, now(&family.cells.read), now(&family.cells.written)))
    }
}

/// Cells that commands have written, until they are applied.
#[derive(Clone, Debug, Default)]
pub struct WrittenCells {
    /// In the order of the commands; adjacent ones of one family are added.
    cells: Vec<(TabletId, FamilyId, u64)>,
}

impl WrittenCells {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self { cells: Vec::new() }
    }

    /// Adds a cell.
    pub fn add(&mut self, tablet: TabletId, family: FamilyId) {
        match self.cells.last_mut() {
            Some((last, id, count)) if *last == tablet && *id == family => *count += 1,
            _ => self.cells.push((tablet, family, 1)),
        }
    }

    /// Takes them all.
    pub fn take(&mut self) -> Vec<(TabletId, FamilyId, u64)> {
        std::mem::take(&mut self.cells)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ebla_model::id::TableId;
    use ebla_model::schema::{FamilyChange, NewFamily, TableName};
    use ebla_model::time::Micros;

    use super::*;

    fn cell(family: &str) -> Cell {
        Cell::new(FamilyName::new(family).unwrap(), Bytes::new(), Micros::ZERO, Bytes::new())
    }

    #[test]
    fn cells_are_counted_by_family_and_the_counts_survive_a_change_of_the_schema() {
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let families = ["a", "b"].map(|family| (FamilyName::new(family).unwrap(), None));
        let schema = TableSchema::new(TableId::new(7), name, families).unwrap();
        let id = |name: &str| schema.require_family(name).unwrap().id;
        let counters = FamilyCounters::new(&schema, None);
        counters.count_read(&[cell("a"), cell("b"), cell("b"), cell("unknown")]);
        counters.count_written(id("a"), 5);
        let create = FamilyChange::Create(NewFamily::plain(FamilyName::new("c").unwrap(), None));
        let changed = schema.apply(&[FamilyChange::Drop { name: FamilyName::new("b").unwrap() }, create]).unwrap();
        let next = FamilyCounters::new(&changed, Some(&counters));
        next.count_read(&[cell("a"), cell("c")]);
        let counts = |counters: &FamilyCounters| {
            counters.counts().map(|(_id, read, written)| (read, written)).collect::<Vec<_>>()
        };
        assert_eq!(counts(&next), [(2, 5), (1, 0)]);
        assert_eq!(counts(&counters), [(2, 5), (2, 0)], "the family that stays has one counter");
    }

    #[test]
    fn adjacent_cells_are_added() {
        let mut written = WrittenCells::new();
        for (tablet, family) in [(1, 1), (1, 1), (1, 2), (2, 2), (1, 1)] {
            written.add(TabletId::new(tablet), FamilyId::new(family));
        }
        let expected = [(1, 1, 2), (1, 2, 1), (2, 2, 1), (1, 1, 1)];
        assert_eq!(
            written.take(),
            expected.map(|(tablet, family, count)| (TabletId::new(tablet), FamilyId::new(family), count))
        );
        assert!(written.take().is_empty());
    }
}

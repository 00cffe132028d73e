//! The content of an entry: the cells of one row, in one piece of memory.

use std::collections::BTreeSet;

use ebla_model::id::FamilyId;

/// The cells of a row in some families, as stored: also those that readers must hide.
#[derive(Debug)]
pub struct CachedRow {
    /// All cells of these families are there, and no others.
    families: FamilySet,
    /// The cells of these families are known to be too large together.
    too_large: Option<FamilySet>,
    /// For each cell the lengths of key and value in four bytes each, little endian, then the key within the row and the value.
    cells: Box<[u8]>,
}

/// A set of families of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FamilySet {
    /// All, also future ones.
    All,
    These(BTreeSet<FamilyId>),
}

impl CachedRow {
    /// `known`: the entry that it replaces.
    pub(super) fn new(known: Option<&Self>, families: FamilySet, cells: CellsBuilder) -> Self {
        let too_large = known.and_then(|known| known.too_large.clone());
        Self { families, too_large, cells: cells.0.into_boxed_slice() }
    }

    /// The entry `known`, if there is one, with the note that the cells of these families are too large together.
    pub(super) fn too_large(known: Option<&Self>, families: FamilySet) -> Self {
        let none = || (FamilySet::These(BTreeSet::new()), Box::default());
        let (known, cells) = known.map_or_else(none, |known| (known.families.clone(), known.cells.clone()));
        Self { families: known, too_large: Some(families), cells }
    }

    pub(super) const fn families(&self) -> &FamilySet {
        &self.families
    }

    /// Whether the cells of all these families are there; `None`: of all.
    pub(super) fn has_all(&self, families: Option<&BTreeSet<FamilyId>>) -> bool {
        match (&self.families, families) {
            (FamilySet::All, _) => true,
            (FamilySet::These(_), None) => false,
            (FamilySet::These(known), Some(wanted)) => wanted.is_subset(known),
        }
    }

    /// Whether the cells of these families are known to be too large.
    pub(super) fn is_too_large(&self, families: &FamilySet) -> bool {
        self.too_large.as_ref().is_some_and(|too_large| match (too_large, families) {
            (_, FamilySet::All) => true,
            (FamilySet::All, FamilySet::These(_)) => false,
            (FamilySet::These(too_large), FamilySet::These(wanted)) => too_large.is_subset(wanted),
        })
    }

    /// The size of the row.
    pub(super) fn bytes(&self) -> usize {
        self.cells.len()
    }

    /// Key within the row and value of each cell, in the store's order.
    #[must_use]
    pub fn cells(&self) -> Cells<'_> {
        Cells(&self.cells)
    }
}

impl FamilySet {
    /// `None`: all.
    pub(super) fn of(families: Option<&BTreeSet<FamilyId>>) -> Self {
        families.map_or(Self::All, |families| Self::These(families.clone()))
    }

    /// `None`: all.
    pub(super) const fn families(&self) -> Option<&BTreeSet<FamilyId>> {
        match self {
            Self::All => None,
            Self::These(families) => Some(families),
        }
    }

    pub(super) fn union(self, other: Option<&Self>) -> Self {
        match (self, other) {
            (own, None) => own,
            (Self::All, _) | (_, Some(Self::All)) => Self::All,
            (Self::These(own), Some(Self::These(other))) => Self::These(own.union(other).copied().collect()),
        }
    }

    /// Whether a cell belongs to one of them, by its key within the row.
    pub(super) fn has_cell(&self, cell: &[u8]) -> bool {
        match (self, cell.first_chunk()) {
            (Self::All, _) => true,
            (Self::These(families), Some(id)) => families.contains(&FamilyId::new(u32::from_be_bytes(*id))),
            // Damaged: the reader finds that out.
            (Self::These(_), None) => true,
        }
    }
}

/// Collects cells.
#[derive(Default)]
pub(super) struct CellsBuilder(Vec<u8>);

impl CellsBuilder {
    /// Adds a cell. Both parts are smaller than 4 GiB, because rows that are not are too large.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) {
        let length = |part: &[u8]| u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes();
        self.0.reserve(8 + key.len() + value.len());
        self.0.extend_from_slice(&length(key));
        self.0.extend_from_slice(&length(value));
        self.0.extend_from_slice(key);
        self.0.extend_from_slice(value);
    }
}

/// Iterates over the cells of a row.
#[derive(Clone, Debug)]
pub struct Cells<'r>(&'r [u8]);

impl<'r> Iterator for Cells<'r> {
    type Item = (&'r [u8], &'r [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = self.0.split_first_chunk()?;
        let (value, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at_checked(length(*key))?;
        let (value, rest) = rest.split_at_checked(length(*value))?;
        self.0 = rest;
        Some((key, value))
    }
}

fn length(stored: [u8; 4]) -> usize {
    usize::try_from(u32::from_le_bytes(stored)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(ids: &[u32]) -> FamilySet {
        FamilySet::These(ids.iter().map(|id| FamilyId::new(*id)).collect())
    }

    #[test]
    fn cells_come_back() {
        let mut cells = CellsBuilder::default();
        let all: [(&[u8], &[u8]); 3] = [(b"key", b"value"), (b"k", b""), (b"", b"v")];
        all.iter().for_each(|(key, value)| cells.push(key, value));
        let row = CachedRow::new(None, FamilySet::All, cells);
        assert_eq!(row.cells().collect::<Vec<_>>(), all);
        assert_eq!(row.bytes(), 3 * 8 + 10);
    }

    #[test]
    fn a_row_has_the_families_that_it_was_read_with() {
        let row = |families| CachedRow::new(None, families, CellsBuilder::default());
        let wanted: BTreeSet<FamilyId> = [1, 2].map(FamilyId::new).into();
        assert!(row(FamilySet::All).has_all(None) && row(FamilySet::All).has_all(Some(&wanted)));
        assert!(row(these(&[1, 2, 3])).has_all(Some(&wanted)) && !row(these(&[1, 2, 3])).has_all(None));
        assert!(!row(these(&[1])).has_all(Some(&wanted)));
        assert_eq!(these(&[1]).union(Some(&these(&[2]))), these(&[1, 2]));
        assert_eq!(these(&[1]).union(Some(&FamilySet::All)), FamilySet::All);
        assert!(these(&[1]).has_cell(&[0, 0, 0, 1, 9]) && !these(&[1]).has_cell(&[0, 0, 0, 2]));
    }

    #[test]
    fn what_is_too_large_stays_so_with_more_families() {
        let row = CachedRow::too_large(None, these(&[1, 2]));
        assert!(row.is_too_large(&FamilySet::All) && row.is_too_large(&these(&[1, 2, 3])));
        assert!(!row.is_too_large(&these(&[1])) && !row.has_all(Some(&[FamilyId::new(1)].into())));
        assert!(!CachedRow::too_large(None, FamilySet::All).is_too_large(&these(&[1])));
        let mut cells = CellsBuilder::default();
        cells.push(b"k", b"v");
        let known = CachedRow::new(None, these(&[1]), cells);
        let marked = CachedRow::too_large(Some(&known), FamilySet::All);
        assert!(marked.has_all(Some(&[FamilyId::new(1)].into())) && marked.cells().count() == 1);
    }
}

//! Cells and rows as readers see them.
//!
//! A row's cells are in the order of the public API: families by name, qualifiers ascending, versions newest first.
//! Filters, limits and offsets depend on that order; code that builds a [`Row`] must maintain it.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::Error;
use crate::key::RowKey;
use crate::plain_name::is_plain_name;
use crate::time::Micros;

/// Longest name of a family, in bytes.
pub const FAMILY_NAME_BYTES_MAX: usize = 64;

/// A column family's name: letters, digits and `-_.`, 1 to 64 of them. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilyName(Arc<str>);

impl FamilyName {
    /// The name, checked.
    ///
    /// # Errors
    /// `InvalidArgument` when it is empty, too long, or holds another character.
    pub fn new(name: &str) -> Result<Self, Error> {
        if !is_plain_name(name, FAMILY_NAME_BYTES_MAX) {
            return Err(Error::invalid(format!(
                "invalid column family name {name:?}: expected 1 to {FAMILY_NAME_BYTES_MAX} letters, digits and -_."
            )));
        }
        Ok(Self(name.into()))
    }

    /// A constant of this program, known to be valid.
    pub(crate) fn from_static(name: &'static str) -> Self {
        Self(name.into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Equality that compares pointers first: cells of one family share one name.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self == other
    }
}

impl Borrow<str> for FamilyName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FamilyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FamilyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

/// One version of one column of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The column's family.
    pub family: FamilyName,
    /// The column within its family; may be empty.
    pub qualifier: Bytes,
    /// The version.
    pub timestamp: Micros,
    /// The content.
    pub value: Bytes,
    /// Labels that filters attached.
    pub labels: Vec<Arc<str>>,
}

impl Cell {
    /// A cell without labels.
    pub const fn new(family: FamilyName, qualifier: Bytes, timestamp: Micros, value: Bytes) -> Self {
        Self { family, qualifier, timestamp, value, labels: Vec::new() }
    }

    /// Whether both are versions of one column.
    pub fn is_same_column(&self, other: &Self) -> bool {
        self.family.is_same(&other.family) && self.qualifier == other.qualifier
    }

    /// The order of cells within a row.
    pub fn order(&self, other: &Self) -> Ordering {
        let families =
            if self.family.is_same(&other.family) { Ordering::Equal } else { self.family.cmp(&other.family) };
        families.then_with(|| self.qualifier.cmp(&other.qualifier)).then_with(|| other.timestamp.cmp(&self.timestamp))
    }

    /// Approximate memory of its content, in bytes.
    pub fn size_bytes(&self) -> usize {
        let labels: usize = self.labels.iter().map(|label| label.len()).sum();
        self.family.as_str().len() + self.qualifier.len() + self.value.len() + labels + size_of::<Micros>()
    }
}

/// A row: its key and its cells, in [`Cell::order`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Its key.
    pub key: RowKey,
    /// Its visible cells.
    pub cells: Vec<Cell>,
}

impl Row {
    /// A row that has no cells.
    pub const fn empty(key: RowKey) -> Self {
        Self { key, cells: Vec::new() }
    }

    /// Whether it has no visible cells.
    pub const fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Approximate memory of its content, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.key.as_bytes().len() + self.cells.iter().map(Cell::size_bytes).sum::<usize>()
    }

    /// The newest version of a column, if there is one.
    pub fn newest(&self, family: &str, qualifier: &[u8]) -> Option<&Cell> {
        let order = |cell: &Cell| cell.family.as_str().cmp(family).then_with(|| cell.qualifier.as_ref().cmp(qualifier));
        let first = self.cells.partition_point(|cell| order(cell) == Ordering::Less);
        self.cells.get(first).filter(|cell| order(cell) == Ordering::Equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_names_are_checked() {
        assert!(FamilyName::new("anchor").is_ok());
        assert!(FamilyName::new("a-b_c.9").is_ok());
        for bad in ["", "a:b", "a b", "é", &"x".repeat(65)] {
            assert!(FamilyName::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn newest_finds_the_first_version_of_its_column() {
        let cell = |family: &str, qualifier: &'static str, timestamp| {
            let family = FamilyName::new(family).unwrap();
            Cell::new(family, Bytes::from(qualifier), Micros::new(timestamp), Bytes::new())
        };
        let cells = vec![cell("a", "q", 9), cell("a", "r", 8), cell("a", "r", 7), cell("b", "q", 9)];
        let row = Row { key: RowKey::new("k"), cells };
        assert_eq!(row.newest("a", b"r").unwrap().timestamp, Micros::new(8));
        assert_eq!(row.newest("b", b"r"), None);
    }
}

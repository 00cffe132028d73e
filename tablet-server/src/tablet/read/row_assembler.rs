//! The row assembler: turns the cells of a scan into rows in the reader's order and with family names.
//!
//! The store orders cells by row, family *id*, qualifier, newest version first, and contains cells that no reader may see:
//! versions that GC rules call dead, and cells of dropped families. A [`RowAssembler`] takes the cells
//! of a scan one by one, in either direction, and returns rows whose families are in byte order of their names.
//!
//! GC rules are evaluated at each read, at the tablet's GC time, so the progress of garbage collection is never visible.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::codec::{self, ColumnKey};
use ebla_model::error::Error;
use ebla_model::gc::{GcRule, VersionGc};
use ebla_model::id::FamilyId;
use ebla_model::key::RowKey;
use ebla_model::schema::TableSchema;
use ebla_model::stored_row::table_prefix;
use ebla_model::time::Micros;

use crate::tablet::read::projection::SeekTarget;

/// The family data that a reader needs, built once for each schema.
#[derive(Clone, Debug)]
pub struct Families {
    /// By id.
    by_id: Vec<FamilyRules>,
    /// The length of the table's prefix in stored rows, in bytes.
    row_prefix_bytes: usize,
}

#[derive(Clone, Debug)]
struct FamilyRules {
    id: FamilyId,
    name: FamilyName,
    rule: Option<GcRule>,
    floor: Option<Micros>,
}

impl Families {
    /// The families of a schema; cells below a floor are dead whatever the rule says.
    #[must_use]
    pub fn new(schema: &TableSchema, floors: &BTreeMap<FamilyId, Micros>) -> Self {
        let by_id = schema.families.iter().map(|family| FamilyRules {
            id: family.id,
            name: family.name.clone(),
            rule: family.gc.clone(),
            floor: floors.get(&family.id).copied(),
        });
        let mut by_id: Vec<_> = by_id.collect();
        by_id.sort_by_key(|family| family.id);
        Self { by_id, row_prefix_bytes: table_prefix(schema.table).len() }
    }

    fn get(&self, id: FamilyId) -> Option<&FamilyRules> {
        let at = self.by_id.binary_search_by_key(&id, |family| family.id).ok()?;
        self.by_id.get(at)
    }

    /// Ids and names, in the store's order.
    pub fn names(&self) -> impl Iterator<Item = (FamilyId, &FamilyName)> {
        self.by_id.iter().map(|family| (family.id, &family.name))
    }

    /// The rule of a family, if any part of it counts versions.
    #[must_use]
    pub fn counting_rule(&self, id: FamilyId) -> Option<&GcRule> {
        self.get(id)?.rule.as_ref().filter(|rule| rule.counts_versions())
    }

    /// Whether any rule counts versions, so that dead versions must be removed by log entries.
    #[must_use]
    pub fn has_version_limits(&self) -> bool {
        self.by_id.iter().any(|family| family.rule.as_ref().is_some_and(GcRule::counts_versions))
    }

    /// Whether any rule depends on ages, so that the tablet's time matters to readers.
    #[must_use]
    pub fn has_age_limits(&self) -> bool {
        self.by_id.iter().any(|family| family.rule.as_ref().is_some_and(depends_on_age))
    }
}

fn depends_on_age(rule: &GcRule) -> bool {
    match rule {
        GcRule::MaxAge(_) => true,
        GcRule::MaxVersions(_) => false,
        GcRule::Any(members) | GcRule::All(members) => members.iter().any(depends_on_age),
    }
}

/// The order in which a scan returns the cells of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellOrder {
    /// As stored.
    Ascending,
    /// Reversed.
    Descending,
}

/// Assembles one row after the other from its cells.
#[derive(Debug)]
pub struct RowAssembler<'a> {
    families: &'a Families,
    gc_time: Micros,
    order: CellOrder,
    /// The escaped key of the current row, its terminator included.
    prefix: Vec<u8>,
    row: RowKey,
    /// In a descending scan cells wait here for newer versions, which decide whether they are visible.
    waiting: Vec<Stored>,
    /// The column whose versions are being evaluated.
    column: Option<(FamilyId, Bytes, VersionGc<'a>)>,
    visible: Vec<Cell>,
}

#[derive(Debug)]
struct Stored {
    column: ColumnKey,
    value: Bytes,
}

impl<'a> RowAssembler<'a> {
    /// An assembler without cells; ages are evaluated at `gc_time`.
    #[must_use]
    pub fn new(families: &'a Families, gc_time: Micros, order: CellOrder) -> Self {
        let (prefix, row) = (Vec::new(), RowKey::default());
        Self { families, gc_time, order, prefix, row, waiting: Vec::new(), column: None, visible: Vec::new() }
    }

    /// The order of the cells.
    #[must_use]
    pub const fn order(&self) -> CellOrder {
        self.order
    }

    /// Starts the row of the cell with this key.
    ///
    /// # Errors
    /// `DataDamaged` when the key is not what the store writes.
    pub fn start_row(&mut self, key: &[u8]) -> Result<&RowKey, Error> {
        let (row, rest) = codec::unescape(key)?;
        self.prefix.clear();
        self.prefix.extend_from_slice(key.get(..key.len() - rest.len()).unwrap_or_default());
        // The caller reads one table: its prefix is known.
        let length = self.families.row_prefix_bytes;
        if row.len() < length {
            return Err(Error::damaged("a stored row is shorter than the prefix of its table"));
        }
        self.row = RowKey::new(row.slice(length..));
        Ok(&self.row)
    }

    /// The part of a cell's key after the row; `None` when the cell belongs to another row.
    #[must_use]
    pub fn within_row<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        key.strip_prefix(self.prefix.as_slice())
    }

    /// The key to seek to for a target, in the order of the scan.
    pub(super) fn key_of(&self, target: &SeekTarget<'_>) -> Vec<u8> {
        match target {
            SeekTarget::Column(column) => [self.prefix.as_slice(), column.as_ref()].concat(),
            SeekTarget::NextRow if self.order == CellOrder::Descending => self.prefix.clone(),
            // The prefix ends with 01.
            SeekTarget::NextRow => codec::prefix_end(&self.prefix).unwrap_or_default(),
        }
    }

    /// Adds the next cell of the row, by its key within the row. Returns whether it is already known to be visible.
    ///
    /// # Errors
    /// `DataDamaged` when key or value are not what the store writes.
    pub fn add_cell(&mut self, cell: &[u8], value: &[u8]) -> Result<bool, Error> {
        let column = ColumnKey::decode(cell)?;
        if self.order == CellOrder::Descending {
            self.waiting.push(Stored { column, value: Bytes::copy_from_slice(value) });
            return Ok(false);
        }
        self.evaluate(column, value)
    }

    /// The assembled row, with its visible cells only.
    ///
    /// # Errors
    /// `DataDamaged` when a value is not what the store writes.
    pub fn finish_row(&mut self) -> Result<Row, Error> {
        while let Some(Stored { column, value }) = self.waiting.pop() {
            self.evaluate(column, &value)?;
        }
        self.column = None;
        let mut cells = std::mem::take(&mut self.visible);
        // Stable: within a family the store's order is the reader's.
        if !cells.is_sorted_by(|one, next| one.family <= next.family) {
            cells.sort_by(|one, other| one.family.cmp(&other.family));
        }
        Ok(Row { key: self.row.clone(), cells })
    }

    /// Receives cells in the store's order: the newest version of a column first.
    fn evaluate(&mut self, cell: ColumnKey, value: &[u8]) -> Result<bool, Error> {
        // An unknown family was dropped; its cells are waiting for a compaction.
        let Some(family) = self.families.get(cell.family) else { return Ok(false) };
        let same = self.column.as_ref().is_some_and(|(id, name, _)| *id == cell.family && *name == cell.qualifier);
        let judge = match &mut self.column {
            Some((_, _, judge)) if same => judge,
            column => {
                let judge = VersionGc::new(family.rule.as_ref(), self.gc_time);
                &mut column.insert((cell.family, cell.qualifier.clone(), judge)).2
            }
        };
        let above_floor = family.floor.is_none_or(|floor| cell.timestamp >= floor);
        let is_visible = judge.is_live(cell.timestamp) && above_floor;
        if is_visible {
            let value = codec::decode_value(Bytes::copy_from_slice(value))?;
            self.visible.push(Cell::new(family.name.clone(), cell.qualifier, cell.timestamp, value));
        }
        Ok(is_visible)
    }
}

/// Families for tests.
#[cfg(test)]
pub(super) mod testing {
    use ebla_model::schema::{Family, TableState};
    use ebla_model::{SchemaVersion, TableId, TableName};

    use super::*;

    /// The table of the families.
    pub(in crate::tablet) const TABLE: TableId = TableId::new(7);

    /// Families with these ids, names and GC rules.
    pub(in crate::tablet) fn families(families: &[(u32, &str, Option<GcRule>)]) -> Families {
        let family = |(id, name, gc): &(u32, &str, Option<GcRule>)| Family {
            id: FamilyId::new(*id),
            name: FamilyName::new(name).unwrap(),
            gc: gc.clone(),
            locality_group: 0,
            aggregator: None,
        };
        let schema = TableSchema {
            table: TABLE,
            name: TableName::from_parts("p", "inst", "t").unwrap(),
            version: SchemaVersion::new(1),
            families: families.iter().map(family).collect(),
            locality_groups: Vec::new(),
            quotas: Default::default(),
            next_family: FamilyId::new(100),
            deletion_protection: false,
            state: TableState::Active,
        };
        Families::new(&schema, &BTreeMap::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebla_model::Reason;
    use ebla_model::stored_row::stored_row;

    /// The older family has the later name.
    fn families() -> Families {
        testing::families(&[(1, "z", Some(GcRule::MaxVersions(1))), (2, "a", None)])
    }

    fn cell(row: &'static str, family: u32, qualifier: &str, timestamp: i64) -> (Vec<u8>, Vec<u8>) {
        let row = stored_row(testing::TABLE, &RowKey::new(row));
        let key =
            codec::encode_parts(row.as_bytes(), FamilyId::new(family), qualifier.as_bytes(), Micros::new(timestamp));
        (key, codec::encode_value(format!("{qualifier}{timestamp}").as_bytes()))
    }

    fn assemble(order: CellOrder) -> Vec<String> {
        let families = families();
        let mut stored = [
            cell("r", 1, "q", 5),
            cell("r", 1, "q", 9),
            cell("r", 2, "b", 1),
            cell("r", 2, "a", 2),
            cell("r", 9, "dropped", 2),
            cell("s", 2, "a", 3),
        ];
        stored.sort();
        if order == CellOrder::Descending {
            stored.reverse();
        }
        let mut assembler = RowAssembler::new(&families, Micros::ZERO, order);
        let mut rows = Vec::new();
        assembler.start_row(&stored[0].0).unwrap();
        for (key, value) in &stored {
            if assembler.within_row(key).is_none() {
                rows.push(assembler.finish_row().unwrap());
                assembler.start_row(key).unwrap();
            }
            assembler.add_cell(assembler.within_row(key).unwrap(), value).unwrap();
        }
        rows.push(assembler.finish_row().unwrap());
        assert!(assembler.finish_row().unwrap().is_empty());
        let show =
            |cell: &Cell| format!("{}:{}@{}", cell.family, String::from_utf8_lossy(&cell.qualifier), cell.timestamp);
        rows.iter()
            .map(|row| format!("{} {}", row.key, row.cells.iter().map(show).collect::<Vec<_>>().join(" ")))
            .collect()
    }

    #[test]
    fn families_are_ordered_by_name_and_dead_versions_are_hidden() {
        assert_eq!(assemble(CellOrder::Ascending), ["r a:a@2 a:b@1 z:q@9", "s a:a@3"]);
    }

    #[test]
    fn a_descending_scan_returns_the_same_rows() {
        assert_eq!(assemble(CellOrder::Descending), ["s a:a@3", "r a:a@2 a:b@1 z:q@9"]);
    }

    #[test]
    fn undecodable_cells_are_reported_as_damage() {
        let families = families();
        let mut assembler = RowAssembler::new(&families, Micros::ZERO, CellOrder::Ascending);
        let damaged = |error: Error| assert_eq!(error.reason, Reason::DataDamaged, "{error}");
        damaged(assembler.start_row(b"no terminator").unwrap_err());
        damaged(assembler.start_row(b"r\0\x01\0\0").unwrap_err());
        assembler.start_row(b"\x02\x07r\0\x01\0\0").unwrap();
        damaged(assembler.add_cell(b"\0\0", b"").unwrap_err());
        let (key, _) = cell("r", 2, "q", 1);
        assembler.start_row(&key).unwrap();
        let column = assembler.within_row(&key).unwrap().to_vec();
        damaged(assembler.add_cell(&column, &[77, 1]).unwrap_err());
        damaged(assembler.add_cell(&column, &[]).unwrap_err());
    }
}

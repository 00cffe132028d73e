//! Rows out of cells: the store's order and names become the reader's.
//!
//! The store orders cells by row, family *id*, qualifier, newest version first, and holds what no reader may see:
//! versions that the collection rules call dead, and cells of families that were dropped. A [`Gatherer`] takes the cells
//! of a scan one by one, in either direction, and gives rows whose families stand in byte order of their names.
//!
//! Garbage is judged here at each read, at the tablet's GC time, so how far collection has come is never seen.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::codec::{self, ColumnKey};
use ebla_model::error::Error;
use ebla_model::gc::{GcRule, Judge};
use ebla_model::id::FamilyId;
use ebla_model::key::RowKey;
use ebla_model::schema::TableSchema;
use ebla_model::time::Micros;

use crate::tablet::wanted::Target;

/// What a reader needs to know of the families, made once for each schema.
#[derive(Clone, Debug)]
pub struct Families {
    /// By id.
    known: Vec<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    id: FamilyId,
    name: FamilyName,
    rule: Option<GcRule>,
    floor: Option<Micros>,
}

impl Families {
    /// The families of a schema; cells below a floor are gone whatever the rule says.
    #[must_use]
    pub fn new(schema: &TableSchema, floors: &BTreeMap<FamilyId, Micros>) -> Self {
        let known = schema.families.iter().map(|family| Known {
            id: family.id,
            name: family.name.clone(),
            rule: family.gc.clone(),
            floor: floors.get(&family.id).copied(),
        });
        let mut known: Vec<_> = known.collect();
        known.sort_by_key(|family| family.id);
        Self { known }
    }

    fn get(&self, id: FamilyId) -> Option<&Known> {
        let at = self.known.binary_search_by_key(&id, |family| family.id).ok()?;
        self.known.get(at)
    }

    /// Ids and names, in the store's order.
    pub fn names(&self) -> impl Iterator<Item = (FamilyId, &FamilyName)> {
        self.known.iter().map(|family| (family.id, &family.name))
    }

    /// The rule of a family, if it counts versions anywhere.
    #[must_use]
    pub fn counting_rule(&self, id: FamilyId) -> Option<&GcRule> {
        self.get(id)?.rule.as_ref().filter(|rule| rule.counts())
    }

    /// Whether any rule counts versions, so that what it hides must be removed by entries of the log.
    #[must_use]
    pub fn count_versions(&self) -> bool {
        self.known.iter().any(|family| family.rule.as_ref().is_some_and(GcRule::counts))
    }

    /// Whether any rule looks at ages, so that the tablet's time matters to readers.
    #[must_use]
    pub fn look_at_ages(&self) -> bool {
        self.known.iter().any(|family| family.rule.as_ref().is_some_and(looks_at_ages))
    }
}

fn looks_at_ages(rule: &GcRule) -> bool {
    match rule {
        GcRule::MaxAge(_) => true,
        GcRule::MaxVersions(_) => false,
        GcRule::Any(members) | GcRule::All(members) => members.iter().any(looks_at_ages),
    }
}

/// The order in which a scan hands over the cells of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellOrder {
    /// As stored.
    Rising,
    /// From the last to the first.
    Falling,
}

/// Collects the cells of one row after the other.
#[derive(Debug)]
pub struct Gatherer<'a> {
    families: &'a Families,
    gc_time: Micros,
    order: CellOrder,
    /// The escaped key of the row being gathered, its terminator included.
    prefix: Vec<u8>,
    row: RowKey,
    /// Cells that come falling wait here for newer ones: those decide whether they are seen.
    waiting: Vec<Stored>,
    /// The column whose versions are being judged.
    column: Option<(FamilyId, Bytes, Judge<'a>)>,
    seen: Vec<Cell>,
}

#[derive(Debug)]
struct Stored {
    column: ColumnKey,
    value: Bytes,
}

impl<'a> Gatherer<'a> {
    /// Nothing gathered; `gc_time` is the time by which ages are judged.
    #[must_use]
    pub fn new(families: &'a Families, gc_time: Micros, order: CellOrder) -> Self {
        let (prefix, row) = (Vec::new(), RowKey::default());
        Self { families, gc_time, order, prefix, row, waiting: Vec::new(), column: None, seen: Vec::new() }
    }

    /// How the cells come.
    #[must_use]
    pub const fn order(&self) -> CellOrder {
        self.order
    }

    /// Begins the row of the cell with this key.
    ///
    /// # Errors
    /// `DataDamaged` when the key is not what the store writes.
    pub fn begin(&mut self, key: &[u8]) -> Result<&RowKey, Error> {
        let (row, rest) = codec::unescape(key)?;
        self.prefix.clear();
        self.prefix.extend_from_slice(key.get(..key.len() - rest.len()).unwrap_or_default());
        self.row = RowKey::new(row);
        Ok(&self.row)
    }

    /// What follows the row in the key of a cell of it; `None` when the cell belongs to another row.
    #[must_use]
    pub fn within_row<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        key.strip_prefix(self.prefix.as_slice())
    }

    /// Where to seek for a target, in the order in which cells come.
    pub(super) fn key_of(&self, target: &Target<'_>) -> Vec<u8> {
        match target {
            Target::Column(column) => [self.prefix.as_slice(), column.as_ref()].concat(),
            Target::NextRow if self.order == CellOrder::Falling => self.prefix.clone(),
            // The prefix ends with 01.
            Target::NextRow => codec::prefix_end(&self.prefix).unwrap_or_default(),
        }
    }

    /// Takes the next cell of the row, by what follows the row in its key. Whether it is known already that it is visible.
    ///
    /// # Errors
    /// `DataDamaged` when key or value are not what the store writes.
    pub fn take(&mut self, cell: &[u8], value: &[u8]) -> Result<bool, Error> {
        let column = ColumnKey::decode(cell)?;
        if self.order == CellOrder::Falling {
            self.waiting.push(Stored { column, value: Bytes::copy_from_slice(value) });
            return Ok(false);
        }
        self.judge(column, value)
    }

    /// The row gathered, with its visible cells only.
    ///
    /// # Errors
    /// `DataDamaged` when a value is not what the store writes.
    pub fn finish(&mut self) -> Result<Row, Error> {
        while let Some(Stored { column, value }) = self.waiting.pop() {
            self.judge(column, &value)?;
        }
        self.column = None;
        let mut cells = std::mem::take(&mut self.seen);
        // Stable: inside a family the store's order is the reader's.
        if !cells.is_sorted_by(|one, next| one.family <= next.family) {
            cells.sort_by(|one, other| one.family.cmp(&other.family));
        }
        Ok(Row { key: self.row.clone(), cells })
    }

    /// Cells come here in the store's order: the newest version of a column first.
    fn judge(&mut self, cell: ColumnKey, value: &[u8]) -> Result<bool, Error> {
        // A family that the schema does not know was dropped; what is left of it waits for a compaction.
        let Some(family) = self.families.get(cell.family) else { return Ok(false) };
        let same = self.column.as_ref().is_some_and(|(id, name, _)| *id == cell.family && *name == cell.qualifier);
        let judge = match &mut self.column {
            Some((_, _, judge)) if same => judge,
            column => {
                let judge = Judge::new(family.rule.as_ref(), self.gc_time);
                &mut column.insert((cell.family, cell.qualifier.clone(), judge)).2
            }
        };
        let above_floor = family.floor.is_none_or(|floor| cell.timestamp >= floor);
        let is_visible = judge.keeps(cell.timestamp) && above_floor;
        if is_visible {
            let value = codec::decode_value(Bytes::copy_from_slice(value))?;
            self.seen.push(Cell::new(family.name.clone(), cell.qualifier, cell.timestamp, value));
        }
        Ok(is_visible)
    }
}

/// Families of a table that a test needs.
#[cfg(test)]
pub(super) mod testing {
    use ebla_model::schema::{Family, TableState};
    use ebla_model::{SchemaVersion, TableId, TableName};

    use super::*;

    /// These, by id, name and what is kept of them.
    pub(in crate::tablet) fn families(families: &[(u32, &str, Option<GcRule>)]) -> Families {
        let family = |(id, name, gc): &(u32, &str, Option<GcRule>)| Family {
            id: FamilyId::new(*id),
            name: FamilyName::new(name).unwrap(),
            gc: gc.clone(),
            locality_group: 0,
            aggregator: None,
        };
        let schema = TableSchema {
            table: TableId::new(7),
            name: TableName::from_parts("p", "inst", "t").unwrap(),
            version: SchemaVersion::new(1),
            families: families.iter().map(family).collect(),
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

    /// The older family has the later name.
    fn families() -> Families {
        testing::families(&[(1, "z", Some(GcRule::MaxVersions(1))), (2, "a", None)])
    }

    fn cell(row: &str, family: u32, qualifier: &str, timestamp: i64) -> (Vec<u8>, Vec<u8>) {
        let key =
            codec::encode_parts(row.as_bytes(), FamilyId::new(family), qualifier.as_bytes(), Micros::new(timestamp));
        (key, codec::encode_value(format!("{qualifier}{timestamp}").as_bytes()))
    }

    fn gather(order: CellOrder) -> Vec<String> {
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
        if order == CellOrder::Falling {
            stored.reverse();
        }
        let mut gatherer = Gatherer::new(&families, Micros::ZERO, order);
        let mut rows = Vec::new();
        gatherer.begin(&stored[0].0).unwrap();
        for (key, value) in &stored {
            if gatherer.within_row(key).is_none() {
                rows.push(gatherer.finish().unwrap());
                gatherer.begin(key).unwrap();
            }
            gatherer.take(gatherer.within_row(key).unwrap(), value).unwrap();
        }
        rows.push(gatherer.finish().unwrap());
        assert!(gatherer.finish().unwrap().is_empty());
        let show =
            |cell: &Cell| format!("{}:{}@{}", cell.family, String::from_utf8_lossy(&cell.qualifier), cell.timestamp);
        rows.iter()
            .map(|row| format!("{} {}", row.key, row.cells.iter().map(show).collect::<Vec<_>>().join(" ")))
            .collect()
    }

    #[test]
    fn families_stand_by_name_and_dead_versions_are_not_seen() {
        assert_eq!(gather(CellOrder::Rising), ["r a:a@2 a:b@1 z:q@9", "s a:a@3"]);
    }

    #[test]
    fn a_falling_scan_gives_the_same_rows() {
        assert_eq!(gather(CellOrder::Falling), ["s a:a@3", "r a:a@2 a:b@1 z:q@9"]);
    }

    #[test]
    fn bytes_that_are_no_cell_are_damage() {
        let families = families();
        let mut gatherer = Gatherer::new(&families, Micros::ZERO, CellOrder::Rising);
        let damaged = |error: Error| assert_eq!(error.reason, Reason::DataDamaged, "{error}");
        damaged(gatherer.begin(b"no terminator").unwrap_err());
        gatherer.begin(b"r\0\x01\0\0").unwrap();
        damaged(gatherer.take(b"\0\0", b"").unwrap_err());
        let (key, _) = cell("r", 2, "q", 1);
        gatherer.begin(&key).unwrap();
        let column = gatherer.within_row(&key).unwrap().to_vec();
        damaged(gatherer.take(&column, &[77, 1]).unwrap_err());
        damaged(gatherer.take(&column, &[]).unwrap_err());
    }
}

//! Rows out of cells: the store's order and names become the reader's.
//!
//! The store orders cells by row, family *id*, qualifier, newest version first, and holds what no reader may see:
//! versions that the collection rules call dead, and cells of families that were dropped. A [`Gatherer`] takes the cells
//! of a scan one by one, in either direction, and gives rows whose families stand in byte order of their names.
//!
//! Garbage is judged here at each read, at the tablet's GC time, so how far collection has come is never seen.

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::codec::{self, ColumnKey};
use ebla_model::error::Error;
use ebla_model::gc::{GcRule, Judge};
use ebla_model::id::FamilyId;
use ebla_model::key::RowKey;
use ebla_model::schema::TableSchema;
use ebla_model::time::Micros;
use std::collections::BTreeMap;

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
    /// Its place among the names.
    rank: usize,
}

impl Families {
    /// The families of a schema; cells below a floor are gone whatever the rule says.
    #[must_use]
    pub fn new(schema: &TableSchema, floors: &BTreeMap<FamilyId, Micros>) -> Self {
        let mut names: Vec<_> = schema.families.iter().map(|family| &family.name).collect();
        names.sort();
        let known = schema.families.iter().map(|family| Known {
            id: family.id,
            name: family.name.clone(),
            rule: family.gc.clone(),
            floor: floors.get(&family.id).copied(),
            rank: names.binary_search(&&family.name).unwrap_or(usize::MAX),
        });
        let mut known: Vec<_> = known.collect();
        known.sort_by_key(|family| family.id);
        Self { known }
    }

    fn get(&self, id: FamilyId) -> Option<&Known> {
        let at = self.known.binary_search_by_key(&id, |family| family.id).ok()?;
        self.known.get(at)
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
    /// The escaped key of the row being gathered, its terminator included. Empty before the first.
    prefix: Vec<u8>,
    cells: Vec<(usize, Stored)>,
    bytes: usize,
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
        Self { families, gc_time, order, prefix: Vec::new(), cells: Vec::new(), bytes: 0 }
    }

    /// Whether this cell belongs to the row being gathered, or there is none yet.
    #[must_use]
    pub fn accepts(&self, key: &[u8]) -> bool {
        self.prefix.is_empty() || key.starts_with(&self.prefix)
    }

    /// Bytes of keys and values taken for the row so far.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the next cell of the row ([`Gatherer::accepts`] says whether it is).
    ///
    /// # Errors
    /// `DataDamaged` when key or value are not what the store writes.
    pub fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if self.prefix.is_empty() {
            let length = codec::escaped_len(key)?;
            self.prefix.extend_from_slice(key.get(..length).unwrap_or_default());
        }
        self.bytes += key.len() + value.len();
        let column = ColumnKey::decode(key.get(self.prefix.len()..).unwrap_or_default())?;
        // A family that the schema does not know was dropped; what is left of it waits for a compaction.
        if let Some(family) = self.families.get(column.family) {
            let value = codec::decode_value(Bytes::copy_from_slice(value))?;
            self.cells.push((family.rank, Stored { column, value }));
        }
        Ok(())
    }

    /// The row gathered, with its visible cells only; `None` when no cell was taken. Begins the next one.
    ///
    /// # Errors
    /// `DataDamaged` when the row's key cannot be read.
    pub fn finish(&mut self) -> Result<Option<Row>, Error> {
        if self.prefix.is_empty() {
            return Ok(None);
        }
        let (key, _) = codec::unescape(&self.prefix)?;
        self.prefix.clear();
        self.bytes = 0;
        let mut cells = std::mem::take(&mut self.cells);
        if self.order == CellOrder::Falling {
            cells.reverse();
        }
        // Stable: inside a family the store's order is the reader's.
        if !cells.is_sorted_by_key(|(rank, _)| *rank) {
            cells.sort_by_key(|(rank, _)| *rank);
        }
        Ok(Some(Row { key: RowKey::new(key), cells: self.visible(cells) }))
    }

    fn visible(&self, cells: Vec<(usize, Stored)>) -> Vec<Cell> {
        let mut seen: Vec<Cell> = Vec::with_capacity(cells.len());
        let mut column: Option<(FamilyId, Bytes, Judge<'_>)> = None;
        for (_, Stored { column: at, value }) in cells {
            let Some(family) = self.families.get(at.family) else { continue };
            let same = column.as_ref().is_some_and(|(id, name, _)| *id == at.family && *name == at.qualifier);
            let judge = match &mut column {
                Some((_, _, judge)) if same => judge,
                slot => {
                    let judge = Judge::new(family.rule.as_ref(), self.gc_time);
                    &mut slot.insert((at.family, at.qualifier.clone(), judge)).2
                }
            };
            let above_floor = family.floor.is_none_or(|floor| at.timestamp >= floor);
            if judge.keeps(at.timestamp) && above_floor {
                seen.push(Cell::new(family.name.clone(), at.qualifier, at.timestamp, value));
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebla_model::schema::{Family, TableState};
    use ebla_model::{SchemaVersion, TableId, TableName};

    fn schema() -> TableSchema {
        let family = |id: u32, name: &str, gc| Family {
            id: FamilyId::new(id),
            name: FamilyName::new(name).unwrap(),
            gc,
            locality_group: 0,
            aggregator: None,
        };
        TableSchema {
            table: TableId::new(7),
            name: TableName::from_parts("p", "inst", "t").unwrap(),
            version: SchemaVersion::new(1),
            // The older family has the later name.
            families: vec![family(1, "z", Some(GcRule::MaxVersions(1))), family(2, "a", None)],
            next_family: FamilyId::new(3),
            deletion_protection: false,
            state: TableState::Active,
        }
    }

    fn cell(row: &str, family: u32, qualifier: &str, timestamp: i64) -> (Vec<u8>, Vec<u8>) {
        let key =
            codec::encode_parts(row.as_bytes(), FamilyId::new(family), qualifier.as_bytes(), Micros::new(timestamp));
        (key, codec::encode_value(format!("{qualifier}{timestamp}").as_bytes()))
    }

    fn gather(order: CellOrder) -> Vec<String> {
        let families = Families::new(&schema(), &BTreeMap::new());
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
        for (key, value) in stored {
            if !gatherer.accepts(&key) {
                rows.extend(gatherer.finish().unwrap());
            }
            gatherer.take(&key, &value).unwrap();
        }
        rows.extend(gatherer.finish().unwrap());
        assert!(gatherer.finish().unwrap().is_none());
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
}

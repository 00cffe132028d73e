//! Placement: in which column family of the store the cells of a table's family are. Pure.
//!
//! A family has a **current** column family, to which its cells are written, and while it moves a **previous** one, which may hold cells
//! that were written before. A cell that is in both is that of the current one: a write stores a cell there, and a deletion
//! deletes it in both. The cells of the previous family are moved in the background (relocation.rs); after that there is none.
//!
//! A placement is local to a replica: it says where cells are and not which ones exist. It is stored beside the cells, under one meta key for each table
//! that does not have all its families in `lg0`, and is derived from the schema again whenever that changes.
//!
//! | value of `placement/<table>` | |
//! |---|---|
//! | version | 1 (1 byte) |
//! | then for each family, by id | id (u32 BE), name of the current column family, name of the previous one |
//! | a name | length (1 byte; 0: none), bytes |

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ebla_model::codec;
use ebla_model::id::{FamilyId, TableId};
use ebla_model::key::KeyRange;
use ebla_model::stored_row::stored_range;

use super::cell_family::CellFamily;
use super::error::StoreError;
use super::scan::row_prefix_of;

/// First byte of a stored placement.
const VERSION: u8 = 1;

/// Where the families of one table shall be: by the schema.
pub type WantedFamilies = BTreeMap<FamilyId, CellFamily>;

/// Where the cells of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyPlacement {
    /// Where they are written.
    pub current: CellFamily,
    /// Where some may still be.
    pub previous: Option<CellFamily>,
}

/// Where the cells of a table's families are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePlacement {
    families: BTreeMap<FamilyId, FamilyPlacement>,
}

/// What a store knows of a table when its placement is first recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableContent {
    /// It has no cell of the table.
    Empty,
    /// It has cells, all of them in `lg0`.
    InLg0,
}

impl TablePlacement {
    /// The placement that follows this one (`None`: all families are in `lg0`) when the schema wants `wanted`.
    ///
    /// A family that still moves stays where it moves to: it moves on when that has ended.
    #[must_use]
    pub fn next(recorded: Option<&Self>, wanted: &WantedFamilies, content: TableContent) -> Option<Self> {
        let lg0 = CellFamily::lg0();
        let place = |(id, wanted): (&FamilyId, &CellFamily)| {
            let known = match recorded {
                Some(recorded) => recorded.families.get(id).copied(),
                None if content == TableContent::InLg0 => Some(FamilyPlacement { current: lg0, previous: None }),
                None => None,
            };
            let placement = match known {
                // Every family of a recorded table is in the record, so this one is new and has no cells.
                None => FamilyPlacement { current: *wanted, previous: None },
                Some(moving) if moving.previous.is_some() || moving.current == *wanted => moving,
                Some(placed) => FamilyPlacement { current: *wanted, previous: Some(placed.current) },
            };
            (*id, placement)
        };
        let families: BTreeMap<_, _> = wanted.iter().map(place).collect();
        let is_default = |placement: &FamilyPlacement| *placement == FamilyPlacement { current: lg0, previous: None };
        (!families.values().all(is_default)).then_some(Self { families })
    }

    /// The placement when nothing of this family is left in its previous column family.
    #[must_use]
    pub fn without_previous(&self, family: FamilyId) -> Self {
        let mut next = self.clone();
        if let Some(placement) = next.families.get_mut(&family) {
            placement.previous = None;
        }
        next
    }

    /// The first family that moves.
    #[must_use]
    pub fn moving(&self) -> Option<(FamilyId, FamilyPlacement)> {
        let mut moving = self.families.iter().filter(|(_id, placement)| placement.previous.is_some());
        moving.next().map(|(id, placement)| (*id, *placement))
    }

    /// The value of its meta key.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut value = vec![VERSION];
        for (id, placement) in &self.families {
            value.extend(id.get().to_be_bytes());
            for name in [Some(placement.current), placement.previous] {
                let name = name.map(|family| family.to_string()).unwrap_or_default();
                value.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
                value.extend(name.as_bytes());
            }
        }
        value.into()
    }

    /// Reads the value of a meta key.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it is not one.
    pub fn decode(value: &[u8]) -> Result<Self, StoreError> {
        let damaged = || StoreError::damaged("decode placement", "the value is malformed or of a newer version");
        let mut rest = value.strip_prefix(&[VERSION]).ok_or_else(damaged)?;
        let mut families = BTreeMap::new();
        while let Some((id, after)) = rest.split_first_chunk::<4>() {
            rest = after;
            let current = take_name(&mut rest).ok_or_else(damaged)?.ok_or_else(damaged)?;
            let previous = take_name(&mut rest).ok_or_else(damaged)?;
            families.insert(FamilyId::new(u32::from_be_bytes(*id)), FamilyPlacement { current, previous });
        }
        let placement = Self { families };
        if placement.encode() == value { Ok(placement) } else { Err(damaged()) }
    }
}

/// The name at the start of `rest`, which continues behind it; `Some(None)` for no name.
fn take_name(rest: &mut &[u8]) -> Option<Option<CellFamily>> {
    let (length, after) = rest.split_first()?;
    let (name, after) = after.split_at_checked(usize::from(*length))?;
    *rest = after;
    match name {
        [] => Some(None),
        name => std::str::from_utf8(name).ok()?.parse().ok().map(Some),
    }
}

/// The placements of all tables of a store. A table without one has all its cells in `lg0`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placements {
    /// By the first key of the table: `lower <= key < upper`.
    tables: Vec<PlacedTable>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlacedTable {
    table: TableId,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    placement: TablePlacement,
}

/// The bounds of all keys of a table.
pub(super) fn table_bounds(table: TableId) -> (Vec<u8>, Option<Vec<u8>>) {
    codec::range_bounds(&stored_range(table, &KeyRange::all()))
}

impl Placements {
    /// The placements of these tables.
    pub fn new(tables: impl IntoIterator<Item = (TableId, TablePlacement)>) -> Self {
        let placed = |(table, placement)| {
            let (lower, upper) = table_bounds(table);
            PlacedTable { table, lower, upper, placement }
        };
        let mut tables: Vec<PlacedTable> = tables.into_iter().map(placed).collect();
        tables.sort_by(|a, b| a.lower.cmp(&b.lower));
        Self { tables }
    }

    /// Whether all cells are in `lg0`.
    #[must_use]
    pub fn is_trivial(&self) -> bool {
        self.tables.is_empty()
    }

    /// The tables with their placements.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &TablePlacement)> {
        self.tables.iter().map(|placed| (placed.table, &placed.placement))
    }

    /// The placement of a table.
    #[must_use]
    pub fn table(&self, table: TableId) -> Option<&TablePlacement> {
        self.tables().find(|(id, _placement)| *id == table).map(|(_id, placement)| placement)
    }

    /// Where the cell with this key is.
    #[must_use]
    pub fn of_key(&self, key: &[u8]) -> FamilyPlacement {
        let lg0 = FamilyPlacement { current: CellFamily::lg0(), previous: None };
        let Some(at) = self.tables.partition_point(|placed| placed.lower.as_slice() <= key).checked_sub(1) else {
            return lg0;
        };
        let Some(placed) = self.tables.get(at).filter(|placed| placed.has(key)) else { return lg0 };
        let family = family_of(key).and_then(|family| placed.placement.families.get(&family));
        family.copied().unwrap_or(lg0)
    }

    /// Where the cells of a family are, of the table whose keys include `key`.
    #[must_use]
    pub fn of_family(&self, key: &[u8], family: FamilyId) -> FamilyPlacement {
        let placed = self.tables.iter().find(|placed| placed.has(key));
        let placement = placed.and_then(|placed| placed.placement.families.get(&family));
        placement.copied().unwrap_or(FamilyPlacement { current: CellFamily::lg0(), previous: None })
    }

    /// The column families that a read of `lower <= key < upper` must open: those of its tables' families, of `families` alone if given.
    #[must_use]
    pub fn of_range(
        &self,
        (lower, upper): (&[u8], Option<&[u8]>),
        families: Option<&BTreeSet<FamilyId>>,
    ) -> BTreeSet<CellFamily> {
        let mut found = BTreeSet::new();
        let mut is_inside = false;
        for placed in &self.tables {
            let is_behind = placed.upper.as_deref().is_some_and(|end| end <= lower);
            let is_before = upper.is_some_and(|upper| upper <= placed.lower.as_slice());
            if is_behind || is_before {
                continue;
            }
            is_inside |= placed.contains_range(lower, upper);
            let is_wanted = |id: &FamilyId| families.is_none_or(|families| families.contains(id));
            let wanted = placed.placement.families.iter().filter(|(id, _placement)| is_wanted(id));
            found.extend(wanted.flat_map(|(_id, placement)| [Some(placement.current), placement.previous]).flatten());
        }
        if !is_inside {
            found.insert(CellFamily::lg0());
        }
        found
    }

    /// All column families that it names, and `lg0`.
    #[must_use]
    pub fn all(&self) -> BTreeSet<CellFamily> {
        let placements = self.tables().flat_map(|(_table, placement)| placement.families.values());
        let named = placements.flat_map(|placement| [Some(placement.current), placement.previous]).flatten();
        named.chain([CellFamily::lg0()]).collect()
    }
}

impl PlacedTable {
    fn has(&self, key: &[u8]) -> bool {
        self.lower.as_slice() <= key && self.upper.as_deref().is_none_or(|upper| key < upper)
    }

    /// Whether all keys of a range are the table's.
    fn contains_range(&self, lower: &[u8], upper: Option<&[u8]>) -> bool {
        let ends_inside = match (upper, self.upper.as_deref()) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(upper), Some(end)) => upper <= end,
        };
        self.lower.as_slice() <= lower && ends_inside
    }
}

/// The family of a cell's key; `None` for other bytes.
pub(super) fn family_of(key: &[u8]) -> Option<FamilyId> {
    let rest = key.strip_prefix(row_prefix_of(key)?)?;
    let (family, _rest) = rest.split_first_chunk::<4>()?;
    Some(FamilyId::new(u32::from_be_bytes(*family)))
}

#[cfg(test)]
mod tests {
    use ebla_model::key::RowKey;
    use ebla_model::stored_row::stored_row;
    use ebla_model::time::Micros;

    use super::*;

    fn lg(group: u32) -> CellFamily {
        if group == 0 {
            return CellFamily::lg0();
        }
        CellFamily { group, options: "compression=none".parse().unwrap() }
    }

    fn wanted(groups: &[(u32, u32)]) -> WantedFamilies {
        groups.iter().map(|(family, group)| (FamilyId::new(*family), lg(*group))).collect()
    }

    /// Families with their current and previous groups.
    fn placed(families: &[(u32, u32, Option<u32>)]) -> TablePlacement {
        let placement = |(id, current, previous): &(u32, u32, Option<u32>)| {
            (FamilyId::new(*id), FamilyPlacement { current: lg(*current), previous: previous.map(lg) })
        };
        TablePlacement { families: families.iter().map(placement).collect() }
    }

    fn key(table: u64, row: &'static str, family: u32) -> Vec<u8> {
        let row = stored_row(TableId::new(table), &RowKey::new(row));
        codec::encode_parts(row.as_bytes(), FamilyId::new(family), b"q", Micros::new(1))
    }

    #[test]
    fn a_table_in_lg0_has_no_record_until_a_family_moves() {
        assert_eq!(TablePlacement::next(None, &wanted(&[(1, 0), (2, 0)]), TableContent::InLg0), None);
        let next = TablePlacement::next(None, &wanted(&[(1, 0), (2, 1)]), TableContent::InLg0);
        assert_eq!(next, Some(placed(&[(1, 0, None), (2, 1, Some(0))])));
        let next = TablePlacement::next(None, &wanted(&[(1, 0), (2, 1)]), TableContent::Empty);
        assert_eq!(next, Some(placed(&[(1, 0, None), (2, 1, None)])), "nothing has to move");
    }

    #[test]
    fn a_family_moves_on_when_its_move_has_ended() {
        let moving = placed(&[(1, 1, Some(0))]);
        let next = |recorded: &TablePlacement, group| {
            TablePlacement::next(Some(recorded), &wanted(&[(1, group)]), TableContent::InLg0)
        };
        assert_eq!(next(&moving, 2), Some(moving.clone()), "not before");
        assert_eq!(next(&moving, 0), Some(moving.clone()), "also not back");
        let moved = moving.without_previous(FamilyId::new(1));
        assert_eq!(moved, placed(&[(1, 1, None)]));
        assert_eq!(next(&moved, 2), Some(placed(&[(1, 2, Some(1))])));
        let back = next(&moved, 0).unwrap();
        assert_eq!(back, placed(&[(1, 0, Some(1))]));
        assert_eq!(next(&back.without_previous(FamilyId::new(1)), 0), None, "the record goes when all is in lg0");
    }

    #[test]
    fn a_new_family_of_a_recorded_table_is_placed_at_once_and_a_dropped_one_is_forgotten() {
        let recorded = placed(&[(1, 0, None), (2, 1, None)]);
        let next = TablePlacement::next(Some(&recorded), &wanted(&[(2, 1), (3, 2)]), TableContent::InLg0);
        assert_eq!(next, Some(placed(&[(2, 1, None), (3, 2, None)])));
    }

    #[test]
    fn keys_and_ranges_find_their_column_families() {
        let placements = Placements::new([
            (TableId::new(7), placed(&[(1, 1, None), (2, 2, Some(0))])),
            (TableId::new(300), placed(&[(1, 3, None)])),
        ]);
        let current = |key: &[u8]| placements.of_key(key).current;
        assert_eq!(current(&key(7, "a", 1)), lg(1));
        assert_eq!(placements.of_key(&key(7, "zz", 2)), FamilyPlacement { current: lg(2), previous: Some(lg(0)) });
        assert_eq!(current(&key(7, "a", 9)), lg(0), "a family without a placement");
        assert_eq!(current(&key(300, "a", 1)), lg(3));
        for other in [6, 8, 299, 301] {
            assert_eq!(current(&key(other, "a", 1)), lg(0), "{other}");
        }
        assert_eq!(current(b""), lg(0));

        let range = |table: u64, families: Option<&[u32]>| {
            let (lower, upper) = table_bounds(TableId::new(table));
            let families = families.map(|ids| ids.iter().map(|id| FamilyId::new(*id)).collect());
            let found = placements.of_range((&lower, upper.as_deref()), families.as_ref());
            found.into_iter().map(|family| family.group).collect::<Vec<_>>()
        };
        assert_eq!(range(7, None), [0, 1, 2]);
        assert_eq!(range(7, Some(&[1])), [1], "one family, one column family");
        assert_eq!(range(7, Some(&[2])), [0, 2]);
        assert_eq!(range(7, Some(&[])), [] as [u32; 0]);
        assert_eq!(range(300, None), [3]);
        assert_eq!(range(8, None), [0]);
        let whole = placements.of_range((b"", None), None);
        assert_eq!(whole.len(), 4, "a range over many tables");
        assert_eq!(placements.all().len(), 4);
    }

    #[test]
    fn values_read_back_and_others_are_refused() {
        for placement in [placed(&[]), placed(&[(1, 0, None), (70_000, 2, Some(1))])] {
            let value = placement.encode();
            assert_eq!(TablePlacement::decode(&value).unwrap(), placement);
            assert!(TablePlacement::decode(&[&value[..], &[0]].concat()).is_err());
        }
        for value in [&b""[..], b"\x02", b"\x01\0\0\0\x01", b"\x01\0\0\0\x01\0\0", b"\x01\0\0\0\x01\x03lg9\0"] {
            assert!(TablePlacement::decode(value).is_err(), "{value:?}");
        }
    }
}

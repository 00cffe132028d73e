//! Moving the cells of families between column families, after the schema has assigned them to another locality group or the options of a
//! group have changed.
//!
//! A step moves some cells in one batch: what is in the previous column family and not in the current one is written there, and deleted in the previous
//! one. Each batch leaves the same cells visible, so reads are right at every moment and a crash at any step is repaired by continuing from the
//! start: what was moved is not found again.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::codec;
use ebla_model::id::{FamilyId, TableId};
use rocksdb::{ReadOptions, WriteBatch, WriteOptions};

use super::cell_family::CellFamily;
use super::error::StoreError;
use super::layout::MetaKey;
use super::placement::{
    FamilyPlacement, Placements, TableContent, TablePlacement, WantedFamilies, family_of, table_bounds,
};
use super::scan::{check, row_prefix_of};
use super::{Batch, GroupStore};

/// A step that finds few cells to move ends after this number of keys.
const KEYS_MAX: usize = 4096;

/// Whether cells have to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relocation {
    /// There are more to move.
    More,
    /// Every family is where the schema wants it.
    Complete,
}

/// Where the relocation of a family continues.
#[derive(Clone, Debug)]
struct Position {
    table: TableId,
    family: FamilyId,
    placement: FamilyPlacement,
    from: Vec<u8>,
}

/// What the schemas want, and how far the store has followed.
#[derive(Debug, Default)]
pub(super) struct Relocations {
    wanted: BTreeMap<TableId, WantedFamilies>,
    /// Where the present move continues; after a restart it begins again.
    position: Option<Position>,
}

impl GroupStore {
    /// Sets where the schemas of the store's tables want their families: all tables. Creates the column families.
    ///
    /// Call it before cells of a new table or family are written. No write may run at the same time.
    ///
    /// # Errors
    /// When RocksDB fails.
    pub fn place_tables(&self, wanted: BTreeMap<TableId, WantedFamilies>) -> Result<(), StoreError> {
        let mut relocations = self.relocations.lock();
        if relocations.wanted == wanted {
            return Ok(());
        }
        relocations.wanted = wanted;
        self.follow(&relocations.wanted)
    }

    /// Moves about `bytes` of cells, or ends the move of a family. No write may run at the same time.
    ///
    /// # Errors
    /// When RocksDB fails.
    pub fn relocate(&self, bytes: usize) -> Result<Relocation, StoreError> {
        let mut relocations = self.relocations.lock();
        let known = relocations.position.take();
        let Some(position) = next_position(&self.placements(), known) else { return Ok(Relocation::Complete) };
        if let Some(from) = self.move_cells(&position, bytes)? {
            relocations.position = Some(Position { from, ..position });
            return Ok(Relocation::More);
        }
        self.end_move(&position)?;
        // The schema may have assigned the family to yet another group meanwhile.
        self.follow(&relocations.wanted)?;
        Ok(if self.is_relocating() { Relocation::More } else { Relocation::Complete })
    }

    /// Whether cells have to be moved.
    #[must_use]
    pub fn is_relocating(&self) -> bool {
        self.placements().tables().any(|(_table, placement)| placement.moving().is_some())
    }

    /// Reads the recorded placements of a store that was just opened.
    pub(super) fn load_placements(&self) -> Result<(), StoreError> {
        let mut placements = Vec::new();
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(MetaKey::PLACEMENTS);
        if let Some(upper) = codec::prefix_end(MetaKey::PLACEMENTS) {
            options.set_iterate_upper_bound(upper);
        }
        // Without a view: RocksDB may start a compaction when the snapshot of one is released, and a store that is opened although it is
        // damaged must not compact.
        let mut entries = self.database().raw_iterator_cf_opt(&self.meta_family()?, options);
        entries.seek_to_first();
        loop {
            check(&entries)?;
            let Some((key, value)) = entries.item() else { break };
            let Some(MetaKey::Placement(table)) = MetaKey::decode(key) else {
                return Err(StoreError::damaged("read placements", "a key names no table"));
            };
            placements.push((table, TablePlacement::decode(value)?));
            entries.next();
        }
        drop(entries);
        let placements = Placements::new(placements);
        let missing = |family: &CellFamily| !self.cell_families.read().contains(family);
        if let Some(family) = placements.all().into_iter().find(missing) {
            return Err(StoreError::damaged("read placements", format!("column family {family} is missing")));
        }
        *self.placements.write() = Arc::new(placements);
        Ok(())
    }

    /// Drops the column families in which no table has cells any more. Nothing reads the store yet.
    pub(super) fn drop_unused_families(&self) -> Result<(), StoreError> {
        let used = self.placements().all();
        let mut known = self.cell_families.write();
        for family in known.iter().filter(|family| !used.contains(family)) {
            let dropped = self.database().drop_cf(&family.to_string());
            dropped.map_err(StoreError::engine("drop column family"))?;
        }
        known.retain(|family| used.contains(family));
        Ok(())
    }

    /// Brings the placements as near to `wanted` as moves in progress allow.
    fn follow(&self, wanted: &BTreeMap<TableId, WantedFamilies>) -> Result<(), StoreError> {
        let recorded = self.placements();
        let mut next = Vec::new();
        let mut batch = Batch::new();
        for (table, families) in wanted {
            let known = recorded.table(*table);
            let content =
                if known.is_some() || all_in_lg0(families) { TableContent::InLg0 } else { self.content(*table)? };
            let placement = TablePlacement::next(known, families, content);
            if placement.as_ref() == known {
                next.extend(placement.map(|placement| (*table, placement)));
                continue;
            }
            match placement {
                Some(placement) => {
                    batch.put_meta(MetaKey::Placement(*table), placement.encode());
                    next.push((*table, placement));
                }
                None => batch.delete_meta(MetaKey::Placement(*table)),
            }
        }
        // A table that is gone may have left cells, after a division for example. If it returns, they must be found and deleted.
        let gone = recorded.tables().filter(|(table, _placement)| !wanted.contains_key(table));
        next.extend(gone.map(|(table, placement)| (table, placement.clone())));
        if batch.is_empty() {
            return Ok(());
        }
        let placements = Placements::new(next);
        for family in placements.all() {
            self.create_cell_family(family)?;
        }
        self.write(&batch)?;
        *self.placements.write() = Arc::new(placements);
        Ok(())
    }

    fn content(&self, table: TableId) -> Result<TableContent, StoreError> {
        let (lower, upper) = table_bounds(table);
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(lower);
        if let Some(upper) = upper {
            options.set_iterate_upper_bound(upper);
        }
        options.set_total_order_seek(true);
        let mut cells = self.database().raw_iterator_cf_opt(&self.lg0()?, options);
        cells.seek_to_first();
        check(&cells)?;
        Ok(if cells.valid() { TableContent::InLg0 } else { TableContent::Empty })
    }

    fn create_cell_family(&self, family: CellFamily) -> Result<(), StoreError> {
        let mut known = self.cell_families.write();
        if !known.contains(&family) {
            let options = self.shared.cell_family(family.options, Arc::clone(&self.rules), self.memory())?;
            let created = self.database().create_cf(family.to_string(), &options);
            created.map_err(StoreError::engine("create column family"))?;
            known.push(family);
        }
        Ok(())
    }

    /// Moves about `bytes`. Returns where to continue; `None` at the end.
    fn move_cells(&self, position: &Position, bytes: usize) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(previous) = position.placement.previous else { return Ok(None) };
        let (old, new) = (self.cell_family(previous)?, self.cell_family(position.placement.current)?);
        let (_lower, upper) = table_bounds(position.table);
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(position.from.as_slice());
        if let Some(upper) = upper {
            options.set_iterate_upper_bound(upper);
        }
        options.set_total_order_seek(true);
        options.fill_cache(false);
        let mut cells = self.database().raw_iterator_cf_opt(&old, options);
        cells.seek_to_first();
        let mut batch = WriteBatch::default();
        let mut keys = 0;
        let mut next = None;
        loop {
            check(&cells)?;
            let Some((key, value)) = cells.item() else { break };
            if batch.size_in_bytes() >= bytes || keys >= KEYS_MAX {
                next = Some(key.to_vec());
                break;
            }
            keys += 1;
            match target(key, position.family) {
                Target::Here => {
                    let newer = self.database().get_pinned_cf(&new, key).map_err(StoreError::engine("read cell"))?;
                    if newer.is_none() {
                        batch.put_cf(&new, key, value);
                    }
                    batch.delete_cf(&old, key);
                    cells.next();
                }
                Target::Seek(key) => cells.seek(key),
                Target::Next => cells.next(),
            }
        }
        drop(cells);
        self.write_moved(batch)?;
        Ok(next)
    }

    fn write_moved(&self, batch: WriteBatch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let bytes = batch.size_in_bytes() as u64;
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        self.database().write_opt(batch, &options).map_err(StoreError::engine("move cells"))?;
        self.count_unflushed(bytes);
        Ok(())
    }

    fn end_move(&self, position: &Position) -> Result<(), StoreError> {
        let recorded = self.placements();
        let ended = |(table, placement): (TableId, &TablePlacement)| {
            let is_it = table == position.table;
            (table, if is_it { placement.without_previous(position.family) } else { placement.clone() })
        };
        let placements = Placements::new(recorded.tables().map(ended));
        if let Some(placement) = placements.table(position.table) {
            let mut batch = Batch::new();
            batch.put_meta(MetaKey::Placement(position.table), placement.encode());
            self.write(&batch)?;
        }
        *self.placements.write() = Arc::new(placements);
        Ok(())
    }
}

fn all_in_lg0(families: &WantedFamilies) -> bool {
    families.values().all(|family| *family == CellFamily::lg0())
}

/// The move to continue: the one at `known` if it is still wanted, else the first one.
fn next_position(placements: &Placements, known: Option<Position>) -> Option<Position> {
    let is_valid = |position: &Position| {
        let moving = placements.table(position.table).and_then(TablePlacement::moving);
        moving == Some((position.family, position.placement))
    };
    let first = || {
        placements.tables().find_map(|(table, placement)| {
            let (family, placement) = placement.moving()?;
            Some(Position { table, family, placement, from: table_bounds(table).0 })
        })
    };
    known.filter(is_valid).or_else(first)
}

/// What to do with a key on the way through the cells of a family.
enum Target {
    /// It is one of them.
    Here,
    /// The next one is not before this key.
    Seek(Vec<u8>),
    /// It is no cell's key.
    Next,
}

fn target(key: &[u8], family: FamilyId) -> Target {
    let Some((row, found)) = row_prefix_of(key).zip(family_of(key)) else { return Target::Next };
    match found.cmp(&family) {
        std::cmp::Ordering::Equal => Target::Here,
        std::cmp::Ordering::Less => Target::Seek([row, &family.get().to_be_bytes()].concat()),
        std::cmp::Ordering::Greater => codec::prefix_end(row).map_or(Target::Next, Target::Seek),
    }
}

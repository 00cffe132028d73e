//! A store's folder: create, open and destroy.
//!
//! ```text
//!   <folder>/   one RocksDB database:  family `default`  meta keys (layout.rs)
//!                                      family `lg0`      cells of the default locality group (cells.rs)
//!                                      family `lg1.…`    cells of another locality group (cell_family.rs)
//! ```
//!
//! Each open names all families, `default` too, or RocksDB would use its own defaults for it (a 1 MB arena, a separate
//! cache). A second open for writing fails on RocksDB's lock, a second open for reading would not: the registry ensures that
//! a folder has one owner.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rocksdb::{ColumnFamilyDescriptor, DEFAULT_COLUMN_FAMILY_NAME, Options};
use tracing::warn;

use super::compaction::CurrentGcRules;
use super::error::{StoreError, is_exhausted};
use super::faults::StoreOperation;
use super::options::SharedResources;
use super::{CellFamily, Database, GroupStore};
use crate::folder;

impl GroupStore {
    /// Creates an empty store in `dir`, which must not have one.
    ///
    /// # Errors
    /// [`StoreError::Exists`]; else when the folder cannot be created.
    pub fn create(dir: &Path, shared: &Arc<SharedResources>) -> Result<Self, StoreError> {
        if holds_store(dir)? {
            return Err(StoreError::Exists(dir.to_owned()));
        }
        let mut options = shared.database().clone();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_error_if_exists(true);
        let store = open_with(&options, dir, vec![CellFamily::lg0()], shared)?;
        folder::sync_parent(dir).map_err(StoreError::io("sync folder of", dir))?;
        Ok(store)
    }

    /// Opens the store in `dir`.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Locked`]; [`StoreError::Damaged`] when its files are corrupted or missing;
    /// [`StoreError::Exhausted`] when there are no open files or no disk space for it.
    pub fn open(dir: &Path, shared: &Arc<SharedResources>) -> Result<Self, StoreError> {
        shared.check_injected(StoreOperation::Open, dir)?;
        if !holds_store(dir)? {
            return Err(StoreError::Missing(dir.to_owned()));
        }
        let store = open_existing(shared.database(), dir, shared)?;
        store.drop_unused_families()?;
        if let Err(error) = store.load_memory_groups() {
            // Damage is reported by the call that repeats this, or by a read.
            warn!(%error, dir = %dir.display(), "locality groups in memory not loaded; will retry");
        }
        Ok(store)
    }

    /// Opens a store of which some files are damaged or missing, as far as it is readable: a read that needs damaged bytes fails
    /// with [`StoreError::Damaged`], and writes go on. See [`GroupStore::tolerate_damage`] for the cost.
    ///
    /// # Errors
    /// As [`GroupStore::open`]: damage of the manifest cannot be tolerated.
    pub fn open_damaged(dir: &Path, shared: &Arc<SharedResources>) -> Result<Self, StoreError> {
        shared.check_injected(StoreOperation::Open, dir)?;
        if !holds_store(dir)? {
            return Err(StoreError::Missing(dir.to_owned()));
        }
        let mut options = shared.database().clone();
        // With these checks RocksDB opens no store with a file whose end it cannot read, and a background job that meets damage
        // makes it refuse all writes.
        options.set_paranoid_checks(false);
        let store = open_existing(&options, dir, shared)?;
        store.tolerate_damage()?;
        Ok(store)
    }

    /// Deletes the store in `dir` with all its files. A missing store is not an error.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when it is open; else when files cannot be deleted.
    pub fn destroy(dir: &Path) -> Result<(), StoreError> {
        if holds_store(dir)? {
            // RocksDB's own call takes the lock, so an open store is not deleted.
            Database::destroy(&Options::default(), dir)
                .map_err(|error| lock_or_engine(error, dir, "destroy tablet store"))?;
        }
        match dir.try_exists() {
            Ok(false) => Ok(()),
            Ok(true) => folder::remove(dir).map_err(StoreError::io("delete", dir)),
            Err(error) => Err(StoreError::io("stat", dir)(error)),
        }
    }
}

/// Whether the folder has a database: `CURRENT` names its manifest. A folder that cannot be read is an error: it may have one.
fn holds_store(dir: &Path) -> Result<bool, StoreError> {
    let current = dir.join("CURRENT");
    match current.metadata() {
        Ok(found) => Ok(found.is_file()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::io("stat", current)(error)),
    }
}

/// Opens a store with the column families that it has, and reads where its cells are.
fn open_existing(options: &Options, dir: &Path, shared: &Arc<SharedResources>) -> Result<GroupStore, StoreError> {
    let store = open_with(options, dir, cell_families(dir)?, shared)?;
    store.load_placements()?;
    Ok(store)
}

/// The column families of cells that the store in `dir` has.
pub(super) fn cell_families(dir: &Path) -> Result<Vec<CellFamily>, StoreError> {
    let names = Database::list_cf(&Options::default(), dir)
        .map_err(|error| lock_or_engine(error, dir, "list column families"))?;
    let cells = names.iter().filter(|name| *name != DEFAULT_COLUMN_FAMILY_NAME);
    let unknown = |name: &String| {
        StoreError::damaged(
            "list column families",
            format!("column family {name} is of a newer version or none of ours"),
        )
    };
    cells.map(|name| name.parse().map_err(|()| unknown(name))).collect()
}

fn open_with(
    options: &Options,
    dir: &Path,
    cells: Vec<CellFamily>,
    shared: &Arc<SharedResources>,
) -> Result<GroupStore, StoreError> {
    let rules = Arc::new(CurrentGcRules::default());
    let memory = shared.memory_cache();
    let mut families = vec![ColumnFamilyDescriptor::new(DEFAULT_COLUMN_FAMILY_NAME, shared.meta_family())];
    for family in &cells {
        let options = shared.cell_family(family.options, Arc::clone(&rules), &memory)?;
        families.push(ColumnFamilyDescriptor::new(family.to_string(), options));
    }
    let database = Database::open_cf_descriptors(options, dir, families)
        .map_err(|error| lock_or_engine(error, dir, "open tablet store"))?;
    Ok(GroupStore::assemble(dir.to_owned(), (database, cells), (rules, memory), Arc::clone(shared)))
}

fn lock_or_engine(error: rocksdb::Error, dir: &Path, context: &'static str) -> StoreError {
    let text = error.as_ref();
    if error.kind() != rocksdb::ErrorKind::IOError || is_exhausted(text) {
        return StoreError::engine(context)(error);
    }
    if text.contains("No such file or directory") {
        return StoreError::damaged(context, text);
    }
    if text.contains("LOCK") || text.contains("lock ") {
        return StoreError::Locked(dir.to_owned());
    }
    StoreError::io(context, dir)(io::Error::other(text.to_owned()))
}

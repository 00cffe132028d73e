//! What RocksDB does in the background in one store, for metrics.

use rocksdb::properties;

use super::GroupStore;
use super::error::StoreError;

/// The background work of stores, and what waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreActivity {
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Compactions that run.
    pub compactions: u64,
    /// Flushes that run.
    pub flushes: u64,
    /// Bytes that compactions have to rewrite, as RocksDB estimates.
    pub pending_compaction_bytes: u64,
    /// Errors of flushes and compactions since the store was opened.
    pub background_errors: u64,
    /// Stores in which RocksDB delays or stops writes until flushes or compactions have caught up.
    pub stalled_stores: u64,
}

impl StoreActivity {
    /// Adds the work of another store.
    pub const fn add(&mut self, other: Self) {
        self.file_bytes = self.file_bytes.saturating_add(other.file_bytes);
        self.compactions = self.compactions.saturating_add(other.compactions);
        self.flushes = self.flushes.saturating_add(other.flushes);
        self.pending_compaction_bytes = self.pending_compaction_bytes.saturating_add(other.pending_compaction_bytes);
        self.background_errors = self.background_errors.saturating_add(other.background_errors);
        self.stalled_stores = self.stalled_stores.saturating_add(other.stalled_stores);
    }
}

impl GroupStore {
    /// The background work of this store now. Blocks on RocksDB's mutex, never on the disk.
    ///
    /// # Errors
    /// When the store lacks a family.
    pub fn activity(&self) -> Result<StoreActivity, StoreError> {
        let value = |property| self.database().property_int_value(property).ok().flatten().unwrap_or_default();
        let mut activity = StoreActivity {
            file_bytes: self.size_bytes()?,
            compactions: value(properties::NUM_RUNNING_COMPACTIONS),
            flushes: value(properties::NUM_RUNNING_FLUSHES),
            background_errors: value(properties::BACKGROUND_ERRORS),
            stalled_stores: u64::from(self.query_write_stall()),
            ..StoreActivity::default()
        };
        for family in self.families()? {
            let pending = self.database().property_int_value_cf(&family, properties::ESTIMATE_PENDING_COMPACTION_BYTES);
            let pending = pending.ok().flatten().unwrap_or_default();
            activity.pending_compaction_bytes = activity.pending_compaction_bytes.saturating_add(pending);
        }
        Ok(activity)
    }
}

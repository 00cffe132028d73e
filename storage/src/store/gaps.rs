//! The gaps of a store: the key ranges that no tablet of its group has. Their cells are garbage: a tablet that moved or was dropped, and a
//! division of the group, leave them behind.
//!
//! Reads never see such cells, and every compaction drops those that it meets ([`super::compaction`]). But nothing makes a compaction meet
//! them: no write goes to a gap any more. So whole files are deleted at once, and what other files have of a gap is compacted.

use rocksdb::CompactOptions;

use super::error::StoreError;
use super::scan::end_of_keys;
use super::{GcRules, GroupStore};

/// A gap with less than this in the files of a column family is not compacted: whole blocks are counted, so some bytes of each gap always
/// seem to be left.
const COMPACTED_BYTES_MIN: u64 = 256 << 10;

impl GroupStore {
    /// Sets the rules after a division has reduced the group's tablets, and deletes the files that are entirely in gaps.
    ///
    /// [`Self::collect_gaps`] drops the remaining cells there. Correctness depends on neither: reads respect the range.
    ///
    /// # Errors
    /// When RocksDB fails.
    pub fn drop_outside(&self, rules: GcRules) -> Result<(), StoreError> {
        self.set_gc_rules(rules);
        self.delete_files_in_gaps()
    }

    /// Approximate bytes of the gaps in files. Nothing before the first [`Self::set_gc_rules`].
    ///
    /// # Errors
    /// When the store lacks a column family.
    pub fn bytes_in_gaps(&self) -> Result<u64, StoreError> {
        let gaps = self.gaps();
        let bytes = gaps.iter().map(|(from, to)| self.range_bytes(from, to.as_deref()));
        bytes.sum()
    }

    /// Frees the space of the gaps: deletes files and compacts others. Blocks, about a second for each 100 MB that are read; writes and
    /// other compactions go on.
    ///
    /// # Errors
    /// When RocksDB fails.
    pub fn collect_gaps(&self) -> Result<(), StoreError> {
        self.delete_files_in_gaps()?;
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        for (from, to) in self.gaps() {
            for cells in self.all_cells()? {
                if self.column_family_bytes(&cells, &from, to.as_deref()) >= COMPACTED_BYTES_MIN {
                    self.database().compact_range_cf_opt(&cells, Some(&from), to.as_ref(), &options);
                }
            }
        }
        Ok(())
    }

    fn gaps(&self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        self.rules().while_unchanged(GcRules::gaps).unwrap_or_default()
    }

    /// The rules do not change meanwhile: a tablet that is created in a gap would lose its first cells.
    fn delete_files_in_gaps(&self) -> Result<(), StoreError> {
        let deleted = self.rules().while_unchanged(|rules| -> Result<(), StoreError> {
            for (from, to) in rules.gaps() {
                let to = to.unwrap_or_else(end_of_keys);
                for cells in self.all_cells()? {
                    let deleted = self.database().delete_file_in_range_cf(&cells, &from, &to);
                    deleted.map_err(StoreError::engine("delete files outside of the tablets"))?;
                }
            }
            Ok(())
        });
        deleted.unwrap_or(Ok(()))
    }
}

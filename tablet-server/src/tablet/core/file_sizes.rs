//! The sizes of a group's tablets in files. They change only with the files or the tablets, and are computed again only then: a server
//! with thousands of tablets asks for them all the time.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::id::TabletId;
use ebla_storage::store::GroupStore;
use parking_lot::Mutex;

use crate::tablet::core::applied_state::{GroupMetadata, TabletMetadata};

/// What is in the files of a group's store, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct FileSizes {
    /// Of each tablet's rows.
    pub(super) tablets: Arc<BTreeMap<TabletId, u64>>,
    /// Of rows that are in no tablet of the group.
    pub(super) in_gaps: u64,
}

/// The last sizes.
#[derive(Default)]
pub(super) struct FileSizeCache {
    /// Locked to copy or replace the value.
    known: Mutex<Option<KnownSizes>>,
}

#[derive(Clone)]
struct KnownSizes {
    files_version: u64,
    metadata: Arc<GroupMetadata>,
    sizes: FileSizes,
}

impl FileSizeCache {
    /// The sizes in `store`, whose tablets are in `metadata`. Blocking when they are not known.
    pub(super) fn of(&self, store: &GroupStore, metadata: &Arc<GroupMetadata>) -> FileSizes {
        let files_version = store.files_version().unwrap_or_default();
        let known = self.known.lock().clone();
        if let Some(known) =
            known.filter(|known| known.files_version == files_version && Arc::ptr_eq(&known.metadata, metadata))
        {
            return known.sizes;
        }
        let size = |tablet: &TabletMetadata| {
            let range = tablet.stored_range(&tablet.descriptor.range);
            store.row_range_bytes(&range).unwrap_or_default()
        };
        let tablets = metadata.tablets.iter().map(|(id, tablet)| (*id, size(tablet)));
        let sizes =
            FileSizes { tablets: Arc::new(tablets.collect()), in_gaps: store.bytes_in_gaps().unwrap_or_default() };
        let known = KnownSizes { files_version, metadata: Arc::clone(metadata), sizes: sizes.clone() };
        *self.known.lock() = Some(known);
        sizes
    }

    /// Forgets them: the store was replaced by another one, whose version of files may be the same number.
    pub(super) fn clear(&self) {
        *self.known.lock() = None;
    }
}

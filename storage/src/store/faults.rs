//! Failures of stores that a test injects: RocksDB does its own IO, so no simulated disk can fail for it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::error::StoreError;

/// What a store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOperation {
    /// Opening the store.
    Open,
    /// Writing a batch.
    Write,
    /// Making a checkpoint.
    Checkpoint,
}

impl StoreOperation {
    const fn context(self) -> &'static str {
        match self {
            Self::Open => "open tablet store",
            Self::Write => "write batch",
            Self::Checkpoint => "make checkpoint",
        }
    }
}

/// A failure that replaces an operation of one store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFault {
    /// The folder of the store.
    pub dir: PathBuf,
    /// What fails.
    pub operation: StoreOperation,
    /// The error as RocksDB words it, such as `IO error: No space left on device`.
    pub message: String,
}

/// The failures that are injected into the stores of a server; none unless a test sets them.
#[derive(Debug, Default)]
pub(super) struct InjectedFaults {
    /// Whether there are any: read for each operation.
    exist: AtomicBool,
    /// Locked to replace or to search.
    faults: Mutex<Vec<StoreFault>>,
}

impl InjectedFaults {
    pub(super) fn set(&self, faults: Vec<StoreFault>) {
        let mut current = self.faults.lock();
        self.exist.store(!faults.is_empty(), Ordering::Relaxed);
        *current = faults;
    }

    /// Fails with the injected failure of this operation.
    pub(super) fn check(&self, operation: StoreOperation, dir: &Path) -> Result<(), StoreError> {
        if !self.exist.load(Ordering::Relaxed) {
            return Ok(());
        }
        let faults = self.faults.lock();
        let Some(fault) = faults.iter().find(|fault| fault.operation == operation && fault.dir == dir) else {
            return Ok(());
        };
        let is_corruption = fault.message.starts_with("Corruption");
        let kind = if is_corruption { rocksdb::ErrorKind::Corruption } else { rocksdb::ErrorKind::IOError };
        Err(StoreError::of_engine(operation.context(), kind, fault.message.clone()))
    }
}

//! The record of the last segment, outside the log.
//!
//! Without it, a log whose last file is lost or damaged would look like a shorter, healthy one. In production the registry of
//! the server's replicas is the manifest.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

/// Records the highest segment that was ever started.
pub trait SegmentManifest: Send + Sync + 'static {
    /// The last recorded sequence; 0 when there is none.
    fn highest(&self) -> u64;

    /// Records `sequence` durably: on return it survives a power cut. Called before the first batch of that segment.
    ///
    /// # Errors
    /// When it cannot be made durable. The log then fails.
    fn record(&self, sequence: u64) -> io::Result<()>;
}

/// A manifest in memory, for tests, benchmarks and simulation. Clones are the same manifest.
#[derive(Clone, Debug, Default)]
pub struct MemoryManifest {
    highest: Arc<Mutex<u64>>,
}

impl SegmentManifest for MemoryManifest {
    fn highest(&self) -> u64 {
        *self.highest.lock()
    }

    fn record(&self, sequence: u64) -> io::Result<()> {
        *self.highest.lock() = sequence;
        Ok(())
    }
}

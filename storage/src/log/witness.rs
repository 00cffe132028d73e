//! Who remembers which segment is the last, outside the log.
//!
//! Without a witness a log whose last file is lost or spoilt would look like a shorter, healthy one. The registry of the
//! server's replicas is the witness in production.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Remembers the highest segment ever begun.
pub trait SegmentWitness: Send + Sync + 'static {
    /// The last number recorded; 0 when there was none.
    fn highest(&self) -> u64;

    /// Records `sequence`, durably: on return it survives a power cut. Called before the first batch of that segment.
    ///
    /// # Errors
    /// When it cannot be made durable. The log fails with it.
    fn record(&self, sequence: u64) -> io::Result<()>;
}

/// A witness that lives as long as the process: for tests, benchmarks and simulation. Clones are the same witness.
#[derive(Clone, Debug, Default)]
pub struct MemoryWitness {
    highest: Arc<Mutex<u64>>,
}

impl SegmentWitness for MemoryWitness {
    fn highest(&self) -> u64 {
        *self.highest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, sequence: u64) -> io::Result<()> {
        *self.highest.lock().unwrap_or_else(PoisonError::into_inner) = sequence;
        Ok(())
    }
}

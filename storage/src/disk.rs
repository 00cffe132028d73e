//! One flat folder of files, seen as the commit log needs it: write at an offset, sync, rename, sync the folder.
//!
//! The trait is small so that its second implementation can be honest: [`sim::SimDisk`] loses, tears, reorders and rots
//! what a real disk may lose, tear, reorder and rot, and the recovery of the log is tested on it by the ten thousand.
//!
//! What the callers rely on, and what both implementations promise:
//! - a write is durable after a later [`DiskFile::sync`] of the same file returned `Ok`, or when it returned itself if the
//!   file was opened with [`Durability::OnWrite`]; before that any subset of its sectors may survive a power cut;
//! - a new, renamed or removed name is durable after a later [`Disk::sync_dir`] returned `Ok`;
//! - after a failed write or sync nothing is known, and a second sync proves nothing.
//!
//! Not here: folders in folders, locks between processes (the real disk takes one when it is opened), caching.

pub mod real;
pub mod sim;

use std::io;
use std::sync::Arc;

pub use real::RealDisk;
pub use sim::SimDisk;

/// When what is written to a file is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When a later [`DiskFile::sync`] returns. Right for files that grow.
    OnSync,
    /// When the write itself returns (`O_DSYNC`). Right for files whose blocks were written before: one call instead of two.
    OnWrite,
}

/// A folder of files. Names hold no separator.
pub trait Disk: Send + Sync + 'static {
    /// A new, empty file, open for reading and writing.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, else what the system says.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// An existing file, open for reading and writing.
    ///
    /// # Errors
    /// `NotFound` when there is none, else what the system says.
    fn open(&self, name: &str, durability: Durability) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name, replacing a file that has it. Open handles follow the file.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Takes a name away; the bytes go with the last handle.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names in the folder, in no order.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes all names durable.
    ///
    /// # Errors
    /// What the system says; the caller must not go on as if they were.
    fn sync_dir(&self) -> io::Result<()>;
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset` in bytes, growing the file when it ends before.
    ///
    /// # Errors
    /// What the system says; any part of `bytes` may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads into `buffer` from `offset`: how many bytes, fewer than asked only where the file ends.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Makes what was written durable (`fdatasync`).
    ///
    /// # Errors
    /// What the system says. Nothing is known of the earlier writes then; do not try again.
    fn sync(&self) -> io::Result<()>;

    /// How long the file is, in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether it holds nothing.
    ///
    /// # Errors
    /// What the system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

//! One flat folder of files with the operations that the commit log needs: write at an offset, sync, rename, sync the folder.
//!
//! The trait is small so that its second implementation can be realistic: [`sim::SimDisk`] loses, tears, reorders and
//! corrupts writes as a real disk may, and the log's recovery is tested on it with tens of thousands of histories.
//!
//! Guarantees of both implementations:
//! - a write is durable after a later [`DiskFile::sync`] of the same file returned `Ok`, or when it returned itself if the
//!   file was opened with [`Durability::OnWrite`]; before that any subset of its sectors may survive a power cut;
//! - a new, renamed or removed name is durable after a later [`Disk::sync_dir`] returned `Ok`;
//! - after a failed write or sync the content is unknown, and a second sync proves nothing.
//!
//! Not part of the trait: nested folders, locks between processes (the real disk takes one when it is opened), caching.

pub mod delayed;
pub mod real;
pub mod sim;

use std::io;
use std::sync::Arc;

use ebla_runtime::Failpoint;
use rustix::io::Errno;

pub use real::RealDisk;
pub use sim::SimDisk;

/// When a write to a file is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When a later [`DiskFile::sync`] returns. For files that grow.
    OnSync,
    /// When the write itself returns (`O_DSYNC`). For files whose blocks were written before: one call instead of two.
    OnWrite,
}

/// A folder of files. Names contain no separator.
pub trait Disk: Send + Sync + 'static {
    /// Creates an empty file, open for reading and writing.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, else the system's error.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// `NotFound` when there is none, else the system's error.
    fn open(&self, name: &str, durability: Durability) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, replacing any file that has the new name. Open handles follow the file.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a name; the bytes are freed with the last handle.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The names in the folder, in no order.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Bytes that can still be written to the file system.
    ///
    /// # Errors
    /// The system's error.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Makes all names durable.
    ///
    /// # Errors
    /// The system's error; the caller must not continue as if they were.
    fn sync_dir(&self) -> io::Result<()>;
}

/// Removes a file, if it exists.
///
/// # Errors
/// The system's error.
pub(crate) fn remove_if_exists(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads a whole file; `None` when it does not exist.
///
/// # Errors
/// The system's error.
pub(crate) fn read_file(disk: &dyn Disk, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(name, Durability::OnSync) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
    let read = file.read_at(0, &mut content)?;
    content.truncate(read);
    Ok(Some(content))
}

/// Why a file was not replaced.
#[derive(Debug)]
pub(crate) enum ReplaceError {
    /// It has its old content: the new one could not be written for lack of space or of open files.
    Lacking(io::Error),
    /// It has its old or its new content, never a mixture.
    Failed(io::Error),
}

impl ReplaceError {
    /// The error of a step before anything was replaced.
    fn before(error: io::Error) -> Self {
        let lacks_files =
            [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error());
        let is_lack = lacks_files || error.kind() == io::ErrorKind::StorageFull;
        if is_lack { Self::Lacking(error) } else { Self::Failed(error) }
    }
}

/// Replaces a file, or creates it, in one step; durable on return.
///
/// # Errors
/// See [`ReplaceError`].
pub(crate) fn replace_file(disk: &dyn Disk, name: &str, content: &[u8]) -> Result<(), ReplaceError> {
    let temporary = format!("{name}.new");
    let written = || {
        remove_if_exists(disk, &temporary)?;
        let file = disk.create(&temporary)?;
        file.write_at(0, content)?;
        Ok(file)
    };
    let file = written().map_err(ReplaceError::before)?;
    let is_synced = !Failpoint::RegistryNotSynced.is_enabled();
    let rest = || {
        if is_synced {
            file.sync()?;
        }
        disk.rename(&temporary, name)?;
        if is_synced { disk.sync_dir() } else { Ok(()) }
    };
    rest().map_err(ReplaceError::Failed)
}

/// An open file.
pub trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset` in bytes, growing the file when it ends before.
    ///
    /// # Errors
    /// The system's error; any part of `bytes` may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads into `buffer` from `offset`. Returns the number of bytes, fewer than requested only at the end of the file.
    ///
    /// # Errors
    /// The system's error.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Makes all writes durable (`fdatasync`).
    ///
    /// # Errors
    /// The system's error. The state of earlier writes is then unknown; do not retry.
    fn sync(&self) -> io::Result<()>;

    /// The file's length, in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file is empty.
    ///
    /// # Errors
    /// The system's error.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

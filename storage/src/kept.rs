//! A small file of what is good to know at the next start: whole, or as good as not there.
//!
//! ```text
//!   file = "EblaHnt1"  CRC-32C of the content u32 little endian  content
//! ```
//!
//! It is replaced in one step, and what is read back is what was once written. Unlike the registry it holds nothing that
//! must not be forgotten: who cannot read it goes on without.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::folder;

/// The format with its version.
const MAGIC: &[u8; 8] = b"EblaHnt1";
/// Length of what stands before the content.
const HEAD: usize = MAGIC.len() + 4;

/// Why there is nothing to read although there is a file.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The file is not what was written.
    #[error("{}: {message}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: &'static str,
    },
    /// The file system failed.
    #[error("read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A file of hints in a server's data folder. Calls block on the disk; writers must not overlap.
#[derive(Clone, Debug)]
pub struct KeptFile {
    path: PathBuf,
}

impl KeptFile {
    /// The file at `path`, which need not be there.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// What was written last; `None` when nothing was.
    ///
    /// # Errors
    /// [`KeptError`]: go on as if nothing had been written, and say so.
    pub fn read(&self) -> Result<Option<Vec<u8>>, KeptError> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(KeptError::Io { path: self.path.clone(), source }),
        };
        let content = content_of(&bytes).map_err(|message| KeptError::Damaged { path: self.path.clone(), message })?;
        Ok(Some(content.to_vec()))
    }

    /// Replaces what is there; on disk when it returns.
    ///
    /// # Errors
    /// When a step fails; the old or the new content is there then.
    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(crc32c::crc32c(content).to_le_bytes());
        bytes.extend_from_slice(content);
        folder::replace_file(&self.path, &bytes)
    }
}

/// What stands behind a head that is right about it.
fn content_of(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let (head, content) = bytes.split_at_checked(HEAD).ok_or("it is too short")?;
    let checksum = head.strip_prefix(MAGIC).ok_or("it has another version or none")?;
    if checksum == crc32c::crc32c(content).to_le_bytes() { Ok(content) } else { Err("its checksum does not match") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, KeptFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = KeptFile::new(&folder.path().join("directory"));
        (folder, file)
    }

    #[test]
    fn what_was_written_last_is_read() {
        let (_folder, file) = file();
        assert_eq!(file.read().unwrap(), None);
        for content in [&b"first"[..], b"", b"third and last"] {
            file.write(content).unwrap();
            assert_eq!(file.read().unwrap().as_deref(), Some(content));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_torn_end_is_seen_and_a_new_content_heals() {
        let (_folder, file) = file();
        file.write(b"where the others are").unwrap();
        let bytes = fs::read(&file.path).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                fs::write(&file.path, flipped).unwrap();
                assert!(matches!(file.read(), Err(KeptError::Damaged { .. })), "byte {at}, bit {bit}");
            }
            fs::write(&file.path, &bytes[..at]).unwrap();
            assert!(file.read().is_err(), "cut at {at}");
        }
        file.write(b"here").unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"here"[..]));
    }

    #[test]
    fn a_later_version_is_not_read() {
        let (_folder, file) = file();
        file.write(b"x").unwrap();
        let mut bytes = fs::read(&file.path).unwrap();
        bytes[MAGIC.len() - 1] = b'2';
        fs::write(&file.path, bytes).unwrap();
        assert!(file.read().unwrap_err().to_string().contains("version"));
    }

    #[test]
    fn what_a_crash_left_beside_it_is_no_harm() {
        let (folder, file) = file();
        file.write(b"whole").unwrap();
        fs::write(folder.path().join("directory.new"), b"ha").unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"whole"[..]));
        file.write(b"whole again").unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"whole again"[..]));
    }
}

//! A small file of hints for the next start: either intact, or ignored.
//!
//! ```text
//!   file = "EblaHnt1"  CRC-32C of the content u32 little endian  content
//! ```
//!
//! It is replaced atomically, and its checksum is verified on read. Unlike the registry it holds nothing that the server
//! needs: if it cannot be read, the server continues without it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::folder;

/// The format with its version.
const MAGIC: &[u8; 8] = b"EblaHnt1";
/// Length of the header before the content.
const HEAD: usize = MAGIC.len() + 4;

/// Why an existing file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HintFileError {
    /// The file does not have the bytes that were written.
    #[error("read {}: {message}", path.display())]
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
        /// The system's error.
        source: io::Error,
    },
}

/// A file of hints in a server's data folder. Calls block on the disk; writers must not overlap.
#[derive(Clone, Debug)]
pub struct HintFile {
    path: PathBuf,
}

impl HintFile {
    /// The file at `path`, which need not exist.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf() }
    }

    /// The content that was written last; `None` when the file does not exist.
    ///
    /// # Errors
    /// [`HintFileError`]: log it and continue as if the file did not exist.
    pub fn read(&self) -> Result<Option<Vec<u8>>, HintFileError> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(HintFileError::Io { path: self.path.clone(), source }),
        };
        let content =
            content_of(&bytes).map_err(|message| HintFileError::Damaged { path: self.path.clone(), message })?;
        Ok(Some(content.to_vec()))
    }

    /// Replaces the content; durable on return.
    ///
    /// # Errors
    /// When a step fails; the file then has the old or the new content.
    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(crc32c::crc32c(content).to_le_bytes());
        bytes.extend_from_slice(content);
        folder::replace_file(&self.path, &bytes)
    }
}

/// The content after a valid header.
fn content_of(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let (head, content) = bytes.split_at_checked(HEAD).ok_or("the file is too short")?;
    let checksum = head.strip_prefix(MAGIC).ok_or("the file has an unknown version or none")?;
    if checksum == crc32c::crc32c(content).to_le_bytes() { Ok(content) } else { Err("the checksum does not match") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> (tempfile::TempDir, HintFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = HintFile::new(&folder.path().join("directory"));
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
    fn every_flipped_bit_and_every_truncation_is_detected_and_a_new_write_repairs() {
        let (_folder, file) = file();
        file.write(b"where the others are").unwrap();
        let bytes = fs::read(&file.path).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                fs::write(&file.path, flipped).unwrap();
                assert!(matches!(file.read(), Err(HintFileError::Damaged { .. })), "byte {at}, bit {bit}");
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
    fn a_temporary_file_left_by_a_crash_is_harmless() {
        let (folder, file) = file();
        file.write(b"whole").unwrap();
        fs::write(folder.path().join("directory.new"), b"ha").unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"whole"[..]));
        file.write(b"whole again").unwrap();
        assert_eq!(file.read().unwrap().as_deref(), Some(&b"whole again"[..]));
    }
}

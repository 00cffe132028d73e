//! Errors of a tablet store.

use std::io;
use std::path::PathBuf;

use ebla_model::error::{Error, ErrorKind, Reason};

/// An error of a tablet store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The bytes on disk are corrupted, or files are missing. The replica must stop and be replaced.
    #[error("{context}: data is damaged: {message}")]
    Damaged {
        /// The operation that failed.
        context: &'static str,
        /// Message of RocksDB or of the decoder.
        message: String,
    },
    /// The disk is full, or the process may open no more files. The replica stops serving; it may be opened again later.
    #[error("{context}: {message}")]
    Exhausted {
        /// The operation that failed.
        context: &'static str,
        /// RocksDB's message.
        message: String,
    },
    /// RocksDB failed otherwise (IO error). The replica stops serving; nothing is retried.
    #[error("{context}: {message}")]
    Engine {
        /// The operation that failed.
        context: &'static str,
        /// RocksDB's message.
        message: String,
    },
    /// The folder is locked by another open store.
    #[error("open tablet store {}: it is already open", .0.display())]
    Locked(PathBuf),
    /// The folder has no store. If it had one, that is lost.
    #[error("open tablet store {}: it does not exist", .0.display())]
    Missing(PathBuf),
    /// The folder already has a store.
    #[error("create tablet store {}: it already exists", .0.display())]
    Exists(PathBuf),
    /// The garbage collection rules changed after the view was taken and before its iterators were created, so the view may
    /// miss cells. Take a new view.
    #[error("read view expired: garbage collection rules have changed; take a new view")]
    Expired,
    /// A cache-only read needs a block that is not cached. Repeat the read where it may block.
    #[error("block is not in the cache")]
    NotCached,
    /// A bounded scan skipped more deleted keys than its limit.
    #[error("scan skipped too many deleted keys")]
    TooManySkipped,
    /// The file system failed.
    #[error("{context} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        context: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl StoreError {
    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }

    fn reason(&self) -> Reason {
        match self {
            Self::Damaged { .. } | Self::Missing(_) => Reason::DataDamaged,
            Self::Exhausted { .. } => Reason::ResourceExhausted,
            Self::Io { source, .. } if is_exhausted(&source.to_string()) => Reason::ResourceExhausted,
            Self::Expired | Self::NotCached | Self::TooManySkipped => Reason::Busy,
            Self::Exists(_) | Self::Locked(_) | Self::Engine { .. } | Self::Io { .. } => Reason::Internal,
        }
    }

    pub(crate) fn damaged(context: &'static str, message: impl Into<String>) -> Self {
        Self::Damaged { context, message: message.into() }
    }

    pub(crate) fn io(context: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { context, path, source }
    }

    /// Classifies an error of RocksDB; `context` is imperative ("read cell").
    pub(crate) fn engine(context: &'static str) -> impl Fn(rocksdb::Error) -> Self {
        move |error| {
            let kind = error.kind();
            Self::of_engine(context, kind, error.into_string())
        }
    }

    pub(super) fn of_engine(context: &'static str, kind: rocksdb::ErrorKind, message: String) -> Self {
        // First: RocksDB may call a store corrupted whose files it could not open.
        if is_exhausted(&message) {
            return Self::Exhausted { context, message };
        }
        match kind {
            rocksdb::ErrorKind::Corruption => Self::Damaged { context, message },
            rocksdb::ErrorKind::IOError if is_missing_table(&message) => Self::Damaged { context, message },
            _ => Self::Engine { context, message },
        }
    }
}

/// The texts of the system's errors for a resource that is used up: `ENOSPC`, `EDQUOT`, `EMFILE` and `ENFILE`. RocksDB returns
/// texts only.
const EXHAUSTED: [&str; 3] = ["No space left on device", "Disk quota exceeded", "Too many open files"];

/// Whether this message of RocksDB or of the system is about disk space or open files that are used up.
pub(super) fn is_exhausted(message: &str) -> bool {
    EXHAUSTED.iter().any(|text| message.contains(text))
}

/// Whether this message of RocksDB is about a file with rows that does not exist.
fn is_missing_table(message: &str) -> bool {
    message.contains("No such file or directory") && message.contains(".sst")
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exhausted_resource_is_neither_damage_nor_another_failure() {
        use rocksdb::ErrorKind::{Corruption, IOError};
        let reason = |kind, message: &str| StoreError::of_engine("open", kind, message.to_owned()).reason();
        let no_space = "IO error: No space left on device: While appending to file: 7.sst: No space left on device";
        let no_files = "IO error: While open a file for random read: 7.sst: Too many open files";
        for message in [no_space, no_files] {
            assert_eq!(reason(IOError, message), Reason::ResourceExhausted, "{message}");
        }
        assert_eq!(reason(Corruption, "Corruption: 7.sst: Too many open files"), Reason::ResourceExhausted);
        assert_eq!(reason(Corruption, "Corruption: block checksum mismatch"), Reason::DataDamaged);
        assert_eq!(reason(IOError, "IO error: While fsync: 7.sst: Input/output error"), Reason::Internal);
        let missing =
            "IO error: No such file or directory: While open a file for random read: 7.sst: No such file or directory";
        assert_eq!(reason(IOError, missing), Reason::DataDamaged);
    }

    #[test]
    fn errors_of_the_system_are_classified_too() {
        let reason = |code| StoreError::io("stat", "x")(io::Error::from_raw_os_error(code)).reason();
        // Linux: ENOSPC, EMFILE, EIO.
        assert_eq!([28, 24].map(reason), [Reason::ResourceExhausted; 2]);
        assert_eq!(reason(5), Reason::Internal);
    }
}

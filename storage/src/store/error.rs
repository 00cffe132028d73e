//! Errors of a tablet store.

use std::io;
use std::path::PathBuf;

use ebla_model::error::{Error, ErrorKind, Reason};

/// An error of a tablet store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The bytes on disk are corrupted. The replica must stop and be replaced.
    #[error("{context}: data is damaged: {message}")]
    Damaged {
        /// The operation that failed.
        context: &'static str,
        /// Message of RocksDB or of the decoder.
        message: String,
    },
    /// RocksDB failed otherwise (disk full, IO error). The replica stops serving; nothing is retried.
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
    /// The folder has no store.
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
            Self::Damaged { .. } => Reason::DataDamaged,
            Self::Expired | Self::NotCached | Self::TooManySkipped => Reason::Busy,
            Self::Missing(_) | Self::Exists(_) | Self::Locked(_) | Self::Engine { .. } | Self::Io { .. } => {
                Reason::Internal
            }
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
            let message = error.into_string();
            match kind {
                rocksdb::ErrorKind::Corruption => Self::Damaged { context, message },
                _ => Self::Engine { context, message },
            }
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::new(error.reason(), error.to_string())
    }
}

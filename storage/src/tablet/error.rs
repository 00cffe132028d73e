//! What can go wrong in a tablet store, told as what the caller should do.

use std::io;
use std::path::PathBuf;

use ebla_model::error::{Error, ErrorKind, Reason};

/// An error of a tablet store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Bytes on disk are not what was written. The replica must stop and be replaced.
    #[error("{context}: data is damaged: {message}")]
    Damaged {
        /// What was being done.
        context: &'static str,
        /// What the engine or the decoder said.
        message: String,
    },
    /// The engine failed otherwise (disk full, IO error). The replica stops serving; nothing is retried.
    #[error("{context}: {message}")]
    Engine {
        /// What was being done.
        context: &'static str,
        /// What the engine said.
        message: String,
    },
    /// Another open store holds this folder.
    #[error("open tablet store {}: it is open elsewhere", .0.display())]
    Locked(PathBuf),
    /// There is no store in this folder.
    #[error("open tablet store {}: there is none", .0.display())]
    Missing(PathBuf),
    /// There is a store in this folder already.
    #[error("create tablet store {}: there is one already", .0.display())]
    Exists(PathBuf),
    /// The rules of garbage collection changed after the view was taken and before its iterators were made, so the view
    /// may miss cells. Take a new view.
    #[error("the view is older than the tablet's collection rules")]
    Expired,
    /// A read that may not touch the disk met a block that is not cached. Read again from where reads may block.
    #[error("not in the cache")]
    NotCached,
    /// A bounded scan met more deleted keys than its bound.
    #[error("more deleted keys than the bound")]
    TooManySkipped,
    /// The file system failed.
    #[error("{context} {}: {source}", path.display())]
    Io {
        /// What was being done.
        context: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
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

    /// Classes what the engine says; `context` is imperative ("read cell").
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

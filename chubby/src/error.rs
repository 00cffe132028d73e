//! Errors of Chubby, and what the caller should do about each.

use ebla_model::error::{ErrorKind, Reason};

/// A call to Chubby that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The service cannot be reached, does not respond, or has no space for a write. A transaction may or may not have been committed.
    #[error("chubby is unavailable: {0}")]
    Unavailable(String),
    /// The lease has expired or was revoked: open a new session and start again under a new identity.
    #[error("the lease has expired or was revoked")]
    LeaseLost,
    /// The request is invalid, for example it writes a path twice in one transaction.
    #[error("invalid request to chubby: {0}")]
    Invalid(String),
    /// Stored bytes are damaged. An operator must inspect them.
    #[error("chubby's files are damaged: {0}")]
    Damaged(String),
}

impl Error {
    /// What the caller should do.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ebla_model::Error::from(self.clone()).kind
    }
}

impl From<Error> for ebla_model::Error {
    fn from(error: Error) -> Self {
        let reason = match error {
            Error::Unavailable(_) => Reason::Unavailable,
            Error::LeaseLost => Reason::Conflict,
            Error::Invalid(_) => Reason::Internal,
            Error::Damaged(_) => Reason::DataDamaged,
        };
        Self::new(reason, error.to_string())
    }
}

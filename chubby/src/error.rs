//! What can go wrong with Chubby, and what the caller should do about it.

use ebla_model::error::{ErrorKind, Reason};

/// A call to Chubby that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The service cannot be reached or does not answer. A transaction may or may not have been made.
    #[error("chubby is unavailable: {0}")]
    Unavailable(String),
    /// The lease has ended: open a new session and start again as someone new.
    #[error("the lease has ended")]
    LeaseLost,
    /// The request breaks a rule, such as a path that is written twice in one transaction.
    #[error("bad request to chubby: {0}")]
    Invalid(String),
    /// Stored bytes are not what was stored. A person must look.
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

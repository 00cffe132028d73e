//! Errors: what happened, and what the caller should do.
//!
//! [`Reason`] says what happened and has a stable name on the wire; [`ErrorKind`] follows from it and is all that a retry
//! loop may use. Crate `proto` maps reasons to gRPC codes.

/// What the caller should do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// Send the same request to the same place again. A write carries the same id, so it is applied once.
    RetryHere,
    /// Send it to another replica or server.
    RetryElsewhere,
    /// The caller's cached location is stale: look up again, then retry.
    RefreshAndRetry,
    /// Retry, but not before a pause.
    Wait,
    /// The request can never succeed as it is.
    FixRequest,
    /// The caller cannot do anything.
    GiveUp,
}

/// Declares the reasons of a part of the system: `enum Reason` with a stable name and an [`ErrorKind`] for each.
///
/// A line is `Reason = "STABLE_NAME" => Kind,` after a doc comment. Names are sent on the wire: they are added, never
/// changed.
#[macro_export]
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal => $kind:ident,)*) => {
        /// What happened. Names are stable: they are sent on the wire.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Reason {
            $($(#[$doc])* $reason,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$reason),*];

            /// The stable name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }

            /// The reason of this name, if this release knows it.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$reason),)*
                    _ => None,
                }
            }

            /// What the caller should do.
            pub const fn kind(self) -> $crate::ErrorKind {
                match self {
                    $(Self::$reason => $crate::ErrorKind::$kind,)*
                }
            }
        }

        impl ::std::fmt::Display for Reason {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

reasons! {
    /// No such table.
    NotFoundTable = "NOT_FOUND_TABLE" => FixRequest,
    /// No such column family in the table.
    NotFoundFamily = "NOT_FOUND_FAMILY" => FixRequest,
    /// Another named resource does not exist.
    NotFound = "NOT_FOUND" => FixRequest,
    /// The request is invalid, independently of the state.
    InvalidArgument = "INVALID_ARGUMENT" => FixRequest,
    /// The current state does not allow it.
    FailedPrecondition = "FAILED_PRECONDITION" => FixRequest,
    /// The resource to create already exists.
    AlreadyExists = "ALREADY_EXISTS" => FixRequest,
    /// This release does not support it.
    Unimplemented = "UNIMPLEMENTED" => FixRequest,
    /// The caller has no permission.
    PermissionDenied = "PERMISSION_DENIED" => FixRequest,
    /// The caller has no valid credentials.
    Unauthenticated = "UNAUTHENTICATED" => FixRequest,
    /// The addressed tablet does not contain the key, has another generation, or is not on this server.
    WrongTablet = "WRONG_TABLET" => RefreshAndRetry,
    /// The tablet was dropped with its table or its range.
    TabletDropped = "TABLET_DROPPED" => RefreshAndRetry,
    /// This replica is not the leader.
    NotLeader = "NOT_LEADER" => RetryElsewhere,
    /// The group has no leader at the moment.
    NoLeader = "NO_LEADER" => Wait,
    /// This server is not the active master.
    NotMaster = "NOT_MASTER" => RetryElsewhere,
    /// A temporary limit is reached.
    Busy = "BUSY" => Wait,
    /// A compared value has changed.
    Conflict = "CONFLICT" => RefreshAndRetry,
    /// The request's deadline has passed.
    Deadline = "DEADLINE" => GiveUp,
    /// The caller disconnected, or the component is stopping.
    Cancelled = "CANCELLED" => GiveUp,
    /// The server cannot be reached; nothing was applied.
    Unavailable = "UNAVAILABLE" => RetryElsewhere,
    /// A write was sent, and it is not known yet whether it was applied.
    OutcomeUnknown = "OUTCOME_UNKNOWN" => RetryHere,
    /// A write was sent, and it can no longer be determined whether it was applied.
    SessionForgotten = "SESSION_FORGOTTEN" => GiveUp,
    /// A permanent limit is reached.
    ResourceExhausted = "RESOURCE_EXHAUSTED" => GiveUp,
    /// A request of a master that is no longer active.
    StaleEpoch = "STALE_EPOCH" => GiveUp,
    /// Stored data is damaged.
    DataDamaged = "DATA_DAMAGED" => GiveUp,
    /// A bug: an invariant of this program does not hold.
    Internal = "INTERNAL" => GiveUp,
}

/// An error with a message for people and a reason for programs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What the caller should do.
    pub kind: ErrorKind,
    /// What happened.
    pub reason: Reason,
    /// The facts, in a sentence without a full stop.
    pub message: String,
}

impl Error {
    /// An error of this reason; its kind follows.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { kind: reason.kind(), reason, message: message.into() }
    }

    /// The request is invalid, independently of the state.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::InvalidArgument, message)
    }

    /// This release does not support it.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Reason::Unimplemented, message)
    }

    /// A bug: an invariant of this program does not hold.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Reason::Internal, message)
    }

    /// Stored data is damaged.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(Reason::DataDamaged, message)
    }

    /// The same error, prefixed with the operation in the imperative: `read tablet record: ...`.
    #[must_use]
    pub fn context(mut self, doing: &str) -> Self {
        self.message.insert_str(0, ": ");
        self.message.insert_str(0, doing);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_found_by_its_name() {
        for reason in Reason::ALL {
            assert_eq!(Reason::from_name(reason.name()), Some(*reason));
        }
        assert_eq!(Reason::from_name("NEWS"), None);
    }

    #[test]
    fn context_comes_first() {
        assert_eq!(Error::invalid("row key is empty").context("write row").to_string(), "write row: row key is empty");
    }
}

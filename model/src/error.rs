//! What went wrong, and what the caller should do about it.
//!
//! [`Reason`] says what happened and has a stable name that travels between processes; [`ErrorKind`] follows from it
//! and is all that a retry loop may look at. The gRPC code of a reason is the wire's business, not ours.

/// What the caller should do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ErrorKind {
    /// Send the same request to the same place again. A write carries the same id, so it is applied once.
    RetryHere,
    /// Send it to another replica or server.
    RetryElsewhere,
    /// The caller's picture of the world is old: look up again, then retry.
    RefreshAndRetry,
    /// Retry, but not before a pause.
    Wait,
    /// The request can never succeed as it is.
    FixRequest,
    /// Nothing the caller can do now helps.
    GiveUp,
}

/// Declares the reasons of a part of the system: `enum Reason` with a stable name and an [`ErrorKind`] for each.
///
/// A line is `Reason = "STABLE_NAME" => Kind,` with a document comment before it. Names travel on the wire: they are
/// added, never changed.
#[macro_export]
macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal => $kind:ident,)*) => {
        /// What happened. Names are stable: they travel on the wire.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Reason {
            $($(#[$doc])* $reason,)*
        }

        impl Reason {
            /// Every reason there is.
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

            /// What a caller who meets it should do.
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
    /// Something else that was named does not exist.
    NotFound = "NOT_FOUND" => FixRequest,
    /// The request breaks a rule that holds whatever the state.
    InvalidArgument = "INVALID_ARGUMENT" => FixRequest,
    /// The state of the data forbids it.
    FailedPrecondition = "FAILED_PRECONDITION" => FixRequest,
    /// What was to be made exists.
    AlreadyExists = "ALREADY_EXISTS" => FixRequest,
    /// This release cannot do that.
    Unimplemented = "UNIMPLEMENTED" => FixRequest,
    /// The caller may not do that.
    PermissionDenied = "PERMISSION_DENIED" => FixRequest,
    /// The caller has not proved who it is, or its proof is not valid.
    Unauthenticated = "UNAUTHENTICATED" => FixRequest,
    /// The tablet addressed does not hold the key, has another generation, or is not here.
    WrongTablet = "WRONG_TABLET" => RefreshAndRetry,
    /// The tablet was dropped with its table or its range.
    TabletDropped = "TABLET_DROPPED" => RefreshAndRetry,
    /// This replica does not lead; another one does.
    NotLeader = "NOT_LEADER" => RetryElsewhere,
    /// No replica leads at the moment.
    NoLeader = "NO_LEADER" => Wait,
    /// This server is not the master in office.
    NotMaster = "NOT_MASTER" => RetryElsewhere,
    /// A bound is reached that will fall again.
    Busy = "BUSY" => Wait,
    /// What was compared has changed meanwhile.
    Conflict = "CONFLICT" => RefreshAndRetry,
    /// The request's time is over.
    Deadline = "DEADLINE" => GiveUp,
    /// The caller went away, or the component stops.
    Cancelled = "CANCELLED" => GiveUp,
    /// The other side cannot be reached; nothing was done.
    Unavailable = "UNAVAILABLE" => RetryElsewhere,
    /// A write was sent, and whether it was applied is not known yet.
    OutcomeUnknown = "OUTCOME_UNKNOWN" => RetryHere,
    /// A write was sent, and whether it was applied cannot be known any more.
    SessionForgotten = "SESSION_FORGOTTEN" => GiveUp,
    /// A limit is reached that waiting does not raise.
    ResourceExhausted = "RESOURCE_EXHAUSTED" => GiveUp,
    /// An order of a master who is no longer in office.
    StaleEpoch = "STALE_EPOCH" => GiveUp,
    /// Stored bytes are not what was stored.
    DataDamaged = "DATA_DAMAGED" => GiveUp,
    /// A rule of this program was broken.
    Internal = "INTERNAL" => GiveUp,
}

/// A refusal or failure, for a person to read and a program to act on.
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

    /// The request breaks a rule that holds whatever the state.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Reason::InvalidArgument, message)
    }

    /// This release cannot do that.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::new(Reason::Unimplemented, message)
    }

    /// A rule of this program was broken.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Reason::Internal, message)
    }

    /// Stored bytes are not what was stored.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(Reason::DataDamaged, message)
    }

    /// The same error with what was being done put before it, in the imperative: `read tablet record: ...`.
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

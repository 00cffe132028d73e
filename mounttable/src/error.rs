//! What the mounttable refuses, why, and what the caller should do about it.
//!
//! A [`Reason`] has a stable name that travels in an answer's details; what to do follows from it. The gRPC code of a
//! reason is the wire's business.

use ebla_model::ErrorKind;

ebla_model::reasons! {
    /// Nothing is mounted under this name.
    NoSuchName = "NO_SUCH_NAME" => FixRequest,
    /// Nothing is mounted on the root that was asked for, or the table was never set up.
    NoSuchNameRoot = "NO_SUCH_NAME_ROOT" => FixRequest,
    /// The client has no roots to resolve a relative name against.
    NoMountTable = "NO_MOUNT_TABLE" => FixRequest,
    /// Mount tables lead to mount tables without an end.
    DepthExceeded = "DEPTH_EXCEEDED" => FixRequest,
    /// The caller may not do that. Says nothing about whether the name exists.
    NoAccess = "NO_ACCESS" => FixRequest,
    /// The caller's proof of who it is does not count here.
    NotAuthenticated = "NOT_AUTHENTICATED" => FixRequest,
    /// The permissions are not those of the version that the caller has seen.
    BadVersion = "BAD_VERSION" => RefreshAndRetry,
    /// The text is not a server's address.
    BadAddress = "BAD_ADDRESS" => FixRequest,
    /// The text cannot be the name of a node.
    BadName = "BAD_NAME" => FixRequest,
    /// The text is not a glob pattern.
    BadPattern = "BAD_PATTERN" => FixRequest,
    /// The text is not an access list, a set of permissions or a file of them.
    BadPermissions = "BAD_PERMISSIONS" => FixRequest,
    /// The request asks for what cannot be asked for.
    BadRequest = "BAD_REQUEST" => FixRequest,
    /// The node has children and was to be deleted alone.
    NotEmpty = "NOT_EMPTY" => FixRequest,
    /// The root cannot be deleted.
    Root = "ROOT" => FixRequest,
    /// A live server of the node is mounted with other flags.
    FlagsConflict = "FLAGS_CONFLICT" => FixRequest,
    /// A node above has live servers, so nothing below it can be reached.
    ShadowedByMount = "SHADOWED_BY_MOUNT" => FixRequest,
    /// The user has as many nodes as he may have.
    NodeQuota = "NODE_QUOTA" => GiveUp,
    /// The user has as many servers mounted as he may have.
    ServerQuota = "SERVER_QUOTA" => GiveUp,
    /// The server that was asked makes no changes for the time being; others of its table may.
    ReadOnly = "READ_ONLY" => RetryElsewhere,
    /// Others changed the same nodes at the same time, again and again.
    Contention = "CONTENTION" => Wait,
    /// The server that was asked is not a mount table.
    NotAMountTable = "NOT_A_MOUNT_TABLE" => FixRequest,
    /// Some matches might be hidden by access lists. Deliberately vague.
    MatchesOmitted = "MATCHES_OMITTED" => FixRequest,
    /// What is stored is not what the mounttable stores.
    Damaged = "DAMAGED" => GiveUp,
    /// Whoever asked does not wait for the answer any more.
    Cancelled = "CANCELLED" => GiveUp,
    /// The storage cannot be reached, or did not answer in time.
    Unavailable = "UNAVAILABLE" => Wait,
}

/// A refusal or failure, for a person to read and a program to act on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What happened.
    pub reason: Reason,
    /// The facts, in a sentence without a full stop.
    pub message: String,
}

impl Error {
    /// An error of this reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// What the caller should do.
    pub const fn kind(&self) -> ErrorKind {
        self.reason.kind()
    }
}

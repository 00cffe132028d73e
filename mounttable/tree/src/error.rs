//! The errors of the mounttable: what was refused, why, and what the caller should do.
//!
//! A [`Reason`] has a stable name that travels in the details of a gRPC status; the advice to the caller follows from
//! it. The wire layer maps reasons to gRPC codes.

use ebla_model::ErrorKind;

ebla_model::reasons! {
    /// Nothing is mounted under this name.
    NoSuchName = "NO_SUCH_NAME" => FixRequest,
    /// Nothing is mounted on the requested root, or the table was never set up.
    NoSuchNameRoot = "NO_SUCH_NAME_ROOT" => FixRequest,
    /// The client has no roots to resolve a relative name against.
    NoMountTable = "NO_MOUNT_TABLE" => FixRequest,
    /// The mount tables refer to each other in a cycle, or nest too deeply.
    DepthExceeded = "DEPTH_EXCEEDED" => FixRequest,
    /// The caller lacks the right, on the node or above it.
    NoAccess = "NO_ACCESS" => FixRequest,
    /// The caller's credentials are not accepted here.
    NotAuthenticated = "NOT_AUTHENTICATED" => FixRequest,
    /// The permissions have another version than the one that the caller has read.
    BadVersion = "BAD_VERSION" => RefreshAndRetry,
    /// The text is not a server's address.
    BadAddress = "BAD_ADDRESS" => FixRequest,
    /// The text is not a valid node name.
    BadName = "BAD_NAME" => FixRequest,
    /// The text is not a glob pattern.
    BadPattern = "BAD_PATTERN" => FixRequest,
    /// The text is not a valid access list, set of permissions, or permissions file.
    BadPermissions = "BAD_PERMISSIONS" => FixRequest,
    /// The request is malformed.
    BadRequest = "BAD_REQUEST" => FixRequest,
    /// The node has children, and the request deletes a single node only.
    NotEmpty = "NOT_EMPTY" => FixRequest,
    /// The root cannot be deleted.
    Root = "ROOT" => FixRequest,
    /// A live server of the node is mounted with other flags.
    FlagsConflict = "FLAGS_CONFLICT" => FixRequest,
    /// A node above has live servers, so nothing below it can be reached.
    ShadowedByMount = "SHADOWED_BY_MOUNT" => FixRequest,
    /// The user has reached their node quota.
    NodeQuota = "NODE_QUOTA" => GiveUp,
    /// The user has reached their server quota.
    ServerQuota = "SERVER_QUOTA" => GiveUp,
    /// This server is read-only at present; other servers of the table may accept changes.
    ReadOnly = "READ_ONLY" => RetryElsewhere,
    /// Concurrent changes of the same nodes made every attempt fail.
    Contention = "CONTENTION" => Wait,
    /// The server is not a mount table.
    NotAMountTable = "NOT_A_MOUNT_TABLE" => FixRequest,
    /// Access lists may hide some matches. The message is deliberately vague.
    MatchesOmitted = "MATCHES_OMITTED" => FixRequest,
    /// A stored row or counter is not valid.
    Damaged = "DAMAGED" => GiveUp,
    /// The storage refuses what this server requests of it, and will do so again: an operator must act.
    StorageRefused = "STORAGE_REFUSED" => GiveUp,
    /// The caller stopped waiting for the reply.
    Cancelled = "CANCELLED" => GiveUp,
    /// The storage is unavailable, or did not answer in time.
    Unavailable = "UNAVAILABLE" => Wait,
}

/// An error, for a person to read and a program to act on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The reason.
    pub reason: Reason,
    /// The facts, in a sentence without a full stop.
    pub message: String,
}

impl Error {
    /// An error with this reason.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// What the caller should do.
    pub const fn kind(&self) -> ErrorKind {
        self.reason.kind()
    }
}

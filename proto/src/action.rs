//! What a caller is told to do about an error, in words. Programs act on codes and reasons; this is for who reads the answer.

use ebla_model::Reason;

/// What to do about an error of this reason, in the imperative.
pub(crate) const fn action(reason: Reason) -> &'static str {
    match reason {
        Reason::NotFoundTable => "create the table, or correct its name",
        Reason::NotFoundFamily => "create the column family, or correct its name",
        Reason::NotFound => "correct the name",
        Reason::InvalidArgument => "correct the request as the message says",
        Reason::FailedPrecondition => "change what the message names, then send the request again",
        Reason::AlreadyExists => "use what exists, or choose another name",
        Reason::Unimplemented => "use another way: docs/reference/api.md lists what is served",
        Reason::PermissionDenied => "ask for the right to do it",
        Reason::Unauthenticated => "send a token that is valid here",
        Reason::WrongTablet
        | Reason::TabletDropped
        | Reason::NotLeader
        | Reason::NoLeader
        | Reason::NotMaster
        | Reason::Busy
        | Reason::Unavailable => "send the request again after the pause in RetryInfo",
        Reason::Conflict => "read again, then send the request with what was read",
        Reason::Deadline => "look whether it was done, then send the request again with more time",
        Reason::OutcomeUnknown => "look whether it was done before sending the request again",
        Reason::Cancelled => "send the request again if its answer is still wanted",
        Reason::SessionForgotten => "look whether the write was applied before sending it again",
        Reason::ResourceExhausted => "ask for less at once",
        Reason::StaleEpoch => "ask the master in office",
        Reason::DataDamaged => "tell whoever runs the cluster: stored bytes are damaged",
        Reason::Internal => "tell whoever runs the cluster: this is a fault of the program",
    }
}

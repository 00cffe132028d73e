//! The action of an error, in words for people. Programs use codes and reasons.

use ebla_model::Reason;

/// The action for an error of this reason, in the imperative.
pub(crate) const fn action(reason: Reason) -> &'static str {
    match reason {
        Reason::NotFoundTable => "create the table, or correct its name",
        Reason::NotFoundFamily => "create the column family, or correct its name",
        Reason::NotFound => "correct the name",
        Reason::InvalidArgument => "correct the request as the message says",
        Reason::FailedPrecondition => "resolve the condition that the message names, then retry the request",
        Reason::AlreadyExists => "use the existing resource, or choose another name",
        Reason::Unimplemented => "use another call: docs/reference/api.md lists the supported ones",
        Reason::PermissionDenied => "ask an administrator for permission",
        Reason::Unauthenticated => "send valid credentials",
        Reason::WrongTablet
        | Reason::TabletDropped
        | Reason::NotLeader
        | Reason::NoLeader
        | Reason::NotMaster
        | Reason::Busy
        | Reason::Unavailable => "retry the request after the delay in RetryInfo",
        Reason::Conflict => "read again, then retry the request with the current values",
        Reason::Deadline => "check whether the request was applied, then retry it with a longer timeout",
        Reason::OutcomeUnknown => "check whether the request was applied before retrying it",
        Reason::Cancelled => "retry the request if its response is still needed",
        Reason::SessionForgotten => "check whether the write was applied before retrying it",
        Reason::ResourceExhausted => {
            "act as the message says: send smaller or fewer requests, or give the servers more room"
        }
        Reason::StaleEpoch => "send the request to the active master",
        Reason::DataDamaged => "tell the operator of the cluster: stored data is damaged",
        Reason::Internal => "tell the operator of the cluster: this is a bug",
    }
}

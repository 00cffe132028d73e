//! The one mapping between `model::Error` and gRPC.
//!
//! A status has the reason's name and an action (`google.rpc.ErrorInfo`), for internal errors the server's information about
//! the tablet ([`TabletError`]), and for retryable errors a delay (`google.rpc.RetryInfo`). The conversion back reads the
//! name, so a reason survives any number of hops; codes alone are used only for foreign servers.
//!
//! UNAVAILABLE is the one code that every client retries, also for writes. It is used only if the request was certainly not
//! applied; an unknown outcome is DEADLINE_EXCEEDED, an outcome that can never be known is UNKNOWN.

use std::{error::Error as _, time::Duration};

use bytes::Bytes;
use ebla_model::{Error, ErrorKind, Reason};
use prost::Message;
use prost_types::Any;
use tonic::{Code, Status};

use crate::{action::action, admin::rpc, tablet::TabletError};

/// `ErrorInfo.domain` of our own errors.
pub const DOMAIN: &str = "ebla";

/// The key of the action in `ErrorInfo.metadata`, in words.
pub const ACTION: &str = "action";

/// Maximum size of details, in bytes. They are sent in a header, and peers refuse header lists above 16 KiB. Larger details
/// are sent without tablet hints.
const DETAILS_BYTES_MAX: usize = 6 * 1024;

/// Longest message, in bytes, for the same reason: each byte may become three in the header.
const MESSAGE_BYTES_MAX: usize = 1024;

/// Default retry delay for public clients.
const RETRY_DELAY: Duration = Duration::from_millis(100);

const TYPE_PREFIX: &str = "type.googleapis.com/";
const ERROR_INFO: &str = "google.rpc.ErrorInfo";
const RETRY_INFO: &str = "google.rpc.RetryInfo";
const TABLET_ERROR: &str = "ebla.tablet.TabletError";

/// The gRPC code of a reason.
pub const fn code(reason: Reason) -> Code {
    match reason {
        Reason::NotFoundTable | Reason::NotFoundFamily | Reason::NotFound => Code::NotFound,
        Reason::InvalidArgument => Code::InvalidArgument,
        Reason::FailedPrecondition | Reason::StaleEpoch => Code::FailedPrecondition,
        Reason::AlreadyExists => Code::AlreadyExists,
        Reason::Unimplemented => Code::Unimplemented,
        Reason::PermissionDenied => Code::PermissionDenied,
        Reason::Unauthenticated => Code::Unauthenticated,
        Reason::WrongTablet
        | Reason::TabletDropped
        | Reason::NotLeader
        | Reason::NoLeader
        | Reason::NotMaster
        | Reason::Busy
        | Reason::Unavailable => Code::Unavailable,
        Reason::Conflict => Code::Aborted,
        Reason::Deadline | Reason::OutcomeUnknown => Code::DeadlineExceeded,
        Reason::Cancelled => Code::Cancelled,
        Reason::SessionForgotten => Code::Unknown,
        Reason::ResourceExhausted => Code::ResourceExhausted,
        Reason::DataDamaged => Code::DataLoss,
        Reason::Internal => Code::Internal,
    }
}

/// The names of gRPC's codes, by their numbers (google.rpc.Code).
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// The number of the code of a call that its caller has given up.
pub const CANCELLED_NUMBER: usize = 1;

/// Whether the code is UNAVAILABLE: the one code for which every client retries a call.
pub fn is_unavailable(reason: Reason) -> bool {
    code(reason) == Code::Unavailable
}

/// The status of an error.
pub fn to_status(error: &Error) -> Status {
    build_status(error, None)
}

/// The status of an error, with the server's information about the tablet. Hints that do not fit into a header are omitted.
pub fn to_status_with(error: &Error, detail: &TabletError) -> Status {
    build_status(error, Some(detail))
}

/// The same as a message, for responses with many results.
pub fn to_rpc_status(error: &Error) -> rpc::Status {
    rpc::Status {
        code: code(error.reason).into(),
        message: error.message.clone(),
        details: vec![error_info(error.reason, action(error.reason))],
    }
}

/// The status of an error after which the call may be repeated when `delay` has passed (`google.rpc.RetryInfo`), whatever its code.
pub fn to_status_after(error: &Error, delay: Duration) -> Status {
    let code = code(error.reason);
    let message = truncated(&error.message);
    let retry_delay = prost_types::Duration::try_from(delay).ok();
    let details = vec![
        error_info(error.reason, "repeat the request after the delay in RetryInfo"),
        any(RETRY_INFO, &rpc::RetryInfo { retry_delay }),
    ];
    let status = rpc::Status { code: code.into(), message: message.to_owned(), details };
    Status::with_details(code, message, status.encode_to_vec().into())
}

/// The status of a call that this release does not serve. `instead`: the alternative.
///
/// Generated servers return it for methods without an implementation.
pub fn not_served(method: &str, instead: Option<&str>) -> Status {
    let action = instead.unwrap_or_else(|| action(Reason::Unimplemented));
    let message = match instead {
        Some(instead) => format!("{method} is not served by this release: {instead}"),
        None => format!("{method} is not served by this release"),
    };
    let code = code(Reason::Unimplemented);
    let details = vec![error_info(Reason::Unimplemented, action)];
    let status = rpc::Status { code: code.into(), message: message.clone(), details };
    Status::with_details(code, message, status.encode_to_vec().into())
}

/// The status of a tenant's error: its own reason and domain, with the code of our most similar reason.
pub fn to_tenant_status(domain: &str, reason: &str, like: Reason, message: &str) -> Status {
    let code = code(like);
    let message = truncated(message);
    let info = rpc::ErrorInfo { reason: reason.to_owned(), domain: domain.to_owned(), ..Default::default() };
    let mut details = vec![any(ERROR_INFO, &info)];
    if code == Code::Unavailable {
        details.push(retry_info(None));
    }
    let status = rpc::Status { code: code.into(), message: message.to_owned(), details };
    Status::with_details(code, message, status.encode_to_vec().into())
}

/// The reason's name of a tenant's error, if the status has this domain.
pub fn tenant_reason(status: &Status, domain: &str) -> Option<String> {
    let details = rpc::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
    let info = find::<rpc::ErrorInfo>(&details, ERROR_INFO)?;
    (info.domain == domain).then_some(info.reason)
}

/// The error of a status, and the tablet's detail when there is one.
///
/// A status without our [`DOMAIN`] comes from the connection or from a foreign server. After a broken connection the outcome
/// is unknown: the reason is `OutcomeUnknown`, with a retry elsewhere. A failed connect is `Unavailable`.
pub fn from_status(status: &Status) -> (Error, Option<TabletError>) {
    let details = rpc::Status::decode(status.details()).map(|status| status.details).unwrap_or_default();
    let detail = find::<TabletError>(&details, TABLET_ERROR);
    let error = match own_reason(&details) {
        Some(reason) => Error::new(reason, status.message()),
        None => from_foreign_status(status),
    };
    (error, detail)
}

/// The error of a status within a response. Code 0 means no error: check it before the call.
pub fn from_rpc_status(status: &rpc::Status) -> Error {
    match own_reason(&status.details) {
        Some(reason) => Error::new(reason, &*status.message),
        None => from_foreign_status(&Status::new(Code::from_i32(status.code), &*status.message)),
    }
}

fn build_status(error: &Error, detail: Option<&TabletError>) -> Status {
    let code = code(error.reason);
    let message = truncated(&error.message);
    let mut details = vec![error_info(error.reason, action(error.reason))];
    if code == Code::Unavailable {
        details.push(retry_info(detail));
    }
    let status = rpc::Status { code: code.into(), message: message.to_owned(), details };
    Status::with_details(code, message, with_hints(status, detail))
}

/// The encoded status, with as much of the tablet's detail as fits.
fn with_hints(status: rpc::Status, detail: Option<&TabletError>) -> Bytes {
    let candidates = detail.into_iter().flat_map(|full| {
        let lean = TabletError { descriptors: Vec::new(), ..full.clone() };
        [full.clone(), lean]
    });
    for candidate in candidates {
        let mut whole = status.clone();
        whole.details.push(any(TABLET_ERROR, &candidate));
        if whole.encoded_len() <= DETAILS_BYTES_MAX {
            return whole.encode_to_vec().into();
        }
    }
    status.encode_to_vec().into()
}

fn error_info(reason: Reason, action: &str) -> Any {
    let metadata = [(ACTION.to_owned(), action.to_owned())].into();
    any(ERROR_INFO, &rpc::ErrorInfo { reason: reason.name().to_owned(), domain: DOMAIN.to_owned(), metadata })
}

fn retry_info(detail: Option<&TabletError>) -> Any {
    let delay = detail.and_then(|detail| detail.retry_after_micros).map_or(RETRY_DELAY, Duration::from_micros);
    any(RETRY_INFO, &rpc::RetryInfo { retry_delay: prost_types::Duration::try_from(delay).ok() })
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("{TYPE_PREFIX}{name}"), value: message.encode_to_vec() }
}

fn find<M: Message + Default>(details: &[Any], name: &str) -> Option<M> {
    details
        .iter()
        .find(|any| any.type_url.strip_prefix(TYPE_PREFIX) == Some(name))
        .and_then(|any| M::decode(any.value.as_slice()).ok())
}

/// The reason by its name. An unknown name, of a newer release, is an internal error.
fn own_reason(details: &[Any]) -> Option<Reason> {
    let info = find::<rpc::ErrorInfo>(details, ERROR_INFO)?;
    (info.domain == DOMAIN).then(|| Reason::from_name(&info.reason).unwrap_or(Reason::Internal))
}

/// The error of a status that did not come from one of our servers.
fn from_foreign_status(status: &Status) -> Error {
    if status.source().is_some() {
        return broken_connection(status);
    }
    let reason = match status.code() {
        Code::NotFound => Reason::NotFound,
        Code::InvalidArgument | Code::OutOfRange => Reason::InvalidArgument,
        Code::FailedPrecondition => Reason::FailedPrecondition,
        Code::AlreadyExists => Reason::AlreadyExists,
        Code::Unimplemented => Reason::Unimplemented,
        Code::PermissionDenied => Reason::PermissionDenied,
        Code::Unauthenticated => Reason::Unauthenticated,
        Code::Unavailable => Reason::Unavailable,
        Code::Aborted => Reason::Conflict,
        Code::DeadlineExceeded => Reason::Deadline,
        Code::Cancelled => Reason::Cancelled,
        Code::ResourceExhausted => Reason::ResourceExhausted,
        Code::DataLoss => Reason::DataDamaged,
        Code::Ok | Code::Unknown | Code::Internal => Reason::Internal,
    };
    Error::new(reason, status.message())
}

fn broken_connection(status: &Status) -> Error {
    let (mut cause, mut message) = (status.source(), format!("connection lost: {}", status.message()));
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return Error::new(Reason::Unavailable, format!("cannot connect: {}", status.message()));
        }
        if requires_tls(error) {
            return Error::new(Reason::Unavailable, "cannot connect: this port requires TLS (--tls-ca)");
        }
        if is_unprocessed(error) {
            return Error::new(Reason::Unavailable, format!("server is shutting down: {}", status.message()));
        }
        if error.is::<tonic::TimeoutExpired>() {
            return Error::new(Reason::Deadline, "request timed out");
        }
        // tonic's and hyper's own errors say only where the loss was noticed; the errors below them say why.
        let text = error.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = error.source();
    }
    Error { kind: ErrorKind::RetryElsewhere, reason: Reason::OutcomeUnknown, message }
}

/// Whether a server has refused the connection because it has no TLS (`runtime/src/tls/handshake.rs`).
fn requires_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let reason = error.downcast_ref::<h2::Error>().and_then(h2::Error::reason);
    reason == Some(h2::Reason::INADEQUATE_SECURITY)
}

/// Whether the request was certainly not processed: it was never sent, or the server has refused it in its shutdown. RFC
/// 9113, 6.8 and 8.7: any such request can be retried.
fn is_unprocessed(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return error.is_canceled() || error.is_closed();
    }
    let Some(error) = error.downcast_ref::<h2::Error>() else { return false };
    // Only requests after the last accepted one get a GOAWAY without an error.
    let graceful_shutdown = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (graceful_shutdown || refused)
}

/// The message, truncated for a header.
fn truncated(message: &str) -> &str {
    let end = (0..=MESSAGE_BYTES_MAX.min(message.len())).rev().find(|&end| message.is_char_boundary(end));
    end.and_then(|end| message.get(..end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    #[test]
    fn every_reason_survives_a_hop() {
        for &reason in Reason::ALL {
            let sent = Error::new(reason, "said so");
            let (read, detail) = from_status(&to_status(&sent));
            assert_eq!(read, sent, "{reason:?}");
            assert_eq!(detail, None);
        }
    }

    #[test]
    fn a_tenants_reason_survives_a_hop_and_is_not_ours() {
        let status = to_tenant_status("names", "NO_SUCH_NAME", Reason::NotFound, "nothing there");
        assert_eq!((status.code(), status.message()), (Code::NotFound, "nothing there"));
        assert_eq!(tenant_reason(&status, "names").as_deref(), Some("NO_SUCH_NAME"));
        assert_eq!(tenant_reason(&status, DOMAIN), None);
        assert_eq!(from_status(&status).0.reason, Reason::NotFound);
    }

    #[derive(Debug)]
    struct Transport(std::io::Error);

    impl std::fmt::Display for Transport {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("transport error")
        }
    }

    impl std::error::Error for Transport {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_lost_connection_says_why() {
        let reset = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "keep-alive timed out");
        let (lost, _detail) = from_status(&Status::from_error(Box::new(Transport(reset))));
        assert_eq!(lost.reason, Reason::OutcomeUnknown);
        assert_eq!(lost.message, "connection lost: transport error: keep-alive timed out");
    }

    #[test]
    fn outcomes_within_an_answer_survive_too() {
        for &reason in Reason::ALL {
            let sent = Error::new(reason, "said so");
            assert_eq!(from_rpc_status(&to_rpc_status(&sent)), sent);
        }
        let foreign = rpc::Status { code: Code::NotFound.into(), message: "no".into(), details: Vec::new() };
        assert_eq!(from_rpc_status(&foreign).reason, Reason::NotFound);
    }

    /// `ErrorInfo` of a status: reason, domain, action.
    fn info(status: &Status) -> (String, String, String) {
        let details = rpc::Status::decode(status.details()).unwrap().details;
        let info: rpc::ErrorInfo = find(&details, ERROR_INFO).unwrap();
        (info.reason, info.domain, info.metadata.get(ACTION).cloned().unwrap())
    }

    #[test]
    fn every_status_has_a_reason_and_an_action() {
        for &reason in Reason::ALL {
            let expected = (reason.name().to_owned(), DOMAIN.to_owned(), action(reason).to_owned());
            assert_eq!(info(&to_status(&Error::new(reason, "said so"))), expected);
            assert!(!expected.2.is_empty(), "{reason:?}");
        }
    }

    #[test]
    fn a_call_that_is_not_served_names_the_alternative() {
        let refused = not_served("a.B/C", Some("do D"));
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Unimplemented, "a.B/C is not served by this release: do D")
        );
        assert_eq!(info(&refused), ("UNIMPLEMENTED".to_owned(), DOMAIN.to_owned(), "do D".to_owned()));
        assert_eq!(from_status(&refused).0.reason, Reason::Unimplemented);
        assert_eq!(not_served("a.B/C", None).message(), "a.B/C is not served by this release");
    }

    #[test]
    fn codes_that_clients_act_on() {
        let table = [
            (Reason::NotFoundTable, Code::NotFound),
            (Reason::NotFoundFamily, Code::NotFound),
            (Reason::InvalidArgument, Code::InvalidArgument),
            (Reason::FailedPrecondition, Code::FailedPrecondition),
            (Reason::NotLeader, Code::Unavailable),
            (Reason::Busy, Code::Unavailable),
            (Reason::OutcomeUnknown, Code::DeadlineExceeded),
            (Reason::SessionForgotten, Code::Unknown),
            (Reason::DataDamaged, Code::DataLoss),
        ];
        for (reason, expected) in table {
            assert_eq!(code(reason), expected, "{reason:?}");
        }
    }

    #[test]
    fn unavailable_is_used_only_when_nothing_was_applied() {
        for &reason in Reason::ALL {
            if code(reason) == Code::Unavailable {
                assert!(!matches!(reason, Reason::OutcomeUnknown | Reason::SessionForgotten), "{reason:?}");
                assert!(
                    matches!(reason.kind(), ErrorKind::RetryElsewhere | ErrorKind::RefreshAndRetry | ErrorKind::Wait),
                    "{reason:?} invites retries"
                );
            }
        }
    }

    #[test]
    fn the_tablets_detail_travels_along() {
        let detail = TabletError {
            reason: Reason::NotLeader.name().into(),
            leader: Some(record::LeaderHint { server: 3, term: 9 }),
            retry_after_micros: Some(1500),
            ..Default::default()
        };
        let (error, read) = from_status(&to_status_with(&Error::new(Reason::NotLeader, "led by 3"), &detail));
        assert_eq!(error.reason, Reason::NotLeader);
        assert_eq!(read, Some(detail));
    }

    #[test]
    fn only_what_may_be_sent_again_says_when() {
        let delay = |status: &Status| {
            let details = rpc::Status::decode(status.details()).unwrap().details;
            find::<rpc::RetryInfo>(&details, RETRY_INFO).map(|info| info.retry_delay.unwrap())
        };
        let busy = Error::new(Reason::Busy, "busy");
        let detail = TabletError { retry_after_micros: Some(20_000), ..Default::default() };
        let millis = |count: i32| prost_types::Duration { seconds: 0, nanos: count * 1_000_000 };
        assert_eq!(delay(&to_status_with(&busy, &detail)), Some(millis(20)));
        assert_eq!(delay(&to_status(&busy)), Some(millis(100)));
        assert_eq!(delay(&to_status(&Error::invalid("x"))), None);
    }

    #[test]
    fn hints_too_large_for_a_header_are_left_out() {
        let range = record::KeyRange { start: vec![7; 9000].into(), end: None };
        let descriptor = record::TabletDescriptor { range: Some(range), ..Default::default() };
        let leader = Some(record::LeaderHint { server: 3, term: 9 });
        let detail = TabletError { descriptors: vec![descriptor], leader, ..Default::default() };
        let status = to_status_with(&Error::new(Reason::WrongTablet, "é".repeat(4000)), &detail);
        assert!(status.details().len() <= DETAILS_BYTES_MAX);
        assert!(status.message().len() <= MESSAGE_BYTES_MAX);
        let (_, read) = from_status(&status);
        assert_eq!(read, Some(TabletError { descriptors: Vec::new(), ..detail }));
    }

    #[test]
    fn statuses_of_others_are_read_by_code() {
        let (error, _) = from_status(&Status::not_found("no"));
        assert_eq!(error.reason, Reason::NotFound);
        let (error, _) = from_status(&Status::unavailable("later"));
        assert_eq!((error.reason, error.kind), (Reason::Unavailable, ErrorKind::RetryElsewhere));
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_open() {
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        let (error, _) = from_status(&broken);
        assert_eq!((error.reason, error.kind), (Reason::OutcomeUnknown, ErrorKind::RetryElsewhere));
        let refused = Status::from_error(Box::new(tonic::ConnectError("refused".into())));
        assert_eq!(from_status(&refused).0.reason, Reason::Unavailable);
    }
}

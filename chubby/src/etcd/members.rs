//! The members of one etcd: a connection to each, and calls that are retried at one member after another.
//!
//! An attempt takes at most [`ATTEMPT_TIMEOUT`], so a frozen or partitioned member costs one second. The member that
//! responded last is tried first. HTTP/2 pings (`runtime::net`) detect a dead connection, which is then opened again.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ebla_model::Reason;
use ebla_proto::status::from_status;
use ebla_runtime::net::{Origin, Windows};
use ebla_runtime::{Net, Runtime, Tasks};
use tokio::sync::OnceCell;
use tonic::Status;

use super::member::Member;
use crate::{Error, LeaseId};

/// How long one member may take to respond.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// The delay after no member could be reached.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The end of etcd's message when a write would exceed the quota of its database, and as long as its alarm NOSPACE is raised.
const NO_SPACE: &str = "database space exceeded";
/// The scheme of an endpoint without TLS, and that of one with TLS.
const SCHEMES: [(&str, Transport); 2] = [("http://", Transport::Plain), ("https://", Transport::Tls)];

/// How a member is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Plain,
    /// With the certificate and the CAs of this process.
    Tls,
}

/// Whether a call may be retried although an earlier attempt may have succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// The call is idempotent.
    Always,
    /// Only when no attempt can have reached a member.
    IfNotSent,
}

/// How an attempt failed.
#[derive(Debug)]
enum CallFailure {
    /// No member has received it.
    NotSent(String),
    /// It may have been executed.
    Ambiguous(String),
    /// Rejected, and every member would reject it.
    Rejected(Error),
}

/// All members.
#[derive(Debug)]
pub(super) struct Members {
    members: Vec<MemberEndpoint>,
    /// The member to try first: the one that responded last.
    preferred: AtomicUsize,
    runtime: Runtime,
}

#[derive(Debug)]
struct MemberEndpoint {
    /// `host:port`.
    address: String,
    transport: Transport,
    /// Created at the first call, because a channel needs a running runtime.
    member: OnceCell<Member>,
}

impl MemberEndpoint {
    fn parse(text: &str) -> Result<Self, Error> {
        let strip = |(scheme, transport)| Some((text.strip_prefix(scheme)?, transport));
        let invalid =
            || Error::Invalid(format!("{text:?} is not an etcd endpoint: write http://HOST:PORT or https://HOST:PORT"));
        let (rest, transport) = SCHEMES.into_iter().find_map(strip).ok_or_else(invalid)?;
        let address = rest.strip_suffix('/').unwrap_or(rest);
        let port = address.rsplit_once(':').filter(|(host, _port)| !host.is_empty());
        match port.map(|(_host, port)| port.parse::<u16>()) {
            Some(Ok(_)) if !address.contains('/') => {
                Ok(Self { address: address.to_owned(), transport, member: OnceCell::new() })
            }
            _ => Err(invalid()),
        }
    }

    async fn member(&self, net: &Net) -> Result<Member, Status> {
        let net = match self.transport {
            Transport::Plain => net.without_tls(),
            Transport::Tls => net.clone(),
        };
        let channel = || net.channel_of(Origin::Public, &self.address, Windows::CALLS);
        self.member.get_or_try_init(|| Member::new(channel())).await.cloned()
    }
}

impl Members {
    /// The members at these endpoints; nothing is connected yet.
    pub(super) fn new(endpoints: &[String], runtime: Runtime) -> Result<Self, Error> {
        let members = endpoints.iter().map(|text| MemberEndpoint::parse(text)).collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(Error::Invalid("no etcd endpoint was given".to_owned()));
        }
        if runtime.net.tls().is_none() && members.iter().any(|member| member.transport == Transport::Tls) {
            let message = "an etcd endpoint begins with https://, so the CA of its certificate is needed: --tls-ca FILE, or --etcd-tls-ca FILE if it has one of its own";
            return Err(Error::Invalid(message.to_owned()));
        }
        Ok(Self { members, preferred: AtomicUsize::new(0), runtime })
    }

    /// Time since boot.
    pub(super) fn now(&self) -> Duration {
        self.runtime.clock.monotonic()
    }

    /// The tasks under which background work runs.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.runtime.tasks
    }

    /// A random lease id that is not in use: etcd's ids are signed and not zero.
    pub(super) fn new_lease(&self) -> LeaseId {
        LeaseId::new(self.runtime.rng.below(i64::MAX.unsigned_abs()).saturating_add(1))
    }

    /// Tries `call` at one member after another until one responds, for at most `timeout`. Cancel-safe if `call` is.
    pub(super) async fn call<T, F>(
        &self,
        retry: RetryPolicy,
        timeout: Duration,
        call: impl Fn(Member) -> F + Send,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Status>> + Send,
        T: Send,
    {
        let mut last = String::from("the deadline had passed already");
        let attempts = async {
            loop {
                if let Some(outcome) = self.round(retry, &call, &mut last).await {
                    return outcome;
                }
                tokio::time::sleep(self.runtime.rng.jitter(RETRY_DELAY)).await;
            }
        };
        let outcome = tokio::time::timeout(timeout, attempts).await;
        outcome.unwrap_or_else(|_elapsed| Err(Error::Unavailable(last)))
    }

    /// One attempt at each member; `None` when all of them must be tried again.
    async fn round<T, F>(
        &self,
        retry: RetryPolicy,
        call: &(impl Fn(Member) -> F + Send),
        last: &mut String,
    ) -> Option<Result<T, Error>>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let first = self.preferred.load(Ordering::Relaxed);
        let order = self.members.iter().enumerate().cycle().skip(first).take(self.members.len());
        for (at, endpoint) in order {
            let call_member = async { call(endpoint.member(&self.runtime.net).await?).await };
            match attempt(call_member).await {
                Ok(answer) => {
                    self.preferred.store(at, Ordering::Relaxed);
                    return Some(Ok(answer));
                }
                Err(CallFailure::Rejected(error)) => return Some(Err(error)),
                Err(CallFailure::Ambiguous(what)) if retry == RetryPolicy::IfNotSent => {
                    self.rotate_past(at);
                    return Some(Err(Error::Unavailable(format!("{}: {what}", endpoint.address))));
                }
                Err(CallFailure::NotSent(what) | CallFailure::Ambiguous(what)) => {
                    *last = format!("{}: {what}", endpoint.address)
                }
            }
        }
        None
    }

    /// The next call starts at another member.
    fn rotate_past(&self, at: usize) {
        let next = at.saturating_add(1);
        self.preferred.store(if next < self.members.len() { next } else { 0 }, Ordering::Relaxed);
    }
}

async fn attempt<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, CallFailure> {
    match tokio::time::timeout(ATTEMPT_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|status| failure(&status)),
        Err(_elapsed) => Err(CallFailure::Ambiguous("attempt timed out".to_owned())),
    }
}

/// Classifies a status. Errors of an etcd in trouble are ambiguous: it says "request timed out" and "leader changed"
/// of transactions that it commits a moment later.
fn failure(status: &Status) -> CallFailure {
    let (error, _detail) = from_status(status);
    let from_connection = std::error::Error::source(status).is_some();
    match error.reason {
        Reason::Unavailable if from_connection => CallFailure::NotSent(error.message),
        // Of all calls made here only those that name a lease return "not found".
        Reason::NotFound => CallFailure::Rejected(Error::LeaseLost),
        Reason::InvalidArgument => CallFailure::Rejected(Error::Invalid(error.message)),
        // etcd rejects new values and new leases until an operator has freed space (docs/operate/troubleshooting.md).
        Reason::ResourceExhausted if error.message.contains(NO_SPACE) => {
            CallFailure::Rejected(Error::Unavailable(no_space(&error.message)))
        }
        Reason::ResourceExhausted | Reason::PermissionDenied | Reason::FailedPrecondition | Reason::Unimplemented => {
            CallFailure::Rejected(Error::Unavailable(error.message))
        }
        _ => CallFailure::Ambiguous(error.message),
    }
}

/// The reason why a full etcd rejects a write, with the next step of an operator.
fn no_space(message: &str) -> String {
    format!(
        "the lock service (etcd) is full: compact its history, defragment its members and disarm its alarm ({message})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(endpoints: &[&str]) -> Result<Members, Error> {
        let endpoints: Vec<_> = endpoints.iter().map(|&text| text.to_owned()).collect();
        Members::new(&endpoints, Runtime::system("test"))
    }

    #[test]
    fn malformed_endpoints_are_rejected_and_valid_ones_need_no_running_member() {
        for bad in
            ["", "127.0.0.1:2379", "https://h", "https://h:1", "http://h", "http://:1", "http://h:x", "http://h:1/path"]
        {
            assert!(matches!(members(&["http://h:1", bad]), Err(Error::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(members(&[]), Err(Error::Invalid(_))));
        for good in ["http://127.0.0.1:2379", "http://etcd-1:2379/", "http://[::1]:2379"] {
            members(&[good]).unwrap();
        }
    }

    /// Members at ports without a listener; the calls do not use the connections.
    fn three() -> Members {
        members(&["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]).unwrap()
    }

    fn unsent() -> Status {
        Status::from_error(Box::new(tonic::ConnectError("refused".into())))
    }

    fn broken() -> Status {
        Status::from_error(Box::new(std::io::Error::other("reset")))
    }

    async fn call_three(
        members: &Members,
        retry: RetryPolicy,
        responses: [Result<u32, Status>; 3],
    ) -> (Result<u32, Error>, usize) {
        let count = AtomicUsize::new(0);
        let call = |_member| {
            let at = count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(responses[at % 3].clone())
        };
        let outcome = members.call(retry, Duration::from_millis(50), call).await;
        (outcome, count.into_inner())
    }

    #[tokio::test]
    async fn a_transaction_is_retried_at_the_next_member_only_if_it_was_not_sent() {
        let (outcome, attempts) = call_three(&three(), RetryPolicy::IfNotSent, [Err(unsent()), Ok(1), Ok(2)]).await;
        assert_eq!((outcome, attempts), (Ok(1), 2));
        let (outcome, attempts) = call_three(&three(), RetryPolicy::IfNotSent, [Err(broken()), Ok(1), Ok(2)]).await;
        assert!(matches!(outcome, Err(Error::Unavailable(_))));
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn a_read_is_retried_after_any_failure_and_the_next_call_starts_there() {
        let members = three();
        let (outcome, attempts) =
            call_three(&members, RetryPolicy::Always, [Err(unsent()), Err(broken()), Ok(7)]).await;
        assert_eq!((outcome, attempts), (Ok(7), 3));
        assert_eq!(members.preferred.load(Ordering::Relaxed), 2);
        let (outcome, _attempts) = call_three(&members, RetryPolicy::IfNotSent, [Err(broken()), Ok(0), Ok(0)]).await;
        assert!(outcome.is_err());
        assert_eq!(members.preferred.load(Ordering::Relaxed), 0, "the one that failed is passed over");
    }

    #[tokio::test]
    async fn a_call_fails_after_its_timeout_when_no_member_responds() {
        let (outcome, attempts) =
            call_three(&three(), RetryPolicy::Always, [Err(unsent()), Err(unsent()), Err(unsent())]).await;
        assert!(matches!(outcome, Err(Error::Unavailable(_))));
        assert!(attempts >= 3);
    }

    #[tokio::test]
    async fn a_full_etcd_rejects_a_write_with_the_next_step() {
        let full = || Err(Status::resource_exhausted("etcdserver: mvcc: database space exceeded"));
        let (outcome, attempts) = call_three(&three(), RetryPolicy::Always, [full(), Ok(1), Ok(1)]).await;
        assert_eq!(attempts, 1, "every member would reject it");
        let error = outcome.unwrap_err().to_string();
        for part in ["the lock service (etcd) is full", "disarm its alarm", "mvcc: database space exceeded"] {
            assert!(error.contains(part), "{error}");
        }
        // Other limits of etcd do not need an operator.
        let busy = || Err(Status::resource_exhausted("etcdserver: too many requests"));
        let (outcome, _attempts) = call_three(&three(), RetryPolicy::Always, [busy(), Ok(1), Ok(1)]).await;
        assert_eq!(outcome, Err(Error::Unavailable("etcdserver: too many requests".to_owned())));
    }

    #[tokio::test]
    async fn a_rejection_is_final() {
        let gone = || Err(Status::not_found("etcdserver: requested lease not found"));
        let (outcome, attempts) = call_three(&three(), RetryPolicy::Always, [gone(), Ok(1), Ok(1)]).await;
        assert_eq!((outcome, attempts), (Err(Error::LeaseLost), 1));
    }
}

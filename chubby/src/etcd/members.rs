//! The members of one etcd: a connection to each, and calls in attempts that go from one to the next.
//!
//! An attempt takes [`ATTEMPT`] at most, so a member that is frozen or cut off costs one second and no more; who answered
//! last is asked first. A connection that has fallen silent is found out by HTTP/2's pings (`runtime::net`) and made anew.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ebla_model::Reason;
use ebla_proto::status::from_status;
use ebla_runtime::{Net, Runtime, Tasks};
use tokio::sync::OnceCell;
use tonic::Status;

use super::member::Member;
use crate::{Error, LeaseId};

/// How long one member may take to answer.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The pause after no member could be reached.
const PAUSE: Duration = Duration::from_millis(100);
/// What endpoints begin with.
const SCHEME: &str = "http://";

/// Whether a call may be made although an earlier attempt at it may have succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Twice is as good as once.
    Freely,
    /// Only when no attempt can have reached a member.
    IfUnsent,
}

/// How an attempt failed.
#[derive(Debug)]
enum Failure {
    /// No member has seen it.
    Unsent(String),
    /// It may have been carried out.
    Open(String),
    /// The answer is no, and would be at any member.
    Refused(Error),
}

/// All members.
#[derive(Debug)]
pub(super) struct Members {
    members: Vec<Endpoint>,
    /// Who is asked first: the one that answered last.
    first: AtomicUsize,
    runtime: Runtime,
}

#[derive(Debug)]
struct Endpoint {
    /// `host:port`.
    address: String,
    /// Made at the first call, because a channel needs a runtime under it.
    member: OnceCell<Member>,
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, Error> {
        let address = text.strip_prefix(SCHEME).map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let port = address.and_then(|address| address.rsplit_once(':')).filter(|(host, _port)| !host.is_empty());
        match (address, port.map(|(_host, port)| port.parse::<u16>())) {
            (Some(address), Some(Ok(_))) if !address.contains('/') => {
                Ok(Self { address: address.to_owned(), member: OnceCell::new() })
            }
            _ => Err(Error::Invalid(format!("{text:?} is no etcd endpoint: write {SCHEME}HOST:PORT"))),
        }
    }

    async fn member(&self, net: &Net) -> Result<Member, Status> {
        self.member.get_or_try_init(|| Member::new(net.channel(&self.address))).await.cloned()
    }
}

impl Members {
    /// The members at these endpoints, none of them connected to yet.
    pub(super) fn new(endpoints: &[String], runtime: Runtime) -> Result<Self, Error> {
        let members = endpoints.iter().map(|text| Endpoint::parse(text)).collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(Error::Invalid("no etcd endpoint is given".to_owned()));
        }
        Ok(Self { members, first: AtomicUsize::new(0), runtime })
    }

    /// Time since boot.
    pub(super) fn now(&self) -> Duration {
        self.runtime.clock.monotonic()
    }

    /// Where what runs in the background runs.
    pub(super) fn tasks(&self) -> &Tasks {
        &self.runtime.tasks
    }

    /// A number that no lease has: etcd's are signed and not zero.
    pub(super) fn new_lease(&self) -> LeaseId {
        LeaseId::new(self.runtime.rng.below(i64::MAX.unsigned_abs()).saturating_add(1))
    }

    /// Makes `call` at one member after another until one answers, `bound` at most. Cancel-safe as far as `call` is.
    pub(super) async fn ask<T, F>(
        &self,
        repeat: Repeat,
        bound: Duration,
        call: impl Fn(Member) -> F + Send,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Status>> + Send,
        T: Send,
    {
        let mut last = String::from("there was no time to ask");
        let asking = async {
            loop {
                if let Some(outcome) = self.round(repeat, &call, &mut last).await {
                    return outcome;
                }
                tokio::time::sleep(self.runtime.rng.jitter(PAUSE)).await;
            }
        };
        let outcome = tokio::time::timeout(bound, asking).await;
        outcome.unwrap_or_else(|_elapsed| Err(Error::Unavailable(last)))
    }

    /// One attempt at each member; `None` when all are to be asked again.
    async fn round<T, F>(
        &self,
        repeat: Repeat,
        call: &(impl Fn(Member) -> F + Send),
        last: &mut String,
    ) -> Option<Result<T, Error>>
    where
        F: Future<Output = Result<T, Status>> + Send,
    {
        let first = self.first.load(Ordering::Relaxed);
        let turns = self.members.iter().enumerate().cycle().skip(first).take(self.members.len());
        for (at, endpoint) in turns {
            let calling = async { call(endpoint.member(&self.runtime.net).await?).await };
            match attempt(calling).await {
                Ok(answer) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Some(Ok(answer));
                }
                Err(Failure::Refused(error)) => return Some(Err(error)),
                Err(Failure::Open(what)) if repeat == Repeat::IfUnsent => {
                    self.pass_over(at);
                    return Some(Err(Error::Unavailable(format!("{}: {what}", endpoint.address))));
                }
                Err(Failure::Unsent(what) | Failure::Open(what)) => *last = format!("{}: {what}", endpoint.address),
            }
        }
        None
    }

    /// The next call begins with another member.
    fn pass_over(&self, at: usize) {
        let next = at.saturating_add(1);
        self.first.store(if next < self.members.len() { next } else { 0 }, Ordering::Relaxed);
    }
}

async fn attempt<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Failure> {
    match tokio::time::timeout(ATTEMPT, call).await {
        Ok(answer) => answer.map_err(|status| failure(&status)),
        Err(_elapsed) => Err(Failure::Open("no answer in time".to_owned())),
    }
}

/// What a status says about the call. What etcd says when it is in trouble leaves the outcome open: "request timed out"
/// and "leader changed" are said of transactions that are carried out a moment later.
fn failure(status: &Status) -> Failure {
    let (error, _detail) = from_status(status);
    let from_connection = std::error::Error::source(status).is_some();
    match error.reason {
        Reason::Unavailable if from_connection => Failure::Unsent(error.message),
        // Of all calls made here only those that name a lease can miss something.
        Reason::NotFound => Failure::Refused(Error::LeaseLost),
        Reason::InvalidArgument => Failure::Refused(Error::Invalid(error.message)),
        // Out of space: etcd takes no more writes until a person has made room (docs/reference/formats.md).
        Reason::ResourceExhausted | Reason::PermissionDenied | Reason::FailedPrecondition | Reason::Unimplemented => {
            Failure::Refused(Error::Unavailable(error.message))
        }
        _ => Failure::Open(error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(endpoints: &[&str]) -> Result<Members, Error> {
        let endpoints: Vec<_> = endpoints.iter().map(|&text| text.to_owned()).collect();
        Members::new(&endpoints, Runtime::system("test"))
    }

    #[test]
    fn malformed_endpoints_are_refused_and_good_ones_need_nobody_there() {
        for bad in ["", "127.0.0.1:2379", "https://h:1", "http://h", "http://:1", "http://h:x", "http://h:1/path"] {
            assert!(matches!(members(&["http://h:1", bad]), Err(Error::Invalid(_))), "{bad:?}");
        }
        assert!(matches!(members(&[]), Err(Error::Invalid(_))));
        for good in ["http://127.0.0.1:2379", "http://etcd-1:2379/", "http://[::1]:2379"] {
            members(&[good]).unwrap();
        }
    }

    /// Members at ports where nobody listens; the calls do not care.
    fn three() -> Members {
        members(&["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]).unwrap()
    }

    fn unsent() -> Status {
        Status::from_error(Box::new(tonic::ConnectError("refused".into())))
    }

    fn broken() -> Status {
        Status::from_error(Box::new(std::io::Error::other("reset")))
    }

    async fn asked(
        members: &Members,
        repeat: Repeat,
        answers: [Result<u32, Status>; 3],
    ) -> (Result<u32, Error>, usize) {
        let count = AtomicUsize::new(0);
        let call = |_member| {
            let at = count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(answers[at % 3].clone())
        };
        let outcome = members.ask(repeat, Duration::from_millis(50), call).await;
        (outcome, count.into_inner())
    }

    #[tokio::test]
    async fn a_transaction_goes_on_to_the_next_member_only_when_it_was_not_sent() {
        let (outcome, attempts) = asked(&three(), Repeat::IfUnsent, [Err(unsent()), Ok(1), Ok(2)]).await;
        assert_eq!((outcome, attempts), (Ok(1), 2));
        let (outcome, attempts) = asked(&three(), Repeat::IfUnsent, [Err(broken()), Ok(1), Ok(2)]).await;
        assert!(matches!(outcome, Err(Error::Unavailable(_))));
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn a_read_goes_on_whatever_happened_and_begins_there_next_time() {
        let members = three();
        let (outcome, attempts) = asked(&members, Repeat::Freely, [Err(unsent()), Err(broken()), Ok(7)]).await;
        assert_eq!((outcome, attempts), (Ok(7), 3));
        assert_eq!(members.first.load(Ordering::Relaxed), 2);
        let (outcome, _attempts) = asked(&members, Repeat::IfUnsent, [Err(broken()), Ok(0), Ok(0)]).await;
        assert!(outcome.is_err());
        assert_eq!(members.first.load(Ordering::Relaxed), 0, "the one that failed is passed over");
    }

    #[tokio::test]
    async fn a_call_ends_with_its_bound_when_nobody_answers() {
        let (outcome, attempts) = asked(&three(), Repeat::Freely, [Err(unsent()), Err(unsent()), Err(unsent())]).await;
        assert!(matches!(outcome, Err(Error::Unavailable(_))));
        assert!(attempts >= 3);
    }

    #[tokio::test]
    async fn a_refusal_is_final() {
        let gone = || Err(Status::not_found("etcdserver: requested lease not found"));
        let (outcome, attempts) = asked(&three(), Repeat::Freely, [gone(), Ok(1), Ok(1)]).await;
        assert_eq!((outcome, attempts), (Err(Error::LeaseLost), 1));
    }
}

//! Calls that wait, begin, are refused and give up; and the layer around a service.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::thread;

use futures::poll;
use tokio::time::Instant;
use tonic::codegen::Service;

use super::super::call_limit::{LIMIT_MAX, SOON, WAITING_MAX};
use super::*;
use crate::middleware::CallResponse;

const LONG: Duration = Duration::from_secs(60);

fn arrive(admission: &CallAdmission, connection: &ResourceCounter) -> Arrived {
    admission.arrive(CallInfo { connection: connection.clone(), is_batch: false })
}

fn begun(admission: &CallAdmission, connection: &ResourceCounter) -> Call {
    let Arrived::Begun(call) = arrive(admission, connection) else { panic!("it waits") };
    call
}

fn waiting(admission: &CallAdmission) -> WaitingCall {
    let Arrived::Waiting(call) = arrive(admission, &ResourceCounter::default()) else { panic!("it does not wait") };
    call
}

/// An admission whose places are all in use.
fn full() -> (CallAdmission, Vec<Call>) {
    let admission = CallAdmission::new(Clock::manual());
    let connection = ResourceCounter::default();
    let calls = (0..LIMIT_MAX).map(|_| begun(&admission, &connection)).collect();
    (admission, calls)
}

/// No call is in progress or waits. With a wrong number of either, or of connections, the last call would not get a place.
fn expect_unused(admission: &CallAdmission) {
    assert!(admission.calls.lock().waiting.is_empty());
    let connection = ResourceCounter::default();
    let all: Vec<_> = (0..LIMIT_MAX).map(|_| begun(admission, &connection)).collect();
    assert!(matches!(arrive(admission, &connection), Arrived::Waiting(_)));
    drop(all);
}

#[tokio::test(start_paused = true)]
async fn a_call_beyond_the_limit_begins_when_another_ends() {
    let (admission, mut calls) = full();
    let started = Instant::now();
    let mut first = pin!(waiting(&admission).begin(LONG));
    assert!(poll!(first.as_mut()).is_pending());
    calls.pop().unwrap().end(false);
    drop(first.await.unwrap());
    drop(begun(&admission, &ResourceCounter::default()));
    assert_eq!(started.elapsed(), Duration::ZERO);
    drop(calls);
    expect_unused(&admission);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_begin_is_refused_after_a_while_and_before_its_deadline() {
    let (admission, calls) = full();
    for (time_left, waited) in [(LONG, SOON), (SOON / 2, SOON / 2)] {
        let started = Instant::now();
        assert!(waiting(&admission).begin(time_left).await.is_none());
        assert_eq!(started.elapsed().as_millis() / 10, waited.as_millis() / 10);
    }
    drop(calls);
    expect_unused(&admission);
}

#[tokio::test]
async fn a_waiting_call_whose_caller_gives_up_leaves_at_once() {
    let (admission, mut calls) = full();
    {
        let mut cancelled = pin!(waiting(&admission).begin(LONG));
        assert!(poll!(cancelled.as_mut()).is_pending());
    }
    drop(waiting(&admission));
    assert!(admission.calls.lock().waiting.is_empty());
    calls.pop().unwrap().end(false);
    drop(begun(&admission, &ResourceCounter::default()));
    drop(calls);
    expect_unused(&admission);
}

#[tokio::test]
async fn a_call_that_gives_up_as_it_begins_passes_its_place_on() {
    let (admission, mut calls) = full();
    let [older, newer] = [0; 2].map(|_| waiting(&admission));
    calls.pop().unwrap().end(false);
    assert_eq!(admission.calls.lock().waiting.len(), 1, "the older one has the place");
    drop(older);
    drop(newer.begin(LONG).await.unwrap());
    drop(calls);
    expect_unused(&admission);
}

#[tokio::test]
async fn when_too_many_calls_wait_a_further_one_is_refused_at_once_and_before_all_else() {
    let (admission, calls) = full();
    let connection = ResourceCounter::default();
    let wait = || {
        let Arrived::Waiting(call) = arrive(&admission, &connection) else { panic!("it does not wait") };
        call
    };
    // The share of one of two connections.
    let others: Vec<_> = (0..WAITING_MAX / 2).map(|_| wait()).collect();
    assert!(matches!(arrive(&admission, &connection), Arrived::Refused));
    let load_shed = admission.load_shed();
    let refusal = |path: &str, connection: &ResourceCounter| {
        let info = ConnectionInfo { usage: connection.clone(), ..ConnectionInfo::default() };
        load_shed.refusal(&info, path)
    };
    let data = "/google.bigtable.v2.Bigtable/MutateRow";
    let refused = Status::from_header_map(&refusal(data, &connection).unwrap()).unwrap();
    assert_eq!(from_status(&refused).0.reason, Reason::Busy, "{refused}");
    assert!(refusal(data, &ResourceCounter::default()).is_none(), "another connection has its share");
    for other in ["/google.bigtable.admin.v2.BigtableTableAdmin/ListTables", "/grpc.health.v1.Health/Check"] {
        assert!(refusal(other, &connection).is_none(), "{other}");
    }
    drop(others);
    drop(calls);
    expect_unused(&admission);
}

#[test]
fn concurrent_calls_of_one_connection_are_counted_exactly() {
    let admission = CallAdmission::new(Clock::manual());
    let connection = ResourceCounter::default();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for number in 0..20_000 {
                    let mut call = begun(&admission, &connection);
                    if number % 2 == 0 {
                        call.end(false);
                    }
                }
            });
        }
    });
    expect_unused(&admission);
}

#[test]
fn calls_are_counted_for_their_tables_until_they_end() {
    let admission = CallAdmission::new(Clock::manual());
    let [busy, quiet] = ["busy", "quiet"].map(|table| TableName::from_parts("p", "i", table).unwrap());
    let call = |table| {
        let call = begun(&admission, &ResourceCounter::default());
        Ok::<_, Error>((call, admission.try_begin_table(table)?))
    };
    let mut calls: Vec<_> = (0..LIMIT_MAX - 1).map(|_| call(&busy).map_err(drop).unwrap()).collect();
    calls.push(call(&quiet).map_err(drop).unwrap());
    drop(calls.remove(0));
    let refused = call(&busy).map(drop).unwrap_err();
    assert_eq!(refused.reason, Reason::Busy);
    assert!(refused.message.contains("for this table"), "{refused}");
    assert!(call(&quiet).is_ok());
    drop(calls);
    assert!(admission.tables.lock().is_empty());
}

/// Counts its calls and answers at once.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Service<CallRequest> for Counting {
    type Response = CallResponse;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: CallRequest) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(http::Response::new(tonic::body::Body::empty())))
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_is_called_when_the_call_begins() {
    let (admission, mut calls) = full();
    let counting = Counting::default();
    let called = || counting.0.load(Ordering::Relaxed);
    let mut service = counting.clone().with(admission.clone());
    let mut request = |timeout: &'static str| {
        let request = http::Request::post("/google.bigtable.v2.Bigtable/MutateRow").header("grpc-timeout", timeout);
        service.call(request.body(tonic::body::Body::empty()).unwrap())
    };
    let status = |response: http::Response<_>| Status::from_header_map(response.headers());
    let mut waiting = request("10S");
    assert!(poll!(&mut waiting).is_pending());
    assert_eq!(called(), 0);
    calls.pop().unwrap().end(false);
    assert!(status(waiting.await.unwrap()).is_none());
    assert_eq!(called(), 1);
    assert!(status(request("10S").await.unwrap()).is_none(), "its place is free again");

    let _last = begun(&admission, &ResourceCounter::default());
    for (timeout, milliseconds) in [("10S", 250), ("100m", 95)] {
        let started = Instant::now();
        let refused = status(request(timeout).await.unwrap()).unwrap();
        assert_eq!(from_status(&refused).0.reason, Reason::Busy, "{refused}");
        let waited = started.elapsed().as_millis();
        assert!((milliseconds..milliseconds + 2).contains(&waited), "{waited} ms");
    }
    assert_eq!(called(), 2);
}

//! What a trace costs: calls of a service that does nothing, with traces and without, in alternation. A traced call adds what a write adds.
//!
//! ```sh
//! cargo run --release -p ebla-runtime --example trace_cost
//! ```

#![expect(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ebla_model::id::{GroupId, LogIndex, ServerId, TableId, TabletId, Term};
use ebla_model::schema::TableName;
use ebla_runtime::Clock;
use ebla_runtime::trace::{self, Batch, Origin, Outcome, Recorder, Stage, TabletIds, TraceOptions, WithTrace};
use futures::future::{BoxFuture, FutureExt as _, ready};
use tonic::Status;
use tonic::codegen::{Service, http};

/// Calls of one round.
const CALLS: u32 = 100_000;
/// Rounds of each sort; the median counts.
const ROUNDS: usize = 9;

/// A service that does for the current operation what a write does.
#[derive(Clone)]
struct Writes {
    table: TableName,
    outcome: Ending,
}

impl Service<http::Request<()>> for Writes {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _request: http::Request<()>) -> Self::Future {
        let (table, outcome) = (self.table.clone(), self.outcome);
        async move {
            trace::with_current(|operation| operation.set_table(&table));
            trace::waiting(Stage::Access, ready(())).await;
            trace::waiting(Stage::Memory, ready(())).await;
            let ids = TabletIds { table: TableId::new(1), tablet: TabletId::new(2), group: GroupId::new(3) };
            trace::with_current(|operation| operation.set_tablet(ids));
            let waits = trace::stage(Stage::Outcome);
            if let Some(operation) = trace::current() {
                let queued = operation.now();
                let batch = Batch { term: Term::new(1), index: LogIndex::new(2), writes: 16 };
                let at = |micros| queued + Duration::from_micros(micros);
                let stages = [
                    (Stage::Propose, at(1), at(2)),
                    (Stage::Sync, at(2), at(3)),
                    (Stage::Replication, at(3), at(4)),
                    (Stage::Apply, at(4), at(5)),
                ];
                operation.join_batch(batch, (Stage::Queue, queued, at(1)), &stages);
                std::hint::black_box(operation.needs_details(at(5)));
            }
            waits.discard();
            Ok(outcome().into_http())
        }
        .boxed()
    }
}

/// The median time of a call, in nanoseconds.
fn median(mut rounds: Vec<Duration>) -> u128 {
    rounds.sort_unstable();
    rounds.get(rounds.len() / 2).map_or(0, |round| round.as_nanos() / u128::from(CALLS))
}

async fn round<S>(clock: &Clock, mut service: S) -> Result<Duration, Box<dyn Error>>
where
    S: Service<http::Request<()>, Response = http::Response<tonic::body::Body>, Error = Infallible>,
{
    let started = clock.monotonic();
    for _call in 0..CALLS {
        let request = http::Request::builder().uri("/google.bigtable.v2.Bigtable/MutateRow").body(())?;
        drop(service.call(request).await);
    }
    Ok(clock.monotonic().saturating_sub(started))
}

/// Makes the status with which a call ends.
type Ending = fn() -> Status;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let clock = Clock::system();
    let table = TableName::from_parts("p", "i", "t")?;
    println!("{:<12}{:>14}{:>14}", "ns per call", "untraced", "traced");
    let outcomes: [(&str, Ending); 2] =
        [("succeeds", || Status::ok("")), ("fails", || Status::permission_denied("no right"))];
    for (name, outcome) in outcomes {
        let recorder = Recorder::new(ServerId::new(1), TraceOptions::default(), clock.clone());
        let plain = Writes { table: table.clone(), outcome };
        let (mut untraced, mut traced) = (Vec::new(), Vec::new());
        for _round in 0..ROUNDS {
            untraced.push(round(&clock, plain.clone()).await?);
            traced.push(round(&clock, WithTrace::new(plain.clone(), Arc::clone(&recorder), Origin::Data)).await?);
        }
        println!("{name:<12}{:>14}{:>14}", median(untraced), median(traced));
        let counts = recorder.counts();
        println!("{:<12}recorded {}, not recorded {}", "", counts.failed.get(), counts.failed_skipped.get());
    }
    // The operation alone, without a service around it.
    let recorder = Recorder::new(ServerId::new(1), TraceOptions::default(), clock.clone());
    let started = clock.monotonic();
    (0..CALLS).for_each(|_call| recorder.begin("MutateRow", Origin::Data, None).end(Outcome::OK));
    let took = clock.monotonic().saturating_sub(started);
    println!("{:<12}{:>28}", "operation", took.as_nanos() / u128::from(CALLS));
    Ok(())
}

//! The operation that the running task works on, as a value of the task: no signature between the API and the disk carries it.
//!
//! A task without an operation pays for one look at a thread-local value. Other threads and tasks do not inherit the operation: what hands work to
//! them passes it on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;

use super::context::TraceContext;
use super::operation::{Operation, Outcome};
use super::stage::Stage;

tokio::task_local! {
    static CURRENT: Arc<Operation>;
}

/// The operation that the running task works on.
#[must_use]
pub fn current() -> Option<Arc<Operation>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// What calls for the current operation tell their receivers.
#[must_use]
pub fn context() -> Option<TraceContext> {
    CURRENT.try_with(|operation| operation.context()).ok()
}

/// Does something with the current operation, if there is one.
pub fn with_current(act: impl FnOnce(&Operation)) {
    // Without an operation there is nothing to do.
    let _absent = CURRENT.try_with(|operation| act(operation));
}

/// Works for this operation.
pub fn scope<F: Future>(operation: Arc<Operation>, work: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(operation, work)
}

/// Works for this operation, which ends with the work: with the outcome that `outcome` says, or as cancelled when the work is dropped.
pub async fn run<T>(
    operation: Arc<Operation>,
    work: impl Future<Output = T>,
    outcome: impl FnOnce(&T) -> Outcome,
) -> T {
    let open = OpenOperation(Arc::clone(&operation));
    let output = scope(operation, work).await;
    open.0.end(outcome(&output));
    output
}

/// As [`scope`], for work that does not wait.
pub(super) fn enter<T>(operation: &Arc<Operation>, work: impl FnOnce() -> T) -> T {
    CURRENT.sync_scope(Arc::clone(operation), work)
}

/// The current operation is in this stage until the result is dropped, on whatever thread that happens.
pub fn stage(stage: Stage) -> StageTimer {
    StageTimer(current().map(|operation| (stage, operation.now(), operation)))
}

/// Waits for `work`. If it is not ready at once, the time until it is counts to this stage of the current operation; work that does not have to wait
/// reads no clock and is in no stage.
pub async fn waiting<F: Future>(stage: Stage, work: F) -> F::Output {
    let mut work = pin!(work);
    let mut waits = None;
    poll_fn(|context| {
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            waits.get_or_insert_with(|| self::stage(stage));
        }
        polled
    })
    .await
}

/// A stage in progress.
#[derive(Debug)]
#[must_use = "the stage ends when this is dropped"]
pub struct StageTimer(Option<(Stage, Duration, Arc<Operation>)>);

impl StageTimer {
    /// The stage ends, and the same operation enters the next one.
    pub fn next(mut self, stage: Stage) -> Self {
        Self(self.0.take().map(|(ended, begin, operation)| {
            let now = operation.now();
            operation.add(ended, begin, now);
            (stage, now, operation)
        }))
    }
}

impl StageTimer {
    /// Nothing is added: the stage is reported otherwise.
    pub fn discard(mut self) {
        self.0 = None;
    }
}

impl Drop for StageTimer {
    fn drop(&mut self) {
        if let Some((stage, begin, operation)) = self.0.take() {
            operation.add(stage, begin, operation.now());
        }
    }
}

/// An operation that ends as cancelled when this is dropped, unless it has ended.
#[derive(Debug)]
pub(super) struct OpenOperation(pub(super) Arc<Operation>);

impl Drop for OpenOperation {
    fn drop(&mut self) {
        self.0.end(Outcome::CANCELLED);
    }
}

/// A stream of messages for an operation, which ends with the stream.
#[derive(Debug)]
pub struct TracedStream<S, E> {
    stream: S,
    operation: OpenOperation,
    /// Since when the receiver has not asked for the next message.
    idle_since: Option<Duration>,
    outcome: fn(&E) -> Outcome,
}

impl<S, E> TracedStream<S, E> {
    /// The messages of `stream`, polled for `operation`; `outcome`: that of an error.
    pub const fn new(stream: S, operation: Arc<Operation>, outcome: fn(&E) -> Outcome) -> Self {
        Self { stream, operation: OpenOperation(operation), idle_since: None, outcome }
    }
}

impl<S, E> Drop for TracedStream<S, E> {
    fn drop(&mut self) {
        // A receiver that gives up has not read its messages until now: that time is not the server's.
        if let Some(since) = self.idle_since.take() {
            let operation = &self.operation.0;
            operation.add_if_any(Stage::Client, since, operation.now());
        }
    }
}

impl<S, T, E> Stream for TracedStream<S, E>
where
    S: Stream<Item = Result<T, E>> + Unpin,
{
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let operation = &this.operation.0;
        if let Some(since) = this.idle_since.take() {
            operation.add(Stage::Client, since, operation.now());
        }
        let stream = &mut this.stream;
        let item = ready!(enter(operation, || Pin::new(stream).poll_next(context)));
        match &item {
            Some(Ok(_message)) => this.idle_since = Some(operation.now()),
            Some(Err(error)) => operation.end((this.outcome)(error)),
            None => operation.end(Outcome::OK),
        }
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::ServerId;
    use futures::{StreamExt as _, stream};

    use super::*;
    use crate::Clock;
    use crate::trace::{Kept, Origin, Recorder, TraceOptions};

    fn recorder(clock: &Clock) -> Arc<Recorder> {
        let options = TraceOptions { slow: Duration::ZERO, ..TraceOptions::default() };
        Recorder::new(ServerId::new(1), options, clock.clone())
    }

    #[tokio::test]
    async fn stages_belong_to_the_operation_of_their_task() {
        let clock = Clock::manual();
        let recorder = recorder(&clock);
        drop(stage(Stage::Read));
        assert!(current().is_none());
        let operation = recorder.begin("ReadRows", Origin::Data, None);
        let timer = scope(Arc::clone(&operation), async {
            let timer = stage(Stage::ReadQueue);
            clock.advance(Duration::from_millis(3));
            timer.next(Stage::Read)
        });
        let timer = timer.await;
        assert!(current().is_none());
        clock.advance(Duration::from_millis(4));
        drop(timer);
        operation.end(Outcome::OK);
        let record = recorder.records().pop().unwrap();
        let times: Vec<_> = record.stages.iter().map(|time| (time.stage, time.total.as_millis())).collect();
        assert_eq!(times, [(Stage::ReadQueue, 3), (Stage::Read, 4)]);
        assert_eq!(record.stages[1].begin, Duration::from_millis(3));
        assert_eq!(record.elapsed, Duration::from_millis(7));
    }

    #[tokio::test]
    async fn only_work_that_waits_is_in_its_stage() {
        let clock = Clock::manual();
        let recorder = recorder(&clock);
        let operation = recorder.begin("MutateRow", Origin::Data, None);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = scope(Arc::clone(&operation), async {
            let ready = async { clock.advance(Duration::from_millis(2)) };
            waiting(Stage::Access, ready).await;
            waiting(Stage::Memory, receiver).await
        });
        let mut work = pin!(work);
        assert!(futures::poll!(work.as_mut()).is_pending());
        clock.advance(Duration::from_millis(7));
        sender.send(5).unwrap();
        assert_eq!(work.await, Ok(5));
        operation.end(Outcome::OK);
        let record = recorder.records().pop().unwrap();
        let times: Vec<_> = record.stages.iter().map(|time| (time.stage, time.total.as_millis())).collect();
        assert_eq!(times, [(Stage::Memory, 7)]);
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_counts() {
        let clock = Clock::manual();
        let recorder = recorder(&clock);
        let operation = recorder.begin("MutateRow", Origin::Data, None);
        {
            let mut work = pin!(scope(Arc::clone(&operation), waiting(Stage::Memory, std::future::pending::<()>())));
            assert!(futures::poll!(work.as_mut()).is_pending());
            clock.advance(Duration::from_millis(3));
        }
        operation.end(Outcome::CANCELLED);
        let record = recorder.records().pop().unwrap();
        assert_eq!(record.stages.iter().map(|time| time.total.as_millis()).collect::<Vec<_>>(), [3]);
    }

    #[tokio::test]
    async fn an_operation_ends_with_its_work() {
        let recorder = recorder(&Clock::manual());
        let begin = || recorder.begin("MergeTablets", Origin::Master, None);
        let failed = run(begin(), async { current().is_some() }, |_output| Outcome::of_code(9));
        assert!(failed.await);
        drop(run(begin(), std::future::pending::<()>(), |()| Outcome::OK));
        {
            let mut given_up = pin!(run(begin(), std::future::pending::<()>(), |()| Outcome::OK));
            assert!(futures::poll!(given_up.as_mut()).is_pending());
        }
        let ended: Vec<_> = recorder.records().iter().map(|record| record.outcome).collect();
        assert_eq!(ended, [Outcome::of_code(9), Outcome::CANCELLED], "work that was never polled is no operation");
    }

    #[tokio::test]
    async fn the_time_of_the_receiver_of_a_stream_is_not_the_servers() {
        let clock = Clock::manual();
        let recorder = recorder(&clock);
        let operation = recorder.begin("Read", Origin::Server, None);
        let messages = stream::iter([Ok::<_, ()>(1), Ok(2)]);
        let mut traced = TracedStream::new(messages, operation, |()| Outcome::UNKNOWN);
        assert_eq!(traced.next().await, Some(Ok(1)));
        clock.advance(Duration::from_secs(9));
        assert_eq!(traced.next().await, Some(Ok(2)));
        assert_eq!(traced.next().await, None);
        let record = recorder.records().pop().unwrap();
        assert_eq!((record.outcome, record.elapsed), (Outcome::OK, Duration::from_secs(9)));
        assert_eq!(record.stages.iter().map(|time| time.total).max(), Some(Duration::from_secs(9)));
        drop(TracedStream::new(stream::iter([Ok::<_, ()>(1)]), recorder.begin("Read", Origin::Server, None), |()| {
            Outcome::UNKNOWN
        }));
        assert_eq!(recorder.records().pop().unwrap().outcome, Outcome::CANCELLED);
    }

    #[tokio::test]
    async fn a_receiver_that_gives_up_does_not_make_the_operation_slow() {
        let clock = Clock::manual();
        let recorder = Recorder::new(ServerId::new(1), TraceOptions::default(), clock.clone());
        let operation = recorder.begin("Read", Origin::Data, None);
        let messages = stream::iter([Ok::<_, ()>(1), Ok(2)]);
        let mut traced = TracedStream::new(messages, operation, |()| Outcome::UNKNOWN);
        assert_eq!(traced.next().await, Some(Ok(1)));
        clock.advance(Duration::from_secs(9));
        drop(traced);
        let record = recorder.records().pop().unwrap();
        assert_eq!((record.kept, record.outcome), (Kept::Failed, Outcome::CANCELLED));
        let times: Vec<_> = record.stages.iter().map(|time| (time.stage, time.total)).collect();
        assert_eq!(times, [(Stage::Client, Duration::from_secs(9))]);
    }
}

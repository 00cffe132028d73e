//! The executor of a server's groups: many futures run inside one tokio task, so that a group's steps cost no task switch.
//!
//! A write passes through half a dozen futures of its group (the proposal queue, openraft's core, its state machine, its two
//! replication streams, the sync tracker), and each of them wakes the next. If each were a tokio task, the runtime would hand
//! them from worker to worker and the kernel would wake a thread for most of these steps. The futures of one
//! [`ExecutorShard`] wake each other inside one poll. One sync of the commit log, or one frame from a peer, often wakes several
//! groups; the shard then runs all of them in the same poll.
//!
//! ```text
//!   tokio task ── poll ──► FuturesUnordered { core a, state machine a, streams a, queue a, core b, … }
//!                              ^ spawn, from inside the poll or from outside
//! ```
//!
//! A future here must not block: work that waits for a disk goes to a blocking pool, as everywhere. A poll that takes long delays the
//! heartbeats of all groups of the shard, and is reported (`ebla_runtime::watchdog`). Futures that openraft spawns from inside a shard
//! join the same shard (`runtime`).

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ebla_model::id::GroupId;
use ebla_runtime::{PollWatch, Runtime};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::task::AtomicWaker;
use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::oneshot;

/// Shards of one server. Two keep two cores busy; with more, fewer futures would share a poll.
const SHARDS: u64 = 2;

/// Runs the futures of all groups of a server. Clones share the same shards.
#[derive(Clone)]
pub(in crate::raft) struct GroupExecutor(Arc<[ExecutorShard]>);

impl GroupExecutor {
    /// Starts the shards. They run until the tasks of `runtime` are stopped; their futures are dropped then.
    pub(in crate::raft) fn start(runtime: &Runtime) -> Self {
        Self((0..SHARDS).map(|number| ExecutorShard::start(&format!("raft-executor {number}"), runtime)).collect())
    }

    /// The polls of the shards.
    pub(in crate::raft) fn watches(&self) -> Vec<Arc<PollWatch>> {
        self.0.iter().filter_map(|shard| shard.0.watch.clone()).collect()
    }

    /// The shard that runs a group.
    pub(in crate::raft) fn shard(&self, group: GroupId) -> ExecutorShard {
        let count = self.0.len().max(1);
        let at = usize::try_from(group.get() % count as u64).unwrap_or(0);
        self.0.get(at).or(self.0.first()).cloned().unwrap_or_default()
    }
}

/// Futures that run as one task. Clones are handles to the same shard.
#[derive(Clone, Default)]
pub(in crate::raft) struct ExecutorShard(Arc<SpawnQueue>);

/// Futures that were spawned and are not polled yet.
#[derive(Default)]
struct SpawnQueue {
    /// Locked to push one future or to take all of them.
    state: Mutex<SpawnQueueState>,
    waker: AtomicWaker,
    /// The polls of the shard; `None` if it never started.
    watch: Option<Arc<PollWatch>>,
}

#[derive(Default)]
struct SpawnQueueState {
    spawned: Vec<BoxFuture<'static, ()>>,
    /// The shard's task has stopped: futures that are spawned now are dropped.
    is_stopped: bool,
}

thread_local! {
    /// The shard that this thread is polling.
    static CURRENT: RefCell<Option<ExecutorShard>> = const { RefCell::new(None) };
}

impl ExecutorShard {
    fn start(name: &str, runtime: &Runtime) -> Self {
        let watch = PollWatch::new(name, runtime.clock.clone());
        let shard = Self(Arc::new(SpawnQueue { watch: Some(Arc::clone(&watch)), ..SpawnQueue::default() }));
        let task = ShardTask { shard: shard.clone(), futures: FuturesUnordered::new(), watch };
        // One poll runs many futures: tokio's cooperative budget for one task would stop it in the middle of a write.
        runtime.tasks.spawn_until_stopped("raft-executor", tokio::task::unconstrained(task));
        shard
    }

    /// The shard that polls the caller; `None` outside of any shard.
    pub(in crate::raft) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs `future` on this shard. It goes on when the handle is dropped, and is dropped when the shard stops.
    pub(in crate::raft) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let (sender, outcome) = oneshot::channel();
        let future = async move {
            // As in a tokio task, a panic stops this future alone and is reported to the handle.
            let outcome = AssertUnwindSafe(future).catch_unwind().await;
            let _handle_dropped = sender.send(outcome);
        };
        let mut state = self.0.state.lock();
        if !state.is_stopped {
            state.spawned.push(future.boxed());
            drop(state);
            self.0.waker.wake();
        }
        JoinHandle(outcome)
    }
}

/// The task of a shard. Dropping it stops the shard.
struct ShardTask {
    shard: ExecutorShard,
    futures: FuturesUnordered<BoxFuture<'static, ()>>,
    watch: Arc<PollWatch>,
}

impl ShardTask {
    /// Takes over the spawned futures; returns whether there were any.
    fn take_spawned(&mut self) -> bool {
        let spawned = std::mem::take(&mut self.shard.0.state.lock().spawned);
        let has_spawned = !spawned.is_empty();
        self.futures.extend(spawned);
        has_spawned
    }
}

impl Future for ShardTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let watch = Arc::clone(&self.watch);
        let _poll = watch.enter();
        let _current = EnterGuard::enter(self.shard.clone());
        self.shard.0.waker.register(context.waker());
        self.take_spawned();
        loop {
            let finished = self.futures.poll_next_unpin(context);
            let has_spawned = self.take_spawned();
            if !has_spawned && !matches!(finished, Poll::Ready(Some(()))) {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for ShardTask {
    fn drop(&mut self) {
        let mut state = self.shard.0.state.lock();
        state.is_stopped = true;
        let spawned = std::mem::take(&mut state.spawned);
        drop(state);
        drop(spawned);
    }
}

/// Makes a shard the current one of this thread until it is dropped.
struct EnterGuard {
    previous: Option<ExecutorShard>,
}

impl EnterGuard {
    fn enter(shard: ExecutorShard) -> Self {
        Self { previous: CURRENT.with_borrow_mut(|current| current.replace(shard)) }
    }
}

impl Drop for EnterGuard {
    fn drop(&mut self) {
        let previous = self.previous.take();
        CURRENT.with_borrow_mut(|current| *current = previous);
    }
}

/// Waits for the output of a spawned future. Dropping it does not cancel the future.
pub(crate) struct JoinHandle<T>(oneshot::Receiver<Result<T, Box<dyn Any + Send>>>);

/// Why a spawned future has no output.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    /// The future panicked.
    #[error("a future of a raft group panicked")]
    Panicked,
    /// The shard stopped before the future finished.
    #[error("the executor of the raft groups has stopped")]
    Stopped,
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_unpin(context).map(|outcome| match outcome {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_panic)) => Err(JoinError::Panicked),
            Err(_sender_dropped) => Err(JoinError::Stopped),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn futures_wake_each_other_and_return_their_output() {
        let runtime = Runtime::system("test");
        let shard = ExecutorShard::start("test", &runtime);
        let (sender, receiver) = oneshot::channel();
        let waits = shard.spawn(async move { receiver.await.unwrap() });
        let inner = shard.spawn(async move {
            let current = ExecutorShard::current().unwrap();
            // Spawned from inside: it joins during the same poll.
            current.spawn(async move { sender.send(7).unwrap() }).await.unwrap();
            8
        });
        assert_eq!((waits.await.unwrap(), inner.await.unwrap()), (7, 8));
        assert!(ExecutorShard::current().is_none());
        runtime.tasks.stop(Duration::from_secs(30)).await;
    }

    #[tokio::test]
    async fn a_panic_is_reported_and_the_other_futures_go_on() {
        let runtime = Runtime::system("test");
        let shard = ExecutorShard::start("test", &runtime);
        let panicked = shard.spawn(async { panic!("planned by the test") }).await;
        assert!(matches!(panicked, Err::<(), _>(JoinError::Panicked)));
        assert_eq!(shard.spawn(async { 1 }).await.unwrap(), 1);
        runtime.tasks.stop(Duration::from_secs(30)).await;
    }

    #[tokio::test]
    async fn the_stop_of_a_shard_drops_its_futures() {
        let runtime = Runtime::system("test");
        let shard = ExecutorShard::start("test", &runtime);
        let waits = shard.spawn(std::future::pending::<()>());
        runtime.tasks.stop(Duration::from_secs(30)).await;
        assert!(matches!(waits.await, Err(JoinError::Stopped)));
        assert!(matches!(shard.spawn(async {}).await, Err(JoinError::Stopped)));
    }

    #[tokio::test]
    async fn a_poll_of_a_shard_is_watched() {
        let runtime = Runtime::system("test");
        let executor = GroupExecutor::start(&runtime);
        let shard = executor.shard(GroupId::new(1));
        let watches = executor.watches();
        let seen = watches.clone();
        let is_polling = |watches: &[Arc<PollWatch>]| watches.iter().filter(|watch| watch.is_polling()).count();
        assert_eq!(shard.spawn(async move { is_polling(&seen) }).await.unwrap(), 1);
        runtime.tasks.stop(Duration::from_secs(30)).await;
        assert_eq!((watches.len(), is_polling(&watches)), (2, 0));
    }
}

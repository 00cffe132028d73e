//! A tree of tasks: each has a name, an owner that joins it, and a cancellation token.
//!
//! A stop has two steps. First the token is cancelled: a task observes it, completes its work and returns. Tasks that are
//! still running after the grace period are dropped at their next `await`. Children stop with their parent.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, debug_span, warn};

/// A group of tasks with one owner; clones are the same group.
#[derive(Clone, Debug)]
pub struct Tasks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    /// Cancelled first: graceful stop.
    token: CancellationToken,
    /// Cancelled after the grace period: futures are dropped.
    killed: CancellationToken,
    tracker: TaskTracker,
    /// The runtime of the tasks; `None`: the runtime of the caller that spawns.
    handle: Option<Handle>,
    /// Only to wait for them. A child without references has no tasks left.
    children: Mutex<Vec<Weak<Inner>>>,
}

impl Tasks {
    /// The root of a tree, on the runtime of the caller (or of each spawning caller, when there is none yet).
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::with(name.to_owned(), CancellationToken::new(), CancellationToken::new(), Handle::try_current().ok())
    }

    /// The root of a tree whose tasks run on `handle`'s runtime.
    #[must_use]
    pub fn on(handle: Handle, name: &str) -> Self {
        Self::with(name.to_owned(), CancellationToken::new(), CancellationToken::new(), Some(handle))
    }

    fn with(name: String, token: CancellationToken, killed: CancellationToken, handle: Option<Handle>) -> Self {
        let tracker = TaskTracker::new();
        Self(Arc::new(Inner { name, token, killed, tracker, handle, children: Mutex::new(Vec::new()) }))
    }

    /// A child group: it stops with this one and can be stopped alone.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.child_of(name, self.0.handle.clone())
    }

    /// As [`Tasks::child`], but its tasks run on another runtime, so that load on one cannot starve the other.
    #[must_use]
    pub fn child_on(&self, handle: Handle, name: &str) -> Self {
        self.child_of(name, Some(handle))
    }

    fn child_of(&self, name: &str, handle: Option<Handle>) -> Self {
        let name = format!("{}/{name}", self.0.name);
        let child = Self::with(name, self.0.token.child_token(), self.0.killed.child_token(), handle);
        let mut children = self.0.children.lock();
        children.retain(|other| other.strong_count() > 0);
        children.push(Arc::downgrade(&child.0));
        child
    }

    /// The path of this group in the tree.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The number of its tasks that have not ended, with those of its children.
    #[must_use]
    pub fn count(&self) -> usize {
        let children: Vec<Arc<Inner>> = self.0.children.lock().iter().filter_map(Weak::upgrade).collect();
        children.into_iter().fold(self.0.tracker.len(), |sum, child| sum.saturating_add(Self(child).count()))
    }

    /// Cancelled when the group is stopped. A task that must clean up selects on it besides its work.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.0.token.clone()
    }

    /// Cancelled after the grace period of [`Tasks::stop`]: tasks must release everything immediately.
    #[must_use]
    pub fn killed(&self) -> CancellationToken {
        self.0.killed.clone()
    }

    /// Spawns a task that observes [`Tasks::token`] itself.
    ///
    /// # Panics
    /// When neither the group nor the caller has a runtime.
    pub fn spawn<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let run = self.track(name, future);
        match &self.0.handle {
            Some(handle) => drop(handle.spawn(run)),
            None => drop(Handle::current().spawn(run)),
        }
    }

    /// Wraps the future as a task of this group that the caller polls: the group waits for it as for its other tasks, and
    /// drops it after the grace period.
    pub fn track<F>(&self, name: &'static str, future: F) -> impl Future<Output = ()> + Send + use<F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Keep a reference, so that a parent finds the group while it has tasks.
        let group = self.clone();
        let killed = self.0.killed.clone();
        let run = async move {
            if killed.run_until_cancelled(future).await.is_none() {
                debug!(group = group.name(), task = name, "task dropped");
            }
        };
        self.0.tracker.track_future(run.instrument(debug_span!("task", name)))
    }

    /// Spawns a task that may be dropped at any `await` once the group is stopped.
    ///
    /// # Panics
    /// As [`Tasks::spawn`].
    pub fn spawn_until_stopped<F>(&self, name: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let token = self.token();
        self.spawn(name, async move {
            token.run_until_cancelled(future).await;
        });
    }

    /// As [`Tasks::spawn`], for work with a result. The work continues when the receiver is dropped. The receiver fails when
    /// the work is dropped.
    ///
    /// # Panics
    /// As [`Tasks::spawn`].
    pub fn start<F>(&self, name: &'static str, work: F) -> oneshot::Receiver<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (task, outcome) = with_outcome(work);
        self.spawn(name, task);
        outcome
    }

    /// As [`Tasks::spawn_until_stopped`], with a result as in [`Tasks::start`].
    ///
    /// # Panics
    /// As [`Tasks::spawn`].
    pub fn start_until_stopped<F>(&self, name: &'static str, work: F) -> oneshot::Receiver<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let (task, outcome) = with_outcome(work);
        self.spawn_until_stopped(name, task);
        outcome
    }

    /// Cancels the token of the group without waiting for its tasks.
    pub fn cancel(&self) {
        self.0.token.cancel();
    }

    /// Stops all tasks of this group and its children and waits for them; drops those that are still running after `grace`.
    /// With a grace of zero tasks are dropped without cancelling the token, as in a crash. Cancel-safe; may be called again.
    pub async fn stop(&self, grace: Duration) {
        if grace.is_zero() {
            self.0.killed.cancel();
            self.join().await;
            return self.0.token.cancel();
        }
        self.0.token.cancel();
        if tokio::time::timeout(grace, self.join()).await.is_err() {
            warn!(group = self.name(), ?grace, "tasks did not stop within the grace period; dropping them");
            self.0.killed.cancel();
            self.join().await;
        }
        self.0.killed.cancel();
    }

    async fn join(&self) {
        let mut waiting = vec![self.clone()];
        while let Some(group) = waiting.pop() {
            group.0.tracker.close();
            group.0.tracker.wait().await;
            let children = group.0.children.lock();
            waiting.extend(children.iter().filter_map(Weak::upgrade).map(Tasks));
        }
    }
}

fn with_outcome<F: Future>(work: F) -> (impl Future<Output = ()>, oneshot::Receiver<F::Output>) {
    let (sender, outcome) = oneshot::channel();
    let task = async move {
        // The receiver may have been dropped.
        drop(sender.send(work.await));
    };
    (task, outcome)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn stop_joins_tasks_of_the_whole_tree() {
        let tasks = Tasks::new("root");
        let ended = Arc::new(AtomicUsize::new(0));
        for group in [tasks.clone(), tasks.child("a").child("b")] {
            let (token, ended) = (group.token(), Arc::clone(&ended));
            group.spawn("waits", async move {
                token.cancelled().await;
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        tasks.stop(Duration::from_secs(30)).await;
        assert_eq!(ended.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_task_that_ignores_its_token_is_dropped_after_the_grace_period() {
        let tasks = Tasks::new("root");
        tasks.spawn("endless", std::future::pending());
        tasks.stop(Duration::ZERO).await;
        assert!(tasks.killed().is_cancelled());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_grace_no_task_observes_the_stop() {
        for _ in 0..100 {
            let tasks = Tasks::new("root");
            let observed = Arc::new(AtomicUsize::new(0));
            let (token, counter) = (tasks.token(), Arc::clone(&observed));
            tasks.spawn("observer", async move {
                token.cancelled().await;
                counter.fetch_add(1, Ordering::SeqCst);
            });
            tasks.stop(Duration::ZERO).await;
            assert!(tasks.token().is_cancelled());
            assert_eq!(observed.load(Ordering::SeqCst), 0);
        }
    }

    #[tokio::test]
    async fn work_continues_when_the_receiver_is_dropped() {
        let tasks = Tasks::new("root");
        let (go, started) = oneshot::channel::<()>();
        let (says, said) = oneshot::channel();
        drop(tasks.start("forgotten", async move {
            let _go = started.await;
            says.send("done")
        }));
        drop(go);
        assert_eq!(said.await, Ok("done"));
        let dropped = tasks.start_until_stopped("endless", std::future::pending::<()>());
        tasks.stop(Duration::from_secs(30)).await;
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    async fn a_child_stops_alone() {
        let tasks = Tasks::new("root");
        let child = tasks.child("child");
        child.spawn_until_stopped("waits", std::future::pending());
        assert_eq!((tasks.count(), child.count()), (1, 1));
        child.stop(Duration::from_secs(30)).await;
        assert_eq!(tasks.count(), 0);
        assert!(child.token().is_cancelled());
        assert!(!tasks.token().is_cancelled());
        assert_eq!(child.name(), "root/child");
    }
}

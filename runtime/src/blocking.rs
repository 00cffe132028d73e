//! Bounded pools of threads for calls that wait for a disk, so that they never hold up the async workers.
//!
//! A call costs a queue push, at most one wake-up and a oneshot channel. A full queue refuses at once: the caller
//! decides whether to wait or to push back. In simulation [`Blocking::inline`] runs the call where it stands.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use tokio::sync::oneshot;

/// Why a call was not run to its end.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BlockingError {
    /// The queue is full: push back, or try again later.
    #[error("the queue of the pool is full")]
    Full,
    /// The pool has been stopped.
    #[error("the pool has stopped")]
    Stopped,
    /// The call panicked; the thread survived.
    #[error("the call panicked")]
    Panicked,
}

type Job = Box<dyn FnOnce() + Send>;

/// A pool of named threads, or the caller's own thread; clones share the pool. Its threads end when the last clone goes.
#[derive(Clone, Debug)]
pub struct Blocking(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Inline,
    Pool(Arc<Pool>),
}

/// Held by the users of a pool; its end is the signal for the threads, which hold `Shared` only.
#[derive(Debug)]
struct Pool {
    shared: Arc<Shared>,
    queue_max: usize,
}

#[derive(Debug)]
struct Shared {
    /// Never held while a job runs.
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    stopped: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State {{ jobs: {}, idle: {}, stopped: {} }}", self.jobs.len(), self.idle, self.stopped)
    }
}

impl Blocking {
    /// Runs each call where it stands: for simulation, where there is one thread.
    #[must_use]
    pub fn inline() -> Self {
        Self(Kind::Inline)
    }

    /// `threads` threads named `name` (at least one), and at most `queue_max` calls that wait for one.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn pool(name: &str, threads: usize, queue_max: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), wake: Condvar::new() });
        let pool = Pool { shared: Arc::clone(&shared), queue_max };
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&shared);
            spawn_thread(name, move || shared.work())?;
        }
        Ok(Self(Kind::Pool(Arc::new(pool))))
    }

    /// Runs `call` on a thread of the pool and returns its result.
    ///
    /// Cancel-safe in this sense: a call that has been queued runs even if the future is dropped.
    ///
    /// # Errors
    /// `Full` at once when the queue is; `Stopped` and `Panicked` as they say.
    pub async fn run<T, F>(&self, call: F) -> Result<T, BlockingError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let Kind::Pool(pool) = &self.0 else { return Ok(call()) };
        let (sender, receiver) = oneshot::channel();
        pool.push(Box::new(move || {
            // The receiver may have been dropped: nobody waits any more.
            let _unwanted = sender.send(call());
        }))?;
        receiver.await.map_err(|_gone| BlockingError::Panicked)
    }

    /// Queues `call` without waiting for it.
    ///
    /// # Errors
    /// `Full` or `Stopped`.
    pub fn submit<F>(&self, call: F) -> Result<(), BlockingError>
    where
        F: FnOnce() + Send + 'static,
    {
        match &self.0 {
            Kind::Inline => {
                call();
                Ok(())
            }
            Kind::Pool(pool) => pool.push(Box::new(call)),
        }
    }

    /// Calls that wait for a thread now.
    #[must_use]
    pub fn queued(&self) -> usize {
        match &self.0 {
            Kind::Inline => 0,
            Kind::Pool(pool) => pool.shared.held().jobs.len(),
        }
    }
}

impl Pool {
    fn push(&self, job: Job) -> Result<(), BlockingError> {
        let mut state = self.shared.held();
        if state.stopped {
            return Err(BlockingError::Stopped);
        }
        // A job that an idle thread is about to take does not count as waiting.
        if state.jobs.len() >= self.queue_max.saturating_add(state.idle) {
            return Err(BlockingError::Full);
        }
        state.jobs.push_back(job);
        let wake = state.idle > 0;
        drop(state);
        if wake {
            self.shared.wake.notify_one();
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.held().stopped = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does until the pool is dropped; jobs that were queued by then still run.
    fn work(&self) {
        while let Some(job) = self.next() {
            // The caller learns of the panic because its channel is dropped; in production the hook ends the process.
            let _panicked = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.held();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.stopped {
                return None;
            }
            state.idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// A thread of its own, joined by who started it.
#[derive(Debug)]
pub struct Thread(std::thread::JoinHandle<()>);

impl Thread {
    /// Waits for the end of the thread. A panic in it has been reported by the panic hook.
    pub fn join(self) {
        let _panicked = self.0.join();
    }

    /// Whether the thread has returned.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Starts a thread that lives as long as a component, such as the log writer. The system shows the first 15 bytes of `name`.
///
/// # Errors
/// When the system refuses a thread.
pub fn spawn_thread<F>(name: &str, run: F) -> std::io::Result<Thread>
where
    F: FnOnce() + Send + 'static,
{
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map(Thread)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn results_come_back_from_the_pool() {
        let pool = Blocking::pool("test", 2, 16).unwrap();
        for n in 0..100_u64 {
            assert_eq!(pool.run(move || n * 2).await, Ok(n * 2));
        }
        assert_eq!(Blocking::inline().run(|| 7).await, Ok(7));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once() {
        let pool = Blocking::pool("test", 1, 1).unwrap();
        let (started, has_started) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        pool.submit(move || {
            started.send(()).unwrap();
            gate.recv().unwrap();
        })
        .unwrap();
        has_started.recv().unwrap();
        pool.submit(|| ()).unwrap();
        assert_eq!(pool.submit(|| ()), Err(BlockingError::Full));
        go.send(()).unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_told_and_the_thread_survives() {
        let pool = Blocking::pool("test", 1, 4).unwrap();
        assert_eq!(pool.run(|| panic!("planned by the test")).await, Err::<(), _>(BlockingError::Panicked));
        assert_eq!(pool.run(|| 1).await, Ok(1));
    }

    #[test]
    fn queued_calls_run_before_the_threads_end() {
        let (sender, receiver) = mpsc::channel();
        let pool = Blocking::pool("test", 1, 100).unwrap();
        for n in 0..10 {
            let sender = sender.clone();
            pool.submit(move || sender.send(n).unwrap()).unwrap();
        }
        drop((pool, sender));
        assert_eq!(receiver.iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}

//! Bounded thread pools for calls that wait for a disk, so that they never block the async workers.
//!
//! A call costs a queue push, at most one wake-up and a oneshot channel. A full queue rejects a call immediately: the caller
//! decides whether to wait or to push back. In simulation [`Blocking::inline`] runs the call on the caller's thread, and [`Blocking::late`] does so after a
//! while.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use thiserror::Error;
use tokio::sync::oneshot;

/// Why a call was not completed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BlockingError {
    /// The queue is full: push back, or retry later.
    #[error("thread pool queue is full; retry later")]
    Full,
    /// The pool has been stopped.
    #[error("thread pool has stopped")]
    Stopped,
    /// The call panicked; the thread survived.
    #[error("call panicked in the thread pool")]
    Panicked,
}

type Job = Box<dyn FnOnce() + Send>;

/// A pool of named threads, or the caller's own thread; clones share the pool. Its threads stop when the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub struct Blocking(Kind);

#[derive(Clone)]
enum Kind {
    Inline,
    Late(Arc<dyn Fn() -> Duration + Send + Sync>),
    Pool(Arc<Pool>),
}

impl fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline => formatter.write_str("Inline"),
            Self::Late(_delay) => formatter.write_str("Late"),
            Self::Pool(pool) => pool.fmt(formatter),
        }
    }
}

/// Owned by the users of a pool. Dropping it stops the threads, which own `Shared` only.
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

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State {{ jobs: {}, idle: {}, stopped: {} }}", self.jobs.len(), self.idle, self.stopped)
    }
}

/// The niceness of threads of a background pool: such a thread gets two fifths of the time of one with 0 (setpriority(2), sched(7)). It is not higher, because
/// it concerns other processes of the machine as well.
const BACKGROUND_NICE: i32 = 4;

impl Blocking {
    /// Runs each call on the caller's thread: for simulation, which has one thread.
    #[must_use]
    pub fn inline() -> Self {
        Self(Kind::Inline)
    }

    /// Runs each awaited call on the caller's thread, after the time that `delay` returns for it: for a simulation of threads that wait for a
    /// processor.
    #[must_use]
    pub fn late(delay: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Kind::Late(Arc::new(delay)))
    }

    /// Whether calls are late on purpose ([`Self::late`]): then every call should be made through [`Self::run`], so that it is late.
    #[must_use]
    pub const fn is_late(&self) -> bool {
        matches!(self.0, Kind::Late(_))
    }

    /// A pool of `threads` threads named `name` (at least one), with a queue of at most `queue_max` calls.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn pool(name: &str, threads: usize, queue_max: usize) -> std::io::Result<Self> {
        Self::start(name, threads, queue_max, || ())
    }

    /// As [`Self::pool`], and other threads come first when processors are scarce: for calls that may take much of them, while other threads are
    /// needed to receive and to refuse calls. On systems without priorities of threads it is the same.
    ///
    /// # Errors
    /// As [`Self::pool`].
    pub fn background_pool(name: &str, threads: usize, queue_max: usize) -> std::io::Result<Self> {
        // On Linux this concerns the calling thread only, and lowering needs no right.
        let lower = || {
            let _unsupported = rustix::process::setpriority_process(None, BACKGROUND_NICE);
        };
        Self::start(name, threads, queue_max, lower)
    }

    fn start(name: &str, threads: usize, queue_max: usize, prepare: fn()) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), wake: Condvar::new() });
        let pool = Pool { shared: Arc::clone(&shared), queue_max };
        for _ in 0..threads.max(1) {
            let shared = Arc::clone(&shared);
            spawn_thread(name, move || {
                prepare();
                shared.work();
            })?;
        }
        Ok(Self(Kind::Pool(Arc::new(pool))))
    }

    /// Runs `call` on a thread of the pool and returns its result.
    ///
    /// If the future is dropped, a queued call still runs; one of [`Self::late`] that has not begun does not.
    ///
    /// # Errors
    /// `Full` immediately when the queue is full; `Stopped`, `Panicked`.
    pub async fn run<T, F>(&self, call: F) -> Result<T, BlockingError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.run_if(call, |_reply| true).await
    }

    /// As [`Blocking::run`], but a queued call whose future is dropped does not run: for calls that only read.
    ///
    /// # Errors
    /// `Full` immediately when the queue is full; `Stopped`, `Panicked`.
    pub async fn run_if_awaited<T, F>(&self, call: F) -> Result<T, BlockingError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.run_if(call, |reply| !reply.is_closed()).await
    }

    /// Runs `call` on a thread of the pool if it is still `wanted` when its turn comes.
    async fn run_if<T, F>(&self, call: F, wanted: fn(&oneshot::Sender<T>) -> bool) -> Result<T, BlockingError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let pool = match &self.0 {
            Kind::Inline => return Ok(call()),
            Kind::Late(delay) => {
                let delay = delay();
                // A timer waits for a millisecond at least.
                if !delay.is_zero() {
                    tokio::time::sleep(delay).await;
                }
                return Ok(call());
            }
            Kind::Pool(pool) => pool,
        };
        let (reply, receiver) = oneshot::channel();
        pool.push(Box::new(move || {
            if wanted(&reply) {
                // The receiver may have been dropped.
                let _unwanted = reply.send(call());
            }
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
            Kind::Inline | Kind::Late(_) => {
                call();
                Ok(())
            }
            Kind::Pool(pool) => pool.push(Box::new(call)),
        }
    }

    /// Number of queued calls.
    #[must_use]
    pub fn queued(&self) -> usize {
        match &self.0 {
            Kind::Inline | Kind::Late(_) => 0,
            Kind::Pool(pool) => pool.shared.state.lock().jobs.len(),
        }
    }
}

impl Pool {
    fn push(&self, job: Job) -> Result<(), BlockingError> {
        let mut state = self.shared.state.lock();
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
        self.shared.state.lock().stopped = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// The loop of a thread until the pool is dropped; queued jobs still run.
    fn work(&self) {
        while let Some(job) = self.next() {
            // The dropped channel reports the panic to the caller; in production the panic hook aborts the process.
            let _panicked = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.stopped {
                return None;
            }
            state.idle += 1;
            self.wake.wait(&mut state);
            state.idle -= 1;
        }
    }
}

/// The number of processors that this process may use; 1 if it is unknown.
#[must_use]
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A dedicated thread. Its owner joins it.
#[derive(Debug)]
pub struct Thread(std::thread::JoinHandle<()>);

impl Thread {
    /// Waits for the end of the thread. The panic hook has already reported a panic in it.
    pub fn join(self) {
        let _panicked = self.0.join();
    }

    /// Whether the thread has returned.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Starts a thread for the lifetime of a component, such as the log writer. The system shows the first 15 bytes of `name`.
///
/// # Errors
/// When the system cannot create a thread.
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

    #[tokio::test(start_paused = true)]
    async fn late_calls_take_their_time() {
        let started = tokio::time::Instant::now();
        let late = Blocking::late(|| Duration::from_millis(300));
        assert_eq!(late.run(|| 7).await, Ok(7));
        assert!(late.is_late() && started.elapsed() >= Duration::from_millis(300), "{:?}", started.elapsed());
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
    async fn a_queued_read_that_nobody_awaits_does_not_run() {
        use futures::FutureExt;

        let pool = Blocking::pool("test", 1, 8).unwrap();
        let (go, gate) = mpsc::channel::<()>();
        pool.submit(move || gate.recv().unwrap()).unwrap();
        let (ran, runs) = mpsc::channel();
        for name in ["abandoned", "awaited"] {
            let (ran, call) = (ran.clone(), move |ran: mpsc::Sender<&str>| ran.send(name).unwrap());
            let mut read = Box::pin(pool.run_if_awaited(move || call(ran)));
            assert!(read.as_mut().now_or_never().is_none());
            if name == "awaited" {
                go.send(()).unwrap();
                assert_eq!(read.await, Ok(()));
            }
        }
        drop(ran);
        assert_eq!(runs.iter().collect::<Vec<_>>(), ["awaited"]);
    }

    #[tokio::test]
    async fn a_panic_is_reported_and_the_thread_survives() {
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

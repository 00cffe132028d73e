//! The runtime that openraft runs on: tokio, with a clock that counts suspended time and with the group executor.
//!
//! A leader lease is a promise about time, and `std`'s `Instant` stands still while a machine is suspended: a leader that
//! resumes would still believe in a lease that has long expired at its followers. `CLOCK_BOOTTIME` counts the
//! suspended time. Timers stay tokio's: a deadline becomes the remaining duration when its timer is created.
//!
//! A future that openraft spawns from inside an executor shard joins that shard (`executor`).

pub(super) mod executor;

use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use ebla_runtime::Clock;
use futures::FutureExt as _;
use openraft::impls::TokioRuntime;
use openraft::{AsyncRuntime, Instant, OptionalSend};
use thiserror::Error;

use self::executor::ExecutorShard;

/// An instant of `CLOCK_BOOTTIME`, as time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(Duration);

impl BootInstant {
    /// Time since boot, comparable with `Clock::monotonic`.
    pub(super) fn since_boot(self) -> Duration {
        self.0
    }

    fn remaining(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }
}

impl Instant for BootInstant {
    fn now() -> Self {
        Self(Clock::system().monotonic())
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl AddAssign<Duration> for BootInstant {
    fn add_assign(&mut self, later: Duration) {
        *self = *self + later;
    }
}

impl Sub<Duration> for BootInstant {
    type Output = Self;

    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }
}

impl Sub for BootInstant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl SubAssign<Duration> for BootInstant {
    fn sub_assign(&mut self, earlier: Duration) {
        *self = *self - earlier;
    }
}

/// The handle of a spawned future.
pub(crate) enum SpawnHandle<T> {
    /// It runs on the executor shard of the future that spawned it.
    Shard(executor::JoinHandle<T>),
    /// It runs as a tokio task, because it was spawned outside of any shard.
    Task(tokio::task::JoinHandle<T>),
}

/// Why a spawned future has no output.
#[derive(Debug, Error)]
pub(crate) enum SpawnError {
    /// It ran on an executor shard.
    #[error(transparent)]
    Shard(executor::JoinError),
    /// It ran as a tokio task.
    #[error(transparent)]
    Task(tokio::task::JoinError),
}

impl<T> Future for SpawnHandle<T> {
    type Output = Result<T, SpawnError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Shard(handle) => handle.poll_unpin(context).map_err(SpawnError::Shard),
            Self::Task(handle) => handle.poll_unpin(context).map_err(SpawnError::Task),
        }
    }
}

/// Tokio with [`BootInstant`] and the group executor.
#[derive(Debug)]
pub(crate) struct RaftRuntime(TokioRuntime);

impl AsyncRuntime for RaftRuntime {
    type JoinError = SpawnError;
    type JoinHandle<T: OptionalSend + 'static> = SpawnHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = BootInstant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        match ExecutorShard::current() {
            Some(shard) => SpawnHandle::Shard(shard.spawn(future)),
            None => SpawnHandle::Task(TokioRuntime::spawn(future)),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep(deadline.remaining())
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(deadline.remaining(), future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        match join_error {
            SpawnError::Shard(error) => matches!(error, executor::JoinError::Panicked),
            SpawnError::Task(error) => error.is_panic(),
        }
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

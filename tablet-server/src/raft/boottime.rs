//! The clock and the tasks that openraft runs on: tokio's, with time since boot in place of `std`'s instant, and with
//! crews in place of a task for each future (`crew`).
//!
//! A leader's read lease is a promise about time, and `std`'s instant stands still while a machine sleeps: a leader that
//! wakes up would still believe in a lease that the others have long forgotten. `CLOCK_BOOTTIME` counts the sleep.
//! Timers stay tokio's; a deadline is turned into what is left of it when the timer is made.

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
use tokio::task::{JoinError, JoinHandle};

use super::crew::{self, Crew, Member};

/// A moment, as time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(Duration);

impl BootInstant {
    /// Time since boot, comparable with `Clock::monotonic`.
    pub(super) fn since_boot(self) -> Duration {
        self.0
    }

    fn left(self) -> Duration {
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

/// A future that was spawned.
pub(crate) enum Spawned<T> {
    /// With the crew of who spawned it.
    Member(Member<T>),
    /// As a task of its own, by somebody who is in no crew.
    Task(JoinHandle<T>),
}

/// Why a spawned future came to no result.
#[derive(Debug, Error)]
pub(crate) enum Lost {
    /// In a crew.
    #[error(transparent)]
    Member(crew::Lost),
    /// As a task of its own.
    #[error(transparent)]
    Task(JoinError),
}

impl<T> Future for Spawned<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Member(member) => member.poll_unpin(context).map_err(Lost::Member),
            Self::Task(task) => task.poll_unpin(context).map_err(Lost::Task),
        }
    }
}

/// Tokio with [`BootInstant`] and crews.
#[derive(Debug)]
pub(crate) struct BootRuntime(TokioRuntime);

impl AsyncRuntime for BootRuntime {
    type JoinError = Lost;
    type JoinHandle<T: OptionalSend + 'static> = Spawned<T>;
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
        match Crew::here() {
            Some(crew) => Spawned::Member(crew.spawn(future)),
            None => Spawned::Task(TokioRuntime::spawn(future)),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep(deadline.left())
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(deadline.left(), future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        match join_error {
            Lost::Member(lost) => matches!(lost, crew::Lost::Panicked),
            Lost::Task(error) => error.is_panic(),
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

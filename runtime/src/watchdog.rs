//! Reports tasks that do not yield. Some tasks run the work of many components, such as all groups of a server with their heartbeats:
//! one blocking call or one long computation in them delays all others.
//!
//! A task tells its [`PollWatch`] when a poll begins and ends. The end of a long poll is reported by the task itself, a long poll that
//! has not ended by the thread of a [`Watchdog`]: a task that blocks for ever reports nothing.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_model::time::whole_micros;
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use crate::blocking::{Thread, spawn_thread};
use crate::clock::Clock;

/// A poll that takes this long is reported. Heartbeats are sent every 300 ms, and after a second without one an election begins.
pub const LONG_POLL: Duration = Duration::from_secs(1);

/// How often the thread looks.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Whether a task is in a poll, and since when.
#[derive(Debug)]
pub struct PollWatch {
    task: String,
    clock: Clock,
    /// The microsecond of the monotonic clock in which the poll began; 0: there is none.
    began: AtomicU64,
}

impl PollWatch {
    /// The watch of a task with this name.
    #[must_use]
    pub fn new(task: impl Into<String>, clock: Clock) -> Arc<Self> {
        Arc::new(Self { task: task.into(), clock, began: AtomicU64::new(0) })
    }

    /// A poll begins; it ends when the result is dropped.
    pub fn enter(&self) -> PollGuard<'_> {
        self.began.store(whole_micros(self.clock.monotonic()).max(1), Ordering::Relaxed);
        PollGuard(self)
    }

    /// Whether a poll is running.
    #[must_use]
    pub fn is_polling(&self) -> bool {
        self.began().is_some()
    }

    /// When the poll that is running began.
    fn began(&self) -> Option<Duration> {
        let began = self.began.load(Ordering::Relaxed);
        (began > 0).then(|| Duration::from_micros(began))
    }
}

/// A poll of a task.
#[derive(Debug)]
pub struct PollGuard<'a>(&'a PollWatch);

impl Drop for PollGuard<'_> {
    fn drop(&mut self) {
        let PollWatch { task, clock, began } = self.0;
        let began = Duration::from_micros(began.swap(0, Ordering::Relaxed));
        let length = clock.monotonic().saturating_sub(began);
        if length >= LONG_POLL {
            let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            warn!(task, millis, "a task has not yielded for long; heartbeats of its groups were delayed");
        }
    }
}

/// What was reported about a task: a poll is reported when it becomes long, and each time its length has doubled.
#[derive(Debug, Default)]
struct PollReports {
    /// The beginning of the last reported poll, and the length at which it is reported next.
    last: Option<(Duration, Duration)>,
}

impl PollReports {
    /// The length of the poll that began at `began` and is still running, if it must be reported `now`.
    fn next(&mut self, began: Option<Duration>, now: Duration) -> Option<Duration> {
        let began = began?;
        let length = now.saturating_sub(began);
        let due_at = self.last.filter(|(reported, _)| *reported == began).map_or(LONG_POLL, |(_, due_at)| due_at);
        (length >= due_at).then(|| {
            self.last = Some((began, length * 2));
            length
        })
    }
}

/// A thread that reports long polls while they run. Dropping it stops the thread.
pub struct Watchdog {
    stop: Arc<StopSignal>,
    thread: Option<Thread>,
}

/// Whether the thread must stop.
#[derive(Debug, Default)]
struct StopSignal {
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog").finish_non_exhaustive()
    }
}

impl Watchdog {
    /// Watches these tasks.
    ///
    /// # Errors
    /// When the system cannot create a thread.
    pub fn start(watches: Vec<Arc<PollWatch>>) -> io::Result<Self> {
        let stop = Arc::<StopSignal>::default();
        let signal = Arc::clone(&stop);
        let thread = spawn_thread("watchdog", move || {
            let mut watches: Vec<_> = watches.into_iter().map(|watch| (watch, PollReports::default())).collect();
            let mut is_stopped = signal.is_stopped.lock();
            while !*is_stopped {
                check(&mut watches);
                signal.changed.wait_for(&mut is_stopped, CHECK_INTERVAL);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.stop.is_stopped.lock() = true;
        self.stop.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

/// Reports the long polls; returns their tasks.
fn check(watches: &mut [(Arc<PollWatch>, PollReports)]) -> Vec<&str> {
    let mut reported = Vec::new();
    for (watch, reports) in watches {
        if let Some(length) = reports.next(watch.began(), watch.clock.monotonic()) {
            let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
            warn!(task = watch.task, millis, "a task does not yield; heartbeats of its groups are delayed");
            reported.push(watch.task.as_str());
        }
    }
    reported
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_poll_is_reported_once_and_again_when_its_length_has_doubled() {
        let began = Some(Duration::from_secs(100));
        let mut reports = PollReports::default();
        let seconds = [100, 101, 102, 103, 104, 107, 108];
        let due = seconds.map(|now| reports.next(began, Duration::from_secs(now)).map(|length| length.as_secs()));
        assert_eq!(due, [None, Some(1), Some(2), None, Some(4), None, Some(8)]);
        assert_eq!(reports.next(None, Duration::from_secs(200)), None);
        let other = Some(Duration::from_secs(200));
        assert_eq!(reports.next(other, Duration::from_secs(201)), Some(LONG_POLL), "another poll");
    }

    #[test]
    fn only_a_poll_that_is_running_is_long() {
        let clock = Clock::manual();
        let watches = ["a", "b"].map(|task| PollWatch::new(task, clock.clone()));
        let mut watched: Vec<_> = watches.iter().map(|watch| (Arc::clone(watch), PollReports::default())).collect();
        let [a, _b] = &watches;
        let poll = a.enter();
        clock.advance(LONG_POLL / 2);
        assert!(check(&mut watched).is_empty());
        clock.advance(LONG_POLL / 2);
        assert_eq!(check(&mut watched), ["a"]);
        drop(poll);
        clock.advance(LONG_POLL * 10);
        assert!(check(&mut watched).is_empty());
    }

    #[test]
    fn the_thread_ends_with_its_owner() {
        let watchdog = Watchdog::start(vec![PollWatch::new("a", Clock::system())]).unwrap();
        drop(watchdog);
    }
}

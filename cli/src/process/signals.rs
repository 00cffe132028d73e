//! SIGTERM and Ctrl-C: the first means stop in order, a later one means at once.

use std::time::Duration;

use ebla_runtime::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::Failure;

/// What an orderly stop may take before the process ends all the same. Ending is always safe: what was acknowledged is on
/// disk.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Signals that follow the first one within this time belong to it: GNU `timeout` sends two, and a shell and a service
/// manager may both pass on the same Ctrl-C.
const SAME_WISH: Duration = Duration::from_secs(1);

/// What a signal means after those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Stop in order.
    Stop,
    /// What an earlier signal has asked for already.
    Repeated,
    /// Do not wait for the orderly stop any more.
    StopNow,
}

/// What a signal at `now` means when `first` was the time of the first one.
fn meaning(first: Option<Duration>, now: Duration) -> Meaning {
    match first {
        None => Meaning::Stop,
        Some(first) if now.saturating_sub(first) < SAME_WISH => Meaning::Repeated,
        Some(_) => Meaning::StopNow,
    }
}

/// SIGTERM and Ctrl-C, watched from when this is made.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    clock: Clock,
    /// When the first signal came, in time since boot.
    first: Option<Duration>,
}

impl Signals {
    /// Watches from now on.
    ///
    /// # Errors
    /// When the signals cannot be watched.
    pub fn watch() -> Result<Self, Failure> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            clock: Clock::system(),
            first: None,
        })
    }

    /// Returns at the next signal. Cancel-safe.
    pub async fn next(&mut self) {
        let _meaning = self.receive().await;
    }

    /// Runs `work` until it ends or a signal comes; whether it ended.
    pub async fn unless_told<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }

    /// Stops in order, but gives up at a second signal or when the time is over. A second signal counts when it comes a second
    /// after the first or later.
    pub async fn stop(&mut self, orderly: impl Future<Output = ()>) {
        let told_twice = async { while self.receive().await != Meaning::StopNow {} };
        tokio::select! {
            ended = tokio::time::timeout(STOP_MAX, orderly) => {
                if ended.is_err() {
                    eprintln!("ebla: not stopped in order after {STOP_MAX:?}: ending now, which loses nothing");
                }
            }
            () = told_twice => eprintln!("ebla: told twice: ending now, which loses nothing"),
        }
    }

    async fn receive(&mut self) -> Meaning {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        let now = self.clock.monotonic();
        let meaning = meaning(self.first, now);
        self.first.get_or_insert(now);
        meaning
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_within_a_second_are_one_wish() {
        let first = Some(Duration::from_secs(100));
        let after = |millis| meaning(first, Duration::from_secs(100) + Duration::from_millis(millis));
        assert_eq!(meaning(None, Duration::from_secs(100)), Meaning::Stop);
        assert_eq!(after(0), Meaning::Repeated);
        assert_eq!(after(999), Meaning::Repeated);
        assert_eq!(after(1_000), Meaning::StopNow);
        assert_eq!(after(60_000), Meaning::StopNow);
    }
}

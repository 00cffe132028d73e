//! SIGTERM and Ctrl-C: the first one requests a graceful stop, a later one an immediate exit.

use std::time::Duration;

use ebla_runtime::Clock;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::output::Failure;

/// Timeout of a graceful stop; after that the process exits. Exiting is always safe: acknowledged data is on disk.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Signals within this time after the first one are repetitions: GNU `timeout` sends two, and a shell and a service manager
/// may both forward the same Ctrl-C.
const REPETITION: Duration = Duration::from_secs(1);

/// Meaning of a signal, given the earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Stop gracefully.
    Stop,
    /// The same request as an earlier signal.
    Repeated,
    /// Exit without waiting for the graceful stop.
    StopNow,
}

/// Meaning of a signal at `now` when the first one arrived at `first`.
fn meaning(first: Option<Duration>, now: Duration) -> Meaning {
    match first {
        None => Meaning::Stop,
        Some(first) if now.saturating_sub(first) < REPETITION => Meaning::Repeated,
        Some(_) => Meaning::StopNow,
    }
}

/// Watches SIGTERM and Ctrl-C from its creation on.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    clock: Clock,
    /// Time of the first signal, since boot.
    first: Option<Duration>,
}

impl Signals {
    /// Starts watching.
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

    /// Runs `work` until it completes or a signal arrives; `None` after a signal.
    pub async fn unless_signalled<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.next() => None,
        }
    }

    /// Runs a graceful stop until it completes, its timeout expires, or a second signal arrives. A second signal counts when it
    /// arrives at least one second after the first.
    pub async fn stop(&mut self, graceful: impl Future<Output = ()>) {
        let second_signal = async { while self.receive().await != Meaning::StopNow {} };
        tokio::select! {
            ended = tokio::time::timeout(STOP_MAX, graceful) => {
                if ended.is_err() {
                    eprintln!("ebla: graceful stop not finished after {STOP_MAX:?}; exiting now (no data is lost)");
                }
            }
            () = second_signal => eprintln!("ebla: second signal received; exiting now (no data is lost)"),
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
    fn signals_within_a_second_are_one_request() {
        let first = Some(Duration::from_secs(100));
        let after = |millis| meaning(first, Duration::from_secs(100) + Duration::from_millis(millis));
        assert_eq!(meaning(None, Duration::from_secs(100)), Meaning::Stop);
        assert_eq!(after(0), Meaning::Repeated);
        assert_eq!(after(999), Meaning::Repeated);
        assert_eq!(after(1_000), Meaning::StopNow);
        assert_eq!(after(60_000), Meaning::StopNow);
    }
}

//! A follower that was away: entries are offered to it again as soon as it answers a heartbeat.
//!
//! openraft waits longer and longer before it offers entries to a follower that cannot be reached, up to a second, and nothing
//! shortens the wait when the follower is back. Meanwhile it counts for no majority: a tablet that loses another server in that
//! second stands still although two of its three replicas are there. Heartbeats do not wait, so they find out first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Wakes its group when a follower is back. One for all followers of a group: who is still away is merely asked sooner.
#[derive(Clone, Debug, Default)]
pub(super) struct Comeback(Arc<Notify>);

impl Comeback {
    /// Watches the heartbeats to one follower.
    pub(super) fn watch(&self) -> Heartbeats {
        Heartbeats { away: Arc::default(), comeback: self.clone() }
    }

    /// Returns when a follower has come back since the last return. Cancel-safe.
    pub(super) async fn next(&self) {
        self.0.notified().await;
    }
}

/// Whether one follower answers heartbeats; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Heartbeats {
    away: Arc<AtomicBool>,
    comeback: Comeback,
}

impl Heartbeats {
    /// A heartbeat was answered, or was not.
    pub(super) fn note(&self, answered: bool) {
        let was_away = self.away.swap(!answered, Ordering::Relaxed);
        if was_away && answered {
            self.comeback.0.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_first_answer_after_silence_is_told_once() {
        let comeback = Comeback::default();
        let (one, other) = (comeback.watch(), comeback.watch());
        let told = || comeback.next().now_or_never().is_some();
        one.note(true);
        assert!(!told(), "it was never away");
        one.note(false);
        one.note(false);
        other.note(true);
        assert!(!told(), "another one answers");
        one.note(true);
        one.note(true);
        assert!(told());
        assert!(!told(), "it is told once");
    }
}

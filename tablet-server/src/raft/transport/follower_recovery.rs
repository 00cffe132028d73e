//! Follower recovery: replication to a follower that was unreachable resumes as soon as it answers a heartbeat.
//!
//! openraft backs off before it sends entries again to a follower that cannot be reached, up to a second, and nothing
//! shortens the backoff when the follower is back. Until then the follower counts for no quorum: a group that loses another
//! server in that second stops, although two of its three replicas run. Heartbeats have no backoff, so they notice the
//! recovery first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Notifies a group when one of its followers is reachable again. There is one for all followers of the group: resetting the
/// backoff of a follower that is still unreachable only costs one more attempt.
#[derive(Clone, Debug, Default)]
pub(in crate::raft) struct FollowerRecovery(Arc<Notify>);

impl FollowerRecovery {
    /// Monitors the heartbeats to one follower.
    pub(in crate::raft) fn monitor(&self) -> HeartbeatMonitor {
        HeartbeatMonitor { is_unreachable: Arc::default(), recovery: self.clone() }
    }

    /// Returns when a follower has recovered since the last return. Cancel-safe.
    pub(in crate::raft) async fn recovered(&self) {
        self.0.notified().await;
    }
}

/// The outcome of one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::raft) enum Heartbeat {
    Answered,
    Failed,
}

/// Whether one follower answers heartbeats. Clones share the state.
#[derive(Clone, Debug)]
pub(in crate::raft) struct HeartbeatMonitor {
    is_unreachable: Arc<AtomicBool>,
    recovery: FollowerRecovery,
}

impl HeartbeatMonitor {
    /// Records the outcome of one heartbeat.
    pub(in crate::raft) fn record(&self, heartbeat: Heartbeat) {
        let was_unreachable = self.is_unreachable.swap(heartbeat == Heartbeat::Failed, Ordering::Relaxed);
        if was_unreachable && heartbeat == Heartbeat::Answered {
            self.recovery.0.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_first_answer_after_a_failure_is_notified_once() {
        let recovery = FollowerRecovery::default();
        let (one, other) = (recovery.monitor(), recovery.monitor());
        let is_notified = || recovery.recovered().now_or_never().is_some();
        one.record(Heartbeat::Answered);
        assert!(!is_notified(), "it was never unreachable");
        one.record(Heartbeat::Failed);
        one.record(Heartbeat::Failed);
        other.record(Heartbeat::Answered);
        assert!(!is_notified(), "another follower answered");
        one.record(Heartbeat::Answered);
        one.record(Heartbeat::Answered);
        assert!(is_notified());
        assert!(!is_notified(), "one recovery is notified once");
    }
}

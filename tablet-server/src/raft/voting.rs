//! The wait before voting: a replica that ran before may have promised its vote to a leader it has forgotten.
//!
//! A leader reads without asking anyone for as long as its followers refuse to vote for others. A follower that restarts
//! has forgotten that promise: it would vote at once, a new leader could commit, and the old one, cut off, would still
//! answer reads. So after a restart a replica gives no vote and no pre-vote, takes no leadership and does not stand for
//! election, until every promise it may have given has run out: the longest election time of the cluster.
//!
//! No wait where there can be no promise: a cluster's first start, the child of a split, and a process that holds all
//! voters and died as a whole.

use std::time::Duration;

/// Until when a replica keeps out of elections.
#[derive(Clone, Copy, Debug)]
pub(super) struct VotingWait {
    /// As time since boot.
    until: Duration,
}

impl VotingWait {
    pub(super) fn new(now: Duration, wait: Option<Duration>) -> Self {
        Self { until: now.saturating_add(wait.unwrap_or_default()) }
    }

    /// What is left of it; `None` when the replica may vote.
    pub(super) fn left(self, now: Duration) -> Option<Duration> {
        self.until.checked_sub(now).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_ends_when_every_promise_has() {
        let start = Duration::from_secs(50);
        let wait = VotingWait::new(start, Some(Duration::from_secs(2)));
        assert_eq!(wait.left(start), Some(Duration::from_secs(2)));
        assert_eq!(wait.left(start + Duration::from_millis(1999)), Some(Duration::from_millis(1)));
        assert_eq!(wait.left(start + Duration::from_secs(2)), None);
        assert_eq!(VotingWait::new(start, None).left(start), None);
    }
}

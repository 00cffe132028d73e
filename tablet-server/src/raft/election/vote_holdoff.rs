//! Vote hold-off: no vote after a restart until every leader lease that the replica may have forgotten has expired.
//!
//! A leader lease lasts as long as the followers refuse to vote for others. A follower that restarts has forgotten that
//! promise: it would vote at once, a new leader could commit, and the old leader, cut off, would still answer reads from its
//! lease. So after a restart a replica grants no vote and no pre-vote, accepts no leadership transfer and does not campaign
//! until every promise that it may have given has expired: the longest election timeout of the cluster.
//!
//! There is no hold-off where there can be no promise: at a cluster's first start, for the child of a split, and in a process
//! that holds all voters and died as a whole.

use std::time::Duration;

/// How long a replica keeps out of elections after its start.
#[derive(Clone, Copy, Debug)]
pub(in crate::raft) struct VoteHoldoff {
    /// When it ends, as time since boot.
    ends: Duration,
}

impl VoteHoldoff {
    pub(in crate::raft) fn new(now: Duration, duration: Option<Duration>) -> Self {
        Self { ends: now.saturating_add(duration.unwrap_or_default()) }
    }

    /// The time until it ends; `None` when the replica may vote.
    pub(in crate::raft) fn remaining(self, now: Duration) -> Option<Duration> {
        self.ends.checked_sub(now).filter(|remaining| !remaining.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holdoff_ends_when_every_promise_has_expired() {
        let start = Duration::from_secs(50);
        let holdoff = VoteHoldoff::new(start, Some(Duration::from_secs(2)));
        assert_eq!(holdoff.remaining(start), Some(Duration::from_secs(2)));
        assert_eq!(holdoff.remaining(start + Duration::from_millis(1999)), Some(Duration::from_millis(1)));
        assert_eq!(holdoff.remaining(start + Duration::from_secs(2)), None);
        assert_eq!(VoteHoldoff::new(start, None).remaining(start), None);
    }
}

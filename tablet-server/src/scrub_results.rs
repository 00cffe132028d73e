//! The results of scrubbing, for reports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_model::metadata::Membership;
use ebla_model::scrub::ScrubState;
use ebla_storage::log::GroupReplica;
use parking_lot::Mutex;

/// The results of the scrubber and of examinations of damaged stores.
#[derive(Debug, Default)]
pub struct ScrubResults(Mutex<Results>);

/// Guards numbers and ids; never locked during a call.
#[derive(Debug, Default)]
struct Results {
    finished: Option<Duration>,
    bytes: u64,
    bytes_per_second: u64,
    damaged: BTreeSet<GroupReplica>,
    kept: BTreeMap<GroupReplica, Kept>,
}

/// A damaged replica that serves what is readable.
#[derive(Debug, Default)]
struct Kept {
    /// The members of its group when the damage was found.
    membership: Membership,
    /// How often it was found.
    found: u32,
}

impl ScrubResults {
    pub(crate) fn set_rate(&self, bytes_per_second: u64) {
        self.0.lock().bytes_per_second = bytes_per_second;
    }

    /// A pass begins.
    pub(crate) fn begin(&self) {
        self.0.lock().bytes = 0;
    }

    pub(crate) fn add(&self, bytes: u64) {
        let mut results = self.0.lock();
        results.bytes = results.bytes.saturating_add(bytes);
    }

    /// A pass has ended. Returns the bytes that were read.
    pub(crate) fn finish(&self, now: Duration) -> u64 {
        let mut results = self.0.lock();
        results.finished = Some(now);
        results.bytes
    }

    /// A replica was found damaged.
    pub(crate) fn add_damaged(&self, id: GroupReplica) {
        self.0.lock().damaged.insert(id);
    }

    /// Whether a replica was found damaged.
    pub(crate) fn is_damaged(&self, id: GroupReplica) -> bool {
        self.0.lock().damaged.contains(&id)
    }

    /// Records that a damaged replica stays. `membership`: of its group. Returns how often that was recorded before for this replica.
    pub(crate) fn keep(&self, id: GroupReplica, membership: Membership) -> u32 {
        let mut results = self.0.lock();
        results.damaged.insert(id);
        let kept = results.kept.entry(id).or_default();
        let before = kept.found;
        *kept = Kept { membership, found: before.saturating_add(1) };
        before
    }

    /// Whether a replica is damaged and stays.
    pub(crate) fn is_kept(&self, id: GroupReplica) -> bool {
        self.0.lock().kept.contains_key(&id)
    }

    /// The members of the group of a damaged replica that stays.
    pub(crate) fn kept_membership(&self, id: GroupReplica) -> Option<Membership> {
        self.0.lock().kept.get(&id).map(|kept| kept.membership.clone())
    }

    /// A replica does not run on this server any more.
    pub(crate) fn forget(&self, id: GroupReplica) {
        self.0.lock().kept.remove(&id);
    }

    /// The results at this time.
    #[must_use]
    pub fn state(&self, now: Duration) -> ScrubState {
        let results = self.0.lock();
        ScrubState {
            finished_ago: results.finished.map(|at| now.saturating_sub(at)),
            bytes: results.bytes,
            bytes_per_second: results.bytes_per_second,
            damaged: results.damaged.len() as u64,
            kept: results.kept.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{GroupId, ReplicaId};

    use super::*;

    #[test]
    fn a_pass_starts_from_zero_and_its_end_is_remembered() {
        let (results, at) = (ScrubResults::default(), Duration::from_secs);
        results.set_rate(9);
        assert_eq!(results.state(at(5)).finished_ago, None);
        for pass in [1, 2] {
            results.begin();
            results.add(3);
            results.add(pass);
            assert_eq!(results.finish(at(10 * pass)), 3 + pass);
        }
        let damaged = GroupReplica { group: GroupId::new(4), replica: ReplicaId::new(1) };
        for _ in 0..2 {
            results.add_damaged(damaged);
        }
        let expected = ScrubState { finished_ago: Some(at(15)), bytes: 5, bytes_per_second: 9, damaged: 1, kept: 0 };
        assert_eq!(results.state(at(35)), expected);
    }

    #[test]
    fn a_kept_replica_counts_until_it_is_removed() {
        let results = ScrubResults::default();
        let [one, other] = [1, 2].map(|group| GroupReplica { group: GroupId::new(group), replica: ReplicaId::new(1) });
        let keep = |id| results.keep(id, Membership::default());
        assert_eq!([keep(one), keep(one), keep(other)], [0, 1, 0]);
        let counts = || (results.state(Duration::ZERO).damaged, results.state(Duration::ZERO).kept);
        assert_eq!((results.kept_membership(other), counts()), (Some(Membership::default()), (2, 2)));
        results.forget(other);
        assert_eq!((results.is_kept(other), results.is_damaged(other), counts()), (false, true, (2, 1)));
    }
}

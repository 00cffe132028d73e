//! The results of scrubbing, for reports.

use std::collections::BTreeSet;
use std::time::Duration;

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

    /// The results at this time.
    #[must_use]
    pub fn state(&self, now: Duration) -> ScrubState {
        let results = self.0.lock();
        ScrubState {
            finished_ago: results.finished.map(|at| now.saturating_sub(at)),
            bytes: results.bytes,
            bytes_per_second: results.bytes_per_second,
            damaged: results.damaged.len() as u64,
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
        let expected = ScrubState { finished_ago: Some(at(15)), bytes: 5, bytes_per_second: 9, damaged: 1 };
        assert_eq!(results.state(at(35)), expected);
    }
}

//! When the loads that leaders report may be planned by. Pure.
//!
//! A replica that begins to lead has measured nothing yet: its first reports have no load. A plan that is made then takes its server for one with
//! little work, gives it more, and takes that away later. So a plan by loads waits until all leaders have measured for some seconds. Averages of
//! so few seconds vary, and nothing announces that they have become better: the plan is made again every few seconds, until they are old.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::id::{GroupId, ServerId, Term};

use crate::cluster::ClusterSnapshot;

/// Leaders measure every two seconds, and twice before the first load is known; then the master must have asked for it.
const MEASURED_AFTER: Duration = Duration::from_secs(6);
/// Between two plans while the averages are young.
const PLAN_PERIOD: Duration = Duration::from_secs(10);
/// The averages have a time constant of 20 s.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// Whether a plan may be made by loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loads {
    /// Every leader has measured its load.
    Measured,
    /// A leader reports less than it has.
    New,
}

/// The leaders of the groups, and when they changed last.
#[derive(Debug, Default)]
pub(crate) struct LoadSettling {
    leaders: BTreeMap<GroupId, (ServerId, Term)>,
    changed_at: Option<Duration>,
}

impl LoadSettling {
    /// Takes the leaders of a snapshot. A group whose leader does not report keeps the last one.
    pub(crate) fn observe(&mut self, cluster: &ClusterSnapshot, now: Duration) {
        let known = cluster.known_groups();
        self.leaders.retain(|group, _leader| known.contains_key(group));
        for (group, (server, report)) in cluster.leader_reports() {
            if self.leaders.insert(group, (server, report.term)) != Some((server, report.term)) {
                self.changed_at = Some(now);
            }
        }
    }

    /// Whether a plan may be made by the loads of the last snapshot.
    pub(crate) fn loads(&self, now: Duration) -> Loads {
        let is_new = self.changed_at.is_some_and(|at| now.saturating_sub(at) < MEASURED_AFTER);
        if is_new { Loads::New } else { Loads::Measured }
    }

    /// The time until the next plan by loads; `None`: the averages are old, or there are no leaders.
    pub(crate) fn next_plan(&self, now: Duration) -> Option<Duration> {
        let age = now.saturating_sub(self.changed_at?);
        let next = if age < MEASURED_AFTER { MEASURED_AFTER.saturating_sub(age) } else { PLAN_PERIOD };
        (age < SETTLED_AFTER).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{LogId, ReplicaId};
    use ebla_model::metadata::GroupDescriptor;
    use ebla_model::time::Micros;

    use super::*;
    use crate::cluster::{ReplicaReport, Role, Server, ServerReport};

    /// Groups 7, 8, … with these leaders and terms.
    fn cluster(leaders: &[(u64, u64)]) -> ClusterSnapshot {
        let mut cluster = ClusterSnapshot::default();
        for (group, (server, term)) in (7..).zip(leaders) {
            let server = ServerId::new(*server);
            let replica = ReplicaReport {
                group: GroupDescriptor::initial(GroupId::new(group), &[server]),
                replica: ReplicaId::new(1),
                role: Role::Leader,
                term: Term::new(*term),
                tablets: Vec::new(),
                applied: LogId::SEED,
                last: LogId::SEED,
                time: Micros::ZERO,
                settled: true,
                heard: [].into(),
                division: None,
            };
            let known =
                cluster.servers.entry(server).or_insert_with(|| Server::registered(Some(ServerReport::default())));
            known.report.as_mut().unwrap().replicas.push(replica);
        }
        cluster
    }

    #[test]
    fn loads_are_measured_some_seconds_after_the_last_change_of_a_leader() {
        let second = Duration::from_secs;
        let mut settling = LoadSettling::default();
        assert_eq!((settling.loads(second(1)), settling.next_plan(second(1))), (Loads::Measured, None), "no leaders");
        settling.observe(&cluster(&[(1, 3), (2, 3)]), second(10));
        assert_eq!((settling.loads(second(15)), settling.next_plan(second(15))), (Loads::New, Some(second(1))));
        assert_eq!((settling.loads(second(16)), settling.next_plan(second(16))), (Loads::Measured, Some(PLAN_PERIOD)));
        settling.observe(&cluster(&[(1, 3)]), second(20));
        settling.observe(&cluster(&[(1, 3)]), second(30));
        assert_eq!(settling.next_plan(second(69)), Some(PLAN_PERIOD));
        assert_eq!(settling.next_plan(second(70)), None);
        for (leaders, at) in [([(1, 3), (1, 4)], 100), ([(1, 4), (1, 4)], 200), ([(2, 5), (1, 4)], 300)] {
            settling.observe(&cluster(&leaders), second(at));
            assert_eq!(settling.loads(second(at)), Loads::New, "{leaders:?}");
            settling.observe(&cluster(&leaders), second(at + 50));
            assert_eq!(settling.loads(second(at + 50)), Loads::Measured, "{leaders:?}");
        }
    }
}

//! What is wrong with the cluster, and since when the active master has observed it. Pure.
//!
//! A problem that is observed again keeps its time; one that is not observed any more is forgotten, and begins again when it returns. A
//! new master starts without times, so a time never is too early. Rounds of the reconciler alone change the history; a status shows it. At most a few entries for each server are stored.

use std::collections::{BTreeMap, BTreeSet};

use ebla_model::capacity::WriteState;
use ebla_model::id::ServerId;
use ebla_model::time::Micros;
use ebla_proto::operate::{ObservedProblem, ProblemKind};

use crate::cluster::ClusterSnapshot;
use crate::health::Health;
use crate::lag::lagging_servers;

/// A kind of problem, and the server that has it; `None`: it is about tablets.
pub(crate) type Problem = (ProblemKind, Option<ServerId>);

/// The problems of a cluster, with the times at which they were observed first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProblemHistory {
    since: BTreeMap<Problem, Micros>,
}

impl ProblemHistory {
    /// Takes the problems that exist at `now`, all of them.
    pub(crate) fn observe(&mut self, problems: BTreeSet<Problem>, now: Micros) {
        let before = std::mem::take(&mut self.since);
        let since = |problem: Problem| (problem, before.get(&problem).copied().unwrap_or(now).min(now));
        self.since = problems.into_iter().map(since).collect();
    }

    /// Those of these problems that were observed, with their times.
    pub(crate) fn of(&self, problems: &BTreeSet<Problem>) -> Self {
        let known = self.since.iter().filter(|(problem, _since)| problems.contains(problem));
        Self { since: known.map(|(problem, since)| (*problem, *since)).collect() }
    }

    /// As a status has them.
    pub(crate) fn to_proto(&self) -> Vec<ObservedProblem> {
        let one = |(&(kind, server), since): (&Problem, &Micros)| ObservedProblem {
            kind: kind.into(),
            server: server.map_or(0, ServerId::get),
            since_micros: since.get(),
        };
        self.since.iter().map(one).collect()
    }
}

/// Whether METADATA can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataState {
    /// It can.
    Readable,
    /// It cannot.
    Unreadable,
}

/// The problems in a snapshot.
pub(crate) fn problems(cluster: &ClusterSnapshot, health: &Health, metadata: MetadataState) -> BTreeSet<Problem> {
    let mut found: BTreeSet<Problem> = BTreeSet::new();
    let expected = cluster.assigned_servers();
    let silent = |id: &ServerId| cluster.servers.get(id).is_none_or(|server| server.report.is_none());
    let known = cluster.servers.keys().copied().chain(expected);
    found.extend(known.filter(silent).map(|id| (ProblemKind::NoResponse, Some(id))));
    for (id, server) in &cluster.servers {
        let Some(report) = &server.report else { continue };
        let states = [
            (ProblemKind::RefusesWrites, report.writes == WriteState::Refuses),
            (ProblemKind::ClockOff, report.clock.is_off),
            (ProblemKind::SlowDisk, report.sync.is_slow),
            (ProblemKind::Damaged, report.scrub.kept > 0),
        ];
        found.extend(states.into_iter().filter(|(_kind, is_so)| *is_so).map(|(kind, _is_so)| (kind, Some(*id))));
    }
    found.extend(lagging_servers(cluster).into_keys().map(|id| (ProblemKind::Lagging, Some(id))));
    let of_tablets = [
        (ProblemKind::NoLeader, !health.without_leader.is_empty()),
        (ProblemKind::NoQuorum, !health.without_quorum.is_empty()),
        (ProblemKind::UnderReplicated, !health.shortages.is_empty()),
        (ProblemKind::MetadataUnreadable, metadata == MetadataState::Unreadable),
    ];
    found.extend(of_tablets.into_iter().filter(|(_kind, is_so)| *is_so).map(|(kind, _is_so)| (kind, None)));
    found
}

#[cfg(test)]
mod tests {
    use ebla_model::id::TabletId;

    use super::*;
    use crate::cluster::{Server, ServerReport};

    #[test]
    fn every_state_of_a_server_is_a_problem_of_its_own() {
        let mut bad = ServerReport { writes: WriteState::Refuses, ..ServerReport::default() };
        (bad.clock.is_off, bad.sync.is_slow, bad.scrub.kept) = (true, true, 1);
        let servers = [None, Some(bad), Some(ServerReport::default())].map(Server::registered);
        let servers = (1..).map(ServerId::new).zip(servers).collect();
        let cluster = ClusterSnapshot { servers, ..ClusterSnapshot::default() };
        let found = problems(&cluster, &Health::default(), MetadataState::Readable);
        let of = |kind, server| (kind, Some(ServerId::new(server)));
        let expected = [
            of(ProblemKind::NoResponse, 1),
            of(ProblemKind::RefusesWrites, 2),
            of(ProblemKind::ClockOff, 2),
            of(ProblemKind::SlowDisk, 2),
            of(ProblemKind::Damaged, 2),
        ];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn problems_of_tablets_have_no_server() {
        let health = Health { without_leader: [TabletId::new(7)].into(), ..Health::default() };
        let found = problems(&ClusterSnapshot::default(), &health, MetadataState::Unreadable);
        assert_eq!(found, [(ProblemKind::NoLeader, None), (ProblemKind::MetadataUnreadable, None)].into());
    }

    #[test]
    fn a_status_that_sees_other_problems_changes_no_time() {
        let server = |kind| (kind, Some(ServerId::new(3)));
        let (slow, down) = (server(ProblemKind::SlowDisk), server(ProblemKind::NoResponse));
        let mut history = ProblemHistory::default();
        history.observe([slow].into(), Micros::new(10));
        assert_eq!(history.of(&[down].into()), ProblemHistory::default(), "no round has found it");
        assert_eq!(history.of(&[slow, down].into()), history);
        history.observe([slow].into(), Micros::new(20));
        assert_eq!(history.to_proto().first().unwrap().since_micros, 10);
    }

    #[test]
    fn a_problem_keeps_its_time_until_it_ends() {
        let (slow, down) = ((ProblemKind::SlowDisk, Some(ServerId::new(3))), (ProblemKind::NoResponse, None));
        let mut history = ProblemHistory::default();
        let mut at = |micros, problems: &[Problem]| {
            history.observe(problems.iter().copied().collect(), Micros::new(micros));
            history.to_proto().into_iter().map(|one| (one.kind(), one.server, one.since_micros)).collect::<Vec<_>>()
        };
        assert_eq!(at(10, &[slow]), [(ProblemKind::SlowDisk, 3, 10)]);
        assert_eq!(at(20, &[slow, down]), [(ProblemKind::NoResponse, 0, 20), (ProblemKind::SlowDisk, 3, 10)]);
        assert_eq!(at(30, &[down]), [(ProblemKind::NoResponse, 0, 20)]);
        assert_eq!(at(40, &[slow]), [(ProblemKind::SlowDisk, 3, 40)]);
        assert_eq!(at(5, &[slow]), [(ProblemKind::SlowDisk, 3, 5)], "a clock that was set back");
    }
}

//! What is wrong with the cluster, and since when the active master has observed it. Pure.
//!
//! A problem that is observed again keeps its time; one that is not observed any more is forgotten, and begins again when it returns, unless
//! its server did not respond. A new master starts without times, so a time never is too early. The reconciler alone changes the history
//! (`problem_watch`); a status shows it. At most a few entries for each server are stored, and those of the busiest tablets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ebla_model::capacity::WriteState;
use ebla_model::id::{ServerId, TabletId};
use ebla_model::near_capacity::LimitedResource;
use ebla_model::tablet_load::{ClusterLoad, Hotspot};
use ebla_model::time::Micros;
use ebla_proto::operate::{ObservedProblem, ProblemKind};

use crate::cluster::{ClusterSnapshot, ServerReport, TabletReport};
use crate::health::Health;
use crate::lag::lagging_servers;

/// Of how many hot tablets the times are stored: of the busiest.
const HOT_TABLETS_MAX: usize = 100;

/// A kind of problem, and what has it.
pub(crate) type Problem = (ProblemKind, ProblemPlace);

/// What has a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProblemPlace {
    /// The tablets of the cluster.
    AllTablets,
    /// A server.
    Server(ServerId),
    /// One tablet.
    Tablet(TabletId),
}

impl ProblemPlace {
    /// The numbers of a server and of a tablet, as a status has them.
    const fn numbers(self) -> (u64, u64) {
        match self {
            Self::AllTablets => (0, 0),
            Self::Server(server) => (server.get(), 0),
            Self::Tablet(tablet) => (0, tablet.get()),
        }
    }
}

/// The problems of a cluster, with the times at which they were observed first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProblemHistory {
    since: BTreeMap<Problem, Micros>,
}

impl ProblemHistory {
    /// Takes the problems that exist at `now`, all of them. What else a server has that does not respond is unknown, so its times stay.
    pub(crate) fn observe(&mut self, problems: BTreeSet<Problem>, now: Micros) {
        let before = std::mem::take(&mut self.since);
        let is_unknown = |place: ProblemPlace| problems.contains(&(ProblemKind::NoResponse, place));
        let unknown = before.keys().copied().filter(|(_kind, place)| is_unknown(*place));
        let known_or_unknown: BTreeSet<Problem> = problems.iter().copied().chain(unknown).collect();
        let since = |problem: Problem| (problem, before.get(&problem).copied().unwrap_or(now).min(now));
        self.since = known_or_unknown.into_iter().map(since).collect();
    }

    /// Those of these problems that were observed, with their times.
    pub(crate) fn of(&self, problems: &BTreeSet<Problem>) -> Self {
        let known = self.since.iter().filter(|(problem, _since)| problems.contains(problem));
        Self { since: known.map(|(problem, since)| (*problem, *since)).collect() }
    }

    /// As a status has them.
    pub(crate) fn to_proto(&self) -> Vec<ObservedProblem> {
        let one = |(&(kind, place), since): (&Problem, &Micros)| {
            let (server, tablet) = place.numbers();
            ObservedProblem { kind: kind.into(), server, tablet, since_micros: since.get() }
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
    let known: BTreeSet<ServerId> = cluster.servers.keys().copied().chain(expected).collect();
    found.extend(known.iter().filter(|id| silent(id)).map(|id| (ProblemKind::NoResponse, ProblemPlace::Server(*id))));
    for (id, server) in &cluster.servers {
        let kinds = server.report.iter().flat_map(of_report);
        found.extend(kinds.map(|kind| (kind, ProblemPlace::Server(*id))));
    }
    found.extend(lagging_servers(cluster).into_keys().map(|id| (ProblemKind::Lagging, ProblemPlace::Server(id))));
    found.extend(hotspots(cluster, known.len()));
    let of_tablets = [
        (ProblemKind::NoLeader, !health.without_leader.is_empty()),
        (ProblemKind::NoQuorum, !health.without_quorum.is_empty()),
        (ProblemKind::UnderReplicated, !health.shortages.is_empty()),
        (ProblemKind::MetadataUnreadable, metadata == MetadataState::Unreadable),
    ];
    found.extend(
        of_tablets.into_iter().filter(|(_kind, is_so)| *is_so).map(|(kind, _is_so)| (kind, ProblemPlace::AllTablets)),
    );
    found
}

/// What a server reports to be wrong with it.
fn of_report(report: &ServerReport) -> impl Iterator<Item = ProblemKind> {
    let is_near = |resource| report.resources.near_limit(resource, report.writes).is_some();
    let states = [
        (ProblemKind::RefusesWrites, report.writes == WriteState::Refuses),
        (ProblemKind::ClockOff, report.clock.is_off),
        (ProblemKind::SlowDisk, report.sync.is_slow),
        (ProblemKind::Damaged, report.scrub.kept > 0),
        (ProblemKind::DiskNearlyFull, is_near(LimitedResource::Disk)),
        (ProblemKind::MemoryNearlyUsed, is_near(LimitedResource::Memory)),
        (ProblemKind::FilesNearlyUsed, is_near(LimitedResource::Files)),
        (ProblemKind::ConnectionsNearlyUsed, is_near(LimitedResource::Connections)),
    ];
    states.into_iter().filter(|(_kind, is_so)| *is_so).map(|(kind, _is_so)| kind)
}

/// The tablets that are hot or have a hot row, the busiest of them. `servers`: how many there are.
fn hotspots(cluster: &ClusterSnapshot, servers: usize) -> impl Iterator<Item = Problem> {
    let leaders = cluster.leader_reports();
    let led: Vec<&TabletReport> = leaders.into_values().flat_map(|(_server, report)| &report.tablets).collect();
    let per_second = led.iter().map(|tablet| tablet.load.per_second()).fold(0, u64::saturating_add);
    let load = ClusterLoad { per_second, servers };
    let problem = |tablet: &TabletReport| {
        let kind = match tablet.load.hotspot(tablet.descriptor.table, load)? {
            Hotspot::Row => ProblemKind::HotRow,
            Hotspot::Tablet { .. } => ProblemKind::HotTablet,
        };
        Some((tablet.load.per_second(), (kind, ProblemPlace::Tablet(tablet.descriptor.tablet))))
    };
    let mut found: Vec<(u64, Problem)> = led.into_iter().filter_map(problem).collect();
    found.sort_by_key(|(busy, problem)| (Reverse(*busy), *problem));
    found.into_iter().take(HOT_TABLETS_MAX).map(|(_busy, problem)| problem)
}

#[cfg(test)]
mod tests {
    use ebla_model::capacity::{DiskSpace, Usage};
    use ebla_model::id::{GroupId, LogId, ReplicaId, SchemaVersion, TableId, Term};
    use ebla_model::key::{KeyRange, RowKey};
    use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
    use ebla_model::tablet_load::TabletLoad;

    use super::*;
    use crate::cluster::{ReplicaReport, Role, Server};

    const fn of_server(kind: ProblemKind, server: u64) -> Problem {
        (kind, ProblemPlace::Server(ServerId::new(server)))
    }

    #[test]
    fn every_state_of_a_server_is_a_problem_of_its_own() {
        let mut bad = ServerReport { writes: WriteState::Refuses, ..ServerReport::default() };
        (bad.clock.is_off, bad.sync.is_slow, bad.scrub.kept) = (true, true, 1);
        let servers = [None, Some(bad), Some(ServerReport::default())].map(Server::registered);
        let servers = (1..).map(ServerId::new).zip(servers).collect();
        let cluster = ClusterSnapshot { servers, ..ClusterSnapshot::default() };
        let found = problems(&cluster, &Health::default(), MetadataState::Readable);
        let expected = [
            of_server(ProblemKind::NoResponse, 1),
            of_server(ProblemKind::RefusesWrites, 2),
            of_server(ProblemKind::ClockOff, 2),
            of_server(ProblemKind::SlowDisk, 2),
            of_server(ProblemKind::Damaged, 2),
        ];
        assert_eq!(found, expected.into());
    }

    #[test]
    fn problems_of_tablets_have_no_server() {
        let health = Health { without_leader: [TabletId::new(7)].into(), ..Health::default() };
        let found = problems(&ClusterSnapshot::default(), &health, MetadataState::Unreadable);
        let expected = [ProblemKind::NoLeader, ProblemKind::MetadataUnreadable];
        assert_eq!(found, expected.map(|kind| (kind, ProblemPlace::AllTablets)).into());
    }

    #[test]
    fn each_resource_that_is_nearly_used_is_a_problem_of_its_own() {
        let used = |used| Some(Usage { used, limit: 100 });
        let mut report = ServerReport::default();
        report.resources.disk = Some(DiskSpace { free_bytes: 5, total_bytes: 100, reserve_bytes: 2 });
        (report.resources.memory, report.resources.files, report.resources.connections) =
            (used(95), used(85), used(79));
        let of = |report: &ServerReport| of_report(report).collect::<Vec<_>>();
        let near = [ProblemKind::DiskNearlyFull, ProblemKind::MemoryNearlyUsed, ProblemKind::FilesNearlyUsed];
        assert_eq!(of(&report), near);
        report.resources.connections = used(80);
        report.writes = WriteState::Refuses;
        let full = [
            ProblemKind::RefusesWrites,
            ProblemKind::MemoryNearlyUsed,
            ProblemKind::FilesNearlyUsed,
            ProblemKind::ConnectionsNearlyUsed,
        ];
        assert_eq!(of(&report), full, "a disk that is used up is not nearly full besides");
    }

    /// Two servers. The first one leads a group with tablets 1, 2, … of table 5: reads per second, and whether they are of one row.
    fn loaded(tablets: &[(u64, bool)]) -> ClusterSnapshot {
        let servers = [1, 2].map(ServerId::new);
        let tablet = |(id, (reads_per_second, is_one_row)): (u64, &(u64, bool))| TabletReport {
            descriptor: TabletDescriptor::initial(TableId::new(5), TabletId::new(id), KeyRange::all(), &servers),
            size_bytes: 0,
            schema_version: SchemaVersion::new(1),
            load: TabletLoad {
                reads_per_second: *reads_per_second,
                hot_row: is_one_row.then(|| RowKey::new("row")),
                ..TabletLoad::default()
            },
        };
        let replica = |role| ReplicaReport {
            group: GroupDescriptor::initial(GroupId::new(7), &servers),
            replica: ReplicaId::new(1),
            role,
            term: Term::new(1),
            tablets: (1..).zip(tablets).map(tablet).collect(),
            applied: LogId::SEED,
            last: LogId::SEED,
            time: Micros::ZERO,
            settled: true,
            heard: [].into(),
            division: None,
        };
        let server =
            |role| Server::registered(Some(ServerReport { replicas: vec![replica(role)], ..ServerReport::default() }));
        let roles = [Role::Leader, Role::Follower];
        let servers = servers.into_iter().zip(roles.map(server)).collect();
        ClusterSnapshot { servers, ..ClusterSnapshot::default() }
    }

    #[test]
    fn a_hot_row_and_a_hot_tablet_are_problems_of_their_tablets() {
        let tablet = |kind, tablet| (kind, ProblemPlace::Tablet(TabletId::new(tablet)));
        let found = |tablets: &[(u64, bool)]| hotspots(&loaded(tablets), 2).collect::<Vec<_>>();
        assert_eq!(found(&[(1_999, true), (10, false)]), []);
        let (row, hot) = (tablet(ProblemKind::HotRow, 2), tablet(ProblemKind::HotTablet, 1));
        assert_eq!(found(&[(9_000, false), (3_000, true)]), [hot, row], "the busiest first");
        assert_eq!(found(&[(3_000, false), (3_000, true), (10_000, false)]), [tablet(ProblemKind::HotTablet, 3), row]);
        assert_eq!(found(&[(2_500, true); 150]).len(), HOT_TABLETS_MAX);
        let all = problems(&loaded(&[(9_000, false)]), &Health::default(), MetadataState::Readable);
        assert!(all.contains(&hot), "{all:?}");
        let mut history = ProblemHistory::default();
        history.observe([hot, of_server(ProblemKind::SlowDisk, 9)].into(), Micros::new(10));
        let shown: Vec<_> = history.to_proto().iter().map(|one| (one.kind(), one.server, one.tablet)).collect();
        assert_eq!(shown, [(ProblemKind::SlowDisk, 9, 0), (ProblemKind::HotTablet, 0, 1)]);
    }

    #[test]
    fn a_status_that_sees_other_problems_changes_no_time() {
        let (slow, down) = (of_server(ProblemKind::SlowDisk, 3), of_server(ProblemKind::NoResponse, 3));
        let mut history = ProblemHistory::default();
        history.observe([slow].into(), Micros::new(10));
        assert_eq!(history.of(&[down].into()), ProblemHistory::default(), "no round has found it");
        assert_eq!(history.of(&[slow, down].into()), history);
        history.observe([slow].into(), Micros::new(20));
        assert_eq!(history.to_proto().first().unwrap().since_micros, 10);
    }

    #[test]
    fn a_server_that_does_not_respond_keeps_the_times_of_its_problems() {
        let (lags, down) = (of_server(ProblemKind::Lagging, 3), of_server(ProblemKind::NoResponse, 3));
        let other = of_server(ProblemKind::Lagging, 4);
        let mut history = ProblemHistory::default();
        let mut at = |micros, problems: &[Problem]| {
            let problems: BTreeSet<Problem> = problems.iter().copied().collect();
            history.observe(problems.clone(), Micros::new(micros));
            history.of(&problems).since.into_values().map(Micros::get).collect::<Vec<_>>()
        };
        assert_eq!(at(10, &[lags, other]), [10, 10]);
        assert_eq!(at(20, &[down]), [20], "the lag is unknown, and not shown");
        assert_eq!(at(30, &[lags, other]), [10, 30]);
        assert_eq!(at(40, &[]), []);
        assert_eq!(at(50, &[lags]), [50], "it responded without lagging");
    }

    #[test]
    fn a_problem_keeps_its_time_until_it_ends() {
        let (slow, down) = (of_server(ProblemKind::SlowDisk, 3), (ProblemKind::NoLeader, ProblemPlace::AllTablets));
        let mut history = ProblemHistory::default();
        let mut at = |micros, problems: &[Problem]| {
            history.observe(problems.iter().copied().collect(), Micros::new(micros));
            history.to_proto().into_iter().map(|one| (one.kind(), one.server, one.since_micros)).collect::<Vec<_>>()
        };
        assert_eq!(at(10, &[slow]), [(ProblemKind::SlowDisk, 3, 10)]);
        assert_eq!(at(20, &[slow, down]), [(ProblemKind::SlowDisk, 3, 10), (ProblemKind::NoLeader, 0, 20)]);
        assert_eq!(at(30, &[down]), [(ProblemKind::NoLeader, 0, 20)]);
        assert_eq!(at(40, &[slow]), [(ProblemKind::SlowDisk, 3, 40)]);
        assert_eq!(at(5, &[slow]), [(ProblemKind::SlowDisk, 3, 5)], "a clock that was set back");
    }
}

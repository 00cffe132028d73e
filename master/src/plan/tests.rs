//! The golden scripts of `testdata/plan`: a snapshot, then the actions of its plan.
//!
//! ```text
//! server 1                                                       registered and responding
//! server 1 zone=a                                                in zone a
//! server 2 unresponsive                                          registered, not responding
//! server 2 unregistered                                          not registered, but responding
//! server 2 split=128M                                            the size above which it splits tablets
//! table 5 active v2                                              in Chubby
//! deleted 6 by=7@20,8@21                                         the record of a deletion: groups and positions of their logs
//! new-group 7 on=1,2,3 [has-majority]                            a group that is being created
//! planned table=5 tablet=7 range=-..m group=7 on=1,2,3           a tablet of a table's plan
//! operation 4 table=5 drop-range a..b | drop-table
//! row table=5 tablet=7 range=-..m gen=1 group=7 on=1,2,3         in METADATA
//! root gen=1 on=1,2,3                                            Chubby's file
//! report 1 group=7 on=1,2,3 [replica=1] [leads term=2] [settled] [heard=2,3] [applied=9] [last=12] [time=5] [division=6@20] tablets=5/7:-..m,5/8:m..-:g2:v3
//! damaged 3 group=7 replica=3                                    a damaged replica on server 3
//! merge-rules bytes=64M after=3600                               tablets below this together are merged after this time; unless given: none
//! now 60                                                         seconds; the grace is 30
//! replicas 3                                                     that a group should have
//! idle 3 group=7 replica=3                                       a replica on server 3 that is not running
//! missing-server 3 since=10                                      a server is missing since then
//! missing-replica 2 group=7 replica=2 since=10                   a replica is missing on its server since then
//! in-progress group=7 on=4                                       its replicas are being changed; server 4 gets one
//! resources 2 disk=10G/100G reserve=2G files=60/1024 memory=1G/4G sharers=3     what server 2 reports: free or used, of all
//! counters tables=6 tablets=8                                    the next ids of the counters; others are new
//! highest 3 table=5 tablet=7 operation=4                         the highest ids that server 3 reports
//! clock-off 3                                                    the clock of server 3 is off
//! slow-disk 3                                                    the disk of server 3 is slow
//! balance                                                        replicas are moved between healthy servers
//! new-loads                                                      a leader has not measured its load yet
//! drained 3                                                      server 3 is drained
//! merge 7 8                                                      an operator requests a merge; without 8: with the next tablet
//! place 1000                                                     a table of 1,000 tablets is placed
//! split 7                                                        an operator requests a split of tablet 7
//! divide 3                                                       an operator requests a division of group 3
//! move 7 4                                                       an operator requests a move of tablet 7 to group 4
//! drain 3                                                        an operator requests the drain of server 3
//! remove 3                                                       an operator requests that server 3 is forgotten
//! recover 1 7                                                    an operator requests that the group of tablet 7 recovers from server 1;
//!                                                                without 7: all groups
//! ---
//! write-row …
//! ```
//!
//! The tablets of a report are `table/tablet:range`, then the generation `g2` and the schema version `v3` unless they are 1, and
//! the size `s2048` in MiB; `q3600`: quiet for this many seconds; `w900`: writes per second.
//! The group of a row is that with the tablet's number unless it is named; METADATA is in group 1.
//!
//! Members are servers, whose replicas are numbered from 1, or `replica@server`: `on=1,2,1001@4`. The outgoing voters of
//! a joint membership: `was=1,2,3`. Learners: `learners=1001@4`. `at=20`: the index of the membership's entry.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use ebla_model::capacity::{DiskSpace, Resources, Usage};
use ebla_model::clock_offset::ClockState;
use ebla_model::error::Error;
use ebla_model::highest_ids::HighestIds;
use ebla_model::id::{Generation, Incarnation, LogId, LogIndex, SchemaVersion, Term};
use ebla_model::key::KeyRange;
use ebla_model::metadata::{Membership, root_range};
use ebla_model::schema::{TableName, TableSchema};
use ebla_model::sync_delay::SyncState;
use ebla_model::tablet_load::TabletLoad;
use ebla_model::time::Micros;

use super::auto_merge::{MergeContext, MergeMemory, MergeRules};
use super::failure_detector::{Component, FailureDetector};
use super::load_settling::Loads;
use super::merge::{MergeWith, merge_pair, merged, move_before_merge};
use super::quorum_loss::{GroupRecovery, quorum_loss_recovery};
use super::relocate::{Relocated, Relocation, relocate};
use super::zones::Zones;
use super::*;
use crate::cluster::{
    DeletedTable, Division, GroupPlan, GroupProgress, Operation, Registration, ReplicaReport, Server, ServerReport,
    TablePlan, TabletReport,
};

/// The words of a line after the first, as `key=value` or alone.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn value(&self, key: &str) -> Option<&'a str> {
        self.0.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.value(key).map(|value| value.parse().unwrap())
    }

    fn numbers(&self, key: &str) -> impl Iterator<Item = u64> {
        self.value(key).into_iter().flat_map(|value| value.split(',')).map(|number| number.parse().unwrap())
    }

    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    fn range(&self) -> KeyRange {
        range(self.value("range").unwrap())
    }

    fn descriptor(&self) -> TabletDescriptor {
        let table = TableId::new(self.number("table").unwrap_or(0));
        let tablet = TabletId::new(self.number("tablet").unwrap_or(1));
        let range = if tablet == TabletId::ROOT { root_range() } else { self.range() };
        let own_group = if table == TableId::METADATA { 1 } else { tablet.get() };
        let group = self.group(GroupId::new(self.number("group").unwrap_or(own_group)));
        group.tablet(table, tablet, range, Generation::new(self.number("gen").unwrap_or(1)))
    }

    fn group(&self, group: GroupId) -> GroupDescriptor {
        let (before, voters, learners) = (self.members("was"), self.members("on"), self.members("learners"));
        let membership = Membership {
            voters: [&before, &voters].into_iter().filter(|set| !set.is_empty()).map(|set| ids(set)).collect(),
            replicas: [before, voters, learners].concat().into_iter().collect(),
        };
        let membership_log_id = match self.number("at") {
            Some(index) => LogId { term: Term::new(1), index: LogIndex::new(index) },
            None => LogId::SEED,
        };
        GroupDescriptor { group, membership, membership_log_id }
    }

    fn group_id(&self) -> GroupId {
        GroupId::new(self.number("group").unwrap())
    }

    fn members(&self, key: &str) -> Vec<(ReplicaId, ServerId)> {
        let members = self.value(key).into_iter().flat_map(|value| value.split(','));
        members.zip(1..).map(|(member, place)| parse_member(member, place)).collect()
    }

    fn since(&self) -> Duration {
        Duration::from_secs(self.number("since").unwrap())
    }

    fn report(&self, server: ServerId) -> ReplicaReport {
        let group = self.group(self.group_id());
        let tablets = self.value("tablets").into_iter().flat_map(|value| value.split(','));
        let index = self.number("applied").map_or(LogId::SEED.index, LogIndex::new);
        let applied = LogId { index, ..LogId::SEED };
        ReplicaReport {
            replica: match self.number("replica") {
                Some(replica) => ReplicaId::new(replica),
                None => group.membership.replica_on(server).unwrap(),
            },
            role: if self.has("leads") { Role::Leader } else { Role::Follower },
            term: Term::new(self.number("term").unwrap_or(1)),
            tablets: tablets.map(|text| tablet_report(text, &group)).collect(),
            applied,
            last: LogId { index: self.number("last").map_or(applied.index, LogIndex::new), ..applied },
            time: Micros::new(self.number("time").map_or(0, |seconds| i64::try_from(seconds * 1_000_000).unwrap())),
            settled: self.has("settled"),
            heard: self.numbers("heard").map(ReplicaId::new).collect(),
            division: self.value("division").map(|text| {
                let (parent, index) = text.split_once('@').unwrap();
                Division { parent: GroupId::new(parent.parse().unwrap()), index: LogIndex::new(index.parse().unwrap()) }
            }),
            group,
        }
    }
}

/// `table/tablet:range[:gN][:vN]`.
fn tablet_report(text: &str, group: &GroupDescriptor) -> TabletReport {
    let mut parts = text.split(':');
    let (table, tablet) = parts.next().unwrap().split_once('/').unwrap();
    let range = match parts.next().unwrap() {
        "root" => root_range(),
        other => range(other),
    };
    let (mut generation, mut version, mut mebibytes, mut quiet_seconds, mut writes_per_second) = (1, 1, 0_u64, 0, 0);
    for part in parts {
        match part.split_at(1) {
            ("g", number) => generation = number.parse().unwrap(),
            ("v", number) => version = number.parse().unwrap(),
            ("s", number) => mebibytes = number.parse().unwrap(),
            ("w", number) => writes_per_second = number.parse().unwrap(),
            ("q", number) => quiet_seconds = number.parse().unwrap(),
            other => panic!("unknown part {other:?}"),
        }
    }
    let generation = Generation::new(generation);
    let descriptor = group.tablet(table.parse().unwrap(), tablet.parse().unwrap(), range, generation);
    let load = TabletLoad { quiet_for: Duration::from_secs(quiet_seconds), writes_per_second, ..TabletLoad::default() };
    TabletReport { descriptor, size_bytes: mebibytes << 20, schema_version: SchemaVersion::new(version), load }
}

fn ids(members: &[(ReplicaId, ServerId)]) -> BTreeSet<ReplicaId> {
    members.iter().map(|(replica, _server)| *replica).collect()
}

/// `replica@server`, or a server, whose replica id is then its position.
fn parse_member(text: &str, place: u64) -> (ReplicaId, ServerId) {
    let (replica, server) = match text.split_once('@') {
        Some((replica, server)) => (replica.parse().unwrap(), server),
        None => (place, text),
    };
    (ReplicaId::new(replica), ServerId::new(server.parse().unwrap()))
}

fn range(text: &str) -> KeyRange {
    let (start, end) = text.split_once("..").unwrap();
    let key = |text: &str| RowKey::parse_escaped(text).unwrap();
    let start = if start == "-" { RowKey::EMPTY } else { key(start) };
    KeyRange::new(start, (end != "-").then(|| key(end))).unwrap()
}

fn schema(number: u64, words: &Words<'_>) -> TableSchema {
    let name: TableName = format!("projects/p/instances/i/tables/t{number}").parse().unwrap();
    let schema = TableSchema::new(TableId::new(number), name, []).unwrap();
    let state = match words.0.first() {
        Some(&"creating") => TableState::Creating,
        Some(&"deleting") => TableState::Deleting,
        _ => TableState::Active,
    };
    let version = words.0.iter().find_map(|word| word.strip_prefix('v')?.parse().ok()).unwrap_or(1);
    TableSchema { state, version: SchemaVersion::new(version), ..schema }
}

fn server(words: &Words<'_>) -> Server {
    let split_bytes = words.value("split").map_or(0, amount);
    let metadata_split_bytes = words.value("metadata-split").map_or(0, amount);
    let report = ServerReport { split_bytes, metadata_split_bytes, ..ServerReport::default() };
    let report = (!words.has("unresponsive")).then_some(report);
    let registration = if words.has("unregistered") { Registration::Unregistered } else { Registration::Registered };
    let later_epoch = words.has("later-epoch");
    let incarnation = Incarnation::new(1);
    let zone = words.value("zone").map(|zone| zone.parse().unwrap());
    Server { address: String::new(), incarnation, release: String::new(), zone, registration, report, later_epoch }
}

fn operation(words: &Words<'_>) -> Operation {
    let kind = match words.0.iter().position(|word| *word == "drop-range") {
        Some(at) => OperationKind::DropRange(range(words.0[at + 1])),
        None => OperationKind::DropTable,
    };
    Operation { table: TableId::new(words.number("table").unwrap()), kind }
}

fn deleted(table: TableId, words: &Words<'_>) -> DeletedTable {
    let dropped = |text: &str| {
        let (group, index) = text.split_once('@').unwrap();
        let index = LogIndex::new(index.parse().unwrap());
        (GroupId::new(group.parse().unwrap()), LogId { index, ..LogId::SEED })
    };
    let groups = words.value("by").into_iter().flat_map(|value| value.split(',')).map(dropped).collect();
    DeletedTable { name: schema(table.get(), words).name, groups }
}

fn default_context() -> PlanContext {
    PlanContext {
        now: Duration::from_secs(60),
        grace: Duration::from_secs(30),
        replicas: 1,
        failures: FailureDetector::default(),
        balance: replica_balance::ReplicaBalance::Off,
        loads: Loads::Measured,
        in_progress: BTreeMap::new(),
        merges: MergeContext { rules: MergeRules::OFF, memory: MergeMemory::default() },
    }
}

fn add(cluster: &mut ClusterSnapshot, ctx: &mut PlanContext, line: &str) {
    let mut words = line.split_whitespace();
    let kind = words.next().unwrap();
    let mut rest: Vec<&str> = words.collect();
    let mut number = || rest.remove(0).parse::<u64>().unwrap();
    match kind {
        "server" => {
            let id = ServerId::new(number());
            cluster.servers.insert(id, server(&Words(rest)));
        }
        "table" => {
            let id = number();
            cluster.tables.insert(TableId::new(id), schema(id, &Words(rest)));
        }
        "deleted" => {
            let table = TableId::new(number());
            cluster.deleted.insert(table, deleted(table, &Words(rest)));
        }
        "operation" => {
            let id = OperationId::new(number());
            cluster.operations.insert(id, operation(&Words(rest)));
        }
        "report" => {
            let id = ServerId::new(number());
            let report = cluster.servers.get_mut(&id).unwrap().report.as_mut().unwrap();
            report.replicas.push(Words(rest).report(id));
        }
        "counters" => {
            let words = Words(rest);
            let next = |counter: Counter| (counter, words.number(counter.name()).unwrap_or_else(|| counter.first()));
            cluster.counters = Some(Counter::ALL.into_iter().map(next).collect());
        }
        "clock-off" => {
            let id = ServerId::new(number());
            let report = cluster.servers.get_mut(&id).unwrap().report.as_mut().unwrap();
            report.clock = ClockState { offset_micros: Some(9_000_000), is_off: true };
        }
        "slow-disk" => {
            let id = ServerId::new(number());
            let report = cluster.servers.get_mut(&id).unwrap().report.as_mut().unwrap();
            report.sync = SyncState { delay: Some(Duration::from_millis(700)), is_slow: true };
        }
        "highest" => {
            let id = ServerId::new(number());
            let report = cluster.servers.get_mut(&id).unwrap().report.as_mut().unwrap();
            report.highest = highest_ids(&Words(rest));
        }
        "resources" => {
            let id = ServerId::new(number());
            let report = cluster.servers.get_mut(&id).unwrap().report.as_mut().unwrap();
            report.resources = resources(&Words(rest));
        }
        "damaged" | "idle" => {
            let server = cluster.servers.get_mut(&ServerId::new(number())).unwrap();
            let words = Words(rest);
            let id = (words.group_id(), ReplicaId::new(words.number("replica").unwrap()));
            let report = server.report.as_mut().unwrap();
            if kind == "idle" {
                report.idle.insert(id)
            } else {
                report.damaged.insert(id)
            };
        }
        "merge-rules" => {
            let words = Words(rest);
            let merge_after = Duration::from_secs(words.number("after").unwrap());
            ctx.merges.rules = MergeRules { merge_bytes: amount(words.value("bytes").unwrap()), merge_after };
        }
        "damaged-row" => _ = cluster.damaged_rows.insert(RowKey::parse_escaped(rest.remove(0)).unwrap()),
        "balance" => ctx.balance = replica_balance::ReplicaBalance::On,
        "new-loads" => ctx.loads = Loads::New,
        "drained" => _ = cluster.drained.insert(ServerId::new(number())),
        "now" => ctx.now = Duration::from_secs(number()),
        "replicas" => ctx.replicas = usize::try_from(number()).unwrap(),
        "missing-server" => {
            let component = Component::Server(ServerId::new(number()));
            ctx.failures = ctx.failures.clone().with(component, Words(rest).since());
        }
        "missing-replica" => {
            let (server, words) = (ServerId::new(number()), Words(rest));
            let component =
                Component::Replica(server, words.group_id(), ReplicaId::new(words.number("replica").unwrap()));
            ctx.failures = ctx.failures.clone().with(component, words.since());
        }
        "in-progress" => {
            let words = Words(rest);
            ctx.in_progress.insert(words.group_id(), words.number("on").map(ServerId::new));
        }
        "planned" => {
            let first = Words(rest).descriptor();
            let empty = || TablePlan { tablets: Vec::new(), operation: OperationId::new(1) };
            cluster.plans.entry(first.table).or_insert_with(empty).tablets.push(first);
        }
        "new-group" => {
            let id = GroupId::new(number());
            let words = Words(rest);
            let progress = if words.has("has-majority") { GroupProgress::HasMajority } else { GroupProgress::Creating };
            cluster.new_groups.insert(id, GroupPlan { group: words.group(id), progress });
        }
        "row" => {
            let row = Words(rest).descriptor();
            cluster.metadata.insert(row.row_key(), row);
        }
        "root" => cluster.root = Some(Words(rest).descriptor()),
        other => panic!("unknown line {other:?}"),
    }
}

/// One case: its lines up to `---`, and the actions that follow.
fn run(case: &str) -> String {
    let (mut cluster, mut ctx) = (ClusterSnapshot::default(), default_context());
    let snapshot = case.split("---\n").next().unwrap();
    let lines = snapshot.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let is_request = |line: &&str| {
        let kinds = ["merge ", "move ", "place ", "split ", "divide ", "recover ", "drain ", "remove "];
        kinds.iter().any(|kind| line.starts_with(kind))
    };
    let (requests, lines): (Vec<&str>, Vec<&str>) = lines.partition(is_request);
    for line in lines {
        add(&mut cluster, &mut ctx, line);
    }
    let mut out = format!("{snapshot}---\n");
    for line in requests {
        writeln!(out, "{}", requested(&cluster, ctx.replicas, line)).unwrap();
    }
    for action in plan(&cluster, &ctx) {
        writeln!(out, "{action}").unwrap();
    }
    out
}

fn requested(cluster: &ClusterSnapshot, replicas: usize, line: &str) -> String {
    let (kind, numbers) = line.split_once(' ').unwrap();
    let numbers: Vec<u64> = numbers.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let (tablet, group) = (TabletId::new(numbers[0]), GroupId::new(numbers[0]));
    let answer = match kind {
        "merge" => requested_merge(cluster, tablet, numbers.get(1).map(|with| TabletId::new(*with))),
        "move" => requested_move(cluster, tablet, GroupId::new(numbers[1])),
        "place" => requested_table(cluster, replicas, usize::try_from(numbers[0]).unwrap()),
        "drain" => requested_drain(cluster, ServerId::new(numbers[0])),
        "remove" => drain::check_removal(cluster, ServerId::new(numbers[0])).map(|()| "is forgotten".to_owned()),
        "recover" => requested_recovery(cluster, ServerId::new(numbers[0]), numbers.get(1).copied().map(TabletId::new)),
        "split" => capacity::check_room_for_split(cluster, cluster.tablets()[&tablet]).map(|()| "splits".to_owned()),
        _ => capacity::check_room_for_division(cluster, &cluster.groups()[&group]).map(|()| "divides".to_owned()),
    };
    answer.unwrap_or_else(|error| format!("{}: {}", error.reason, error.message))
}

fn requested_recovery(cluster: &ClusterSnapshot, from: ServerId, tablet: Option<TabletId>) -> Result<String, Error> {
    let one = |recovery: &GroupRecovery| {
        let given_up = recovery.given_up.iter().map(|one| format!("{}@{}", one.replica, one.server));
        format!(
            "recovers group {} from replica {} at {} of {}, gives up {}",
            recovery.group.group,
            recovery.survivor,
            recovery.last.index,
            recovery.time,
            given_up.collect::<Vec<_>>().join(",")
        )
    };
    let recovery = quorum_loss_recovery(cluster, from, tablet)?;
    let plans = recovery.plans.iter().map(|group| format!("gives up the creation of group {}", group.group));
    let servers: Vec<String> = recovery.lost_servers.iter().map(ServerId::to_string).collect();
    let lines = recovery.groups.iter().map(one).chain(plans).chain([format!("lost servers {}", servers.join(","))]);
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

fn requested_drain(cluster: &ClusterSnapshot, server: ServerId) -> Result<String, Error> {
    let replicas = drain::check_drain(cluster, server)?;
    let one = |replica: &drain::DrainedReplica| match replica.to {
        Some(to) => format!("group {} to {to}", replica.group),
        None => format!("group {} to -", replica.group),
    };
    let moves: Vec<String> = replicas.iter().map(one).collect();
    Ok(format!("drains {}", if moves.is_empty() { "nothing".to_owned() } else { moves.join(", ") }))
}

/// The placement of a table as `jobs::create` does it: the new groups, and how many tablets each group gets.
fn requested_table(cluster: &ClusterSnapshot, replicas: usize, tablets: usize) -> Result<String, Error> {
    let servers = placement::server_loads(cluster);
    let missing = placement::missing_groups(servers.len(), placement::group_loads(cluster, &[]).len());
    let assigned = placement::assign(&servers, &Zones::of(cluster), missing, replicas);
    let ids = (100..).map(GroupId::new);
    let new: Vec<_> = ids.zip(&assigned).map(|(id, servers)| GroupDescriptor::initial(id, servers)).collect();
    let groups = placement::group_loads(cluster, &new);
    let Some(chosen) = placement::distribute(&groups, tablets) else {
        return Err(placement::refusal(cluster, &groups, "t", tablets, assigned.len()));
    };
    let mut text = "placed".to_owned();
    for (id, load) in &groups {
        let servers: Vec<String> = load.group.membership.replicas().map(|replica| replica.server.to_string()).collect();
        let count = chosen.iter().filter(|group| *group == id).count();
        write!(text, " {id}@{}:{count}", servers.join(",")).unwrap();
    }
    Ok(text)
}

/// A number with a binary unit.
fn amount(text: &str) -> u64 {
    text.parse::<ebla_runtime::units::ByteSize>().unwrap().bytes()
}

fn resources(words: &Words<'_>) -> Resources {
    let pair = |key: &str| {
        let (first, all) = words.value(key)?.split_once('/').unwrap();
        Some((amount(first), amount(all)))
    };
    let reserve_bytes = words.value("reserve").map_or(0, amount);
    let usage = |(used, limit)| Usage { used, limit };
    Resources {
        disk: pair("disk").map(|(free_bytes, total_bytes)| DiskSpace { free_bytes, total_bytes, reserve_bytes }),
        files: pair("files").map(usage),
        memory: pair("memory").map(usage),
        connections: None,
        sharers: words.number("sharers").unwrap_or(1),
    }
}

fn highest_ids(words: &Words<'_>) -> HighestIds {
    let number = |key: &str| words.number(key).unwrap_or_default();
    HighestIds {
        server: ServerId::new(number("server")),
        table: TableId::new(number("table")),
        group: GroupId::new(number("group")),
        tablet: TabletId::new(number("tablet")),
        replica: ReplicaId::new(number("replica")),
        operation: OperationId::new(number("operation")),
    }
}

fn requested_merge(cluster: &ClusterSnapshot, tablet: TabletId, with: Option<TabletId>) -> Result<String, Error> {
    let pair = merge_pair(cluster, tablet, with.map_or(MergeWith::Next, MergeWith::Tablet))?;
    let merge = format!("merges {} into {}", pair.left.tablet, pair.right.tablet);
    Ok(match move_before_merge(cluster, &pair) {
        Some((moved, group)) => format!("moves {moved} to group {group}, {merge}"),
        None => merge,
    })
}

fn requested_move(cluster: &ClusterSnapshot, tablet: TabletId, group: GroupId) -> Result<String, Error> {
    Ok(match relocate(cluster, tablet, group)? {
        Relocated::Already(there) => format!("{} is in group {}", there.tablet, there.group),
        Relocated::Needed(Relocation { tablet, target }) => {
            capacity::check_room_for_move(cluster, tablet.tablet, &target)?;
            format!("moves {} from group {} to group {}", tablet.tablet, tablet.group, target.group)
        }
    })
}

/// After a lost response the master reads the reports again.
#[test]
fn a_merge_is_recognized_in_later_reports() {
    let observe = |tablets: &str| {
        let (mut cluster, mut ctx) = (ClusterSnapshot::default(), default_context());
        for line in ["server 1", "table 5 active", &format!("report 1 group=3 on=1 leads tablets={tablets}")] {
            add(&mut cluster, &mut ctx, line);
        }
        cluster
    };
    let before = observe("5/7:a..g:g3,5/8:g..m:g2");
    let pair = merge_pair(&before, TabletId::new(8), MergeWith::Tablet(TabletId::new(7))).unwrap();
    assert_eq!(merged(&before, &pair), None);
    let after = observe("5/8:a..m:g4");
    assert_eq!(merged(&after, &pair).unwrap().generation, Generation::new(4));
    // The merged tablet was merged again.
    assert!(merged(&observe("5/8:-..m:g5"), &pair).is_some());
    assert_eq!(merged(&observe("5/7:a..b:g4,5/9:b..g:g4,5/8:g..m:g2"), &pair), None);
}

#[test]
fn golden_scripts() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/plan");
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        crate::golden::check_cases(&file, run);
    }
}

#[test]
fn the_group_of_metadata_is_no_load_for_placement() {
    let (mut cluster, mut ctx) = (ClusterSnapshot::default(), default_context());
    for line in ["server 1", "server 2", "report 1 group=7 on=1", "report 2 group=1 on=2", "new-group 8 on=1"] {
        add(&mut cluster, &mut ctx, line);
    }
    let loads: Vec<_> = cluster.loads().into_iter().map(|(server, load)| (server.get(), load)).collect();
    assert_eq!(loads, [(1, 2), (2, 0)]);
}

//! Golden scripts: a simulated cluster of tablets and servers, and a client that locates tablets in it. Each line of
//! the output is one round trip. `UPDATE=1` rewrites the output.
//!
//! ```text
//! table 5 at f m          creates a table of three tablets, 10 and on, each in a group with its number, led by the
//!                         servers 1 2 3 in turn, and lists them
//! table 5 at f m in 7     creates all of them in group 7, led by server 1
//! split 10 at c child 20  splits a tablet; METADATA is not updated
//! merge 10 11             the tablet 11 gets the rows of the tablet 10, which is gone; METADATA is not updated
//! unlist 5 f              removes the row of the tablet that ends at f
//! divide 10 into 8        moves a tablet to a new group on the same servers; METADATA is not updated
//! move 10 to 4 5 6        replaces the replicas of a tablet's group, the first leads; METADATA is not updated
//! lead 10 2               changes the leader of a tablet's group
//! list 10                 updates METADATA (or Chubby, for the root tablet)
//! drop 5                  drops a table, also in METADATA
//! down 3, up 3            a server stops responding, or responds again
//! cut 3                   a server cannot reach the others: where it leads, its responses are DEADLINE
//! hints off, hints on     error responses come without hints, or with them
//! beyond off, beyond on    servers do not continue a lookup in the next METADATA tablet (earlier releases), or do
//! get 5 k                 sends a request for a row
//! below 5 k               sends a request to the tablet where a descending scan from k begins
//! lookup 5 k              starts a lookup without running it: cached, joined or started
//! run                     runs the lookups that were started
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, ServerId, TableId, TabletId, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, Membership, TabletDescriptor, first_tablets, row_key};

use super::cache::Cache;
use super::messages::{CallFailure, FailureSource, LookupEffect, LookupResponse, MetadataRead, TabletLocation};
use super::resolver::{LookupId, LookupStart, Resolver};
use super::{CachedTablet, LeaderHint, Position, Probe};

/// The maximum number of attempts of one request.
const ATTEMPTS_MAX: usize = 12;

struct GroupState {
    descriptor: GroupDescriptor,
    leader: ServerId,
    term: Term,
}

/// Whether error responses have hints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hints {
    On,
    Off,
}

/// Whether servers continue a lookup in the next METADATA tablet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beyond {
    On,
    Off,
}

struct Cluster {
    groups: BTreeMap<GroupId, GroupState>,
    /// With the membership of their creation; [`Cluster::tablet`] has the current one.
    tablets: BTreeMap<TabletId, TabletDescriptor>,
    /// The rows of METADATA.
    rows: BTreeMap<RowKey, TabletDescriptor>,
    /// The file in Chubby.
    root: TabletDescriptor,
    down: BTreeSet<ServerId>,
    cut: BTreeSet<ServerId>,
    hints: Hints,
    beyond: Beyond,
    next_tablet: u64,
    resolver: Resolver,
    started: Vec<(LookupId, LookupEffect)>,
    round_trips: u32,
    out: String,
}

fn servers(numbers: &[&str]) -> Vec<ServerId> {
    numbers.iter().map(|number| number.parse().unwrap()).collect()
}

fn key(text: &str) -> RowKey {
    RowKey::parse_escaped(text).unwrap()
}

impl Cluster {
    fn new() -> Self {
        let three = servers(&["1", "2", "3"]);
        let [root, metadata] = first_tablets(&three);
        let mut cluster = Self {
            groups: BTreeMap::new(),
            tablets: BTreeMap::new(),
            rows: BTreeMap::new(),
            root: root.clone(),
            down: BTreeSet::new(),
            cut: BTreeSet::new(),
            hints: Hints::On,
            beyond: Beyond::On,
            next_tablet: 10,
            resolver: Resolver::new(0),
            started: Vec::new(),
            round_trips: 0,
            out: String::new(),
        };
        cluster.add(root, 1);
        cluster.add(metadata, 1);
        cluster
    }

    fn add(&mut self, descriptor: TabletDescriptor, leader: u64) {
        let tablet = descriptor.tablet;
        self.groups.entry(descriptor.group).or_insert_with(|| GroupState {
            descriptor: descriptor.group_descriptor(),
            leader: ServerId::new(leader),
            term: Term::new(1),
        });
        self.tablets.insert(tablet, descriptor);
        self.list(tablet);
    }

    /// A tablet with the current membership of its group.
    fn tablet(&self, tablet: TabletId) -> TabletDescriptor {
        let TabletDescriptor { table, tablet, range, generation, group, .. } = self.tablets[&tablet].clone();
        self.groups[&group].descriptor.tablet(table, tablet, range, generation)
    }

    fn group_of(&mut self, tablet: &str) -> &mut GroupState {
        let tablet = &self.tablets[&tablet.parse().unwrap()];
        self.groups.get_mut(&tablet.group).unwrap()
    }

    fn list(&mut self, tablet: TabletId) {
        let descriptor = self.tablet(tablet);
        if tablet == TabletId::ROOT {
            self.root = descriptor.clone();
        }
        self.rows.insert(descriptor.row_key(), descriptor);
    }

    /// `group`: of all tablets; otherwise each has its own.
    fn table(&mut self, table: TableId, cuts: &[&str], group: Option<GroupId>) {
        let three = servers(&["1", "2", "3"]);
        let mut start = RowKey::EMPTY;
        let ends = cuts.iter().map(|cut| Some(key(cut))).chain([None]);
        for end in ends {
            let range = KeyRange::new(start, end.clone()).unwrap();
            let tablet = TabletId::new(self.next_tablet);
            let leader = if group.is_some() { 1 } else { 1 + (self.next_tablet - 10) % 3 };
            let group = GroupDescriptor::initial(group.unwrap_or(GroupId::new(tablet.get())), &three);
            self.next_tablet += 1;
            self.add(group.new_tablet(table, tablet, range), leader);
            start = end.unwrap_or_default();
        }
    }

    /// METADATA's keys are written `5/g`: the row of the tablet of table 5 that ends before g.
    fn split(&mut self, tablet: TabletId, at: &str, child: TabletId) {
        let at = match at.split_once('/') {
            Some((table, end)) => row_key(table.parse().unwrap(), Some(&key(end))),
            None => key(at),
        };
        let (left, right) = self.tablet(tablet).split(&at, child).unwrap();
        self.tablets.insert(tablet, left);
        self.tablets.insert(child, right);
    }

    fn merge(&mut self, left: TabletId, right: TabletId) {
        let merged = self.tablet(right).merge(&self.tablet(left)).unwrap();
        self.tablets.remove(&left);
        self.tablets.insert(right, merged);
    }

    fn divide(&mut self, tablet: TabletId, child: GroupId) {
        let moved = self.tablet(tablet);
        let parent = &self.groups[&moved.group];
        let descriptor = parent.descriptor.divide(child).unwrap();
        let moved = descriptor.tablet(moved.table, tablet, moved.range, moved.generation.next());
        let state = GroupState { descriptor, leader: parent.leader, term: Term::new(1) };
        self.groups.insert(child, state);
        self.tablets.insert(tablet, moved);
    }

    fn move_replicas(&mut self, tablet: &str, to: &[&str]) {
        let to = servers(to);
        let state = self.group_of(tablet);
        state.descriptor.membership = Membership::initial(&to);
        let membership = &mut state.descriptor.membership_log_id;
        membership.index = membership.index.next();
        state.leader = to[0];
        state.term = state.term.next();
    }

    fn drop_table(&mut self, table: TableId) {
        self.tablets.retain(|_tablet, descriptor| descriptor.table != table);
        self.rows.retain(|_key, descriptor| descriptor.table != table);
    }

    fn run(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["table", table] => self.table(table.parse().unwrap(), &[], None),
            ["table", table, "at", cuts @ .., "in", group] => {
                self.table(table.parse().unwrap(), cuts, Some(group.parse().unwrap()));
            }
            ["table", table, "at", cuts @ ..] => self.table(table.parse().unwrap(), cuts, None),
            ["split", tablet, "at", at, "child", child] => {
                self.split(tablet.parse().unwrap(), at, child.parse().unwrap());
            }
            ["merge", left, right] => self.merge(left.parse().unwrap(), right.parse().unwrap()),
            ["unlist", table, end] => drop(self.rows.remove(&row_key(table.parse().unwrap(), Some(&key(end))))),
            ["divide", tablet, "into", child] => self.divide(tablet.parse().unwrap(), child.parse().unwrap()),
            ["move", tablet, "to", to @ ..] => self.move_replicas(tablet, to),
            ["lead", tablet, server] => {
                let state = self.group_of(tablet);
                state.leader = server.parse().unwrap();
                state.term = state.term.next();
            }
            ["list", tablets @ ..] => tablets.iter().for_each(|tablet| self.list(tablet.parse().unwrap())),
            ["drop", table] => self.drop_table(table.parse().unwrap()),
            ["down", server] => drop(self.down.insert(server.parse().unwrap())),
            ["up", server] => drop(self.down.remove(&server.parse().unwrap())),
            ["cut", server] => drop(self.cut.insert(server.parse().unwrap())),
            ["hints", "off"] => self.hints = Hints::Off,
            ["hints", "on"] => self.hints = Hints::On,
            ["beyond", "off"] => self.beyond = Beyond::Off,
            ["beyond", "on"] => self.beyond = Beyond::On,
            ["get", table, row] => self.get(&Position::at(table.parse().unwrap(), key(row))),
            ["below", table, row] => {
                self.get(&Position { table: table.parse().unwrap(), probe: Probe::Below(Some(key(row))) });
            }
            ["below", table] => self.get(&Position { table: table.parse().unwrap(), probe: Probe::Below(None) }),
            ["lookup", table, row] => self.start_lookup(&Position::at(table.parse().unwrap(), key(row))),
            ["run"] => {
                for (lookup, effect) in std::mem::take(&mut self.started) {
                    let _result = self.run_lookup(lookup, effect);
                }
            }
            other => panic!("no such command: {other:?}"),
        }
    }

    fn log_round_trip(&mut self, line: &str) {
        self.round_trips += 1;
        writeln!(self.out, "{line}").unwrap();
    }

    fn start_lookup(&mut self, position: &Position) {
        let line = match self.resolver.find_or_start(position) {
            LookupStart::Cached(tablet) => format!("cached tablet {}", tablet.descriptor.tablet),
            LookupStart::Join(_lookup) => "joined".to_owned(),
            LookupStart::Start(lookup, effect) => {
                self.started.push((lookup, effect));
                "started".to_owned()
            }
        };
        writeln!(self.out, "{line}").unwrap();
    }

    /// A request, retried as the client does but without back-off.
    fn get(&mut self, position: &Position) {
        self.round_trips = 0;
        let mut tried = Vec::new();
        let mut version = None;
        for _attempt in 0..ATTEMPTS_MAX {
            let tablet = match self.locate(position) {
                Ok(tablet) => tablet,
                Err(error) => {
                    writeln!(self.out, "= {}, {} round trips", error.reason, self.round_trips).unwrap();
                    return;
                }
            };
            let current = Some((tablet.descriptor.tablet, tablet.descriptor.fence()));
            if version != current {
                version = current;
                tried.clear();
            }
            let Some(server) = tablet.choose_server(&tried, 0) else {
                writeln!(self.out, "(back-off)").unwrap();
                tried.clear();
                continue;
            };
            tried.push(server);
            match self.respond(&tablet, server) {
                Ok(()) => {
                    self.log_round_trip(&format!("call tablet {} at {server} -> ok", tablet.descriptor.tablet));
                    self.resolver.record_success(server, &tablet);
                    let trips = self.round_trips;
                    writeln!(self.out, "= tablet {} at {server}, {trips} round trips", tablet.descriptor.tablet)
                        .unwrap();
                    return;
                }
                Err(failure) => {
                    let outcome = describe(&failure);
                    self.log_round_trip(&format!("call tablet {} at {server} -> {outcome}", tablet.descriptor.tablet));
                    self.resolver.record_failure(server, &tablet, &failure);
                    if failure.source == FailureSource::Timeout && tablet.choose_server(&tried, 0).is_none() {
                        self.resolver.invalidate(&tablet);
                    }
                }
            }
        }
        writeln!(self.out, "= gave up, {} round trips", self.round_trips).unwrap();
    }

    fn locate(&mut self, position: &Position) -> Result<CachedTablet, Error> {
        loop {
            match self.resolver.find_or_start(position) {
                LookupStart::Cached(tablet) => return Ok(tablet),
                LookupStart::Join(lookup) => panic!("{lookup:?} has no task"),
                LookupStart::Start(lookup, effect) => self.run_lookup(lookup, effect)?,
            }
        }
    }

    fn run_lookup(&mut self, lookup: LookupId, mut effect: LookupEffect) -> Result<(), Error> {
        loop {
            let response = match effect {
                LookupEffect::Done(result, _hops) => return result,
                LookupEffect::FetchRoot => {
                    let servers: Vec<String> =
                        self.root.membership.replicas.values().map(ToString::to_string).collect();
                    self.log_round_trip(&format!("read Chubby -> root tablet on {}", servers.join(" ")));
                    LookupResponse::Root(Ok(Arc::new(self.root.clone())))
                }
                LookupEffect::Read(read) => self.read(&read),
            };
            effect = self.resolver.on_response(lookup, response, Duration::from_micros(100));
        }
    }

    fn read(&mut self, read: &MetadataRead) -> LookupResponse {
        let tablet = read.tablet.descriptor.tablet;
        let known = self.tablets.get(&tablet).filter(|_known| self.tablet(tablet) == *read.tablet.descriptor);
        let follower_serves = read.any_replica && known.is_some() && !self.down.contains(&read.server);
        let served = if follower_serves { Ok(()) } else { self.respond(&read.tablet, read.server) };
        match served {
            Err(failure) => {
                self.log_round_trip(&format!("read tablet {tablet} at {} -> {}", read.server, describe(&failure)));
                LookupResponse::Failed(failure)
            }
            Ok(()) => {
                // Lookups continue in the next tablets of METADATA, which are in the same group.
                let end = match (tablet, self.beyond) {
                    (TabletId::ROOT, _) | (_, Beyond::Off) => self.tablets[&tablet].range.end().cloned(),
                    (_, Beyond::On) => None,
                };
                let served = KeyRange::new(self.tablets[&tablet].range.start().clone(), end).unwrap();
                let rows = read.rows.intersect(&served);
                let inside = |key: &RowKey| rows.as_ref().is_some_and(|rows| rows.contains(key.as_bytes()));
                let found =
                    self.rows.iter().filter(|(key, _)| inside(key)).take(usize::try_from(read.rows_max).unwrap());
                let listed: Vec<TabletLocation> = found
                    .map(|(_key, descriptor)| TabletLocation { descriptor: Arc::new(descriptor.clone()), leader: None })
                    .collect();
                self.log_round_trip(&format!("read tablet {tablet} at {} -> {} rows", read.server, listed.len()));
                LookupResponse::Rows(listed)
            }
        }
    }

    /// The response of a server to a request for a tablet.
    fn respond(&self, tablet: &CachedTablet, server: ServerId) -> Result<(), CallFailure> {
        if self.down.contains(&server) {
            let error = Error::new(Reason::Unavailable, "timed out");
            return Err(CallFailure { error, source: FailureSource::Timeout, descriptors: Vec::new(), leader: None });
        }
        let requested = &tablet.descriptor;
        let here = |known: &&TabletDescriptor| self.has_replica(server, known);
        let Some(known) = self.tablets.get(&requested.tablet).filter(here) else {
            return Err(self.error_response(Reason::WrongTablet, server, requested.table, None));
        };
        let group = &self.groups[&known.group];
        if group.leader != server {
            let leader = Some(LeaderHint { server: group.leader, term: group.term });
            return Err(self.error_response(Reason::NotLeader, server, requested.table, leader));
        }
        if self.cut.contains(&server) {
            return Err(self.error_response(Reason::Deadline, server, requested.table, None));
        }
        if known.generation != requested.generation {
            return Err(self.error_response(Reason::WrongTablet, server, requested.table, None));
        }
        Ok(())
    }

    fn has_replica(&self, server: ServerId, tablet: &TabletDescriptor) -> bool {
        self.groups[&tablet.group].descriptor.membership.replica_on(server).is_some()
    }

    fn error_response(
        &self,
        reason: Reason,
        server: ServerId,
        table: TableId,
        leader: Option<LeaderHint>,
    ) -> CallFailure {
        let hints = self
            .tablets
            .values()
            .filter(|known| reason == Reason::WrongTablet && known.table == table && self.has_replica(server, known));
        let hints = hints.map(|known| Arc::new(self.tablet(known.tablet)));
        let descriptors = if self.hints == Hints::Off { Vec::new() } else { hints.collect() };
        let leader = leader.filter(|_leader| self.hints == Hints::On);
        CallFailure { error: Error::new(reason, "rejected"), source: FailureSource::Response, descriptors, leader }
    }
}

fn describe(failure: &CallFailure) -> String {
    if failure.source == FailureSource::Timeout {
        return "timeout".to_owned();
    }
    let mut text = failure.error.reason.to_string();
    if let Some(leader) = failure.leader {
        write!(text, ", {} leads", leader.server).unwrap();
    }
    for descriptor in &failure.descriptors {
        write!(text, ", tablet {}", descriptor.tablet).unwrap();
        if descriptor.table != TableId::METADATA {
            write!(text, " has {}", descriptor.range).unwrap();
        }
    }
    text
}

/// Runs a script: blocks of commands, `---` and their output, separated by blank lines. All blocks share one cluster.
fn replay(script: &str) -> String {
    let mut cluster = Cluster::new();
    let mut replayed = Vec::new();
    for block in script.trim_end().split("\n\n") {
        let commands: Vec<&str> = block.lines().take_while(|line| *line != "---").collect();
        commands.iter().filter(|line| !line.starts_with('#')).for_each(|command| cluster.run(command));
        let output = std::mem::take(&mut cluster.out);
        let rule = if output.is_empty() { "" } else { "\n---\n" };
        replayed.push(format!("{}{rule}{}", commands.join("\n"), output.trim_end()));
    }
    replayed.join("\n\n") + "\n"
}

#[test]
fn golden_scripts() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/locate");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let script = std::fs::read_to_string(&file).unwrap();
        let replayed = replay(&script);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, replayed).unwrap();
        } else {
            assert_eq!(replayed, script, "{}: UPDATE=1 rewrites it", file.display());
        }
    }
}

/// A hint for a rejected leader is ignored. If that leader is not among the known replicas, no round over them reaches
/// it: then the tablet is looked up again.
#[test]
fn a_tablet_with_unknown_replicas_is_looked_up_again() {
    let [old, new] = [1, 4].map(ServerId::new);
    let position = Position::at(TableId::new(5), key("k"));
    let descriptor = Arc::new(TabletDescriptor::initial(TableId::new(5), TabletId::new(10), KeyRange::all(), &[old]));
    let failure = |leader: Option<u64>, descriptors| CallFailure {
        source: FailureSource::Response,
        error: Error::new(Reason::NotLeader, "this replica does not lead"),
        leader: leader.map(|term| LeaderHint { server: new, term: Term::new(term) }),
        descriptors,
    };
    let mut resolver = Resolver::new(0);
    let known = |resolver: &Resolver| resolver.cache().find(&position);
    resolver.record_failure(
        old,
        &CachedTablet::new(descriptor.clone(), KeyRange::all()),
        &failure(None, vec![descriptor]),
    );
    resolver.record_failure(old, &known(&resolver).unwrap(), &failure(Some(2), Vec::new()));
    let redirected = known(&resolver).unwrap();
    assert_eq!(redirected.leader.map(|leader| leader.server), Some(new), "the first hint is accepted");
    resolver.record_failure(new, &redirected, &failure(None, Vec::new()));
    let rejected = known(&resolver).unwrap();
    assert_eq!((rejected.leader, rejected.choose_server(&[], 0)), (None, Some(old)));
    resolver.record_failure(old, &rejected, &failure(Some(2), Vec::new()));
    assert_eq!(known(&resolver), None);
    // The next round reaches a leader that is among the known replicas.
    let mut peer = rejected;
    peer.descriptor =
        Arc::new(TabletDescriptor::initial(TableId::new(5), TabletId::new(10), KeyRange::all(), &[old, new]));
    assert!(!peer.is_superseded_by(LeaderHint { server: new, term: Term::new(2) }));
}

/// A membership that one tablet's descriptor has counts for the other tablets of the group, and leaves their ranges.
#[test]
fn a_newer_membership_counts_for_all_tablets_of_the_group() {
    let table = TableId::new(5);
    let three = servers(&["1", "2", "3"]);
    let group = GroupDescriptor::initial(GroupId::new(7), &three);
    let range = |start: &str, end: Option<&str>| KeyRange::new(key(start), end.map(key)).unwrap();
    let left = group.new_tablet(table, TabletId::new(10), range("", Some("m")));
    let right = group.new_tablet(table, TabletId::new(11), range("m", None));
    let mut cache = Cache::default();
    let leader = LeaderHint { server: three[2], term: Term::new(4) };
    cache.insert(&Arc::new(left.clone()), Some(leader));
    cache.insert(&Arc::new(right.clone()), None);
    let at = |cache: &Cache, row: &str| cache.find(&Position::at(table, key(row))).unwrap();
    assert_eq!(at(&cache, "z").leader, Some(leader));

    let mut moved = group.clone();
    moved.membership = Membership::initial(&servers(&["1", "2", "4"]));
    moved.membership_log_id.index = moved.membership_log_id.index.next();
    let learned = moved.new_tablet(table, TabletId::new(10), left.range.clone());
    cache.insert(&Arc::new(learned.clone()), None);
    assert_eq!(*at(&cache, "a").descriptor, learned);
    let other = at(&cache, "z");
    assert_eq!((&other.descriptor.range, other.leader), (&right.range, None), "the leader is no member any more");
    assert_eq!(other.descriptor.group_descriptor(), moved);

    // A row of METADATA that was not updated yet changes nothing.
    cache.insert(&Arc::new(right.clone()), None);
    assert_eq!(at(&cache, "z").descriptor.group_descriptor(), moved);
    cache.remove(&right);
    assert_eq!(cache.len(), 2, "the descriptor to remove has an older membership");
    cache.remove(&other.descriptor);
    assert_eq!(cache.len(), 1);
}

#[test]
fn a_full_cache_keeps_metadata_and_its_group() {
    let three = servers(&["1", "2", "3"]);
    let [root, metadata] = first_tablets(&three);
    let mut cache = Cache::with_tablets_max(3);
    for tablet in [root, metadata] {
        cache.insert(&Arc::new(tablet), None);
    }
    for (table, tablet) in [(5, 10), (6, 11)] {
        let tablet = TabletDescriptor::initial(TableId::new(table), TabletId::new(tablet), KeyRange::all(), &three);
        cache.insert(&Arc::new(tablet), None);
    }
    let has = |table: u64| cache.find(&Position::at(TableId::new(table), RowKey::EMPTY)).is_some();
    assert_eq!((cache.len(), has(0), has(5), has(6)), (3, true, false, true));
}

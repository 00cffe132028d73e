//! Golden scripts: a simulated cluster of tablets and servers, and a client that locates tablets in it. Each line of
//! the output is one round trip. `UPDATE=1` rewrites the output.
//!
//! ```text
//! table 5 at f m          creates a table of three tablets, 10 and on, led by the servers 1 2 3 in turn, and lists them
//! split 10 at c child 20  splits a tablet; METADATA is not updated
//! move 10 to 4 5 6        replaces the replicas of a tablet, the first leads; METADATA is not updated
//! lead 10 2               changes the leader
//! list 10                 updates METADATA (or Chubby, for the root tablet)
//! drop 5                  drops a table, also in METADATA
//! down 3, up 3            a server stops responding, or responds again
//! hints off, hints on     error responses come without hints, or with them
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
use ebla_model::id::{ServerId, TableId, TabletId, Term};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{Membership, TabletDescriptor, first_tablets, row_key};

use super::messages::{CallFailure, FailureSource, LookupEffect, LookupResponse, MetadataRead, TabletLocation};
use super::resolver::{LookupId, LookupStart, Resolver};
use super::{CachedTablet, LeaderHint, Position, Probe};

/// The maximum number of attempts of one request.
const ATTEMPTS_MAX: usize = 12;

#[derive(Clone)]
struct TabletState {
    descriptor: TabletDescriptor,
    leader: ServerId,
    term: Term,
}

/// Whether error responses have hints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hints {
    On,
    Off,
}

struct Cluster {
    tablets: BTreeMap<TabletId, TabletState>,
    /// The rows of METADATA.
    rows: BTreeMap<RowKey, TabletDescriptor>,
    /// The file in Chubby.
    root: TabletDescriptor,
    down: BTreeSet<ServerId>,
    hints: Hints,
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
            tablets: BTreeMap::new(),
            rows: BTreeMap::new(),
            root: root.clone(),
            down: BTreeSet::new(),
            hints: Hints::On,
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
        let leader = ServerId::new(leader);
        self.tablets.insert(tablet, TabletState { descriptor, leader, term: Term::new(1) });
        self.list(tablet);
    }

    fn list(&mut self, tablet: TabletId) {
        let descriptor = self.tablets[&tablet].descriptor.clone();
        if tablet == TabletId::ROOT {
            self.root = descriptor.clone();
        }
        self.rows.insert(descriptor.row_key(), descriptor);
    }

    fn table(&mut self, table: TableId, cuts: &[&str]) {
        let mut start = RowKey::EMPTY;
        let ends = cuts.iter().map(|cut| Some(key(cut))).chain([None]);
        for end in ends {
            let range = KeyRange::new(start, end.clone()).unwrap();
            let tablet = TabletId::new(self.next_tablet);
            let leader = 1 + (self.next_tablet - 10) % 3;
            self.next_tablet += 1;
            self.add(TabletDescriptor::initial(table, tablet, range, &servers(&["1", "2", "3"])), leader);
            start = end.unwrap_or_default();
        }
    }

    /// METADATA's keys are written `5/g`: the row of the tablet of table 5 that ends before g.
    fn split(&mut self, tablet: TabletId, at: &str, child: TabletId) {
        let state = self.tablets[&tablet].clone();
        let at = match at.split_once('/') {
            Some((table, end)) => row_key(table.parse().unwrap(), Some(&key(end))),
            None => key(at),
        };
        let (left, right) = state.descriptor.split(&at, child).unwrap();
        self.tablets.insert(tablet, TabletState { descriptor: left, ..state.clone() });
        self.tablets.insert(child, TabletState { descriptor: right, ..state });
    }

    fn move_replicas(&mut self, tablet: TabletId, to: &[&str]) {
        let state = self.tablets.get_mut(&tablet).unwrap();
        let to = servers(to);
        state.descriptor.membership = Membership::initial(&to);
        let membership = &mut state.descriptor.membership_log_id;
        membership.index = membership.index.next();
        state.leader = to[0];
        state.term = state.term.next();
    }

    fn drop_table(&mut self, table: TableId) {
        self.tablets.retain(|_tablet, state| state.descriptor.table != table);
        self.rows.retain(|_key, descriptor| descriptor.table != table);
    }

    fn run(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["table", table] => self.table(table.parse().unwrap(), &[]),
            ["table", table, "at", cuts @ ..] => self.table(table.parse().unwrap(), cuts),
            ["split", tablet, "at", at, "child", child] => {
                self.split(tablet.parse().unwrap(), at, child.parse().unwrap());
            }
            ["move", tablet, "to", to @ ..] => self.move_replicas(tablet.parse().unwrap(), to),
            ["lead", tablet, server] => {
                let state = self.tablets.get_mut(&tablet.parse().unwrap()).unwrap();
                state.leader = server.parse().unwrap();
                state.term = state.term.next();
            }
            ["list", tablets @ ..] => tablets.iter().for_each(|tablet| self.list(tablet.parse().unwrap())),
            ["drop", table] => self.drop_table(table.parse().unwrap()),
            ["down", server] => drop(self.down.insert(server.parse().unwrap())),
            ["up", server] => drop(self.down.remove(&server.parse().unwrap())),
            ["hints", "off"] => self.hints = Hints::Off,
            ["hints", "on"] => self.hints = Hints::On,
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
        let known = self.tablets.get(&tablet).filter(|state| state.descriptor == *read.tablet.descriptor);
        let follower_serves = read.any_replica && known.is_some() && !self.down.contains(&read.server);
        let served = if follower_serves { Ok(()) } else { self.respond(&read.tablet, read.server) };
        match served {
            Err(failure) => {
                self.log_round_trip(&format!("read tablet {tablet} at {} -> {}", read.server, describe(&failure)));
                LookupResponse::Failed(failure)
            }
            Ok(()) => {
                let rows = read.rows.intersect(&self.tablets[&tablet].descriptor.range);
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
        let here = |state: &&TabletState| state.descriptor.membership.replica_on(server).is_some();
        let Some(state) = self.tablets.get(&requested.tablet).filter(here) else {
            return Err(self.error_response(Reason::WrongTablet, server, requested.table, None));
        };
        if state.leader != server {
            let leader = Some(LeaderHint { server: state.leader, term: state.term });
            return Err(self.error_response(Reason::NotLeader, server, requested.table, leader));
        }
        if state.descriptor.generation != requested.generation {
            return Err(self.error_response(Reason::WrongTablet, server, requested.table, None));
        }
        Ok(())
    }

    fn error_response(
        &self,
        reason: Reason,
        server: ServerId,
        table: TableId,
        leader: Option<LeaderHint>,
    ) -> CallFailure {
        let hints = self.tablets.values().map(|state| &state.descriptor).filter(|descriptor| {
            reason == Reason::WrongTablet
                && descriptor.table == table
                && descriptor.membership.replica_on(server).is_some()
        });
        let descriptors = if self.hints == Hints::Off { Vec::new() } else { hints.cloned().map(Arc::new).collect() };
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
    let known = |resolver: &Resolver| resolver.cache().find(&position).cloned();
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

//! Golden scripts: a small world of tablets and servers, and a client that finds its way through it. Each line of an
//! answer is one round trip. `UPDATE=1` rewrites the answers.
//!
//! ```text
//! table 5 at f m          makes a table of three tablets, 10 and on, led by the servers 1 2 3 in turn, and lists them
//! split 10 at c child 20  splits a tablet; METADATA does not know yet
//! move 10 to 4 5 6        gives a tablet other replicas, the first leads; METADATA does not know yet
//! lead 10 2               another leader
//! list 10                 METADATA (or Chubby, for the root tablet) learns of it
//! drop 5                  the table is gone, METADATA knows
//! down 3, up 3            a server is silent, or not
//! mute, speak             servers refuse without saying what they know, or with it
//! get 5 k                 a request for a row
//! below 5 k               where a descending scan from k begins
//! want 5 k                a lookup that is not carried out: found, joined or begun
//! land                    carries out what was begun
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{Membership, TabletDescriptor, first_tablets, row_key};

use super::resolver::{Answer, Effect, FlightId, Listed, MetadataRead, Refusal, Resolver, Voice, Want};
use super::{LeaderHint, Located, Position, Probe};

/// Attempts of one request.
const CALLS_MAX: usize = 12;

#[derive(Clone)]
struct Truth {
    descriptor: TabletDescriptor,
    leader: ServerId,
    term: u64,
}

struct World {
    tablets: BTreeMap<TabletId, Truth>,
    /// METADATA's rows.
    rows: BTreeMap<RowKey, TabletDescriptor>,
    /// Chubby's file.
    root: TabletDescriptor,
    down: BTreeSet<ServerId>,
    mute: bool,
    next_tablet: u64,
    resolver: Resolver,
    begun: Vec<(FlightId, Effect)>,
    trips: u32,
    out: String,
}

fn servers(numbers: &[&str]) -> Vec<ServerId> {
    numbers.iter().map(|number| number.parse().unwrap()).collect()
}

fn key(text: &str) -> RowKey {
    RowKey::parse_escaped(text).unwrap()
}

impl World {
    fn new() -> Self {
        let three = servers(&["1", "2", "3"]);
        let [root, metadata] = first_tablets(&three);
        let mut world = Self {
            tablets: BTreeMap::new(),
            rows: BTreeMap::new(),
            root: root.clone(),
            down: BTreeSet::new(),
            mute: false,
            next_tablet: 10,
            resolver: Resolver::new(0),
            begun: Vec::new(),
            trips: 0,
            out: String::new(),
        };
        world.add(root, 1);
        world.add(metadata, 1);
        world
    }

    fn add(&mut self, descriptor: TabletDescriptor, leader: u64) {
        let tablet = descriptor.tablet;
        let leader = ServerId::new(leader);
        self.tablets.insert(tablet, Truth { descriptor, leader, term: 1 });
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
            self.add(TabletDescriptor::fresh(table, tablet, range, &servers(&["1", "2", "3"])), leader);
            start = end.unwrap_or_default();
        }
    }

    /// METADATA's keys are written `5/g`: the row of the tablet of table 5 that ends before g.
    fn split(&mut self, tablet: TabletId, at: &str, child: TabletId) {
        let truth = self.tablets[&tablet].clone();
        let at = match at.split_once('/') {
            Some((table, end)) => row_key(table.parse().unwrap(), Some(&key(end))),
            None => key(at),
        };
        let (left, right) = truth.descriptor.split(&at, child).unwrap();
        self.tablets.insert(tablet, Truth { descriptor: left, ..truth.clone() });
        self.tablets.insert(child, Truth { descriptor: right, ..truth });
    }

    fn relocate(&mut self, tablet: TabletId, to: &[&str]) {
        let truth = self.tablets.get_mut(&tablet).unwrap();
        let to = servers(to);
        truth.descriptor.membership = Membership::fresh(&to);
        truth.descriptor.membership_log_id.index += 1;
        truth.leader = to[0];
        truth.term += 1;
    }

    fn drop_table(&mut self, table: TableId) {
        self.tablets.retain(|_tablet, truth| truth.descriptor.table != table);
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
            ["move", tablet, "to", to @ ..] => self.relocate(tablet.parse().unwrap(), to),
            ["lead", tablet, server] => {
                let truth = self.tablets.get_mut(&tablet.parse().unwrap()).unwrap();
                truth.leader = server.parse().unwrap();
                truth.term += 1;
            }
            ["list", tablets @ ..] => tablets.iter().for_each(|tablet| self.list(tablet.parse().unwrap())),
            ["drop", table] => self.drop_table(table.parse().unwrap()),
            ["down", server] => drop(self.down.insert(server.parse().unwrap())),
            ["up", server] => drop(self.down.remove(&server.parse().unwrap())),
            ["mute"] => self.mute = true,
            ["speak"] => self.mute = false,
            ["get", table, row] => self.get(&Position::at(table.parse().unwrap(), key(row))),
            ["below", table, row] => {
                self.get(&Position { table: table.parse().unwrap(), probe: Probe::Below(Some(key(row))) });
            }
            ["below", table] => self.get(&Position { table: table.parse().unwrap(), probe: Probe::Below(None) }),
            ["want", table, row] => self.want(&Position::at(table.parse().unwrap(), key(row))),
            ["land"] => {
                for (flight, effect) in std::mem::take(&mut self.begun) {
                    let _landed = self.fly(flight, effect);
                }
            }
            other => panic!("no such command: {other:?}"),
        }
    }

    fn say(&mut self, line: &str) {
        self.trips += 1;
        writeln!(self.out, "{line}").unwrap();
    }

    fn want(&mut self, position: &Position) {
        let line = match self.resolver.want(position) {
            Want::Found(located) => format!("found tablet {}", located.descriptor.tablet),
            Want::Join(_flight) => "joined".to_owned(),
            Want::Start(flight, effect) => {
                self.begun.push((flight, effect));
                "begun".to_owned()
            }
        };
        writeln!(self.out, "{line}").unwrap();
    }

    /// A request, retried as the client does but without pauses.
    fn get(&mut self, position: &Position) {
        self.trips = 0;
        let mut tried = Vec::new();
        let mut about = None;
        for _call in 0..CALLS_MAX {
            let located = match self.locate(position) {
                Ok(located) => located,
                Err(error) => {
                    writeln!(self.out, "= {}, {} round trips", error.reason, self.trips).unwrap();
                    return;
                }
            };
            let mark = Some((located.descriptor.tablet, located.descriptor.fence()));
            if about != mark {
                about = mark;
                tried.clear();
            }
            let Some(server) = located.choose(&tried, 0) else {
                writeln!(self.out, "(pause)").unwrap();
                tried.clear();
                continue;
            };
            tried.push(server);
            match self.ask(&located, server) {
                Ok(()) => {
                    self.say(&format!("call tablet {} at {server} -> served", located.descriptor.tablet));
                    self.resolver.served(server, &located);
                    let trips = self.trips;
                    writeln!(self.out, "= tablet {} at {server}, {trips} round trips", located.descriptor.tablet)
                        .unwrap();
                    return;
                }
                Err(refusal) => {
                    let said = describe(&refusal);
                    self.say(&format!("call tablet {} at {server} -> {said}", located.descriptor.tablet));
                    self.resolver.refused(server, &located, &refusal);
                    if refusal.voice == Voice::Silence && located.choose(&tried, 0).is_none() {
                        self.resolver.unserved(&located);
                    }
                }
            }
        }
        writeln!(self.out, "= gave up, {} round trips", self.trips).unwrap();
    }

    fn locate(&mut self, position: &Position) -> Result<Located, Error> {
        loop {
            match self.resolver.want(position) {
                Want::Found(located) => return Ok(located),
                Want::Join(flight) => panic!("nobody flies {flight:?}"),
                Want::Start(flight, effect) => self.fly(flight, effect)?,
            }
        }
    }

    fn fly(&mut self, flight: FlightId, mut effect: Effect) -> Result<(), Error> {
        loop {
            let answer = match effect {
                Effect::Done(result, _hops) => return result,
                Effect::AskRoot => {
                    let on: Vec<String> = self.root.membership.replicas.values().map(ToString::to_string).collect();
                    self.say(&format!("ask Chubby -> root tablet on {}", on.join(" ")));
                    Answer::Root(Ok(Arc::new(self.root.clone())))
                }
                Effect::Read(read) => self.read(&read),
            };
            effect = self.resolver.answer(flight, answer, Duration::from_micros(100));
        }
    }

    fn read(&mut self, read: &MetadataRead) -> Answer {
        let tablet = read.tablet.descriptor.tablet;
        let known = self.tablets.get(&tablet).filter(|truth| truth.descriptor == *read.tablet.descriptor);
        let answers = read.any_replica && known.is_some() && !self.down.contains(&read.server);
        let asked = if answers { Ok(()) } else { self.ask(&read.tablet, read.server) };
        match asked {
            Err(refusal) => {
                self.say(&format!("read tablet {tablet} at {} -> {}", read.server, describe(&refusal)));
                Answer::Refused(refusal)
            }
            Ok(()) => {
                let rows = read.rows.intersect(&self.tablets[&tablet].descriptor.range);
                let inside = |key: &RowKey| rows.as_ref().is_some_and(|rows| rows.contains(key.as_bytes()));
                let found =
                    self.rows.iter().filter(|(key, _)| inside(key)).take(usize::try_from(read.rows_max).unwrap());
                let listed: Vec<Listed> = found
                    .map(|(_key, descriptor)| Listed { descriptor: Arc::new(descriptor.clone()), leader: None })
                    .collect();
                self.say(&format!("read tablet {tablet} at {} -> {} rows", read.server, listed.len()));
                Answer::Rows(listed)
            }
        }
    }

    /// What a server says to a request for a tablet.
    fn ask(&self, located: &Located, server: ServerId) -> Result<(), Refusal> {
        if self.down.contains(&server) {
            let error = Error::new(Reason::Unavailable, "no answer");
            return Err(Refusal { error, voice: Voice::Silence, descriptors: Vec::new(), leader: None });
        }
        let asked = &located.descriptor;
        let here = |truth: &&Truth| truth.descriptor.membership.replica_on(server).is_some();
        let Some(truth) = self.tablets.get(&asked.tablet).filter(here) else {
            return Err(self.refusal(Reason::WrongTablet, server, asked.table, None));
        };
        if truth.leader != server {
            let leader = Some(LeaderHint { server: truth.leader, term: truth.term });
            return Err(self.refusal(Reason::NotLeader, server, asked.table, leader));
        }
        if truth.descriptor.generation != asked.generation {
            return Err(self.refusal(Reason::WrongTablet, server, asked.table, None));
        }
        Ok(())
    }

    fn refusal(&self, reason: Reason, server: ServerId, table: TableId, leader: Option<LeaderHint>) -> Refusal {
        let around = self.tablets.values().map(|truth| &truth.descriptor).filter(|descriptor| {
            reason == Reason::WrongTablet
                && descriptor.table == table
                && descriptor.membership.replica_on(server).is_some()
        });
        let descriptors = if self.mute { Vec::new() } else { around.cloned().map(Arc::new).collect() };
        let leader = leader.filter(|_leader| !self.mute);
        Refusal { error: Error::new(reason, "refused"), voice: Voice::Server, descriptors, leader }
    }
}

fn describe(refusal: &Refusal) -> String {
    if refusal.voice == Voice::Silence {
        return "silence".to_owned();
    }
    let mut text = refusal.error.reason.to_string();
    if let Some(leader) = refusal.leader {
        write!(text, ", {} leads", leader.server).unwrap();
    }
    for descriptor in &refusal.descriptors {
        write!(text, ", tablet {}", descriptor.tablet).unwrap();
        if descriptor.table != TableId::METADATA {
            write!(text, " has {}", descriptor.range).unwrap();
        }
    }
    text
}

/// Runs a script: blocks of commands, `---`, and what they answered, apart by blank lines; one world for the whole.
fn replay(script: &str) -> String {
    let mut world = World::new();
    let mut replayed = Vec::new();
    for block in script.trim_end().split("\n\n") {
        let commands: Vec<&str> = block.lines().take_while(|line| *line != "---").collect();
        commands.iter().filter(|line| !line.starts_with('#')).for_each(|command| world.run(command));
        let answer = std::mem::take(&mut world.out);
        let rule = if answer.is_empty() { "" } else { "\n---\n" };
        replayed.push(format!("{}{rule}{}", commands.join("\n"), answer.trim_end()));
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

/// Nobody is believed who names a leader that was asked in vain. If that one is none of the replicas that are known, no round over them
/// comes to it either: then the tablet is looked up again.
#[test]
fn a_tablet_that_has_outgrown_what_is_known_of_it_is_looked_up_again() {
    let [old, new] = [1, 4].map(ServerId::new);
    let position = Position::at(TableId::new(5), key("k"));
    let descriptor = Arc::new(TabletDescriptor::fresh(TableId::new(5), TabletId::new(10), KeyRange::all(), &[old]));
    let refusal = |leader: Option<u64>, descriptors| Refusal {
        voice: Voice::Server,
        error: Error::new(Reason::NotLeader, "this replica does not lead"),
        leader: leader.map(|term| LeaderHint { server: new, term }),
        descriptors,
    };
    let mut resolver = Resolver::new(0);
    let known = |resolver: &Resolver| resolver.cache().find(&position).cloned();
    resolver.refused(old, &Located::new(descriptor.clone(), KeyRange::all()), &refusal(None, vec![descriptor]));
    resolver.refused(old, &known(&resolver).unwrap(), &refusal(Some(2), Vec::new()));
    let sent_on = known(&resolver).unwrap();
    assert_eq!(sent_on.leader.map(|leader| leader.server), Some(new), "the first time it is believed");
    resolver.refused(new, &sent_on, &refusal(None, Vec::new()));
    let in_vain = known(&resolver).unwrap();
    assert_eq!((in_vain.leader, in_vain.choose(&[], 0)), (None, Some(old)));
    resolver.refused(old, &in_vain, &refusal(Some(2), Vec::new()));
    assert_eq!(known(&resolver), None);
    // Of a leader that is among them, the next round finds out.
    let mut peer = in_vain;
    peer.descriptor =
        Arc::new(TabletDescriptor::fresh(TableId::new(5), TabletId::new(10), KeyRange::all(), &[old, new]));
    assert!(!peer.is_outgrown_by(LeaderHint { server: new, term: 2 }));
}

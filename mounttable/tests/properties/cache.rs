//! What is known of rows is true, is bounded, and is read by one at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable::store::cache::{self, Cache, Look, Options, Seen, Ticket};
use ebla_mounttable::store::{Cell, Family, Glimpse, Row, Step};
use proptest::prelude::*;

const TTL: Duration = Duration::from_millis(1_000);

#[derive(Clone, Debug)]
enum Event {
    /// Somebody looks at a path: a row, and perhaps one below it.
    Look(Vec<usize>),
    /// The oldest read brings what was there when it began.
    Land,
    /// The oldest read is given up.
    GiveUp,
    /// A row changes, and whoever knows it is told.
    Change(usize),
    /// A row changes elsewhere.
    ChangeElsewhere(usize),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let path = prop::sample::subsequence(vec![0_usize, 1, 2, 3], 1..=3);
    prop_oneof![
        5 => path.prop_map(Event::Look),
        4 => Just(Event::Land),
        1 => Just(Event::GiveUp),
        1 => (0_usize..4).prop_map(Event::Change),
        1 => (0_usize..4).prop_map(Event::ChangeElsewhere),
        2 => (1_u64..600).prop_map(Event::Pass),
    ]
}

/// A row says its number and how often it has changed; after every third change it is not there.
fn row(number: usize, version: u64) -> Option<Row> {
    let cell = |value: String| Cell { timestamp: Micros::ZERO, value };
    let own = ((Family::Meta, "v".to_owned()), cell(format!("{number}.{version}")));
    let references = (0..4).map(|child| ((Family::Children, child.to_string()), cell("C1".to_owned())));
    (version % 3 != 2).then(|| std::iter::once(own).chain(references).collect())
}

fn steps(path: &[usize]) -> Vec<Step> {
    let children = path.iter().skip(1).map(|child| Some(child.to_string())).chain([None]);
    path.iter().zip(children).map(|(row, child)| Step { key: row.to_string(), child }).collect()
}

fn version(row: &Row) -> u64 {
    let (_, cell) = row.iter().find(|((family, _), _)| *family == Family::Meta).unwrap();
    cell.value.split_once('.').unwrap().1.parse().unwrap()
}

/// The rows, with every version they ever had and since when.
struct World {
    now: Micros,
    versions: Vec<Vec<Micros>>,
    /// Since when nobody has changed the row without telling.
    told: Vec<Micros>,
}

impl World {
    fn change(&mut self, row: usize) {
        let now = self.now;
        self.versions[row].push(now);
    }

    fn version(&self, row: usize) -> u64 {
        u64::try_from(self.versions[row].len() - 1).unwrap()
    }

    /// Whether a version was there at some moment within a TTL of now, and is the last one whose change was told.
    fn was_there(&self, row: usize, version: u64) -> bool {
        let at = usize::try_from(version).unwrap();
        let until = self.versions[row].get(at + 1).copied().unwrap_or(Micros::MAX);
        let is_young = until == Micros::MAX || self.now.since(until) < TTL;
        is_young && until > self.told[row]
    }
}

/// Whether a walk of `path` finds these rows: each was there a moment ago, and where they end no walk goes on.
fn check(rows: &[Option<Glimpse>], path: &[usize], world: &World) {
    for (number, row) in path.iter().zip(rows) {
        let is_right = row.as_ref().is_none_or(|row| world.was_there(*number, version(row.own.cells())));
        assert!(is_right, "row {number} is {row:?} and {:?}", world.versions[*number]);
    }
    let refers = |row: &Row, child: &usize| row.contains_key(&(Family::Children, child.to_string()));
    let lacks = |row: &Glimpse, child: &usize| row.reference.as_ref().is_none_or(|part| !refers(part.cells(), child));
    if let (Some(last), Some(next)) = (rows.last(), path.get(rows.len())) {
        assert!(last.as_ref().is_none_or(|row| lacks(row, next)), "a walk ends only where nothing is");
    }
}

type Flights = Vec<(Ticket, Vec<Step>, Seen, Micros)>;

fn play(events: Vec<Event>, options: Options) {
    let mut cache = Cache::new(options);
    let start = Micros::from_millis(1_000_000);
    let mut world = World { now: start, versions: vec![vec![start]; 4], told: vec![Micros::ZERO; 4] };
    let mut flights: Flights = Vec::new();
    for event in events {
        match event {
            Event::Look(path) => {
                let name = format!("{path:?}");
                let recalled = cache.recall(&name, world.now);
                recalled.iter().for_each(|rows| check(rows, &path, &world));
                match cache.look(&name, &steps(&path), &Seen::new(), world.now) {
                    Look::Known(rows) => {
                        check(&rows, &path, &world);
                        assert!(recalled.is_none_or(|it| it == rows), "what is recalled is what is known");
                        assert_eq!(cache.recall(&name, world.now), Some(rows), "and is known then");
                    }
                    Look::Read(ticket, steps) => {
                        let flying: Vec<_> = flights.iter().flat_map(|(_, steps, ..)| steps).collect();
                        let mut came = Seen::new();
                        for step in &steps {
                            let number: usize = step.key.parse().unwrap();
                            // What was told of is not waited for any more, and may be read again.
                            assert!(!flying.contains(&step) || world.told[number] > start, "{step:?} is read twice");
                            cache::parts(step, row(number, world.version(number)).as_ref(), &mut came);
                        }
                        flights.push((ticket, steps, came, world.now));
                    }
                    Look::Wait(ticket, _) => assert!(flights.iter().any(|(of, ..)| *of == ticket), "nobody reads"),
                    Look::Stale(_) => unreachable!("the storage answers"),
                }
            }
            Event::Land if !flights.is_empty() => {
                let (ticket, steps, came, at) = flights.remove(0);
                cache.learn(ticket, &steps, &came, at);
            }
            Event::GiveUp if !flights.is_empty() => {
                let (ticket, steps, ..) = flights.remove(0);
                cache.give_up(ticket, &steps);
            }
            Event::Land | Event::GiveUp => {}
            Event::Change(row) => {
                // A moment later than whatever was, so that before and after can be told apart.
                world.now = world.now.plus(Duration::from_micros(1));
                world.change(row);
                world.told[row] = world.now;
                cache.evict(&row.to_string());
            }
            Event::ChangeElsewhere(row) => {
                world.now = world.now.plus(Duration::from_micros(1));
                world.change(row);
            }
            Event::Pass(millis) => world.now = world.now.plus(Duration::from_millis(millis)),
        }
        // A generation may be one part too full when it becomes old.
        assert!(cache.size().0 <= options.rows + 2, "{:?} parts are known", cache.size());
    }
}

proptest! {
    #[test]
    fn what_is_known_was_true_a_moment_ago(events in prop::collection::vec(event(), 1..120), rows in 1_usize..20) {
        play(events, Options { rows, ttl: TTL });
    }

    /// However much is put in.
    #[test]
    fn what_is_known_takes_no_more_room_than_there_is(paths in prop::collection::vec(0_usize..10_000, 1..300)) {
        let options = Options { rows: 40, ttl: TTL };
        let mut cache = Cache::new(options);
        let mut keys = BTreeSet::new();
        for path in paths {
            let steps = [Step { key: path.to_string(), child: None }];
            if let Look::Read(ticket, read) = cache.look(&path.to_string(), &steps, &Seen::new(), Micros::ZERO) {
                let mut came = Seen::new();
                read.iter().for_each(|step| cache::parts(step, row(path, 0).as_ref(), &mut came));
                cache.learn(ticket, &read, &came, Micros::ZERO);
                keys.insert(path);
            }
            prop_assert!(cache.size().0 <= 42);
        }
        let before = cache.size();
        keys.iter().for_each(|key| cache.evict(&key.to_string()));
        prop_assert_eq!(cache.size(), (0, 0), "of {:?} something is left", before);
    }
}

//! The cache returns rows that were current within the TTL, is bounded, and reads each step once.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::store::cache::{self, Cache, CacheOptions, FetchId, Lookup, ReadParts};
use ebla_mounttable_tree::store::{Cell, Family, PathRow, PathStep, Row};
use proptest::prelude::*;

const TTL: Duration = Duration::from_millis(1_000);

#[derive(Clone, Debug)]
enum Event {
    /// A lookup of a path: a row, and perhaps one below it.
    Lookup(Vec<usize>),
    /// The oldest read completes with the rows of its start.
    Land,
    /// The oldest read is abandoned.
    GiveUp,
    /// A row changes, and the cache evicts it.
    Change(usize),
    /// A row changes elsewhere.
    ChangeElsewhere(usize),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let path = prop::sample::subsequence(vec![0_usize, 1, 2, 3], 1..=3);
    prop_oneof![
        5 => path.prop_map(Event::Lookup),
        4 => Just(Event::Land),
        1 => Just(Event::GiveUp),
        1 => (0_usize..4).prop_map(Event::Change),
        1 => (0_usize..4).prop_map(Event::ChangeElsewhere),
        2 => (1_u64..600).prop_map(Event::Pass),
    ]
}

/// A row contains its number and its version; after every third change it is absent.
fn row(number: usize, version: u64) -> Option<Row> {
    let cell = |value: String| Cell { timestamp: Micros::ZERO, value };
    let own = ((Family::Meta, "v".to_owned()), cell(format!("{number}.{version}")));
    let references = (0..4).map(|child| ((Family::Children, child.to_string()), cell("C1".to_owned())));
    (version % 3 != 2).then(|| std::iter::once(own).chain(references).collect())
}

fn steps(path: &[usize]) -> Vec<PathStep> {
    let children = path.iter().skip(1).map(|child| Some(child.to_string())).chain([None]);
    path.iter().zip(children).map(|(row, child)| PathStep { key: row.to_string(), child }).collect()
}

fn version(row: &Row) -> u64 {
    let (_, cell) = row.iter().find(|((family, _), _)| *family == Family::Meta).unwrap();
    cell.value.split_once('.').unwrap().1.parse().unwrap()
}

/// The rows, with every version they ever had and its start.
struct World {
    now: Micros,
    versions: Vec<Vec<Micros>>,
    /// The time of each row's last eviction from the cache.
    evicted: Vec<Micros>,
}

impl World {
    fn change(&mut self, row: usize) {
        let now = self.now;
        self.versions[row].push(now);
    }

    fn version(&self, row: usize) -> u64 {
        u64::try_from(self.versions[row].len() - 1).unwrap()
    }

    /// Whether a version was current at some moment within the last TTL, and is not older than the last evicted one.
    fn was_there(&self, row: usize, version: u64) -> bool {
        let at = usize::try_from(version).unwrap();
        let until = self.versions[row].get(at + 1).copied().unwrap_or(Micros::MAX);
        let is_young = until == Micros::MAX || self.now.since(until) < TTL;
        is_young && until > self.evicted[row]
    }
}

/// Checks the result of a walk of `path`: each row was current recently, and the walk ends only where it must.
fn check(rows: &[Option<PathRow>], path: &[usize], world: &World) {
    for (number, row) in path.iter().zip(rows) {
        let is_right = row.as_ref().is_none_or(|row| world.was_there(*number, version(row.own.cells())));
        assert!(is_right, "row {number} is {row:?} and {:?}", world.versions[*number]);
    }
    let refers = |row: &Row, child: &usize| row.contains_key(&(Family::Children, child.to_string()));
    let lacks = |row: &PathRow, child: &usize| row.reference.as_ref().is_none_or(|part| !refers(part.cells(), child));
    if let (Some(last), Some(next)) = (rows.last(), path.get(rows.len())) {
        assert!(last.as_ref().is_none_or(|row| lacks(row, next)), "a walk ends only where nothing is");
    }
}

type Fetches = Vec<(FetchId, Vec<PathStep>, ReadParts, Micros)>;

fn play(events: Vec<Event>, options: CacheOptions) {
    let mut cache = Cache::new(options);
    let start = Micros::from_millis(1_000_000);
    let mut world = World { now: start, versions: vec![vec![start]; 4], evicted: vec![Micros::ZERO; 4] };
    let mut in_flight: Fetches = Vec::new();
    for event in events {
        match event {
            Event::Lookup(path) => {
                let name = format!("{path:?}");
                let cached_path = cache.lookup_path(&name, world.now);
                cached_path.iter().for_each(|rows| check(rows, &path, &world));
                match cache.lookup(&name, &steps(&path), &ReadParts::new(), world.now) {
                    Lookup::Hit(rows) => {
                        check(&rows, &path, &world);
                        assert!(cached_path.is_none_or(|it| it == rows), "what is recalled is what is known");
                        assert_eq!(cache.lookup_path(&name, world.now), Some(rows), "and is known then");
                    }
                    Lookup::Fetch(fetch, steps) => {
                        let running: Vec<_> = in_flight.iter().flat_map(|(_, steps, ..)| steps).collect();
                        let mut fetched = ReadParts::new();
                        for step in &steps {
                            let number: usize = step.key.parse().unwrap();
                            // An evicted row may be read again while an older read is in flight.
                            assert!(
                                !running.contains(&step) || world.evicted[number] > start,
                                "{step:?} is read twice"
                            );
                            cache::parts(step, row(number, world.version(number)).as_ref(), &mut fetched);
                        }
                        in_flight.push((fetch, steps, fetched, world.now));
                    }
                    Lookup::Join(fetch, _) => {
                        assert!(in_flight.iter().any(|(of, ..)| *of == fetch), "no fetch is in flight")
                    }
                    Lookup::Stale(_) => unreachable!("the storage answers"),
                }
            }
            Event::Land if !in_flight.is_empty() => {
                let (fetch, steps, fetched, at) = in_flight.remove(0);
                cache.complete(fetch, &steps, &fetched, at);
            }
            Event::GiveUp if !in_flight.is_empty() => {
                let (fetch, steps, ..) = in_flight.remove(0);
                cache.abandon(fetch, &steps);
            }
            Event::Land | Event::GiveUp => {}
            Event::Change(row) => {
                // Time advances, so that before and after differ.
                world.now = world.now.plus(Duration::from_micros(1));
                world.change(row);
                world.evicted[row] = world.now;
                cache.evict(&row.to_string());
            }
            Event::ChangeElsewhere(row) => {
                world.now = world.now.plus(Duration::from_micros(1));
                world.change(row);
            }
            Event::Pass(millis) => world.now = world.now.plus(Duration::from_millis(millis)),
        }
        assert!(cache.size().0 <= options.rows, "{:?} parts are cached", cache.size());
    }
}

proptest! {
    #[test]
    fn cached_rows_were_current_within_the_ttl(events in prop::collection::vec(event(), 1..120), rows in 1_usize..20) {
        play(events, CacheOptions { rows, ttl: TTL });
    }

    /// For any sequence of insertions.
    #[test]
    fn the_cache_respects_its_capacity(paths in prop::collection::vec(0_usize..10_000, 1..300)) {
        let options = CacheOptions { rows: 40, ttl: TTL };
        let mut cache = Cache::new(options);
        let mut keys = BTreeSet::new();
        for path in paths {
            let steps = [PathStep { key: path.to_string(), child: None }];
            if let Lookup::Fetch(fetch, read) = cache.lookup(&path.to_string(), &steps, &ReadParts::new(), Micros::ZERO) {
                let mut fetched = ReadParts::new();
                read.iter().for_each(|step| cache::parts(step, row(path, 0).as_ref(), &mut fetched));
                cache.complete(fetch, &read, &fetched, Micros::ZERO);
                keys.insert(path);
            }
            prop_assert!(cache.size().0 <= options.rows);
        }
        let before = cache.size();
        keys.iter().for_each(|key| cache.evict(&key.to_string()));
        prop_assert_eq!(cache.size(), (0, 0), "of {:?} something is left", before);
    }
}

//! Where walks went: the rows of whole paths, for as long as each of them is known and none has changed.
//!
//! A walk asks for two parts of each row on its path, under keys that are hashes. Whoever asks for a name that somebody has
//! asked for a moment ago needs one look here instead. What is found is what the walk would find: it holds no longer than
//! the first of its parts, and not over a change of any of its rows.
//!
//! Changes are counted by [`PLACES`] hashes of rows, not by row: a change makes some paths forgotten that it has not met, and
//! they are walked again.

use std::collections::HashMap;
use std::time::Duration;

use ebla_model::Micros;

use crate::store::cache::Rows;

/// How many paths are remembered at most. In two generations, as parts of rows are.
const PATHS_MAX: usize = 20_000;

/// How many digits of a row's key say which count it belongs to.
const DIGITS: usize = 3;

/// How many counts there are.
const PLACES: usize = 1 << (4 * DIGITS);

/// From when until when something holds: `[from, until)`. A clock that went back is before all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holds {
    /// Not before what is known was read.
    pub(super) from: Micros,
    /// When it is too old.
    pub(super) until: Micros,
}

#[derive(Debug)]
struct Path {
    rows: Rows,
    holds: Holds,
    /// Which counts its rows belong to.
    places: Box<[u16]>,
    /// Their sum, which only a change moves.
    changes: u64,
}

/// Paths by name, and how often rows have changed.
#[derive(Debug)]
pub(super) struct Paths {
    young: HashMap<Box<str>, Path>,
    old: HashMap<Box<str>, Path>,
    /// When the young ones began: nothing is kept for more than two of these.
    began: Micros,
    generation: Duration,
    changes: Vec<u64>,
}

impl Paths {
    /// Paths hold for `ttl` at most.
    pub(super) fn new(ttl: Duration) -> Self {
        let (young, old) = (HashMap::new(), HashMap::new());
        Self { young, old, began: Micros::ZERO, generation: ttl, changes: vec![0; PLACES] }
    }

    /// The rows of the path to `name`.
    pub(super) fn get(&self, name: &str, now: Micros) -> Option<Rows> {
        let path = self.young.get(name).or_else(|| self.old.get(name))?;
        let is_good = path.holds.from <= now && now < path.holds.until && self.counted(&path.places) == path.changes;
        is_good.then(|| path.rows.clone())
    }

    /// The path to `name` leads over the rows of these keys.
    pub(super) fn put<'a>(
        &mut self,
        name: &str,
        keys: impl Iterator<Item = &'a str>,
        rows: &Rows,
        holds: Holds,
        now: Micros,
    ) {
        if holds.until <= now {
            return;
        }
        if self.young.len() >= PATHS_MAX / 2 || now < self.began || now.since(self.began) >= self.generation {
            self.old = std::mem::take(&mut self.young);
            self.began = now;
        }
        let places: Box<[u16]> = keys.map(place).collect();
        let path = Path { rows: rows.clone(), holds, changes: self.counted(&places), places };
        self.young.insert(name.into(), path);
    }

    /// The row of this key is not what it was.
    pub(super) fn changed(&mut self, key: &str) {
        if let Some(count) = self.changes.get_mut(usize::from(place(key))) {
            *count = count.wrapping_add(1);
        }
    }

    fn counted(&self, places: &[u16]) -> u64 {
        let counts = places.iter().filter_map(|place| self.changes.get(usize::from(*place)));
        counts.fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

/// Keys begin with hexadecimal digits of a hash.
fn place(key: &str) -> u16 {
    key.get(..DIGITS).and_then(|digits| u16::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

//! A cache of whole paths: the rows that a walk returned, while each part is valid and no row has changed.
//!
//! A walk looks up two parts of each row on its path, under keys that are hashes. A name that was looked up a moment
//! ago needs a single lookup here instead. The result is that of the walk: it is valid no longer than the first of its
//! parts, and not after a change of any of its rows.
//!
//! Changes are counted in [`STRIPES`] stripes of the hash range, not per row: a change invalidates some unrelated
//! paths, which are then walked again.

use std::collections::HashMap;
use std::time::Duration;

use ebla_model::Micros;

use crate::store::cache::Rows;

/// The capacity in paths, in two generations.
const PATHS_MAX: usize = 20_000;

/// The number of hex digits of a row's key that select its stripe.
const DIGITS: usize = 3;

/// The number of stripes.
const STRIPES: usize = 1 << (4 * DIGITS);

/// A time range: `[from, until)`. A clock that went back is before all of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    /// The time of the oldest read.
    pub(super) from: Micros,
    /// The expiry.
    pub(super) until: Micros,
}

#[derive(Debug)]
struct CachedPath {
    rows: Rows,
    validity: Validity,
    /// The stripes of its rows.
    stripes: Box<[u16]>,
    /// The sum of their versions, which every change increases.
    versions: u64,
}

/// Paths by name, and a version for each stripe.
#[derive(Debug)]
pub(super) struct PathCache {
    young: HashMap<Box<str>, CachedPath>,
    old: HashMap<Box<str>, CachedPath>,
    /// Start of the young generation: no entry outlives two generations.
    began: Micros,
    generation: Duration,
    versions: Vec<u64>,
}

impl PathCache {
    /// Paths are valid for at most `ttl`.
    pub(super) fn new(ttl: Duration) -> Self {
        let (young, old) = (HashMap::new(), HashMap::new());
        Self { young, old, began: Micros::ZERO, generation: ttl, versions: vec![0; STRIPES] }
    }

    /// The cached rows of the path to `name`.
    pub(super) fn get(&self, name: &str, now: Micros) -> Option<Rows> {
        let path = self.young.get(name).or_else(|| self.old.get(name))?;
        let is_valid =
            path.validity.from <= now && now < path.validity.until && self.version_sum(&path.stripes) == path.versions;
        is_valid.then(|| path.rows.clone())
    }

    /// Caches the path to `name`, which consists of the rows with these keys.
    pub(super) fn insert<'a>(
        &mut self,
        name: &str,
        keys: impl Iterator<Item = &'a str>,
        rows: &Rows,
        validity: Validity,
        now: Micros,
    ) {
        if validity.until <= now {
            return;
        }
        if self.young.len() >= PATHS_MAX / 2 || now < self.began || now.since(self.began) >= self.generation {
            self.old = std::mem::take(&mut self.young);
            self.began = now;
        }
        let stripes: Box<[u16]> = keys.map(stripe).collect();
        let path = CachedPath { rows: rows.clone(), validity, versions: self.version_sum(&stripes), stripes };
        self.young.insert(name.into(), path);
    }

    /// Invalidates the paths over the row with this key.
    pub(super) fn row_changed(&mut self, key: &str) {
        if let Some(count) = self.versions.get_mut(usize::from(stripe(key))) {
            *count = count.wrapping_add(1);
        }
    }

    fn version_sum(&self, stripes: &[u16]) -> u64 {
        let counts = stripes.iter().filter_map(|stripe| self.versions.get(usize::from(*stripe)));
        counts.fold(0, |sum, count| sum.wrapping_add(*count))
    }
}

/// Keys begin with hexadecimal digits of a hash.
fn stripe(key: &str) -> u16 {
    key.get(..DIGITS).and_then(|digits| u16::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

//! A cache of whole paths: the rows that a walk returned, while each part is valid and no row has changed.
//!
//! A walk looks up two parts of each row on its path, under keys that are hashes. A name that was looked up a moment
//! ago needs a single lookup here instead. The result is that of the walk: it is valid no longer than the first of its
//! parts, and not after a change of any of its rows. `quick_cache` decides which paths stay, by use and by weight: a path
//! keeps its rows in memory even after [`RowCache`](super::row_cache::RowCache) has dropped them.
//!
//! Changes are counted in [`STRIPES`] stripes of the hash range, not per row: a change invalidates some unrelated
//! paths, which are then walked again.

use std::fmt;

use ebla_model::Micros;
use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use crate::store::PathRow;
use crate::store::cache::Rows;

/// The capacity in paths of at most [`UNIT_BYTES`].
const PATHS_MAX: u16 = 20_000;

/// A path weighs one unit for each of these bytes of its rows, or part of them: at most 160 MB in all.
const UNIT_BYTES: usize = 8 << 10;

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

#[derive(Clone, Debug)]
struct CachedPath {
    rows: Rows,
    validity: Validity,
    /// The stripes of its rows.
    stripes: Box<[u16]>,
    /// The sum of their versions, which every change increases.
    versions: u64,
    weight: u64,
}

#[derive(Clone)]
struct StoredWeight;

impl Weighter<Box<str>, CachedPath> for StoredWeight {
    fn weight(&self, _name: &Box<str>, path: &CachedPath) -> u64 {
        path.weight
    }
}

/// Paths by name, and a version for each stripe.
pub(super) struct PathCache {
    paths: Cache<Box<str>, CachedPath, StoredWeight>,
    versions: Vec<u64>,
}

impl PathCache {
    /// An empty cache.
    pub(super) fn new() -> Self {
        let paths = Cache::with_weighter(PATHS_MAX.into(), PATHS_MAX.into(), StoredWeight);
        Self { paths, versions: vec![0; STRIPES] }
    }

    /// The cached rows of the path to `name`. An invalid path is removed: it would keep its rows in memory.
    pub(super) fn get(&mut self, name: &str, now: Micros) -> Option<Rows> {
        let path = self.paths.get(name)?;
        if path.validity.from <= now && now < path.validity.until && self.version_sum(&path.stripes) == path.versions {
            return Some(path.rows.clone());
        }
        drop(self.paths.remove(name));
        None
    }

    /// Caches the path to `name`, which consists of the rows with these keys.
    pub(super) fn insert<'a>(
        &mut self,
        name: &str,
        keys: impl Iterator<Item = &'a str>,
        rows: &Rows,
        validity: Validity,
    ) {
        let stripes: Box<[u16]> = keys.map(stripe).collect();
        let versions = self.version_sum(&stripes);
        let bytes = rows.iter().flatten().map(PathRow::bytes).fold(name.len(), usize::saturating_add);
        let weight = u64::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u64::MAX);
        self.paths.insert(name.into(), CachedPath { rows: rows.clone(), validity, versions, stripes, weight });
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

impl fmt::Debug for PathCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathCache").field("paths", &self.paths.len()).finish_non_exhaustive()
    }
}

/// Keys begin with hexadecimal digits of a hash.
fn stripe(key: &str) -> u16 {
    key.get(..DIGITS).and_then(|digits| u16::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

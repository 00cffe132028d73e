//! The location cache: tablets by table and key.
//!
//! Each table has ranges that do not overlap, each with its newest descriptor. Of two descriptors that overlap, the one
//! with the higher generation wins (a split gives both halves the parent's generation plus one); of two descriptors of
//! one tablet, the one with the higher (generation, membership log id) wins. So a late response never undoes a newer
//! one. If a newer descriptor covers only a part of an older one, the older one stays for the rest. That costs at most
//! one round trip: its tablet responds with the current descriptor.
//!
//! Tables are keyed by id, and ids are never reused: a recreated table shares nothing with its predecessor.
//! The root tablet is an ordinary entry; the resolver fetches it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ebla_model::id::{ServerId, TableId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;

use super::{CachedTablet, LeaderHint, Position, Probe};

/// The maximum number of tablets. A full cache drops all user tables: a refill costs a round trip per hundred tablets.
pub const TABLETS_MAX: usize = 200_000;

type Table = BTreeMap<RowKey, CachedTablet>;

/// The location cache.
#[derive(Clone, Debug)]
pub struct Cache {
    tables: BTreeMap<TableId, Table>,
    tablets: usize,
    tablets_max: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self::with_tablets_max(TABLETS_MAX)
    }
}

impl Cache {
    /// An empty cache for at most `tablets_max` tablets.
    pub const fn with_tablets_max(tablets_max: usize) -> Self {
        Self { tables: BTreeMap::new(), tablets: 0, tablets_max }
    }

    /// The tablet at this position, if it is cached.
    pub fn find(&self, position: &Position) -> Option<&CachedTablet> {
        let table = self.tables.get(&position.table)?;
        let (_start, entry) = match &position.probe {
            Probe::At(key) => table.range::<RowKey, _>((Bound::Unbounded, Bound::Included(key))).next_back(),
            Probe::Below(Some(key)) => table.range::<RowKey, _>((Bound::Unbounded, Bound::Excluded(key))).next_back(),
            Probe::Below(None) => table.last_key_value(),
        }?;
        position.probe.is_in(&entry.range).then_some(entry)
    }

    /// Adds a tablet. Newer entries stay; true when the cache has changed.
    pub fn insert(&mut self, descriptor: &Arc<TabletDescriptor>, leader: Option<LeaderHint>) -> bool {
        if self.tablets >= self.tablets_max {
            self.remove_user_tables();
        }
        let table = self.tables.entry(descriptor.table).or_default();
        let before = table.len();
        let (pieces, mut tablet) = make_room(table, descriptor);
        if let Some(leader) = leader {
            tablet.update_leader(leader);
        }
        let has_changed = !pieces.is_empty();
        for range in pieces {
            table.insert(range.start().clone(), CachedTablet { range, ..tablet.clone() });
        }
        self.tablets = (self.tablets + table.len()).saturating_sub(before);
        has_changed
    }

    /// Removes this descriptor; a newer descriptor of its tablet stays.
    pub fn remove(&mut self, descriptor: &TabletDescriptor) {
        let Some(table) = self.tables.get_mut(&descriptor.table) else { return };
        for start in overlapping(table, &descriptor.range) {
            if table.get(&start).is_some_and(|entry| is_same(&entry.descriptor, descriptor)) {
                table.remove(&start);
                self.tablets -= 1;
            }
        }
    }

    /// Sets the presumed leader of a tablet; an older term has no effect.
    pub fn set_leader(&mut self, descriptor: &TabletDescriptor, hint: LeaderHint) {
        self.update_entries(descriptor, |entry| entry.update_leader(hint));
    }

    /// A server served a request as the leader of a tablet.
    pub fn confirm_leader(&mut self, descriptor: &TabletDescriptor, server: ServerId) {
        self.update_entries(descriptor, |entry| entry.confirm_leader(server));
    }

    /// A server does not lead a tablet, or did not respond.
    pub fn reject_leader(&mut self, descriptor: &TabletDescriptor, server: ServerId) {
        self.update_entries(descriptor, |entry| entry.reject_leader(server));
    }

    /// The number of cached tablets.
    pub const fn len(&self) -> usize {
        self.tablets
    }

    /// Whether no tablet is cached.
    pub const fn is_empty(&self) -> bool {
        self.tablets == 0
    }

    /// Updates the entries of the descriptor's tablet within its range.
    fn update_entries(&mut self, descriptor: &TabletDescriptor, change: impl Fn(&mut CachedTablet)) {
        let Some(table) = self.tables.get_mut(&descriptor.table) else { return };
        for start in overlapping(table, &descriptor.range) {
            if let Some(entry) = table.get_mut(&start).filter(|entry| entry.descriptor.tablet == descriptor.tablet) {
                change(entry);
            }
        }
    }

    fn remove_user_tables(&mut self) {
        self.tables.retain(|table, _entries| *table == TableId::METADATA);
        self.tablets = self.tables.values().map(BTreeMap::len).sum();
    }
}

/// Whether both are the same version of one tablet.
fn is_same(a: &TabletDescriptor, b: &TabletDescriptor) -> bool {
    a.tablet == b.tablet && a.fence() == b.fence()
}

/// Whether the cached descriptor is newer than the received one.
fn is_newer(cached: &TabletDescriptor, received: &TabletDescriptor) -> bool {
    if cached.tablet == received.tablet {
        cached.fence() > received.fence()
    } else {
        cached.generation > received.generation
    }
}

/// Removes entries that are older than `received`. Returns the ranges for which `received` is the newest descriptor,
/// and its entry with the known leader.
fn make_room(table: &mut Table, received: &Arc<TabletDescriptor>) -> (Vec<KeyRange>, CachedTablet) {
    let mut tablet = CachedTablet::new(Arc::clone(received), received.range.clone());
    let mut pieces = vec![received.range.clone()];
    for start in overlapping(table, &received.range) {
        let Some(entry) = table.get(&start) else { continue };
        if is_newer(&entry.descriptor, received) {
            pieces = pieces.iter().flat_map(|piece| without(piece, &entry.range)).collect();
            continue;
        }
        if entry.descriptor.tablet == received.tablet {
            tablet.leader = entry.leader.or(tablet.leader);
            tablet.rejected_leader = entry.rejected_leader.or(tablet.rejected_leader);
        }
        table.remove(&start);
    }
    (pieces, tablet)
}

/// The starts of the entries that share a key with `range`.
fn overlapping(table: &Table, range: &KeyRange) -> Vec<RowKey> {
    let upper = range.end().map_or(Bound::Unbounded, Bound::Excluded);
    let entries = table.range::<RowKey, _>((Bound::Unbounded, upper)).rev();
    entries
        .take_while(|(_start, entry)| entry.range.intersect(range).is_some())
        .map(|(start, _)| start.clone())
        .collect()
}

/// The keys of `range` that are not in `taken`: none, one or two ranges.
fn without(range: &KeyRange, taken: &KeyRange) -> Vec<KeyRange> {
    let Some(shared) = range.intersect(taken) else { return vec![range.clone()] };
    let left = KeyRange::new(range.start().clone(), Some(shared.start().clone()));
    let right = shared.end().and_then(|end| KeyRange::new(end.clone(), range.end().cloned()));
    left.into_iter().chain(right).collect()
}

//! The location cache: tablets by table and key, and the groups that hold them.
//!
//! Each table has ranges that do not overlap, each with its newest descriptor. Of two descriptors that overlap, the one
//! with the higher generation wins (a split gives both halves the parent's generation plus one, a merge the maximum plus one); of
//! two descriptors of one tablet, the one with the higher (generation, membership log id) wins. So a late response never undoes a newer
//! one. If a newer descriptor covers only a part of an older one, the older one stays for the rest. That costs at most
//! one round trip: its tablet responds with the current descriptor.
//!
//! Replicas and leader belong to the group (`group.rs`), once for all its tablets: what a response to a request
//! for one tablet says about them counts for the others. [`Cache::find`] returns a tablet with the newest membership of
//! its group.
//!
//! Tables are keyed by id, and ids are never reused: a recreated table shares nothing with its predecessor.
//! The root tablet is an ordinary entry; the resolver fetches it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use ebla_model::id::{GroupId, ServerId, TableId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;

use super::group::CachedGroup;
use super::{CachedTablet, LeaderHint, Position, Probe};

/// The maximum number of tablets, and of groups. A full cache drops all user tables: a refill costs a round trip per
/// hundred tablets.
pub const TABLETS_MAX: usize = 200_000;

/// A tablet and the keys for which its descriptor counts.
#[derive(Clone, Debug)]
struct Entry {
    descriptor: Arc<TabletDescriptor>,
    range: KeyRange,
}

type Table = BTreeMap<RowKey, Entry>;

/// The location cache.
#[derive(Clone, Debug)]
pub struct Cache {
    tables: BTreeMap<TableId, Table>,
    /// The groups of all cached tablets.
    groups: BTreeMap<GroupId, CachedGroup>,
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
        Self { tables: BTreeMap::new(), groups: BTreeMap::new(), tablets: 0, tablets_max }
    }

    /// The tablet at this position, if it is cached.
    pub fn find(&self, position: &Position) -> Option<CachedTablet> {
        let table = self.tables.get(&position.table)?;
        let (_start, entry) = match &position.probe {
            Probe::At(key) => table.range::<RowKey, _>((Bound::Unbounded, Bound::Included(key))).next_back(),
            Probe::Below(Some(key)) => table.range::<RowKey, _>((Bound::Unbounded, Bound::Excluded(key))).next_back(),
            Probe::Below(None) => table.last_key_value(),
        }?;
        if !position.probe.is_in(&entry.range) {
            return None;
        }
        Some(self.groups.get(&entry.descriptor.group)?.tablet(&entry.descriptor, entry.range.clone()))
    }

    /// Adds a tablet and what it says about its group. Newer entries stay.
    pub fn insert(&mut self, descriptor: &Arc<TabletDescriptor>, leader: Option<LeaderHint>) {
        if self.tablets.max(self.groups.len()) >= self.tablets_max {
            self.remove_user_tables();
        }
        let group = self.groups.entry(descriptor.group).or_insert_with(|| CachedGroup::new(descriptor));
        group.update_membership(descriptor);
        if let Some(leader) = leader {
            group.update_leader(leader);
        }
        let table = self.tables.entry(descriptor.table).or_default();
        let before = table.len();
        for range in make_room(table, descriptor) {
            table.insert(range.start().clone(), Entry { descriptor: Arc::clone(descriptor), range });
        }
        self.tablets = (self.tablets + table.len()).saturating_sub(before);
    }

    /// Removes this descriptor; a newer descriptor of its tablet, or a newer membership of its group, stays.
    pub fn remove(&mut self, descriptor: &TabletDescriptor) {
        let Some(group) = self.groups.get(&descriptor.group) else { return };
        if group.membership_log_id() > descriptor.membership_log_id {
            return;
        }
        let Some(table) = self.tables.get_mut(&descriptor.table) else { return };
        let is_same = |entry: &Entry| {
            entry.descriptor.tablet == descriptor.tablet && entry.descriptor.generation == descriptor.generation
        };
        for start in overlapping(table, &descriptor.range) {
            if table.get(&start).is_some_and(is_same) {
                table.remove(&start);
                self.tablets -= 1;
            }
        }
    }

    /// Removes this descriptor as [`Self::remove`] does, and forgets the leader of its group.
    pub fn remove_with_leader(&mut self, descriptor: &TabletDescriptor) {
        self.remove(descriptor);
        if let Some(group) = self.groups.get_mut(&descriptor.group) {
            group.forget_leader();
        }
    }

    /// Sets the presumed leader of a tablet's group; an older term has no effect.
    pub fn set_leader(&mut self, descriptor: &TabletDescriptor, hint: LeaderHint) {
        self.update_group(descriptor, |group| group.update_leader(hint));
    }

    /// A server served a request as the leader of a tablet's group.
    pub fn confirm_leader(&mut self, descriptor: &TabletDescriptor, server: ServerId) {
        self.update_group(descriptor, |group| group.confirm_leader(server));
    }

    /// A server does not lead a tablet's group, or did not respond.
    pub fn reject_leader(&mut self, descriptor: &TabletDescriptor, server: ServerId) {
        self.update_group(descriptor, |group| group.reject_leader(server));
    }

    /// The number of cached tablets.
    pub const fn len(&self) -> usize {
        self.tablets
    }

    /// Whether no tablet is cached.
    pub const fn is_empty(&self) -> bool {
        self.tablets == 0
    }

    fn update_group(&mut self, descriptor: &TabletDescriptor, change: impl FnOnce(&mut CachedGroup)) {
        if let Some(group) = self.groups.get_mut(&descriptor.group) {
            change(group);
        }
    }

    fn remove_user_tables(&mut self) {
        self.tables.retain(|table, _entries| *table == TableId::METADATA);
        let entries = self.tables.values().flat_map(BTreeMap::values);
        let groups: BTreeSet<GroupId> = entries.map(|entry| entry.descriptor.group).collect();
        self.groups.retain(|group, _state| groups.contains(group));
        self.tablets = self.tables.values().map(BTreeMap::len).sum();
    }
}

/// Whether the cached descriptor is newer than the received one.
fn is_newer(cached: &TabletDescriptor, received: &TabletDescriptor) -> bool {
    if cached.tablet == received.tablet {
        cached.fence() > received.fence()
    } else {
        cached.generation > received.generation
    }
}

/// Removes entries that are older than `received`. Returns the ranges for which `received` is the newest descriptor.
fn make_room(table: &mut Table, received: &TabletDescriptor) -> Vec<KeyRange> {
    let mut pieces = vec![received.range.clone()];
    for start in overlapping(table, &received.range) {
        let Some(entry) = table.get(&start) else { continue };
        if is_newer(&entry.descriptor, received) {
            pieces = pieces.iter().flat_map(|piece| without(piece, &entry.range)).collect();
        } else {
            table.remove(&start);
        }
    }
    pieces
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

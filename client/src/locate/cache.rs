//! What a client believes about where tablets are.
//!
//! Per table, ranges that do not overlap, each with the descriptor that was last heard of. Of two descriptors that
//! overlap the one with the higher generation wins (a split gives both halves the parent's plus one), of two for one
//! tablet the one with the higher (generation, membership log id): so a late answer never undoes a newer one. Where a
//! newer descriptor covers only a part of an older one, the older one is believed for the rest, which costs one
//! round trip at worst: its tablet answers with the present picture.
//!
//! Tables are told apart by id, and ids are never used again: a recreated table shares nothing with its namesake.
//! The root tablet is an entry like others; where *it* comes from is the resolver's business.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ebla_model::id::{ServerId, TableId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;

use super::{LeaderHint, Located, Position, Probe};

/// Tablets remembered. Beyond it all user tables are forgotten: a refill costs a round trip per hundred tablets.
pub const TABLETS_MAX: usize = 200_000;

type Table = BTreeMap<RowKey, Located>;

/// The picture of the tablets.
#[derive(Clone, Debug)]
pub struct Cache {
    tables: BTreeMap<TableId, Table>,
    tablets: usize,
    tablets_max: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self::with_limit(TABLETS_MAX)
    }
}

impl Cache {
    /// An empty cache for so many tablets.
    pub const fn with_limit(tablets_max: usize) -> Self {
        Self { tables: BTreeMap::new(), tablets: 0, tablets_max }
    }

    /// The tablet at this place, if it is known.
    pub fn find(&self, position: &Position) -> Option<&Located> {
        let table = self.tables.get(&position.table)?;
        let (_start, entry) = match &position.probe {
            Probe::At(key) => table.range::<RowKey, _>((Bound::Unbounded, Bound::Included(key))).next_back(),
            Probe::Below(Some(key)) => table.range::<RowKey, _>((Bound::Unbounded, Bound::Excluded(key))).next_back(),
            Probe::Below(None) => table.last_key_value(),
        }?;
        position.probe.is_in(&entry.range).then_some(entry)
    }

    /// Learns of a tablet. What is already known better stays; true when something was learnt.
    pub fn insert(&mut self, descriptor: &Arc<TabletDescriptor>, leader: Option<LeaderHint>) -> bool {
        if self.tablets >= self.tablets_max {
            self.forget_user_tables();
        }
        let table = self.tables.entry(descriptor.table).or_default();
        let before = table.len();
        let (pieces, mut located) = clear_the_way(table, descriptor);
        if let Some(leader) = leader {
            located.hear(leader);
        }
        let learnt = !pieces.is_empty();
        for range in pieces {
            table.insert(range.start().clone(), Located { range, ..located.clone() });
        }
        self.tablets = (self.tablets + table.len()).saturating_sub(before);
        learnt
    }

    /// Forgets what this descriptor says, unless something newer is known of its tablet.
    pub fn forget(&mut self, descriptor: &TabletDescriptor) {
        let Some(table) = self.tables.get_mut(&descriptor.table) else { return };
        for start in overlapping(table, &descriptor.range) {
            if table.get(&start).is_some_and(|entry| is_same(&entry.descriptor, descriptor)) {
                table.remove(&start);
                self.tablets -= 1;
            }
        }
    }

    /// Learns who leads a tablet; an older term changes nothing.
    pub fn set_leader(&mut self, descriptor: &TabletDescriptor, hint: LeaderHint) {
        self.each(descriptor, |entry| entry.hear(hint));
    }

    /// Learns that a server answered as the leader of a tablet.
    pub fn confirm_leader(&mut self, descriptor: &TabletDescriptor, server: ServerId) {
        self.each(descriptor, |entry| entry.confirm(server));
    }

    /// Learns that a server does not lead a tablet, or is silent.
    pub fn shun_leader(&mut self, descriptor: &TabletDescriptor, server: ServerId) {
        self.each(descriptor, |entry| entry.shun(server));
    }

    /// How many tablets are known.
    pub const fn len(&self) -> usize {
        self.tablets
    }

    /// Whether none is known.
    pub const fn is_empty(&self) -> bool {
        self.tablets == 0
    }

    /// Changes the entries of the descriptor's tablet that lie in its range.
    fn each(&mut self, descriptor: &TabletDescriptor, change: impl Fn(&mut Located)) {
        let Some(table) = self.tables.get_mut(&descriptor.table) else { return };
        for start in overlapping(table, &descriptor.range) {
            if let Some(entry) = table.get_mut(&start).filter(|entry| entry.descriptor.tablet == descriptor.tablet) {
                change(entry);
            }
        }
    }

    fn forget_user_tables(&mut self) {
        self.tables.retain(|table, _entries| *table == TableId::METADATA);
        self.tablets = self.tables.values().map(BTreeMap::len).sum();
    }
}

/// Whether both say the same of one tablet.
fn is_same(a: &TabletDescriptor, b: &TabletDescriptor) -> bool {
    a.tablet == b.tablet && a.fence() == b.fence()
}

/// Whether what is known is newer than what is heard.
fn is_newer(known: &TabletDescriptor, heard: &TabletDescriptor) -> bool {
    if known.tablet == heard.tablet { known.fence() > heard.fence() } else { known.generation > heard.generation }
}

/// Removes what is older than `heard` and answers for which ranges `heard` is to be believed, with what is known of its
/// tablet's leader.
fn clear_the_way(table: &mut Table, heard: &Arc<TabletDescriptor>) -> (Vec<KeyRange>, Located) {
    let mut located = Located::new(Arc::clone(heard), heard.range.clone());
    let mut pieces = vec![heard.range.clone()];
    for start in overlapping(table, &heard.range) {
        let Some(entry) = table.get(&start) else { continue };
        if is_newer(&entry.descriptor, heard) {
            pieces = pieces.iter().flat_map(|piece| without(piece, &entry.range)).collect();
            continue;
        }
        if entry.descriptor.tablet == heard.tablet {
            located.leader = entry.leader.or(located.leader);
            located.shunned = entry.shunned.or(located.shunned);
        }
        table.remove(&start);
    }
    (pieces, located)
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

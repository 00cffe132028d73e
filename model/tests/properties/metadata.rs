//! METADATA finds every key's tablet, through any number of splits and merges, in any order of the writes.

use std::collections::BTreeMap;

use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{
    RowUpdate, TabletDescriptor, lookup_key, lookup_range, obsolete_rows, parse_row_key, row_update, rows_after,
    rows_near, table_range,
};
use proptest::collection::vec;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use crate::values::key;

/// The tablets of a table that was split at these keys, one after the other.
fn split_at(table: TableId, keys: &[RowKey]) -> Vec<TabletDescriptor> {
    let first = TabletDescriptor::initial(table, TabletId::new(100), KeyRange::all(), &[ServerId::new(1)]);
    let mut tablets = vec![first];
    for (key, child) in keys.iter().zip(101..) {
        let halves = |tablet: &TabletDescriptor| tablet.split(key, TabletId::new(child));
        if let Some((at, (left, right))) =
            tablets.iter().enumerate().find_map(|(at, tablet)| Some((at, halves(tablet)?)))
        {
            tablets.splice(at..=at, [left, right]);
        }
    }
    tablets
}

/// A table, METADATA's rows for it, and the writes to these rows that have not reached METADATA yet.
struct ListedTable {
    tablets: Vec<TabletDescriptor>,
    rows: BTreeMap<RowKey, TabletDescriptor>,
    writes: Vec<RowWrite>,
    next_tablet: u64,
}

/// A write to METADATA by a leader, which may be late, or by the master.
#[derive(Clone, Debug)]
enum RowWrite {
    /// Decides by the rows, writes the row, and then removes others.
    Put(TabletDescriptor),
    Remove(TabletDescriptor),
}

impl ListedTable {
    fn new() -> Self {
        let first =
            TabletDescriptor::initial(TableId::new(7), TabletId::new(100), KeyRange::all(), &[ServerId::new(1)]);
        let rows = [(first.row_key(), first.clone())].into();
        Self { tablets: vec![first], rows, writes: Vec::new(), next_tablet: 101 }
    }

    /// One event; `at` and `key` choose where.
    fn step(&mut self, event: u8, at: usize, key: &RowKey) {
        match event {
            0 | 1 => self.split(key),
            2 | 3 => self.merge(at),
            4..=6 => self.start_write(at),
            7 => self.writes.extend(obsolete_rows(self.rows.values()).into_iter().cloned().map(RowWrite::Remove)),
            // A write that is lost: its writer dies.
            8 if !self.writes.is_empty() => drop(self.writes.swap_remove(at % self.writes.len())),
            _ if !self.writes.is_empty() => {
                let write = self.writes.swap_remove(at % self.writes.len());
                self.execute(write);
            }
            _ => {}
        }
    }

    fn split(&mut self, key: &RowKey) {
        let child = TabletId::new(self.next_tablet);
        let halves = |(at, tablet): (usize, &TabletDescriptor)| Some((at, tablet.split(key, child)?));
        if let Some((at, (left, right))) = self.tablets.iter().enumerate().find_map(halves) {
            self.tablets.splice(at..=at, [left, right]);
            self.next_tablet += 1;
        }
    }

    fn merge(&mut self, at: usize) {
        let at = at % self.tablets.len();
        if let Some([left, right]) = self.tablets.get(at..at + 2) {
            let merged = right.merge(left).unwrap();
            self.tablets.splice(at..at + 2, [merged]);
        }
    }

    /// The leader of a tablet begins to write its row.
    fn start_write(&mut self, at: usize) {
        let tablet = self.tablets[at % self.tablets.len()].clone();
        self.writes.push(RowWrite::Put(tablet));
    }

    /// Compare-and-set by generation.
    fn execute(&mut self, write: RowWrite) {
        let (RowWrite::Put(tablet) | RowWrite::Remove(tablet)) = &write;
        let stored = self.rows.get(&tablet.row_key()).map(|stored| stored.generation);
        if stored.is_some_and(|stored| stored > tablet.generation) {
            return;
        }
        match write {
            RowWrite::Put(tablet) => {
                let after = rows_after(&tablet).filter(|_after| stored != Some(tablet.generation));
                let read: Vec<_> = [Some(rows_near(&tablet)), after].into_iter().flatten().collect();
                let is_read = |row: &RowKey| read.iter().any(|range| range.contains(row.as_bytes()));
                let listed = self.rows.iter().filter(|(row, _)| is_read(row));
                let listed: Vec<_> = listed.map(|(_, descriptor)| descriptor.clone()).collect();
                if let RowUpdate::Write(superfluous) = row_update(&tablet, &listed) {
                    self.rows.insert(tablet.row_key(), tablet);
                    self.writes.extend(superfluous.into_iter().map(RowWrite::Remove));
                }
            }
            RowWrite::Remove(tablet) => drop(self.rows.remove(&tablet.row_key())),
        }
    }

    /// Whether a lookup of a key finds a row with it. An older descriptor costs a retry.
    fn is_listed(&self, key: &RowKey) -> bool {
        let mut rows = self.rows.range(lookup_key(TableId::new(7), key)..);
        rows.any(|(_, descriptor)| descriptor.range.contains(key.as_bytes()))
    }

    /// All writers have written, and the master has removed what is left.
    fn settle(&mut self) {
        self.writes.clear();
        for round in 0..=self.tablets.len() {
            for at in 0..self.tablets.len() {
                self.start_write(at);
            }
            if round == self.tablets.len() {
                self.writes.extend(obsolete_rows(self.rows.values()).into_iter().cloned().map(RowWrite::Remove));
            }
            while let Some(write) = self.writes.pop() {
                self.execute(write);
            }
        }
    }
}

proptest! {
    #[test]
    fn every_key_stays_listed_whatever_the_order_of_writes(
        events in vec((0_u8..16, 0_usize..8, key()), 0..60), keys in vec(key(), 1..8),
    ) {
        let mut table = ListedTable::new();
        for (event, at, key) in events {
            table.step(event, at, &key);
            for key in keys.iter().chain([&key]) {
                prop_assert!(table.is_listed(key), "{key} is not listed: {:?}", table.rows);
            }
        }
        table.settle();
        let listed: Vec<_> = table.rows.into_values().collect();
        prop_assert_eq!(listed, table.tablets);
    }

    #[test]
    fn the_first_row_beyond_a_key_is_its_tablets(a in vec(key(), 0..6), b in vec(key(), 0..6), wanted in key()) {
        let tables = [TableId::new(7), TableId::new(8)];
        let tablets = split_at(tables[0], &a).into_iter().chain(split_at(tables[1], &b));
        let rows: BTreeMap<_, _> = tablets.map(|tablet| (tablet.row_key(), tablet)).collect();
        for table in tables {
            let lookup = lookup_key(table, &wanted);
            let (row, tablet) = rows.iter().find(|(row, _)| **row > lookup).unwrap();
            prop_assert_eq!(tablet.table, table);
            prop_assert!(tablet.range.contains(wanted.as_bytes()));
            prop_assert!(table_range(table).contains(row.as_bytes()));
            prop_assert!(lookup_range(table, &wanted).contains(row.as_bytes()));
            prop_assert_eq!(parse_row_key(row), Ok((table, tablet.range.end().cloned())));
        }
    }

    #[test]
    fn splits_leave_no_gap_and_grow_the_fence(keys in vec(key(), 0..8)) {
        let tablets = split_at(TableId::new(7), &keys);
        prop_assert_eq!(tablets[0].range.start(), &RowKey::EMPTY);
        prop_assert_eq!(tablets.last().unwrap().range.end(), None);
        for pair in tablets.windows(2) {
            prop_assert_eq!(pair[0].range.end(), Some(pair[1].range.start()));
        }
        for tablet in &tablets {
            if let Some((left, right)) = tablet.split(&tablet.range.start().successor(), TabletId::new(999)) {
                prop_assert!(left.fence() > tablet.fence());
                prop_assert!(right.generation == left.generation && left.tablet == tablet.tablet);
            }
        }
    }
}

//! When which tablet is flushed: decided for the whole server, because RocksDB cannot.
//!
//! The engine's write buffer manager flushes only the store that is being written, never the idle ones that hold the
//! memory: with 500 tablets and 10 hot ones that was 17,000 cells/s against 1,010,000 with this scheduler. Four causes:
//!
//! | cause | who goes | until |
//! |---|---|---|
//! | memtables above their budget | the largest first | three quarters of the budget would be left |
//! | commit log above its budget | those that pin the oldest segments | the excess would be released |
//! | more than 1000 range tombstones unflushed | each such tablet | |
//! | no write for 10 s, and more than 256 KiB unflushed | each such tablet: it gives its memory back | |
//!
//! [`decide`] and [`pressure`] are pure. [`FlushScheduler`] adds the memory of what is being flushed right now; its owner
//! gathers the [`Picture`] (a few times a second, and when writes wait), carries the flushes out on threads that may
//! block, and tells [`FlushScheduler::finished`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ebla_model::id::TabletId;

/// Above this many unflushed range tombstones a tablet is flushed: the first read after each new one rebuilds their list
/// (13 us with none, 1.5 ms with 10,000).
pub const RANGE_TOMBSTONES_MAX: u64 = 1000;

/// A tablet that was not written for so long is idle.
const IDLE_AFTER: Duration = Duration::from_secs(10);
/// What an idle tablet may keep in memory: a file for less is not worth it.
const IDLE_BYTES: u64 = 256 << 10;

/// What one tablet holds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TabletLoad {
    /// Which one.
    pub tablet: TabletId,
    /// Keys and values since its last flush.
    pub unflushed_bytes: u64,
    /// Range deletes since its last flush.
    pub range_tombstones: u64,
}

/// A tablet that keeps the commit log from releasing its oldest segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPin {
    /// Which one.
    pub tablet: TabletId,
    /// Bytes of the log that would be released if it, and all before it in the list, were flushed.
    pub bytes: u64,
}

/// How much the server may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Memory of memtables, all tablets together.
    pub memtable_bytes: u64,
    /// The commit log on disk.
    pub log_bytes: u64,
}

/// The server as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Picture {
    /// Memory that memtables really use ([`crate::tablet::SharedUsage`]): about twice their payload.
    pub memtable_bytes: u64,
    /// Every tablet that holds something.
    pub tablets: Vec<TabletLoad>,
    /// The commit log on disk.
    pub log_bytes: u64,
    /// Who pins the log, oldest segment first.
    pub log_pins: Vec<LogPin>,
    /// Tablets that hold memory and are not written any more.
    pub idle: BTreeSet<TabletId>,
    /// Whose flush is under way: what they hold counts as good as flushed.
    pub flushing: BTreeSet<TabletId>,
}

/// Whether writes may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// They may.
    None,
    /// New writes wait until flushes have caught up.
    Wait,
}

/// The tablets to flush now, each once, most urgent first. Those being flushed are not named again.
#[must_use]
pub fn decide(picture: &Picture, budgets: Budgets) -> Vec<TabletId> {
    let mut chosen = Chosen { order: Vec::new(), taken: picture.flushing.clone() };
    chosen.add_for_tombstones(picture);
    chosen.add_for_memory(picture, budgets.memtable_bytes);
    chosen.add_for_log(picture, budgets.log_bytes);
    picture.idle.iter().for_each(|tablet| chosen.add(*tablet));
    chosen.order
}

/// Finds out which tablets are idle from what they hold at one look after the other. Pure: the time is an argument.
#[derive(Clone, Debug, Default)]
pub struct IdleTablets {
    /// What each tablet held when that last changed, and when that was, in time since boot.
    seen: BTreeMap<TabletId, (u64, Duration)>,
}

impl IdleTablets {
    /// Takes in what all tablets hold at `now`; the idle ones.
    pub fn look(&mut self, now: Duration, loads: &[TabletLoad]) -> BTreeSet<TabletId> {
        let seen = loads.iter().map(|load| match self.seen.get(&load.tablet) {
            Some((bytes, since)) if *bytes == load.unflushed_bytes => (load.tablet, (*bytes, *since)),
            _ => (load.tablet, (load.unflushed_bytes, now)),
        });
        self.seen = seen.collect();
        let is_idle =
            |(bytes, since): &(u64, Duration)| *bytes > IDLE_BYTES && now.saturating_sub(*since) >= IDLE_AFTER;
        self.seen.iter().filter(|(_, seen)| is_idle(seen)).map(|(tablet, _)| *tablet).collect()
    }
}

/// Whether memtables have grown so far above their budget that writes must wait: half as much again.
///
/// The engine's own limit stands at twice the budget; it must not be reached, because it acts on the wrong store.
#[must_use]
pub fn pressure(memtable_bytes: u64, budgets: Budgets) -> Pressure {
    let limit = budgets.memtable_bytes.saturating_add(budgets.memtable_bytes / 2);
    if memtable_bytes > limit { Pressure::Wait } else { Pressure::None }
}

struct Chosen {
    order: Vec<TabletId>,
    /// The chosen ones and those under way.
    taken: BTreeSet<TabletId>,
}

impl Chosen {
    fn add(&mut self, tablet: TabletId) {
        if self.taken.insert(tablet) {
            self.order.push(tablet);
        }
    }

    fn add_for_tombstones(&mut self, picture: &Picture) {
        let slow = picture.tablets.iter().filter(|load| load.range_tombstones > RANGE_TOMBSTONES_MAX);
        slow.for_each(|load| self.add(load.tablet));
    }

    fn add_for_memory(&mut self, picture: &Picture, budget_bytes: u64) {
        if picture.memtable_bytes <= budget_bytes {
            return;
        }
        // Payload undershoots real use: what a flush frees is taken as the tablet's share of what is used.
        let payload: u64 = picture.tablets.iter().map(|load| load.unflushed_bytes).sum();
        let share = |load: &TabletLoad| {
            let used = u128::from(picture.memtable_bytes) * u128::from(load.unflushed_bytes);
            u64::try_from(used / u128::from(payload.max(1))).unwrap_or(u64::MAX)
        };
        let is_taken = |load: &&TabletLoad| self.taken.contains(&load.tablet);
        let leaving: u64 = picture.tablets.iter().filter(is_taken).map(&share).sum();
        let mut left = picture.memtable_bytes.saturating_sub(leaving);

        let mut loads: Vec<_> = picture.tablets.iter().filter(|load| load.unflushed_bytes > 0).collect();
        loads.sort_by_key(|load| (std::cmp::Reverse(load.unflushed_bytes), load.tablet));
        for load in loads {
            // Below the budget by a quarter, so that the next write does not cause the next flush.
            if left <= budget_bytes / 4 * 3 {
                break;
            }
            if !self.taken.contains(&load.tablet) {
                left = left.saturating_sub(share(load));
                self.add(load.tablet);
            }
        }
    }

    fn add_for_log(&mut self, picture: &Picture, budget_bytes: u64) {
        let excess = picture.log_bytes.saturating_sub(budget_bytes);
        let mut released = 0;
        for pin in &picture.log_pins {
            if released >= excess {
                break;
            }
            self.add(pin.tablet);
            released = released.max(pin.bytes);
        }
    }
}

/// Keeps account of flushes under way. Cheap calls, none blocks.
pub struct FlushScheduler {
    budgets: Budgets,
    /// Held for a lookup or an insert only.
    flushing: Mutex<BTreeSet<TabletId>>,
}

impl FlushScheduler {
    /// A scheduler for one server.
    #[must_use]
    pub fn new(budgets: Budgets) -> Self {
        Self { budgets, flushing: Mutex::new(BTreeSet::new()) }
    }

    /// Which tablets to flush now. The caller flushes each and then calls [`Self::finished`], whatever came of it.
    ///
    /// The picture's own `flushing` is replaced by what is known here.
    #[must_use]
    pub fn begin(&self, mut picture: Picture) -> Vec<TabletId> {
        let mut flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        picture.flushing = flushing.clone();
        let chosen = decide(&picture, self.budgets);
        flushing.extend(chosen.iter().copied());
        chosen
    }

    /// The flush of this tablet has ended.
    pub fn finished(&self, tablet: TabletId) {
        self.flushing.lock().unwrap_or_else(PoisonError::into_inner).remove(&tablet);
    }

    /// Whether writes may go on with memtables of this size.
    #[must_use]
    pub fn pressure(&self, memtable_bytes: u64) -> Pressure {
        pressure(memtable_bytes, self.budgets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGETS: Budgets = Budgets { memtable_bytes: 100, log_bytes: 1000 };

    fn load(tablet: u64, unflushed_bytes: u64) -> TabletLoad {
        TabletLoad { tablet: TabletId::new(tablet), unflushed_bytes, range_tombstones: 0 }
    }

    fn ids(tablets: &[u64]) -> Vec<TabletId> {
        tablets.iter().copied().map(TabletId::new).collect()
    }

    #[test]
    fn nothing_is_flushed_within_the_budgets() {
        let picture =
            Picture { memtable_bytes: 100, tablets: vec![load(1, 50)], log_bytes: 1000, ..Picture::default() };
        assert!(decide(&picture, BUDGETS).is_empty());
    }

    #[test]
    fn the_largest_go_until_three_quarters_are_left() {
        // Real use is twice the payload: each byte of payload frees two.
        let tablets = vec![load(1, 5), load(2, 20), load(3, 20), load(4, 15)];
        let picture = Picture { memtable_bytes: 120, tablets, ..Picture::default() };
        assert_eq!(decide(&picture, BUDGETS), ids(&[2, 3]));
    }

    #[test]
    fn what_is_being_flushed_counts_as_flushed() {
        let tablets = vec![load(1, 30), load(2, 20), load(3, 10)];
        let flushing = BTreeSet::from([TabletId::new(1)]);
        let picture = Picture { memtable_bytes: 120, tablets, flushing, ..Picture::default() };
        assert!(decide(&picture, BUDGETS).is_empty());
    }

    #[test]
    fn a_full_log_flushes_those_that_pin_its_oldest_segments() {
        let pin = |tablet, bytes| LogPin { tablet: TabletId::new(tablet), bytes };
        let log_pins = vec![pin(7, 64), pin(3, 128), pin(9, 512)];
        let picture = Picture { log_bytes: 1100, log_pins, ..Picture::default() };
        assert_eq!(decide(&picture, BUDGETS), ids(&[7, 3]));
    }

    #[test]
    fn many_range_tombstones_cause_a_flush_of_their_own() {
        let mut slow = load(5, 1);
        slow.range_tombstones = RANGE_TOMBSTONES_MAX + 1;
        let picture = Picture { memtable_bytes: 1, tablets: vec![load(1, 9), slow], ..Picture::default() };
        assert_eq!(decide(&picture, BUDGETS), ids(&[5]));
    }

    #[test]
    fn a_tablet_is_idle_when_nothing_was_written_to_it_for_ten_seconds() {
        let mut idle = IdleTablets::default();
        let mut look = |seconds, loads: &[TabletLoad]| {
            let found = idle.look(Duration::from_secs(seconds), loads);
            found.into_iter().map(TabletId::get).collect::<Vec<_>>()
        };
        let (small, large) = (IDLE_BYTES, IDLE_BYTES + 1);
        assert!(look(0, &[load(1, large), load(2, large), load(3, small)]).is_empty());
        assert!(look(9, &[load(1, large), load(2, large + 1), load(3, small)]).is_empty());
        assert_eq!(look(10, &[load(1, large), load(2, large + 1), load(3, small)]), [1]);
        assert_eq!(look(19, &[load(1, 0), load(2, large + 1)]), [2], "one that was flushed is not idle");
        assert!(look(30, &[]).is_empty());
        assert!(look(31, &[load(2, large + 1)]).is_empty(), "one that came back begins anew");
    }

    #[test]
    fn idle_tablets_are_flushed_although_the_budget_is_kept() {
        let idle = BTreeSet::from([TabletId::new(2)]);
        let picture = Picture { memtable_bytes: 50, tablets: vec![load(1, 9), load(2, 9)], idle, ..Picture::default() };
        assert_eq!(decide(&picture, BUDGETS), ids(&[2]));
    }

    #[test]
    fn a_tablet_is_named_once_whatever_the_causes() {
        let mut all = load(5, 60);
        all.range_tombstones = RANGE_TOMBSTONES_MAX + 1;
        let log_pins = vec![LogPin { tablet: TabletId::new(5), bytes: 500 }];
        let picture =
            Picture { memtable_bytes: 150, tablets: vec![all], log_bytes: 1200, log_pins, ..Picture::default() };
        assert_eq!(decide(&picture, BUDGETS), ids(&[5]));
    }

    #[test]
    fn a_flush_is_begun_once_until_it_has_ended() {
        let scheduler = FlushScheduler::new(BUDGETS);
        let picture = Picture { memtable_bytes: 120, tablets: vec![load(1, 60)], ..Picture::default() };
        assert_eq!(scheduler.begin(picture.clone()), ids(&[1]));
        assert!(scheduler.begin(picture.clone()).is_empty());
        scheduler.finished(TabletId::new(1));
        assert_eq!(scheduler.begin(picture), ids(&[1]));
    }

    #[test]
    fn writes_wait_when_memory_is_half_above_the_budget() {
        let scheduler = FlushScheduler::new(BUDGETS);
        assert_eq!(scheduler.pressure(150), Pressure::None);
        assert_eq!(scheduler.pressure(151), Pressure::Wait);
    }
}

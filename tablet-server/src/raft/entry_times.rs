//! When the last entries of a group's log were appended, synced, known to be committed, and applied on this replica, and when followers acknowledged
//! them: for traces.
//!
//! The log store, the state machine and the peers of a leader report to it what they do; it keeps the last appends. A time that is not known is
//! absent, and nothing is decided by it. A follower determines from the times of its own appends what it did for a request ([`EntryClock::work`]),
//! and sends that in its reply.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::id::{LogIndex, ServerId};
use ebla_runtime::Clock;
use ebla_runtime::trace::{FollowerTime, FollowerWork};
use parking_lot::Mutex;

/// The appends that are kept: a group has few in flight.
const APPENDS_MAX: usize = 64;

/// The acknowledgments that are kept: those of a few followers for the appends that are in flight.
const ACKNOWLEDGMENTS_MAX: usize = 32;

/// The times of an entry, on the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryTimes {
    /// It was handed to the commit log.
    pub appended: Duration,
    /// It was on the disk of this replica.
    pub synced: Option<Duration>,
    /// The entries before it were applied, as known when it was committed. Until then it could not be applied, nor is it known when a majority had it.
    pub unblocked: Option<Duration>,
    /// It was known to be on the disks of a majority.
    pub committed: Option<Duration>,
    /// It was applied to the store.
    pub applied: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Append {
    first: LogIndex,
    last: LogIndex,
    times: EntryTimes,
}

/// A follower has the entries up to this one.
#[derive(Clone, Copy, Debug)]
struct Acknowledgment {
    last: LogIndex,
    time: FollowerTime,
}

/// The times of a group's last entries. Clones share them.
#[derive(Clone, Debug)]
pub(in crate::raft) struct EntryClock {
    clock: Clock,
    /// In the order of the appends. Locked for a few instructions.
    appends: Arc<Mutex<Appends>>,
}

#[derive(Debug, Default)]
struct Appends {
    last: VecDeque<Append>,
    /// When the last application ended.
    applied: Option<Duration>,
    /// What followers have acknowledged, in the order in which the replies arrived.
    acknowledgments: VecDeque<Acknowledgment>,
}

impl Appends {
    /// Adds an append at this place; the oldest one makes room.
    fn insert(&mut self, place: usize, append: Append) {
        self.last.insert(place, append);
        if self.last.len() > APPENDS_MAX {
            self.last.pop_front();
        }
    }

    /// Divides the last append that has entries on both sides of the end of `last`, so that each part has its own times.
    fn split_after(&mut self, last: LogIndex) {
        let is_divided = |append: &Append| append.first <= last && last < append.last;
        let Some(place) = self.last.iter().rposition(is_divided) else { return };
        let Some(found) = self.last.get_mut(place) else { return };
        let before = Append { last, ..*found };
        found.first = last.next();
        self.insert(place, before);
    }

    /// Changes the times of the appends up to `last`, from the newest one, until `set` refuses one that has its time.
    fn reach(&mut self, last: LogIndex, set: impl Fn(&mut EntryTimes) -> ControlFlow<()>) {
        let _first_known = self
            .last
            .iter_mut()
            .rev()
            .filter(|append| append.last <= last)
            .try_for_each(|append| set(&mut append.times));
    }
}

impl EntryClock {
    /// No entries.
    pub(in crate::raft) fn new(clock: Clock) -> Self {
        Self { clock, appends: Arc::default() }
    }

    /// The entries from `first` to `last` are handed to the commit log now.
    pub(in crate::raft) fn append(&self, first: LogIndex, last: LogIndex) {
        let times = EntryTimes { appended: self.clock.monotonic(), ..EntryTimes::default() };
        let mut appends = self.appends.lock();
        let newest = appends.last.len();
        appends.insert(newest, Append { first, last, times });
    }

    /// The entries of the append that ends with `last` are on disk now.
    pub(in crate::raft) fn sync(&self, last: LogIndex) {
        let now = self.clock.monotonic();
        // Syncs are in the order of appends; an append may have been divided in the meantime.
        self.appends.lock().reach(last, |times| set_once(&mut times.synced, now));
    }

    /// The entries up to `last` are known to be committed now.
    pub(in crate::raft) fn commit(&self, last: LogIndex) {
        let now = self.clock.monotonic();
        let mut appends = self.appends.lock();
        appends.split_after(last);
        let unblocked = appends.applied;
        appends.reach(last, |times| {
            if times.committed.is_none() {
                times.unblocked = unblocked;
            }
            set_once(&mut times.committed, now)
        });
    }

    /// The entries up to `last` are applied now.
    pub(in crate::raft) fn apply(&self, last: LogIndex) {
        let now = self.clock.monotonic();
        let mut appends = self.appends.lock();
        appends.applied = Some(now);
        appends.reach(last, |times| set_once(&mut times.applied, now));
    }

    /// A follower has replied now that it has the entries up to `last` on disk. `sent`: when the request was sent, on the monotonic clock.
    pub(in crate::raft) fn acknowledge(
        &self,
        last: LogIndex,
        server: ServerId,
        sent: Duration,
        work: Option<FollowerWork>,
    ) {
        let time = FollowerTime { server, sent, answered: self.clock.monotonic(), work };
        let mut appends = self.appends.lock();
        if appends.acknowledgments.len() == ACKNOWLEDGMENTS_MAX {
            appends.acknowledgments.pop_front();
        }
        appends.acknowledgments.push_back(Acknowledgment { last, time });
    }

    /// The followers that have acknowledged the entry at `index`, each with its first reply that contains it, as far as it is kept. Times are on the
    /// monotonic clock.
    pub(in crate::raft) fn followers(&self, index: LogIndex) -> Vec<FollowerTime> {
        let appends = self.appends.lock();
        let mut followers: Vec<FollowerTime> = Vec::new();
        for Acknowledgment { last, time } in &appends.acknowledgments {
            if index <= *last && followers.iter().all(|known| known.server != time.server) {
                followers.push(*time);
            }
        }
        followers
    }

    /// What this replica did for a request of its leader that arrived at `arrived` and ends with the entry `last`, which is on disk now.
    pub(in crate::raft) fn work(&self, last: LogIndex, arrived: Duration) -> Option<FollowerWork> {
        let now = self.clock.monotonic();
        let EntryTimes { appended, synced, .. } = self.times(last)?;
        // An entry that an earlier request has brought was appended before this one arrived.
        let appended = appended.max(arrived);
        let synced = synced?.max(appended);
        Some(FollowerWork {
            queue: appended.saturating_sub(arrived),
            sync: synced.saturating_sub(appended),
            total: now.saturating_sub(arrived),
        })
    }

    /// The times of the entry at `index`; `None` when it is not among the last ones.
    pub(in crate::raft) fn times(&self, index: LogIndex) -> Option<EntryTimes> {
        let appends = self.appends.lock();
        let found = appends.last.iter().rev().find(|append| append.first <= index && index <= append.last);
        found.map(|append| append.times)
    }
}

/// Sets a time that is not known yet; breaks at one that is, because older entries have theirs too.
const fn set_once(time: &mut Option<Duration>, now: Duration) -> ControlFlow<()> {
    if time.is_some() {
        return ControlFlow::Break(());
    }
    *time = Some(now);
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(index: u64) -> LogIndex {
        LogIndex::new(index)
    }

    #[test]
    fn each_entry_has_the_times_of_its_append() {
        let clock = Clock::manual();
        let times = EntryClock::new(clock.clone());
        let step = || clock.advance(Duration::from_millis(1));
        let began = clock.monotonic();
        times.append(at(5), at(7));
        step();
        times.append(at(8), at(8));
        step();
        times.sync(at(7));
        step();
        times.commit(at(8));
        step();
        times.commit(at(9));
        times.apply(at(7));
        let after = |millis| Some(began + Duration::from_millis(millis));
        let expected =
            EntryTimes { appended: began, synced: after(2), unblocked: None, committed: after(3), applied: after(4) };
        assert_eq!(times.times(at(6)), Some(expected));
        let second = times.times(at(8)).unwrap();
        assert_eq!((second.synced, second.committed, second.applied), (None, after(3), None));
        assert_eq!(times.times(at(4)), None);
    }

    #[test]
    fn an_index_that_is_appended_again_has_its_last_times() {
        let clock = Clock::manual();
        let times = EntryClock::new(clock.clone());
        times.append(at(5), at(9));
        clock.advance(Duration::from_secs(1));
        times.append(at(6), at(6));
        assert_eq!(times.times(at(6)).map(|found| found.appended), Some(clock.monotonic()));
    }

    #[test]
    fn an_application_that_ends_inside_an_append_divides_it() {
        let clock = Clock::manual();
        let times = EntryClock::new(clock.clone());
        let step = || clock.advance(Duration::from_millis(1));
        let began = clock.monotonic();
        let after = |millis| Some(began + Duration::from_millis(millis));
        times.append(at(5), at(9));
        step();
        times.commit(at(6));
        step();
        times.sync(at(9));
        step();
        times.apply(at(6));
        step();
        times.commit(at(9));
        step();
        times.apply(at(9));
        let first = times.times(at(6)).unwrap();
        assert_eq!(
            (first.synced, first.unblocked, first.committed, first.applied),
            (after(2), None, after(1), after(3))
        );
        let second = times.times(at(7)).unwrap();
        assert_eq!(
            (second.synced, second.unblocked),
            (after(2), after(3)),
            "it waited for the application of the first"
        );
        assert_eq!((second.committed, second.applied), (after(4), after(5)));
        assert_eq!(times.times(at(5)), Some(first));
    }

    #[test]
    fn each_follower_has_the_first_reply_that_contains_the_entry() {
        let clock = Clock::manual();
        let times = EntryClock::new(clock.clone());
        let began = clock.monotonic();
        let acknowledge = |last, server| {
            clock.advance(Duration::from_millis(1));
            times.acknowledge(at(last), ServerId::new(server), began, None);
        };
        acknowledge(4, 2);
        acknowledge(7, 3);
        acknowledge(6, 2);
        acknowledge(9, 2);
        let known = |index| -> Vec<_> {
            let followers = times.followers(at(index)).into_iter();
            followers.map(|one| (one.server.get(), (one.answered - began).as_millis())).collect()
        };
        assert_eq!(known(5), [(3, 2), (2, 3)]);
        assert_eq!(known(8), [(2, 4)], "server 3 has not answered yet");
        assert_eq!(known(10), []);
        (10..100).for_each(|last| acknowledge(last, 2));
        assert_eq!(times.appends.lock().acknowledgments.len(), ACKNOWLEDGMENTS_MAX);
    }

    #[test]
    fn the_work_of_a_follower_counts_from_the_arrival() {
        let clock = Clock::manual();
        let times = EntryClock::new(clock.clone());
        let step = |millis| clock.advance(Duration::from_millis(millis));
        let arrived = clock.monotonic();
        step(2);
        times.append(at(5), at(7));
        assert_eq!(times.work(at(7), arrived), None, "not on disk yet");
        step(30);
        times.sync(at(7));
        step(1);
        let work = times.work(at(7), arrived).unwrap();
        assert_eq!([work.queue, work.sync, work.total].map(|time| time.as_millis()), [2, 30, 33]);
        let again = times.work(at(7), clock.monotonic()).unwrap();
        assert_eq!(again, FollowerWork::default(), "the same entries, sent again");
        assert_eq!(times.work(at(9), arrived), None);
    }

    #[test]
    fn old_appends_are_forgotten() {
        let times = EntryClock::new(Clock::manual());
        (1..=1_000).for_each(|index| times.append(at(index), at(index)));
        assert_eq!(times.appends.lock().last.len(), APPENDS_MAX);
        assert!(times.times(at(1_000)).is_some() && times.times(at(1)).is_none());
    }
}

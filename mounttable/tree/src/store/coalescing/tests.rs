//! Changes polled by hand: each is started, polled, and finished or dropped.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use ebla_model::Micros;

use super::*;
use crate::error::Reason;
use crate::store::memory::MemoryStore;
use crate::store::{Cell, Family};

const KEY: &str = "row";

/// An in-memory store that counts its changes, and fails on request.
#[derive(Clone, Default)]
struct Counting {
    memory: MemoryStore,
    changes: Arc<AtomicUsize>,
    increments: Arc<AtomicUsize>,
    /// Changes and additions wait for this.
    is_open: Arc<AtomicBool>,
    is_away: bool,
}

impl Counting {
    fn opened(&self) -> impl Future<Output = ()> {
        poll_fn(|_| if self.is_open.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending })
    }
}

impl Store for Counting {
    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        if self.is_away {
            return Err(Error::new(Reason::Unavailable, "away"));
        }
        self.opened().await;
        self.memory.change_if(key, when, then).await
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        self.increments.fetch_add(1, Ordering::Relaxed);
        self.opened().await;
        self.memory.add(counter, by).await
    }

    delegate!(memory: read_with, keys, counter, set_counter, counters);
}

impl Environment for Counting {
    delegate!(memory: now, unique_u64, back_off, sleep);
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<bool, Error>> + 'a>>;

/// A started change that writes a column under a condition.
fn begun<'a>(store: &'a CoalescingStore<Counting>, column: &str, when: Condition) -> Call<'a> {
    let cell = Cell { timestamp: Micros::from_millis(1), value: "x".to_owned() };
    let mut call: Call<'_> =
        Box::pin(store.change_if(KEY, when, vec![Change::Set(Family::Children, column.to_owned(), cell)]));
    assert!(poll(&mut call).is_pending());
    call
}

fn absent(column: &str) -> Condition {
    Condition::HasNot(Family::Children, column.to_owned())
}

fn poll(call: &mut Call<'_>) -> Poll<Result<bool, Error>> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Opens the storage, and polls the calls in turn, the last one first; returns their outcomes, and closes it again.
fn ended(counting: &Counting, mut calls: Vec<Call<'_>>) -> Vec<Result<bool, Error>> {
    counting.is_open.store(true, Ordering::Relaxed);
    let mut outcomes: Vec<_> = calls.iter().map(|_| None).collect();
    for _round in 0..100_000 {
        for (call, outcome) in calls.iter_mut().zip(&mut outcomes).rev() {
            if outcome.is_none()
                && let Poll::Ready(done) = poll(call)
            {
                *outcome = Some(done);
            }
        }
        if outcomes.iter().all(Option::is_some) {
            counting.is_open.store(false, Ordering::Relaxed);
            return outcomes.into_iter().flatten().collect();
        }
    }
    panic!("calls do not end");
}

fn new() -> (CoalescingStore<Counting>, Counting) {
    let counting = Counting::default();
    (CoalescingStore::new(counting.clone()), counting)
}

fn columns(counting: &Counting) -> usize {
    counting.memory.rows().get(KEY).map_or(0, BTreeMap::len)
}

fn changes(counting: &Counting) -> usize {
    counting.changes.load(Ordering::Relaxed)
}

#[test]
fn concurrent_changes_share_a_batch() {
    let (store, counting) = new();
    let names: Vec<_> = (0..20).map(|number| format!("c{number}")).collect();
    let calls = names.iter().map(|name| begun(&store, name, absent(name))).collect();
    assert!(ended(&counting, calls).iter().all(|outcome| *outcome == Ok(true)));
    assert_eq!((columns(&counting), changes(&counting)), (20, 2));
    assert!(store.changes.tails.lock().last.is_empty(), "no call waits");
}

#[test]
fn a_change_that_reads_a_written_column_does_not_join() {
    let (store, counting) = new();
    let calls = (0..4).map(|_| begun(&store, "c", absent("c"))).collect();
    let mut outcomes: Vec<_> = ended(&counting, calls).into_iter().map(Result::unwrap).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, [false, false, false, true]);
    assert_eq!(changes(&counting), 4);
}

#[test]
fn a_caller_that_is_not_polled_blocks_no_other() {
    let (store, counting) = new();
    let first = begun(&store, "a", absent("a"));
    let second = begun(&store, "b", absent("b"));
    // One joins the second; one conflicts, and executes at once.
    assert_eq!(
        ended(&counting, vec![begun(&store, "b", absent("b")), begun(&store, "c", absent("c"))]),
        [Ok(true), Ok(true)]
    );
    assert_eq!(ended(&counting, vec![begun(&store, "d", absent("d"))]), [Ok(true)]);
    assert_eq!(ended(&counting, vec![first, second]), [Ok(true), Ok(false)]);
}

#[test]
fn a_failing_member_does_not_fail_its_batch() {
    let (store, counting) = new();
    let wrong = Condition::Has(Family::Meta, "i".to_owned());
    let calls = vec![
        begun(&store, "a", absent("a")),
        begun(&store, "b", absent("b")),
        begun(&store, "c", wrong),
        begun(&store, "d", absent("d")),
    ];
    assert_eq!(ended(&counting, calls), [Ok(true), Ok(true), Ok(false), Ok(true)]);
    // The first; the batch of three, which fails; and the three one by one.
    assert_eq!((columns(&counting), changes(&counting)), (3, 5));
}

#[test]
fn a_dropped_caller_does_not_stop_its_batch() {
    let (store, counting) = new();
    let first = begun(&store, "a", absent("a"));
    let second = begun(&store, "b", absent("b"));
    let third = begun(&store, "c", absent("c"));
    drop((first, second));
    assert_eq!(ended(&counting, vec![third]), [Ok(true)]);
    drop(begun(&store, "d", absent("d")));
    assert!(store.changes.tails.lock().last.is_empty(), "no call waits");
    assert_eq!(ended(&counting, vec![begun(&store, "e", absent("e"))]), [Ok(true)]);
    // The changes of dropped callers are executed with their batch.
    let row = counting.memory.rows().remove(KEY).unwrap();
    assert_eq!(row.keys().map(|(_, column)| column.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "e"]);
}

#[test]
fn each_addition_gets_its_own_result() {
    let (store, counting) = new();
    let polled = |by| {
        let mut call = Box::pin(store.add("n", by));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        call
    };
    let calls: Vec<_> = [5, 1, -2, 7].into_iter().map(polled).collect();
    counting.is_open.store(true, Ordering::Relaxed);
    let mut totals = Vec::new();
    for mut call in calls {
        for _round in 0..10 {
            if let Poll::Ready(after) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                totals.push(after.unwrap());
                break;
            }
        }
    }
    assert_eq!(totals, [5, 6, 4, 11]);
    assert_eq!(counting.increments.load(Ordering::Relaxed), 2, "the first, and the others together");
}

#[test]
fn an_error_is_returned_to_all_members() {
    let counting = Counting { is_away: true, ..Counting::default() };
    let store = CoalescingStore::new(counting.clone());
    let refused = store.change_if(KEY, absent("a"), Vec::new()).now_or_never().unwrap();
    assert_eq!(refused.unwrap_err().reason, Reason::Unavailable);
    assert_eq!(changes(&counting), 1);
}

#[test]
fn many_conflicting_changes_all_complete() {
    let (store, counting) = new();
    let calls: Vec<_> = (0..20_000).map(|_| begun(&store, "c", absent("c"))).collect();
    assert_eq!(ended(&counting, calls).into_iter().filter(|outcome| *outcome == Ok(true)).count(), 1);
    assert_eq!(changes(&counting), 20_000);
}

/// Starts this number of compatible changes; returns the number of requests.
fn requests(store: &CoalescingStore<Counting>, counting: &Counting, count: usize) -> usize {
    let before = changes(counting);
    let names: Vec<_> = (0..count).map(|number| format!("{before} {number}")).collect();
    let calls = names.iter().map(|name| begun(store, name, absent(name))).collect();
    assert!(ended(counting, calls).iter().all(|outcome| *outcome == Ok(true)));
    assert!(store.changes.tails.lock().last.is_empty(), "no call waits");
    changes(counting) - before
}

#[test]
fn full_batches_queue_behind_each_other() {
    let (store, counting) = new();
    assert_eq!(requests(&store, &counting, 1 + 2 * MEMBERS_MAX), 1 + 2);
    assert_eq!(requests(&store, &counting, 2 + 2 * MEMBERS_MAX), 1 + 3);
    let full = 1 + BATCHES_MAX * MEMBERS_MAX;
    assert_eq!(requests(&store, &counting, full), 1 + BATCHES_MAX);
    assert_eq!(requests(&store, &counting, full + 7), 1 + BATCHES_MAX + 7, "for these there was no room");
}

#[test]
fn a_batch_respects_the_filter_size_limit() {
    let (store, counting) = new();
    let long = |number: usize| format!("{number}{}", "x".repeat(WEIGHT_MAX / 4));
    let calls = (0..3).map(|number| begun(&store, &long(number), absent(&long(number)))).collect();
    assert!(ended(&counting, calls).iter().all(|outcome| *outcome == Ok(true)));
    assert_eq!(changes(&counting), 3, "each is too heavy to go with another");
}

/// Slots count waiting batches only: a queue that never drains still accepts changes.
#[test]
fn slots_are_released_by_completed_batches() {
    let (store, counting) = new();
    let mut waiting: Vec<Call<'_>> = vec![begun(&store, "first", absent("first"))];
    for round in 0..3 * BATCHES_MAX {
        let names: Vec<_> = (0..MEMBERS_MAX).map(|number| format!("{round} {number}")).collect();
        waiting.extend(names.iter().map(|name| begun(&store, name, absent(name))));
        let rest = waiting.split_off(waiting.len().saturating_sub(MEMBERS_MAX));
        // All batches before the last are executed while that one waits.
        assert!(ended(&counting, waiting).iter().all(|outcome| *outcome == Ok(true)));
        waiting = rest;
    }
    assert!(ended(&counting, waiting).iter().all(|outcome| *outcome == Ok(true)));
    assert_eq!(changes(&counting), 1 + 3 * BATCHES_MAX);
}

/// A caller in a later batch does not depend on the callers of earlier ones, nor they on it.
#[test]
fn queued_batches_outlive_their_callers() {
    let (store, counting) = new();
    let names: Vec<_> = (0..1 + 3 * MEMBERS_MAX).map(|number| format!("c{number}")).collect();
    let mut calls: Vec<_> = names.iter().map(|name| begun(&store, name, absent(name))).collect();
    let last = calls.split_off(1 + 2 * MEMBERS_MAX);
    drop(calls.split_off(1 + MEMBERS_MAX));
    drop(calls);
    assert!(ended(&counting, last).iter().all(|outcome| *outcome == Ok(true)));
    assert_eq!((columns(&counting), changes(&counting)), (names.len(), 4), "all were made for the last");
}

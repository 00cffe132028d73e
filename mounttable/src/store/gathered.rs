//! A storage that does together what is wanted of one row, or one counter, while something else is done to it.
//!
//! A storage makes one conditional change of a row after the other, each a few milliseconds long, because it decides the next
//! one by what the last has left; so with additions to a counter. A directory in which many make children at once, and the
//! counter of who makes them, would be as slow as that allows. So wishes that come meanwhile wait in one group and are asked
//! for as one. Changes become one change whose condition is all of theirs: it holds when each would have held in turn,
//! because none is let into a group that writes what its condition looks at. Where it does not hold, each is made by
//! itself. Additions become their sum, and each is told what the counter would have been after it.
//!
//! Behind a group that is full the next one waits. Who looks at what others in a group write cannot join it, and goes to the
//! storage beside it. Nobody drives a group but those who wait for it,
//! whichever of them are left, and who waits for the next one drives it too. So a caller that is not polled, as one behind
//! a reader who does not read, holds up nobody.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ebla_model::Micros;
use futures::FutureExt;
use futures::future::{Shared, WeakShared};

use crate::error::Error;
use crate::name::NodeName;
use crate::store::{Change, Children, Predicate, Recent, Row, Servers, Store, Surroundings};

/// Wishes of one group.
const MEMBERS_MAX: usize = 32;
/// Groups that wait, one behind the other: each is polled by the next one.
const GROUPS_MAX: usize = 16;
/// What the conditions of one group weigh together, about: a Bigtable takes filters of 20 KiB.
const WEIGHT_MAX: usize = 8 << 10;
/// What a condition on one column weighs beside its name and value.
const WEIGHT_EACH: usize = 96;

/// A storage whose callers wait for each other. Clones wait for each other too.
#[derive(Clone, Debug)]
pub struct Gathered<S> {
    store: S,
    changes: Queue<Conditional>,
    additions: Queue<Addition>,
}

impl<S> Gathered<S> {
    /// Nobody waits for `store` yet.
    pub fn new(store: S) -> Self {
        Self { store, changes: Queue::default(), additions: Queue::default() }
    }
}

/// What may be asked for together with others of its kind.
trait Wish: Clone + Send + Sync + 'static {
    /// What comes of it.
    type Outcome: Clone + Send + Sync;

    /// Whether it can be asked for together with them, behind them.
    fn goes_with(&self, others: &[Self]) -> bool;

    /// Whether one request has room for all of them.
    fn has_room_with(&self, others: &[Self]) -> bool;

    /// Asks for all of them; an outcome for each.
    fn ask<S: Store>(
        store: &S,
        key: &str,
        wishes: Vec<Self>,
    ) -> impl Future<Output = Vec<Result<Self::Outcome, Error>>> + Send;
}

/// Changes of a row under a condition.
#[derive(Clone, Debug)]
struct Conditional {
    when: Predicate,
    then: Vec<Change>,
}

impl Wish for Conditional {
    type Outcome = bool;

    fn goes_with(&self, others: &[Self]) -> bool {
        !others.iter().flat_map(|one| &one.then).any(|change| looks_at(&self.when, change))
    }

    fn has_room_with(&self, others: &[Self]) -> bool {
        let all = others.iter().chain([self]).map(|one| weight(&one.when)).fold(0, usize::saturating_add);
        others.len() < MEMBERS_MAX && all <= WEIGHT_MAX
    }

    async fn ask<S: Store>(store: &S, key: &str, wishes: Vec<Self>) -> Vec<Result<bool, Error>> {
        if wishes.len() > 1 {
            let when = Predicate::All(wishes.iter().map(|one| one.when.clone()).collect());
            let then = wishes.iter().flat_map(|one| one.then.iter().cloned()).collect();
            match store.change_if(key, when, then).await {
                Ok(false) => {}
                outcome => return vec![outcome; wishes.len()],
            }
        }
        let mut outcomes = Vec::with_capacity(wishes.len());
        for Self { when, then } in wishes {
            outcomes.push(store.change_if(key, when, then).await);
        }
        outcomes
    }
}

/// Whether the condition looks at what the change writes.
fn looks_at(when: &Predicate, change: &Change) -> bool {
    match when {
        Predicate::RowAbsent => true,
        Predicate::Has(family, column)
        | Predicate::HasNot(family, column)
        | Predicate::Is(family, column, _)
        | Predicate::Begins(family, column, _) => match change {
            Change::Set(of, written, _) | Change::DeleteColumn(of, written) => (of, written) == (family, column),
            Change::DeleteFamily(of) => of == family,
            Change::DeleteRow => true,
        },
        Predicate::All(parts) => parts.iter().any(|part| looks_at(part, change)),
    }
}

fn weight(when: &Predicate) -> usize {
    let strings = match when {
        Predicate::RowAbsent => 0,
        Predicate::Has(_, column) | Predicate::HasNot(_, column) => column.len(),
        Predicate::Is(_, column, value) | Predicate::Begins(_, column, value) => {
            column.len().saturating_add(value.len())
        }
        Predicate::All(parts) => return parts.iter().map(weight).fold(0, usize::saturating_add),
    };
    // A name is both ends of a range.
    strings.saturating_mul(2).saturating_add(WEIGHT_EACH)
}

/// A number that is added to a counter.
#[derive(Clone, Copy, Debug)]
struct Addition(i64);

impl Wish for Addition {
    type Outcome = i64;

    fn goes_with(&self, _others: &[Self]) -> bool {
        true
    }

    fn has_room_with(&self, _others: &[Self]) -> bool {
        true
    }

    async fn ask<S: Store>(store: &S, counter: &str, wishes: Vec<Self>) -> Vec<Result<i64, Error>> {
        let sum = wishes.iter().fold(0, |sum: i64, one| sum.wrapping_add(one.0));
        let last = store.add(counter, sum).await;
        let mut so_far = 0_i64;
        let after = |Self(by): Self| {
            so_far = so_far.wrapping_add(by);
            last.clone().map(|last| last.wrapping_sub(sum).wrapping_add(so_far))
        };
        wishes.into_iter().map(after).collect()
    }
}

/// Who waits, by row or counter.
#[derive(Debug)]
struct Queue<W: Wish> {
    lines: Arc<Mutex<Lines<W>>>,
}

impl<W: Wish> Clone for Queue<W> {
    fn clone(&self) -> Self {
        Self { lines: Arc::clone(&self.lines) }
    }
}

impl<W: Wish> Default for Queue<W> {
    fn default() -> Self {
        Self { lines: Arc::new(Mutex::new(Lines { last: BTreeMap::new(), groups: 0 })) }
    }
}

#[derive(Debug)]
struct Lines<W: Wish> {
    last: BTreeMap<String, Line<W>>,
    groups: u64,
}

/// The group of a row that came last.
#[derive(Debug)]
struct Line<W: Wish> {
    number: u64,
    /// Held by each group of the row that waits, and here.
    places: Arc<()>,
    group: Arc<Mutex<Group<W>>>,
    /// Its way there and back; gone when nobody waits for it any more.
    trip: WeakShared<Trip<W>>,
}

/// Wishes that go together.
#[derive(Debug)]
struct Group<W> {
    members: Vec<W>,
    /// Its place in the line; given up when it goes.
    place: Option<Arc<()>>,
}

/// What became of each member.
type Outcomes<W> = Arc<Vec<Result<<W as Wish>::Outcome, Error>>>;
type Trip<W> = Pin<Box<dyn Future<Output = Outcomes<W>> + Send>>;

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Wish> Queue<W> {
    /// What comes of a wish; `None` when it cannot wait with others, and was not asked for.
    async fn ask<S: Store + Clone + 'static>(
        &self,
        store: &S,
        key: &str,
        wish: &W,
    ) -> Option<Result<W::Outcome, Error>> {
        let (trip, place) = self.join(store, key, wish)?;
        trip.await.get(place).cloned()
    }

    /// Joins the group that waits for the row, or begins one; the trip, and the member's place in the group.
    fn join<S: Store + Clone + 'static>(&self, store: &S, key: &str, wish: &W) -> Option<(Shared<Trip<W>>, usize)> {
        let mut lines = held(&self.lines);
        let last = lines
            .last
            .get(key)
            .and_then(|line| Some((line.trip.upgrade()?, Arc::clone(&line.group), Arc::clone(&line.places))));
        let joined = match &last {
            None => Some((self.begin(&mut lines, store, key, wish, None), 0)),
            Some((trip, group, places)) => {
                let mut group = held(group);
                // Held here and in the line beside those who wait.
                let has_place = Arc::strong_count(places) < GROUPS_MAX.saturating_add(2);
                if group.place.is_none() {
                    Some((self.begin(&mut lines, store, key, wish, Some((trip, places))), 0))
                } else if !wish.goes_with(&group.members) {
                    None
                } else if wish.has_room_with(&group.members) {
                    group.members.push(wish.clone());
                    Some((trip.clone(), group.members.len().saturating_sub(1)))
                } else if has_place {
                    Some((self.begin(&mut lines, store, key, wish, Some((trip, places))), 0))
                } else {
                    None
                }
            }
        };
        // In this order: if nobody else waits any more, a trip ends here, and its end looks at the lines.
        drop(lines);
        drop(last);
        joined
    }

    fn begin<S: Store + Clone + 'static>(
        &self,
        lines: &mut Lines<W>,
        store: &S,
        key: &str,
        wish: &W,
        before: Option<(&Shared<Trip<W>>, &Arc<()>)>,
    ) -> Shared<Trip<W>> {
        lines.groups = lines.groups.wrapping_add(1);
        let number = lines.groups;
        let (before, places) = before.map_or_else(Default::default, |(trip, it)| (Some(trip.clone()), Arc::clone(it)));
        let group = Group { members: vec![wish.clone()], place: Some(Arc::clone(&places)) };
        let group = Arc::new(Mutex::new(group));
        let end = End { lines: Arc::clone(&self.lines), key: key.to_owned(), number };
        let trip: Trip<W> = Box::pin(travel(store.clone(), before, Arc::clone(&group), end));
        let trip = trip.shared();
        if let Some(weak) = trip.downgrade() {
            lines.last.insert(key.to_owned(), Line { number, places, group, trip: weak });
        }
        trip
    }
}

/// Waits for the group before, and asks for what this one wants.
async fn travel<W: Wish, S: Store>(
    store: S,
    before: Option<Shared<Trip<W>>>,
    group: Arc<Mutex<Group<W>>>,
    end: End<W>,
) -> Outcomes<W> {
    if let Some(before) = before {
        before.await;
    }
    let members = {
        let mut group = held(&group);
        group.place = None;
        std::mem::take(&mut group.members)
    };
    let outcomes = W::ask(&store, &end.key, members).await;
    drop(end);
    Arc::new(outcomes)
}

/// The end of a trip, whether it was made or nobody waited for it any more: nobody joins its group after it.
struct End<W: Wish> {
    lines: Arc<Mutex<Lines<W>>>,
    key: String,
    number: u64,
}

impl<W: Wish> Drop for End<W> {
    fn drop(&mut self) {
        let mut lines = held(&self.lines);
        if lines.last.get(&self.key).is_some_and(|line| line.number == self.number) {
            lines.last.remove(&self.key);
        }
    }
}

impl<S: Store + Clone + 'static> Store for Gathered<S> {
    async fn change_if(&self, key: &str, when: Predicate, then: Vec<Change>) -> Result<bool, Error> {
        let change = Conditional { when, then };
        match self.changes.ask(&self.store, key, &change).await {
            Some(outcome) => outcome,
            None => self.store.change_if(key, change.when, change.then).await,
        }
    }

    async fn read_recent(&self, name: &NodeName) -> Result<Recent, Error> {
        self.store.read_recent(name).await
    }

    async fn read_with(
        &self,
        keys: &[String],
        children: &Children,
        servers: &Servers,
    ) -> Result<Vec<Option<Row>>, Error> {
        self.store.read_with(keys, children, servers).await
    }

    async fn keys(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>, Error> {
        self.store.keys(after, limit).await
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        match self.additions.ask(&self.store, counter, &Addition(by)).await {
            Some(outcome) => outcome,
            None => self.store.add(counter, by).await,
        }
    }

    async fn counter(&self, counter: &str) -> Result<Option<i64>, Error> {
        self.store.counter(counter).await
    }

    async fn set_counter(&self, counter: &str, to: Option<i64>) -> Result<(), Error> {
        self.store.set_counter(counter, to).await
    }

    async fn counters(&self, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>, Error> {
        self.store.counters(after, limit).await
    }
}

impl<S: Surroundings> Surroundings for Gathered<S> {
    fn now(&self) -> Micros {
        self.store.now()
    }

    fn fresh(&self) -> u64 {
        self.store.fresh()
    }

    async fn pause(&self, tries: u32) {
        self.store.pause(tries).await;
    }

    async fn sleep(&self, duration: std::time::Duration) {
        self.store.sleep(duration).await;
    }
}

#[cfg(test)]
mod tests;

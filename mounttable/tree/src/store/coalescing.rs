//! A store that combines concurrent changes of one row, or of one counter, into one request.
//!
//! A storage applies conditional changes of one row one after the other, each taking a few milliseconds, because each
//! condition depends on the state that the last change left; additions to a counter likewise. A directory in which many
//! callers create children at once, and the quota counter of their user, would be limited by that. So changes that
//! arrive while another one is in flight wait in a batch, and the batch is sent as one request. Its condition is the
//! conjunction of all conditions. That is equivalent to applying the changes in turn, because a change is not admitted
//! to a batch that writes a column which its condition reads. When the condition does not hold, each change is sent by
//! itself. Additions to a counter are summed up, and each caller gets the value after its own addition.
//!
//! When a batch is full, the next one queues behind it. A change that conflicts with a batch is sent directly. The
//! callers of a batch poll it, whichever of them are left, and the callers of the next batch poll it too. So a caller
//! that is not polled, such as one behind a slow reader, blocks no other.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{Shared, WeakShared};
use parking_lot::Mutex;

use crate::delegate;
use crate::error::Error;
use crate::store::{Change, Condition, Environment, Store};

/// Changes in one batch.
const MEMBERS_MAX: usize = 32;
/// Batches that wait in a row: each is polled by the next one.
const BATCHES_MAX: usize = 16;
/// The approximate weight of the conditions of one batch: a Bigtable accepts filters of 20 KiB.
const WEIGHT_MAX: usize = 8 << 10;
/// The weight of a condition on one column, besides its name and value.
const WEIGHT_EACH: usize = 96;

/// A store that combines concurrent changes. Clones share the queues.
#[derive(Clone, Debug)]
pub struct CoalescingStore<S> {
    store: S,
    changes: BatchQueue<ConditionalChange>,
    increments: BatchQueue<Increment>,
}

impl<S> CoalescingStore<S> {
    /// `store` with empty queues.
    pub fn new(store: S) -> Self {
        Self { store, changes: BatchQueue::default(), increments: BatchQueue::default() }
    }
}

/// An operation that can be combined with others of its kind.
trait Batchable: Clone + Send + Sync + 'static {
    /// The outcome of one operation.
    type Outcome: Clone + Send + Sync;

    /// Whether the operation may join a batch with these others, after them.
    fn is_compatible_with(&self, others: &[Self]) -> bool;

    /// Whether one request has room for all of them.
    fn fits_with(&self, others: &[Self]) -> bool;

    /// Executes all of them; returns an outcome for each.
    fn execute<S: Store>(
        store: &S,
        key: &str,
        members: Vec<Self>,
    ) -> impl Future<Output = Vec<Result<Self::Outcome, Error>>> + Send;
}

/// A conditional change of a row.
#[derive(Clone, Debug)]
struct ConditionalChange {
    when: Condition,
    then: Vec<Change>,
}

impl Batchable for ConditionalChange {
    type Outcome = bool;

    fn is_compatible_with(&self, others: &[Self]) -> bool {
        !others.iter().flat_map(|one| &one.then).any(|change| depends_on(&self.when, change))
    }

    fn fits_with(&self, others: &[Self]) -> bool {
        let all = others.iter().chain([self]).map(|one| weight(&one.when)).fold(0, usize::saturating_add);
        others.len() < MEMBERS_MAX && all <= WEIGHT_MAX
    }

    async fn execute<S: Store>(store: &S, key: &str, members: Vec<Self>) -> Vec<Result<bool, Error>> {
        if members.len() > 1 {
            let when = Condition::All(members.iter().map(|one| one.when.clone()).collect());
            let then = members.iter().flat_map(|one| one.then.iter().cloned()).collect();
            match store.change_if(key, when, then).await {
                Ok(false) => {}
                outcome => return vec![outcome; members.len()],
            }
        }
        let mut outcomes = Vec::with_capacity(members.len());
        for Self { when, then } in members {
            outcomes.push(store.change_if(key, when, then).await);
        }
        outcomes
    }
}

/// Whether the condition reads a column that the change writes.
fn depends_on(when: &Condition, change: &Change) -> bool {
    match when {
        Condition::RowAbsent => true,
        Condition::Has(family, column)
        | Condition::HasNot(family, column)
        | Condition::Is(family, column, _)
        | Condition::Begins(family, column, _) => match change {
            Change::Set(of, written, _) | Change::DeleteColumn(of, written) => (of, written) == (family, column),
            Change::DeleteFamily(of) => of == family,
            Change::DeleteRow => true,
        },
        Condition::All(parts) => parts.iter().any(|part| depends_on(part, change)),
    }
}

fn weight(when: &Condition) -> usize {
    let strings = match when {
        Condition::RowAbsent => 0,
        Condition::Has(_, column) | Condition::HasNot(_, column) => column.len(),
        Condition::Is(_, column, value) | Condition::Begins(_, column, value) => {
            column.len().saturating_add(value.len())
        }
        Condition::All(parts) => return parts.iter().map(weight).fold(0, usize::saturating_add),
    };
    // A column range names its column twice.
    strings.saturating_mul(2).saturating_add(WEIGHT_EACH)
}

/// An addition to a counter.
#[derive(Clone, Copy, Debug)]
struct Increment(i64);

impl Batchable for Increment {
    type Outcome = i64;

    fn is_compatible_with(&self, _others: &[Self]) -> bool {
        true
    }

    fn fits_with(&self, _others: &[Self]) -> bool {
        true
    }

    async fn execute<S: Store>(store: &S, counter: &str, members: Vec<Self>) -> Vec<Result<i64, Error>> {
        let sum = members.iter().fold(0, |sum: i64, one| sum.wrapping_add(one.0));
        let last = store.add(counter, sum).await;
        let mut so_far = 0_i64;
        let after = |Self(by): Self| {
            so_far = so_far.wrapping_add(by);
            last.clone().map(|last| last.wrapping_sub(sum).wrapping_add(so_far))
        };
        members.into_iter().map(after).collect()
    }
}

/// Batches by row or counter.
#[derive(Debug)]
struct BatchQueue<W: Batchable> {
    tails: Arc<Mutex<BatchTails<W>>>,
}

impl<W: Batchable> Clone for BatchQueue<W> {
    fn clone(&self) -> Self {
        Self { tails: Arc::clone(&self.tails) }
    }
}

impl<W: Batchable> Default for BatchQueue<W> {
    fn default() -> Self {
        Self { tails: Arc::new(Mutex::new(BatchTails { last: BTreeMap::new(), started: 0 })) }
    }
}

#[derive(Debug)]
struct BatchTails<W: Batchable> {
    last: BTreeMap<String, BatchTail<W>>,
    started: u64,
}

/// The last batch of a row.
#[derive(Debug)]
struct BatchTail<W: Batchable> {
    number: u64,
    /// One clone is held by each waiting batch of the row, one here.
    slots: Arc<()>,
    batch: Arc<Mutex<Batch<W>>>,
    /// The execution of the batch; gone when all callers have gone.
    future: WeakShared<BatchFuture<W>>,
}

/// Operations that are executed together.
#[derive(Debug)]
struct Batch<W> {
    members: Vec<W>,
    /// Its slot among the waiting batches; released when it is sent.
    slot: Option<Arc<()>>,
}

/// The outcome of each operation.
type BatchOutcome<W> = Arc<Vec<Result<<W as Batchable>::Outcome, Error>>>;
type BatchFuture<W> = Pin<Box<dyn Future<Output = BatchOutcome<W>> + Send>>;

impl<W: Batchable> BatchQueue<W> {
    /// The outcome of an operation; `None` when it cannot join a batch, and was not executed.
    async fn submit<S: Store + Clone + 'static>(
        &self,
        store: &S,
        key: &str,
        operation: &W,
    ) -> Option<Result<W::Outcome, Error>> {
        let (future, slot) = self.join(store, key, operation)?;
        future.await.get(slot).cloned()
    }

    /// Joins the waiting batch of the row, or starts one; returns its execution and the position of the operation in
    /// it.
    fn join<S: Store + Clone + 'static>(
        &self,
        store: &S,
        key: &str,
        operation: &W,
    ) -> Option<(Shared<BatchFuture<W>>, usize)> {
        let mut tails = self.tails.lock();
        let last = tails
            .last
            .get(key)
            .and_then(|tail| Some((tail.future.upgrade()?, Arc::clone(&tail.batch), Arc::clone(&tail.slots))));
        let joined = match &last {
            None => Some((self.start_batch(&mut tails, store, key, operation, None), 0)),
            Some((future, batch, slots)) => {
                let mut batch = batch.lock();
                // The caller and the queue hold one clone each besides the waiting batches.
                let has_slot = Arc::strong_count(slots) < BATCHES_MAX.saturating_add(2);
                if batch.slot.is_none() {
                    Some((self.start_batch(&mut tails, store, key, operation, Some((future, slots))), 0))
                } else if !operation.is_compatible_with(&batch.members) {
                    None
                } else if operation.fits_with(&batch.members) {
                    batch.members.push(operation.clone());
                    Some((future.clone(), batch.members.len().saturating_sub(1)))
                } else if has_slot {
                    Some((self.start_batch(&mut tails, store, key, operation, Some((future, slots))), 0))
                } else {
                    None
                }
            }
        };
        // In this order: if no other caller is left, dropping `last` drops a batch, and that locks the tails.
        drop(tails);
        drop(last);
        joined
    }

    fn start_batch<S: Store + Clone + 'static>(
        &self,
        tails: &mut BatchTails<W>,
        store: &S,
        key: &str,
        operation: &W,
        before: Option<(&Shared<BatchFuture<W>>, &Arc<()>)>,
    ) -> Shared<BatchFuture<W>> {
        tails.started = tails.started.wrapping_add(1);
        let number = tails.started;
        let (before, slots) =
            before.map_or_else(Default::default, |(future, it)| (Some(future.clone()), Arc::clone(it)));
        let batch = Batch { members: vec![operation.clone()], slot: Some(Arc::clone(&slots)) };
        let batch = Arc::new(Mutex::new(batch));
        let remove_tail = RemoveTailOnDrop { tails: Arc::clone(&self.tails), key: key.to_owned(), number };
        let future: BatchFuture<W> = Box::pin(execute_batch(store.clone(), before, Arc::clone(&batch), remove_tail));
        let future = future.shared();
        if let Some(weak) = future.downgrade() {
            tails.last.insert(key.to_owned(), BatchTail { number, slots, batch, future: weak });
        }
        future
    }
}

/// Waits for the batch before, and executes this one.
async fn execute_batch<W: Batchable, S: Store>(
    store: S,
    before: Option<Shared<BatchFuture<W>>>,
    batch: Arc<Mutex<Batch<W>>>,
    remove_tail: RemoveTailOnDrop<W>,
) -> BatchOutcome<W> {
    if let Some(before) = before {
        before.await;
    }
    let members = {
        let mut batch = batch.lock();
        batch.slot = None;
        std::mem::take(&mut batch.members)
    };
    let outcomes = W::execute(&store, &remove_tail.key, members).await;
    drop(remove_tail);
    Arc::new(outcomes)
}

/// Removes the batch from the queue when it is done or abandoned, so that no operation joins it afterwards.
struct RemoveTailOnDrop<W: Batchable> {
    tails: Arc<Mutex<BatchTails<W>>>,
    key: String,
    number: u64,
}

impl<W: Batchable> Drop for RemoveTailOnDrop<W> {
    fn drop(&mut self) {
        let mut tails = self.tails.lock();
        if tails.last.get(&self.key).is_some_and(|tail| tail.number == self.number) {
            tails.last.remove(&self.key);
        }
    }
}

impl<S: Store + Clone + 'static> Store for CoalescingStore<S> {
    async fn change_if(&self, key: &str, when: Condition, then: Vec<Change>) -> Result<bool, Error> {
        let change = ConditionalChange { when, then };
        match self.changes.submit(&self.store, key, &change).await {
            Some(outcome) => outcome,
            None => self.store.change_if(key, change.when, change.then).await,
        }
    }

    async fn add(&self, counter: &str, by: i64) -> Result<i64, Error> {
        match self.increments.submit(&self.store, counter, &Increment(by)).await {
            Some(outcome) => outcome,
            None => self.store.add(counter, by).await,
        }
    }

    delegate!(store: read_recent, read_with, keys, counter, set_counter, counters);
}

impl<S: Environment> Environment for CoalescingStore<S> {
    delegate!(store: now, unique_u64, back_off, sleep);
}

#[cfg(test)]
mod tests;

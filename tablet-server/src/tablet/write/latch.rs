//! Row latches: short-term mutual exclusion of writers of one row.
//!
//! CheckAndMutate and ReadModifyWrite read a row, evaluate, and propose the result; between the read and the apply, no
//! other write of that row may happen. They hold the row's latch *exclusively*; blind writes, which read nothing, *share* it.
//! Writes of the first kind also *share* the latch of their table, under the key of no row; a drop of rows and a change of the schema hold that one *exclusively*.
//! A guard is an owned value: it travels with the queued write and is dropped when that write is applied or surely
//! will not be, also when the RPC was cancelled meanwhile.
//!
//! Waiters of a row are served in arrival order, so neither kind starves. A task that waits for the latch of a table holds no other one, but
//! those of writes that it has queued, which wait for nothing. One that waits for the latch of a row shares at most that of the table, and a
//! drop of rows waits for nothing else. So there is no deadlock. Latches exist on the leader only and say nothing about
//! other replicas: proposals are bound to the leader's term.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use ebla_model::key::RowKey;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// How a latch is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchMode {
    /// Together with other shared holders: a blind write.
    Shared,
    /// Alone: a write that depends on the row's content.
    Exclusive,
}

/// The number of hash maps that rows are spread over, to reduce lock contention.
const SHARDS: usize = 16;

/// All row latches of one group, by stored row. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Latches {
    shared: Arc<LatchTable>,
}

#[derive(Debug)]
struct LatchTable {
    hasher: RandomState,
    /// Guards the holders and waiters of the rows that hash to it. Locked for a few instructions, never across an await.
    shards: [Mutex<HashMap<RowKey, LatchState>>; SHARDS],
}

#[derive(Debug, Default)]
struct LatchState {
    sharers: usize,
    exclusive: bool,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    mode: LatchMode,
    // The guard itself is sent: when the receiver is gone, or is dropped before it receives, the guard's drop releases the row.
    granted: oneshot::Sender<LatchGuard>,
}

/// A held latch. Dropping it releases the row.
#[derive(Debug)]
pub struct LatchGuard {
    // `None` only in a guard that could not be sent, which must not release twice.
    held: Option<(Latches, RowKey)>,
    mode: LatchMode,
}

impl LatchState {
    fn admits(&self, mode: LatchMode) -> bool {
        match mode {
            LatchMode::Shared => !self.exclusive,
            LatchMode::Exclusive => !self.exclusive && self.sharers == 0,
        }
    }

    fn hold(&mut self, mode: LatchMode) {
        match mode {
            LatchMode::Shared => self.sharers += 1,
            LatchMode::Exclusive => self.exclusive = true,
        }
    }

    fn release(&mut self, mode: LatchMode) {
        match mode {
            LatchMode::Shared => self.sharers -= 1,
            LatchMode::Exclusive => self.exclusive = false,
        }
    }

    fn is_idle(&self) -> bool {
        !self.exclusive && self.sharers == 0 && self.waiters.is_empty()
    }
}

impl Default for Latches {
    fn default() -> Self {
        Self::new()
    }
}

impl Latches {
    /// No row is held.
    #[must_use]
    pub fn new() -> Self {
        let shards = std::array::from_fn(|_| Mutex::new(HashMap::new()));
        Self { shared: Arc::new(LatchTable { hasher: RandomState::new(), shards }) }
    }

    /// Acquires the latch if it is available at once.
    #[must_use]
    pub fn try_acquire(&self, row: &RowKey, mode: LatchMode) -> Option<LatchGuard> {
        let mut shard = self.shard(row);
        let entry = shard.entry(row.clone()).or_default();
        (entry.waiters.is_empty() && entry.admits(mode)).then(|| {
            entry.hold(mode);
            self.guard(row, mode)
        })
    }

    /// Waits for the latch. Cancel-safe: a dropped waiter loses its position and holds nothing.
    pub async fn acquire(&self, row: &RowKey, mode: LatchMode) -> LatchGuard {
        loop {
            let waiting = match self.acquire_or_queue(row, mode) {
                Ok(guard) => return guard,
                Err(waiting) => waiting,
            };
            // The sender is in the table until it is used; if it were lost, queueing again would be right.
            if let Ok(guard) = waiting.await {
                return guard;
            }
        }
    }

    /// The number of rows with a holder or a waiter.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shared.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn acquire_or_queue(&self, row: &RowKey, mode: LatchMode) -> Result<LatchGuard, oneshot::Receiver<LatchGuard>> {
        let mut shard = self.shard(row);
        let entry = shard.entry(row.clone()).or_default();
        if entry.waiters.is_empty() && entry.admits(mode) {
            entry.hold(mode);
            return Ok(self.guard(row, mode));
        }
        let (granted, waiting) = oneshot::channel();
        entry.waiters.push_back(Waiter { mode, granted });
        Err(waiting)
    }

    /// Releases one hold and grants the latch to the longest waiters. Guards whose waiters are gone are
    /// released in turn, outside the shard's lock.
    fn release(&self, row: &RowKey, mode: LatchMode) {
        let mut shard = self.shard(row);
        let Some(entry) = shard.get_mut(row) else { return };
        entry.release(mode);
        while let Some(waiter) = entry.waiters.pop_front() {
            if waiter.granted.is_closed() {
                continue;
            }
            if !entry.admits(waiter.mode) {
                entry.waiters.push_front(waiter);
                break;
            }
            entry.hold(waiter.mode);
            if let Err(mut unwanted) = waiter.granted.send(self.guard(row, waiter.mode)) {
                entry.release(unwanted.mode);
                unwanted.held = None;
            }
        }
        if entry.is_idle() {
            shard.remove(row);
        }
    }

    fn guard(&self, row: &RowKey, mode: LatchMode) -> LatchGuard {
        LatchGuard { held: Some((self.clone(), row.clone())), mode }
    }

    fn shard(&self, row: &RowKey) -> MutexGuard<'_, HashMap<RowKey, LatchState>> {
        let hash = self.shared.hasher.hash_one(row);
        let at = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        self.shared.shards.get(at).unwrap_or(&self.shared.shards[0]).lock()
    }
}

impl Drop for LatchGuard {
    fn drop(&mut self) {
        if let Some((latches, row)) = self.held.take() {
            latches.release(&row, self.mode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn row(name: &'static str) -> RowKey {
        RowKey::new(name)
    }

    #[test]
    fn shared_holders_exclude_an_exclusive_one() {
        let latches = Latches::new();
        let first = latches.try_acquire(&row("a"), LatchMode::Shared).unwrap();
        let second = latches.try_acquire(&row("a"), LatchMode::Shared).unwrap();
        assert!(latches.try_acquire(&row("a"), LatchMode::Exclusive).is_none());
        assert!(latches.try_acquire(&row("b"), LatchMode::Exclusive).is_some());
        drop((first, second));
        assert!(latches.try_acquire(&row("a"), LatchMode::Exclusive).is_some());
        assert_eq!(latches.rows(), 0);
    }

    #[test]
    fn waiters_are_served_in_arrival_order() {
        let latches = Latches::new();
        let holder = latches.try_acquire(&row("a"), LatchMode::Shared).unwrap();
        let key = row("a");
        let mut writer = Box::pin(latches.acquire(&key, LatchMode::Exclusive));
        assert!(writer.as_mut().now_or_never().is_none());
        let mut reader = Box::pin(latches.acquire(&key, LatchMode::Shared));
        assert!(reader.as_mut().now_or_never().is_none(), "a later sharer does not pass the exclusive waiter");
        drop(holder);
        let held = writer.now_or_never().unwrap();
        assert!(reader.as_mut().now_or_never().is_none());
        drop(held);
        assert!(reader.now_or_never().is_some());
        assert_eq!(latches.rows(), 0);
    }

    #[test]
    fn a_cancelled_waiter_neither_holds_nor_blocks() {
        let latches = Latches::new();
        let holder = latches.try_acquire(&row("a"), LatchMode::Exclusive).unwrap();
        let key = row("a");
        let mut gone = Box::pin(latches.acquire(&key, LatchMode::Exclusive));
        assert!(gone.as_mut().now_or_never().is_none());
        let mut next = Box::pin(latches.acquire(&key, LatchMode::Exclusive));
        assert!(next.as_mut().now_or_never().is_none());
        drop(gone);
        drop(holder);
        assert!(next.now_or_never().is_some());
        assert_eq!(latches.rows(), 0);
    }

    #[test]
    fn a_grant_whose_waiter_is_gone_is_released() {
        let latches = Latches::new();
        let holder = latches.try_acquire(&row("a"), LatchMode::Exclusive).unwrap();
        let key = row("a");
        let mut waiter = Box::pin(latches.acquire(&key, LatchMode::Exclusive));
        assert!(waiter.as_mut().now_or_never().is_none());
        drop(holder); // granted, in the channel
        drop(waiter); // cancelled before it looked
        assert!(latches.try_acquire(&row("a"), LatchMode::Exclusive).is_some());
    }
}

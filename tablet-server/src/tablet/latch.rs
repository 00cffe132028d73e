//! Row latches: who may decide about a row now.
//!
//! CheckAndMutate and ReadModifyWrite read a row, decide, and propose the outcome; between reading and applying, no
//! other write of that row may slip in. They hold the row *exclusively*; blind writes, which decide nothing, *share* it.
//! A guard is an owned value: it travels with the queued write and is dropped when that write was applied or surely
//! will not be, also when the RPC that wanted it was cancelled meanwhile.
//!
//! Waiters of a row are served in the order in which they came, so neither kind starves. A task holds at most one
//! latch while it waits for another place in the queue, never two, so there is no cycle. The latches live with the
//! leader only and say nothing about other replicas: what is proposed is bound to the leader's term.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ebla_model::key::RowKey;
use tokio::sync::oneshot;

/// How a row is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With other holders that share it: a write that read nothing.
    Shared,
    /// Alone: a write that was decided by what the row held.
    Exclusive,
}

/// Rows fall into this many maps, so that fronts on several cores seldom meet.
const SHARDS: usize = 16;

/// All row latches of one tablet. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Latches {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hasher: RandomState,
    /// Guards the holders and waiters of the rows that hash to it. Held for a few instructions, never over an await.
    shards: [Mutex<HashMap<RowKey, Row>>; SHARDS],
}

#[derive(Debug, Default)]
struct Row {
    sharers: usize,
    exclusive: bool,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    mode: Mode,
    // The guard itself is sent: when the receiver is gone, or goes before it looks, dropping it releases the row.
    granted: oneshot::Sender<Guard>,
}

/// A held row. Dropping it releases the row.
#[derive(Debug)]
pub struct Guard {
    // `None` only in the husk of a guard whose hand-over failed, which must not release twice.
    held: Option<(Latches, RowKey)>,
    mode: Mode,
}

impl Row {
    fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Shared => !self.exclusive,
            Mode::Exclusive => !self.exclusive && self.sharers == 0,
        }
    }

    fn hold(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.sharers += 1,
            Mode::Exclusive => self.exclusive = true,
        }
    }

    fn release(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.sharers -= 1,
            Mode::Exclusive => self.exclusive = false,
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
        Self { shared: Arc::new(Shared { hasher: RandomState::new(), shards }) }
    }

    /// Takes the row when nobody is in the way, else `None`.
    #[must_use]
    pub fn try_acquire(&self, row: &RowKey, mode: Mode) -> Option<Guard> {
        let mut shard = self.shard(row);
        let entry = shard.entry(row.clone()).or_default();
        (entry.waiters.is_empty() && entry.admits(mode)).then(|| {
            entry.hold(mode);
            self.guard(row, mode)
        })
    }

    /// Waits for the row. Cancel-safe: a waiter that is dropped loses its place and holds nothing.
    pub async fn acquire(&self, row: &RowKey, mode: Mode) -> Guard {
        loop {
            let waiting = match self.enter(row, mode) {
                Ok(guard) => return guard,
                Err(waiting) => waiting,
            };
            // The sender lives in the table until it is used; should it vanish, queueing again is right.
            if let Ok(guard) = waiting.await {
                return guard;
            }
        }
    }

    /// Rows that somebody holds or waits for.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shared.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    fn enter(&self, row: &RowKey, mode: Mode) -> Result<Guard, oneshot::Receiver<Guard>> {
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

    /// Gives up one hold and passes the row to those who waited longest. Guards that nobody took any more are
    /// released in turn, outside the shard's lock.
    fn release(&self, row: &RowKey, mode: Mode) {
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

    fn guard(&self, row: &RowKey, mode: Mode) -> Guard {
        Guard { held: Some((self.clone(), row.clone())), mode }
    }

    fn shard(&self, row: &RowKey) -> MutexGuard<'_, HashMap<RowKey, Row>> {
        let hash = self.shared.hasher.hash_one(row);
        let at = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        lock(self.shared.shards.get(at).unwrap_or(&self.shared.shards[0]))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((latches, row)) = self.held.take() {
            latches.release(&row, self.mode);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in the sections can leave a table half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn row(name: &'static str) -> RowKey {
        RowKey::new(name)
    }

    #[test]
    fn sharers_hold_together_and_keep_an_exclusive_out() {
        let latches = Latches::new();
        let first = latches.try_acquire(&row("a"), Mode::Shared).unwrap();
        let second = latches.try_acquire(&row("a"), Mode::Shared).unwrap();
        assert!(latches.try_acquire(&row("a"), Mode::Exclusive).is_none());
        assert!(latches.try_acquire(&row("b"), Mode::Exclusive).is_some());
        drop((first, second));
        assert!(latches.try_acquire(&row("a"), Mode::Exclusive).is_some());
        assert_eq!(latches.rows(), 0);
    }

    #[test]
    fn waiters_are_served_in_their_order() {
        let latches = Latches::new();
        let holder = latches.try_acquire(&row("a"), Mode::Shared).unwrap();
        let key = row("a");
        let mut writer = Box::pin(latches.acquire(&key, Mode::Exclusive));
        assert!(writer.as_mut().now_or_never().is_none());
        let mut reader = Box::pin(latches.acquire(&key, Mode::Shared));
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
        let holder = latches.try_acquire(&row("a"), Mode::Exclusive).unwrap();
        let key = row("a");
        let mut gone = Box::pin(latches.acquire(&key, Mode::Exclusive));
        assert!(gone.as_mut().now_or_never().is_none());
        let mut next = Box::pin(latches.acquire(&key, Mode::Exclusive));
        assert!(next.as_mut().now_or_never().is_none());
        drop(gone);
        drop(holder);
        assert!(next.now_or_never().is_some());
        assert_eq!(latches.rows(), 0);
    }

    #[test]
    fn a_grant_that_nobody_picks_up_is_released() {
        let latches = Latches::new();
        let holder = latches.try_acquire(&row("a"), Mode::Exclusive).unwrap();
        let key = row("a");
        let mut waiter = Box::pin(latches.acquire(&key, Mode::Exclusive));
        assert!(waiter.as_mut().now_or_never().is_none());
        drop(holder); // granted, in the channel
        drop(waiter); // cancelled before it looked
        assert!(latches.try_acquire(&row("a"), Mode::Exclusive).is_some());
    }
}

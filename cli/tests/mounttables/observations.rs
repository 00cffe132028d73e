//! What all users of the load have seen together.

use std::sync::atomic::{AtomicU64, Ordering};

use ebla_mounttable_tree::{Error, Reason};
use parking_lot::Mutex;

use crate::mounttables::expectations::CallOutcome;

/// Maximum number of recorded violations; the first ones suffice.
const WRONG_MAX: usize = 20;

/// Counts, and what must not have records.
#[derive(Default, Debug)]
pub(crate) struct Observations {
    acknowledged: AtomicU64,
    unknown: AtomicU64,
    stale: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Observations {
    /// Records the outcome of a call. Errors that an unhealthy cluster does not return are violations.
    pub(crate) fn ended<T>(&self, what: &str, outcome: &Result<T, Error>) -> CallOutcome {
        match outcome {
            Ok(_) => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
                return CallOutcome::Acknowledged;
            }
            Err(error) if is_trouble(error) => {}
            Err(error) => self.add_violation(format!("{what} was refused: {} ({})", error.message, error.reason)),
        }
        self.unknown.fetch_add(1, Ordering::Relaxed);
        CallOutcome::Unknown
    }

    /// Counts a response that was marked stale.
    pub(crate) fn was_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_violation(&self, what: String) {
        let mut wrong = self.wrong.lock();
        if wrong.len() < WRONG_MAX {
            wrong.push(what);
        }
    }

    /// Changes that were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Changes of unknown outcome so far.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Number of responses marked stale.
    pub(crate) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().clone()
    }
}

/// Whether an unhealthy cluster may return this error.
pub(crate) fn is_trouble(error: &Error) -> bool {
    matches!(error.reason, Reason::Unavailable | Reason::Cancelled)
}

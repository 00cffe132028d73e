//! What all users of the load have seen together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ebla_mounttable::{Error, Reason};

use crate::mounttables::promises::Ended;

/// Complaints that are kept: the first say enough.
const WRONG_MAX: usize = 20;

/// Counts, and what must not have happened.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    acknowledged: AtomicU64,
    unknown: AtomicU64,
    stale: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Tally {
    /// How a call has ended. Whatever is no trouble is wrong: the requests are all right.
    pub(crate) fn ended<T>(&self, what: &str, outcome: &Result<T, Error>) -> Ended {
        match outcome {
            Ok(_) => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
                return Ended::Acknowledged;
            }
            Err(error) if is_trouble(error) => {}
            Err(error) => self.complain(format!("{what} was refused: {} ({})", error.message, error.reason)),
        }
        self.unknown.fetch_add(1, Ordering::Relaxed);
        Ended::Unknown
    }

    /// An answer said that it may be minutes old.
    pub(crate) fn was_stale(&self) {
        self.stale.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn complain(&self, what: String) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Answers so far that said that they may be minutes old.
    pub(crate) fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a cluster in trouble may answer.
pub(crate) fn is_trouble(error: &Error) -> bool {
    matches!(error.reason, Reason::Unavailable | Reason::Cancelled)
}

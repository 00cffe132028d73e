//! Reservations of a bounded resource. Each caller passes its own limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts how much of a resource is reserved. Cheap to clone; clones share the count.
#[derive(Clone, Debug, Default)]
pub struct ResourceCounter {
    in_use: Arc<AtomicUsize>,
}

/// A reserved amount, released on drop.
#[derive(Debug)]
pub struct Reservation {
    counter: ResourceCounter,
    amount: usize,
}

impl ResourceCounter {
    /// The amount that is reserved now.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }

    /// A number that all clones of this counter have, and no other counter that exists at the same time.
    #[must_use]
    pub fn identity(&self) -> usize {
        Arc::as_ptr(&self.in_use).addr()
    }

    /// Reserves `amount` if the total then is at most `max`; never waits.
    #[must_use]
    pub fn try_reserve(&self, amount: usize, max: usize) -> Option<Reservation> {
        let more = |in_use: usize| in_use.checked_add(amount).filter(|sum| *sum <= max);
        // The count guards no other memory, so relaxed ordering is enough.
        self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Reservation { counter: self.clone(), amount })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.counter.in_use.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_reservation_is_released() {
        let counter = ResourceCounter::default();
        let six = counter.try_reserve(6, 10).unwrap();
        assert!(counter.try_reserve(5, 10).is_none());
        let four = counter.try_reserve(4, 10).unwrap();
        assert_eq!(counter.clone().in_use(), 10);
        assert_eq!(counter.clone().identity(), counter.identity());
        assert_ne!(ResourceCounter::default().identity(), counter.identity());
        drop(six);
        assert!(counter.try_reserve(5, 8).is_none(), "each caller has its own limit");
        drop(four);
        assert_eq!(counter.in_use(), 0);
        assert!(counter.try_reserve(usize::MAX, usize::MAX).is_some());
    }
}

//! Counts what is held of something, up to a bound that whoever takes names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So much is held of something. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    held: Arc<AtomicUsize>,
}

/// A part that is held until this is dropped.
#[derive(Debug)]
pub struct Held {
    meter: Meter,
    amount: usize,
}

impl Meter {
    /// How much is held now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Takes `amount` if no more than `max` is held then; never waits.
    #[must_use]
    pub fn take(&self, amount: usize, max: usize) -> Option<Held> {
        let more = |held: usize| held.checked_add(amount).filter(|sum| *sum <= max);
        // Nothing but the number itself is read by others, so its order among other memory does not matter.
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Held { meter: self.clone(), amount })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.meter.held.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_comes_back() {
        let meter = Meter::default();
        let six = meter.take(6, 10).unwrap();
        assert!(meter.take(5, 10).is_none());
        let four = meter.take(4, 10).unwrap();
        assert_eq!(meter.clone().held(), 10);
        drop(six);
        assert!(meter.take(5, 8).is_none(), "each taker has its own bound");
        drop(four);
        assert_eq!(meter.held(), 0);
        assert!(meter.take(usize::MAX, usize::MAX).is_some());
    }
}

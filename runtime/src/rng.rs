//! Random numbers: from the system in production, from a seed in tests and simulation.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng};

/// A shared generator; clones use the same stream.
#[derive(Clone, Debug)]
pub struct Rng {
    /// Locked for one draw.
    state: Arc<Mutex<StdRng>>,
}

impl Rng {
    /// Seeded by the system.
    #[must_use]
    pub fn from_entropy() -> Self {
        Self::of(rand::make_rng())
    }

    /// The same numbers for the same seed, on every machine.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::of(StdRng::seed_from_u64(seed))
    }

    fn of(state: StdRng) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// 64 random bits.
    #[must_use]
    pub fn u64(&self) -> u64 {
        self.state.lock().next_u64()
    }

    /// 128 random bits: enough for unique ids.
    #[must_use]
    pub fn u128(&self) -> u128 {
        (u128::from(self.u64()) << 64) | u128::from(self.u64())
    }

    /// A number in `[0, bound)`; 0 when `bound` is 0.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        let product = u128::from(self.u64()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// `around` times a random factor in `[0.5, 1.5)`, so that many waiters do not wake up at once.
    #[must_use]
    pub fn jitter(&self, around: Duration) -> Duration {
        let span = u64::try_from(around.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos((span / 2).saturating_add(self.below(span)))
    }

    /// A separate generator, seeded from this one: its numbers do not depend on other users.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::seeded(self.u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers() {
        let (a, b) = (Rng::seeded(7), Rng::seeded(7));
        assert_eq!((a.u64(), a.u128()), (b.u64(), b.u128()));
        assert_ne!(Rng::seeded(8).u64(), Rng::seeded(7).u64());
        assert_ne!(Rng::from_entropy().u128(), Rng::from_entropy().u128());
    }

    #[test]
    fn below_and_jitter_stay_in_their_bounds() {
        let rng = Rng::seeded(1);
        for _ in 0..1_000 {
            assert!(rng.below(3) < 3);
            let waited = rng.jitter(Duration::from_millis(100));
            assert!((Duration::from_millis(50)..Duration::from_millis(150)).contains(&waited));
        }
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.jitter(Duration::ZERO), Duration::ZERO);
    }
}

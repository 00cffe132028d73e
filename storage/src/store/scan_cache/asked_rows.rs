//! Which rows were asked for a moment ago: only these are worth a place in the cache.
//!
//! A table of fingerprints, one for each slot; a row that is asked for takes its slot from another one. So a row is remembered for
//! about as many reads of other rows as there are slots, and reads that never come again keep nothing out. The idea is the list of
//! rows seen once of 2Q (Johnson and Shasha, VLDB 1994), in the form of the doorkeeper of TinyLFU (Einziger, Friedman and Manes, ACM
//! Transactions on Storage 13, 2017). Two rows with equal fingerprints in one slot count as one: one pair in 65,535 does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// One slot for this number of bytes of the cache: about twice as many slots as rows.
const BYTES_PER_SLOT: usize = 512;
const SLOTS_MIN: usize = 64;
const SLOTS_MAX: usize = 1 << 20;

/// The fingerprints. Allocated at the first question.
pub(super) struct AskedRows {
    slots: OnceLock<Box<[AtomicU16]>>,
    /// A power of two.
    count: usize,
}

impl AskedRows {
    /// For a cache of this size.
    pub(super) fn new(cache_bytes: usize) -> Self {
        let count = (cache_bytes / BYTES_PER_SLOT).clamp(SLOTS_MIN, SLOTS_MAX).next_power_of_two();
        Self { slots: OnceLock::new(), count }
    }

    /// The size of the table.
    pub(super) const fn bytes(&self) -> usize {
        self.count * size_of::<AtomicU16>()
    }

    /// Whether the row with this hash was asked for a moment ago; it is remembered now.
    pub(super) fn was_asked(&self, hash: u64) -> bool {
        let (slot, fingerprint) = self.slot(hash);
        let Some(slot) = slot else { return false };
        if slot.load(Ordering::Relaxed) == fingerprint {
            return true;
        }
        slot.store(fingerprint, Ordering::Relaxed);
        false
    }

    /// Remembers the row with this hash.
    pub(super) fn remember(&self, hash: u64) {
        let (slot, fingerprint) = self.slot(hash);
        if let Some(slot) = slot {
            slot.store(fingerprint, Ordering::Relaxed);
        }
    }

    fn slot(&self, hash: u64) -> (Option<&AtomicU16>, u16) {
        let slots = self.slots.get_or_init(|| std::iter::repeat_with(AtomicU16::default).take(self.count).collect());
        let [.., third, second, first] = hash.to_be_bytes();
        let low = (usize::from(third) << 16) | (usize::from(second) << 8) | usize::from(first);
        // 0 is a free slot. The highest bits: the lowest ones choose the slot.
        let fingerprint = u16::try_from(hash >> 48).unwrap_or(0).max(1);
        (slots.get(low & (self.count - 1)), fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A good hash of a number (the finalizer of SplitMix64).
    fn hash(number: u64) -> u64 {
        let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    #[test]
    fn a_row_is_known_when_it_is_asked_for_again() {
        let asked = AskedRows::new(1 << 20);
        assert!(!asked.was_asked(hash(1)) && asked.was_asked(hash(1)));
        asked.remember(hash(2));
        assert!(asked.was_asked(hash(2)));
    }

    #[test]
    fn rows_that_are_asked_for_once_are_rarely_confused_with_known_ones_and_are_forgotten() {
        let asked = AskedRows::new(1 << 20);
        let known = (0..100_000).filter(|number| asked.was_asked(hash(*number))).count();
        assert!(known < 20, "{known}");
        let remembered = (0..1_000).filter(|number| asked.was_asked(hash(*number))).count();
        assert!(remembered < 5, "{remembered} of the first rows");
    }

    #[test]
    fn the_table_is_bounded() {
        for (cache, most) in [(1, 128), (32 << 20, 32 << 12), (usize::MAX, 2 << 20)] {
            assert!(AskedRows::new(cache).bytes() <= most, "{cache}");
        }
    }
}

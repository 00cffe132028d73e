//! What a server reports about its scan cache.

/// The use of a server's scan cache since the server started, and its size. All zero: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCacheState {
    /// Rows that were read by their keys and found in it.
    pub hits: u64,
    /// Rows that were read by their keys and were not there.
    pub misses: u64,
    /// Rows that were put into it.
    pub fills: u64,
    /// Rows that were not put into it, because a write of the row had begun meanwhile.
    pub refused_fills: u64,
    /// Rows that were evicted to make room.
    pub evictions: u64,
    /// Rows in it.
    pub rows: u64,
    /// Its size, with keys and overhead.
    pub bytes: u64,
    /// Its maximum size.
    pub capacity_bytes: u64,
}

impl ScanCacheState {
    /// The share of reads by key that were hits, in percent, rounded down; `None` without any.
    #[must_use]
    pub fn hit_percent(&self) -> Option<u64> {
        let reads = u128::from(self.hits) + u128::from(self.misses);
        let percent = (u128::from(self.hits) * 100).checked_div(reads)?;
        u64::try_from(percent).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hit_rate_is_that_of_all_reads() {
        let state = |hits, misses| ScanCacheState { hits, misses, ..ScanCacheState::default() };
        assert_eq!(state(0, 0).hit_percent(), None);
        assert_eq!(state(2, 1).hit_percent(), Some(66));
        assert_eq!(state(u64::MAX, u64::MAX).hit_percent(), Some(50));
    }
}

//! The most recent batches in memory, so that followers are served without disk reads.
//!
//! The cache stores whole batches as they were written and evicts the oldest first (batches have ascending locations). A
//! returned entry shares the memory of its batch.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::index::RecordLocation;

/// See the module.
#[derive(Debug)]
pub(crate) struct BatchCache {
    batches: BTreeMap<(u64, u32), Bytes>,
    bytes: usize,
    bytes_max: usize,
}

impl BatchCache {
    /// An empty cache that holds at most `bytes_max`, and always the newest batch.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, bytes_max }
    }

    /// Adds a batch that was written at `offset` of `segment`, later than all others.
    pub(crate) fn insert(&mut self, segment: u64, offset: u32, batch: Bytes) {
        self.bytes += batch.len();
        self.batches.insert((segment, offset), batch);
        while self.bytes > self.bytes_max && self.batches.len() > 1 {
            self.drop_first();
        }
    }

    /// Evicts the batches of segments before `oldest`.
    pub(crate) fn release(&mut self, oldest: u64) {
        while self.batches.first_key_value().is_some_and(|((segment, _), _)| *segment < oldest) {
            self.drop_first();
        }
    }

    /// The bytes at `location`, if their batch is cached.
    pub(crate) fn get(&self, location: RecordLocation) -> Option<Bytes> {
        let ((segment, offset), batch) = self.batches.range(..=(location.segment, location.offset)).next_back()?;
        if *segment != location.segment {
            return None;
        }
        let start = usize::try_from(location.offset - offset).ok()?;
        let end = start.checked_add(usize::try_from(location.len).ok()?)?;
        (end <= batch.len()).then(|| batch.slice(start..end))
    }

    /// How many bytes it holds.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn drop_first(&mut self) {
        if let Some((_, batch)) = self.batches.pop_first() {
            self.bytes -= batch.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(segment: u64, offset: u32, len: u32) -> RecordLocation {
        RecordLocation { segment, offset, len }
    }

    #[test]
    fn bytes_are_found_in_the_batch_that_holds_them() {
        let mut cache = BatchCache::new(100);
        cache.insert(1, 10, Bytes::from_static(b"0123456789"));
        cache.insert(1, 20, Bytes::from_static(b"abcdefghij"));
        assert_eq!(cache.get(location(1, 12, 3)).unwrap(), "234");
        assert_eq!(cache.get(location(1, 29, 1)).unwrap(), "j");
        assert_eq!(cache.get(location(1, 29, 2)), None);
        assert_eq!(cache.get(location(1, 9, 1)), None);
        assert_eq!(cache.get(location(2, 12, 1)), None);
    }

    #[test]
    fn the_oldest_goes_first_and_the_newest_stays() {
        let mut cache = BatchCache::new(25);
        for (segment, offset) in [(1, 0), (1, 10), (2, 0)] {
            cache.insert(segment, offset, Bytes::from_static(b"0123456789"));
        }
        assert_eq!(cache.bytes(), 20);
        assert_eq!(cache.get(location(1, 0, 1)), None);
        cache.insert(3, 0, vec![0; 50].into());
        assert_eq!(cache.bytes(), 50, "a batch above the limit is cached alone");
        cache.release(4);
        assert_eq!(cache.bytes(), 0);
    }
}

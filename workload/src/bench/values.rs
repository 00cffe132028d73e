//! The values to write.

use bytes::Bytes;
use ebla_runtime::Runtime;

/// Incompressible values: windows into random bytes.
#[derive(Clone)]
pub struct Values {
    random: Bytes,
    length: usize,
}

impl Values {
    /// Values of `length` bytes.
    pub fn new(runtime: &Runtime, length: usize) -> Self {
        let random: Vec<u8> =
            (0..(length + (1 << 20)).div_ceil(8)).flat_map(|_| runtime.rng.u64().to_le_bytes()).collect();
        Self { random: random.into(), length }
    }

    pub(super) fn value(&self, number: u64) -> Bytes {
        let room = self.random.len().saturating_sub(self.length).max(1);
        let start = usize::try_from(number.wrapping_mul(7919)).unwrap_or(0) % room;
        self.random.slice(start..(start + self.length).min(self.random.len()))
    }
}

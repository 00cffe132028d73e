//! Deterministic row samples.
//!
//! A row is selected by a hash of its key. So every tablet, batch, retry and replica has the same sample, and a larger
//! sample includes all rows of a smaller one. Several samples in one filter are independent: the position of each is part
//! of the hash.

/// A share of all rows.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// More than 0, less than 1.
    share: f64,
    /// Number of samples before this one in the filter.
    position: u64,
}

impl Sample {
    pub(super) const fn new(share: f64, position: u64) -> Self {
        Self { share, position }
    }

    /// Whether it includes the row with this key.
    pub(super) fn includes(&self, key: &[u8]) -> bool {
        fraction(mix(hash(key) ^ mix(self.position))) < self.share
    }
}

/// FNV-1a; [`mix`] improves its distribution.
fn hash(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Makes each bit depend on all bits: the last steps of the generator SplitMix64.
const fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The bits as a binary fraction: at least 0, less than 1, with the precision of a share.
fn fraction(bits: u64) -> f64 {
    const SCALE: f64 = 1.0 / 4_294_967_296.0;
    let [a, b, c, d, e, f, g, _] = bits.to_be_bytes();
    let (high, low) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([0, e, f, g]) >> 3);
    (f64::from(low) / 2_097_152.0 + f64::from(high)) * SCALE
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u32 = 20_000;

    fn count(holds: impl Fn(&[u8]) -> bool) -> u32 {
        let key = |row: u32| format!("user#{row:08}");
        (0..ROWS).map(|row| u32::from(holds(key(row).as_bytes()))).sum()
    }

    /// Whether `count` is close to this share: within six standard deviations of the worst case.
    fn is_about(count: u32, share: f64) -> bool {
        (f64::from(count) - share * f64::from(ROWS)).abs() < 6.0 * (f64::from(ROWS) / 4.0).sqrt()
    }

    #[test]
    fn a_sample_includes_its_share() {
        for share in [0.01, 0.1, 0.5, 0.9, 0.99] {
            let included = count(|key| Sample::new(share, 0).includes(key));
            assert!(is_about(included, share), "{share}: {included} of {ROWS}");
        }
    }

    #[test]
    fn samples_of_one_filter_are_independent() {
        let (first, second) = (Sample::new(0.5, 0), Sample::new(0.5, 1));
        assert!(is_about(count(|key| first.includes(key) && second.includes(key)), 0.25));
        assert!(is_about(count(|key| first.includes(key) || second.includes(key)), 0.75));
    }

    #[test]
    fn a_larger_sample_includes_a_smaller_one() {
        let (small, large) = (Sample::new(0.2, 0), Sample::new(0.6, 0));
        assert_eq!(count(|key| small.includes(key) && !large.includes(key)), 0);
    }

    #[test]
    fn fractions_lie_between_zero_and_one() {
        assert_eq!(fraction(0).to_bits(), 0.0_f64.to_bits());
        assert_eq!(fraction(1 << 63).to_bits(), 0.5_f64.to_bits());
        assert_eq!(fraction(u64::MAX).to_bits(), (1.0 - f64::EPSILON / 2.0).to_bits());
    }
}

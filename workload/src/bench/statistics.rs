//! Medians and their confidence intervals. Pure except for the random numbers that are passed in.

use ebla_runtime::Rng;

/// Samples drawn for an interval.
const RESAMPLES: usize = 2_000;

/// A median with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// 2.5 % of the medians of resampled data are below it.
    pub low: f64,
    /// 2.5 % are above it.
    pub high: f64,
}

/// The middle value; the upper one of an even number. NaN when empty.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median with its bootstrap interval: the medians of resampled values. With fewer than six values the interval is limited
/// by their range and is not reliable.
#[must_use]
pub fn bootstrap(values: &[f64], rng: &Rng) -> Option<Interval> {
    let count = u64::try_from(values.len()).ok().filter(|count| *count > 0)?;
    let draw = || values.get(usize::try_from(rng.below(count)).unwrap_or(0)).copied().unwrap_or(f64::NAN);
    let mut medians: Vec<f64> =
        (0..RESAMPLES).map(|_| median(std::iter::repeat_with(draw).take(values.len()).collect())).collect();
    medians.sort_by(f64::total_cmp);
    let at = |thousandth: usize| medians.get(RESAMPLES * thousandth / 1_000).copied().unwrap_or(f64::NAN);
    Some(Interval { median: median(values.to_vec()), low: at(25), high: at(974) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_contains_its_median_and_is_within_the_values() {
        let rng = Rng::seeded(7);
        let values = [1.0, 1.1, 1.2, 1.3, 1.4, 9.0];
        let interval = bootstrap(&values, &rng).unwrap();
        assert_eq!(interval.median, 1.3);
        assert!(interval.low >= 1.0 && interval.low <= interval.median);
        assert!(interval.high <= 9.0 && interval.high >= interval.median);
        assert_eq!(bootstrap(&[2.0], &rng), Some(Interval { median: 2.0, low: 2.0, high: 2.0 }));
        assert_eq!(bootstrap(&[], &rng), None);
    }
}

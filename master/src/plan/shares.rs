//! Shares: what each server has of several amounts, in millionths of the mean of all servers, and what a move of a part gains.
//!
//! A move of the shares `d` from a server with `s` to a server with `t` changes the sum of the squares of all shares by
//!
//! ```text
//!   -2 · gain        gain = Σ d·(s - t - d)    over the amounts
//! ```
//!
//! A move is worth it if it gains more than a margin for each of its own shares. Then the server that gets the part has clearly less than
//! the other one had, also afterwards. So each move lowers the sum of squares, which cannot go on for ever, and a move
//! is not reversed unless amounts change by more than the margin.

/// The unit of shares: the mean of all servers.
pub(super) const MEAN: i64 = 1_000_000;
/// The smallest difference that is worth a move: a twentieth of the mean.
pub(super) const MARGIN: i64 = MEAN / 20;
/// The same for loads, which vary: a tenth of the mean.
pub(super) const LOAD_MARGIN: i64 = MEAN / 10;

/// What a server has of `N` amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares<const N: usize>([i64; N]);

impl<const N: usize> Shares<N> {
    pub(super) const NONE: Self = Self([0; N]);

    /// `amounts` as shares of `means`.
    pub(super) fn of(amounts: [u64; N], means: [u64; N]) -> Self {
        let mut shares = Self::NONE;
        for ((share, amount), mean) in shares.0.iter_mut().zip(amounts).zip(means) {
            let millionths = u128::from(amount) * u128::from(MEAN.unsigned_abs()) / u128::from(mean.max(1));
            *share = i64::try_from(millionths).unwrap_or(i64::MAX);
        }
        shares
    }

    pub(super) fn plus(self, other: Self) -> Self {
        self.each(other, i64::saturating_add)
    }

    pub(super) fn minus(self, other: Self) -> Self {
        self.each(other, i64::saturating_sub)
    }

    fn each(mut self, other: Self, operation: impl Fn(i64, i64) -> i64) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own = operation(*own, other));
        self
    }

    /// The share of the amount at this position.
    pub(super) fn at(&self, position: usize) -> i64 {
        self.0.get(position).copied().unwrap_or_default()
    }

    /// The sum of the absolute shares.
    pub(super) fn size(&self) -> i64 {
        self.0.iter().map(|share| share.saturating_abs()).fold(0, i64::saturating_add)
    }

    /// Whether no share is above its margin.
    pub(super) fn is_within(&self, margins: &[i64; N]) -> bool {
        self.0.iter().zip(margins).all(|(share, margin)| share.saturating_abs() <= *margin)
    }

    /// What a move of `moved`, or an exchange that moves this difference of two parts, gains: see the [module](self). `None` when it is
    /// not worth it.
    pub(super) fn gain(from: Self, to: Self, moved: Self, margins: &[i64; N]) -> Option<i128> {
        let mut gain = 0_i128;
        let mut worth = 0_i128;
        for (((from, to), moved), margin) in from.0.into_iter().zip(to.0).zip(moved.0).zip(margins) {
            let (from, to, moved) = (i128::from(from), i128::from(to), i128::from(moved));
            gain += moved * (from - to - moved);
            worth += moved.abs() * i128::from(*margin);
        }
        (gain > worth).then_some(gain)
    }
}

impl Shares<1> {
    /// The share of the only amount.
    pub(super) const fn new(share: i64) -> Self {
        Self([share])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGINS: [i64; 3] = [MARGIN; 3];

    fn gain(from: [i64; 3], to: [i64; 3], moved: [i64; 3]) -> Option<i128> {
        Shares::gain(Shares(from), Shares(to), Shares(moved), &MARGINS)
    }

    #[test]
    fn a_move_must_leave_a_clear_difference() {
        // One of three replicas: the mean has two.
        let moved = [0, 0, MEAN / 2];
        let gains = |from: i64, to: i64| gain([0, 0, from * MEAN / 2], [0, 0, to * MEAN / 2], moved).is_some();
        assert!(gains(3, 1) && gains(2, 0));
        assert!(!gains(2, 1), "it would only reverse the difference");
        assert!(!gains(2, 2) && !gains(1, 2));
    }

    #[test]
    fn no_move_is_worth_its_own_reversal() {
        for (from, to, moved) in [(900, 100, 300), (700, 500, 90), (1_000, 0, 10), (5, 0, 2)] {
            let [from, to, moved] = [from, to, moved].map(|thousandth: i64| Shares([thousandth * MEAN / 1_000; 3]));
            if Shares::gain(from, to, moved, &MARGINS).is_some() {
                let (after_from, after_to) = (from.minus(moved), to.plus(moved));
                assert_eq!(Shares::gain(after_to, after_from, moved, &MARGINS), None);
            }
        }
    }

    #[test]
    fn an_exchange_moves_the_difference() {
        // Two servers with as many replicas and tablets, and one with twice the bytes.
        let (large, small) = (Shares([MEAN, MEAN / 2, MEAN / 2]), Shares([MEAN / 2; 3]));
        let exchange = |moved| Shares::gain(Shares([MEAN, 0, 0]), Shares::NONE, moved, &MARGINS);
        assert!(exchange(large.minus(small)).is_some());
        assert_eq!(exchange(small.minus(large)), None, "the other direction");
    }

    #[test]
    fn small_parts_move_only_for_a_difference_above_the_margin() {
        let small = [MEAN / 1_000; 3];
        assert_eq!(gain([MEAN + MARGIN / 2; 3], [MEAN; 3], small), None);
        assert!(gain([MEAN + 2 * MARGIN; 3], [MEAN; 3], small).is_some());
    }

    #[test]
    fn amounts_are_shares_of_their_means() {
        let shares = Shares::of([0, 5, 30], [10, 10, 10]);
        assert_eq!(shares, Shares([0, MEAN / 2, 3 * MEAN]));
        assert_eq!(Shares::of([7], [0]), Shares([7 * MEAN]), "a mean of 0 counts as 1");
    }
}

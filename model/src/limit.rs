//! The row limit of a read.

use std::num::NonZeroU64;

/// The maximum number of rows that a read returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowLimit {
    /// All rows.
    #[default]
    Unlimited,
    /// At most this number of rows.
    At(NonZeroU64),
}

impl RowLimit {
    /// The limit of a request, in which 0 means no limit.
    pub const fn new(number: u64) -> Self {
        match NonZeroU64::new(number) {
            Some(number) => Self::At(number),
            None => Self::Unlimited,
        }
    }

    /// The limit as requests have it: 0 means no limit.
    pub const fn get(self) -> u64 {
        match self {
            Self::Unlimited => 0,
            Self::At(number) => number.get(),
        }
    }

    /// Whether a read that has returned `rows` rows is complete.
    pub const fn is_reached(self, rows: u64) -> bool {
        match self {
            Self::Unlimited => false,
            Self::At(number) => rows >= number.get(),
        }
    }

    /// The limit for the rest of a read that has returned `rows` rows; `None` when the limit is reached.
    #[must_use]
    pub const fn remaining(self, rows: u64) -> Option<Self> {
        match self {
            Self::Unlimited => Some(self),
            Self::At(_) if self.is_reached(rows) => None,
            Self::At(number) => Some(Self::new(number.get() - rows)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_limit_is_reached_by_its_rows() {
        let (all, three) = (RowLimit::new(0), RowLimit::new(3));
        assert_eq!((all, all.get(), three.get()), (RowLimit::Unlimited, 0, 3));
        assert_eq!((all.is_reached(9), three.is_reached(2), three.is_reached(3)), (false, false, true));
        assert_eq!(all.remaining(9), Some(all));
        assert_eq!((three.remaining(0), three.remaining(2)), (Some(three), Some(RowLimit::new(1))));
        assert_eq!((three.remaining(3), three.remaining(4)), (None, None));
    }
}

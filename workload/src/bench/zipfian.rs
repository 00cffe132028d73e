//! Which row a request goes to: each with the same probability, or by Zipf's law, as in the Yahoo! Cloud Serving Benchmark (Cooper
//! and others, SoCC 2010).
//!
//! The row at rank r of popularity is chosen with a probability proportional to 1 / r^0.99. Ranks are drawn in constant time with the
//! method of Gray and others (*Quickly generating billion-record synthetic databases*, SIGMOD 1994, section 3.2), which YCSB uses
//! too. As there, popular rows are spread over the table by a hash of the rank.

use ebla_runtime::Rng;

use super::Workload;

/// YCSB's exponent.
const EXPONENT: f64 = 0.99;
/// Updates among a hundred requests of YCSB's workload B.
const UPDATES_PERCENT: u64 = 5;

/// The requests of a workload on a table.
#[derive(Clone, Debug)]
pub struct Requests {
    workload: Workload,
    rows: u64,
    /// `None`: all rows are equally popular.
    zipfian: Option<Zipfian>,
}

impl Requests {
    /// Requests to `rows` rows. Takes time in proportion to `rows`: make it once for many clients.
    #[must_use]
    pub fn new(workload: Workload, rows: u64) -> Self {
        let zipfian = match workload {
            Workload::YcsbB | Workload::YcsbC => Some(Zipfian::new(rows)),
            _ => None,
        };
        Self { workload, rows, zipfian }
    }

    /// The next request, and its row.
    pub fn draw(&self, rng: &Rng) -> (Workload, u64) {
        let row = match &self.zipfian {
            Some(zipfian) => scattered(zipfian.rank(rng), self.rows),
            None => rng.below(self.rows),
        };
        let request = match self.workload {
            Workload::YcsbB if rng.below(100) < UPDATES_PERCENT => Workload::Write,
            Workload::YcsbB | Workload::YcsbC => Workload::Read,
            other => other,
        };
        (request, row)
    }
}

/// The row of a rank: a hash (the finalizer of SplitMix64), so a few rows have the popularity of two ranks and others none.
fn scattered(rank: u64, rows: u64) -> u64 {
    let mixed = (rank ^ (rank >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % rows.max(1)
}

/// Ranks by Zipf's law, from 0.
#[derive(Clone, Debug)]
struct Zipfian {
    ranks: u64,
    /// The sum of 1 / r^0.99 over all ranks.
    sum: f64,
    eta: f64,
}

#[expect(clippy::cast_precision_loss, reason = "numbers of rows are far below 2^52")]
impl Zipfian {
    fn new(ranks: u64) -> Self {
        let ranks = ranks.max(2);
        let sum_to = |last: u64| (1..=last).map(|rank| (rank as f64).powf(-EXPONENT)).sum::<f64>();
        let sum = sum_to(ranks);
        let eta = (1.0 - (2.0 / ranks as f64).powf(1.0 - EXPONENT)) / (1.0 - sum_to(2) / sum);
        Self { ranks, sum, eta }
    }

    fn rank(&self, rng: &Rng) -> u64 {
        // 53 random bits as a fraction.
        let chance = (rng.u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let share = chance * self.sum;
        if share < 1.0 {
            return 0;
        }
        if share < 1.0 + 0.5_f64.powf(EXPONENT) {
            return 1;
        }
        let rank = self.ranks as f64 * (self.eta * chance - self.eta + 1.0).powf(1.0 / (1.0 - EXPONENT));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the casts saturate")]
        let rank = rank as u64;
        rank.min(self.ranks - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u64 = 10_000;
    const DRAWS: u32 = 200_000;

    #[test]
    fn ranks_follow_zipfs_law() {
        let (zipfian, rng) = (Zipfian::new(ROWS), Rng::seeded(1));
        let mut counts = vec![0_u32; usize::try_from(ROWS).unwrap()];
        (0..DRAWS).for_each(|_| counts[usize::try_from(zipfian.rank(&rng)).unwrap()] += 1);
        let expected = |rank: f64| f64::from(DRAWS) / zipfian.sum / rank.powf(EXPONENT);
        for (rank, count) in [(1.0, counts[0]), (2.0, counts[1])] {
            assert!((f64::from(count) / expected(rank) - 1.0).abs() < 0.05, "{count} of rank {rank}");
        }
        // The method is exact for the first two ranks and near for ranges of others.
        let hundred: u32 = counts.iter().take(100).sum();
        let wanted: f64 = (1..=100).map(|rank| expected(f64::from(rank))).sum();
        assert!((f64::from(hundred) / wanted - 1.0).abs() < 0.05, "{hundred} instead of {wanted}");
    }

    #[test]
    fn workload_b_reads_and_updates_and_c_reads() {
        let share = |workload| {
            let (requests, rng) = (Requests::new(workload, ROWS), Rng::seeded(2));
            let writes = (0..DRAWS).filter(|_| requests.draw(&rng).0 == Workload::Write).count();
            writes as f64 / f64::from(DRAWS)
        };
        assert!((share(Workload::YcsbB) - 0.05).abs() < 0.005);
        assert!(share(Workload::YcsbC) == 0.0 && share(Workload::Write) == 1.0);
    }

    #[test]
    fn popular_rows_are_spread_over_the_table() {
        let rows: Vec<u64> = (0..100).map(|rank| scattered(rank, ROWS)).collect();
        assert!(rows.iter().all(|row| *row < ROWS));
        for quarter in 0..4 {
            let inside = rows.iter().filter(|row| **row / (ROWS / 4) == quarter).count();
            assert!((10..45).contains(&inside), "{inside} in quarter {quarter}");
        }
    }
}

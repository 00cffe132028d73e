//! Which rows a client reads or writes: random ones, or its own part of the table in the order of the keys. Pure except for
//! the random numbers that are passed in.
//!
//! The sequential workloads divide the table into as many parts as there are clients, so the clients of all parts together
//! use all tablets equally. Random rows are chosen from the whole table for each request.

use ebla_runtime::Rng;

use super::{Layout, PaperWorkload};

/// The rows of one client, as ranges of as many rows as a request has.
#[derive(Clone, Debug)]
pub enum RowOrder {
    /// Random rows of the table.
    Random {
        /// The source of random numbers.
        rng: Rng,
        /// Rows of the table.
        rows: u64,
    },
    /// Random rows of the first ones of each tablet.
    Hot {
        /// The source of random numbers.
        rng: Rng,
        /// The table.
        layout: Layout,
    },
    /// The rows of a part in order, again and again.
    Sequence {
        /// The part's first row.
        start: u64,
        /// The row after its last one.
        end: u64,
        /// The next row.
        next: u64,
        /// Rows in a request.
        step: u64,
    },
}

impl RowOrder {
    /// The order of client `number` of `clients` (at least 1).
    #[must_use]
    pub fn new(workload: PaperWorkload, layout: Layout, number: u64, clients: u64, rng: &Rng) -> Self {
        let rows = layout.rows();
        match workload {
            PaperWorkload::RandomReads | PaperWorkload::RandomWrites => Self::Random { rng: rng.fork(), rows },
            PaperWorkload::MemoryReads => Self::Hot { rng: rng.fork(), layout },
            PaperWorkload::SequentialReads | PaperWorkload::Scans | PaperWorkload::SequentialWrites => {
                let clients = clients.max(1);
                let (start, end) = (rows * number / clients, rows * (number + 1) / clients);
                Self::Sequence { start, end, next: start, step: workload.rows_per_request() }
            }
        }
    }

    /// The rows `[start, end)` of the next request. At the end of a part it may have fewer rows than others.
    pub fn next_rows(&mut self) -> (u64, u64) {
        match self {
            Self::Random { rng, rows } => one(rng.below(*rows)),
            Self::Hot { rng, layout } => {
                let tablet = rng.below(layout.tablets());
                one(tablet * layout.rows_per_tablet + rng.below(layout.hot_rows_per_tablet()))
            }
            Self::Sequence { start, end, next, step } => {
                let (from, to) = (*next, (*next + *step).min(*end));
                *next = if to == *end { *start } else { to };
                (from, to)
            }
        }
    }
}

const fn one(row: u64) -> (u64, u64) {
    (row, row + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { servers: 2, tablets_per_server: 2, rows_per_tablet: 60 };

    fn order(workload: PaperWorkload, number: u64, clients: u64) -> RowOrder {
        RowOrder::new(workload, LAYOUT, number, clients, &Rng::seeded(7))
    }

    #[test]
    fn the_parts_of_all_clients_are_the_table() {
        let mut seen = Vec::new();
        for number in 0..7 {
            let mut rows = order(PaperWorkload::SequentialWrites, number, 7);
            let first = rows.next_rows();
            let mut now = first;
            loop {
                seen.push(now.0);
                assert_eq!(now.1, now.0 + 1);
                now = rows.next_rows();
                if now == first {
                    break;
                }
            }
        }
        assert_eq!(seen, (0..LAYOUT.rows()).collect::<Vec<_>>());
    }

    #[test]
    fn a_scan_ends_at_the_end_of_its_part_and_starts_again() {
        let mut rows = order(PaperWorkload::Scans, 1, 2);
        let ranges = [rows.next_rows(), rows.next_rows(), rows.next_rows()];
        assert_eq!(ranges, [(120, 220), (220, 240), (120, 220)]);
    }

    #[test]
    fn hot_rows_are_the_first_ones_of_every_tablet() {
        let mut rows = order(PaperWorkload::MemoryReads, 0, 1);
        let mut seen: Vec<_> = (0..1_000).map(|_| rows.next_rows().0).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [0, 1, 2, 60, 61, 62, 120, 121, 122, 180, 181, 182]);
    }

    #[test]
    fn random_rows_are_of_the_whole_table() {
        let mut rows = order(PaperWorkload::RandomReads, 0, 1);
        let seen: Vec<_> = (0..5_000).map(|_| rows.next_rows().0).collect();
        assert_eq!((seen.iter().min(), seen.iter().max()), (Some(&0), Some(&239)));
    }
}

//! The load of `ebla bench`: the same requests through gRPC against one or more systems, in slices that alternate, so that
//! all see the same machine.
//!
//! ```text
//!   for each workload and number of clients:   A B C  C B A  A B C …   slices of a few seconds
//!   shown: operations a second and latencies of each (medians over rounds); the ratio A / B, A / C of
//!          the same round, as a median with a 95 % interval; processor time and syncs for each row
//! ```
//!
//! A client is a task that sends its next request when the last one was answered (closed loop). Values cannot be
//! compressed. [`target`] is a system, [`bigtable`], [`etcd`] and [`postgres`] speak to one, [`mod@slice`] runs one slice,
//! [`report`] turns slices into figures, [`statistics`] has the arithmetic. [`names`] is the load on a mounttable, of [`closed`]
//! loops too.

pub mod bigtable;
pub mod closed;
pub mod counters;
pub mod etcd;
pub mod names;
pub mod postgres;
pub mod processes;
pub mod report;
pub mod slice;
pub mod statistics;
pub mod target;
mod values;

pub use values::Values;

use std::time::Duration;

/// What a client does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Writes one row (MutateRow) at a random place.
    Write,
    /// Reads one row at a random place.
    Read,
    /// Reads a hundred rows in order from a random place; counted in rows.
    Scan,
    /// The same through a filter that lets all of them pass: a family, a pattern for the column, its newest cell. A Bigtable only.
    Filtered,
    /// Reads one row of ten thousand columns; counted in cells. A Bigtable only.
    Wide,
    /// Writes a hundred rows at random places in one call (MutateRows); counted in rows.
    Batch,
}

impl Workload {
    /// Rows that one request touches; of a wide row its cells.
    pub fn rows_per_request(self) -> u64 {
        match self {
            Self::Write | Self::Read => 1,
            Self::Scan | Self::Filtered | Self::Batch => 100,
            Self::Wide => WIDE_COLUMNS,
        }
    }

    /// Its name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Scan => "scan",
            Self::Filtered => "filtered",
            Self::Wide => "wide",
            Self::Batch => "batch",
        }
    }
}

/// Columns of a wide row.
pub const WIDE_COLUMNS: u64 = 10_000;
/// How many wide rows there are, each in a tablet of its own.
pub const WIDE_ROWS: u64 = 12;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workloads, in order.
    pub workloads: Vec<Workload>,
    /// Numbers of clients, in order.
    pub clients: Vec<usize>,
    /// Rows in the table.
    pub rows: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Length of a slice.
    pub slice: Duration,
    /// Slices of each target for each figure.
    pub rounds: usize,
}

/// The key of row `number`: fixed width, so that keys sort like numbers.
pub fn row_key(number: u64) -> String {
    format!("user{number:012}")
}

/// Keys that divide `rows` rows into `parts` tablets of the same size.
pub fn split_keys(rows: u64, parts: u64) -> Vec<String> {
    (1..parts).map(|part| row_key(rows * part / parts)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_divide_the_rows_evenly() {
        assert_eq!(split_keys(100, 4), ["user000000000025", "user000000000050", "user000000000075"]);
        assert!(split_keys(100, 1).is_empty());
    }
}

//! The load of `ebla bench`: the same requests to one or more systems, in rounds that alternate between them, so that all are
//! measured under the same conditions.
//!
//! ```text
//!   for each number of tablets:   create and fill the tables
//!     for each workload and number of clients:   A B C  C B A  A B C …   rounds of a few seconds
//!   results: operations per second and latencies of each (medians over rounds); the ratios A / B, A / C of
//!            corresponding rounds, as a median with a 95 % interval; processor time and fsyncs per row
//! ```
//!
//! A client is a task that sends its next request when the last one was answered (closed loop). Values are incompressible.
//! [`target`] is a system, [`bigtable`], [`etcd`] and [`postgres`] are its clients, [`mod@round`] runs one round, [`report`]
//! computes the results of rounds, [`statistics`] has the arithmetic, [`zipfian`] chooses rows. [`names`] is the load on a mounttable, also made of
//! [closed loops](closed_loop). [`scale`] has the figures of `make scale`, [`paper`] the load and the figures of `make paper`.

pub mod bigtable;
pub mod closed_loop;
pub mod counters;
pub mod etcd;
pub mod names;
pub mod paper;
pub mod postgres;
pub mod processes;
pub mod report;
pub mod round;
pub mod scale;
pub mod statistics;
pub mod target;
mod values;
pub mod zipfian;

pub use values::Values;

use std::time::Duration;

/// What a client does repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Writes one random row (MutateRow).
    Write,
    /// Reads one random row.
    Read,
    /// Scans a hundred rows from a random start; counted in rows.
    Scan,
    /// Scans with a filter that passes all rows: family, column pattern, newest cell. A Bigtable only.
    Filtered,
    /// Reads one row with ten thousand columns; counted in cells. A Bigtable only.
    Wide,
    /// Writes a hundred random rows in one call (MutateRows); counted in rows.
    Batch,
    /// Replaces the value of one random row on the condition that the row has one (CheckAndMutateRow).
    Check,
    /// Opens a connection, reads one random row on it, and closes it: with TLS also the handshake. A Bigtable only.
    Connect,
    /// Workload B of the Yahoo! Cloud Serving Benchmark: of a hundred requests 95 read a row and 5 write one, chosen by Zipf's law.
    YcsbB,
    /// Workload C of the same: all requests read a row, chosen by Zipf's law.
    YcsbC,
}

impl Workload {
    /// Rows in one request; cells for a wide row.
    pub fn rows_per_request(self) -> u64 {
        match self {
            Self::Write | Self::Read | Self::Check | Self::Connect | Self::YcsbB | Self::YcsbC => 1,
            Self::Scan | Self::Filtered | Self::Batch => 100,
            Self::Wide => WIDE_COLUMNS,
        }
    }

    /// Name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Scan => "scan",
            Self::Filtered => "filtered",
            Self::Wide => "wide",
            Self::Batch => "batch",
            Self::Check => "check",
            Self::Connect => "connect",
            Self::YcsbB => "ycsb-b",
            Self::YcsbC => "ycsb-c",
        }
    }
}

/// Columns of a wide row.
pub const WIDE_COLUMNS: u64 = 10_000;
/// Number of wide rows, each in a separate tablet.
pub const WIDE_ROWS: u64 = 12;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workloads, in order.
    pub workloads: Vec<Workload>,
    /// Numbers of clients, in order.
    pub clients: Vec<usize>,
    /// Numbers of tablets of the table, in order.
    pub tablets: Vec<u64>,
    /// Rows in the table.
    pub rows: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Duration of a round.
    pub round_length: Duration,
    /// Rounds of each target for each combination.
    pub rounds: usize,
}

/// What one figure is measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// Name of the workload.
    pub workload: &'static str,
    /// Number of clients.
    pub clients: usize,
    /// Number of tablets of the table; `None` for a load without a table.
    pub tablets: Option<u64>,
}

impl Plan {
    /// The combinations of workload and clients for a table of `tablets` tablets, in the order of their measurement.
    pub fn combinations(&self, tablets: u64) -> Vec<(Workload, Combination)> {
        let of_workload = |workload: &Workload| {
            let (workload, clients) = (*workload, self.clients.clone());
            let one = move |clients| Combination { workload: workload.name(), clients, tablets: Some(tablets) };
            clients.into_iter().map(move |clients| (workload, one(clients)))
        };
        self.workloads.iter().flat_map(of_workload).collect()
    }
}

/// The key of row `number`, with fixed width so that keys sort like numbers.
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
    fn every_workload_is_combined_with_every_number_of_clients() {
        let plan = Plan {
            workloads: vec![Workload::Write, Workload::Read],
            clients: vec![1, 16],
            tablets: vec![12, 100],
            rows: 100,
            value_bytes: 10,
            round_length: Duration::from_secs(1),
            rounds: 1,
        };
        let combinations: Vec<_> = plan.combinations(100).into_iter().map(|(_, combination)| combination).collect();
        let one = |workload, clients| Combination { workload, clients, tablets: Some(100) };
        assert_eq!(combinations, [one("write", 1), one("write", 16), one("read", 1), one("read", 16)]);
    }

    #[test]
    fn splits_divide_the_rows_evenly() {
        assert_eq!(split_keys(100, 4), ["user000000000025", "user000000000050", "user000000000075"]);
        assert!(split_keys(100, 1).is_empty());
    }
}

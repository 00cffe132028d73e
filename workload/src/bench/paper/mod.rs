//! The benchmark of the Bigtable paper (section 7): the rate of six workloads, with 1,000 bytes per value, over the number of
//! tablet servers.
//!
//! ```text
//!   keys      which row a client reads or writes next
//!   load      the clients: programs on the client library, which send each request to the server of its tablet
//!   figures   what was measured: rates under processor quotas, processor time at a fixed rate; what follows from them
//!   report    the figures as Markdown tables and as JSON
//!   plot      the figures as a picture
//!   quota     processor quotas of the servers: what control groups are given
//! ```
//!
//! `cli/examples/paper` starts the clusters and runs the load; `docs/inside/benchmarks.md` describes the method.

pub mod figures;
pub mod keys;
pub mod load;
pub mod plot;
pub mod quota;
pub mod report;

/// The bytes of a value, as in the paper.
pub const VALUE_BYTES: usize = 1_000;
/// Rows in a request of [`PaperWorkload::Scans`], and in one that fills the table.
pub const ROWS_PER_SCAN: u64 = 100;

/// A workload of the paper, in the order of their measurement: reads before writes, so that they read from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperWorkload {
    /// Reads random rows of the whole table.
    RandomReads,
    /// Reads random rows of a small part of the table that the servers have in their block caches.
    MemoryReads,
    /// Reads the rows of a client's own range in the order of their keys, one per request.
    SequentialReads,
    /// The same with [`ROWS_PER_SCAN`] rows per request.
    Scans,
    /// Writes random rows of the whole table.
    RandomWrites,
    /// Writes the rows of a client's own range in the order of their keys.
    SequentialWrites,
}

/// The paper's own figures: values per second and tablet server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// With one tablet server.
    pub one: u64,
    /// With fifty.
    pub fifty: u64,
}

impl PaperWorkload {
    /// All workloads.
    pub const ALL: [Self; 6] = [
        Self::RandomReads,
        Self::MemoryReads,
        Self::SequentialReads,
        Self::Scans,
        Self::RandomWrites,
        Self::SequentialWrites,
    ];

    /// Name in tables, pictures and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RandomReads => "random reads",
            Self::MemoryReads => "random reads (mem)",
            Self::SequentialReads => "sequential reads",
            Self::Scans => "scans",
            Self::RandomWrites => "random writes",
            Self::SequentialWrites => "sequential writes",
        }
    }

    /// Rows in one request.
    #[must_use]
    pub const fn rows_per_request(self) -> u64 {
        match self {
            Self::Scans => ROWS_PER_SCAN,
            _ => 1,
        }
    }

    /// The paper's figures (the table in figure 6).
    #[must_use]
    pub const fn published(self) -> Published {
        match self {
            Self::RandomReads => Published { one: 1_212, fifty: 593 },
            Self::MemoryReads => Published { one: 10_811, fifty: 8_511 },
            Self::SequentialReads => Published { one: 4_425, fifty: 2_463 },
            Self::Scans => Published { one: 15_385, fifty: 10_526 },
            Self::RandomWrites => Published { one: 8_850, fifty: 3_745 },
            Self::SequentialWrites => Published { one: 8_547, fifty: 3_623 },
        }
    }
}

/// The table of one cluster. All numbers are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Tablet servers.
    pub servers: u64,
    /// Tablets that each server serves.
    pub tablets_per_server: u64,
    /// Rows per tablet.
    pub rows_per_tablet: u64,
}

impl Layout {
    /// Tablets of the table.
    #[must_use]
    pub const fn tablets(&self) -> u64 {
        self.servers.saturating_mul(self.tablets_per_server)
    }

    /// Rows of the table.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.tablets().saturating_mul(self.rows_per_tablet)
    }

    /// The number of each tablet's first rows that [`PaperWorkload::MemoryReads`] reads: a twentieth.
    #[must_use]
    pub const fn hot_rows_per_tablet(&self) -> u64 {
        self.rows_per_tablet.div_ceil(20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_paper_lost_throughput_per_server() {
        let mut names = PaperWorkload::ALL.map(PaperWorkload::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PaperWorkload::ALL.len());
        assert!(PaperWorkload::ALL.iter().all(|workload| workload.published().fifty < workload.published().one));
    }

    #[test]
    fn a_layout_multiplies() {
        let layout = Layout { servers: 3, tablets_per_server: 4, rows_per_tablet: 30 };
        assert_eq!((layout.tablets(), layout.rows(), layout.hot_rows_per_tablet()), (12, 360, 2));
    }
}

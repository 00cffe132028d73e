//! The clients of the paper's benchmark: as in the paper they know the locations of tablets, so each request goes directly to
//! the server of its tablet.

use std::time::Duration;

use bytes::Bytes;
use ebla_client::table::ReadOptions;
use ebla_client::{Client as ClusterClient, Table};
use ebla_model::error::Error;
use ebla_model::gc::GcRule;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Rng;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::keys::RowOrder;
use super::{Layout, PaperWorkload, ROWS_PER_SCAN};
use crate::bench::closed_loop::Client;
use crate::bench::{Values, row_key, split_keys};

/// The table.
const TABLE: &str = "projects/bench/instances/bench/tables/paper";
const FAMILY: &str = "f";
const COLUMN: &str = "value";

/// The name of the table.
///
/// # Errors
/// `InvalidArgument`, which cannot happen: the name is a constant.
pub fn table_name() -> Result<TableName, Error> {
    TABLE.parse()
}

/// Creates the table of this layout: one family with one version per cell, pre-split.
///
/// # Errors
/// As `ebla_client::Admin::create_table`.
pub async fn create(client: &ClusterClient, layout: Layout) -> Result<(), Error> {
    let splits: Vec<_> = split_keys(layout.rows(), layout.tablets()).into_iter().map(RowKey::new).collect();
    let families = [(FAMILY.to_owned(), Some(GcRule::MaxVersions(1)))];
    client.admin().create_table(&table_name()?, &families, &splits).await
}

/// The table through each of several clients, which share no connection.
#[derive(Clone)]
pub struct Load {
    tables: Vec<Table>,
    layout: Layout,
    values: Values,
}

impl Load {
    /// A load on the table through these clients.
    ///
    /// # Errors
    /// As [`table_name`].
    pub fn new(clients: &[ClusterClient], layout: Layout, values: Values) -> Result<Self, Error> {
        let name = table_name()?;
        Ok(Self { tables: clients.iter().map(|client| client.table(&name)).collect(), layout, values })
    }

    /// `count` clients for a closed loop that runs until its time is over.
    #[must_use]
    pub fn clients(&self, workload: PaperWorkload, count: u64, rng: &Rng) -> Vec<PaperClient> {
        let tables = self.tables.iter().cycle().zip(0..count);
        let client = |(table, number): (&Table, u64)| PaperClient {
            table: table.clone(),
            workload,
            rows: RowOrder::new(workload, self.layout, number, count, rng),
            values: self.values.clone(),
        };
        tables.map(client).collect()
    }

    /// The same, all together at `requests_per_second` (above 0); a client that is late does not make up for it.
    #[must_use]
    pub fn paced_clients(
        &self,
        workload: PaperWorkload,
        count: u64,
        requests_per_second: f64,
        rng: &Rng,
    ) -> Vec<Paced<PaperClient>> {
        let clients = self.clients(workload, count, rng);
        let all = u32::try_from(clients.len()).unwrap_or(u32::MAX).max(1);
        let step = Duration::from_secs_f64(1.0 / requests_per_second.max(1e-3));
        let start = Instant::now();
        clients
            .into_iter()
            .zip(0..)
            .map(|(client, number)| Paced::new(client, start + step * number, step * all))
            .collect()
    }

    /// Clients that write every row once, [`ROWS_PER_SCAN`] per request, and then end.
    #[must_use]
    pub fn filling_clients(&self, count: u64) -> Vec<Fill> {
        let tables = self.tables.iter().cycle().zip(0..count.max(1));
        let rows = self.layout.rows();
        let client = |(table, number): (&Table, u64)| Fill {
            table: table.clone(),
            values: self.values.clone(),
            next: rows * number / count.max(1),
            end: rows * (number + 1) / count.max(1),
        };
        tables.map(client).collect()
    }

    /// Reads one row of every tablet through every client, so that all know the locations; for
    /// [`PaperWorkload::MemoryReads`] also all rows that it reads, so that they are in the caches.
    ///
    /// # Errors
    /// The error of a read; `Internal` for a missing row.
    pub async fn warm_up(&self, workload: PaperWorkload) -> Result<(), Error> {
        let starts: Vec<u64> = (0..self.layout.tablets()).map(|tablet| tablet * self.layout.rows_per_tablet).collect();
        for table in &self.tables {
            for start in &starts {
                read(table, *start, start + 1).await?;
            }
        }
        if workload == PaperWorkload::MemoryReads {
            for (table, start) in self.tables.iter().cycle().zip(&starts) {
                read(table, *start, start + self.layout.hot_rows_per_tablet()).await?;
            }
        }
        Ok(())
    }
}

/// A client with a workload.
pub struct PaperClient {
    table: Table,
    workload: PaperWorkload,
    rows: RowOrder,
    values: Values,
}

impl Client for PaperClient {
    async fn request(&mut self) -> Result<Option<u64>, String> {
        let (start, end) = self.rows.next_rows();
        let done = match self.workload {
            PaperWorkload::RandomReads
            | PaperWorkload::MemoryReads
            | PaperWorkload::SequentialReads
            | PaperWorkload::Scans => read(&self.table, start, end).await,
            PaperWorkload::RandomWrites | PaperWorkload::SequentialWrites => {
                let (key, mutations) = written(start, &self.values);
                self.table.mutate_row(&key, &mutations).await
            }
        };
        done.map(|()| Some(end - start)).map_err(|error| error.to_string())
    }
}

/// A client that sends its requests at fixed times.
pub struct Paced<C> {
    client: C,
    start: Instant,
    period: Duration,
    ticks: Option<Interval>,
}

impl<C> Paced<C> {
    fn new(client: C, start: Instant, period: Duration) -> Self {
        Self { client, start, period, ticks: None }
    }
}

impl<C: Client> Client for Paced<C> {
    async fn request(&mut self) -> Result<Option<u64>, String> {
        let (start, period) = (self.start, self.period);
        let ticks = self.ticks.get_or_insert_with(|| {
            let mut ticks = tokio::time::interval_at(start, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        ticks.tick().await;
        self.client.request().await
    }
}

/// A client that writes the rows of its part once.
pub struct Fill {
    table: Table,
    values: Values,
    next: u64,
    end: u64,
}

impl Client for Fill {
    async fn request(&mut self) -> Result<Option<u64>, String> {
        let (start, end) = (self.next, self.end.min(self.next + ROWS_PER_SCAN));
        if start == end {
            return Ok(None);
        }
        self.next = end;
        let rows: Vec<_> = (start..end).map(|row| written(row, &self.values)).collect();
        let results = self.table.mutate_rows(&rows).await.and_then(|results| results.into_iter().collect());
        results.map(|()| Some(end - start)).map_err(|error: Error| error.to_string())
    }
}

fn key(row: u64) -> RowKey {
    RowKey::new(row_key(row))
}

fn written(row: u64, values: &Values) -> (RowKey, Vec<Mutation>) {
    let cell = Mutation::SetCell {
        family: FAMILY.to_owned(),
        qualifier: Bytes::from_static(COLUMN.as_bytes()),
        timestamp: WriteTime::Server,
        value: values.value(row),
    };
    (key(row), vec![cell])
}

/// Reads the rows `[start, end)`, which all exist.
async fn read(table: &Table, start: u64, end: u64) -> Result<(), Error> {
    let range =
        if end == start + 1 { Some(KeyRange::single(key(start))) } else { KeyRange::new(key(start), Some(key(end))) };
    let rows = table.read_rows(RowSet::from_ranges(range), ReadOptions::default()).await?;
    let wanted = usize::try_from(end - start).unwrap_or(usize::MAX);
    let seen = rows.iter().filter(|row| !row.is_empty()).count();
    if seen == wanted { Ok(()) } else { Err(Error::internal(format!("{seen} rows instead of {wanted}"))) }
}

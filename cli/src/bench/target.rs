//! One Bigtable address under load: making the table, filling it, and the requests of the workloads.

use std::collections::HashMap;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_proto::data::{self, mutation};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_proto::{admin, status};
use ebla_runtime::Runtime;
use tonic::Status;
use tonic::transport::Channel;

use super::{Workload, row_key, split_keys};

/// The family that holds the values.
const FAMILY: &str = "f";
/// Clients share connections: this many clients one.
const CLIENTS_PER_CHANNEL: usize = 16;
/// Rows of one request while the table is filled.
const FILL_ROWS: u64 = 500;
/// Tablets of the table, where the address makes tablets at all.
const TABLETS: u64 = 12;
/// A scan's message of 100 rows must fit.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// An address under load, by the name that it has in the report.
#[derive(Clone)]
pub struct Target {
    /// `ebla`, `emulator`, ….
    pub name: String,
    channels: Vec<Channel>,
    table: String,
    instance: String,
}

impl Target {
    /// Channels to `address` for up to `clients` clients; nothing is sent yet.
    pub fn new(runtime: &Runtime, name: &str, address: &str, clients: usize) -> Self {
        let count = clients.div_ceil(CLIENTS_PER_CHANNEL).max(1);
        let instance = "projects/bench/instances/bench".to_owned();
        Self {
            name: name.to_owned(),
            channels: (0..count).map(|_| runtime.net.channel(address)).collect(),
            table: format!("{instance}/tables/bench"),
            instance,
        }
    }

    /// A client over one of the channels.
    pub fn client(&self, number: usize) -> Client {
        let channel = self.channels.get(number % self.channels.len().max(1)).or(self.channels.first()).cloned();
        Client {
            inner: channel.map(|channel| BigtableClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)),
            table: self.table.clone(),
        }
    }

    /// Makes the table anew and writes `rows` rows into it.
    ///
    /// # Errors
    /// What the address answers.
    pub async fn prepare(&self, rows: u64, values: &Values) -> Result<(), Error> {
        self.create(rows).await.map_err(|status| read(&status).context("make the table"))?;
        let mut client = self.client(0);
        for start in (0..rows).step_by(usize::try_from(FILL_ROWS).unwrap_or(1)) {
            let numbers: Vec<u64> = (start..rows.min(start + FILL_ROWS)).collect();
            client.write_rows(&numbers, values).await.map_err(|status| read(&status).context("fill the table"))?;
        }
        Ok(())
    }

    async fn create(&self, rows: u64) -> Result<(), Status> {
        let channel = self.channels.first().cloned().ok_or_else(|| Status::from_error("no channel".into()))?;
        let mut tables = BigtableTableAdminClient::new(channel);
        let name = self.table.clone();
        let _absent_is_fine = tables.delete_table(admin::DeleteTableRequest { name }).await;
        let families = HashMap::from([(FAMILY.to_owned(), one_version())]);
        let split = |key: String| admin::create_table_request::Split { key: Bytes::from(key) };
        let request = admin::CreateTableRequest {
            parent: self.instance.clone(),
            table_id: "bench".to_owned(),
            table: Some(admin::Table { column_families: families, ..Default::default() }),
            initial_splits: split_keys(rows, TABLETS).into_iter().map(split).collect(),
        };
        tables.create_table(request).await.map(drop)
    }
}

/// Overwriting must not pile up versions: the table stays of one size, however long the load runs.
fn one_version() -> admin::ColumnFamily {
    let rule = admin::gc_rule::Rule::MaxNumVersions(1);
    admin::ColumnFamily { gc_rule: Some(admin::GcRule { rule: Some(rule) }), ..Default::default() }
}

fn read(status: &Status) -> Error {
    status::from_status(status).0
}

/// Values that no compression makes smaller: windows into random bytes.
#[derive(Clone)]
pub struct Values {
    random: Bytes,
    length: usize,
}

impl Values {
    /// Values of `length` bytes.
    pub fn new(runtime: &Runtime, length: usize) -> Self {
        let random: Vec<u8> =
            (0..(length + (1 << 20)).div_ceil(8)).flat_map(|_| runtime.rng.u64().to_le_bytes()).collect();
        Self { random: random.into(), length }
    }

    fn value(&self, number: u64) -> Bytes {
        let room = self.random.len().saturating_sub(self.length).max(1);
        let start = usize::try_from(number.wrapping_mul(7919)).unwrap_or(0) % room;
        self.random.slice(start..(start + self.length).min(self.random.len()))
    }
}

/// What one closed-loop client sends.
pub struct Client {
    inner: Option<BigtableClient<Channel>>,
    table: String,
}

impl Client {
    /// One request of `workload` that begins at row `number` of `rows`.
    ///
    /// # Errors
    /// What the address answers; a scan that comes up short is an error too.
    pub async fn request(&mut self, workload: Workload, number: u64, rows: u64, values: &Values) -> Result<(), Status> {
        match workload {
            Workload::Write => self.write_row(number, values).await,
            Workload::Read => self.read_rows(number, number + 1).await,
            Workload::Scan => {
                let start = number.min(rows.saturating_sub(workload.rows_per_request()));
                self.read_rows(start, rows.min(start + workload.rows_per_request())).await
            }
            Workload::Batch => {
                let spread = (rows / workload.rows_per_request()).max(1);
                let numbers: Vec<_> = (0..workload.rows_per_request()).map(|n| (number + n * spread) % rows).collect();
                self.write_rows(&numbers, values).await
            }
        }
    }

    fn connection(&mut self) -> Result<&mut BigtableClient<Channel>, Status> {
        self.inner.as_mut().ok_or_else(|| Status::from_error("no channel".into()))
    }

    async fn write_row(&mut self, number: u64, values: &Values) -> Result<(), Status> {
        let request = data::MutateRowRequest {
            table_name: self.table.clone(),
            row_key: row_key(number).into(),
            mutations: vec![set_cell(values.value(number))],
            ..Default::default()
        };
        self.connection()?.mutate_row(request).await.map(drop)
    }

    async fn write_rows(&mut self, numbers: &[u64], values: &Values) -> Result<(), Status> {
        let entry = |number: &u64| data::mutate_rows_request::Entry {
            row_key: row_key(*number).into(),
            mutations: vec![set_cell(values.value(*number))],
            idempotency: None,
        };
        let request = data::MutateRowsRequest {
            table_name: self.table.clone(),
            entries: numbers.iter().map(entry).collect(),
            ..Default::default()
        };
        let mut answers = self.connection()?.mutate_rows(request).await?.into_inner();
        let mut done = 0;
        while let Some(part) = answers.message().await? {
            done += part.entries.iter().filter(|e| e.status.as_ref().is_none_or(|status| status.code == 0)).count();
        }
        if done == numbers.len() { Ok(()) } else { Err(short("entries written", done, numbers.len())) }
    }

    async fn read_rows(&mut self, start: u64, end: u64) -> Result<(), Status> {
        let single = end == start + 1;
        let range = data::RowRange {
            start_key: Some(data::row_range::StartKey::StartKeyClosed(row_key(start).into())),
            end_key: Some(data::row_range::EndKey::EndKeyOpen(row_key(end).into())),
        };
        let rows = if single {
            data::RowSet { row_keys: vec![row_key(start).into()], row_ranges: Vec::new() }
        } else {
            data::RowSet { row_keys: Vec::new(), row_ranges: vec![range] }
        };
        let request = data::ReadRowsRequest { table_name: self.table.clone(), rows: Some(rows), ..Default::default() };
        let mut answers = self.connection()?.read_rows(request).await?.into_inner();
        let mut seen = 0;
        while let Some(part) = answers.message().await? {
            seen += part.chunks.iter().filter(|chunk| chunk.row_status.is_some()).count();
        }
        let wanted = usize::try_from(end - start).unwrap_or(usize::MAX);
        if seen == wanted { Ok(()) } else { Err(short("rows", seen, wanted)) }
    }
}

fn short(what: &str, got: usize, wanted: usize) -> Status {
    status::to_status(&Error::internal(format!("{got} {what} where there must be {wanted}")))
}

fn set_cell(value: Bytes) -> Bytes {
    use prost::Message as _;
    let cell = mutation::SetCell {
        family_name: FAMILY.to_owned(),
        column_qualifier: Bytes::from_static(b"field0"),
        timestamp_micros: 0,
        value,
    };
    let mutation = data::Mutation { mutation: Some(mutation::Mutation::SetCell(cell)), ..Default::default() };
    mutation.encode_to_vec().into()
}

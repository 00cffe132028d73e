//! A Bigtable under load: making the table, and the requests of the workloads.

use std::collections::HashMap;

use bytes::Bytes;
use ebla_proto::admin;
use ebla_proto::data::{self, mutation};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use tonic::Status;
use tonic::transport::Channel;

use super::target::short;
use super::{Values, row_key, split_keys};

/// The instance and the table that are used, and made anew.
const INSTANCE: &str = "projects/bench/instances/bench";
const TABLE: &str = "projects/bench/instances/bench/tables/bench";
/// The family that holds the values.
const FAMILY: &str = "f";
/// Tablets of the table, where the address makes tablets at all.
const TABLETS: u64 = 12;
/// A scan's message of 100 rows must fit.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Makes the table anew, in tablets where the address makes tablets at all.
pub(super) async fn create(channel: Channel, rows: u64) -> Result<(), Status> {
    let mut tables = BigtableTableAdminClient::new(channel);
    let _absent_is_fine = tables.delete_table(admin::DeleteTableRequest { name: TABLE.to_owned() }).await;
    let families = HashMap::from([(FAMILY.to_owned(), one_version())]);
    let split = |key: String| admin::create_table_request::Split { key: Bytes::from(key) };
    let request = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: "bench".to_owned(),
        table: Some(admin::Table { column_families: families, ..Default::default() }),
        initial_splits: split_keys(rows, TABLETS).into_iter().map(split).collect(),
    };
    tables.create_table(request).await.map(drop)
}

/// Overwriting must not pile up versions: the table stays of one size, however long the load runs.
fn one_version() -> admin::ColumnFamily {
    let rule = admin::gc_rule::Rule::MaxNumVersions(1);
    admin::ColumnFamily { gc_rule: Some(admin::GcRule { rule: Some(rule) }), ..Default::default() }
}

/// A client of one address.
pub struct Bigtable {
    inner: BigtableClient<Channel>,
}

impl Bigtable {
    pub(super) fn new(channel: Channel) -> Self {
        Self { inner: BigtableClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX) }
    }

    pub(super) async fn write_row(&mut self, number: u64, values: &Values) -> Result<(), Status> {
        let request = data::MutateRowRequest {
            table_name: TABLE.to_owned(),
            row_key: row_key(number).into(),
            mutations: vec![set_cell(values.value(number))],
            ..Default::default()
        };
        self.inner.mutate_row(request).await.map(drop)
    }

    pub(super) async fn write_rows(&mut self, numbers: &[u64], values: &Values) -> Result<(), Status> {
        let entry = |number: &u64| data::mutate_rows_request::Entry {
            row_key: row_key(*number).into(),
            mutations: vec![set_cell(values.value(*number))],
            idempotency: None,
        };
        let request = data::MutateRowsRequest {
            table_name: TABLE.to_owned(),
            entries: numbers.iter().map(entry).collect(),
            ..Default::default()
        };
        let mut answers = self.inner.mutate_rows(request).await?.into_inner();
        let mut done = 0;
        while let Some(part) = answers.message().await? {
            done += part.entries.iter().filter(|e| e.status.as_ref().is_none_or(|status| status.code == 0)).count();
        }
        if done == numbers.len() { Ok(()) } else { Err(short("entries written", done, numbers.len())) }
    }

    /// How many rows there are in `[start, end)`.
    pub(super) async fn read_rows(&mut self, start: u64, end: u64) -> Result<usize, Status> {
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
        let request = data::ReadRowsRequest { table_name: TABLE.to_owned(), rows: Some(rows), ..Default::default() };
        let mut answers = self.inner.read_rows(request).await?.into_inner();
        let mut seen = 0;
        while let Some(part) = answers.message().await? {
            seen += part.chunks.iter().filter(|chunk| chunk.row_status.is_some()).count();
        }
        Ok(seen)
    }
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

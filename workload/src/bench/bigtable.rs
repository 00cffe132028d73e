//! A Bigtable under load: creation of the tables, and the requests of the workloads.

use std::collections::HashMap;

use bytes::Bytes;
use ebla_client::Credentials;
use ebla_model::access::{Member, Policy, Role};
use ebla_proto::admin;
use ebla_proto::convert::access::policy_to_iam;
use ebla_proto::data::{self, mutation, row_filter};
use ebla_proto::operate;
use ebla_proto::operate::operate_client::OperateClient;
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_proto::status::to_status;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::target::{count_mismatch, hundred, replaced};
use super::{Values, WIDE_COLUMNS, Workload, row_key, split_keys};

/// The instance of the tables.
const INSTANCE: &str = "projects/bench/instances/bench";
/// The tables, which are created again for each run: one with many rows of one column, one with few rows of many columns.
const ROWS: &str = "bench";
const WIDE: &str = "bench-wide";
/// The family that holds the values.
const FAMILY: &str = "f";
/// A family without cells, which only tables with lists of families have: it is hidden from the caller.
const HIDDEN: &str = "hidden";
/// And the column, where there is one.
const COLUMN: &str = "field0";
/// The largest number of splits in a request that creates a table.
const SPLITS_MAX: usize = 1_000;
/// Requests for further splits under way at the same time.
const SPLITS_IN_FLIGHT: usize = 32;
/// Columns of a wide row written in one request.
const COLUMNS_PER_WRITE: u64 = 1_000;
/// A message with 100 rows of a scan must fit, and a wide row.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Calls of a caller on a channel.
pub(super) type Caller = InterceptedService<Channel, Credentials>;

/// Creates the table for `rows` rows again, pre-split into this number of tablets; with lists of families if there is a member of them.
pub(super) async fn create(caller: Caller, member: Option<&Member>, rows: u64, tablets: u64) -> Result<(), Status> {
    create_table(caller.clone(), ROWS, member, split_keys(rows, tablets)).await?;
    set_lists(caller, ROWS, member).await
}

/// Creates the table of wide rows again.
pub(super) async fn create_wide(caller: Caller, member: Option<&Member>, rows: u64) -> Result<(), Status> {
    create_table(caller.clone(), WIDE, member, split_keys(rows, rows)).await?;
    set_lists(caller, WIDE, member).await
}

/// The member reads and writes one family, and may drop both. So each of its reads is restricted to a family, and each of its writes is checked.
async fn set_lists(caller: Caller, id: &str, member: Option<&Member>) -> Result<(), Status> {
    let Some(member) = member else { return Ok(()) };
    let mut tables = BigtableTableAdminClient::new(caller);
    for (family, roles) in
        [(FAMILY, &[Role::FamilyReader, Role::FamilyWriter, Role::FamilyAdmin][..]), (HIDDEN, &[Role::FamilyAdmin])]
    {
        let others = "group:auditors".parse::<Member>().map_err(|error| to_status(&error))?;
        let bindings = roles.iter().map(|role| (*role, member.clone())).chain([(Role::FamilyReader, others)]);
        let list = Policy::new(bindings).map_err(|error| to_status(&error))?;
        let resource = format!("{}/columnFamilies/{family}", table(id));
        let policy = Some(policy_to_iam(&list, Bytes::new()));
        let request = admin::iam::SetIamPolicyRequest { resource, policy, ..Default::default() };
        tables.set_iam_policy(request).await?;
    }
    Ok(())
}

/// More than [`SPLITS_MAX`] splits are possible only on Ebla: the others are requested one by one.
async fn create_table(
    caller: Caller,
    id: &str,
    member: Option<&Member>,
    mut splits: Vec<String>,
) -> Result<(), Status> {
    let mut later = Vec::new();
    if splits.len() > SPLITS_MAX {
        // Those at first are spread evenly, so that each of their tablets takes about the same number of later ones.
        let step = splits.len().div_ceil(SPLITS_MAX);
        let numbered: Vec<_> = splits.into_iter().enumerate().collect();
        let (at_once, one_by_one): (Vec<_>, Vec<_>) =
            numbered.into_iter().partition(|(number, _)| number.is_multiple_of(step));
        splits = at_once.into_iter().map(|(_, key)| key).collect();
        later = one_by_one.into_iter().map(|(_, key)| key).collect();
    }
    let operate = OperateClient::new(caller.clone());
    let mut tables = BigtableTableAdminClient::new(caller);
    let _absent_is_fine = tables.delete_table(admin::DeleteTableRequest { name: table(id) }).await;
    let names = [FAMILY].into_iter().chain(member.map(|_listed| HIDDEN));
    let families: HashMap<_, _> = names.map(|name| (name.to_owned(), one_version())).collect();
    let split = |key: String| admin::create_table_request::Split { key: Bytes::from(key) };
    let request = admin::CreateTableRequest {
        parent: INSTANCE.to_owned(),
        table_id: id.to_owned(),
        table: Some(admin::Table { column_families: families, ..Default::default() }),
        initial_splits: splits.into_iter().map(split).collect(),
    };
    tables.create_table(request).await?;
    let split = |key: String| {
        let (mut operate, at) = (operate.clone(), Some(Bytes::from(key)));
        async move { operate.split(operate::SplitRequest { table: table(id), at, ..Default::default() }).await }
    };
    stream::iter(later.into_iter().map(split))
        .buffer_unordered(SPLITS_IN_FLIGHT)
        .try_for_each(async |_halves| Ok(()))
        .await
}

fn table(id: &str) -> String {
    format!("{INSTANCE}/tables/{id}")
}

/// One version per cell, so that the table keeps its size however long the load runs.
fn one_version() -> admin::ColumnFamily {
    let rule = admin::gc_rule::Rule::MaxNumVersions(1);
    admin::ColumnFamily { gc_rule: Some(admin::GcRule { rule: Some(rule) }), ..Default::default() }
}

/// A client of one address.
pub struct Bigtable {
    inner: BigtableClient<Caller>,
    table: String,
    wide: String,
}

impl Bigtable {
    pub(super) fn new(caller: Caller) -> Self {
        let inner = BigtableClient::new(caller).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Self { inner, table: table(ROWS), wide: table(WIDE) }
    }

    pub(super) async fn write_row(&mut self, number: u64, values: &Values) -> Result<(), Status> {
        self.inner.mutate_row(write_request(&self.table, number, values)).await.map(drop)
    }

    pub(super) async fn write_rows(&mut self, numbers: &[u64], values: &Values) -> Result<(), Status> {
        let entry = |number: &u64| data::mutate_rows_request::Entry {
            row_key: row_key(*number).into(),
            mutations: vec![set_cell(COLUMN, values.value(*number))],
            idempotency: None,
        };
        let request = data::MutateRowsRequest {
            table_name: self.table.clone(),
            entries: numbers.iter().map(entry).collect(),
            ..Default::default()
        };
        let mut answers = self.inner.mutate_rows(request).await?.into_inner();
        let mut done = 0;
        while let Some(part) = answers.message().await? {
            done += part.entries.iter().filter(|e| e.status.as_ref().is_none_or(|status| status.code == 0)).count();
        }
        if done == numbers.len() { Ok(()) } else { Err(count_mismatch("entries written", done, numbers.len())) }
    }

    /// Replaces the value of a row if the row has one.
    pub(super) async fn replace_row(&mut self, number: u64, values: &Values) -> Result<(), Status> {
        let answer = self.inner.check_and_mutate_row(replace_request(&self.table, number, values)).await?.into_inner();
        replaced(answer.predicate_matched, number)
    }

    /// One wide row, in a few requests.
    pub(super) async fn write_wide(&mut self, number: u64, values: &Values) -> Result<(), Status> {
        for start in (0..WIDE_COLUMNS).step_by(usize::try_from(COLUMNS_PER_WRITE).unwrap_or(1)) {
            let columns = start..WIDE_COLUMNS.min(start + COLUMNS_PER_WRITE);
            let request = data::MutateRowRequest {
                table_name: self.wide.clone(),
                row_key: row_key(number).into(),
                mutations: columns.map(|column| set_cell(format!("field{column:06}"), values.value(column))).collect(),
                ..Default::default()
            };
            self.inner.mutate_row(request).await?;
        }
        Ok(())
    }

    /// Number of rows in `[start, end)`.
    pub(super) async fn read_rows(&mut self, start: u64, end: u64) -> Result<usize, Status> {
        let rows = if end == start + 1 { one_row(start) } else { some_rows(start, end) };
        self.read(read_request(&self.table, rows, None), |chunk| chunk.row_status.is_some()).await
    }

    /// The same with a filter that passes all rows.
    pub(super) async fn read_filtered(&mut self, start: u64, end: u64) -> Result<usize, Status> {
        self.read(filtered_request(&self.table, start, end), |chunk| chunk.row_status.is_some()).await
    }

    /// Number of cells in a wide row.
    pub(super) async fn read_wide(&mut self, number: u64) -> Result<usize, Status> {
        // A value that is split into chunks has its size in all chunks but the last.
        self.read(read_request(&self.wide, one_row(number), None), |chunk| chunk.value_size == 0).await
    }

    async fn read(
        &mut self,
        request: data::ReadRowsRequest,
        is_counted: impl Fn(&data::read_rows_response::CellChunk) -> bool,
    ) -> Result<usize, Status> {
        let mut answers = self.inner.read_rows(request).await?.into_inner();
        let mut seen = 0;
        while let Some(part) = answers.message().await? {
            seen += part.chunks.iter().filter(|chunk| is_counted(chunk)).count();
        }
        Ok(seen)
    }
}

/// A request of a workload as it is sent, on the table of rows: its method and its message. `None`: not of this workload.
pub fn encoded(workload: Workload, number: u64, rows: u64, values: &Values) -> Option<(&'static str, Bytes)> {
    use prost::Message as _;
    let table = table(ROWS);
    Some(match workload {
        Workload::Write => {
            ("/google.bigtable.v2.Bigtable/MutateRow", write_request(&table, number, values).encode_to_vec().into())
        }
        Workload::Check => (
            "/google.bigtable.v2.Bigtable/CheckAndMutateRow",
            replace_request(&table, number, values).encode_to_vec().into(),
        ),
        Workload::Filtered => {
            let (start, end) = hundred(number, rows);
            ("/google.bigtable.v2.Bigtable/ReadRows", filtered_request(&table, start, end).encode_to_vec().into())
        }
        _ => return None,
    })
}

fn write_request(table: &str, number: u64, values: &Values) -> data::MutateRowRequest {
    data::MutateRowRequest {
        table_name: table.to_owned(),
        row_key: row_key(number).into(),
        mutations: vec![set_cell(COLUMN, values.value(number))],
        ..Default::default()
    }
}

fn replace_request(table: &str, number: u64, values: &Values) -> data::CheckAndMutateRowRequest {
    data::CheckAndMutateRowRequest {
        table_name: table.to_owned(),
        row_key: row_key(number).into(),
        predicate_filter: Some(passing_filter()),
        true_mutations: vec![set_cell(COLUMN, values.value(number))],
        ..Default::default()
    }
}

fn filtered_request(table: &str, start: u64, end: u64) -> data::ReadRowsRequest {
    read_request(table, some_rows(start, end), Some(passing_filter()))
}

fn read_request(table: &str, rows: data::RowSet, filter: Option<Bytes>) -> data::ReadRowsRequest {
    data::ReadRowsRequest { table_name: table.to_owned(), rows: Some(rows), filter, ..Default::default() }
}

fn one_row(number: u64) -> data::RowSet {
    data::RowSet { row_keys: vec![row_key(number).into()], row_ranges: Vec::new() }
}

fn some_rows(start: u64, end: u64) -> data::RowSet {
    let range = data::RowRange {
        start_key: Some(data::row_range::StartKey::StartKeyClosed(row_key(start).into())),
        end_key: Some(data::row_range::EndKey::EndKeyOpen(row_key(end).into())),
    };
    data::RowSet { row_keys: Vec::new(), row_ranges: vec![range] }
}

/// A filter that every cell of the table passes, and that must inspect each cell.
fn passing_filter() -> Bytes {
    use prost::Message as _;
    let one = |filter| data::RowFilter { filter: Some(filter) };
    let filters = vec![
        one(row_filter::Filter::FamilyNameRegexFilter(FAMILY.to_owned())),
        one(row_filter::Filter::ColumnQualifierRegexFilter(Bytes::from_static(b"field[0-9]"))),
        one(row_filter::Filter::CellsPerColumnLimitFilter(1)),
    ];
    one(row_filter::Filter::Chain(row_filter::Chain { filters })).encode_to_vec().into()
}

fn set_cell(column: impl Into<Bytes>, value: Bytes) -> Bytes {
    use prost::Message as _;
    let cell = mutation::SetCell {
        family_name: FAMILY.to_owned(),
        column_qualifier: column.into(),
        timestamp_micros: 0,
        value,
    };
    let mutation = data::Mutation { mutation: Some(mutation::Mutation::SetCell(cell)), ..Default::default() };
    mutation.encode_to_vec().into()
}

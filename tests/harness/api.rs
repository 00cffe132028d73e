//! The public API in the few calls that the suites make, without retries: a test wants to see each answer.

use std::collections::HashMap;

use bytes::Bytes;
use ebla_proto::admin;
use ebla_proto::data::{self, mutation, read_modify_write_rule};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_runtime::Net;
use prost::Message as _;
use tonic::Status;
use tonic::transport::Channel;

/// The instance that the suites' tables live in.
pub const INSTANCE: &str = "projects/test/instances/test";

/// Scans answer messages of about 1 MiB; a single row may be larger.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A row as it was read: key, then (family, qualifier, value) in the order of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRow {
    /// The key.
    pub key: Bytes,
    /// Family, qualifier and value of each cell.
    pub cells: Vec<(String, Bytes, Bytes)>,
}

impl ReadRow {
    /// The first value of a column.
    pub fn value(&self, family: &str, qualifier: &[u8]) -> Option<&Bytes> {
        self.cells.iter().find(|(f, q, _)| f == family && q.as_ref() == qualifier).map(|(_, _, value)| value)
    }
}

/// One table at one address.
#[derive(Clone)]
pub struct Api {
    data: BigtableClient<Channel>,
    admin: BigtableTableAdminClient<Channel>,
    table: String,
}

impl Api {
    /// Speaks to `address` about the table `name`; nothing is sent yet.
    pub fn new(net: &Net, address: &str, name: &str) -> Self {
        let channel = net.channel(address);
        Self {
            data: BigtableClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            admin: BigtableTableAdminClient::new(channel),
            table: format!("{INSTANCE}/tables/{name}"),
        }
    }

    /// Makes the table with these families (one version each) and splits.
    ///
    /// # Errors
    /// The server's.
    pub async fn create(&mut self, families: &[&str], splits: &[&str]) -> Result<(), Status> {
        let rule = admin::GcRule { rule: Some(admin::gc_rule::Rule::MaxNumVersions(1)) };
        let family = |name: &&str| {
            ((*name).to_owned(), admin::ColumnFamily { gc_rule: Some(rule.clone()), ..Default::default() })
        };
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: self.table.rsplit('/').next().unwrap_or_default().to_owned(),
            table: Some(admin::Table {
                column_families: families.iter().map(family).collect::<HashMap<_, _>>(),
                ..Default::default()
            }),
            initial_splits: splits
                .iter()
                .map(|key| admin::create_table_request::Split { key: Bytes::copy_from_slice(key.as_bytes()) })
                .collect(),
        };
        self.admin.create_table(request).await.map(drop)
    }

    /// Writes cells of one row: (family, qualifier, value), at timestamp 0.
    ///
    /// # Errors
    /// The server's.
    pub async fn write(&mut self, row: &str, cells: &[(&str, &str, Bytes)]) -> Result<(), Status> {
        let request = data::MutateRowRequest {
            table_name: self.table.clone(),
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            mutations: cells.iter().map(|(family, qualifier, value)| set_cell(family, qualifier, value)).collect(),
            ..Default::default()
        };
        self.data.mutate_row(request).await.map(drop)
    }

    /// Writes many rows of one cell each; the number of entries that were refused.
    ///
    /// # Errors
    /// The server's, for the call as a whole.
    pub async fn write_many(&mut self, rows: &[(String, Bytes)], family: &str) -> Result<usize, Status> {
        let entry = |(row, value): &(String, Bytes)| data::mutate_rows_request::Entry {
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            mutations: vec![set_cell(family, "v", value)],
            idempotency: None,
        };
        let request = data::MutateRowsRequest {
            table_name: self.table.clone(),
            entries: rows.iter().map(entry).collect(),
            ..Default::default()
        };
        let mut answers = self.data.mutate_rows(request).await?.into_inner();
        let mut applied = 0;
        while let Some(part) = answers.message().await? {
            applied += part.entries.iter().filter(|e| e.status.as_ref().is_none_or(|s| s.code == 0)).count();
        }
        Ok(rows.len() - applied)
    }

    /// Appends to a column.
    ///
    /// # Errors
    /// The server's.
    pub async fn append(&mut self, row: &str, family: &str, qualifier: &str, value: &str) -> Result<(), Status> {
        let value = Bytes::copy_from_slice(value.as_bytes());
        self.modify(row, family, qualifier, read_modify_write_rule::Rule::AppendValue(value)).await
    }

    /// Adds to a counter.
    ///
    /// # Errors
    /// The server's.
    pub async fn increment(&mut self, row: &str, family: &str, qualifier: &str, by: i64) -> Result<(), Status> {
        self.modify(row, family, qualifier, read_modify_write_rule::Rule::IncrementAmount(by)).await
    }

    async fn modify(
        &mut self,
        row: &str,
        family: &str,
        qualifier: &str,
        rule: read_modify_write_rule::Rule,
    ) -> Result<(), Status> {
        let rule = data::ReadModifyWriteRule {
            family_name: family.to_owned(),
            column_qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
            rule: Some(rule),
        };
        let request = data::ReadModifyWriteRowRequest {
            table_name: self.table.clone(),
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            rules: vec![rule.encode_to_vec().into()],
            ..Default::default()
        };
        self.data.read_modify_write_row(request).await.map(drop)
    }

    /// One row, when it has cells.
    ///
    /// # Errors
    /// The server's.
    pub async fn read(&mut self, row: &str) -> Result<Option<ReadRow>, Status> {
        let keys = data::RowSet { row_keys: vec![Bytes::copy_from_slice(row.as_bytes())], row_ranges: Vec::new() };
        let mut found = None;
        self.read_set(keys, |row| found = Some(row)).await?;
        Ok(found)
    }

    /// Every row whose key starts with `prefix`, in order, to `each`.
    ///
    /// # Errors
    /// The server's; rows seen before it stay seen.
    pub async fn scan(&mut self, prefix: &str, each: impl FnMut(ReadRow)) -> Result<(), Status> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let range = data::RowRange {
            start_key: Some(data::row_range::StartKey::StartKeyClosed(Bytes::copy_from_slice(prefix.as_bytes()))),
            end_key: (!end.is_empty()).then(|| data::row_range::EndKey::EndKeyOpen(end.into())),
        };
        self.read_set(data::RowSet { row_keys: Vec::new(), row_ranges: vec![range] }, each).await
    }

    async fn read_set(&mut self, rows: data::RowSet, mut each: impl FnMut(ReadRow)) -> Result<(), Status> {
        let request = data::ReadRowsRequest { table_name: self.table.clone(), rows: Some(rows), ..Default::default() };
        let mut answers = self.data.read_rows(request).await?.into_inner();
        while let Some(part) = answers.message().await? {
            let mut row: Option<ReadRow> = None;
            let (mut family, mut qualifier) = (String::new(), Bytes::new());
            for chunk in part.chunks {
                let row = row.get_or_insert_with(|| ReadRow { key: chunk.row_key.clone(), cells: Vec::new() });
                if !chunk.row_key.is_empty() {
                    row.key = chunk.row_key;
                }
                family = chunk.family_name.map_or(family, |name| name.value);
                qualifier = chunk.qualifier.map_or(qualifier, |name| name.value);
                row.cells.push((family.clone(), qualifier.clone(), chunk.value));
                if chunk.row_status.is_some() {
                    each(std::mem::replace(row, ReadRow { key: Bytes::new(), cells: Vec::new() }));
                }
            }
        }
        Ok(())
    }

    /// The table's tablets, by their ends; the last one is empty.
    ///
    /// # Errors
    /// The server's.
    pub async fn tablet_ends(&mut self) -> Result<Vec<Bytes>, Status> {
        let request = data::SampleRowKeysRequest { table_name: self.table.clone(), ..Default::default() };
        let mut answers = self.data.sample_row_keys(request).await?.into_inner();
        let mut ends = Vec::new();
        while let Some(sample) = answers.message().await? {
            ends.push(sample.row_key);
        }
        Ok(ends)
    }
}

fn set_cell(family: &str, qualifier: &str, value: &Bytes) -> Bytes {
    let cell = mutation::SetCell {
        family_name: family.to_owned(),
        column_qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
        timestamp_micros: 0,
        value: value.clone(),
    };
    let mutation = data::Mutation { mutation: Some(mutation::Mutation::SetCell(cell)), ..Default::default() };
    mutation.encode_to_vec().into()
}

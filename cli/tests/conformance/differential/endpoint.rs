//! A server with the Bigtable API: runs steps as calls on two tables.

use std::ops::Bound;

use bytes::Bytes;
use ebla_proto::admin;
use ebla_proto::convert::filter_to_bytes;
use ebla_proto::data::{self, mutation, read_modify_write_rule, row_range};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_runtime::Net;
use prost::Message;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::model::{OutCell, Outcome, shown};
use super::program::{Change, Direction, FAMILIES, FUTURE, Range, Rule, SPLITS, Step, Table};
use crate::conformance::rows;

const INSTANCE: &str = "projects/differential/instances/differential";

/// A server, or several servers of one cluster that are used in turn.
pub(crate) struct Endpoint {
    pub(crate) who: &'static str,
    channels: Vec<Channel>,
    turn: usize,
    has_tables: bool,
}

impl Endpoint {
    pub(crate) fn new(who: &'static str, addresses: &[String], net: &Net) -> Self {
        let channels = addresses.iter().map(|address| net.channel(address)).collect();
        Self { who, channels, turn: 0, has_tables: false }
    }

    fn client(&mut self) -> BigtableClient<Channel> {
        self.turn += 1;
        BigtableClient::new(self.channels[self.turn % self.channels.len()].clone())
    }

    /// Creates the tables at first; later deletes all rows.
    pub(crate) async fn begin(&mut self) {
        let tables = [(Table::One, &FAMILIES[..1]), (Table::Two, &FAMILIES[..])];
        for (table, families) in tables {
            if self.has_tables {
                self.clear(table).await;
            } else {
                self.create(table, families).await;
            }
        }
        self.has_tables = true;
    }

    async fn create(&mut self, table: Table, families: &[&str]) {
        let family = |name: &&str| ((*name).to_owned(), admin::ColumnFamily::default());
        let split = |key: &[u8]| admin::create_table_request::Split { key: Bytes::copy_from_slice(key) };
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: id(table).to_owned(),
            table: Some(admin::Table { column_families: families.iter().map(family).collect(), ..Default::default() }),
            initial_splits: SPLITS.iter().map(|key| split(key)).collect(),
        };
        BigtableTableAdminClient::new(self.channels[0].clone()).create_table(request).await.unwrap();
    }

    async fn clear(&mut self, table: Table) {
        let read =
            Step::Read { table, keys: vec![], ranges: vec![], filter: None, limit: 0, direction: Direction::Ascending };
        let Outcome::Rows(rows) = self.run(&read).await else { panic!("{} cannot be read", self.who) };
        if !rows.is_empty() {
            let entries = rows.into_iter().map(|(row, _)| (row, vec![Change::DeleteRow])).collect();
            self.run(&Step::Bulk { table, entries }).await;
        }
    }

    /// Runs a step.
    pub(crate) async fn run(&mut self, step: &Step) -> Outcome {
        let answer = match step {
            Step::Mutate { table, row, changes } => self.mutate(*table, row, changes).await,
            Step::Bulk { table, entries } => self.bulk(*table, entries).await,
            Step::Check { table, row, predicate, then, otherwise } => {
                let request = data::CheckAndMutateRowRequest {
                    table_name: name(*table),
                    row_key: row.clone(),
                    predicate_filter: predicate.as_ref().map(filter_to_bytes),
                    true_mutations: encoded(then),
                    false_mutations: encoded(otherwise),
                    ..Default::default()
                };
                let answer = self.client().check_and_mutate_row(request).await;
                answer.map(|answer| Outcome::Matched(answer.into_inner().predicate_matched))
            }
            Step::Modify { table, row, rules } => self.modify(*table, row, rules).await,
            Step::Read { table, keys, ranges, filter, limit, direction } => {
                let rows = data::RowSet { row_keys: keys.clone(), row_ranges: ranges.iter().map(range).collect() };
                let request = data::ReadRowsRequest {
                    table_name: name(*table),
                    rows: Some(rows),
                    filter: filter.as_ref().map(filter_to_bytes),
                    rows_limit: *limit,
                    reversed: *direction == Direction::Descending,
                    ..Default::default()
                };
                self.read(request).await
            }
        };
        answer.unwrap_or_else(|status| Outcome::Refused(status.code()))
    }

    async fn mutate(&mut self, table: Table, row: &Bytes, changes: &[Change]) -> Result<Outcome, Status> {
        let request = data::MutateRowRequest {
            table_name: name(table),
            row_key: row.clone(),
            mutations: encoded(changes),
            ..Default::default()
        };
        self.client().mutate_row(request).await.map(|_| Outcome::Done)
    }

    async fn bulk(&mut self, table: Table, entries: &[(Bytes, Vec<Change>)]) -> Result<Outcome, Status> {
        let entry = |(row, changes): &(Bytes, Vec<Change>)| data::mutate_rows_request::Entry {
            row_key: row.clone(),
            mutations: encoded(changes),
            idempotency: None,
        };
        let request = data::MutateRowsRequest {
            table_name: name(table),
            entries: entries.iter().map(entry).collect(),
            ..Default::default()
        };
        let mut answers = self.client().mutate_rows(request).await?.into_inner();
        let mut codes = vec![None; entries.len()];
        while let Some(message) = answers.message().await? {
            for entry in message.entries {
                let code = entry.status.map_or(Code::Ok, |status| Code::from_i32(status.code));
                let before = codes[usize::try_from(entry.index).unwrap()].replace(code);
                assert_eq!(before, None, "{} reports an entry twice", self.who);
            }
        }
        Ok(Outcome::Entries(codes.into_iter().map(|code| code.expect("each entry has a status")).collect()))
    }

    /// Applies the rules, then deletes the cells with timestamps of the server, which are not predictable.
    async fn modify(&mut self, table: Table, row: &Bytes, rules: &[(String, Bytes, Rule)]) -> Result<Outcome, Status> {
        let request = data::ReadModifyWriteRowRequest {
            table_name: name(table),
            row_key: row.clone(),
            rules: rules.iter().map(rule).collect(),
            ..Default::default()
        };
        let answer = self.client().read_modify_write_row(request).await?.into_inner();
        let stamped = |(family, qualifier, _): &(String, Bytes, Rule)| Change::DeleteColumn {
            family: family.clone(),
            qualifier: qualifier.clone(),
            start: 0,
            end: FUTURE,
        };
        self.mutate(table, row, &rules.iter().map(stamped).collect::<Vec<_>>()).await?;
        let families = answer.row.unwrap_or_default().families;
        let cells = families.into_iter().flat_map(|family| {
            family.columns.into_iter().flat_map(move |column| {
                let family = family.name.clone();
                column.cells.into_iter().map(move |cell| OutCell {
                    family: family.clone(),
                    qualifier: column.qualifier.clone(),
                    at: shown(cell.timestamp_micros),
                    value: cell.value,
                    labels: cell.labels,
                })
            })
        });
        Ok(Outcome::Row(cells.collect()))
    }

    async fn read(&mut self, request: data::ReadRowsRequest) -> Result<Outcome, Status> {
        let mut request = Request::new(request);
        request.metadata_mut().insert("bigtable-features", rows::FEATURES.parse().unwrap());
        let answers = self.client().read_rows(request).await?.into_inner();
        let read = rows::collect(answers).await?;
        let rows = read.rows.into_iter().map(|(key, cells)| (key, cells.into_iter().map(out).collect()));
        Ok(Outcome::Rows(rows.collect()))
    }
}

fn out(cell: rows::Cell) -> OutCell {
    let rows::Cell { family, qualifier, timestamp_micros, value, labels } = cell;
    OutCell { family, qualifier, at: shown(timestamp_micros), value, labels }
}

const fn id(table: Table) -> &'static str {
    match table {
        Table::One => "one",
        Table::Two => "two",
    }
}

fn name(table: Table) -> String {
    format!("{INSTANCE}/tables/{}", id(table))
}

fn encoded(changes: &[Change]) -> Vec<Bytes> {
    changes.iter().map(|change| Bytes::from(mutation_of(change).encode_to_vec())).collect()
}

fn mutation_of(change: &Change) -> data::Mutation {
    let mutation = match change.clone() {
        Change::Set { family, qualifier, at, value } => mutation::Mutation::SetCell(mutation::SetCell {
            family_name: family,
            column_qualifier: qualifier,
            timestamp_micros: at,
            value,
        }),
        Change::DeleteColumn { family, qualifier, start, end } => {
            mutation::Mutation::DeleteFromColumn(mutation::DeleteFromColumn {
                family_name: family,
                column_qualifier: qualifier,
                time_range: Some(data::TimestampRange { start_timestamp_micros: start, end_timestamp_micros: end }),
            })
        }
        Change::DeleteFamily { family } => {
            mutation::Mutation::DeleteFromFamily(mutation::DeleteFromFamily { family_name: family })
        }
        Change::DeleteRow => mutation::Mutation::DeleteFromRow(mutation::DeleteFromRow {}),
    };
    data::Mutation { mutation: Some(mutation), ..Default::default() }
}

fn rule((family, qualifier, rule): &(String, Bytes, Rule)) -> Bytes {
    let rule = match rule.clone() {
        Rule::Append(suffix) => read_modify_write_rule::Rule::AppendValue(suffix),
        Rule::Increment(amount) => read_modify_write_rule::Rule::IncrementAmount(amount),
    };
    let rule = data::ReadModifyWriteRule {
        family_name: family.clone(),
        column_qualifier: qualifier.clone(),
        rule: Some(rule),
    };
    rule.encode_to_vec().into()
}

fn range((start, end): &Range) -> data::RowRange {
    use row_range::{EndKey, StartKey};
    let start_key = match start.clone() {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(StartKey::StartKeyClosed(key)),
        Bound::Excluded(key) => Some(StartKey::StartKeyOpen(key)),
    };
    let end_key = match end.clone() {
        Bound::Unbounded => None,
        Bound::Included(key) => Some(EndKey::EndKeyClosed(key)),
        Bound::Excluded(key) => Some(EndKey::EndKeyOpen(key)),
    };
    data::RowRange { start_key, end_key }
}

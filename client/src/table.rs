//! Rows of one table, in the terms of the model. The same surface over both ways in.
//!
//! A cluster's table is known by name here and by id below. The id is asked for with each call (from memory); when a
//! tablet says that the table is gone, it is asked for afresh once, so a table that was dropped and made again is found,
//! and never mistaken for its ancestor.

use std::time::Duration;

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::filter::Filter;
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::mutation::{Mutation, validate_row_key, validate_written_key};
use ebla_model::rmw::Rule;
use ebla_model::schema::TableName;
use ebla_proto::status::{from_rpc_status, from_status};
use ebla_proto::{convert, data};
use ebla_runtime::Runtime;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt, TryStreamExt, iter};
use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::client::{TIMEOUT, Way, no_such_table};
use crate::cluster::{Check, Cluster, Modify, RowWrite};
use crate::deadline::Deadline;
use crate::directory::Freshness;
use crate::read::RowMerger;
use crate::scan::{Direction, Read, Stats};

/// One table. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Table {
    way: Way,
    name: TableName,
    runtime: Runtime,
    timeout: Duration,
}

/// What to see of the rows that are read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// What to see of each row; absent: everything.
    pub filter: Option<Filter>,
    /// Rows that come out of the filter; 0: no limit.
    pub limit: u64,
    /// In which order.
    pub direction: Direction,
}

/// Rows as they come. It ends with its first error.
pub type RowStream = BoxStream<'static, Result<Row, Error>>;

impl Table {
    pub(crate) const fn new(way: Way, name: TableName, runtime: Runtime) -> Self {
        Self { way, name, runtime, timeout: TIMEOUT }
    }

    /// The table's name.
    pub const fn name(&self) -> &TableName {
        &self.name
    }

    /// The same table, whose calls may take so long.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// One row; `None` when it has no cell that passes the filter.
    ///
    /// # Errors
    /// As [`Self::read_rows`].
    pub async fn read_row(&self, key: &RowKey, filter: Option<Filter>) -> Result<Option<Row>, Error> {
        let rows = RowSet::from_ranges([KeyRange::single(key.clone())]);
        Ok(self.read_rows(rows, ReadOptions { filter, ..ReadOptions::default() }).await?.pop())
    }

    /// Rows in order, all at once. For many rows use [`Self::stream_rows`].
    ///
    /// # Errors
    /// `NotFoundTable`; `Deadline` or `Unavailable` when the time is over; what is wrong with the filter.
    pub async fn read_rows(&self, rows: RowSet, options: ReadOptions) -> Result<Vec<Row>, Error> {
        self.stream_rows(rows, options).try_collect().await
    }

    /// Rows in order, as they come. The table's timeout is for the whole stream, which ends with its first error.
    pub fn stream_rows(&self, rows: RowSet, options: ReadOptions) -> RowStream {
        let table = self.clone();
        futures::stream::once(async move { table.open_rows(rows, options).await }).try_flatten().boxed()
    }

    async fn open_rows(&self, rows: RowSet, options: ReadOptions) -> Result<RowStream, Error> {
        if rows.is_empty() {
            return Ok(iter([]).boxed());
        }
        match &self.way {
            Way::Cluster(cluster) => {
                let open =
                    |table| -> BoxFuture<'_, _> { Box::pin(self.cluster_stream(cluster, table, &rows, &options)) };
                self.on_table(cluster, open).await
            }
            Way::Endpoint(client) => {
                let mut request = self.request(read_request(&self.name, &rows, &options));
                request.metadata_mut().insert(FEATURES_HEADER, MetadataValue::from_static(FEATURES));
                let stream = client.clone().read_rows(request).await.map_err(failed)?.into_inner();
                Ok(merged(stream.map_err(failed).boxed(), RowMerger::default()))
            }
        }
    }

    /// The rows of a cluster's table, with the first message here already: it shows whether the table is there.
    async fn cluster_stream(
        &self,
        cluster: &Cluster,
        table: TableId,
        rows: &RowSet,
        options: &ReadOptions,
    ) -> Result<RowStream, Error> {
        let read = Read {
            table,
            rows: rows.clone(),
            filter: options.filter.as_ref().map(convert::filter_to_bytes),
            limit: options.limit,
            direction: options.direction,
            stats: Stats::Skip,
            large_rows: convert::LargeRows::Split,
        };
        let mut parts = cluster.read_rows(read, self.deadline());
        let Some(first) = parts.try_next().await? else { return Ok(iter([]).boxed()) };
        let responses = iter([Ok(first)]).chain(parts).map(|part| {
            data::ReadRowsResponse::decode(part?.response)
                .map_err(|error| Error::internal(format!("decode rows: {error}")))
        });
        Ok(merged(responses.boxed(), RowMerger::of_tablets()))
    }

    /// Applies mutations to one row, all or none.
    ///
    /// # Errors
    /// `NotFoundTable`, `NotFoundFamily`, `InvalidArgument`; `Deadline` when it may have been applied, `Unavailable` when
    /// it was not.
    pub async fn mutate_row(&self, key: &RowKey, mutations: &[Mutation]) -> Result<(), Error> {
        validate_written_key(key, mutations)?;
        let mutations: Vec<Bytes> = mutations.iter().map(convert::mutation_to_bytes).collect();
        match &self.way {
            Way::Cluster(cluster) => {
                let call = |table| -> BoxFuture<'_, _> {
                    let write = RowWrite { row: key.clone(), mutations: mutations.clone(), token: None };
                    Box::pin(cluster.mutate_row(table, write, self.deadline()))
                };
                self.on_table(cluster, call).await
            }
            Way::Endpoint(client) => {
                let message = data::MutateRowRequest {
                    table_name: self.name.as_str().to_owned(),
                    row_key: key.bytes().clone(),
                    mutations,
                    ..Default::default()
                };
                client.clone().mutate_row(self.request(message)).await.map(drop).map_err(failed)
            }
        }
    }

    /// Applies mutations to rows, each row for itself; one result for each, in order.
    ///
    /// # Errors
    /// When nothing could be sent; what happened to a row is in its own result.
    pub async fn mutate_rows(&self, rows: &[(RowKey, Vec<Mutation>)]) -> Result<Vec<Result<(), Error>>, Error> {
        let writes = rows.iter().map(|(row, mutations)| RowWrite {
            row: row.clone(),
            mutations: mutations.iter().map(convert::mutation_to_bytes).collect(),
            token: None,
        });
        let writes: Vec<RowWrite> = writes.collect();
        match &self.way {
            Way::Cluster(cluster) => {
                let table = self.id(cluster, Freshness::Cached).await?;
                let results = cluster.mutate_rows(table, writes.clone(), self.deadline()).await;
                let is_gone = |result: &Result<(), Error>| {
                    result.as_ref().is_err_and(|error| error.reason == Reason::NotFoundTable)
                };
                if results.is_empty() || !results.iter().all(is_gone) {
                    return Ok(results);
                }
                let table = self.id(cluster, Freshness::Fresh).await?;
                Ok(cluster.mutate_rows(table, writes, self.deadline()).await)
            }
            Way::Endpoint(client) => {
                let count = writes.len();
                let entries = writes.into_iter().map(|write| data::mutate_rows_request::Entry {
                    row_key: write.row.bytes().clone(),
                    mutations: write.mutations,
                    ..Default::default()
                });
                let message = data::MutateRowsRequest {
                    table_name: self.name.as_str().to_owned(),
                    entries: entries.collect(),
                    ..Default::default()
                };
                let stream = client.clone().mutate_rows(self.request(message)).await.map_err(failed)?.into_inner();
                outcomes(stream.map_err(failed).boxed(), count).await
            }
        }
    }

    /// Applies `then` when the filter lets a cell of the row pass (without one: when the row has a cell), else
    /// `otherwise`; answers which.
    ///
    /// # Errors
    /// As [`Self::mutate_row`].
    pub async fn check_and_mutate(
        &self,
        key: &RowKey,
        predicate: Option<Filter>,
        then: &[Mutation],
        otherwise: &[Mutation],
    ) -> Result<bool, Error> {
        validate_row_key(key)?;
        let check = Check {
            row: key.clone(),
            predicate: predicate.as_ref().map(convert::filter_to_bytes),
            then: then.iter().map(convert::mutation_to_bytes).collect(),
            otherwise: otherwise.iter().map(convert::mutation_to_bytes).collect(),
            token: None,
        };
        match &self.way {
            Way::Cluster(cluster) => {
                let call =
                    |table| -> BoxFuture<'_, _> { Box::pin(cluster.check(table, check.clone(), self.deadline())) };
                self.on_table(cluster, call).await
            }
            Way::Endpoint(client) => {
                let message = data::CheckAndMutateRowRequest {
                    table_name: self.name.as_str().to_owned(),
                    row_key: check.row.bytes().clone(),
                    predicate_filter: check.predicate,
                    true_mutations: check.then,
                    false_mutations: check.otherwise,
                    ..Default::default()
                };
                let answer = client.clone().check_and_mutate_row(self.request(message)).await;
                answer.map(|answer| answer.into_inner().predicate_matched).map_err(failed)
            }
        }
    }

    /// Appends to and increments columns of one row; answers the cells that were written.
    ///
    /// # Errors
    /// As [`Self::mutate_row`]; `FailedPrecondition` when a column to be incremented is no counter.
    pub async fn read_modify_write(&self, key: &RowKey, rules: &[Rule]) -> Result<Row, Error> {
        validate_row_key(key)?;
        let rules = rules.iter().map(convert::rule_to_bytes).collect();
        let modify = Modify { row: key.clone(), rules, token: None };
        let answer = match &self.way {
            Way::Cluster(cluster) => {
                let call = |table| -> BoxFuture<'_, _> { Box::pin(cluster.modify(table, &modify, self.deadline())) };
                let encoded = self.on_table(cluster, call).await?;
                data::ReadModifyWriteRowResponse::decode(encoded)
                    .map_err(|error| Error::internal(format!("decode row: {error}")))?
            }
            Way::Endpoint(client) => {
                let message = data::ReadModifyWriteRowRequest {
                    table_name: self.name.as_str().to_owned(),
                    row_key: key.bytes().clone(),
                    rules: modify.rules,
                    ..Default::default()
                };
                let answer = client.clone().read_modify_write_row(self.request(message)).await;
                answer.map(Response::into_inner).map_err(failed)?
            }
        };
        answer.row.as_ref().map_or_else(|| Ok(Row::empty(key.clone())), convert::row_from_proto)
    }

    /// Keys that part the table into pieces, each the exclusive end of one, with the bytes up to there, roughly. The last
    /// is [`RowKey::EMPTY`]: the end of the table.
    ///
    /// # Errors
    /// As [`Self::read_rows`].
    pub async fn sample_row_keys(&self) -> Result<Vec<(RowKey, u64)>, Error> {
        match &self.way {
            Way::Cluster(cluster) => {
                let call = |table| -> BoxFuture<'_, _> { Box::pin(cluster.sample(table, self.deadline())) };
                self.on_table(cluster, call).await
            }
            Way::Endpoint(client) => {
                let message =
                    data::SampleRowKeysRequest { table_name: self.name.as_str().to_owned(), ..Default::default() };
                let stream = client.clone().sample_row_keys(self.request(message)).await.map_err(failed)?.into_inner();
                let sample = |sample: data::SampleRowKeysResponse| {
                    (RowKey::new(sample.row_key), u64::try_from(sample.offset_bytes).unwrap_or(0))
                };
                stream.map_ok(sample).map_err(failed).try_collect().await
            }
        }
    }

    /// Calls with the table's id; once more with a fresh one when the table is gone.
    async fn on_table<'a, T>(
        &self,
        cluster: &Cluster,
        call: impl Fn(TableId) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        match call(self.id(cluster, Freshness::Cached).await?).await {
            Err(error) if error.reason == Reason::NotFoundTable => {
                call(self.id(cluster, Freshness::Fresh).await?).await
            }
            answer => answer,
        }
    }

    async fn id(&self, cluster: &Cluster, freshness: Freshness) -> Result<TableId, Error> {
        cluster.directory().table(&self.name, freshness).await?.ok_or_else(|| no_such_table(&self.name))
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(&self.runtime.clock, self.timeout)
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }
}

/// What this client understands: `FeatureFlags { reverse_scans: true }` in base64. Who does not say so is refused reversed
/// reads.
const FEATURES_HEADER: &str = "bigtable-features";
const FEATURES: &str = "CAE=";

fn failed(status: Status) -> Error {
    from_status(&status).0
}

fn read_request(name: &TableName, rows: &RowSet, options: &ReadOptions) -> data::ReadRowsRequest {
    let row_ranges = rows.ranges().iter().map(|range| data::RowRange {
        start_key: Some(data::row_range::StartKey::StartKeyClosed(range.start().bytes().clone()))
            .filter(|_start| !range.start().is_empty()),
        end_key: range.end().map(|end| data::row_range::EndKey::EndKeyOpen(end.bytes().clone())),
    });
    data::ReadRowsRequest {
        table_name: name.as_str().to_owned(),
        rows: Some(data::RowSet { row_keys: Vec::new(), row_ranges: row_ranges.collect() }),
        filter: options.filter.as_ref().map(convert::filter_to_bytes),
        rows_limit: i64::try_from(options.limit).unwrap_or(i64::MAX),
        reversed: options.direction == Direction::Descending,
        ..Default::default()
    }
}

/// Rows from messages that may cut a row anywhere.
fn merged(stream: BoxStream<'static, Result<data::ReadRowsResponse, Error>>, merger: RowMerger) -> RowStream {
    let rows = futures::stream::try_unfold((stream, merger), |(mut stream, mut merger)| async move {
        match stream.try_next().await? {
            Some(response) => {
                let rows = merger.merge(response)?;
                Ok(Some((iter(rows.into_iter().map(Ok)), (stream, merger))))
            }
            None => merger.finish().map(|()| None),
        }
    });
    rows.try_flatten().boxed()
}

/// The results of a bulk write, by place; a row without a status may or may not have been written.
async fn outcomes(
    mut stream: BoxStream<'static, Result<data::MutateRowsResponse, Error>>,
    count: usize,
) -> Result<Vec<Result<(), Error>>, Error> {
    let unanswered = || Err(Error::new(Reason::OutcomeUnknown, "the write was not answered"));
    let mut results: Vec<Result<(), Error>> = std::iter::repeat_with(unanswered).take(count).collect();
    while let Some(response) = stream.try_next().await? {
        for entry in response.entries {
            let slot = usize::try_from(entry.index).ok().and_then(|index| results.get_mut(index));
            if let (Some(slot), Some(status)) = (slot, entry.status) {
                *slot = if status.code == 0 { Ok(()) } else { Err(from_rpc_status(&status)) };
            }
        }
    }
    Ok(results)
}

//! Rows of one table, with the types of the model. The interface is the same for both backends.
//!
//! A table of a cluster has a name here and an id below. Each call resolves the id (from a cache). If a tablet reports
//! that the table does not exist, the id is resolved again once, so that a recreated table is found and never confused
//! with its predecessor.

use std::time::Duration;

use bytes::Bytes;
use ebla_model::cell::Row;
use ebla_model::error::{Error, Reason};
use ebla_model::filter::Filter;
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::limit::RowLimit;
use ebla_model::mutation::{Mutation, validate_row_key, validate_written_key};
use ebla_model::rmw::Rule;
use ebla_model::schema::TableName;
use ebla_proto::status::{from_rpc_status, from_status};
use ebla_proto::{convert, data};
use ebla_runtime::Runtime;
use futures::stream::{BoxStream, StreamExt, TryStreamExt, iter};
use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::backend::{Backend, TIMEOUT};
use crate::cluster::{Check, Cluster, Modify};
use crate::deadline::Deadline;
use crate::mutate::RowWrite;
use crate::read::RowMerger;
use crate::scan::{Direction, Read, Stats};
use crate::table_id::unless_table_missing;

/// One table. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Table {
    backend: Backend,
    name: TableName,
    runtime: Runtime,
    timeout: Duration,
}

/// The options of a read.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The filter; `None` passes everything.
    pub filter: Option<Filter>,
    /// The maximum number of rows that pass the filter; 0: no limit.
    pub limit: u64,
    /// The order of the rows.
    pub direction: Direction,
}

/// A stream of rows. It ends with its first error.
pub type RowStream = BoxStream<'static, Result<Row, Error>>;

impl Table {
    pub(crate) const fn new(backend: Backend, name: TableName, runtime: Runtime) -> Self {
        Self { backend, name, runtime, timeout: TIMEOUT }
    }

    /// The table's name.
    pub const fn name(&self) -> &TableName {
        &self.name
    }

    /// The same table with `timeout` for each call.
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

    /// Rows in order, collected. For many rows use [`Self::stream_rows`].
    ///
    /// # Errors
    /// `NotFoundTable`; `Deadline` or `Unavailable` after the timeout; `InvalidArgument` for an invalid filter.
    pub async fn read_rows(&self, rows: RowSet, options: ReadOptions) -> Result<Vec<Row>, Error> {
        self.stream_rows(rows, options).try_collect().await
    }

    /// A stream of rows in order. The table's timeout bounds the whole stream, which ends with its first error.
    pub fn stream_rows(&self, rows: RowSet, options: ReadOptions) -> RowStream {
        let table = self.clone();
        futures::stream::once(async move { table.open_rows(rows, options).await }).try_flatten().boxed()
    }

    async fn open_rows(&self, rows: RowSet, options: ReadOptions) -> Result<RowStream, Error> {
        if rows.is_empty() {
            return Ok(iter([]).boxed());
        }
        match &self.backend {
            Backend::Cluster(cluster) => {
                cluster.with_table(&self.name, |table| self.cluster_stream(cluster, table, &rows, &options)).await
            }
            Backend::Endpoint(client) => {
                let mut request = self.request(read_request(&self.name, &rows, &options));
                request.metadata_mut().insert(FEATURES_HEADER, MetadataValue::from_static(FEATURES));
                let stream = client.clone().read_rows(request).await.map_err(status_error)?.into_inner();
                Ok(merged(stream.map_err(status_error).boxed(), RowMerger::default()))
            }
        }
    }

    /// The rows of a table of a cluster. Waits for the first message, which shows whether the table exists.
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
            limit: RowLimit::new(options.limit),
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

    /// Applies mutations to one row atomically.
    ///
    /// # Errors
    /// `NotFoundTable`, `NotFoundFamily`, `InvalidArgument`; `Deadline` when they may have been applied, `Unavailable`
    /// when they were not.
    pub async fn mutate_row(&self, key: &RowKey, mutations: &[Mutation]) -> Result<(), Error> {
        validate_written_key(key, mutations)?;
        let mutations: Vec<Bytes> = mutations.iter().map(convert::mutation_to_bytes).collect();
        match &self.backend {
            Backend::Cluster(cluster) => {
                let write = RowWrite { row: key.clone(), mutations, token: None };
                let call = |table| cluster.mutate_row(table, write.clone(), self.deadline());
                cluster.with_table(&self.name, call).await
            }
            Backend::Endpoint(client) => {
                let message = data::MutateRowRequest {
                    table_name: self.name.as_str().to_owned(),
                    row_key: key.bytes().clone(),
                    mutations,
                    ..Default::default()
                };
                client.clone().mutate_row(self.request(message)).await.map(drop).map_err(status_error)
            }
        }
    }

    /// Applies mutations to rows, each row atomically; one result for each row, in order.
    ///
    /// # Errors
    /// When nothing could be sent; each row has its own result.
    pub async fn mutate_rows(&self, rows: &[(RowKey, Vec<Mutation>)]) -> Result<Vec<Result<(), Error>>, Error> {
        let writes = rows.iter().map(|(row, mutations)| RowWrite {
            row: row.clone(),
            mutations: mutations.iter().map(convert::mutation_to_bytes).collect(),
            token: None,
        });
        let writes: Vec<RowWrite> = writes.collect();
        match &self.backend {
            Backend::Cluster(cluster) => {
                let call = |table| {
                    let results = cluster.mutate_rows(table, writes.clone(), self.deadline());
                    async move { unless_table_missing(results.await) }
                };
                cluster.with_table(&self.name, call).await
            }
            Backend::Endpoint(client) => {
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
                let stream =
                    client.clone().mutate_rows(self.request(message)).await.map_err(status_error)?.into_inner();
                row_results(stream.map_err(status_error).boxed(), count).await
            }
        }
    }

    /// Applies `then` if a cell of the row passes the filter (without a filter: if the row has a cell), `otherwise` if
    /// not; returns whether `then` was applied.
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
        match &self.backend {
            Backend::Cluster(cluster) => {
                let call = |table| cluster.check(table, check.clone(), self.deadline());
                cluster.with_table(&self.name, call).await
            }
            Backend::Endpoint(client) => {
                let message = data::CheckAndMutateRowRequest {
                    table_name: self.name.as_str().to_owned(),
                    row_key: check.row.bytes().clone(),
                    predicate_filter: check.predicate,
                    true_mutations: check.then,
                    false_mutations: check.otherwise,
                    ..Default::default()
                };
                let response = client.clone().check_and_mutate_row(self.request(message)).await;
                response.map(|response| response.into_inner().predicate_matched).map_err(status_error)
            }
        }
    }

    /// Appends to and increments columns of one row; returns the written cells.
    ///
    /// # Errors
    /// As [`Self::mutate_row`]; `FailedPrecondition` when an incremented column is not a counter.
    pub async fn read_modify_write(&self, key: &RowKey, rules: &[Rule]) -> Result<Row, Error> {
        validate_row_key(key)?;
        let rules = rules.iter().map(convert::rule_to_bytes).collect();
        let modify = Modify { row: key.clone(), rules, token: None };
        let response = match &self.backend {
            Backend::Cluster(cluster) => {
                let call = |table| cluster.modify(table, &modify, self.deadline());
                let encoded = cluster.with_table(&self.name, call).await?;
                data::ReadModifyWriteRowResponse::decode(encoded)
                    .map_err(|error| Error::internal(format!("decode row: {error}")))?
            }
            Backend::Endpoint(client) => {
                let message = data::ReadModifyWriteRowRequest {
                    table_name: self.name.as_str().to_owned(),
                    row_key: key.bytes().clone(),
                    rules: modify.rules,
                    ..Default::default()
                };
                let response = client.clone().read_modify_write_row(self.request(message)).await;
                response.map(Response::into_inner).map_err(status_error)?
            }
        };
        response.row.as_ref().map_or_else(|| Ok(Row::empty(key.clone())), convert::row_from_proto)
    }

    /// Keys that divide the table into pieces: the exclusive end of each piece, with the approximate number of bytes
    /// before it. The last is [`RowKey::EMPTY`]: the end of the table.
    ///
    /// # Errors
    /// As [`Self::read_rows`].
    pub async fn sample_row_keys(&self) -> Result<Vec<(RowKey, u64)>, Error> {
        match &self.backend {
            Backend::Cluster(cluster) => {
                cluster.with_table(&self.name, |table| cluster.sample(table, self.deadline())).await
            }
            Backend::Endpoint(client) => {
                let message =
                    data::SampleRowKeysRequest { table_name: self.name.as_str().to_owned(), ..Default::default() };
                let stream =
                    client.clone().sample_row_keys(self.request(message)).await.map_err(status_error)?.into_inner();
                let sample = |sample: data::SampleRowKeysResponse| {
                    (RowKey::new(sample.row_key), u64::try_from(sample.offset_bytes).unwrap_or(0))
                };
                stream.map_ok(sample).map_err(status_error).try_collect().await
            }
        }
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

/// The features of this client: `FeatureFlags { reverse_scans: true }` in base64. Without it servers reject reversed
/// reads.
const FEATURES_HEADER: &str = "bigtable-features";
const FEATURES: &str = "CAE=";

fn status_error(status: Status) -> Error {
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

/// Rows from messages that may split a row anywhere.
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

/// The results of a bulk write, by index; a row without a status may or may not have been written.
async fn row_results(
    mut stream: BoxStream<'static, Result<data::MutateRowsResponse, Error>>,
    count: usize,
) -> Result<Vec<Result<(), Error>>, Error> {
    let unknown = || Err(Error::new(Reason::OutcomeUnknown, "the write has no result"));
    let mut results: Vec<Result<(), Error>> = std::iter::repeat_with(unknown).take(count).collect();
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

//! `google.bigtable.v2.Bigtable`: takes a request, checks it, hands it to the cluster, answers.
//!
//! Any server takes any row. Whatever moves meanwhile is hidden until the caller's deadline. A table's name is
//! resolved through the directory; when tablets say that the table is gone, the name is looked up afresh once, for it
//! may stand for a new table of the same name.

use std::time::Duration;

use ebla_client::{Cluster, Deadline, Freshness, ReadParts, RowWrite, Stats};
use ebla_model::{Error, Reason, TableId, TableName};
use ebla_proto::{
    data::{self, Encoded},
    services::bigtable_server::Bigtable,
    status::to_status,
};
use ebla_runtime::Clock;
use futures::{StreamExt, stream};
use tonic::{Request, Response, Status, codegen::BoxStream, metadata::MetadataMap};

use super::{
    answer::{self, Counting, Progress},
    features::{features, large_rows},
    idempotency, limits,
    validate::{self, Checked, ReadAsk},
};

/// The public data API.
#[derive(Clone, Debug)]
pub struct DataService {
    cluster: Cluster,
    clock: Clock,
}

impl DataService {
    /// The API to this cluster.
    pub const fn new(cluster: Cluster, clock: Clock) -> Self {
        Self { cluster, clock }
    }

    fn deadline(&self, metadata: &MetadataMap, otherwise: Duration) -> Deadline {
        Deadline::after(&self.clock, limits::timeout(metadata, otherwise))
    }

    /// The id of a table. That there is none is said only after asking afresh: it may have been made a moment ago.
    async fn table(&self, name: &TableName) -> Result<TableId, Error> {
        match self.cluster.directory().table(name, Freshness::Cached).await? {
            Some(table) => Ok(table),
            None => self.fresh_table(name).await,
        }
    }

    async fn fresh_table(&self, name: &TableName) -> Result<TableId, Error> {
        let table = self.cluster.directory().table(name, Freshness::Fresh).await?;
        table.ok_or_else(|| Error::new(Reason::NotFoundTable, format!("Table not found: {name}")))
    }

    /// Makes a call to the table of this name; once more if the table is gone and the name stands for another one.
    async fn at_table<T, F>(&self, name: &TableName, call: impl Fn(TableId) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let table = self.table(name).await?;
        match call(table).await {
            Err(error) if error.reason == Reason::NotFoundTable => match self.fresh_table(name).await? {
                fresh if fresh == table => Err(error),
                fresh => call(fresh).await,
            },
            answer => answer,
        }
    }

    async fn read(&self, read: &Checked<ReadAsk>, deadline: Deadline) -> Result<ReadParts, Error> {
        self.at_table(&read.table, |table| begun(self.cluster.read_rows(read.ask.of(table), deadline))).await
    }

    async fn write_many(
        &self,
        writes: Checked<Vec<Result<RowWrite, Error>>>,
        deadline: Deadline,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let good: Vec<_> = writes.ask.iter().filter_map(|write| write.as_ref().ok().cloned()).collect();
        let send = |table| {
            let written = self.cluster.mutate_rows(table, good.clone(), deadline);
            async move { unless_all_gone(written.await) }
        };
        let mut written = self.at_table(&writes.table, send).await?.into_iter();
        let lost = || Err(Error::internal("a row's outcome is missing"));
        Ok(writes.ask.into_iter().map(|write| write.and_then(|_sent| written.next().unwrap_or_else(lost))).collect())
    }
}

/// A read with its first message at hand, so that a missing table or a bad filter is an error of the call itself.
async fn begun(mut parts: ReadParts) -> Result<ReadParts, Error> {
    match parts.next().await.transpose()? {
        Some(first) => Ok(stream::iter([Ok(first)]).chain(parts).boxed()),
        None => Ok(parts),
    }
}

/// A table that is gone is the request's error, not each row's.
fn unless_all_gone(results: Vec<Result<(), Error>>) -> Result<Vec<Result<(), Error>>, Error> {
    let gone = |result: &Result<(), Error>| result.as_ref().is_err_and(|error| error.reason == Reason::NotFoundTable);
    match results.first() {
        Some(Err(error)) if results.iter().all(gone) => Err(error.clone()),
        _ => Ok(results),
    }
}

/// The end of a call as gRPC wants it.
fn respond<T>(answer: Result<T, Error>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(|error| to_status(&error))
}

#[tonic::async_trait]
impl Bigtable for DataService {
    async fn read_rows(
        &self,
        request: Request<data::ReadRowsRequest>,
    ) -> Result<Response<BoxStream<Encoded<data::ReadRowsResponse>>>, Status> {
        let (metadata, _, message) = request.into_parts();
        let deadline = self.deadline(&metadata, limits::READ);
        let begin = || async {
            let features = features(&metadata);
            let read = validate::read(message, &features, large_rows(&metadata))?;
            let counting = (read.ask.stats == Stats::Count).then(|| Counting::begin(&self.clock));
            Ok(answer::rows(self.read(&read, deadline).await?, counting, Progress::for_client(&features)))
        };
        respond(begin().await)
    }

    async fn sample_row_keys(
        &self,
        request: Request<data::SampleRowKeysRequest>,
    ) -> Result<Response<BoxStream<data::SampleRowKeysResponse>>, Status> {
        let deadline = self.deadline(request.metadata(), limits::CALL);
        let sample = || async {
            let Checked { table, ask: range } = validate::sample(request.get_ref())?;
            let samples = self.at_table(&table, |table| self.cluster.sample(table, deadline)).await?;
            let answers = answer::samples(&samples, &range).into_iter().map(Ok);
            Ok(Box::pin(stream::iter(answers)) as BoxStream<_>)
        };
        respond(sample().await)
    }

    async fn mutate_row(
        &self,
        request: Request<data::MutateRowRequest>,
    ) -> Result<Response<data::MutateRowResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let deadline = self.deadline(&metadata, limits::CALL);
        let write = || async {
            let Checked { table, ask } = validate::mutate_row(message, idempotency::of_headers(&metadata)?)?;
            self.at_table(&table, |table| self.cluster.mutate_row(table, ask.clone(), deadline)).await?;
            Ok(data::MutateRowResponse {})
        };
        respond(write().await)
    }

    async fn mutate_rows(
        &self,
        request: Request<data::MutateRowsRequest>,
    ) -> Result<Response<BoxStream<data::MutateRowsResponse>>, Status> {
        let (metadata, _, message) = request.into_parts();
        let deadline = self.deadline(&metadata, limits::CALL);
        let write = || async {
            let writes = validate::mutate_rows(message, idempotency::of_headers(&metadata)?)?;
            Ok(answer::outcomes(&self.write_many(writes, deadline).await?))
        };
        respond(write().await)
    }

    async fn check_and_mutate_row(
        &self,
        request: Request<data::CheckAndMutateRowRequest>,
    ) -> Result<Response<data::CheckAndMutateRowResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let deadline = self.deadline(&metadata, limits::CALL);
        let check = || async {
            let Checked { table, ask } = validate::check(message, idempotency::of_headers(&metadata)?)?;
            let matched = self.at_table(&table, |table| self.cluster.check(table, ask.clone(), deadline)).await?;
            Ok(data::CheckAndMutateRowResponse { predicate_matched: matched })
        };
        respond(check().await)
    }

    async fn ping_and_warm(
        &self,
        request: Request<data::PingAndWarmRequest>,
    ) -> Result<Response<data::PingAndWarmResponse>, Status> {
        respond(validate::ping(request.get_ref()).map(|()| data::PingAndWarmResponse {}))
    }

    async fn read_modify_write_row(
        &self,
        request: Request<data::ReadModifyWriteRowRequest>,
    ) -> Result<Response<Encoded<data::ReadModifyWriteRowResponse>>, Status> {
        let (metadata, _, message) = request.into_parts();
        let deadline = self.deadline(&metadata, limits::CALL);
        let modify = || async {
            let Checked { table, ask } = validate::modify(message, idempotency::of_headers(&metadata)?)?;
            let call = |table| self.cluster.modify(table, &ask, deadline);
            Ok(Encoded::from_bytes(self.at_table(&table, call).await?))
        };
        respond(modify().await)
    }
}

#[cfg(test)]
mod tests;

//! `google.bigtable.v2.Bigtable`: validates a request, passes it to the cluster handle, and responds.
//!
//! Any server accepts requests for any row. Splits, moves and failovers are hidden until the caller's deadline. A table's
//! name is resolved through the directory. When a tablet reports that the table was deleted, the name is resolved once more,
//! because a new table may have the same name: see `Cluster::with_table`.

use std::time::Duration;

use ebla_client::{Cluster, Deadline, ReadParts, RowWrite, Stats, unless_table_missing};
use ebla_model::Error;
use ebla_proto::{
    data::{self, Encoded},
    services::bigtable_server::Bigtable,
    status::to_status,
};
use ebla_runtime::Clock;
use futures::{StreamExt, stream};
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{
    admission::{CallAdmission, TableCall},
    features::{features, large_rows},
    idempotency,
    response::{self, ScanProgress, StatsTimer},
    validate::{self, ReadSpec, Validated},
};
use crate::deadline;
use crate::response_budget::ReadAccount;

/// The public data API.
#[derive(Clone, Debug)]
pub struct DataService {
    cluster: Cluster,
    clock: Clock,
    admission: CallAdmission,
}

impl DataService {
    /// The API of this cluster.
    pub fn new(cluster: Cluster, clock: Clock) -> Self {
        let admission = CallAdmission::new(clock.clone());
        Self { cluster, clock, admission }
    }

    /// The same, with the admission that its calls have passed.
    pub(super) fn admitted_by(self, admission: CallAdmission) -> Self {
        Self { admission, ..self }
    }

    /// Counts the call for the table that a valid request names, until the result is dropped.
    fn begin<T>(&self, valid: &Validated<T>) -> Result<TableCall, Error> {
        self.admission.try_begin_table(&valid.table)
    }

    fn deadline<T>(&self, request: &Request<T>, default: Duration) -> Deadline {
        Deadline::after(&self.clock, deadline::public_time_left(request, default))
    }

    async fn read(
        &self,
        read: &Validated<ReadSpec>,
        account: Option<&ReadAccount>,
        deadline: Deadline,
    ) -> Result<ReadParts, Error> {
        self.cluster
            .with_table(&read.table, |table| {
                with_first_message(self.cluster.read_rows(read.request.for_table(table), deadline), account)
            })
            .await
    }

    async fn write_many(
        &self,
        writes: Validated<Vec<Result<RowWrite, Error>>>,
        deadline: Deadline,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let valid: Vec<_> = writes.request.iter().filter_map(|write| write.as_ref().ok().cloned()).collect();
        let send = |table| {
            let written = self.cluster.mutate_rows(table, valid.clone(), deadline);
            async move { unless_table_missing(written.await) }
        };
        let mut written = self.cluster.with_table(&writes.table, send).await?.into_iter();
        let missing = || Err(Error::internal("the cluster returned no outcome for a row"));
        Ok(writes
            .request
            .into_iter()
            .map(|write| write.and_then(|_sent| written.next().unwrap_or_else(missing)))
            .collect())
    }
}

/// Waits for the first message of a read, so that a missing table or an invalid filter is an error of the call itself.
async fn with_first_message(mut parts: ReadParts, account: Option<&ReadAccount>) -> Result<ReadParts, Error> {
    match parts.next().await.transpose()? {
        Some(first) => {
            account.map_or(Ok(()), |account| account.begin(first.response.len(), first.held_bytes))?;
            Ok(stream::iter([Ok(first)]).chain(parts).boxed())
        }
        None => Ok(parts),
    }
}

/// The result of a call as gRPC expects it.
fn to_response<T>(answer: Result<T, Error>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(|error| to_status(&error))
}

#[tonic::async_trait]
impl Bigtable for DataService {
    async fn read_rows(
        &self,
        request: Request<data::ReadRowsRequest>,
    ) -> Result<Response<BoxStream<Encoded<data::ReadRowsResponse>>>, Status> {
        let deadline = self.deadline(&request, deadline::READ_TIMEOUT);
        let (metadata, mut extensions, message) = request.into_parts();
        let account = extensions.remove::<ReadAccount>();
        let begin = || async {
            let features = features(&metadata);
            let read = validate::read(message, &features, large_rows(&metadata))?;
            let _counted = self.begin(&read)?;
            let timer = (read.request.stats == Stats::Count).then(|| StatsTimer::start(&self.clock));
            let parts = self.read(&read, account.as_ref(), deadline).await?;
            Ok(response::rows(parts, account.clone(), timer, ScanProgress::for_client(&features)))
        };
        to_response(begin().await)
    }

    async fn sample_row_keys(
        &self,
        request: Request<data::SampleRowKeysRequest>,
    ) -> Result<Response<BoxStream<data::SampleRowKeysResponse>>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let sample = || async {
            let valid = validate::sample(request.get_ref())?;
            let _counted = self.begin(&valid)?;
            let Validated { table, request: range } = valid;
            let samples = self.cluster.with_table(&table, |table| self.cluster.sample(table, deadline)).await?;
            let answers = response::samples(&samples, &range).into_iter().map(Ok);
            Ok(Box::pin(stream::iter(answers)) as BoxStream<_>)
        };
        to_response(sample().await)
    }

    async fn mutate_row(
        &self,
        request: Request<data::MutateRowRequest>,
    ) -> Result<Response<data::MutateRowResponse>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let (metadata, _, message) = request.into_parts();
        let write = || async {
            let valid = validate::mutate_row(message, idempotency::of_headers(&metadata)?)?;
            let _counted = self.begin(&valid)?;
            let Validated { table, request: valid } = valid;
            self.cluster.with_table(&table, |table| self.cluster.mutate_row(table, valid.clone(), deadline)).await?;
            Ok(data::MutateRowResponse {})
        };
        to_response(write().await)
    }

    async fn mutate_rows(
        &self,
        request: Request<data::MutateRowsRequest>,
    ) -> Result<Response<BoxStream<data::MutateRowsResponse>>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let (metadata, _, message) = request.into_parts();
        let write = || async {
            let writes = validate::mutate_rows(message, idempotency::of_headers(&metadata)?)?;
            let _counted = self.begin(&writes)?;
            Ok(response::outcomes(&self.write_many(writes, deadline).await?))
        };
        to_response(write().await)
    }

    async fn check_and_mutate_row(
        &self,
        request: Request<data::CheckAndMutateRowRequest>,
    ) -> Result<Response<data::CheckAndMutateRowResponse>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let (metadata, _, message) = request.into_parts();
        let check = || async {
            let valid = validate::check(message, idempotency::of_headers(&metadata)?)?;
            let _counted = self.begin(&valid)?;
            let Validated { table, request: valid } = valid;
            let matched =
                self.cluster.with_table(&table, |table| self.cluster.check(table, valid.clone(), deadline)).await?;
            Ok(data::CheckAndMutateRowResponse { predicate_matched: matched })
        };
        to_response(check().await)
    }

    async fn ping_and_warm(
        &self,
        request: Request<data::PingAndWarmRequest>,
    ) -> Result<Response<data::PingAndWarmResponse>, Status> {
        to_response(validate::ping(request.get_ref()).map(|()| data::PingAndWarmResponse {}))
    }

    async fn read_modify_write_row(
        &self,
        request: Request<data::ReadModifyWriteRowRequest>,
    ) -> Result<Response<Encoded<data::ReadModifyWriteRowResponse>>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let (metadata, _, message) = request.into_parts();
        let modify = || async {
            let valid = validate::modify(message, idempotency::of_headers(&metadata)?)?;
            let _counted = self.begin(&valid)?;
            let Validated { table, request: valid } = valid;
            let call = |table| self.cluster.modify(table, &valid, deadline);
            Ok(Encoded::from_bytes(self.cluster.with_table(&table, call).await?))
        };
        to_response(modify().await)
    }
}

#[cfg(test)]
mod tests;

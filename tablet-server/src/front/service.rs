//! `google.bigtable.v2.Bigtable`: validates a request, passes it to the cluster handle, and responds.
//!
//! Any server accepts requests for any row. Splits, moves and failovers are hidden until the caller's deadline. A table's
//! name is resolved through the directory. When a tablet reports that the table was deleted, the name is resolved once more,
//! because a new table may have the same name: see `Cluster::with_table`.

use std::time::Duration;

use ebla_client::{Cluster, Deadline, ReadParts, RowWrite, Stats, unless_table_missing};
use ebla_model::{Error, access::Permission};
use ebla_proto::{
    data::{self, Encoded},
    services::bigtable_server::Bigtable,
    status::to_status,
};
use ebla_runtime::{Clock, trace};
use futures::{StreamExt, stream};
use tonic::{Request, Response, Status, codegen::BoxStream};

use super::{
    access::{AccessControl, Authorized},
    admission::{CallAdmission, TableCall},
    features::{features, large_rows},
    idempotency,
    response::{self, ScanProgress, SeenCounts, StatsTimer},
    samples::SampleSpec,
    validate::{self, ReadSpec},
};
use crate::deadline;
use crate::response_budget::ReadAccount;

/// The public data API.
#[derive(Clone, Debug)]
pub struct DataService {
    cluster: Cluster,
    clock: Clock,
    admission: CallAdmission,
    access: AccessControl,
}

impl DataService {
    /// The API of this cluster.
    pub fn new(cluster: Cluster, clock: Clock) -> Self {
        let admission = CallAdmission::new(clock.clone());
        Self { cluster, clock, admission, access: AccessControl::off() }
    }

    /// The same, with access control for the callers that it has determined.
    pub(super) fn guarded_by(self, access: AccessControl) -> Self {
        Self { access, ..self }
    }

    /// The same, with the admission that its calls have passed.
    pub(super) fn admitted_by(self, admission: CallAdmission) -> Self {
        Self { admission, ..self }
    }

    /// Counts the call for the table that a request names, until the result is dropped.
    fn begin<T>(&self, call: &Authorized<T>) -> Result<TableCall, Error> {
        trace::with_current(|operation| operation.set_table(call.table()));
        self.admission.try_begin_table(call.table())
    }

    fn deadline<T>(&self, request: &Request<T>, default: Duration) -> Deadline {
        Deadline::after(&self.clock, deadline::public_time_left(request, default))
    }

    async fn read(
        &self,
        read: &Authorized<ReadSpec>,
        account: Option<&ReadAccount>,
        deadline: Deadline,
    ) -> Result<ReadParts, Error> {
        self.cluster
            .with_table(read.table(), async |table| {
                read.check(table)?;
                with_first_message(self.cluster.read_rows(read.request().for_table(table), deadline), account).await
            })
            .await
    }

    async fn write_many(
        &self,
        writes: Authorized<Vec<Result<RowWrite, Error>>>,
        deadline: Deadline,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let valid: Vec<_> = writes.request().iter().filter_map(|write| write.as_ref().ok().cloned()).collect();
        let send = async |table| {
            writes.check(table)?;
            unless_table_missing(self.cluster.mutate_rows(table, valid.clone(), deadline).await)
        };
        let mut written = self.cluster.with_table(writes.table(), send).await?.into_iter();
        let missing = || Err(Error::internal("the cluster returned no outcome for a row"));
        Ok(writes
            .into_request()
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
            let caller = self.access.caller(&extensions)?;
            let features = features(&metadata);
            let read = validate::read(message, &features, large_rows(&metadata))?;
            let read = self.access.read(&caller, read).await?;
            let _counted = self.begin(&read)?;
            let timer = (read.request().stats == Stats::Count).then(|| StatsTimer::start(&self.clock));
            let guard = self.access.guard(&caller, &read);
            // Keys and numbers of what was passed over would tell about cells that the caller cannot read.
            let (progress, seen) = match read.sees_everything() {
                true => (ScanProgress::for_client(&features), SeenCounts::Reported),
                false => (ScanProgress::Hidden, SeenCounts::Hidden),
            };
            let parts = self.read(&read, account.as_ref(), deadline).await?;
            Ok(response::rows(parts, response::RowsOptions { account: account.clone(), timer, progress, seen, guard }))
        };
        to_response(begin().await)
    }

    async fn sample_row_keys(
        &self,
        request: Request<data::SampleRowKeysRequest>,
    ) -> Result<Response<BoxStream<data::SampleRowKeysResponse>>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let sample = || async {
            let caller = self.access.caller(request.extensions())?;
            let sample = self.access.sample(&caller, validate::sample(request.get_ref())?).await?;
            let _counted = self.begin(&sample)?;
            let call = async |table| {
                sample.check(table)?;
                if sample.request().keys.needs_tablets() {
                    return self.cluster.sample(table, deadline).await;
                }
                Ok(Vec::new())
            };
            let tablets = self.cluster.with_table(sample.table(), call).await?;
            let SampleSpec { range, keys } = sample.request();
            let answers = response::samples(&keys.of_table(tablets), range).into_iter().map(Ok);
            Ok(Box::pin(stream::iter(answers)) as BoxStream<_>)
        };
        to_response(sample().await)
    }

    async fn mutate_row(
        &self,
        request: Request<data::MutateRowRequest>,
    ) -> Result<Response<data::MutateRowResponse>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let (metadata, extensions, message) = request.into_parts();
        let write = || async {
            let caller = self.access.caller(&extensions)?;
            let valid = validate::mutate_row(message, idempotency::of_headers(&metadata)?)?;
            let write = self.access.mutate_row(&caller, valid).await?;
            let _counted = self.begin(&write)?;
            let call = async |table| {
                write.check(table)?;
                self.cluster.mutate_row(table, write.request().clone(), deadline).await
            };
            self.cluster.with_table(write.table(), call).await?;
            Ok(data::MutateRowResponse {})
        };
        to_response(write().await)
    }

    async fn mutate_rows(
        &self,
        request: Request<data::MutateRowsRequest>,
    ) -> Result<Response<BoxStream<data::MutateRowsResponse>>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let (metadata, extensions, message) = request.into_parts();
        let write = || async {
            let caller = self.access.caller(&extensions)?;
            let writes = validate::mutate_rows(message, idempotency::of_headers(&metadata)?)?;
            let writes = self.access.mutate_rows(&caller, writes).await?;
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
        let (metadata, extensions, message) = request.into_parts();
        let check = || async {
            let caller = self.access.caller(&extensions)?;
            let valid = validate::check(message, idempotency::of_headers(&metadata)?)?;
            let check = self.access.check_and_mutate(&caller, valid).await?;
            let _counted = self.begin(&check)?;
            let call = async |table| {
                check.check(table)?;
                self.cluster.check(table, check.request().clone(), deadline).await
            };
            let matched = self.cluster.with_table(check.table(), call).await?;
            Ok(data::CheckAndMutateRowResponse { predicate_matched: matched })
        };
        to_response(check().await)
    }

    async fn ping_and_warm(
        &self,
        request: Request<data::PingAndWarmRequest>,
    ) -> Result<Response<data::PingAndWarmResponse>, Status> {
        let ping = || {
            let caller = self.access.caller(request.extensions())?;
            let instance = validate::ping(request.get_ref())?;
            self.access.check_instance(&caller, &instance, Permission::Ping)?;
            Ok(data::PingAndWarmResponse {})
        };
        to_response(ping())
    }

    async fn read_modify_write_row(
        &self,
        request: Request<data::ReadModifyWriteRowRequest>,
    ) -> Result<Response<Encoded<data::ReadModifyWriteRowResponse>>, Status> {
        let deadline = self.deadline(&request, deadline::CALL_TIMEOUT);
        let (metadata, extensions, message) = request.into_parts();
        let modify = || async {
            let caller = self.access.caller(&extensions)?;
            let valid = validate::modify(message, idempotency::of_headers(&metadata)?)?;
            let modify = self.access.modify(&caller, valid).await?;
            let _counted = self.begin(&modify)?;
            let call = async |table| {
                modify.check(table)?;
                self.cluster.modify(table, modify.request(), deadline).await
            };
            Ok(Encoded::from_bytes(self.cluster.with_table(modify.table(), call).await?))
        };
        to_response(modify().await)
    }
}

#[cfg(test)]
mod tests;

//! The internal gRPC services: `ebla.tablet` for fronts and clients, `ebla.locate` for cluster discovery.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::CallError;
use ebla_model::error::Error;
use ebla_proto::locate::locate_server::Locate;
use ebla_proto::locate::{ClusterReply, ClusterRequest, CountersReply, CountersRequest, TableName};
use ebla_proto::tablet::call::Request as CallRequest;
use ebla_proto::tablet::call_reply::Outcome;
use ebla_proto::tablet::tablets_server::Tablets;
use ebla_proto::{cluster_guard, convert, record, status, tablet as wire};
use ebla_routing::ActiveMaster;
use ebla_routing::ChubbyDirectory;
use ebla_runtime::call_stream::{self, Received};
use ebla_storage::log::CommitLog;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::{Extensions, Request, Response, Status, Streaming};

use crate::deadline;
use crate::guarded_tablets::{CallerTablets, GuardedTablets};
use crate::members_only::TabletCallers;
use crate::raft::RaftCounters;
use crate::response_budget::ReadAccount;

/// The largest message received or sent: a row may be as large as the API allows.
pub const MESSAGE_BYTES_MAX: usize = ebla_client::channel::MESSAGE_BYTES_MAX;

/// The largest number of calls of one stream that are in flight. Further calls stay in the socket.
const CALLS_IN_FLIGHT_MAX: usize = 4096;
/// The largest rows, in bytes, in a reply on a stream: a larger reply would delay those behind it.
const STREAM_REPLY_BYTES_MAX: usize = 128 * 1024;

/// Serves `ebla.tablet.Tablets`.
#[derive(Clone, Debug)]
pub struct TabletService {
    tablets: GuardedTablets,
    directory: ChubbyDirectory,
    /// Cancelled when the server stops: streams of calls end.
    closing: CancellationToken,
}

impl TabletService {
    /// Serves the local replicas, to callers that name this directory's cluster, until `closing` is cancelled.
    #[must_use]
    pub(crate) const fn new(tablets: GuardedTablets, directory: ChubbyDirectory, closing: CancellationToken) -> Self {
        Self { tablets, directory, closing }
    }

    /// The tablets for the caller of a request with these extensions.
    fn tablets_for(&self, extensions: &Extensions) -> Result<CallerTablets, Status> {
        self.tablets.for_caller(extensions).map_err(|error| status::to_status(&error))
    }

    /// The message, and what is left of its sender's timeout. Fails when the sender names another cluster.
    fn parts<T>(&self, request: Request<T>) -> Result<(T, Duration), Status> {
        cluster_guard::check_cluster_id(request.metadata(), self.directory.cluster())
            .map_err(|error| status::to_status(&error))?;
        let timeout = deadline::time_left(&request);
        Ok((request.into_inner(), timeout))
    }
}

/// The reply to a call on a stream.
async fn serve_call(tablets: CallerTablets, call: wire::Call) -> wire::CallReply {
    let timeout = Duration::from_micros(call.timeout_micros).min(deadline::TIMEOUT_MAX);
    let outcome = match call.request {
        Some(CallRequest::Read(request)) => tablets.read_once(request, timeout).await.map(|reply| match reply {
            Some(reply) if reply.response.len() <= STREAM_REPLY_BYTES_MAX => Outcome::Read(reply),
            _ => Outcome::Oversized(true),
        }),
        Some(CallRequest::Write(request)) => tablets.write(request, timeout).await.map(Outcome::Write),
        Some(CallRequest::Check(request)) => tablets.check(request, timeout).await.map(Outcome::Check),
        Some(CallRequest::Modify(request)) => tablets.modify(request, timeout).await.map(Outcome::Modify),
        Some(CallRequest::Cancel(_)) | None => {
            Err(Error::invalid("the call has no request that this server knows").into())
        }
    };
    let outcome = outcome.unwrap_or_else(|CallError { error, detail }| {
        let (reason, message) = (error.reason.name().to_owned(), error.message);
        Outcome::Error(wire::CallError { reason, message, detail: detail.map(|detail| *detail) })
    });
    wire::CallReply { call: call.call, outcome: Some(outcome) }
}

/// The status of a failed call, with the detail that the server has about the tablet.
#[must_use]
pub fn call_status(error: &CallError) -> Status {
    match &error.detail {
        Some(detail) => status::to_status_with(&error.error, detail),
        None => status::to_status(&error.error),
    }
}

#[tonic::async_trait]
impl Tablets for TabletService {
    type ReadStream = Pin<Box<dyn Stream<Item = Result<wire::ReadReply, Status>> + Send>>;
    type ExchangeStream = Pin<Box<dyn Stream<Item = Result<wire::CallReply, Status>> + Send>>;

    async fn read(&self, request: Request<wire::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let account = request.extensions().get::<ReadAccount>().cloned();
        let tablets = self.tablets_for(request.extensions())?;
        let (request, timeout) = self.parts(request)?;
        let stream = tablets.read(request, timeout).await.map_err(|error| call_status(&error))?;
        let hold = move |part: &Result<wire::ReadReply, CallError>| {
            if let (Some(account), Ok(part)) = (&account, part) {
                account.hold(part.held_bytes);
            }
        };
        Ok(Response::new(stream.inspect(hold).map(|part| part.map_err(|error| call_status(&error))).boxed()))
    }

    async fn write(&self, request: Request<wire::WriteRequest>) -> Result<Response<wire::WriteReply>, Status> {
        let tablets = self.tablets_for(request.extensions())?;
        let (request, timeout) = self.parts(request)?;
        tablets.write(request, timeout).await.map(Response::new).map_err(|error| call_status(&error))
    }

    async fn check(&self, request: Request<wire::CheckRequest>) -> Result<Response<wire::CheckReply>, Status> {
        let tablets = self.tablets_for(request.extensions())?;
        let (request, timeout) = self.parts(request)?;
        tablets.check(request, timeout).await.map(Response::new).map_err(|error| call_status(&error))
    }

    async fn modify(&self, request: Request<wire::ModifyRequest>) -> Result<Response<wire::ModifyReply>, Status> {
        let tablets = self.tablets_for(request.extensions())?;
        let (request, timeout) = self.parts(request)?;
        tablets.modify(request, timeout).await.map(Response::new).map_err(|error| call_status(&error))
    }

    async fn exchange(
        &self,
        request: Request<Streaming<wire::Call>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        let tablets = self.tablets_for(request.extensions())?;
        let (calls, _timeout) = self.parts(request)?;
        let receive = move |call: wire::Call| match call.request {
            Some(CallRequest::Cancel(_)) => Received::Cancellation(call.call),
            _ => Received::Call(Some(call.call), serve_call(tablets.clone(), call).boxed()),
        };
        let closing = self.closing.clone().cancelled_owned();
        let replies = call_stream::replies(calls, CALLS_IN_FLIGHT_MAX, closing, receive);
        Ok(Response::new(replies.boxed()))
    }

    async fn sample(&self, request: Request<wire::SampleRequest>) -> Result<Response<wire::SampleReply>, Status> {
        let tablets = self.tablets_for(request.extensions())?;
        let (request, _limit) = self.parts(request)?;
        tablets.sample(request).await.map(Response::new).map_err(|error| call_status(&error))
    }
}

/// Serves `ebla.locate.Locate` from the directory's copy of Chubby's files.
#[derive(Clone, Debug)]
pub struct LocateService {
    directory: ChubbyDirectory,
    log: CommitLog,
    raft: Arc<RaftCounters>,
    callers: TabletCallers,
}

impl LocateService {
    /// Serves the directory's content, and the counters of the log and of the replication. Callers who may not call the service of tablets
    /// learn of no table.
    #[must_use]
    pub(crate) const fn new(
        directory: ChubbyDirectory,
        log: CommitLog,
        raft: Arc<RaftCounters>,
        callers: TabletCallers,
    ) -> Self {
        Self { directory, log, raft, callers }
    }
}

fn master_to_proto(master: ActiveMaster) -> record::Master {
    let (address, incarnation) = (master.address, master.incarnation.get());
    record::Master { version: convert::VERSION, address, incarnation, ..Default::default() }
}

#[tonic::async_trait]
impl Locate for LocateService {
    async fn cluster(&self, request: Request<ClusterRequest>) -> Result<Response<ClusterReply>, Status> {
        let missing = || {
            let message = "the cluster has not started: it is waiting for a master or for tablet servers";
            status::to_status(&Error::new(ebla_model::Reason::NoLeader, message))
        };
        let cluster = self.directory.cluster().ok_or_else(missing)?;
        let master = self.directory.master().map(master_to_proto);
        let (last_master, lost) = self.directory.last_master().unzip();
        let may_call = self.callers.include(request.extensions());
        let schemas = if may_call { self.directory.schemas() } else { Vec::new() };
        // Clients do not name tables of the system.
        let tables = schemas
            .into_iter()
            .filter(|schema| !schema.name.is_system())
            .map(|schema| TableName { name: schema.name.as_str().to_owned(), table: schema.table.get() });
        let root = self.directory.root_tablet().filter(|_root| may_call);
        Ok(Response::new(ClusterReply {
            cluster: cluster.to_bytes().to_vec().into(),
            root: root.as_ref().map(convert::descriptor_to_proto),
            servers: self.directory.servers(),
            master,
            tables: tables.collect(),
            last_master: last_master.map(master_to_proto),
            master_lost_millis: lost.map_or(0, |lost: Duration| u64::try_from(lost.as_millis()).unwrap_or(u64::MAX)),
            public_api_only: !may_call,
        }))
    }

    async fn counters(&self, _request: Request<CountersRequest>) -> Result<Response<CountersReply>, Status> {
        let (stats, raft) = (self.log.stats(), self.raft.read());
        Ok(Response::new(CountersReply {
            log_syncs: stats.syncs,
            log_batches: stats.batches,
            log_marks: stats.commit_markers,
            log_records: stats.records,
            log_bytes: stats.bytes,
            raft_frames: raft.frames,
            raft_frame_bytes: raft.frame_bytes,
            raft_entry_frames: raft.entry_frames,
            raft_entries: raft.entries,
            raft_proposals: raft.proposals,
        }))
    }
}

//! The internal gRPC services: `ebla.tablet` for fronts and clients, `ebla.locate` for cluster discovery.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::CallError;
use ebla_model::error::Error;
use ebla_proto::locate::locate_server::Locate;
use ebla_proto::locate::{ClusterReply, ClusterRequest, CountersReply, CountersRequest, TableName};
use ebla_proto::tablet::tablets_server::Tablets;
use ebla_proto::{cluster_guard, convert, record, status, tablet as wire};
use ebla_routing::ActiveMaster;
use ebla_routing::ChubbyDirectory;
use ebla_storage::log::CommitLog;
use futures::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::deadline::timeout;
use crate::raft::RaftCounters;
use crate::tablet::handler::TabletHandler;

/// The largest message received or sent: a row may be as large as the API allows.
pub const MESSAGE_BYTES_MAX: usize = ebla_client::channel::MESSAGE_BYTES_MAX;

/// Serves `ebla.tablet.Tablets`.
#[derive(Clone, Debug)]
pub struct TabletService {
    handler: TabletHandler,
    directory: ChubbyDirectory,
}

impl TabletService {
    /// Serves the local replicas, to callers that name this directory's cluster.
    #[must_use]
    pub const fn new(handler: TabletHandler, directory: ChubbyDirectory) -> Self {
        Self { handler, directory }
    }

    /// The message and its sender's timeout. Fails when the sender names another cluster.
    fn parts<T>(&self, request: Request<T>) -> Result<(T, Duration), Status> {
        cluster_guard::check_cluster_id(request.metadata(), self.directory.cluster())
            .map_err(|error| status::to_status(&error))?;
        let timeout = timeout(request.metadata());
        Ok((request.into_inner(), timeout))
    }
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

    async fn read(&self, request: Request<wire::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let (request, timeout) = self.parts(request)?;
        let stream = self.handler.read(request, timeout).await.map_err(|error| call_status(&error))?;
        Ok(Response::new(stream.map(|part| part.map_err(|error| call_status(&error))).boxed()))
    }

    async fn write(&self, request: Request<wire::WriteRequest>) -> Result<Response<wire::WriteReply>, Status> {
        let (request, timeout) = self.parts(request)?;
        self.handler.write(request, timeout).await.map(Response::new).map_err(|error| call_status(&error))
    }

    async fn check(&self, request: Request<wire::CheckRequest>) -> Result<Response<wire::CheckReply>, Status> {
        let (request, timeout) = self.parts(request)?;
        self.handler.check(request, timeout).await.map(Response::new).map_err(|error| call_status(&error))
    }

    async fn modify(&self, request: Request<wire::ModifyRequest>) -> Result<Response<wire::ModifyReply>, Status> {
        let (request, timeout) = self.parts(request)?;
        self.handler.modify(request, timeout).await.map(Response::new).map_err(|error| call_status(&error))
    }

    async fn sample(&self, request: Request<wire::SampleRequest>) -> Result<Response<wire::SampleReply>, Status> {
        let (request, _limit) = self.parts(request)?;
        self.handler.sample(request).await.map(Response::new).map_err(|error| call_status(&error))
    }
}

/// Serves `ebla.locate.Locate` from the directory's copy of Chubby's files.
#[derive(Clone, Debug)]
pub struct LocateService {
    directory: ChubbyDirectory,
    log: CommitLog,
    raft: Arc<RaftCounters>,
}

impl LocateService {
    /// Serves the directory's content, and the counters of the log and of the replication.
    #[must_use]
    pub const fn new(directory: ChubbyDirectory, log: CommitLog, raft: Arc<RaftCounters>) -> Self {
        Self { directory, log, raft }
    }
}

fn master_to_proto(master: ActiveMaster) -> record::Master {
    let (address, incarnation) = (master.address, master.incarnation.get());
    record::Master { version: convert::VERSION, address, incarnation }
}

#[tonic::async_trait]
impl Locate for LocateService {
    async fn cluster(&self, _request: Request<ClusterRequest>) -> Result<Response<ClusterReply>, Status> {
        let missing = || {
            let message = "the cluster has not started: it is waiting for a master or for tablet servers";
            status::to_status(&Error::new(ebla_model::Reason::NoLeader, message))
        };
        let cluster = self.directory.cluster().ok_or_else(missing)?;
        let master = self.directory.master().map(master_to_proto);
        let (last_master, lost) = self.directory.last_master().unzip();
        let tables = self
            .directory
            .schemas()
            .into_iter()
            .map(|schema| TableName { name: schema.name.as_str().to_owned(), table: schema.table.get() });
        Ok(Response::new(ClusterReply {
            cluster: cluster.to_bytes().to_vec().into(),
            root: self.directory.root_tablet().as_ref().map(convert::descriptor_to_proto),
            servers: self.directory.servers(),
            master,
            tables: tables.collect(),
            last_master: last_master.map(master_to_proto),
            master_lost_millis: lost.map_or(0, |lost: Duration| u64::try_from(lost.as_millis()).unwrap_or(u64::MAX)),
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

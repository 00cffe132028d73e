//! Calls of the leader of a group to the leader of another one that takes a tablet over from it (`tablet::lifecycle::moves`).
//!
//! The caller knows the members of the other group as they were when the move began. Servers that are not its leader name the
//! leader; if none of the members responds any more, all registered servers are asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ebla_client::Directory as _;
use ebla_client::channel::Channels;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, LogIndex, ServerId};
use ebla_model::metadata::GroupDescriptor;
use ebla_model::tablet_event::TabletEventCause;
use ebla_model::tablet_move::{ImportStatus, MoveId, MoveStep};
use ebla_proto::cluster_guard::with_cluster_id;
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::control::{ImportReply, ImportRequest, import_reply};
use ebla_proto::tablet::TabletError;
use ebla_proto::{convert, status};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::Clock;
use parking_lot::Mutex;

use crate::rpc::MESSAGE_BYTES_MAX;

/// Timeout of a call to one server.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A client of the leaders of groups.
#[derive(Debug)]
pub(crate) struct ImportClient {
    channels: Arc<Channels>,
    directory: ChubbyDirectory,
    clock: Clock,
    /// The server that last answered for a group. Locked to look up or insert; at most one entry for each group.
    leaders: Mutex<BTreeMap<GroupId, ServerId>>,
}

impl ImportClient {
    pub(crate) fn new(channels: Arc<Channels>, directory: ChubbyDirectory, clock: Clock) -> Self {
        Self { channels, directory, clock, leaders: Mutex::default() }
    }

    /// A ticket for a move to `target`.
    ///
    /// # Errors
    /// `Unavailable` when its leader is not found.
    pub(crate) async fn ticket(&self, target: &GroupDescriptor) -> Result<LogIndex, Error> {
        let request = ImportRequest { group: target.group.get(), ..ImportRequest::default() };
        match self.call(target, request).await?.kind {
            Some(import_reply::Kind::Ticket(index)) => Ok(LogIndex::new(index)),
            _ => Err(Error::internal("the server returned no ticket")),
        }
    }

    /// Applies a step in the log of `target`.
    ///
    /// # Errors
    /// `Unavailable` when its leader is not found; other errors of the last server, when the step may have been applied.
    pub(crate) async fn apply(
        &self,
        target: &GroupDescriptor,
        id: MoveId,
        step: &MoveStep,
        cause: TabletEventCause,
    ) -> Result<ImportStatus, Error> {
        let step = Some(convert::tablet_move::step_to_proto(id, step));
        let wall_micros = Some(self.clock.wall().get());
        let request = ImportRequest { group: target.group.get(), step, cause: cause.name().to_owned(), wall_micros };
        match self.call(target, request).await?.kind {
            Some(import_reply::Kind::Status(status)) => convert::tablet_move::status_from_proto(status),
            _ => Err(Error::internal("the server returned no status")),
        }
    }

    async fn call(&self, target: &GroupDescriptor, request: ImportRequest) -> Result<ImportReply, Error> {
        let known = self.leaders.lock().get(&target.group).copied();
        let members = target.membership.replicas().map(|replica| replica.server);
        let others = self.directory.servers().into_iter().map(|server| ServerId::new(server.server));
        let mut queue: VecDeque<ServerId> = known.into_iter().chain(members).chain(others).collect();
        let mut tried = BTreeSet::new();
        let mut last = Error::new(Reason::Unavailable, "no server is known");
        while let Some(server) = queue.pop_front() {
            if !tried.insert(server) {
                continue;
            }
            match self.call_server(server, request.clone()).await {
                Ok(reply) => {
                    self.leaders.lock().insert(target.group, server);
                    return Ok(reply);
                }
                Err((error, detail)) => {
                    if let Some(leader) = detail.leader {
                        queue.push_front(ServerId::new(leader.server));
                    }
                    last = error;
                }
            }
        }
        self.leaders.lock().remove(&target.group);
        Err(Error::new(last.reason, format!("group {}: {last}", target.group)))
    }

    async fn call_server(&self, server: ServerId, request: ImportRequest) -> Result<ImportReply, (Error, TabletError)> {
        let address = self.directory.address(server).await;
        let address = address.ok_or_else(|| {
            (
                Error::new(Reason::Unavailable, format!("the address of server {server} is unknown")),
                TabletError::default(),
            )
        })?;
        let mut client = ControlClient::new(self.channels.get(&address))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let mut request = with_cluster_id(tonic::Request::new(request), self.directory.cluster());
        request.set_timeout(CALL_TIMEOUT);
        match tokio::time::timeout(CALL_TIMEOUT, client.import(request)).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(refused)) => {
                let (error, detail) = status::from_status(&refused);
                Err((error, detail.unwrap_or_default()))
            }
            Err(_elapsed) => {
                let error = Error::new(Reason::OutcomeUnknown, format!("server {server} did not respond in time"));
                Err((error, TabletError::default()))
            }
        }
    }
}

//! The messages of the other replicas, passed to openraft's core.

use std::sync::Arc;

use ebla_model::id::LogId;
use ebla_runtime::Step;

use super::Group;
use crate::raft::state_machine::CheckpointOrigin;
use crate::raft::storage::adapter::{SnapshotData, snapshot_meta};
use crate::raft::storage::blocking::run_blocking;
use crate::raft::storage::snapshot::{ScratchFolder, validate};
use crate::raft::transport::message::{AppendReceipt, RaftRequest, RaftResponse, SnapshotTransfer, Unreachable};
use crate::raft::types::{AppendRequest, AppendResponse, RaftVote, log_id, vote_term};

impl Group {
    pub(in crate::raft) async fn receive_append(&self, request: AppendRequest) -> Result<AppendReceipt, Unreachable> {
        let last = request.entries.last().map(|entry| log_id(&entry.log_id).index);
        let arrived = last.map(|last| (last, self.clock.monotonic()));
        let response = self.raft.append_entries(request).await.map_err(stopped)?;
        if !matches!(response, AppendResponse::HigherVote(_)) {
            self.hear();
        }
        let work = match &response {
            AppendResponse::Success => arrived.and_then(|(last, arrived)| self.entry_clock.work(last, arrived)),
            _refused => None,
        };
        Ok(AppendReceipt { response, work })
    }

    pub(in crate::raft) async fn receive_request(&self, request: RaftRequest) -> Result<RaftResponse, Unreachable> {
        if let Some(remaining) = self.vote_holdoff.remaining(self.clock.monotonic()) {
            return Err(Unreachable(format!("vote hold-off after restart: no vote for another {remaining:?}")));
        }
        match request {
            RaftRequest::Vote(request) => self.raft.vote(request).await.map(RaftResponse::Vote).map_err(stopped),
            RaftRequest::PreVote(request) => self.raft.pre_vote(request).await.map(RaftResponse::Vote).map_err(stopped),
            RaftRequest::Transfer(request) => match self.raft.handle_transfer_leader(request).await {
                Ok(Ok(())) => Ok(RaftResponse::Done),
                Ok(Err(refused)) => Err(Unreachable(refused.to_string())),
                Err(fatal) => Err(stopped(fatal)),
            },
        }
    }

    /// Reads a snapshot of another server as a whole. Its files may have been damaged after their sender had read them. Without this the damage would be
    /// found by the installation, when this replica has already given up its own state.
    ///
    /// # Errors
    /// When it is damaged, or cannot be read. This replica stays as it is, and the sender tries again.
    pub(in crate::raft) async fn verify_received(&self, folder: ScratchFolder) -> Result<ScratchFolder, Unreachable> {
        let (machine, path) = (Arc::clone(&self.machine), folder.path().to_owned());
        let verify = move || machine.verify(&path, CheckpointOrigin::Received);
        match run_blocking(&self.config.pools.maintenance, verify).await {
            Ok(Ok(())) => Ok(folder),
            Ok(Err(fault)) => Err(Unreachable(format!("the snapshot is refused, and nothing was replaced: {fault}"))),
            Err(error) => Err(Unreachable(error.to_string())),
        }
    }

    pub(in crate::raft) async fn receive_snapshot(&self, snapshot: SnapshotTransfer) -> Result<RaftVote, Unreachable> {
        validate(&snapshot.applied).map_err(|fault| Unreachable(fault.to_string()))?;
        let newer = |last: &LogId| last.term > vote_term(&snapshot.vote);
        if snapshot.applied.last.as_ref().is_some_and(newer) {
            return Err(Unreachable("invalid snapshot: its last term is newer than the sender's term".to_owned()));
        }
        let meta = snapshot_meta(&snapshot.applied).map_err(|fault| Unreachable(fault.to_string()))?;
        let received = openraft::Snapshot { meta, snapshot: SnapshotData::Received(snapshot.folder) };
        self.steps.reached(Step::SnapshotReceived).await;
        let response = self.raft.install_full_snapshot(snapshot.vote, received).await.map_err(stopped)?;
        self.steps.reached(Step::SnapshotInstalled).await;
        Ok(response.vote)
    }
}

fn stopped(fatal: impl std::error::Error) -> Unreachable {
    Unreachable(format!("the replica is stopped: {fatal}"))
}

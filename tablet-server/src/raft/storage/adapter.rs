//! Adapts the [`StateMachine`] of a group to openraft.
//!
//! Calls block on RocksDB and run on thread pools; apply waits until the entries are synced to the local disk
//! (`sync_tracker`).
//!
//! openraft requires a snapshot before it purges the log (log compaction), and at start. It gets the metadata of what the
//! store has on disk, and nothing is copied. A checkpoint is created only when a follower needs one (`snapshot`), and its
//! metadata is read from the checkpoint.

use std::io;
use std::sync::Arc;

use futures::{FutureExt, Stream, StreamExt};
use openraft::entry::EntryPayload;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{OptionalSend, SnapshotMeta};

use super::blocking::{BlockingPools, run_blocking};
use super::log_store::APPEND_BYTES_MAX;
use super::snapshot::ScratchFolder;
use super::sync_tracker::SyncTracker;
use crate::raft::entry_times::EntryClock;
use crate::raft::error::Fault;
use crate::raft::state_machine::{AppliedPosition, CommittedEntry, Payload, StateMachine};
use crate::raft::types::{RaftEntry, RaftLogId, TypeConfig, log_id, membership, raft_log_id, stored_membership};

/// openraft's core of one group.
pub(in crate::raft) type Raft = openraft::Raft<TypeConfig, StateMachineAdapter>;

/// A snapshot as openraft passes it around.
#[derive(Debug)]
pub(crate) enum SnapshotData {
    /// The store of this replica: a checkpoint of it is created when the snapshot is sent.
    Local,
    /// A checkpoint that was received and verified.
    Received(ScratchFolder),
}

/// Adapts a [`StateMachine`] to openraft's trait.
#[derive(Clone)]
pub(crate) struct StateMachineAdapter {
    machine: Arc<dyn StateMachine>,
    sync_tracker: Arc<SyncTracker>,
    entry_clock: EntryClock,
    pools: BlockingPools,
}

impl StateMachineAdapter {
    pub(in crate::raft) fn new(
        machine: Arc<dyn StateMachine>,
        sync_tracker: Arc<SyncTracker>,
        entry_clock: EntryClock,
        pools: BlockingPools,
    ) -> Self {
        Self { machine, sync_tracker, entry_clock, pools }
    }

    async fn apply_batch(&self, batch: CommittedBatch) -> io::Result<()> {
        let Some(last) = batch.entries.last().map(|last| last.id.index) else { return Ok(()) };
        self.entry_clock.commit(last);
        self.sync_tracker.wait_synced(last).await?;
        let (machine, count) = (Arc::clone(&self.machine), batch.entries.len());
        let entries = batch.entries;
        // Two thread switches cost more than a small write to a memtable.
        let is_inline = batch.bytes <= INLINE_APPLY_BYTES_MAX && !self.pools.apply.is_late();
        let results = if is_inline { machine.try_apply_inline(&entries) } else { None };
        let results = match results {
            Some(results) => results?,
            None => run_blocking(&self.pools.apply, move || machine.apply(&entries)).await??,
        };
        if results.len() != count {
            return Err(
                Fault::new(format!("state machine returned {} results for {count} entries", results.len())).into()
            );
        }
        self.entry_clock.apply(last);
        for (responder, result) in batch.responders.into_iter().zip(results) {
            if let Some(responder) = responder {
                responder.send(result);
            }
        }
        Ok(())
    }

    async fn snapshot_metadata(&self) -> io::Result<Option<SnapshotMetaOf<TypeConfig>>> {
        let machine = Arc::clone(&self.machine);
        let persisted = run_blocking(&self.pools.maintenance, move || machine.persisted()).await??;
        if persisted.last.is_none() {
            return Ok(None);
        }
        Ok(Some(snapshot_meta(&persisted)?))
    }
}

/// The metadata of a snapshot with this applied position.
pub(in crate::raft) fn snapshot_meta(applied: &AppliedPosition) -> Result<SnapshotMetaOf<TypeConfig>, Fault> {
    Ok(SnapshotMeta { last_log_id: applied.last.map(raft_log_id), last_membership: stored_membership(applied)? })
}

/// A larger batch is applied on a thread of the pool: a memtable takes about a gigabyte per second.
const INLINE_APPLY_BYTES_MAX: u64 = 64 * 1024;

/// Entries that are applied together, with the responders that wait for them.
#[derive(Default)]
struct CommittedBatch {
    entries: Vec<CommittedEntry>,
    responders: Vec<Option<ApplyResponder<TypeConfig>>>,
    bytes: u64,
}

impl CommittedBatch {
    fn push(&mut self, (entry, responder): EntryResponder<TypeConfig>) {
        let entry = committed(entry);
        if let Payload::Command(command) = &entry.payload {
            self.bytes += command.len() as u64;
        }
        self.entries.push(entry);
        self.responders.push(responder);
    }

    /// The next entry and those that are ready after it, up to a bound in bytes; `None` at the end of the stream.
    async fn next<S>(entries: &mut S) -> io::Result<Option<Self>>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin,
    {
        let Some(first) = entries.next().await else { return Ok(None) };
        let mut batch = Self::default();
        batch.push(first?);
        while batch.bytes < APPEND_BYTES_MAX {
            match entries.next().now_or_never().flatten() {
                Some(entry) => batch.push(entry?),
                None => break,
            }
        }
        Ok(Some(batch))
    }
}

fn committed(entry: RaftEntry) -> CommittedEntry {
    let payload = match entry.payload {
        EntryPayload::Blank => Payload::Blank,
        EntryPayload::Normal(command) => Payload::Command(command.0),
        EntryPayload::Membership(members) => Payload::Membership(membership(&members)),
    };
    CommittedEntry { id: log_id(&entry.log_id), payload }
}

impl RaftStateMachine<TypeConfig> for StateMachineAdapter {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, StoredMembershipOf<TypeConfig>)> {
        let applied = self.machine.applied();
        Ok((applied.last.map(raft_log_id), stored_membership(&applied)?))
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        let mut entries = entries.fuse();
        while let Some(batch) = CommittedBatch::next(&mut entries).await? {
            self.apply_batch(batch).await?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, data: SnapshotData) -> io::Result<()> {
        let SnapshotData::Received(folder) = data else {
            return Err(Fault::new("the store is behind the state that it reported as persisted").into());
        };
        let applied = AppliedPosition {
            last: meta.last_log_id.as_ref().map(log_id),
            membership: (
                meta.last_membership.log_id().as_ref().map(log_id),
                membership(meta.last_membership.membership()),
            ),
        };
        let machine = Arc::clone(&self.machine);
        run_blocking(&self.pools.maintenance, move || machine.install(folder.path(), applied.clone())).await??;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData>>> {
        let meta = self.snapshot_metadata().await?;
        Ok(meta.map(|meta| openraft::Snapshot { meta, snapshot: SnapshotData::Local }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateMachineAdapter {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData>> {
        let meta = self.snapshot_metadata().await?.unwrap_or_default();
        Ok(openraft::Snapshot { meta, snapshot: SnapshotData::Local })
    }
}

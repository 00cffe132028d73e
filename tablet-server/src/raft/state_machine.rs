//! What a replicated tablet is to Raft: something that applies committed commands in order and knows how far it is.
//!
//! The tablet implements [`StateMachine`]; [`Machine`] shows it to openraft. Calls block on RocksDB and run on pools of
//! threads; apply waits until the entries are on this machine's disk (`durability`).
//!
//! The tablet's store *is* the snapshot. openraft wants to hear of one before it lets the log be purged, and at start: it
//! gets the metadata of what the store has on disk, and nothing is copied. A checkpoint is made when a follower needs
//! one (`snapshot`), with the metadata read from the checkpoint.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::LogId;
use ebla_model::metadata::Membership;
use ebla_runtime::{Blocking, BlockingError};
use futures::{FutureExt, Stream, StreamExt};
use openraft::entry::EntryPayload;
use openraft::storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{OptionalSend, SnapshotMeta};

use super::durability::Durability;
use super::fault::Fault;
use super::log_store::APPEND_BYTES_MAX;
use super::snapshot::Folder;
use super::types::{RaftEntry, RaftLogId, TypeConfig, log_id, membership, raft_log_id, stored_membership};

/// How far a state machine is, and the membership in force there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The last entry whose effects it holds; `None` when it is empty.
    pub last: Option<LogId>,
    /// The last membership it met, and the entry that carried it.
    pub membership: (Option<LogId>, Membership),
}

/// An entry that a majority holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Its position.
    pub id: LogId,
    /// What it says.
    pub payload: Payload,
}

/// What a committed entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The first entry of a leader's term.
    Blank,
    /// A command of the tablet.
    Command(Bytes),
    /// The replicas from here on.
    Membership(Membership),
}

/// A replicated tablet as Raft sees it. All calls may block; `apply` and `install` never run at the same time.
pub trait StateMachine: Send + Sync + 'static {
    /// How far it is, in memory. Does not block.
    fn applied(&self) -> Applied;

    /// How far it is on disk: the log up to here is not needed for a restart.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn persisted(&self) -> Result<Applied, Fault>;

    /// Applies entries that follow on [`StateMachine::applied`] without a gap, and answers each (an empty answer for
    /// those that carry no command).
    ///
    /// # Errors
    /// Only for what may differ between replicas, such as a disk: it stops this replica.
    fn apply(&self, entries: &[CommittedEntry]) -> Result<Vec<Bytes>, Fault>;

    /// As [`StateMachine::apply`], if that is sure to be short and to wait for no disk; else does nothing and says `None`. Called
    /// where blocking would hold up other groups.
    fn apply_at_once(&self, entries: &[CommittedEntry]) -> Option<Result<Vec<Bytes>, Fault>> {
        let _not_sure = entries;
        None
    }

    /// Makes a copy of the state in `folder`, which does not exist yet, as plain files; tells what the copy holds.
    ///
    /// # Errors
    /// When the copy could not be made.
    fn checkpoint(&self, folder: &Path) -> Result<Applied, Fault>;

    /// Replaces the state by the checkpoint in `folder`, whose files have been checked; it may move them away.
    /// Durable when it returns.
    ///
    /// # Errors
    /// When the copy cannot be used; this replica stops.
    fn install(&self, folder: &Path, applied: Applied) -> Result<(), Fault>;
}

/// The threads that state machines run on.
#[derive(Clone, Debug)]
pub struct Pools {
    /// For `apply`.
    pub apply: Blocking,
    /// For checkpoints, installation and what reads the store's metadata.
    pub maintenance: Blocking,
}

/// What travels as a snapshot inside openraft.
#[derive(Debug)]
pub(crate) enum SnapshotData {
    /// The store of this replica: a checkpoint of it is made when it is sent.
    Own,
    /// A checkpoint that has arrived and was checked.
    Arrived(Folder),
}

/// A [`StateMachine`] as openraft wants it.
#[derive(Clone)]
pub(crate) struct Machine {
    machine: Arc<dyn StateMachine>,
    durability: Arc<Durability>,
    pools: Pools,
}

impl Machine {
    pub(super) fn new(machine: Arc<dyn StateMachine>, durability: Arc<Durability>, pools: Pools) -> Self {
        Self { machine, durability, pools }
    }

    async fn apply_batch(&self, batch: Batch) -> io::Result<()> {
        let Some(last) = batch.entries.last() else { return Ok(()) };
        self.durability.covers(last.id.index).await?;
        let (machine, count) = (Arc::clone(&self.machine), batch.entries.len());
        let entries = batch.entries;
        // Two hand-overs between threads cost more than a small write to a memtable.
        let at_once = if batch.bytes <= AT_ONCE_BYTES_MAX { machine.apply_at_once(&entries) } else { None };
        let answers = match at_once {
            Some(answers) => answers?,
            None => on(&self.pools.apply, move || machine.apply(&entries)).await??,
        };
        if answers.len() != count {
            return Err(Fault::new(format!("{} answers for {count} entries", answers.len())).into());
        }
        for (responder, answer) in batch.responders.into_iter().zip(answers) {
            if let Some(responder) = responder {
                responder.send(answer);
            }
        }
        Ok(())
    }

    async fn snapshot_metadata(&self) -> io::Result<Option<SnapshotMetaOf<TypeConfig>>> {
        let machine = Arc::clone(&self.machine);
        let persisted = on(&self.pools.maintenance, move || machine.persisted()).await??;
        if persisted.last.is_none() {
            return Ok(None);
        }
        Ok(Some(snapshot_meta(&persisted)?))
    }
}

/// The metadata of a snapshot that holds what `applied` says.
pub(super) fn snapshot_meta(applied: &Applied) -> Result<SnapshotMetaOf<TypeConfig>, Fault> {
    Ok(SnapshotMeta { last_log_id: applied.last.map(raft_log_id), last_membership: stored_membership(applied)? })
}

/// Runs `call` on `pool`, waiting while its queue is full: what was committed must be applied, however busy the server.
pub(super) async fn on<T, F>(pool: &Blocking, call: F) -> io::Result<T>
where
    T: Send + 'static,
    F: Fn() -> T + Send + Sync + 'static,
{
    let call = Arc::new(call);
    loop {
        let once = Arc::clone(&call);
        match pool.run(move || once()).await {
            Ok(result) => return Ok(result),
            Err(BlockingError::Full) => tokio::time::sleep(FULL_WAIT).await,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// What is larger is applied on a thread of the pool: a memtable takes about a gigabyte a second.
const AT_ONCE_BYTES_MAX: u64 = 64 * 1024;

/// Between two looks at a pool whose queue was full.
const FULL_WAIT: Duration = Duration::from_millis(1);

/// Entries that are applied at once, with those who wait for them.
#[derive(Default)]
struct Batch {
    entries: Vec<CommittedEntry>,
    responders: Vec<Option<ApplyResponder<TypeConfig>>>,
    bytes: u64,
}

impl Batch {
    fn push(&mut self, (entry, responder): EntryResponder<TypeConfig>) {
        let entry = committed(entry);
        if let Payload::Command(command) = &entry.payload {
            self.bytes += command.len() as u64;
        }
        self.entries.push(entry);
        self.responders.push(responder);
    }

    /// The next entry and what is ready after it, up to a bound of bytes; `None` at the end.
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

impl RaftStateMachine<TypeConfig> for Machine {
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
        while let Some(batch) = Batch::next(&mut entries).await? {
            self.apply_batch(batch).await?;
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, data: SnapshotData) -> io::Result<()> {
        let SnapshotData::Arrived(folder) = data else {
            return Err(Fault::new("the store is behind what it says it has on disk").into());
        };
        let applied = Applied {
            last: meta.last_log_id.as_ref().map(log_id),
            membership: (
                meta.last_membership.log_id().as_ref().map(log_id),
                membership(meta.last_membership.membership()),
            ),
        };
        let machine = Arc::clone(&self.machine);
        on(&self.pools.maintenance, move || machine.install(folder.path(), applied.clone())).await??;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData>>> {
        let meta = self.snapshot_metadata().await?;
        Ok(meta.map(|meta| openraft::Snapshot { meta, snapshot: SnapshotData::Own }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData>> {
        let meta = self.snapshot_metadata().await?.unwrap_or_default();
        Ok(openraft::Snapshot { meta, snapshot: SnapshotData::Own })
    }
}

//! Snapshot transfer: a checkpoint is a folder of plain files, sent in parts with a checksum each and verified before the
//! install.
//!
//! ```text
//!   sender    checkpoint into scratch -> read as a whole -> header, chunks (file, offset, bytes, CRC-32C), end
//!   receiver  new folder in scratch -> write, sync files and folder at the end -> read as a whole -> snapshot install -> deleted
//! ```
//! A [`ScratchFolder`] value owns its folder and deletes it when it is dropped. A crash leaves folders in the scratch folder; the
//! next start deletes them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_proto::raft::{SnapshotChunk, SnapshotPart, snapshot_part};
use ebla_runtime::Blocking;
use ebla_storage::log::GroupReplica;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::blocking::run_blocking;
use crate::raft::error::Fault;
use crate::raft::state_machine::{AppliedPosition, CheckpointOrigin, StateMachine};

/// Bytes of a file in one message.
const CHUNK_BYTES: usize = 1024 * 1024;

/// How long one part of a snapshot may take: to be accepted by the socket, or to arrive. So a peer that is frozen blocks other
/// snapshots for no longer.
pub(in crate::raft) const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes the names of scratch folders unique within the process.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A folder for a copy of a replica's store, which is deleted when this value is dropped.
#[derive(Debug)]
pub(crate) struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// Reserves a unique path in `scratch`, which is created if it is missing; nothing is at the path. Blocking.
    ///
    /// # Errors
    /// When `scratch` cannot be created.
    pub(crate) fn reserve(scratch: &Path, group: GroupReplica) -> io::Result<Self> {
        fs::create_dir_all(scratch)?;
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = Self(scratch.join(format!("snapshot-{}-{}-{number}", group.group, group.replica)));
        // An earlier run of the process may have left a folder of this name.
        let _old = fs::remove_dir_all(folder.path());
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // The install may have moved it. If the deletion fails, the next start deletes the folder.
        let _already_moved = fs::remove_dir_all(&self.0);
    }
}

/// Creates checkpoints of one replica.
#[derive(Clone)]
pub(in crate::raft) struct Checkpoints {
    pub(in crate::raft) machine: Arc<dyn StateMachine>,
    pub(in crate::raft) group: GroupReplica,
    pub(in crate::raft) scratch: PathBuf,
    pub(in crate::raft) maintenance: Blocking,
}

impl Checkpoints {
    /// Creates a checkpoint; returns it and the applied position that it contains.
    pub(in crate::raft) async fn create(&self) -> io::Result<(ScratchFolder, AppliedPosition)> {
        let (machine, scratch, group) = (Arc::clone(&self.machine), self.scratch.clone(), self.group);
        let create = move || -> io::Result<(ScratchFolder, AppliedPosition)> {
            let folder = ScratchFolder::reserve(&scratch, group)?;
            let applied = machine.checkpoint(folder.path())?;
            machine.verify(folder.path(), CheckpointOrigin::Own)?;
            Ok((folder, applied))
        };
        let (folder, applied) = run_blocking(&self.maintenance, create).await??;
        validate(&applied)?;
        Ok((folder, applied))
    }
}

/// Rejects a snapshot on which openraft would panic.
pub(in crate::raft) fn validate(applied: &AppliedPosition) -> Result<(), Fault> {
    let Some(last) = applied.last else { return Err(Fault::new("invalid snapshot: it is empty")) };
    match &applied.membership {
        (_, members) if members.voters.is_empty() => Err(Fault::new("invalid snapshot: its membership has no voters")),
        (Some(id), _) if *id <= last => Ok(()),
        _ => Err(Fault::new("invalid snapshot: its membership is newer than its last entry")),
    }
}

/// Reads the files of a folder as the parts of a snapshot, in the order of their names, and then the end part. Each step reads
/// one chunk and blocks.
pub(in crate::raft) struct SnapshotReader {
    /// The files that are not sent yet, the next one last.
    files: Vec<PathBuf>,
    /// The file that is being sent, its name, and the offset of its next chunk.
    open: Option<(File, String, u64)>,
    is_finished: bool,
}

impl SnapshotReader {
    /// Lists the files; their content is not read yet.
    pub(in crate::raft) fn open(folder: &Path) -> io::Result<Self> {
        let mut files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
        files.sort_by(|a, b| b.cmp(a));
        Ok(Self { files, open: None, is_finished: false })
    }

    fn next_part(&mut self) -> io::Result<Option<SnapshotPart>> {
        loop {
            if let Some((mut file, name, offset)) = self.open.take() {
                let data = read_chunk(&mut file)?;
                // An empty file is sent as one empty chunk; any other file ends with the chunk of its last bytes.
                if data.is_empty() && offset > 0 {
                    continue;
                }
                let crc32c = crc32c::crc32c(&data);
                if data.len() == CHUNK_BYTES {
                    self.open = Some((file, name.clone(), offset + data.len() as u64));
                }
                let chunk = SnapshotChunk { file: name, offset, crc32c, data };
                return Ok(Some(SnapshotPart { part: Some(snapshot_part::Part::Chunk(chunk)) }));
            }
            let Some(path) = self.files.pop() else {
                let end = (!self.is_finished).then_some(SnapshotPart { part: Some(snapshot_part::Part::End(true)) });
                self.is_finished = true;
                return Ok(end);
            };
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name
                .ok_or_else(|| io::Error::other(format!("invalid file name in the checkpoint: {}", path.display())))?;
            self.open = Some((File::open(&path)?, name.to_owned(), 0));
        }
    }
}

impl Iterator for SnapshotReader {
    type Item = io::Result<SnapshotPart>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_part().transpose()
    }
}

/// The size of the files in a folder, in bytes. Blocking.
fn size_bytes(folder: &Path) -> io::Result<u64> {
    fs::read_dir(folder)?.map(|file| Ok(file?.metadata()?.len())).sum()
}

/// The size of a checkpoint's files, in bytes.
///
/// # Errors
/// When the folder cannot be read.
pub(in crate::raft) async fn checkpoint_bytes(folder: &ScratchFolder, maintenance: &Blocking) -> io::Result<u64> {
    let path = folder.path().to_owned();
    run_blocking(maintenance, move || size_bytes(&path)).await?
}

/// Reads a folder part by part on the blocking pool and sends the parts; ends early when the receiver of `parts` is dropped.
///
/// # Errors
/// When a file cannot be read, or a part was not accepted within [`PART_TIMEOUT`].
pub(in crate::raft) async fn send_files(
    folder: ScratchFolder,
    parts: mpsc::Sender<SnapshotPart>,
    maintenance: Blocking,
) -> io::Result<()> {
    let path = folder.path().to_owned();
    // Locked for one part; there is one reader.
    let files = Arc::new(Mutex::new(run_blocking(&maintenance, move || SnapshotReader::open(&path)).await??));
    loop {
        let files = Arc::clone(&files);
        let read = move || files.lock().next();
        let Some(part) = run_blocking(&maintenance, read).await?.transpose()? else { return Ok(()) };
        match tokio::time::timeout(PART_TIMEOUT, parts.send(part)).await {
            Ok(Ok(())) => {}
            // The response of the receiving server says what happened.
            Ok(Err(_closed)) => return Ok(()),
            Err(_elapsed) => {
                let message = format!("the receiver has accepted no part of the snapshot for {PART_TIMEOUT:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        }
    }
}

fn read_chunk(file: &mut File) -> io::Result<Bytes> {
    let mut data = Vec::with_capacity(CHUNK_BYTES);
    file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut data)?;
    Ok(Bytes::from(data))
}

/// Writes the received parts into a new folder. All calls block.
#[derive(Debug)]
pub(in crate::raft) struct SnapshotReceiver {
    folder: ScratchFolder,
    open: Option<ReceivedFile>,
}

/// The file that is being written.
#[derive(Debug)]
struct ReceivedFile {
    name: String,
    file: File,
    /// The offset of its next chunk.
    length: u64,
}

impl SnapshotReceiver {
    pub(in crate::raft) fn create(scratch: &Path, group: GroupReplica) -> io::Result<Self> {
        let folder = ScratchFolder::reserve(scratch, group)?;
        fs::create_dir(folder.path())?;
        Ok(Self { folder, open: None })
    }

    /// Verifies a chunk and writes it. It must follow the one before: a file comes once, from its start, without gaps.
    pub(in crate::raft) fn write_chunk(mut self, chunk: &SnapshotChunk) -> io::Result<Self> {
        if crc32c::crc32c(&chunk.data) != chunk.crc32c {
            return Err(io::Error::other(format!(
                "snapshot chunk is damaged: checksum mismatch in {} at offset {}",
                chunk.file, chunk.offset
            )));
        }
        let open = self.file(&chunk.file)?;
        if chunk.offset != open.length {
            return Err(io::Error::other(format!(
                "invalid snapshot: chunk of {:?} at offset {}, expected at {}",
                chunk.file, chunk.offset, open.length
            )));
        }
        open.file.write_all_at(&chunk.data, chunk.offset)?;
        open.length += chunk.data.len() as u64;
        Ok(self)
    }

    /// Syncs the files and the folder.
    pub(in crate::raft) fn finish(mut self) -> io::Result<ScratchFolder> {
        self.close()?;
        File::open(self.folder.path())?.sync_all()?;
        Ok(self.folder)
    }

    /// The open file if it has this name, or else a new one.
    fn file(&mut self, name: &str) -> io::Result<&mut ReceivedFile> {
        if self.open.as_ref().is_none_or(|open| open.name != name) {
            self.close()?;
            if !is_plain_name(name) {
                return Err(io::Error::other(format!("invalid file name in the snapshot: {name:?}")));
            }
            let file = File::create_new(self.folder.path().join(name))?;
            self.open = Some(ReceivedFile { name: name.to_owned(), file, length: 0 });
        }
        self.open.as_mut().ok_or_else(|| io::Error::other("no snapshot file is open"))
    }

    fn close(&mut self) -> io::Result<()> {
        match self.open.take() {
            Some(open) => open.file.sync_all(),
            None => Ok(()),
        }
    }
}

/// Whether a file of this name stays inside its folder.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{GroupId, ReplicaId};

    use super::*;

    const GROUP: GroupReplica = GroupReplica { group: GroupId::new(7), replica: ReplicaId::new(1) };

    fn transfer(from: &Path, scratch: &Path, corrupt: fn(&mut SnapshotChunk)) -> io::Result<ScratchFolder> {
        let mut receiver = SnapshotReceiver::create(scratch, GROUP)?;
        for part in SnapshotReader::open(from)? {
            match part?.part {
                Some(snapshot_part::Part::Chunk(mut chunk)) => {
                    corrupt(&mut chunk);
                    receiver = receiver.write_chunk(&chunk)?;
                }
                _ => return receiver.finish(),
            }
        }
        Err(io::Error::other("no end"))
    }

    #[test]
    fn a_folder_is_received_unchanged_and_deleted_with_its_owner() {
        let (from, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let big = vec![7_u8; CHUNK_BYTES * 2];
        for (name, bytes) in [("a", &b""[..]), ("b", b"small"), ("c", &big)] {
            fs::write(from.path().join(name), bytes).unwrap();
        }
        let folder = transfer(from.path(), scratch.path(), |_| ()).unwrap();
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"");
        assert_eq!(fs::read(folder.path().join("b")).unwrap(), b"small");
        assert_eq!(fs::read(folder.path().join("c")).unwrap(), big);
        drop(folder);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_accepts_no_part_in_time_fails_the_transfer() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = ScratchFolder::reserve(scratch.path(), GROUP).unwrap();
        fs::create_dir(folder.path()).unwrap();
        fs::write(folder.path().join("a"), vec![7_u8; CHUNK_BYTES * 4]).unwrap();
        let maintenance = Blocking::pool("maintenance", 1, 4).unwrap();
        assert_eq!(checkpoint_bytes(&folder, &maintenance).await.unwrap(), CHUNK_BYTES as u64 * 4);
        let (sender, mut parts) = mpsc::channel(1);
        let started = tokio::time::Instant::now();
        let sent = send_files(folder, sender, maintenance);
        let receiver = async {
            // A slow receiver is not a silent one: each part has a deadline of its own.
            for _part in 0..2 {
                tokio::time::sleep(PART_TIMEOUT * 2 / 3).await;
                parts.recv().await.unwrap();
            }
            std::future::pending::<()>().await;
        };
        let failed = tokio::select! {
            sent = sent => sent.unwrap_err(),
            () = receiver => unreachable!("it never ends"),
        };
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut, "{failed}");
        assert!(started.elapsed() > PART_TIMEOUT * 2);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "the checkpoint is deleted");
    }

    #[test]
    fn a_damaged_chunk_and_a_name_with_a_path_are_refused() {
        let (from, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("a"), b"content").unwrap();
        assert!(transfer(from.path(), scratch.path(), |chunk| chunk.crc32c ^= 1).is_err());
        assert!(transfer(from.path(), scratch.path(), |chunk| chunk.file = "../a".to_owned()).is_err());
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}

//! Checkpoints on their way: a folder of plain files, sent part by part with a checksum each, and checked before use.
//!
//! ```text
//!   sender   checkpoint into scratch -> header, chunks (file, offset, bytes, CRC-32C), end
//!   receiver new folder in scratch -> write, sync files and folder at the end -> install -> gone
//! ```
//! A folder belongs to a [`Folder`] value and is deleted with it; what a crash leaves in the scratch folder is nobody's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use ebla_proto::raft::{SnapshotChunk, SnapshotPart, snapshot_part};
use ebla_runtime::Blocking;
use ebla_storage::log::GroupId;
use tokio::sync::mpsc;

use super::fault::Fault;
use super::state_machine::{Applied, StateMachine, on};

/// Bytes of a file in one message.
const CHUNK_BYTES: usize = 1024 * 1024;

/// Makes the names of scratch folders differ within the process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder that is deleted with this value.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A path in `scratch` that no other has; nothing is made there.
    pub(super) fn unmade(scratch: &Path, group: GroupId) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("snapshot-{}-{}-{number}", group.tablet, group.replica);
        Self(scratch.join(name))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may have been moved away by who installed it; what else fails is swept at the next start.
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// Makes checkpoints of one replica.
#[derive(Clone)]
pub(super) struct Checkpoints {
    pub(super) machine: Arc<dyn StateMachine>,
    pub(super) group: GroupId,
    pub(super) scratch: PathBuf,
    pub(super) maintenance: Blocking,
}

impl Checkpoints {
    /// A new checkpoint, and what it holds.
    pub(super) async fn make(&self) -> io::Result<(Folder, Applied)> {
        let (machine, scratch, group) = (Arc::clone(&self.machine), self.scratch.clone(), self.group);
        let made = move || -> io::Result<(Folder, Applied)> {
            fs::create_dir_all(&scratch)?;
            let folder = Folder::unmade(&scratch, group);
            // What an earlier life of the process left under this name.
            let _old = fs::remove_dir_all(folder.path());
            let applied = machine.checkpoint(folder.path())?;
            Ok((folder, applied))
        };
        let (folder, applied) = on(&self.maintenance, made).await??;
        sane(&applied)?;
        Ok((folder, applied))
    }
}

/// What openraft would panic on is refused before it gets there.
pub(super) fn sane(applied: &Applied) -> Result<(), Fault> {
    let Some(last) = applied.last else { return Err(Fault::new("the snapshot is empty")) };
    match applied.membership.0 {
        Some(id) if id <= last => Ok(()),
        _ => Err(Fault::new("the snapshot's membership is not within it")),
    }
}

/// The files of a folder as the parts of a snapshot, in the order of their names, and the end. Each step reads a chunk:
/// blocking.
pub(super) struct Parts {
    /// What is still to be sent, the next one last.
    files: Vec<PathBuf>,
    /// The file being sent, its name, and how far it is.
    open: Option<(File, String, u64)>,
    ended: bool,
}

impl Parts {
    /// Nothing is read yet but the names.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let mut files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
        files.sort_by(|a, b| b.cmp(a));
        Ok(Self { files, open: None, ended: false })
    }

    fn step(&mut self) -> io::Result<Option<SnapshotPart>> {
        loop {
            if let Some((mut file, name, offset)) = self.open.take() {
                let data = read_chunk(&mut file)?;
                // An empty file is one empty chunk; a full one ends with its last bytes.
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
                let end = (!self.ended).then_some(SnapshotPart { part: Some(snapshot_part::Part::End(true)) });
                self.ended = true;
                return Ok(end);
            };
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or_else(|| io::Error::other(format!("file name {}", path.display())))?;
            self.open = Some((File::open(&path)?, name.to_owned(), 0));
        }
    }
}

impl Iterator for Parts {
    type Item = io::Result<SnapshotPart>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

/// Reads a folder part by part on threads that may block, and sends it; ends early when nobody listens any more.
pub(super) async fn send_files(
    folder: Folder,
    parts: mpsc::Sender<SnapshotPart>,
    maintenance: Blocking,
) -> io::Result<()> {
    let path = folder.path().to_owned();
    // Held for one step; there is one reader.
    let files = Arc::new(Mutex::new(on(&maintenance, move || Parts::of(&path)).await??));
    loop {
        let files = Arc::clone(&files);
        let read = move || files.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(part) = on(&maintenance, read).await?.transpose()? else { return Ok(()) };
        if parts.send(part).await.is_err() {
            // What was heard is told by the answer.
            return Ok(());
        }
    }
}

fn read_chunk(file: &mut File) -> io::Result<Bytes> {
    let mut data = Vec::with_capacity(CHUNK_BYTES);
    file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut data)?;
    Ok(Bytes::from(data))
}

/// Writes what arrives into a new folder. All calls block.
#[derive(Debug)]
pub(super) struct Arrival {
    folder: Folder,
    /// The file that is being written, with its name.
    open: Option<(String, File)>,
}

impl Arrival {
    pub(super) fn begin(scratch: &Path, group: GroupId) -> io::Result<Self> {
        fs::create_dir_all(scratch)?;
        let folder = Folder::unmade(scratch, group);
        let _old = fs::remove_dir_all(folder.path());
        fs::create_dir(folder.path())?;
        Ok(Self { folder, open: None })
    }

    /// Checks a chunk and writes it.
    pub(super) fn write(mut self, chunk: &SnapshotChunk) -> io::Result<Self> {
        if crc32c::crc32c(&chunk.data) != chunk.crc32c {
            return Err(io::Error::other(format!("{} is damaged at {}", chunk.file, chunk.offset)));
        }
        let file = self.file(&chunk.file)?;
        file.write_all_at(&chunk.data, chunk.offset)?;
        Ok(self)
    }

    /// Makes all files durable.
    pub(super) fn finish(mut self) -> io::Result<Folder> {
        self.close()?;
        File::open(self.folder.path())?.sync_all()?;
        Ok(self.folder)
    }

    fn file(&mut self, name: &str) -> io::Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| open != name) {
            self.close()?;
            if !is_plain(name) {
                return Err(io::Error::other(format!("file name {name:?}")));
            }
            let path = self.folder.path().join(name);
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
            self.open = Some((name.to_owned(), file));
        }
        match &self.open {
            Some((_, file)) => Ok(file),
            None => Err(io::Error::other("no file is open")),
        }
    }

    fn close(&mut self) -> io::Result<()> {
        match self.open.take() {
            Some((_, file)) => file.sync_all(),
            None => Ok(()),
        }
    }
}

/// A name that stays inside its folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{ReplicaId, TabletId};

    use super::*;

    const GROUP: GroupId = GroupId { tablet: TabletId::new(7), replica: ReplicaId::new(1) };

    fn travel(from: &Path, scratch: &Path, spoil: fn(&mut SnapshotChunk)) -> io::Result<Folder> {
        let mut arrival = Arrival::begin(scratch, GROUP)?;
        for part in Parts::of(from)? {
            match part?.part {
                Some(snapshot_part::Part::Chunk(mut chunk)) => {
                    spoil(&mut chunk);
                    arrival = arrival.write(&chunk)?;
                }
                _ => return arrival.finish(),
            }
        }
        Err(io::Error::other("no end"))
    }

    #[test]
    fn a_folder_arrives_as_it_was_and_goes_with_its_owner() {
        let (from, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let big = vec![7_u8; CHUNK_BYTES * 2];
        for (name, bytes) in [("a", &b""[..]), ("b", b"small"), ("c", &big)] {
            fs::write(from.path().join(name), bytes).unwrap();
        }
        let folder = travel(from.path(), scratch.path(), |_| ()).unwrap();
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"");
        assert_eq!(fs::read(folder.path().join("b")).unwrap(), b"small");
        assert_eq!(fs::read(folder.path().join("c")).unwrap(), big);
        drop(folder);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_damaged_chunk_and_a_name_with_a_path_are_refused() {
        let (from, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("a"), b"content").unwrap();
        assert!(travel(from.path(), scratch.path(), |chunk| chunk.crc32c ^= 1).is_err());
        assert!(travel(from.path(), scratch.path(), |chunk| chunk.file = "../a".to_owned()).is_err());
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}

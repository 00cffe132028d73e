//! The folder of the embedded service: one file, `journal`, of checksummed records, and a lock file.
//!
//! ```text
//!   journal  = "EBLACHB1"  record*
//!   record   = length u32  crc32c(payload) u32  payload[length]            little endian
//!   payload  = 1  revision u64  count u32  write*                         a transaction
//!            | 2  created u64  modified u64  write                        a file of the snapshot at the beginning
//!            | 3  revision u64                                            the snapshot's revision, its last record
//!   write    = 1  lease u64 (0: none)  path  value | 2  path              put | delete
//!   path, value = length u32  bytes
//! ```
//!
//! Each transaction is synced before it is acknowledged, so only the last record can be torn: a torn tail is
//! truncated when the journal is opened. A damaged record before an intact one is corruption, which an operator must
//! inspect. Opening replaces the file by a snapshot (new file, sync, rename, sync of the folder), and so does growth.
//! After a failed write or sync nothing is written any more.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};

use super::state::Files;
use crate::{Error, File, LeaseId, Revision, Write};

const MAGIC: &[u8; 8] = b"EBLACHB1";
const HEAD_BYTES: usize = 8;
const TRANSACTION: u8 = 1;
const SNAPSHOT_FILE: u8 = 2;
const SNAPSHOT_END: u8 = 3;
const PUT: u8 = 1;
const DELETE: u8 = 2;
/// The journal is rewritten when it has grown by this much, so that it stays small however often servers register.
const GROWTH_MAX_BYTES: u64 = 8 * 1024 * 1024;

/// The open journal of a folder.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    file: fs::File,
    /// Bytes appended since the last snapshot.
    grown_bytes: u64,
    /// Set by the first failure: the end of the file is unknown from then on.
    failed: Option<Error>,
    /// Holds the lock while the journal is open.
    _lock: fs::File,
}

impl Journal {
    /// Opens or creates the folder and returns its files, without those that were leased.
    pub(super) fn open(dir: &Path) -> Result<(Self, Files), Error> {
        let lock = lock(dir)?;
        let (revision, mut files) = match fs::read(dir.join("journal")) {
            Ok(bytes) => replay(&Bytes::from(bytes))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(error) => return Err(failure("read the journal", &error)),
        };
        // Deleting files is a change with its own revision, as when leases expire: watches and fences rely on it.
        let before = files.len();
        files.retain(|_path, file| file.lease.is_none());
        let revision = Revision::new(revision.get() + u64::from(files.len() < before));
        let file = write_snapshot(dir, revision, files.values()).map_err(|e| failure("write the journal", &e))?;
        let journal = Self { dir: dir.to_owned(), file, grown_bytes: 0, failed: None, _lock: lock };
        Ok((journal, Files::restored(revision, files)))
    }

    /// Writes and syncs a transaction. `files` returns all files before it; called only when a new snapshot is due.
    pub(super) fn append(
        &mut self,
        revision: Revision,
        writes: &[Write],
        files: impl FnOnce() -> Vec<File>,
    ) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let written = self.append_or_fail(revision, writes, files);
        written.map_err(|error| {
            let error = failure("write the journal", &error);
            self.failed = Some(error.clone());
            error
        })
    }

    fn append_or_fail(
        &mut self,
        revision: Revision,
        writes: &[Write],
        files: impl FnOnce() -> Vec<File>,
    ) -> io::Result<()> {
        if self.grown_bytes > GROWTH_MAX_BYTES {
            let before = Revision::new(revision.get() - 1);
            self.file = write_snapshot(&self.dir, before, files().iter())?;
            self.grown_bytes = 0;
        }
        let record = record(&transaction(revision, writes)?)?;
        self.file.write_all(&record)?;
        self.file.sync_data()?;
        self.grown_bytes += record.len() as u64;
        Ok(())
    }
}

fn failure(operation: &str, error: &io::Error) -> Error {
    Error::Unavailable(format!("{operation}: {error}"))
}

/// Creates the folder and locks it against other processes.
fn lock(dir: &Path) -> Result<fs::File, Error> {
    let opened = fs::create_dir_all(dir).and_then(|()| fs::File::create(dir.join("lock")));
    let file = opened.map_err(|error| failure("open the folder", &error))?;
    file.try_lock().map_err(|_held| Error::Unavailable(format!("{} is in use by another process", dir.display())))?;
    Ok(file)
}

/// Replaces the journal by a snapshot of these files, and returns it open at its end.
fn write_snapshot<'a>(dir: &Path, revision: Revision, files: impl Iterator<Item = &'a File>) -> io::Result<fs::File> {
    let mut bytes = MAGIC.to_vec();
    for file in files {
        bytes.extend(record(&snapshot_file(file)?)?);
    }
    let mut end = vec![SNAPSHOT_END];
    end.extend(revision.get().to_le_bytes());
    bytes.extend(record(&end)?);

    let (new, path) = (dir.join("journal.new"), dir.join("journal"));
    let mut file = fs::File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    fs::File::open(dir)?.sync_all()?;
    Ok(file)
}

fn record(payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    bytes.extend(length(payload)?);
    bytes.extend(crc32c::crc32c(payload).to_le_bytes());
    bytes.extend(payload);
    Ok(bytes)
}

fn transaction(revision: Revision, writes: &[Write]) -> io::Result<Vec<u8>> {
    let mut payload = vec![TRANSACTION];
    payload.extend(revision.get().to_le_bytes());
    payload.extend(u32::try_from(writes.len()).map_err(io::Error::other)?.to_le_bytes());
    for write in writes {
        put_write(&mut payload, write)?;
    }
    Ok(payload)
}

fn snapshot_file(file: &File) -> io::Result<Vec<u8>> {
    let mut payload = vec![SNAPSHOT_FILE];
    payload.extend(file.created.get().to_le_bytes());
    payload.extend(file.modified.get().to_le_bytes());
    let write = Write::Put { path: file.path.clone(), value: file.value.clone(), lease: file.lease };
    put_write(&mut payload, &write)?;
    Ok(payload)
}

fn put_write(payload: &mut Vec<u8>, write: &Write) -> io::Result<()> {
    match write {
        Write::Put { path, value, lease } => {
            payload.push(PUT);
            payload.extend(lease.map_or(0, LeaseId::get).to_le_bytes());
            put_bytes(payload, path.as_bytes())?;
            put_bytes(payload, value)
        }
        Write::Delete { path } => {
            payload.push(DELETE);
            put_bytes(payload, path.as_bytes())
        }
    }
}

fn put_bytes(payload: &mut Vec<u8>, bytes: &[u8]) -> io::Result<()> {
    payload.extend(length(bytes)?);
    payload.extend(bytes);
    Ok(())
}

fn length(bytes: &[u8]) -> io::Result<[u8; 4]> {
    Ok(u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes())
}

/// The content of one record.
enum Entry {
    Transaction(Revision, Vec<Write>),
    SnapshotFile(File),
    SnapshotEnd(Revision),
}

/// Replays the bytes of a journal: the revision and the files at its end.
fn replay(bytes: &Bytes) -> Result<(Revision, BTreeMap<String, File>), Error> {
    let mut files = Files::default();
    let mut snapshot = BTreeMap::new();
    let mut rest = bytes.clone();
    if !rest.starts_with(MAGIC) {
        return Err(Error::Damaged("the journal has a wrong header".to_owned()));
    }
    rest.advance(MAGIC.len());
    while let Some((entry, after)) = next_entry(&rest) {
        match entry {
            Entry::SnapshotFile(file) => _ = snapshot.insert(file.path.clone(), file),
            Entry::SnapshotEnd(revision) => files = Files::restored(revision, std::mem::take(&mut snapshot)),
            Entry::Transaction(revision, writes) if revision == files.next_revision() => {
                files.commit(revision, &writes);
            }
            Entry::Transaction(revision, _writes) => {
                let expected = files.next_revision();
                return Err(Error::Damaged(format!("found revision {revision}, expected {expected}")));
            }
        }
        rest = after;
    }
    check_torn_tail(&rest)?;
    let (revision, all) = (files.revision(), files.clone_files());
    if revision == Revision::ZERO && !all.is_empty() {
        return Err(Error::Damaged("the snapshot in the journal is incomplete".to_owned()));
    }
    Ok((revision, all.into_iter().map(|file| (file.path.clone(), file)).collect()))
}

/// A torn tail contains no intact record. If one follows, the bytes before it were synced and are damaged.
fn check_torn_tail(rest: &Bytes) -> Result<(), Error> {
    for start in 1..rest.len() {
        if next_entry(&rest.slice(start..)).is_some() {
            return Err(Error::Damaged("a record before the last one is damaged".to_owned()));
        }
    }
    if !rest.is_empty() {
        tracing::warn!(bytes = rest.len(), "truncated the torn tail of the journal");
    }
    Ok(())
}

/// The first record and the bytes after it, or `None` at the end and where there is no intact record.
fn next_entry(bytes: &Bytes) -> Option<(Entry, Bytes)> {
    let mut rest = bytes.clone();
    let length = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
    let checksum = rest.try_get_u32_le().ok()?;
    // Checked before the checksum, so that searching for a record at every offset stays cheap.
    if length == 0
        || length > rest.len()
        || !matches!(rest.first(), Some(&(TRANSACTION | SNAPSHOT_FILE | SNAPSHOT_END)))
    {
        return None;
    }
    let payload = rest.split_to(length);
    if crc32c::crc32c(&payload) != checksum {
        return None;
    }
    Some((entry(payload)?, rest))
}

fn entry(mut payload: Bytes) -> Option<Entry> {
    match payload.try_get_u8().ok()? {
        TRANSACTION => {
            let revision = Revision::new(payload.try_get_u64_le().ok()?);
            let count = payload.try_get_u32_le().ok()?;
            let writes = (0..count).map(|_| take_write(&mut payload)).collect::<Option<_>>()?;
            Some(Entry::Transaction(revision, writes))
        }
        SNAPSHOT_FILE => {
            let created = Revision::new(payload.try_get_u64_le().ok()?);
            let modified = Revision::new(payload.try_get_u64_le().ok()?);
            let Write::Put { path, value, lease } = take_write(&mut payload)? else { return None };
            Some(Entry::SnapshotFile(File { path, value, created, modified, lease }))
        }
        SNAPSHOT_END => Some(Entry::SnapshotEnd(Revision::new(payload.try_get_u64_le().ok()?))),
        _ => None,
    }
}

fn take_write(payload: &mut Bytes) -> Option<Write> {
    match payload.try_get_u8().ok()? {
        PUT => {
            let lease = payload.try_get_u64_le().ok()?;
            let lease = (lease != 0).then(|| LeaseId::new(lease));
            Some(Write::Put { path: take_path(payload)?, value: take_bytes(payload)?, lease })
        }
        DELETE => Some(Write::Delete { path: take_path(payload)? }),
        _ => None,
    }
}

fn take_path(payload: &mut Bytes) -> Option<String> {
    String::from_utf8(take_bytes(payload)?.to_vec()).ok()
}

fn take_bytes(payload: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(payload.try_get_u32_le().ok()?).ok()?;
    (length <= payload.len()).then(|| payload.split_to(length))
}

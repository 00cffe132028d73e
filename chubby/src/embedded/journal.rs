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
//! inspect. So is a last record that was written as a whole and is not intact (`check_torn_tail`), and a journal without a whole snapshot
//! at its beginning: opening replaces the file by a snapshot (new file, sync, rename, sync of the folder), and so does growth. After a
//! failed write or sync nothing is written any more.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};

use super::state::Files;
use crate::{Error, File, LeaseId, Revision, Write};

const MAGIC: &[u8; 8] = b"EBLACHB1";
const HEAD_BYTES: usize = 8;
/// What a disk writes as a whole or not at all. A file system that has made the file longer shows zeros where it has not written.
const SECTOR_BYTES: usize = 512;
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
    lock: fs::File,
}

impl Journal {
    /// Opens or creates the folder and returns its files, without those that were leased.
    pub(super) fn open(dir: &Path) -> Result<(Self, Files), Error> {
        let lock = lock(dir)?;
        let path = dir.join("journal");
        let (revision, mut files) = match fs::read(&path) {
            Ok(bytes) => replay(&Bytes::from(bytes)).map_err(|error| with_next_step(error, &path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(error) => return Err(failure("read the journal", &error)),
        };
        // Deleting files is a change with its own revision, as when leases expire: watches and fences rely on it.
        let before = files.len();
        files.retain(|_path, file| file.lease.is_none());
        let revision = Revision::new(revision.get() + u64::from(files.len() < before));
        let file = write_snapshot(dir, revision, files.values()).map_err(|e| failure("write the journal", &e))?;
        let journal = Self { dir: dir.to_owned(), file, grown_bytes: 0, failed: None, lock };
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
/// Adds the file and the next step to an error of damaged bytes.
fn with_next_step(error: Error, path: &Path) -> Error {
    match error {
        Error::Damaged(what) => {
            Error::Damaged(format!("{what}: {}; nothing was changed; restore this file from a copy", path.display()))
        }
        other => other,
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // Not only by closing the file: a child that another thread has just forked has a copy of it until it executes its program.
        drop(self.lock.unlock());
    }
}

fn lock(dir: &Path) -> Result<fs::File, Error> {
    let opened = fs::create_dir_all(dir).and_then(|()| fs::File::create(dir.join("lock")));
    let file = opened.map_err(|error| failure("open the folder", &error))?;
    file.try_lock().map_err(|_held| Error::Unavailable(format!("{} is in use by another process", dir.display())))?;
    Ok(file)
}

/// Replaces the journal by a snapshot of these files, and returns it open at its end.
fn write_snapshot<'a>(dir: &Path, revision: Revision, files: impl Iterator<Item = &'a File>) -> io::Result<fs::File> {
    let bytes = snapshot(revision, files)?;
    let (new, path) = (dir.join("journal.new"), dir.join("journal"));
    let mut file = fs::File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    fs::File::open(dir)?.sync_all()?;
    Ok(file)
}

/// A journal with these files and no transaction.
fn snapshot<'a>(revision: Revision, files: impl Iterator<Item = &'a File>) -> io::Result<Vec<u8>> {
    let mut bytes = MAGIC.to_vec();
    for file in files {
        bytes.extend(record(&snapshot_file(file)?)?);
    }
    let mut end = vec![SNAPSHOT_END];
    end.extend(revision.get().to_le_bytes());
    bytes.extend(record(&end)?);
    Ok(bytes)
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
    let (mut rest, revision, snapshot) = replay_snapshot(bytes)?;
    let mut files = Files::restored(revision, snapshot);
    while let Some((payload, after)) = next_record(&rest) {
        match entry(payload)? {
            Entry::SnapshotFile(_) | Entry::SnapshotEnd(_) => {
                return Err(Error::Damaged("the journal has a second snapshot".to_owned()));
            }
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
    check_torn_tail(&rest, bytes.len() - rest.len())?;
    let all = files.clone_files().into_iter().map(|file| (file.path.clone(), file));
    Ok((files.revision(), all.collect()))
}

/// The bytes after the snapshot, its revision and its files. The snapshot was complete before the journal had its name, so
/// an incomplete one is damage and no torn tail.
fn replay_snapshot(bytes: &Bytes) -> Result<(Bytes, Revision, BTreeMap<String, File>), Error> {
    let mut rest = bytes.clone();
    if !rest.starts_with(MAGIC) {
        return Err(Error::Damaged("the journal has a wrong header".to_owned()));
    }
    rest.advance(MAGIC.len());
    let mut files = BTreeMap::new();
    while let Some((payload, after)) = next_record(&rest) {
        match entry(payload)? {
            Entry::SnapshotFile(file) => _ = files.insert(file.path.clone(), file),
            Entry::SnapshotEnd(revision) => return Ok((after, revision, files)),
            Entry::Transaction(..) => break,
        }
        rest = after;
    }
    Err(Error::Damaged("the snapshot in the journal is incomplete".to_owned()))
}

/// Refuses a tail that a crash in the middle of a write does not leave: then its bytes were synced and are damaged. `start`: its place in
/// the file. A crash leaves no intact record, and of the last one a beginning, or all of it with some sectors that are zeros.
fn check_torn_tail(rest: &Bytes, start: usize) -> Result<(), Error> {
    for start in 1..rest.len() {
        // The kind is checked before the checksum, so that searching at every offset stays cheap.
        let is_known = matches!(rest.get(start + HEAD_BYTES), Some(&(TRANSACTION | SNAPSHOT_FILE | SNAPSHOT_END)));
        if is_known && next_record(&rest.slice(start..)).is_some() {
            return Err(Error::Damaged("a record before the last one is damaged".to_owned()));
        }
    }
    if is_whole(rest, start) {
        return Err(Error::Damaged("the last record was written as a whole and is damaged".to_owned()));
    }
    if !rest.is_empty() {
        tracing::warn!(bytes = rest.len(), "truncated the torn tail of the journal");
    }
    Ok(())
}

/// Whether all sectors of a record that is not intact were written.
fn is_whole(record: &Bytes, start: usize) -> bool {
    let mut payload = record.clone();
    let (Ok(length), Ok(checksum)) = (payload.try_get_u32_le(), payload.try_get_u32_le()) else { return false };
    if crc32c::crc32c(&payload) == checksum {
        // Only its length is damaged.
        return !payload.is_empty();
    }
    let is_complete = usize::try_from(length).is_ok_and(|length| length <= payload.len());
    is_complete && sectors(record, start).all(|sector| sector.iter().any(|byte| *byte != 0))
}

/// The parts of these bytes that lie in different sectors. `start`: their place in the file.
fn sectors(bytes: &[u8], start: usize) -> impl Iterator<Item = &[u8]> {
    let (first, others) = bytes.split_at(bytes.len().min(SECTOR_BYTES - start % SECTOR_BYTES));
    std::iter::once(first).filter(|first| !first.is_empty()).chain(others.chunks(SECTOR_BYTES))
}

/// The payload of the first record and the bytes after it, or `None` at the end and where there is no intact record.
fn next_record(bytes: &Bytes) -> Option<(Bytes, Bytes)> {
    let mut rest = bytes.clone();
    let length = usize::try_from(rest.try_get_u32_le().ok()?).ok()?;
    let checksum = rest.try_get_u32_le().ok()?;
    if length == 0 || length > rest.len() {
        return None;
    }
    let payload = rest.split_to(length);
    (crc32c::crc32c(&payload) == checksum).then_some((payload, rest))
}

/// The content of an intact record. One that does not decode was synced: it must not be truncated like a torn tail.
fn entry(payload: Bytes) -> Result<Entry, Error> {
    let unknown = || Error::Damaged("the journal has a record that this release cannot read".to_owned());
    decode_entry(payload).ok_or_else(unknown)
}

fn decode_entry(mut payload: Bytes) -> Option<Entry> {
    let entry = match payload.try_get_u8().ok()? {
        TRANSACTION => {
            let revision = take_revision(&mut payload)?;
            let count = payload.try_get_u32_le().ok()?;
            let writes = (0..count).map(|_| take_write(&mut payload)).collect::<Option<_>>()?;
            Entry::Transaction(revision, writes)
        }
        SNAPSHOT_FILE => {
            let (created, modified) = (take_revision(&mut payload)?, take_revision(&mut payload)?);
            let Write::Put { path, value, lease } = take_write(&mut payload)? else { return None };
            Entry::SnapshotFile(File { path, value, created, modified, lease })
        }
        SNAPSHOT_END => Entry::SnapshotEnd(take_revision(&mut payload)?),
        _ => return None,
    };
    payload.is_empty().then_some(entry)
}

/// A revision; `None` for one that no service reaches, so that counting on does not overflow.
fn take_revision(payload: &mut Bytes) -> Option<Revision> {
    let revision = payload.try_get_u64_le().ok()?;
    (revision <= u64::MAX / 2).then(|| Revision::new(revision))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, proptest};

    use super::*;
    use crate::inputs::inputs;

    fn file(path: &str, lease: Option<u64>) -> File {
        let (created, modified) = (Revision::new(2), Revision::new(4));
        File {
            path: path.to_owned(),
            value: Bytes::from_static(b"value"),
            created,
            modified,
            lease: lease.map(LeaseId::new),
        }
    }

    /// The payloads of a journal's records: a snapshot of two files, and two transactions.
    fn payloads() -> Vec<Vec<u8>> {
        let end = [&[SNAPSHOT_END][..], &7_u64.to_le_bytes()].concat();
        let writes = [Write::put("a", "new"), Write::delete("b")];
        vec![
            snapshot_file(&file("a", None)).unwrap(),
            snapshot_file(&file("b", Some(3))).unwrap(),
            end,
            transaction(Revision::new(8), &writes).unwrap(),
            transaction(Revision::new(9), &writes[1..]).unwrap(),
        ]
    }

    fn journal(payloads: &[Vec<u8>]) -> Vec<u8> {
        payloads.iter().fold(MAGIC.to_vec(), |bytes, payload| [bytes, record(payload).unwrap()].concat())
    }

    fn replayed(bytes: Vec<u8>) -> Result<(Revision, BTreeMap<String, File>), Error> {
        replay(&bytes.into())
    }

    #[test]
    fn an_incomplete_snapshot_is_damage_wherever_it_ends() {
        let whole = journal(&payloads()[..3]);
        assert_eq!(replayed(whole.clone()).unwrap().0, Revision::new(7));
        for length in 0..whole.len() {
            let opened = replayed(whole[..length].to_vec());
            assert!(matches!(opened, Err(Error::Damaged(_))), "{length} of {} bytes: {opened:?}", whole.len());
        }
        let mut rotten = whole.clone();
        *rotten.last_mut().unwrap() ^= 1;
        assert!(replayed(rotten).is_err(), "the last record of a snapshot is no torn tail");
    }

    #[test]
    fn an_intact_record_that_cannot_be_read_is_no_torn_tail() {
        let mut payloads = payloads();
        for unknown in [&b"\x04later"[..], b"\x03", b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0"] {
            payloads[4] = unknown.to_vec();
            assert!(matches!(replayed(journal(&payloads)), Err(Error::Damaged(_))), "{unknown:?}");
        }
    }

    #[test]
    fn records_in_another_order_are_damage() {
        for order in [&[3][..], &[0, 3, 2], &[2, 0], &[2, 2], &[0, 1, 2, 4], &[0, 1, 2, 3, 3]] {
            let payloads: Vec<_> = order.iter().map(|number| payloads()[*number].clone()).collect();
            assert!(matches!(replayed(journal(&payloads)), Err(Error::Damaged(_))), "{order:?}");
        }
    }

    /// A journal whose last record has several sectors, and the place of that record.
    fn with_large_record() -> (Vec<u8>, usize) {
        let value: Vec<u8> = (0..3 * SECTOR_BYTES).map(|at| u8::try_from(at % 255).unwrap() | 1).collect();
        let mut payloads = payloads();
        payloads[4] = transaction(Revision::new(9), &[Write::put("c", value)]).unwrap();
        (journal(&payloads), journal(&payloads[..4]).len())
    }

    #[test]
    fn a_last_record_that_was_written_as_a_whole_is_damage_and_no_torn_tail() {
        let (large, at) = with_large_record();
        let (small, last) = (journal(&payloads()), journal(&payloads()[..4]).len());
        for (whole, last) in [(large, at), (small, last)] {
            for place in last..whole.len() {
                let mut rotten = whole.clone();
                rotten[place] ^= 0x10;
                let opened = replayed(rotten);
                assert!(matches!(opened, Err(Error::Damaged(_))), "byte {place} of {}: {opened:?}", whole.len());
            }
        }
    }

    #[test]
    fn a_record_of_which_some_sectors_or_the_end_were_not_written_is_torn() {
        let (whole, last) = with_large_record();
        let before = Revision::new(8);
        for length in last..whole.len() {
            assert_eq!(replayed(whole[..length].to_vec()).unwrap().0, before, "{length} of {} bytes", whole.len());
        }
        let boundaries = (last..whole.len()).filter(|place| *place == last || place % SECTOR_BYTES == 0);
        let sectors: Vec<usize> = boundaries.collect();
        assert!(sectors.len() > 3);
        // Every set of sectors but the empty one.
        for lost in 1..1_u32 << sectors.len() {
            let mut torn = whole.clone();
            for (number, start) in sectors.iter().enumerate().filter(|(number, _start)| (lost >> number) & 1 == 1) {
                let end = sectors.get(number + 1).copied().unwrap_or(whole.len());
                torn[*start..end].fill(0);
            }
            assert_eq!(replayed(torn).unwrap().0, before, "sectors {lost:b}");
        }
    }

    /// What was accepted survives a snapshot.
    fn check(bytes: Vec<u8>) {
        if let Ok((revision, files)) = replayed(bytes) {
            let again = snapshot(revision, files.values()).unwrap();
            assert_eq!(replayed(again), Ok((revision, files)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn a_journal_is_refused_or_survives_a_snapshot(bytes in inputs(vec![journal(&payloads())])) {
            check(bytes);
        }

        #[test]
        fn records_with_valid_checksums_are_refused_or_survive_a_snapshot(
            number in 0..5_usize,
            payload in inputs(payloads()),
        ) {
            let mut payloads = payloads();
            payloads[number] = payload;
            check(journal(&payloads));
        }
    }
}

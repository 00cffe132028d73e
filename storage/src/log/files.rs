//! The files of the log: starts a segment (in a recycled file when there is one), reads segments, releases old ones.
//!
//! Overwriting existing blocks needs no file system journal and costs half of an append, so a segment that is no longer
//! needed becomes a *spare* that a later segment reuses: rename, write and sync the header, sync the folder, record it in
//! the manifest, and only then write the first batch. A file with a sequence number above the manifest's can be deleted:
//! none of its content was acknowledged.
//!
//! A new log has no spares. When it is in use, one is prepared: a file of zeros, written in the background. A preparation that
//! fails is not repeated before the next start.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use ebla_runtime::Failpoint;
use tracing::warn;

use super::batch::BLOCK;
use super::error::LogError;
use super::manifest::SegmentManifest;
use super::segment::{SegmentHeader, file_name, parse_file_name, parse_spare_name, spare_name};
use crate::disk::{Disk, DiskFile, Durability, remove_if_exists};

/// Bytes per read call when a whole segment is read.
const READ_BYTES: usize = 1 << 20;

/// See the module.
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    manifest: Arc<dyn SegmentManifest>,
    segment_bytes: usize,
    spares_max: usize,
    spares: VecDeque<String>,
    next_spare: u64,
    /// The state of the spare that is being prepared, or was and is not used yet.
    prepared: Option<Prepared>,
    /// The needed segments.
    live: BTreeMap<u64, Segment>,
    /// Segment files that are not needed, or not yet known to be.
    unclaimed: BTreeMap<u64, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prepared {
    InProgress,
    Ready,
    Failed,
}

/// A spare is prepared only if the disk has room for this many segments: space that others may need soon is not taken.
const FREE_SEGMENTS_MIN: u64 = 16;

/// A spare to be written, without any lock of the log.
pub(crate) struct SpareOrder {
    disk: Arc<dyn Disk>,
    name: String,
    bytes: usize,
}

impl SpareOrder {
    /// Writes the file; its blocks are allocated and durable on return. Blocking.
    ///
    /// # Errors
    /// When the disk refuses, for example because it is full. Then the file is removed.
    pub(crate) fn write(&self) -> Result<(), LogError> {
        let written = self.write_zeros().and_then(|()| self.disk.sync_dir());
        if written.is_err() {
            // An incomplete spare that stays is recycled at the next start.
            let _stays = self.disk.remove(&self.name);
        }
        written.map_err(LogError::disk("prepare segment"))
    }

    fn write_zeros(&self) -> io::Result<()> {
        let file = self.disk.create(&self.name)?;
        let zeros = vec![0; READ_BYTES.min(self.bytes)];
        let mut offset = 0;
        while offset < self.bytes {
            let part = zeros.get(..self.bytes - offset).unwrap_or(&zeros);
            file.write_at(offset as u64, part)?;
            // In small parts: a sync of another file may have to wait for all unsynced blocks of this one.
            file.sync()?;
            offset += part.len();
        }
        Ok(())
    }
}

struct Segment {
    file: Arc<dyn DiskFile>,
    bytes: usize,
}

/// The segment that the writer appends to.
pub(crate) struct ActiveSegment {
    pub(crate) sequence: u64,
    pub(crate) salt: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    durability: Durability,
    /// Offset of the next batch, in bytes.
    pub(crate) end: usize,
    /// Offset at which the segment is full.
    limit: usize,
}

impl ActiveSegment {
    /// Whether a batch of this length can be written here.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.end + length <= self.limit
    }

    /// Whether batches extend the file, because it was not recycled.
    pub(crate) fn extends_file(&self) -> bool {
        self.durability == Durability::OnSync
    }

    /// Writes a batch; durable on return.
    pub(crate) fn append(&mut self, batch: &[u8]) -> Result<(), LogError> {
        ignore_planted(self.file.write_at(self.end as u64, batch)).map_err(LogError::write("write batch"))?;
        if self.durability == Durability::OnSync {
            ignore_planted(self.file.sync()).map_err(LogError::disk("sync batch"))?;
        }
        self.end += batch.len();
        Ok(())
    }
}

/// Failpoints: a batch counts as durable although it was not written or not synced.
fn ignore_planted(outcome: io::Result<()>) -> io::Result<()> {
    let Err(error) = outcome else { return Ok(()) };
    let is_ignored = match error.kind() {
        io::ErrorKind::StorageFull => Failpoint::FullDiskAcknowledged.is_enabled(),
        // Not that of a simulated disk that has lost its power.
        _ => error.raw_os_error().is_some() && Failpoint::DiskErrorIgnored.is_enabled(),
    };
    if is_ignored { Ok(()) } else { Err(error) }
}

/// Result of opening a segment.
pub(crate) enum OpenedSegment {
    /// Its header and the offset of its first batch.
    Valid(SegmentHeader, usize),
    /// The file is missing, or both copies of its header are bad.
    Damaged,
}

impl Files {
    /// Lists the folder. Changes nothing.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        manifest: Arc<dyn SegmentManifest>,
        segment_bytes: usize,
        spares_max: usize,
    ) -> Result<Self, LogError> {
        let names = disk.list().map_err(LogError::disk("list segments"))?;
        let unclaimed = names.iter().filter_map(|name| Some((parse_file_name(name)?, name.clone()))).collect();
        let spares: VecDeque<String> = names.iter().filter(|name| parse_spare_name(name).is_some()).cloned().collect();
        let next_spare = spares.iter().filter_map(|name| parse_spare_name(name)).max().map_or(1, |last| last + 1);
        Ok(Self {
            disk,
            manifest,
            segment_bytes,
            spares_max,
            spares,
            next_spare,
            prepared: None,
            live: BTreeMap::new(),
            unclaimed,
        })
    }

    /// The last segment that was started, 0 when there is none.
    pub(crate) fn last_registered(&self) -> u64 {
        self.manifest.highest()
    }

    /// A sequence number that no file ever had.
    pub(crate) fn next_sequence(&self) -> u64 {
        let here = self.unclaimed.keys().chain(self.live.keys()).max().copied().unwrap_or(0);
        here.max(self.manifest.highest()) + 1
    }

    /// Opens a needed segment and reads its header.
    ///
    /// # Errors
    /// When the system refuses for a reason other than a missing file, and when a later release wrote the segment.
    pub(crate) fn load(&mut self, sequence: u64) -> Result<OpenedSegment, LogError> {
        let Some(name) = self.unclaimed.get(&sequence) else { return Ok(OpenedSegment::Damaged) };
        let file = self.disk.open(name, Durability::OnSync).map_err(LogError::disk("open segment"))?;
        let front = read_front(file.as_ref());
        let found = match SegmentHeader::find(&front, sequence) {
            Some(found) => Some(found),
            None => {
                let whole = read_whole(file.as_ref())?;
                if let Some(format) = SegmentHeader::later_format(&whole) {
                    return Err(LogError::LaterFormat { segment: sequence, format });
                }
                SegmentHeader::find(&whole, sequence)
            }
        };
        let Some((header, start)) = found else { return Ok(OpenedSegment::Damaged) };
        let bytes = usize::try_from(file.len().map_err(LogError::disk("measure segment"))?).unwrap_or(usize::MAX);
        self.live.insert(sequence, Segment { file, bytes });
        self.unclaimed.remove(&sequence);
        Ok(OpenedSegment::Valid(header, start))
    }

    /// All bytes of a segment that was loaded.
    ///
    /// # Errors
    /// When its length cannot be read. Unreadable blocks are returned as zeros; the checksums then report damage.
    pub(crate) fn read(&self, sequence: u64) -> Result<Bytes, LogError> {
        match self.live.get(&sequence) {
            Some(segment) => read_whole(segment.file.as_ref()),
            None => Ok(Bytes::new()),
        }
    }

    /// Starts the segment of `header`, with `content` as its first batches and room for at least `room` bytes more.
    /// All of it is durable and recorded in the manifest on return.
    ///
    /// # Errors
    /// When a step fails. The log must close.
    pub(crate) fn start(
        &mut self,
        header: &SegmentHeader,
        content: &[u8],
        room: usize,
    ) -> Result<ActiveSegment, LogError> {
        let name = file_name(header.sequence);
        let mut front = header.encode();
        front.extend_from_slice(content);
        let started = self.write_front(&name, header.sequence, &front);
        if let Err(LogError::NoSpace { .. }) = started {
            // The next attempt creates it again.
            remove_if_exists(self.disk.as_ref(), &name).map_err(LogError::disk("remove segment"))?;
        }
        let (file, durability) = started?;
        let end = front.len();
        self.live.insert(header.sequence, Segment { file: Arc::clone(&file), bytes: end });
        let limit = self.segment_bytes.max(end + room);
        Ok(ActiveSegment { sequence: header.sequence, salt: header.salt, file, durability, end, limit })
    }

    /// Writes the first bytes of a new segment, and records it in the manifest.
    fn write_front(
        &mut self,
        name: &str,
        sequence: u64,
        front: &[u8],
    ) -> Result<(Arc<dyn DiskFile>, Durability), LogError> {
        let (file, durability) = self.take_file(name)?;
        file.write_at(0, front).map_err(LogError::write("write segment header"))?;
        if durability == Durability::OnSync {
            file.sync().map_err(LogError::disk("sync segment header"))?;
        }
        self.disk.sync_dir().map_err(LogError::disk("sync folder"))?;
        self.manifest.record(sequence).map_err(LogError::write("record segment in manifest"))?;
        Ok((file, durability))
    }

    /// Begins the preparation of a spare, unless there is one or the disk is short of space.
    pub(crate) fn begin_spare(&mut self) -> Option<SpareOrder> {
        if self.prepared.is_some() || !self.spares.is_empty() || !self.has_space() {
            return None;
        }
        self.prepared = Some(Prepared::InProgress);
        let name = spare_name(self.next_spare);
        self.next_spare += 1;
        Some(SpareOrder { disk: Arc::clone(&self.disk), name, bytes: self.segment_bytes })
    }

    fn has_space(&self) -> bool {
        let wanted = FREE_SEGMENTS_MIN.saturating_mul(self.segment_bytes as u64);
        self.disk.free_bytes().is_ok_and(|free| free >= wanted)
    }

    /// Ends the preparation: `written` is usable if it succeeded.
    pub(crate) fn finish_spare(&mut self, order: SpareOrder, written: &Result<(), LogError>) {
        self.prepared = Some(if written.is_ok() { Prepared::Ready } else { Prepared::Failed });
        if written.is_ok() {
            self.spares.push_front(order.name);
        }
    }

    /// Whether a prepared spare is ready.
    pub(crate) fn has_prepared_spare(&self) -> bool {
        self.prepared == Some(Prepared::Ready)
    }

    fn take_file(&mut self, name: &str) -> Result<(Arc<dyn DiskFile>, Durability), LogError> {
        let Some(spare) = self.spares.pop_front() else {
            let file = self.disk.create(name).map_err(LogError::write("create segment"))?;
            return Ok((file, Durability::OnSync));
        };
        // A prepared spare is the first one.
        if self.prepared == Some(Prepared::Ready) {
            self.prepared = None;
        }
        self.disk.rename(&spare, name).map_err(LogError::disk("recycle segment"))?;
        let file = self.disk.open(name, Durability::OnWrite).map_err(LogError::disk("open recycled segment"))?;
        Ok((file, Durability::OnWrite))
    }

    /// Updates the used size of the active segment.
    pub(crate) fn note_end(&mut self, active: &ActiveSegment) {
        if let Some(segment) = self.live.get_mut(&active.sequence) {
            segment.bytes = active.end;
        }
    }

    /// Bytes of all needed segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.live.values().map(|segment| segment.bytes as u64).sum()
    }

    /// How many segments are needed.
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    /// The open files of the needed segments.
    pub(crate) fn handles(&self) -> BTreeMap<u64, Arc<dyn DiskFile>> {
        self.live.iter().map(|(sequence, segment)| (*sequence, Arc::clone(&segment.file))).collect()
    }

    /// Releases the segments before `oldest`, the oldest first.
    ///
    /// # Errors
    /// When a file cannot be renamed or removed. The log must close.
    pub(crate) fn release(&mut self, oldest: u64) -> Result<(), LogError> {
        while let Some((sequence, segment)) = self.live.pop_first() {
            if sequence >= oldest {
                self.live.insert(sequence, segment);
                break;
            }
            self.retire(&file_name(sequence), segment.bytes)?;
        }
        Ok(())
    }

    /// Marks the segments between `previous` and `started` as not needed: `started` has replaced them.
    pub(crate) fn mark_replaced(&mut self, previous: u64, started: u64) {
        let replaced: Vec<u64> = self.live.keys().copied().filter(|at| *at > previous && *at < started).collect();
        for sequence in replaced {
            self.live.remove(&sequence);
            self.unclaimed.insert(sequence, file_name(sequence));
        }
    }

    /// Releases all files in the folder that are not needed.
    ///
    /// # Errors
    /// When a file cannot be renamed or removed.
    pub(crate) fn release_unclaimed(&mut self) -> Result<(), LogError> {
        for name in std::mem::take(&mut self.unclaimed).into_values() {
            let length = self.disk.open(&name, Durability::OnSync).and_then(|file| file.len()).unwrap_or(u64::MAX);
            self.retire(&name, usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        while self.spares.len() > self.spares_max
            && let Some(spare) = self.spares.pop_back()
        {
            self.disk.remove(&spare).map_err(LogError::disk("remove segment"))?;
        }
        Ok(())
    }

    fn retire(&mut self, name: &str, bytes: usize) -> Result<(), LogError> {
        if self.spares.len() >= self.spares_max || bytes > self.segment_bytes {
            return self.disk.remove(name).map_err(LogError::disk("remove segment"));
        }
        let spare = spare_name(self.next_spare);
        self.next_spare += 1;
        self.disk.rename(name, &spare).map_err(LogError::disk("retire segment"))?;
        self.spares.push_back(spare);
        Ok(())
    }
}

/// The front of a file: both copies of the header, according to the length in the first block.
fn read_front(file: &dyn DiskFile) -> Vec<u8> {
    let mut front = vec![0; BLOCK];
    let read = file.read_at(0, &mut front).unwrap_or(0);
    front.truncate(read);
    let both = SegmentHeader::copy_len(&front).map_or(BLOCK, |length| 2 * length.div_ceil(BLOCK) * BLOCK);
    // The length is not verified yet: a damaged one must not cause an unbounded allocation.
    let mut front = vec![0; both.min(READ_BYTES * 64)];
    let read = file.read_at(0, &mut front).unwrap_or(0);
    front.truncate(read);
    front
}

/// All bytes of a file. An unreadable block is returned as zeros, so one bad sector does not hide the rest.
fn read_whole(file: &dyn DiskFile) -> Result<Bytes, LogError> {
    let length = file.len().map_err(LogError::disk("measure segment"))?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    let mut offset = 0;
    for part in bytes.chunks_mut(READ_BYTES) {
        if let Err(error) = read_part(file, offset, part) {
            warn!(%error, offset, "segment read failed; retrying block by block");
            read_blocks(file, offset, part);
        }
        offset += part.len() as u64;
    }
    Ok(bytes.into())
}

fn read_part(file: &dyn DiskFile, offset: u64, part: &mut [u8]) -> io::Result<()> {
    file.read_at(offset, part).map(|_count| ())
}

fn read_blocks(file: &dyn DiskFile, mut offset: u64, part: &mut [u8]) {
    for block in part.chunks_mut(BLOCK) {
        if let Err(error) = file.read_at(offset, block) {
            warn!(%error, offset, "segment block is unreadable; treating it as zeros");
            block.fill(0);
        }
        offset += block.len() as u64;
    }
}

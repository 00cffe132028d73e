//! The files of the log: begin a segment (in a recycled file when there is one), read one back, let old ones go.
//!
//! Overwriting blocks that were written before needs no journal of the file system and costs half of an append, so a
//! segment that is no longer needed becomes a *spare* and a later segment moves in: rename, write and sync the header,
//! sync the folder, tell the witness, and only then the first batch. Whoever finds a file of a sequence that the witness
//! does not know may throw it away: it can hold nothing that anybody was promised.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tracing::warn;

use super::batch::BLOCK;
use super::error::LogError;
use super::segment::{SegmentHeader, file_name, parse_file_name, parse_spare_name, spare_name};
use super::witness::SegmentWitness;
use crate::disk::{Disk, DiskFile, Durability};

/// How much is read with one call when a segment is read whole.
const READ_BYTES: usize = 1 << 20;

/// See the module.
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    witness: Arc<dyn SegmentWitness>,
    segment_bytes: usize,
    spares_max: usize,
    spares: VecDeque<String>,
    next_spare: u64,
    /// The segments that are needed.
    live: BTreeMap<u64, Segment>,
    /// Files of segments that are not, or not yet known to be.
    others: BTreeMap<u64, String>,
}

struct Segment {
    file: Arc<dyn DiskFile>,
    bytes: usize,
}

/// The segment that is written to.
pub(crate) struct Active {
    pub(crate) sequence: u64,
    pub(crate) salt: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    durability: Durability,
    /// Where the next batch goes, in bytes.
    pub(crate) end: usize,
    /// Where the segment is full.
    limit: usize,
}

impl Active {
    /// Whether a batch of this length can be written here.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.end + length <= self.limit
    }

    /// Writes a batch; durable on return.
    pub(crate) fn append(&mut self, batch: &[u8]) -> Result<(), LogError> {
        self.file.write_at(self.end as u64, batch).map_err(LogError::disk("write batch"))?;
        if self.durability == Durability::OnSync {
            self.file.sync().map_err(LogError::disk("sync batch"))?;
        }
        self.end += batch.len();
        Ok(())
    }
}

/// How a segment in the folder looks from outside.
pub(crate) enum Opened {
    /// Its header and where its batches begin.
    Segment(SegmentHeader, usize),
    /// The file is missing, or both copies of its header are bad.
    Damaged,
}

impl Files {
    /// Looks at the folder. Nothing is changed yet.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        witness: Arc<dyn SegmentWitness>,
        segment_bytes: usize,
        spares_max: usize,
    ) -> Result<Self, LogError> {
        let names = disk.list().map_err(LogError::disk("list segments"))?;
        let others = names.iter().filter_map(|name| Some((parse_file_name(name)?, name.clone()))).collect();
        let spares: VecDeque<String> = names.iter().filter(|name| parse_spare_name(name).is_some()).cloned().collect();
        let next_spare = spares.iter().filter_map(|name| parse_spare_name(name)).max().map_or(1, |last| last + 1);
        Ok(Self { disk, witness, segment_bytes, spares_max, spares, next_spare, live: BTreeMap::new(), others })
    }

    /// The last segment that was begun, 0 when none was.
    pub(crate) fn registered(&self) -> u64 {
        self.witness.highest()
    }

    /// A sequence that no file ever had.
    pub(crate) fn next_sequence(&self) -> u64 {
        let here = self.others.keys().chain(self.live.keys()).max().copied().unwrap_or(0);
        here.max(self.witness.highest()) + 1
    }

    /// Opens a segment that is needed and reads its header.
    ///
    /// # Errors
    /// When the system refuses for a reason other than a missing file.
    pub(crate) fn load(&mut self, sequence: u64) -> Result<Opened, LogError> {
        let Some(name) = self.others.get(&sequence) else { return Ok(Opened::Damaged) };
        let file = self.disk.open(name, Durability::OnSync).map_err(LogError::disk("open segment"))?;
        let front = read_front(file.as_ref());
        let found = match SegmentHeader::find(&front, sequence) {
            Some(found) => Some(found),
            None => SegmentHeader::find(&read_whole(file.as_ref())?, sequence),
        };
        let Some((header, start)) = found else { return Ok(Opened::Damaged) };
        let bytes = usize::try_from(file.len().map_err(LogError::disk("measure segment"))?).unwrap_or(usize::MAX);
        self.live.insert(sequence, Segment { file, bytes });
        self.others.remove(&sequence);
        Ok(Opened::Segment(header, start))
    }

    /// All bytes of a segment that was loaded.
    ///
    /// # Errors
    /// When its length cannot be had. What cannot be read is zeros: damage, as the checksums will say.
    pub(crate) fn read(&self, sequence: u64) -> Result<Bytes, LogError> {
        match self.live.get(&sequence) {
            Some(segment) => read_whole(segment.file.as_ref()),
            None => Ok(Bytes::new()),
        }
    }

    /// Begins the segment of `header`, with `content` as its first batches and room for at least `room` bytes more.
    /// All of it is durable and registered on return.
    ///
    /// # Errors
    /// When a step fails. The log must end.
    pub(crate) fn begin(&mut self, header: &SegmentHeader, content: &[u8], room: usize) -> Result<Active, LogError> {
        let name = file_name(header.sequence);
        let (file, durability) = self.take_file(&name)?;
        let mut front = header.encode();
        front.extend_from_slice(content);
        file.write_at(0, &front).map_err(LogError::disk("write segment header"))?;
        if durability == Durability::OnSync {
            file.sync().map_err(LogError::disk("sync segment header"))?;
        }
        self.disk.sync_dir().map_err(LogError::disk("sync folder"))?;
        self.witness.record(header.sequence).map_err(LogError::disk("register segment"))?;
        let end = front.len();
        self.live.insert(header.sequence, Segment { file: Arc::clone(&file), bytes: end });
        let limit = self.segment_bytes.max(end + room);
        Ok(Active { sequence: header.sequence, salt: header.salt, file, durability, end, limit })
    }

    fn take_file(&mut self, name: &str) -> Result<(Arc<dyn DiskFile>, Durability), LogError> {
        let Some(spare) = self.spares.pop_front() else {
            let file = self.disk.create(name).map_err(LogError::disk("create segment"))?;
            return Ok((file, Durability::OnSync));
        };
        self.disk.rename(&spare, name).map_err(LogError::disk("recycle segment"))?;
        let file = self.disk.open(name, Durability::OnWrite).map_err(LogError::disk("open recycled segment"))?;
        Ok((file, Durability::OnWrite))
    }

    /// Notes how much of the active segment is used.
    pub(crate) fn note_end(&mut self, active: &Active) {
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

    /// Lets the segments before `oldest` go, the oldest first.
    ///
    /// # Errors
    /// When a file cannot be renamed or removed. The log must end.
    pub(crate) fn release(&mut self, oldest: u64) -> Result<(), LogError> {
        while let Some((sequence, segment)) = self.live.pop_first() {
            if sequence >= oldest {
                self.live.insert(sequence, segment);
                break;
            }
            self.let_go(&file_name(sequence), segment.bytes)?;
        }
        Ok(())
    }

    /// The segments between `previous` and `begun` are not needed: `begun` has replaced them.
    pub(crate) fn replaced(&mut self, previous: u64, begun: u64) {
        let replaced: Vec<u64> = self.live.keys().copied().filter(|at| *at > previous && *at < begun).collect();
        for sequence in replaced {
            self.live.remove(&sequence);
            self.others.insert(sequence, file_name(sequence));
        }
    }

    /// Lets everything go that was found in the folder and is not needed.
    ///
    /// # Errors
    /// When a file cannot be renamed or removed.
    pub(crate) fn release_others(&mut self) -> Result<(), LogError> {
        for name in std::mem::take(&mut self.others).into_values() {
            let length = self.disk.open(&name, Durability::OnSync).and_then(|file| file.len()).unwrap_or(u64::MAX);
            self.let_go(&name, usize::try_from(length).unwrap_or(usize::MAX))?;
        }
        while self.spares.len() > self.spares_max
            && let Some(spare) = self.spares.pop_back()
        {
            self.disk.remove(&spare).map_err(LogError::disk("remove segment"))?;
        }
        Ok(())
    }

    fn let_go(&mut self, name: &str, bytes: usize) -> Result<(), LogError> {
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

/// The front of a file: as much as its first block says that both copies of the header take.
fn read_front(file: &dyn DiskFile) -> Vec<u8> {
    let mut front = vec![0; BLOCK];
    let read = file.read_at(0, &mut front).unwrap_or(0);
    front.truncate(read);
    let both = SegmentHeader::copy_len(&front).map_or(BLOCK, |length| 2 * length.div_ceil(BLOCK) * BLOCK);
    // The length has not been checked yet: a spoilt one must not make us allocate without bound.
    let mut front = vec![0; both.min(READ_BYTES * 64)];
    let read = file.read_at(0, &mut front).unwrap_or(0);
    front.truncate(read);
    front
}

/// All bytes of a file. A block that the disk refuses to give is left as zeros, so one bad sector does not hide the rest.
fn read_whole(file: &dyn DiskFile) -> Result<Bytes, LogError> {
    let length = file.len().map_err(LogError::disk("measure segment"))?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    let mut offset = 0;
    for part in bytes.chunks_mut(READ_BYTES) {
        if let Err(error) = read_part(file, offset, part) {
            warn!(%error, offset, "segment is read block by block");
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
            warn!(%error, offset, "block of a segment cannot be read");
            block.fill(0);
        }
        offset += block.len() as u64;
    }
}

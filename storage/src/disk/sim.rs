//! A disk in memory that fails like a real one, for tests and simulation.
//!
//! Every file has two contents: the one that readers see (the page cache) and the one on the medium. A write changes the
//! first; a sync copies it to the second, in sectors of 512 bytes. At a [power cut](SimDisk::power_cut) each unsynced sector
//! is randomly kept, lost, or replaced by garbage, in any order. Of the names changed since the last sync of the folder a
//! prefix survives (a journal keeps order). A [failed sync](Fault::SyncFails) behaves as on Linux: the pages stay readable,
//! count as clean, and never reach the medium. [`SimDisk::flip_bit`] corrupts a synced sector. On a [full](SimDisk::fill) disk
//! no file grows.
//!
//! A fault is armed in advance, as a number of operations from now, so that it strikes in the middle of the tested code.
//! After a power cut all older handles fail.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use ebla_runtime::Rng;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{Disk, DiskFile, Durability};

/// The atomic unit of a write, in bytes.
pub const SECTOR: usize = 512;

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A power cut in the middle of the operation: it fails, and so do all later ones.
    PowerFails,
    /// The next write-through or sync returns an error and loses the data that it should have made durable.
    SyncFails,
}

/// What a power cut does to unsynced sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All are lost.
    All,
    /// None is lost.
    Nothing,
    /// Each is kept or lost at random.
    Some,
    /// Each is kept, lost or replaced by garbage at random.
    Garbage,
}

/// A disk in memory; clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Content>,
    /// Names as a reader sees them.
    names: BTreeMap<String, u64>,
    /// Names on the medium.
    durable_names: BTreeMap<String, u64>,
    /// Changes of names since the folder was last synced, in order.
    name_changes: Vec<NameChange>,
    next_file: u64,
    /// Grows with each power cut or restart; handles of an earlier incarnation fail.
    incarnation: u64,
    armed: Option<(u64, Fault)>,
    power_is_out: bool,
    /// Without a value there is no limit.
    free_bytes: Option<u64>,
    /// Whether files cannot grow.
    is_full: bool,
}

#[derive(Debug, Default)]
struct Content {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that a sync would copy to the medium.
    dirty: BTreeSet<usize>,
    /// Where the last two writes began, the last one first.
    last_writes: [usize; 2],
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Moved(String, String),
    Removed(String),
}

/// The outcome of an operation with its fault, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OperationOutcome {
    Succeeds,
    PowerFails,
    SyncFails,
}

fn power_is_out() -> io::Error {
    io::Error::other("the power is out")
}

fn sync_failed() -> io::Error {
    io::Error::from(Errno::IO)
}

fn disk_is_full() -> io::Error {
    io::Error::from(Errno::NOSPC)
}

fn to_offset(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Content {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.seen.len() < end {
            self.seen.resize(end, 0);
        }
        if let Some(target) = self.seen.get_mut(offset..end) {
            target.copy_from_slice(bytes);
        }
        self.dirty.extend(offset / SECTOR..end.div_ceil(SECTOR));
        self.last_writes = [offset, self.last_writes[0]];
    }

    /// Copies the dirty sectors of `range` to the medium.
    fn make_durable(&mut self, range: Range<usize>) {
        let sectors: Vec<usize> = self.dirty.range(range).copied().collect();
        for sector in sectors {
            self.dirty.remove(&sector);
            self.copy_to_medium(sector);
        }
    }

    fn copy_to_medium(&mut self, sector: usize) {
        let from = sector * SECTOR;
        let to = (from + SECTOR).min(self.seen.len());
        let Some(bytes) = self.seen.get(from..to) else { return };
        if self.durable.len() < to {
            self.durable.resize(to, 0);
        }
        if let Some(target) = self.durable.get_mut(from..to) {
            target.copy_from_slice(bytes);
        }
    }

    fn fill_with_garbage(&mut self, sector: usize, rng: &Rng) {
        let from = sector * SECTOR;
        let to = (from + SECTOR).min(self.durable.len());
        if let Some(target) = self.durable.get_mut(from..to) {
            for part in target.chunks_mut(8) {
                part.iter_mut().zip(rng.u64().to_le_bytes()).for_each(|(byte, random)| *byte = random);
            }
        }
    }

    fn lose_power(&mut self, loss: Loss, rng: &Rng) {
        for sector in std::mem::take(&mut self.dirty) {
            let dice = match loss {
                Loss::All => 0,
                Loss::Nothing => 1,
                Loss::Some => rng.below(2),
                Loss::Garbage => rng.below(3),
            };
            if dice > 0 {
                self.copy_to_medium(sector);
            }
            if dice > 1 {
                self.fill_with_garbage(sector, rng);
            }
        }
        self.seen.clone_from(&self.durable);
    }
}

impl State {
    /// Counts an operation and returns its outcome.
    fn begin(&mut self, syncs: bool) -> io::Result<OperationOutcome> {
        if self.power_is_out {
            return Err(power_is_out());
        }
        let Some((left, fault)) = self.armed else { return Ok(OperationOutcome::Succeeds) };
        if left > 1 {
            self.armed = Some((left - 1, fault));
            return Ok(OperationOutcome::Succeeds);
        }
        match fault {
            Fault::SyncFails if !syncs => Ok(OperationOutcome::Succeeds),
            Fault::SyncFails => {
                self.armed = None;
                Ok(OperationOutcome::SyncFails)
            }
            Fault::PowerFails => {
                self.armed = None;
                self.power_is_out = true;
                Ok(OperationOutcome::PowerFails)
            }
        }
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        let outcome = self.begin(false)?;
        apply_name_change(&mut self.names, &change);
        self.name_changes.push(change);
        if outcome == OperationOutcome::Succeeds { Ok(()) } else { Err(power_is_out()) }
    }

    fn file(&self, name: &str) -> io::Result<u64> {
        self.names.get(name).copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name.to_owned()))
    }

    fn lose_power(&mut self, loss: Loss, rng: &Rng) {
        let kept = match loss {
            Loss::All => 0,
            Loss::Nothing => self.name_changes.len(),
            Loss::Some | Loss::Garbage => to_offset(rng.below(self.name_changes.len() as u64 + 1)),
        };
        for change in std::mem::take(&mut self.name_changes).iter().take(kept) {
            apply_name_change(&mut self.durable_names, change);
        }
        self.names.clone_from(&self.durable_names);
        let alive: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| alive.contains(file));
        for content in self.files.values_mut() {
            content.lose_power(loss, rng);
        }
    }
}

fn apply_name_change(names: &mut BTreeMap<String, u64>, change: &NameChange) {
    match change {
        NameChange::Set(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameChange::Moved(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        NameChange::Removed(name) => {
            names.remove(name);
        }
    }
}

impl SimDisk {
    /// An empty disk without faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Injects `fault` into the `after`-th mutating operation from now (1 is the next).
    pub fn arm(&self, after: u64, fault: Fault) {
        self.state.lock().armed = Some((after.max(1), fault));
    }

    /// Whether the power is out, or will be.
    #[must_use]
    pub fn loses_power(&self) -> bool {
        let state = self.state.lock();
        state.power_is_out || state.armed.is_some_and(|(_operations, fault)| fault == Fault::PowerFails)
    }

    /// A fault that has not occurred yet does not occur.
    pub fn disarm(&self) {
        self.state.lock().armed = None;
    }

    /// Sets what [`Disk::free_bytes`] returns. Writes are not limited: see [`Self::fill`].
    pub fn set_free_bytes(&self, bytes: u64) {
        self.state.lock().free_bytes = Some(bytes);
    }

    /// Fills the disk: from now on files cannot be created, and a write beyond the end of a file fails. It writes what has room in the last
    /// sector of the file.
    pub fn fill(&self) {
        self.state.lock().is_full = true;
    }

    /// Ends what [`Self::fill`] began.
    pub fn make_room(&self) {
        self.state.lock().is_full = false;
    }

    /// Bytes at the start of `name` that neither of the last two writes has changed; 0 when there is no such file. If writes are
    /// appended and synced one by one, a power cut leaves a later write behind these bytes.
    #[must_use]
    pub fn settled_bytes(&self, name: &str) -> usize {
        let state = self.state.lock();
        let content = state.names.get(name).and_then(|file| state.files.get(file));
        content.map_or(0, |content| content.last_writes[0].min(content.last_writes[1]))
    }

    /// Replaces the disk by an empty one without faults. Older handles fail.
    pub fn erase(&self) {
        let mut state = self.state.lock();
        *state = State { incarnation: state.incarnation + 1, next_file: state.next_file, ..State::default() };
    }

    /// Counts as an operation, so that another component (a registry) can fail with the same power cut.
    ///
    /// # Errors
    /// When the power is out, or fails now.
    pub fn count_operation(&self) -> io::Result<()> {
        match self.state.lock().begin(false)? {
            OperationOutcome::Succeeds => Ok(()),
            OperationOutcome::PowerFails | OperationOutcome::SyncFails => Err(power_is_out()),
        }
    }

    /// Cuts the power and turns it on again: `loss` applies to unsynced sectors.
    pub fn power_cut(&self, loss: Loss, rng: &Rng) {
        let mut state = self.state.lock();
        state.lose_power(loss, rng);
        state.restart();
    }

    /// Restarts the process but not the machine: unsynced writes stay readable and unsynced.
    pub fn restart(&self) {
        self.state.lock().restart();
    }

    /// Flips one bit of a sector of `name`, like bit rot. Returns `false` when the file has no such sector.
    pub fn flip_bit(&self, name: &str, sector: usize, rng: &Rng) -> bool {
        let mut state = self.state.lock();
        let Some(file) = state.names.get(name).copied() else { return false };
        let Some(content) = state.files.get_mut(&file) else { return false };
        let at = sector * SECTOR + to_offset(rng.below(SECTOR as u64));
        let mask = 1_u8 << rng.below(8);
        let mut flipped = false;
        for side in [&mut content.seen, &mut content.durable] {
            if let Some(byte) = side.get_mut(at) {
                *byte ^= mask;
                flipped = true;
            }
        }
        flipped
    }

    /// The readable bytes of `name`.
    #[must_use]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        state.names.get(name).and_then(|file| state.files.get(file)).map(|content| content.seen.clone())
    }

    fn handle(&self, file: u64, durability: Durability, incarnation: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), file, durability, incarnation })
    }
}

impl State {
    fn restart(&mut self) {
        self.incarnation += 1;
        self.armed = None;
        self.power_is_out = false;
    }
}

impl Disk for SimDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        if state.names.contains_key(name) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, name.to_owned()));
        }
        if state.is_full {
            return Err(disk_is_full());
        }
        let file = state.next_file;
        state.next_file += 1;
        state.files.insert(file, Content::default());
        state.change_name(NameChange::Set(name.to_owned(), file))?;
        let incarnation = state.incarnation;
        drop(state);
        Ok(self.handle(file, Durability::OnSync, incarnation))
    }

    fn open(&self, name: &str, durability: Durability) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state.lock();
        if state.power_is_out {
            return Err(power_is_out());
        }
        let (file, incarnation) = (state.file(name)?, state.incarnation);
        drop(state);
        Ok(self.handle(file, durability, incarnation))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.file(from)?;
        state.change_name(NameChange::Moved(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.file(name)?;
        state.change_name(NameChange::Removed(name.to_owned()))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.state.lock();
        if state.power_is_out { Err(power_is_out()) } else { Ok(state.names.keys().cloned().collect()) }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.state.lock().free_bytes.unwrap_or(u64::MAX))
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.begin(true)? {
            OperationOutcome::Succeeds => {
                state.durable_names = state.names.clone();
                state.name_changes.clear();
                Ok(())
            }
            OperationOutcome::PowerFails => Err(power_is_out()),
            OperationOutcome::SyncFails => Err(sync_failed()),
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    file: u64,
    durability: Durability,
    incarnation: u64,
}

impl SimFile {
    fn with<T>(&self, run: impl FnOnce(&mut State, u64) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state.lock();
        if state.incarnation != self.incarnation || state.power_is_out {
            return Err(power_is_out());
        }
        run(&mut state, self.file)
    }
}

fn content(state: &mut State, file: u64) -> io::Result<&mut Content> {
    state.files.get_mut(&file).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

impl DiskFile for SimFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let through = self.durability == Durability::OnWrite;
        let offset = to_offset(offset);
        self.with(|state, file| {
            let is_full = state.is_full;
            let known = content(state, file)?;
            if is_full && offset + bytes.len() > known.seen.len() {
                let room = known.seen.len().next_multiple_of(SECTOR).saturating_sub(offset);
                let fitting = bytes.get(..room).unwrap_or(bytes);
                if !fitting.is_empty() {
                    known.write(offset, fitting);
                }
                return Err(disk_is_full());
            }
            let outcome = state.begin(through)?;
            let content = content(state, file)?;
            content.write(offset, bytes);
            let sectors = offset / SECTOR..(offset + bytes.len()).div_ceil(SECTOR);
            match outcome {
                OperationOutcome::Succeeds if through => content.make_durable(sectors),
                OperationOutcome::Succeeds => {}
                OperationOutcome::PowerFails => return Err(power_is_out()),
                OperationOutcome::SyncFails => {
                    content.dirty.retain(|sector| !sectors.contains(sector));
                    return Err(sync_failed());
                }
            }
            Ok(())
        })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.with(|state, file| {
            let content = content(state, file)?;
            let rest = content.seen.get(to_offset(offset)..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            if let (Some(target), Some(source)) = (buffer.get_mut(..count), rest.get(..count)) {
                target.copy_from_slice(source);
            }
            Ok(count)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with(|state, file| {
            let outcome = state.begin(true)?;
            let content = content(state, file)?;
            match outcome {
                OperationOutcome::Succeeds => content.make_durable(0..usize::MAX),
                OperationOutcome::PowerFails => return Err(power_is_out()),
                OperationOutcome::SyncFails => {
                    content.dirty.clear();
                    return Err(sync_failed());
                }
            }
            Ok(())
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|state, file| Ok(content(state, file)?.seen.len() as u64))
    }
}

#[cfg(test)]
mod tests;

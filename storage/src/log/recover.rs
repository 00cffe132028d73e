//! Rebuilds the log from its segments at start.
//!
//! 1. The witness names the last segment. From it the headers lead back, segment by segment, to the first that is needed.
//!    One that is missing or has no readable header is damage to everyone: what it held cannot be known.
//! 2. Each segment is read once, oldest first (see [`super::scan`]). Damage quarantines the groups that it names; records
//!    that do not follow one another quarantine theirs. The torn tail of the last segment is cut.
//! 3. The accepted content of the last segment is written into a new one and synced before anybody builds on it: it was
//!    read from the page cache, and after a failed sync of the life before it may never have reached the disk.
//! 4. Only when the new segment is registered do other files become spares. Until then a crash finds what was there.
//!
//! A quarantined group stays so: headers carry it until the group is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ebla_runtime::{Bug, planted};
use tracing::error;

use super::batch::{BatchPlan, Position};
use super::error::LogError;
use super::files::{Files, Opened};
use super::index::{Index, Place};
use super::ledger::Ledger;
use super::record::{GroupId, Record};
use super::scan::{Damage, Ending, Finding, Scan, scan};
use super::segment::{CarriedGroup, CarriedState, SegmentHeader};
use super::witness::SegmentWitness;
use super::writer::{Writer, small};
use super::{LogOptions, Recovered, RecoveredGroup};
use crate::disk::Disk;

/// Payload of one batch of the rewritten segment, about, in bytes.
const REWRITE_BATCH_BYTES: usize = 1 << 20;

/// The first serial number of a submission. Those of recovery lie below; none of its entries is pending afterwards.
pub(crate) const FIRST_LIVE_SERIAL: u64 = 1 << 63;

/// A log ready for work.
pub(crate) struct Rebuilt {
    pub(crate) writer: Writer,
    pub(crate) index: Index,
    pub(crate) recovered: Recovered,
}

/// Reads the log and begins its next segment.
///
/// # Errors
/// When the disk or the witness fails. Damage is not an error: it is told in [`Recovered`].
pub(crate) fn recover(
    disk: Arc<dyn Disk>,
    witness: Arc<dyn SegmentWitness>,
    options: &LogOptions,
) -> Result<Rebuilt, LogError> {
    let mut files = Files::open(disk, witness, options.segment_bytes, options.spares_max)?;
    let mut replay = Replay::default();
    let last = match survey(&mut files, &mut replay)? {
        Survey::Empty => Last::none(),
        Survey::Whole { older, last } => {
            replay.older(&files, &older, last.previous_end())?;
            last
        }
        Survey::Broken => {
            replay.anyone = true;
            Last::none()
        }
    };
    replay.begin(files, last, options)
}

/// What must be there, and whether it is.
enum Survey {
    /// No segment was ever begun.
    Empty,
    /// All of it can be read in principle.
    Whole { older: Vec<Loaded>, last: Last },
    /// A needed segment is missing or headless.
    Broken,
}

/// A needed segment before the last.
struct Loaded {
    header: SegmentHeader,
    start: usize,
}

/// The last segment, already read; without a header when there is none.
struct Last {
    header: Option<SegmentHeader>,
    scan: Scan,
}

impl Last {
    fn none() -> Self {
        Self { header: None, scan: Scan::default() }
    }

    fn previous_end(&self) -> u64 {
        self.header.as_ref().map_or(0, |header| header.previous_end)
    }
}

fn survey(files: &mut Files, replay: &mut Replay) -> Result<Survey, LogError> {
    let registered = files.registered();
    if registered == 0 {
        return Ok(Survey::Empty);
    }
    let Opened::Segment(header, start) = files.load(registered)? else {
        error!(segment = registered, "last segment of the commit log is missing or has no header");
        return Ok(Survey::Broken);
    };
    let mut scan = scan(&files.read(registered)?, &header, start, Ending::Open);
    if planted(Bug::LogTailLost) {
        scan.forget_last();
    }
    let oldest = scan.batches().map(|batch| batch.header.position.oldest).max().unwrap_or(0).max(header.oldest);
    replay.names.extend(header.groups.iter().map(|carried| carried.group));
    replay.names.extend(scan.batches().flat_map(|batch| batch.header.groups.iter().copied()));
    let mut older = Vec::new();
    let mut sequence = header.previous;
    while sequence != 0 && sequence >= oldest {
        let Opened::Segment(header, start) = files.load(sequence)? else {
            error!(segment = sequence, "needed segment of the commit log is missing or has no header");
            return Ok(Survey::Broken);
        };
        sequence = header.previous;
        older.push(Loaded { header, start });
    }
    older.reverse();
    Ok(Survey::Whole { older, last: Last { header: Some(header), scan } })
}

/// What the segments say, as they are read in order.
#[derive(Default)]
struct Replay {
    ledger: Ledger,
    index: Index,
    /// Every group that was seen anywhere.
    names: BTreeSet<GroupId>,
    next_serial: u64,
    /// A damage was met that could be anyone's.
    anyone: bool,
}

impl Replay {
    fn older(&mut self, files: &Files, older: &[Loaded], last_previous_end: u64) -> Result<(), LogError> {
        let ends = older.iter().skip(1).map(|next| next.header.previous_end).chain([last_previous_end]);
        for (segment, end) in older.iter().zip(ends) {
            let sequence = segment.header.sequence;
            self.adopt(&segment.header);
            let bytes = files.read(sequence)?;
            for finding in scan(&bytes, &segment.header, segment.start, Ending::Closed(end)).findings {
                match finding {
                    Finding::Damage(damage) => self.damage(sequence, &damage),
                    Finding::Batch(batch) => {
                        let offset = batch.payload_offset;
                        self.placed(sequence, offset, batch.payload, &batch.header.groups);
                    }
                }
            }
        }
        Ok(())
    }

    fn adopt(&mut self, header: &SegmentHeader) {
        self.ledger.adopt(header);
        self.index.retain(|group| self.ledger.knows(group));
        for CarriedGroup { group, state } in &header.groups {
            self.names.insert(*group);
            let CarriedState::Live { vote, purged, last } = state else {
                self.index.quarantine(*group);
                continue;
            };
            if let Err(reason) = self.index.adopt(*group, vote.clone(), *purged, *last) {
                error!(segment = header.sequence, %group, %reason, "header of a segment does not follow the log");
                self.quarantine(*group);
            }
        }
    }

    fn damage(&mut self, segment: u64, damage: &Damage) {
        error!(segment, batch = damage.batch, groups = ?damage.groups, "damage in the commit log");
        match &damage.groups {
            Some(groups) => groups.iter().for_each(|group| self.quarantine(*group)),
            None => self.anyone = true,
        }
    }

    fn quarantine(&mut self, group: GroupId) {
        self.names.insert(group);
        self.ledger.quarantine(group);
        self.index.quarantine(group);
    }

    /// Follows a batch of a segment that stays where it is.
    fn placed(&mut self, segment: u64, offset: usize, payload: Bytes, groups: &[GroupId]) {
        let Some(records) = Record::decode_all(payload) else {
            // The CRC agreed, so it was written like this: a release that we do not know, or a fault of ours.
            groups.iter().for_each(|group| self.quarantine(*group));
            return;
        };
        let mut at = offset;
        for record in records {
            let length = record.encoded_len();
            let serial = self.next_serial;
            if self.follow(&record, segment) {
                let place = Place { segment, offset: small(at), len: small(length) };
                self.index.place(record.group(), serial, place);
            }
            at += length;
        }
    }

    /// Takes a record in, if it can follow; one that cannot means that something before it is missing.
    fn follow(&mut self, record: &Record, segment: u64) -> bool {
        let group = record.group();
        self.names.insert(group);
        if self.ledger.is_quarantined(group) && !matches!(record, Record::Removed { .. }) {
            return false;
        }
        let checked = match record {
            Record::Removed { .. } => Ok(()),
            _ => self.index.add(group).and_then(|()| self.index.check(std::slice::from_ref(record))),
        };
        if let Err(reason) = checked {
            error!(segment, %group, %reason, "records of the commit log do not follow one another");
            self.quarantine(group);
            return false;
        }
        if matches!(record, Record::Removed { .. }) {
            self.names.remove(&group);
        }
        self.index.accept(record, self.next_serial);
        self.ledger.apply(record, segment);
        self.next_serial += 1;
        true
    }

    /// Follows the last segment, rewrites it into a new one and lets go what is not needed any more.
    fn begin(mut self, mut files: Files, last: Last, options: &LogOptions) -> Result<Rebuilt, LogError> {
        let sequence = files.next_sequence();
        let cut_bytes = last.scan.cut_bytes as u64;
        let mut header = self.next_header(&last, sequence, options.rng.u64());
        let records = self.follow_last(last.scan, sequence);
        header.groups = self.with_quarantined(header.groups);
        if self.anyone {
            self.lose_everything(&mut header);
        }
        header.oldest = self.ledger.oldest(sequence);
        header.all_quarantined = self.ledger.all_quarantined;
        let records = records.into_iter().filter(|(record, _)| self.keeps(record)).collect();
        let rewrite = Rewrite::new(&mut header, records);
        rewrite.places.iter().for_each(|(group, serial, place)| self.index.place(*group, *serial, *place));
        let active = files.begin(&header, &rewrite.content, 0)?;
        files.replaced(header.previous, sequence);
        files.release_others()?;
        let writer = Writer {
            files,
            ledger: self.ledger.clone(),
            active,
            rng: options.rng.clone(),
            next: rewrite.next,
            chain: rewrite.chain,
            told_oldest: header.oldest,
            unmarked: false,
        };
        let recovered = self.recovered(cut_bytes);
        Ok(Rebuilt { writer, index: self.index, recovered })
    }

    /// The header of the segment that replaces the last one: it carries what that one carried.
    fn next_header(&mut self, last: &Last, sequence: u64, salt: u64) -> SegmentHeader {
        if let Some(header) = &last.header {
            self.adopt(header);
        }
        let old = last.header.as_ref();
        SegmentHeader {
            sequence,
            salt,
            previous: old.map_or(0, |header| header.previous),
            previous_end: last.previous_end(),
            first_batch: last.scan.next.max(1),
            chain: last.scan.chain,
            synced: 0,
            oldest: 0,
            all_quarantined: false,
            groups: self.ledger.carried(),
        }
    }

    /// Follows the records of the last segment, which will lie in `segment`; those that could follow, with their serials.
    fn follow_last(&mut self, scan: Scan, segment: u64) -> Vec<(Record, u64)> {
        let mut kept = Vec::new();
        for finding in scan.findings {
            match finding {
                Finding::Damage(damage) => self.damage(segment, &damage),
                Finding::Batch(batch) => match Record::decode_all(batch.payload) {
                    Some(records) => kept.extend(records.into_iter().filter_map(|record| {
                        let serial = self.next_serial;
                        self.follow(&record, segment).then_some((record, serial))
                    })),
                    None => batch.header.groups.iter().for_each(|group| self.quarantine(*group)),
                },
            }
        }
        for group in self.index.incomplete() {
            error!(%group, "entries of the commit log are missing");
            self.quarantine(group);
        }
        kept
    }

    /// What a header carries, with the groups that were found damaged since.
    fn with_quarantined(&self, carried: Vec<CarriedGroup>) -> Vec<CarriedGroup> {
        let mut states: BTreeMap<GroupId, CarriedState> =
            carried.into_iter().map(|carried| (carried.group, carried.state)).collect();
        states.extend(self.ledger.quarantined().map(|group| (group, CarriedState::Quarantined)));
        states.into_iter().map(|(group, state)| CarriedGroup { group, state }).collect()
    }

    fn keeps(&self, record: &Record) -> bool {
        !self.anyone && !self.ledger.is_quarantined(record.group())
    }

    /// Nothing that was read can be trusted for anyone: the log begins anew, and says so.
    fn lose_everything(&mut self, header: &mut SegmentHeader) {
        error!(groups = self.names.len(), "commit log begins anew: every group of before is quarantined");
        self.ledger = Ledger::all_quarantined(&self.names);
        self.index = Index::default();
        self.names.iter().for_each(|group| self.index.quarantine(*group));
        header.groups = self.ledger.carried();
        (header.previous, header.previous_end) = (0, 0);
    }

    fn recovered(&self, cut_bytes: u64) -> Recovered {
        let state = |group| RecoveredGroup {
            vote: self.index.vote(group),
            purged: self.index.purged(group),
            last: self.index.last(group),
        };
        Recovered {
            groups: self.index.groups().map(|group| (group, state(group))).collect(),
            quarantined: self.ledger.quarantined().collect(),
            all_quarantined: self.ledger.all_quarantined,
            cut_bytes,
        }
    }
}

/// The content of the last segment in the batches of a new one.
struct Rewrite {
    content: Vec<u8>,
    places: Vec<(GroupId, u64, Place)>,
    /// Number and predecessor's CRC of the batch that follows.
    next: u64,
    chain: u32,
}

impl Rewrite {
    /// Lays `records` (with their serials) out behind `header`, which is told how far they reach.
    fn new(header: &mut SegmentHeader, records: Vec<(Record, u64)>) -> Self {
        let start = header.encode().len();
        let mut rewrite =
            Self { content: Vec::new(), places: Vec::new(), next: header.first_batch, chain: header.chain };
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (record, serial) in records {
            bytes += record.encoded_len();
            batch.push((record, serial));
            if bytes >= REWRITE_BATCH_BYTES {
                rewrite.push(header, start, &std::mem::take(&mut batch));
                bytes = 0;
            }
        }
        if !batch.is_empty() {
            rewrite.push(header, start, &batch);
        }
        header.synced = rewrite.next - 1;
        rewrite
    }

    fn push(&mut self, header: &SegmentHeader, start: usize, batch: &[(Record, u64)]) {
        let mut plan = BatchPlan::new();
        batch.iter().for_each(|(record, _)| plan.add(record));
        let position = Position {
            segment: header.sequence,
            salt: header.salt,
            number: self.next,
            previous: self.chain,
            synced: self.next - 1,
            oldest: header.oldest,
        };
        let encoded = plan.encode(position, batch.iter().map(|(record, _)| record));
        let base = start + self.content.len();
        self.places.extend(batch.iter().zip(&encoded.starts).map(|((record, serial), at)| {
            let place = Place { segment: header.sequence, offset: small(base + at), len: small(record.encoded_len()) };
            (record.group(), *serial, place)
        }));
        self.content.extend_from_slice(&encoded.bytes);
        self.next += 1;
        self.chain = encoded.crc;
    }
}

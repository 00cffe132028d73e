//! Rebuilds the log from its segments at start.
//!
//! 1. The manifest names the last segment. From there the headers lead back, segment by segment, to the oldest needed one. A
//!    segment that is missing or has no readable header is damage to all groups: its content is unknown.
//! 2. Each segment is read once, oldest first (see [`super::scan`]). Damage quarantines the groups that it names; a record
//!    that does not follow its predecessor quarantines its group. The torn tail of the last segment is truncated.
//! 3. The accepted content of the last segment is written into a new one and synced before it is used: it was read from the
//!    page cache, and after a failed sync of the previous process it may never have reached the disk.
//! 4. Other files become spares only after the new segment is in the manifest. A crash before that repeats the recovery.
//!
//! A quarantined group stays quarantined: segment headers record it until the group is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ebla_runtime::Failpoint;
use tracing::error;

use super::batch::{BatchPlan, Position, to_u32};
use super::durable_state::DurableState;
use super::error::LogError;
use super::files::{Files, OpenedSegment};
use super::index::{Index, RecordLocation};
use super::manifest::SegmentManifest;
use super::record::{GroupReplica, Record};
use super::scan::{Damage, ScanItem, SegmentScan, Tail, scan};
use super::segment::{HeaderGroup, HeaderGroupState, SegmentHeader};
use super::writer::Writer;
use super::{LogOptions, Recovered, RecoveredGroup};
use crate::disk::Disk;

/// Approximate payload of one batch of the rewritten segment, in bytes.
const REWRITE_BATCH_BYTES: usize = 1 << 20;

/// The first serial number of a submission. Recovery uses lower ones; none of its entries is pending afterwards.
pub(crate) const FIRST_LIVE_SERIAL: u64 = 1 << 63;

/// A recovered log, ready to accept submissions.
pub(crate) struct RebuiltLog {
    pub(crate) writer: Writer,
    pub(crate) index: Index,
    pub(crate) recovered: Recovered,
}

/// Reads the log and starts its next segment.
///
/// # Errors
/// When the disk or the manifest fails, or a later release wrote the log. Damage is not an error: it is reported in
/// [`Recovered`].
pub(crate) fn recover(
    disk: Arc<dyn Disk>,
    manifest: Arc<dyn SegmentManifest>,
    options: &LogOptions,
) -> Result<RebuiltLog, LogError> {
    let mut files = Files::open(disk, manifest, options.segment_bytes, options.spares_max)?;
    let mut replay = Replay::default();
    let last = match load_chain(&mut files, &mut replay)? {
        SegmentChain::Empty => LastSegment::none(),
        SegmentChain::Complete { older, last } => {
            replay.replay_older(&files, &older, last.previous_end())?;
            last
        }
        SegmentChain::Broken => {
            replay.all_suspect = true;
            LastSegment::none()
        }
    };
    replay.finish(files, last, options)
}

/// The needed segments, and whether all of them can be read.
enum SegmentChain {
    /// No segment was ever started.
    Empty,
    /// All needed segments have a header.
    Complete { older: Vec<OlderSegment>, last: LastSegment },
    /// A needed segment is missing or has no header.
    Broken,
}

/// A needed segment before the last.
struct OlderSegment {
    header: SegmentHeader,
    start: usize,
}

/// The last segment, already read; without a header when the log is empty or broken.
struct LastSegment {
    header: Option<SegmentHeader>,
    scan: SegmentScan,
}

impl LastSegment {
    fn none() -> Self {
        Self { header: None, scan: SegmentScan::default() }
    }

    fn previous_end(&self) -> u64 {
        self.header.as_ref().map_or(0, |header| header.previous_end)
    }
}

fn load_chain(files: &mut Files, replay: &mut Replay) -> Result<SegmentChain, LogError> {
    let registered = files.last_registered();
    if registered == 0 {
        return Ok(SegmentChain::Empty);
    }
    let OpenedSegment::Valid(header, start) = files.load(registered)? else {
        error!(segment = registered, "last commit log segment is missing or has no valid header");
        return Ok(SegmentChain::Broken);
    };
    let mut scan = scan(&files.read(registered)?, &header, start, Tail::Open);
    if Failpoint::LogTailLost.is_enabled() {
        scan.drop_last_batch();
    }
    let oldest = scan.batches().map(|batch| batch.header.position.oldest).max().unwrap_or(0).max(header.oldest);
    replay.seen_groups.extend(header.groups.iter().map(|carried| carried.group));
    replay.seen_groups.extend(scan.batches().flat_map(|batch| batch.header.groups.iter().copied()));
    let mut older = Vec::new();
    let mut sequence = header.previous;
    while sequence != 0 && sequence >= oldest {
        let OpenedSegment::Valid(header, start) = files.load(sequence)? else {
            error!(segment = sequence, "commit log segment is missing or has no valid header");
            return Ok(SegmentChain::Broken);
        };
        sequence = header.previous;
        older.push(OlderSegment { header, start });
    }
    older.reverse();
    Ok(SegmentChain::Complete { older, last: LastSegment { header: Some(header), scan } })
}

/// The state that is rebuilt while the segments are read in order.
#[derive(Default)]
struct Replay {
    durable_state: DurableState,
    index: Index,
    /// Every group that was found in any segment.
    seen_groups: BTreeSet<GroupReplica>,
    next_serial: u64,
    /// Damage was found that may affect any group.
    all_suspect: bool,
}

impl Replay {
    fn replay_older(&mut self, files: &Files, older: &[OlderSegment], last_previous_end: u64) -> Result<(), LogError> {
        let ends = older.iter().skip(1).map(|next| next.header.previous_end).chain([last_previous_end]);
        for (segment, end) in older.iter().zip(ends) {
            let sequence = segment.header.sequence;
            self.adopt(&segment.header);
            let bytes = files.read(sequence)?;
            for item in scan(&bytes, &segment.header, segment.start, Tail::Sealed(end)).items {
                match item {
                    ScanItem::Damage(damage) => self.damage(sequence, &damage),
                    ScanItem::Batch(batch) => {
                        let offset = batch.payload_offset;
                        self.replay_batch(sequence, offset, batch.payload, &batch.header.groups);
                    }
                }
            }
        }
        Ok(())
    }

    fn adopt(&mut self, header: &SegmentHeader) {
        self.durable_state.load_header(header);
        self.index.retain(|group| self.durable_state.contains(group));
        for HeaderGroup { group, state } in &header.groups {
            self.seen_groups.insert(*group);
            let HeaderGroupState::Live { vote, purged, last } = state else {
                self.index.quarantine(*group);
                continue;
            };
            if let Err(reason) = self.index.load_header_group(*group, vote.clone(), *purged, *last) {
                error!(segment = header.sequence, %group, error = %reason, "segment header contradicts the log; group quarantined");
                self.quarantine(*group);
            }
        }
    }

    fn damage(&mut self, segment: u64, damage: &Damage) {
        error!(segment, batch = damage.batch, groups = ?damage.groups, "commit log batch is damaged; groups quarantined");
        match &damage.groups {
            Some(groups) => groups.iter().for_each(|group| self.quarantine(*group)),
            None => self.all_suspect = true,
        }
    }

    fn quarantine(&mut self, group: GroupReplica) {
        self.seen_groups.insert(group);
        self.durable_state.quarantine(group);
        self.index.quarantine(group);
    }

    /// Replays a batch of an older segment, which stays where it is.
    fn replay_batch(&mut self, segment: u64, offset: usize, payload: Bytes, groups: &[GroupReplica]) {
        let Some(records) = Record::decode_all(payload) else {
            // The CRC matches, so it was written like this: by an unknown release, or because of a bug.
            groups.iter().for_each(|group| self.quarantine(*group));
            return;
        };
        let mut at = offset;
        for record in records {
            let length = record.encoded_len();
            let serial = self.next_serial;
            if self.apply(&record, segment) {
                let location = RecordLocation { segment, offset: to_u32(at), len: to_u32(length) };
                self.index.mark_durable(record.group(), serial, location);
            }
            at += length;
        }
    }

    /// Applies a record if it follows its group's log. If it does not, earlier records are missing.
    fn apply(&mut self, record: &Record, segment: u64) -> bool {
        let group = record.group();
        self.seen_groups.insert(group);
        if self.durable_state.is_quarantined(group) && !matches!(record, Record::Removed { .. }) {
            return false;
        }
        let checked = match record {
            Record::Removed { .. } => Ok(()),
            _ => self.index.add(group).and_then(|()| self.index.check(std::slice::from_ref(record))),
        };
        if let Err(reason) = checked {
            error!(segment, %group, error = %reason, "commit log records are out of order; group quarantined");
            self.quarantine(group);
            return false;
        }
        if matches!(record, Record::Removed { .. }) {
            self.seen_groups.remove(&group);
        }
        self.index.accept(record, self.next_serial);
        self.durable_state.apply(record, segment);
        self.next_serial += 1;
        true
    }

    /// Replays the last segment, rewrites it into a new one and releases the files that are not needed.
    fn finish(mut self, mut files: Files, last: LastSegment, options: &LogOptions) -> Result<RebuiltLog, LogError> {
        let sequence = files.next_sequence();
        let cut_bytes = last.scan.cut_bytes as u64;
        let mut header = self.next_header(&last, sequence, options.rng.u64());
        let records = self.replay_last(last.scan, sequence);
        header.groups = self.with_quarantined(header.groups);
        if self.all_suspect {
            self.quarantine_all(&mut header);
        }
        header.oldest = self.durable_state.oldest(sequence);
        header.all_quarantined = self.durable_state.all_quarantined;
        let records = records.into_iter().filter(|(record, _)| self.is_kept(record)).collect();
        let rewrite = Rewrite::new(&mut header, records);
        rewrite
            .locations
            .iter()
            .for_each(|(group, serial, location)| self.index.mark_durable(*group, *serial, *location));
        let active = files.start(&header, &rewrite.content, 0)?;
        files.mark_replaced(header.previous, sequence);
        files.release_unclaimed()?;
        let writer = Writer {
            files,
            durable_state: self.durable_state.clone(),
            active,
            rng: options.rng.clone(),
            next: rewrite.next,
            chain: rewrite.chain,
            oldest_recorded: header.oldest,
            needs_commit_marker: false,
            has_started: false,
        };
        let recovered = self.recovered(cut_bytes);
        Ok(RebuiltLog { writer, index: self.index, recovered })
    }

    /// The header of the segment that replaces the last one.
    fn next_header(&mut self, last: &LastSegment, sequence: u64, salt: u64) -> SegmentHeader {
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
            groups: self.durable_state.header_groups(),
        }
    }

    /// Replays the records of the last segment, which will be rewritten to `segment`. Returns the accepted ones with their
    /// serials.
    fn replay_last(&mut self, scan: SegmentScan, segment: u64) -> Vec<(Record, u64)> {
        let mut kept = Vec::new();
        for item in scan.items {
            match item {
                ScanItem::Damage(damage) => self.damage(segment, &damage),
                ScanItem::Batch(batch) => match Record::decode_all(batch.payload) {
                    Some(records) => kept.extend(records.into_iter().filter_map(|record| {
                        let serial = self.next_serial;
                        self.apply(&record, segment).then_some((record, serial))
                    })),
                    None => batch.header.groups.iter().for_each(|group| self.quarantine(*group)),
                },
            }
        }
        for group in self.index.incomplete() {
            error!(%group, "commit log entries are missing; group quarantined");
            self.quarantine(group);
        }
        kept
    }

    /// The header's groups, with those that were quarantined since.
    fn with_quarantined(&self, carried: Vec<HeaderGroup>) -> Vec<HeaderGroup> {
        let mut states: BTreeMap<GroupReplica, HeaderGroupState> =
            carried.into_iter().map(|carried| (carried.group, carried.state)).collect();
        states.extend(self.durable_state.quarantined().map(|group| (group, HeaderGroupState::Quarantined)));
        states.into_iter().map(|(group, state)| HeaderGroup { group, state }).collect()
    }

    fn is_kept(&self, record: &Record) -> bool {
        !self.all_suspect && !self.durable_state.is_quarantined(record.group())
    }

    /// Quarantines every group and starts an empty log: nothing that was read can be trusted.
    fn quarantine_all(&mut self, header: &mut SegmentHeader) {
        error!(
            groups = self.seen_groups.len(),
            "commit log damage cannot be attributed: all groups quarantined, log restarted empty"
        );
        self.durable_state = DurableState::all_quarantined(&self.seen_groups);
        self.index = Index::default();
        self.seen_groups.iter().for_each(|group| self.index.quarantine(*group));
        header.groups = self.durable_state.header_groups();
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
            quarantined: self.durable_state.quarantined().collect(),
            all_quarantined: self.durable_state.all_quarantined,
            cut_bytes,
        }
    }
}

/// The content of the last segment in the batches of a new one.
struct Rewrite {
    content: Vec<u8>,
    locations: Vec<(GroupReplica, u64, RecordLocation)>,
    /// Number of the next batch, and the CRC of its predecessor.
    next: u64,
    chain: u32,
}

impl Rewrite {
    /// Lays `records` (with their serials) out behind `header` and sets the header's `synced`.
    fn new(header: &mut SegmentHeader, records: Vec<(Record, u64)>) -> Self {
        let start = header.encode().len();
        let mut rewrite =
            Self { content: Vec::new(), locations: Vec::new(), next: header.first_batch, chain: header.chain };
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
        self.locations.extend(batch.iter().zip(&encoded.starts).map(|((record, serial), at)| {
            let location = RecordLocation {
                segment: header.sequence,
                offset: to_u32(base + at),
                len: to_u32(record.encoded_len()),
            };
            (record.group(), *serial, location)
        }));
        self.content.extend_from_slice(&encoded.bytes);
        self.next += 1;
        self.chain = encoded.crc;
    }
}

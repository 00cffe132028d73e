//! The metrics of a tablet server.
//!
//! Nearly all figures exist anyway, for reports to the master and for the server's own decisions; they are read here when somebody scrapes.
//! There are two sources: what is in memory, and what asks the stores. So a disk that hangs keeps the second one from a scrape, and the first
//! one shows it.
//!
//! The sources do not keep the server's stores open.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ebla_model::capacity::WriteState;
use ebla_model::id::{LogId, LogIndex};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::metrics::{Family, Sample, SampleValue, Source};
use ebla_runtime::trace;
use ebla_storage::store::StoreActivity;
use futures::future::BoxFuture;

use crate::front::{self, FrontMetrics};
use crate::metadata_writer::MetadataWriter;
use crate::raft::{GroupStatus, RaftCounters};
use crate::readiness::ServerReadiness;
use crate::response_budget::ResponseBudget;
use crate::tablet::lifecycle::manager::TabletManager;
use crate::tablet::write::admission::Gate;

const SERVER: &[&str] = &["server"];
/// How long a replica may be without contact before it counts as leaderless: longer than an election takes.
const SILENCE_MAX: Duration = Duration::from_secs(3);

static REPLICAS: Family = Family::gauge(
    "ebla_raft_replicas",
    &["server", "state"],
    "Replicas of groups on the server: leader, follower, idle (does not run: it starts, or its start failed), quarantined (its log or \
     store is damaged)",
);
static LEADERLESS: Family = Family::gauge(
    "ebla_raft_leaderless_replicas",
    SERVER,
    "Running replicas without contact for three seconds: followers with a leader, leaders with a majority. Their tablets cannot be written",
);
static LEADERSHIPS: Family = Family::counter(
    "ebla_raft_elections_won_total",
    SERVER,
    "How often a replica of the server became leader of its group, by election or transfer",
);
static TRANSFERS: Family = Family::counter(
    "ebla_raft_leadership_transfers_total",
    SERVER,
    "Leaderships that the server has transferred to another one: for balance, or because it stops, is drained, or has a slow disk or a \
     wrong clock",
);
static PROPOSALS: Family =
    Family::counter("ebla_raft_proposals_total", SERVER, "Commands proposed to groups that the server may lead");
static COMMIT: Family = Family::histogram(
    "ebla_raft_commit_seconds",
    SERVER,
    "Time from a proposal until it is applied at the leader: on disk at a majority, and in its store",
);
static FRAMES: Family = Family::counter(
    "ebla_raft_frames_total",
    SERVER,
    "Messages of replication sent to other processes, heartbeats included",
);
static FRAME_BYTES: Family = Family::counter("ebla_raft_frame_bytes_total", SERVER, "Size of these messages");
static ENTRIES: Family = Family::counter("ebla_raft_entries_sent_total", SERVER, "Log entries sent to other processes");
static APPLY_LAG: Family = Family::gauge(
    "ebla_raft_apply_lag_entries",
    SERVER,
    "Committed entries that are not applied, of the replica that has most of them",
);
static FOLLOWER_LAG: Family = Family::gauge(
    "ebla_raft_follower_lag_entries",
    SERVER,
    "Entries that a follower lacks, of the follower that lacks most, among the groups that the server leads",
);

static TABLETS: Family = Family::gauge(
    "ebla_tablets",
    &["server", "role"],
    "Tablets on the server, by the role of its replica: leader, follower",
);
static ROWS: Family = Family::counter(
    "ebla_tablet_rows_total",
    &["server", "operation"],
    "Rows returned to readers (read), and rows of writes (write), at the leaders of their tablets; METADATA counts too",
);
static CELLS_SCANNED: Family = Family::counter(
    "ebla_tablet_cells_scanned_total",
    SERVER,
    "Cells that were scanned for readers; many for each row that is read show filters that discard most",
);
static WRITE_STALL: Family = Family::gauge(
    "ebla_tablet_write_stall",
    SERVER,
    "Whether writes wait until flushes have caught up, because unflushed data takes too much memory",
);
static EVENTS: Family = Family::counter(
    "ebla_tablet_events_total",
    &["server", "event"],
    "Events of tablets and groups that the server led, by kind as in `ebla tablet history`; an event of a group counts once",
);
static MOVING: Family = Family::gauge(
    "ebla_tablets_moving",
    SERVER,
    "Tablets that are on their way to another group, at the leader of the old one",
);

static SYNCS: Family = Family::counter("ebla_log_syncs_total", SERVER, "Syncs of the commit log to the disk");
static SYNC_LATENCY: Family = Family::histogram(
    "ebla_log_sync_seconds",
    SERVER,
    "Time to write a batch of the commit log to the disk, sync included",
);
static BATCHES: Family = Family::counter(
    "ebla_log_batches_total",
    SERVER,
    "Batches of the commit log; records per batch show how well writes share a sync",
);
static RECORDS: Family = Family::counter("ebla_log_records_total", SERVER, "Records of the commit log");
static LOG_WRITTEN: Family = Family::counter("ebla_log_written_bytes_total", SERVER, "Bytes written to the commit log");
static LOG_SIZE: Family = Family::gauge("ebla_log_size_bytes", SERVER, "Size of the commit log on disk");
static LOG_QUEUED: Family =
    Family::gauge("ebla_log_queued_bytes", SERVER, "Bytes that wait for the next batch of the commit log");
static SYNC_DELAY: Family = Family::gauge(
    "ebla_disk_sync_delay_seconds",
    SERVER,
    "How long a sync takes now: the median of the last ones, or the present one if it has lasted longer; absent without syncs",
);
static SLOW_DISK: Family = Family::gauge(
    "ebla_disk_slow",
    SERVER,
    "Whether the disk is slow, so that the server gives its leaderships to others",
);

static DISK_FREE: Family = Family::gauge("ebla_disk_free_bytes", SERVER, "Free space of the data folder's file system");
static DISK_TOTAL: Family = Family::gauge("ebla_disk_total_bytes", SERVER, "Size of the data folder's file system");
static DISK_RESERVE: Family = Family::gauge(
    "ebla_disk_reserve_bytes",
    SERVER,
    "Free space below which the server refuses writes (--disk-reserve)",
);
static DISK_REFUSES: Family =
    Family::gauge("ebla_disk_refuses_writes", SERVER, "Whether the server refuses writes for lack of disk space");

static CLOCK_OFFSET: Family = Family::gauge(
    "ebla_clock_offset_seconds",
    SERVER,
    "By how much the server's clock is ahead of the median of all servers; absent while too few are known",
);
static CLOCK_OFF: Family = Family::gauge(
    "ebla_clock_off",
    SERVER,
    "Whether the server's clock is off, so that it gives its leaderships to others",
);

static SCRUBBED: Family =
    Family::gauge("ebla_scrub_pass_bytes", SERVER, "Bytes read by the scrubber in this pass, or in the last one");
static SCRUB_AGE: Family = Family::gauge(
    "ebla_scrub_last_pass_age_seconds",
    SERVER,
    "Time since the scrubber has read all stores; absent before its first pass has ended",
);
static DAMAGED: Family = Family::gauge(
    "ebla_scrub_damaged_replicas",
    SERVER,
    "Replicas found damaged since the server started, by the scrubber or by a read",
);
static DAMAGED_KEPT: Family = Family::gauge(
    "ebla_scrub_kept_replicas",
    SERVER,
    "Damaged replicas that serve what is readable, because their groups cannot go on without them",
);

static REGISTERED: Family = Family::gauge(
    "ebla_chubby_registered",
    SERVER,
    "Whether the server's registration in Chubby is held by a live lease",
);
static MASTER_KNOWN: Family = Family::gauge(
    "ebla_chubby_master_known",
    SERVER,
    "Whether an active master is registered in Chubby, as the server sees it",
);
static DIRECTORY_AGE: Family = Family::gauge(
    "ebla_chubby_directory_age_seconds",
    SERVER,
    "How long the server has not watched Chubby, from its start if it has not since; 0 while it does. So old may the schemas, the policies of \
     access control and the addresses be that it uses",
);
static DRAINING: Family = Family::gauge("ebla_tablet_server_draining", SERVER, "Whether the server is stopping");
static RESPONSE_MEMORY: Family = Family::gauge(
    "ebla_front_response_memory_bytes",
    SERVER,
    "Memory of responses that are prepared and that clients have not read",
);

static MEMTABLES: Family = Family::gauge("ebla_store_memtable_bytes", SERVER, "Memory of data that is not flushed yet");
static BLOCK_CACHE: Family = Family::gauge(
    "ebla_store_block_cache_bytes",
    SERVER,
    "Use of the block cache; servers of one process may share it, and each shows the whole",
);
static STORE_WRITTEN: Family =
    Family::counter("ebla_store_written_bytes_total", SERVER, "Bytes of keys and values written to the stores");
static FLUSHES: Family = Family::histogram(
    "ebla_store_flush_seconds",
    SERVER,
    "Time of a flush of a group's store that had something to flush",
);
static SCAN_CACHE: Family = Family::counter(
    "ebla_scan_cache_lookups_total",
    &["server", "result"],
    "Rows that were read by their keys, found in the scan cache (hit) or not (miss)",
);
static SCAN_CACHE_EVICTIONS: Family =
    Family::counter("ebla_scan_cache_evictions_total", SERVER, "Rows that left the scan cache to make room");
static SCAN_CACHE_BYTES: Family = Family::gauge("ebla_scan_cache_size_bytes", SERVER, "Size of the scan cache");
static MEMORY_GROUPS: Family = Family::gauge(
    "ebla_memory_groups_bytes",
    &["server", "what"],
    "Locality groups in memory: their budget (limit), what they need (needed), and what does not fit (excess)",
);
static MEMORY_GROUP_READS: Family = Family::counter(
    "ebla_memory_groups_disk_reads_total",
    SERVER,
    "Blocks of locality groups in memory that were read from files",
);

static FILES: Family = Family::gauge("ebla_store_file_bytes", SERVER, "Size of all files of the stores");
static COMPACTIONS: Family = Family::gauge("ebla_store_compactions", SERVER, "Compactions that run now");
static RUNNING_FLUSHES: Family = Family::gauge("ebla_store_flushes", SERVER, "Flushes that run now");
static COMPACTION_DEBT: Family = Family::gauge(
    "ebla_store_pending_compaction_bytes",
    SERVER,
    "Bytes that compactions have to rewrite, as RocksDB estimates",
);
static STALLED: Family = Family::gauge(
    "ebla_store_stalled",
    SERVER,
    "Stores in which RocksDB delays writes until flushes or compactions catch up",
);
static BACKGROUND_ERRORS: Family = Family::gauge(
    "ebla_store_background_errors",
    SERVER,
    "Errors of flushes and compactions since the stores were opened",
);

static OWN_FAMILIES: &[&Family] = &[
    &REPLICAS,
    &LEADERLESS,
    &LEADERSHIPS,
    &TRANSFERS,
    &PROPOSALS,
    &COMMIT,
    &FRAMES,
    &FRAME_BYTES,
    &ENTRIES,
    &APPLY_LAG,
    &FOLLOWER_LAG,
    &TABLETS,
    &ROWS,
    &CELLS_SCANNED,
    &WRITE_STALL,
    &EVENTS,
    &MOVING,
    &SYNCS,
    &SYNC_LATENCY,
    &BATCHES,
    &RECORDS,
    &LOG_WRITTEN,
    &LOG_SIZE,
    &LOG_QUEUED,
    &SYNC_DELAY,
    &SLOW_DISK,
    &DISK_FREE,
    &DISK_TOTAL,
    &DISK_RESERVE,
    &DISK_REFUSES,
    &CLOCK_OFFSET,
    &CLOCK_OFF,
    &SCRUBBED,
    &SCRUB_AGE,
    &DAMAGED,
    &DAMAGED_KEPT,
    &REGISTERED,
    &MASTER_KNOWN,
    &DIRECTORY_AGE,
    &DRAINING,
    &RESPONSE_MEMORY,
    &MEMTABLES,
    &BLOCK_CACHE,
    &STORE_WRITTEN,
    &FLUSHES,
    &SCAN_CACHE,
    &SCAN_CACHE_EVICTIONS,
    &SCAN_CACHE_BYTES,
    &MEMORY_GROUPS,
    &MEMORY_GROUP_READS,
    &FILES,
    &COMPACTIONS,
    &RUNNING_FLUSHES,
    &COMPACTION_DEBT,
    &STALLED,
    &BACKGROUND_ERRORS,
];

/// All metrics of a tablet server.
pub fn families() -> impl Iterator<Item = &'static Family> {
    front::FAMILIES.iter().chain(OWN_FAMILIES).chain(trace::FAMILIES).copied()
}

/// What a server measures in memory.
pub(crate) struct ServerSource {
    pub(crate) manager: Weak<TabletManager>,
    pub(crate) front: FrontMetrics,
    pub(crate) raft: Arc<RaftCounters>,
    pub(crate) responses: ResponseBudget,
    pub(crate) readiness: Arc<ServerReadiness>,
    pub(crate) metadata_writer: Weak<MetadataWriter>,
    pub(crate) directory: ChubbyDirectory,
}

/// What the stores of a server tell about themselves.
pub(crate) struct StoreSource {
    pub(crate) manager: Weak<TabletManager>,
}

/// The samples of one server.
struct Samples {
    server: String,
    all: Vec<Sample>,
}

impl Samples {
    fn of(manager: &TabletManager) -> Self {
        Self { server: manager.server().to_string(), all: Vec::new() }
    }

    fn add(&mut self, family: &'static Family, value: impl Into<SampleValue>) {
        self.all.push(family.sample([Cow::Owned(self.server.clone())], value));
    }

    fn add_some(&mut self, family: &'static Family, value: Option<impl Into<SampleValue>>) {
        if let Some(value) = value {
            self.add(family, value);
        }
    }

    /// Adds the series with this value of the second label.
    fn add_by(&mut self, family: &'static Family, label: &'static str, value: impl Into<SampleValue>) {
        self.all.push(family.sample([Cow::Owned(self.server.clone()), label.into()], value));
    }
}

impl Source for ServerSource {
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
        Box::pin(async {
            let Some(manager) = self.manager.upgrade() else { return Vec::new() };
            let mut samples = Samples::of(&manager);
            self.add_service(&mut samples, &manager);
            add_replicas(&mut samples, &manager);
            self.add_replication(&mut samples);
            add_log(&mut samples, &manager);
            add_machine(&mut samples, &manager);
            add_memory(&mut samples, &manager);
            samples.all.extend(self.front.samples(manager.server()));
            samples.all
        })
    }
}

impl ServerSource {
    fn add_service(&self, samples: &mut Samples, manager: &TabletManager) {
        samples.add(&REGISTERED, self.readiness.is_registered());
        samples.add(&MASTER_KNOWN, self.directory.master().is_some());
        samples.add(&DIRECTORY_AGE, self.directory.unwatched_for().as_secs_f64());
        samples.add(&DRAINING, manager.is_draining());
        samples.add(&RESPONSE_MEMORY, self.responses.in_use());
    }

    fn add_replication(&self, samples: &mut Samples) {
        let counts = self.raft.read();
        samples.add(&TRANSFERS, counts.transfers);
        samples.add(&PROPOSALS, counts.proposals);
        samples.add(&COMMIT, self.raft.commit_latency());
        samples.add(&FRAMES, counts.frames);
        samples.add(&FRAME_BYTES, counts.frame_bytes);
        samples.add(&ENTRIES, counts.entries);
        let Some(writer) = self.metadata_writer.upgrade() else { return };
        for (kind, count) in writer.event_counts() {
            match kind {
                ebla_model::tablet_event::TabletEventKind::LeaderElected => samples.add(&LEADERSHIPS, count),
                kind => samples.add_by(&EVENTS, kind.name(), count),
            }
        }
    }
}

/// What is known of the replicas of a server, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReplicaFigures {
    leaders: u64,
    followers: u64,
    leaderless: u64,
    tablets_led: u64,
    tablets_followed: u64,
    apply_lag: u64,
    follower_lag: u64,
}

impl ReplicaFigures {
    /// Adds a running replica of a group with this number of tablets.
    fn add(&mut self, status: &GroupStatus, tablets: u64, is_cut_off: bool) {
        self.leaderless += u64::from(is_cut_off);
        if status.is_leader {
            self.leaders += 1;
            self.tablets_led += tablets;
            let furthest_behind = status.matched.values().map(|matched| lag(status.last, *matched)).max();
            self.follower_lag = self.follower_lag.max(furthest_behind.unwrap_or_default());
        } else {
            self.followers += 1;
            self.tablets_followed += tablets;
        }
        self.apply_lag = self.apply_lag.max(lag(status.committed, status.applied));
    }
}

/// The entries after `reached`, up to `last`.
fn lag(last: Option<LogId>, reached: Option<LogId>) -> u64 {
    let index = |id: Option<LogId>| id.map_or(LogIndex::default(), |id| id.index).get();
    index(last).saturating_sub(index(reached))
}

fn add_replicas(samples: &mut Samples, manager: &TabletManager) {
    let (mut figures, mut moving) = (ReplicaFigures::default(), 0_usize);
    for group in manager.groups().iter().filter(|group| group.raft().is_running()) {
        let (status, applied) = (group.raft().status(), group.state_machine().applied_state());
        let tablets = u64::try_from(applied.metadata.tablets.len()).unwrap_or(u64::MAX);
        figures.add(&status, tablets, group.raft().is_cut_off(SILENCE_MAX));
        if status.is_leader {
            moving += applied.metadata.tablets.values().filter(|tablet| tablet.moves_to.is_some()).count();
        }
    }
    samples.add_by(&REPLICAS, "leader", figures.leaders);
    samples.add_by(&REPLICAS, "follower", figures.followers);
    samples.add_by(&REPLICAS, "idle", manager.idle().len());
    samples.add_by(&REPLICAS, "quarantined", manager.quarantined().len());
    samples.add(&LEADERLESS, figures.leaderless);
    samples.add_by(&TABLETS, "leader", figures.tablets_led);
    samples.add_by(&TABLETS, "follower", figures.tablets_followed);
    samples.add(&MOVING, moving);
    samples.add(&APPLY_LAG, figures.apply_lag);
    samples.add(&FOLLOWER_LAG, figures.follower_lag);
}

fn add_log(samples: &mut Samples, manager: &TabletManager) {
    let log = manager.log();
    let stats = log.stats();
    samples.add(&SYNCS, stats.syncs);
    samples.add(&SYNC_LATENCY, log.sync_latency());
    samples.add(&BATCHES, stats.batches);
    samples.add(&RECORDS, stats.records);
    samples.add(&LOG_WRITTEN, stats.bytes);
    samples.add(&LOG_SIZE, log.bytes());
    samples.add(&LOG_QUEUED, log.queued_bytes());
    let speed = manager.disk_speeds().state();
    samples.add_some(&SYNC_DELAY, speed.delay.map(|delay| delay.as_secs_f64()));
    samples.add(&SLOW_DISK, speed.is_slow);
}

fn add_machine(samples: &mut Samples, manager: &TabletManager) {
    let disk = manager.capacity().disk();
    // All zero before the disk was sampled, or when it cannot be.
    if disk.total_bytes > 0 {
        samples.add(&DISK_FREE, disk.free_bytes);
        samples.add(&DISK_TOTAL, disk.total_bytes);
        samples.add(&DISK_RESERVE, disk.reserve_bytes);
    }
    samples.add(&DISK_REFUSES, manager.capacity().write_state() == WriteState::Refuses);
    let clock = manager.clocks().state();
    samples.add_some(&CLOCK_OFFSET, clock.offset_micros.map(signed_seconds));
    samples.add(&CLOCK_OFF, clock.is_off);
    let scrub = manager.scrub_results().state(manager.clock().monotonic());
    samples.add(&SCRUBBED, scrub.bytes);
    samples.add_some(&SCRUB_AGE, scrub.finished_ago.map(|age| age.as_secs_f64()));
    samples.add(&DAMAGED, scrub.damaged);
    samples.add(&DAMAGED_KEPT, scrub.kept);
}

/// Microseconds in either direction, in seconds.
fn signed_seconds(micros: i64) -> f64 {
    Duration::from_micros(micros.unsigned_abs()).as_secs_f64().copysign(if micros < 0 { -1.0 } else { 1.0 })
}

fn add_memory(samples: &mut Samples, manager: &TabletManager) {
    let (shared, admission) = (manager.shared(), manager.admission());
    samples.add_by(&ROWS, "read", shared.rows_read());
    samples.add_by(&ROWS, "write", admission.rows_written());
    samples.add(&CELLS_SCANNED, shared.cells_scanned());
    samples.add(&WRITE_STALL, admission.gate() == Gate::Closed);
    let usage = shared.usage();
    samples.add(&MEMTABLES, usage.memtable_bytes);
    samples.add(&BLOCK_CACHE, usage.cache_bytes);
    samples.add(&STORE_WRITTEN, shared.written_bytes());
    samples.add(&FLUSHES, shared.flush_latency());
    let cache = shared.scan_cache_state();
    samples.add_by(&SCAN_CACHE, "hit", cache.hits);
    samples.add_by(&SCAN_CACHE, "miss", cache.misses);
    samples.add(&SCAN_CACHE_EVICTIONS, cache.evictions);
    samples.add(&SCAN_CACHE_BYTES, cache.bytes);
    let groups = shared.memory_groups();
    samples.add_by(&MEMORY_GROUPS, "limit", groups.limit_bytes);
    samples.add_by(&MEMORY_GROUPS, "needed", groups.needed_bytes);
    samples.add_by(&MEMORY_GROUPS, "excess", groups.excess_bytes);
    samples.add(&MEMORY_GROUP_READS, groups.disk_reads);
}

impl Source for StoreSource {
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
        Box::pin(async {
            let Some(manager) = self.manager.upgrade() else { return Vec::new() };
            let mut samples = Samples::of(&manager);
            let groups = manager.groups();
            let work = move || {
                let mut sum = StoreActivity::default();
                // A store that is being closed has none.
                groups
                    .iter()
                    .filter_map(|group| group.state_machine().store().activity().ok())
                    .for_each(|one| sum.add(one));
                sum
            };
            // When the scrape has given up, the read is not done.
            let Ok(activity) = manager.maintenance().run_if_awaited(work).await else { return Vec::new() };
            samples.add(&FILES, activity.file_bytes);
            samples.add(&COMPACTIONS, activity.compactions);
            samples.add(&RUNNING_FLUSHES, activity.flushes);
            samples.add(&COMPACTION_DEBT, activity.pending_compaction_bytes);
            samples.add(&STALLED, activity.stalled_stores);
            samples.add(&BACKGROUND_ERRORS, activity.background_errors);
            samples.all
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ebla_model::id::{ReplicaId, Term};
    use ebla_runtime::metrics::table_faults;

    use super::*;

    fn at(index: u64) -> Option<LogId> {
        Some(LogId { term: Term::new(1), index: LogIndex::new(index) })
    }

    #[test]
    fn the_table_is_well_formed() {
        assert_eq!(table_faults(&families().collect::<Vec<_>>()), Vec::<String>::new());
    }

    #[test]
    fn lags_are_those_of_the_replica_that_is_furthest_behind() {
        let mut figures = ReplicaFigures::default();
        let matched = [(2, at(90)), (3, None)].map(|(id, at)| (ReplicaId::new(id), at));
        let leader = GroupStatus {
            is_leader: true,
            last: at(100),
            committed: at(95),
            applied: at(95),
            matched: BTreeMap::from(matched),
            ..GroupStatus::default()
        };
        figures.add(&leader, 7, false);
        let follower = GroupStatus { committed: at(50), applied: at(20), ..GroupStatus::default() };
        figures.add(&follower, 2, true);
        let expected = ReplicaFigures {
            leaders: 1,
            followers: 1,
            leaderless: 1,
            tablets_led: 7,
            tablets_followed: 2,
            apply_lag: 30,
            follower_lag: 100,
        };
        assert_eq!(figures, expected);
        assert!((signed_seconds(-1_500_000) + 1.5).abs() < 1e-9);
    }
}

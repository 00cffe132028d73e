//! The space on the disk of a host: what its server reads of it, and the check that full disks accept no writes. Also stores that fail.
//!
//! Stores lie on real files, so their writes fail by injection; the commit log meets the simulated disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ebla_model::capacity::{DiskSpace, Resources};
use ebla_runtime::{FixedResources, ResourceProbe};
use ebla_storage::store::{StoreFault, StoreOperation};
use ebla_tests::faults::fault::SpaceLeft;
use parking_lot::Mutex;

use crate::cluster::{SimCluster, SimHost};

const TOTAL_BYTES: u64 = 100 << 30;
const RESERVE_BYTES: u64 = 4 << 30;
/// The free space of a disk that is not full.
const AMPLE_BYTES: u64 = 50 << 30;
/// A server has noticed after this time that its disk is full: it samples the disk four times a second, and when it starts.
const NOTICED: Duration = Duration::from_secs(1);
/// The error of a store on a full disk, as RocksDB words it.
const NO_SPACE: &str = "IO error: No space left on device: While appending to file: No space left on device";
/// The error of a store on a disk that fails.
const FAILS: &str = "IO error: While appending to file: Input/output error";

/// The space on the disk of a host, and whether stores can write to it. It outlives the host's crashes.
pub(crate) struct HostSpace {
    probe: Arc<FixedResources>,
    full: Mutex<Option<Full>>,
    /// Whether what stores write fails.
    fails: AtomicBool,
}

/// A disk that is full.
#[derive(Clone, Copy)]
struct Full {
    left: SpaceLeft,
    since: Duration,
}

impl Default for HostSpace {
    fn default() -> Self {
        let space = Self { probe: Arc::default(), full: Mutex::default(), fails: AtomicBool::new(false) };
        space.report(AMPLE_BYTES);
        space
    }
}

impl HostSpace {
    /// What a server of the host reads.
    pub(crate) fn probe(&self) -> Arc<dyn ResourceProbe> {
        Arc::clone(&self.probe) as Arc<dyn ResourceProbe>
    }

    fn report(&self, free_bytes: u64) {
        let disk = DiskSpace { free_bytes, total_bytes: TOTAL_BYTES, reserve_bytes: RESERVE_BYTES };
        self.probe.set(Resources { disk: Some(disk), ..Resources::default() });
    }

    /// Whether the disk is full now, and has been since this time.
    fn is_full_since(&self, time: Duration) -> bool {
        self.full.lock().is_some_and(|full| full.since <= time)
    }

    fn left(&self) -> Option<SpaceLeft> {
        self.full.lock().map(|full| full.left)
    }

    /// The error of a store that opens or writes.
    fn store_error(&self) -> Option<&'static str> {
        if self.fails.load(Ordering::Relaxed) {
            return Some(FAILS);
        }
        matches!(self.left(), Some(SpaceLeft::OnlyForLog | SpaceLeft::Nothing)).then_some(NO_SPACE)
    }
}

/// The stores of a host begin to fail, or end it.
pub(crate) fn set_failing(host: &SimHost, fails: bool) {
    host.space.fails.store(fails, Ordering::Relaxed);
    fail_stores(host);
}

/// The disk of a host becomes full.
pub(crate) fn fill(host: &SimHost, left: SpaceLeft, now: Duration) {
    *host.space.full.lock() = Some(Full { left, since: now });
    let free_bytes = match left {
        SpaceLeft::BelowReserve => RESERVE_BYTES * 3 / 4,
        SpaceLeft::BelowHalf => RESERVE_BYTES / 4,
        SpaceLeft::OnlyForLog | SpaceLeft::Nothing => 0,
    };
    set_free(host, free_bytes);
    if left == SpaceLeft::Nothing {
        host.disk.fill();
    } else {
        host.disk.make_room();
    }
    fail_stores(host);
}

/// Space is freed on the disk of a host.
pub(crate) fn free(host: &SimHost) {
    *host.space.full.lock() = None;
    set_free(host, AMPLE_BYTES);
    host.disk.make_room();
    fail_stores(host);
}

/// What a server reads must follow the disk, also afterwards: it refuses writes until it reads that there is space.
fn set_free(host: &SimHost, free_bytes: u64) {
    host.space.report(free_bytes);
    host.disk.set_free_bytes(free_bytes);
}

/// Lets the stores of the running process fail while their disk has no space for them or fails, and not otherwise.
pub(crate) fn fail_stores(host: &SimHost) {
    let Some(hosted) = host.hosted() else { return };
    let mut faults = Vec::new();
    if let Some(error) = host.space.store_error() {
        for group in hosted.groups() {
            let dir = group.state_machine().store().dir().to_owned();
            let fault = |operation| StoreFault { dir: dir.clone(), operation, message: error.to_owned() };
            faults.extend([StoreOperation::Open, StoreOperation::Write].map(fault));
        }
    }
    hosted.shared().inject_faults(faults);
}

/// Whether the disk of any server is full.
pub(crate) fn is_any_full(cluster: &SimCluster) -> bool {
    cluster.servers.iter().any(|host| host.space.left().is_some())
}

/// Checks that a write which has just been acknowledged was not sent while the disks of all servers were full.
pub(crate) fn check_accepted(cluster: &SimCluster, what: &str, sent: Duration) {
    let noticed = sent.checked_sub(NOTICED);
    if noticed.is_some_and(|time| cluster.servers.iter().all(|host| host.space.is_full_since(time))) {
        let wrong = format!("full: {what}, sent at {sent:?}, was accepted although the disks of all servers are full");
        cluster.history.lock().wrong.push(wrong);
    }
}

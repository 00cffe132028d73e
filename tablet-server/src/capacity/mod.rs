//! What the server can still take: its resources for reports, and whether it accepts writes of clients.
//!
//! The maintenance loop samples the disk four times a second. While the disk has less free space than the reserve, the leaders on this
//! server refuse writes that store cells. Everything else goes on: reads, deletions of cells, rows and tables, Raft's messages,
//! followers' applies, flushes and compactions. So the reserve is used for what was accepted, and for what frees space. A leader
//! also refuses when a majority of its group's servers has too little space: it would only fill their disks. METADATA is exempt.
//!
//! Below half of the reserve a server receives no snapshots either, except those of METADATA: a snapshot is a whole group, which its
//! leader could send to another server. One that would not leave half of the reserve is refused before its files arrive.

pub mod disk_gate;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ebla_model::Reason;
use ebla_model::capacity::{Demand, DiskSpace, ResourceShortage, Resources, WriteState, readable_bytes};
use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId};
use ebla_runtime::{FixedResources, ResourceProbe};
use parking_lot::Mutex;
use tracing::{info, warn};

use self::disk_gate::{DiskGate, accepted_from};
use crate::local_servers::LocalServers;

/// The capacity of a server; its groups share it.
pub struct Capacity {
    probe: Arc<dyn ResourceProbe>,
    local_servers: LocalServers,
    /// Locked to observe the disk or to copy the state.
    gate: Mutex<DiskGate>,
    /// Whether the gate refuses writes: read for each write.
    refuses: AtomicBool,
    /// The other servers that have reported that they refuse writes. Locked for a lookup; as many entries as servers.
    full_peers: Mutex<BTreeSet<ServerId>>,
    /// Whether there are such servers: read for each write.
    has_full_peers: AtomicBool,
}

impl fmt::Debug for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capacity").field("gate", &self.gate.lock()).finish_non_exhaustive()
    }
}

impl Capacity {
    /// The capacity that `probe` reads. It accepts writes until the disk is sampled for the first time. `local_servers`: the
    /// servers of this process, which share it.
    #[must_use]
    pub fn new(probe: Arc<dyn ResourceProbe>, local_servers: LocalServers) -> Arc<Self> {
        Arc::new(Self {
            probe,
            local_servers,
            gate: Mutex::default(),
            refuses: AtomicBool::new(false),
            full_peers: Mutex::default(),
            has_full_peers: AtomicBool::new(false),
        })
    }

    /// A capacity without bounds, for tests.
    #[must_use]
    pub fn unbounded() -> Arc<Self> {
        Self::new(Arc::new(FixedResources::default()), LocalServers::default())
    }

    /// The resources now. Blocking.
    #[must_use]
    pub fn resources(&self) -> Resources {
        self.probe.all(self.local_servers.raft.count())
    }

    /// The resource that does not suffice for `demand`. Blocking.
    #[must_use]
    pub fn shortage(&self, demand: Demand) -> Option<ResourceShortage> {
        self.resources().shortage(demand)
    }

    /// Samples the disk, and logs when writes are refused or accepted from now on. Blocking.
    pub fn sample_disk(&self, server: ServerId) {
        let space = self.probe.disk();
        let (changed, space) = {
            let mut gate = self.gate.lock();
            let changed = gate.observe(space);
            self.refuses.store(gate.state() == WriteState::Refuses, Ordering::Relaxed);
            (changed, gate.space())
        };
        let DiskSpace { free_bytes, total_bytes, reserve_bytes } = space;
        match changed {
            Some(WriteState::Refuses) => {
                warn!(%server, free_bytes, total_bytes, reserve_bytes, "low disk space; writes of clients are refused");
            }
            Some(WriteState::Accepts) => {
                info!(%server, free_bytes, total_bytes, reserve_bytes, "disk space is sufficient; writes are accepted again");
            }
            None => {}
        }
    }

    /// The disk as it was sampled last; all zero before that.
    #[must_use]
    pub fn disk(&self) -> DiskSpace {
        self.gate.lock().space()
    }

    /// Whether this server accepts writes of clients, as far as its own disk is concerned.
    #[must_use]
    pub fn write_state(&self) -> WriteState {
        if self.refuses.load(Ordering::Relaxed) { WriteState::Refuses } else { WriteState::Accepts }
    }

    /// Why a snapshot of this group is not received for lack of space on the disk of `server`, which is this one. `size_bytes`: of its
    /// files, 0 when it is not known.
    #[must_use]
    pub fn snapshot_refusal(&self, server: ServerId, group: GroupId, size_bytes: u64) -> Option<Error> {
        let gate = *self.gate.lock();
        if group == GroupId::METADATA {
            None
        } else if gate.is_critical() {
            Some(snapshot_refusal(server, gate.space()))
        } else {
            (!gate.has_room_for(size_bytes)).then(|| snapshot_too_large(server, size_bytes, gate.space()))
        }
    }

    /// Whether [`Self::refusal`] may return an error for some group. Cheap.
    #[must_use]
    pub fn may_refuse(&self) -> bool {
        self.write_state() == WriteState::Refuses || self.has_full_peers.load(Ordering::Relaxed)
    }

    /// Records whether another server refuses writes, as it reports with its answers.
    pub fn record_peer(&self, peer: ServerId, state: WriteState) {
        if state == WriteState::Accepts && !self.has_full_peers.load(Ordering::Relaxed) {
            return;
        }
        let mut full = self.full_peers.lock();
        match state {
            WriteState::Refuses => full.insert(peer),
            WriteState::Accepts => full.remove(&peer),
        };
        self.has_full_peers.store(!full.is_empty(), Ordering::Relaxed);
    }

    /// The error of a write that stores cells in a group with voters on these servers, while it is refused. `server`: this one.
    #[must_use]
    pub fn refusal(&self, server: ServerId, voters: impl Iterator<Item = ServerId>) -> Option<Error> {
        if self.write_state() == WriteState::Refuses {
            return Some(own_refusal(server, self.gate.lock().space()));
        }
        let full = self.full_peers.lock();
        let voters: Vec<ServerId> = voters.collect();
        let without_space: Vec<ServerId> = voters.iter().copied().filter(|voter| full.contains(voter)).collect();
        is_majority(without_space.len(), voters.len()).then(|| peers_refusal(&without_space, voters.len()))
    }
}

/// Whether this part of a group's voters is more than half.
const fn is_majority(part: usize, all: usize) -> bool {
    2 * part > all
}

fn own_refusal(server: ServerId, space: DiskSpace) -> Error {
    let DiskSpace { free_bytes, total_bytes, reserve_bytes } = space;
    let [free, total, reserve, again] =
        [free_bytes, total_bytes, reserve_bytes, accepted_from(reserve_bytes)].map(readable_bytes);
    let message = format!(
        "tablet server {server} refuses writes for lack of disk space: {free} of {total} are free, and {reserve} are reserved \
         (--disk-reserve); free disk space or delete data; writes are accepted again with {again} free"
    );
    Error::new(Reason::ResourceExhausted, message)
}

fn snapshot_refusal(server: ServerId, space: DiskSpace) -> Error {
    let DiskSpace { free_bytes, total_bytes, reserve_bytes } = space;
    let [free, total, reserve] = [free_bytes, total_bytes, reserve_bytes].map(readable_bytes);
    let message = format!(
        "tablet server {server} receives no snapshots for lack of disk space: {free} of {total} are free, less than half of the \
         {reserve} that are reserved (--disk-reserve); free disk space or delete data"
    );
    Error::new(Reason::ResourceExhausted, message)
}

fn snapshot_too_large(server: ServerId, size_bytes: u64, space: DiskSpace) -> Error {
    let DiskSpace { free_bytes, total_bytes, reserve_bytes } = space;
    let [size, free, total, reserve] = [size_bytes, free_bytes, total_bytes, reserve_bytes].map(readable_bytes);
    let message = format!(
        "tablet server {server} does not receive a snapshot of {size}: {free} of {total} are free, and it would leave less than half \
         of the {reserve} that are reserved (--disk-reserve); free disk space or delete data"
    );
    Error::new(Reason::ResourceExhausted, message)
}

fn peers_refusal(without_space: &[ServerId], voters: usize) -> Error {
    let servers: Vec<String> = without_space.iter().map(ServerId::to_string).collect();
    let message = format!(
        "writes are refused for lack of disk space: {} of {voters} servers of the tablet's group have less free than their \
         reserve (tablet servers {}; ebla status shows the numbers); free disk space or delete data there",
        servers.len(),
        servers.join(", ")
    );
    Error::new(Reason::ResourceExhausted, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: ServerId = ServerId::new(1);

    fn voters() -> impl Iterator<Item = ServerId> {
        (1..=3).map(ServerId::new)
    }

    #[test]
    fn a_refusal_has_the_numbers_and_the_next_step() {
        let probe = Arc::new(FixedResources::default());
        let capacity = Capacity::new(Arc::clone(&probe) as Arc<dyn ResourceProbe>, LocalServers::default());
        let set = |free_bytes| {
            let disk = Some(DiskSpace { free_bytes, total_bytes: 50 << 30, reserve_bytes: 2 << 30 });
            probe.set(Resources { disk, ..Resources::default() });
            capacity.sample_disk(HERE);
        };
        assert!(capacity.refusal(HERE, voters()).is_none(), "nothing is known yet");
        set(1 << 30);
        let refused = capacity.refusal(HERE, voters()).unwrap();
        assert_eq!(refused.reason, Reason::ResourceExhausted);
        assert_eq!(
            refused.message,
            "tablet server 1 refuses writes for lack of disk space: 1.0 GiB of 50.0 GiB are free, and 2.0 GiB are reserved \
             (--disk-reserve); free disk space or delete data; writes are accepted again with 2.5 GiB free"
        );
        set(9 << 28);
        assert!(capacity.may_refuse(), "below the second mark");
        set(3 << 30);
        assert!(capacity.refusal(HERE, voters()).is_none());
    }

    #[test]
    fn snapshots_are_refused_below_half_of_the_reserve_except_those_of_metadata() {
        let probe = Arc::new(FixedResources::default());
        let capacity = Capacity::new(Arc::clone(&probe) as Arc<dyn ResourceProbe>, LocalServers::default());
        let refusal = |free_bytes, group, size_bytes| {
            let disk = Some(DiskSpace { free_bytes, total_bytes: 50 << 30, reserve_bytes: 2 << 30 });
            probe.set(Resources { disk, ..Resources::default() });
            capacity.sample_disk(HERE);
            capacity.snapshot_refusal(HERE, group, size_bytes)
        };
        let (user, half) = (GroupId::new(1_000), 1 << 30);
        assert_eq!(refusal(half, user, 0), None);
        assert_eq!(refusal(half - 1, GroupId::METADATA, 0), None);
        let refused = refusal(half - 1, user, 0).unwrap();
        assert!(refused.reason == Reason::ResourceExhausted && refused.message.contains("less than half"), "{refused}");
    }

    #[test]
    fn a_snapshot_that_would_not_leave_half_of_the_reserve_is_refused() {
        let probe = Arc::new(FixedResources::default());
        let capacity = Capacity::new(Arc::clone(&probe) as Arc<dyn ResourceProbe>, LocalServers::default());
        let user = GroupId::new(1_000);
        assert_eq!(capacity.snapshot_refusal(HERE, user, 1 << 60), None, "the disk was not sampled yet");
        let disk = Some(DiskSpace { free_bytes: 4 << 30, total_bytes: 50 << 30, reserve_bytes: 2 << 30 });
        probe.set(Resources { disk, ..Resources::default() });
        capacity.sample_disk(HERE);
        assert_eq!(capacity.snapshot_refusal(HERE, user, 3 << 30), None);
        assert_eq!(capacity.snapshot_refusal(HERE, GroupId::METADATA, (3 << 30) + 1), None);
        let refused = capacity.snapshot_refusal(HERE, user, (3 << 30) + 1).unwrap();
        assert_eq!(refused.reason, Reason::ResourceExhausted);
        assert!(refused.message.contains("a snapshot of 3.0 GiB: 4.0 GiB of 50.0 GiB are free"), "{refused}");
    }

    #[test]
    fn a_majority_of_servers_without_space_refuses() {
        let capacity = Capacity::unbounded();
        capacity.record_peer(ServerId::new(2), WriteState::Refuses);
        capacity.record_peer(ServerId::new(9), WriteState::Refuses);
        assert!(capacity.refusal(HERE, voters()).is_none(), "one of three, and another group's");
        capacity.record_peer(ServerId::new(3), WriteState::Refuses);
        let refused = capacity.refusal(HERE, voters()).unwrap();
        assert!(
            refused.message.contains("2 of 3 servers") && refused.message.contains("tablet servers 2, 3"),
            "{refused}"
        );
        capacity.record_peer(ServerId::new(3), WriteState::Accepts);
        assert!(capacity.refusal(HERE, voters()).is_none());
    }
}

//! Counters of the servers of a cluster, summed: commit logs and replication.

use std::ops::{Add, Sub};

use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::locate::{ClusterRequest, CountersReply, CountersRequest};
use ebla_runtime::Runtime;

/// Sums over all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Number of fsyncs of the commit logs.
    pub syncs: u64,
    /// Records written to the commit logs: log entries, votes, truncations.
    pub records: u64,
    /// Raft frames sent to other processes, heartbeats included.
    pub frames: u64,
    /// Their encoded size.
    pub frame_bytes: u64,
    /// Frames with log entries.
    pub entry_frames: u64,
    /// Log entries in them.
    pub entries: u64,
    /// Commands proposed to Raft groups.
    pub proposals: u64,
}

impl From<CountersReply> for ServerCounters {
    fn from(reply: CountersReply) -> Self {
        Self {
            syncs: reply.log_syncs,
            records: reply.log_records,
            frames: reply.raft_frames,
            frame_bytes: reply.raft_frame_bytes,
            entry_frames: reply.raft_entry_frames,
            entries: reply.raft_entries,
            proposals: reply.raft_proposals,
        }
    }
}

impl ServerCounters {
    fn each(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            syncs: combine(self.syncs, other.syncs),
            records: combine(self.records, other.records),
            frames: combine(self.frames, other.frames),
            frame_bytes: combine(self.frame_bytes, other.frame_bytes),
            entry_frames: combine(self.entry_frames, other.entry_frames),
            entries: combine(self.entries, other.entries),
            proposals: combine(self.proposals, other.proposals),
        }
    }
}

impl Add for ServerCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }
}

impl Sub for ServerCounters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        self.each(before, u64::saturating_sub)
    }
}

/// The counters of the cluster that `address` belongs to; `None` when a server does not report them.
pub(super) async fn of_cluster(runtime: &Runtime, address: &str) -> Option<ServerCounters> {
    let mut first = LocateClient::new(runtime.net.channel(address));
    let servers = first.cluster(ClusterRequest {}).await.ok()?.into_inner().servers;
    let mut sum = ServerCounters::default();
    for server in servers {
        let mut one = LocateClient::new(runtime.net.channel(&server.address));
        sum = sum + one.counters(CountersRequest {}).await.ok()?.into_inner().into();
    }
    Some(sum)
}

//! Counters of the commit logs of a cluster, summed over its servers.

use std::ops::Sub;

use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::locate::{ClusterRequest, CountersRequest};
use ebla_runtime::Runtime;

/// Sums over all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Number of fsyncs.
    pub syncs: u64,
    /// Bytes written, in whole blocks.
    pub bytes: u64,
}

impl Sub for LogCounters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { syncs: self.syncs.saturating_sub(before.syncs), bytes: self.bytes.saturating_sub(before.bytes) }
    }
}

/// The counters of the cluster that `address` belongs to; `None` when a server does not report them.
pub(super) async fn of_cluster(runtime: &Runtime, address: &str) -> Option<LogCounters> {
    let mut first = LocateClient::new(runtime.net.channel(address));
    let servers = first.cluster(ClusterRequest {}).await.ok()?.into_inner().servers;
    let mut sum = LogCounters::default();
    for server in servers {
        let mut one = LocateClient::new(runtime.net.channel(&server.address));
        let reply = one.counters(CountersRequest {}).await.ok()?.into_inner();
        sum = LogCounters { syncs: sum.syncs + reply.log_syncs, bytes: sum.bytes + reply.log_bytes };
    }
    Some(sum)
}

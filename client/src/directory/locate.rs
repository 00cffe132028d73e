//! The directory of an external client: it asks any tablet server (`ebla.locate`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use ebla_proto::convert;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::locate::{ClusterReply, ClusterRequest};
use ebla_proto::status::from_status;
use ebla_runtime::{Clock, Runtime};
use futures::future::BoxFuture;
use parking_lot::Mutex;

use super::{Directory, Freshness};
use crate::channel::{Channels, MESSAGE_BYTES_MAX};

/// The timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// A reply of this age is not fetched again for an address that is missing or unreachable.
const RECENT: Duration = Duration::from_millis(50);

/// The last reply of a server.
#[derive(Debug, Default)]
struct CachedReply {
    received_at: Option<Duration>,
    /// The cluster of the first reply: replies of other clusters are rejected.
    cluster: Option<ClusterId>,
    servers: BTreeMap<ServerId, String>,
    /// Servers that did not respond at their addresses; their addresses are fetched again.
    unreachable: BTreeSet<ServerId>,
    tables: HashMap<String, TableId>,
}

impl CachedReply {
    /// Whether the server has an address that is not marked as unreachable.
    fn has_reachable(&self, server: ServerId) -> bool {
        self.servers.contains_key(&server) && !self.unreachable.contains(&server)
    }
}

/// A directory that asks the known servers, the seeds first.
pub struct LocateDirectory {
    seeds: Vec<String>,
    channels: Channels,
    clock: Clock,
    /// Guards the last reply.
    cached: Mutex<CachedReply>,
}

impl fmt::Debug for LocateDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocateDirectory").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl LocateDirectory {
    /// A directory with these seeds: addresses (`host:port`) of tablet servers.
    pub fn new(seeds: Vec<String>, runtime: &Runtime) -> Self {
        let channels = Channels::new(runtime);
        Self { seeds, channels, clock: runtime.clock.clone(), cached: Mutex::default() }
    }

    /// Asks one server after another until one replies.
    ///
    /// # Errors
    /// `Unavailable` when no server replies. `Unimplemented` when the last process that responded is not a tablet
    /// server; `NoLeader` when its cluster has not started.
    pub async fn fetch(&self) -> Result<ClusterReply, Error> {
        self.fetch_from_any().await.map(|(_address, reply)| reply)
    }

    /// As [`Self::fetch`]; also returns the address of the server that replied.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub(crate) async fn fetch_from_any(&self) -> Result<(String, ClusterReply), Error> {
        let mut last = Error::new(Reason::Unavailable, "no tablet server address is known");
        for address in self.addresses() {
            match self.fetch_from(&address).await {
                Ok(reply) => {
                    if self.accept(&reply) {
                        return Ok((address, reply));
                    }
                    last =
                        Error::new(Reason::Unavailable, format!("the server at {address} belongs to another cluster"));
                }
                Err(error) => {
                    let reason = match error.reason {
                        Reason::Unimplemented | Reason::NoLeader => error.reason,
                        _ => Reason::Unavailable,
                    };
                    last = Error::new(reason, format!("request to {address} failed: {error}"));
                }
            }
        }
        Err(last)
    }

    async fn fetch_from(&self, address: &str) -> Result<ClusterReply, Error> {
        let mut client = LocateClient::new(self.channels.get(address)).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut request = tonic::Request::new(ClusterRequest {});
        request.set_timeout(REQUEST_TIMEOUT);
        let timed_out = |_elapsed| Error::new(Reason::Unavailable, "request timed out");
        let reply = tokio::time::timeout(REQUEST_TIMEOUT, client.cluster(request)).await.map_err(timed_out)?;
        reply.map(tonic::Response::into_inner).map_err(|status| from_status(&status).0)
    }

    /// The addresses to try, unreachable servers last: a request to a failed machine waits for its timeout.
    fn addresses(&self) -> Vec<String> {
        let cached = self.cached.lock();
        let mut addresses = self.seeds.clone();
        for address in cached.servers.values() {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        let unreachable: Vec<_> = cached.unreachable.iter().filter_map(|server| cached.servers.get(server)).collect();
        addresses.sort_by_key(|address| unreachable.contains(&address));
        addresses
    }

    /// Caches a reply; false if it comes from another cluster.
    fn accept(&self, reply: &ClusterReply) -> bool {
        let servers = reply.servers.iter().map(|server| (ServerId::new(server.server), server.address.clone()));
        let tables = reply.tables.iter().map(|table| (table.name.clone(), TableId::new(table.table)));
        let cluster = ClusterId::from_bytes(&reply.cluster);
        let mut cached = self.cached.lock();
        if cached.cluster.is_some() && cached.cluster != cluster {
            return false;
        }
        cached.cluster = cluster;
        cached.received_at = Some(self.clock.monotonic());
        // A server without a lease may still lead tablets: its address stays.
        cached.servers.extend(servers);
        cached.unreachable.clear();
        cached.tables = tables.collect();
        true
    }

    fn is_recent(&self) -> bool {
        let now = self.clock.monotonic();
        self.cached.lock().received_at.is_some_and(|at| now.saturating_sub(at) < RECENT)
    }
}

impl Directory for LocateDirectory {
    fn cluster(&self) -> Option<ClusterId> {
        self.cached.lock().cluster
    }

    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>> {
        Box::pin(async move {
            let root = self.fetch().await?.root;
            let root = root.ok_or_else(|| Error::new(Reason::NoLeader, "the cluster has no root tablet yet"))?;
            convert::descriptor_from_proto(&root)
        })
    }

    fn address(&self, server: ServerId) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            if !self.cached.lock().has_reachable(server) && !self.is_recent() {
                // Without a reply the last address is used.
                drop(self.fetch().await);
            }
            self.cached.lock().servers.get(&server).cloned()
        })
    }

    fn mark_unreachable(&self, server: ServerId) {
        self.cached.lock().unreachable.insert(server);
    }

    fn table<'a>(&'a self, name: &'a TableName, freshness: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>> {
        Box::pin(async move {
            if freshness == Freshness::Cached
                && let Some(table) = self.cached.lock().tables.get(name.as_str())
            {
                return Ok(Some(*table));
            }
            self.fetch().await?;
            Ok(self.cached.lock().tables.get(name.as_str()).copied())
        })
    }
}

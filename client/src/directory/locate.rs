//! The directory of a client outside: any tablet server tells it what it needs (`ebla.locate`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::locate::{ClusterReply, ClusterRequest};
use ebla_proto::status::from_status;
use ebla_proto::{convert, record};
use ebla_runtime::{Clock, Runtime};
use futures::future::BoxFuture;

use super::{Directory, Freshness};
use crate::channel::{Channels, MESSAGE_BYTES_MAX};

/// How long one server may take to answer.
const ANSWER: Duration = Duration::from_secs(1);
/// What was heard so recently is not asked again for an address that is missing or in doubt.
const RECENT: Duration = Duration::from_millis(50);

/// What servers said last.
#[derive(Debug, Default)]
struct Heard {
    at: Option<Duration>,
    /// The first one that was told of: an answer from another one is a stranger's.
    cluster: Option<ClusterId>,
    servers: BTreeMap<ServerId, String>,
    /// Those that did not answer where they were; they are asked for again.
    doubted: BTreeSet<ServerId>,
    tables: HashMap<String, TableId>,
    master: Option<record::Master>,
}

impl Heard {
    /// Whether there is an address of the server that nobody has reason to doubt.
    fn knows(&self, server: ServerId) -> bool {
        self.servers.contains_key(&server) && !self.doubted.contains(&server)
    }
}

/// Asks the servers it knows of, those it was told of first.
pub struct LocateDirectory {
    seeds: Vec<String>,
    channels: Channels,
    clock: Clock,
    /// Guards the last answer.
    heard: Mutex<Heard>,
}

impl fmt::Debug for LocateDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocateDirectory").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}

impl LocateDirectory {
    /// A directory that begins with these addresses (`host:port`) of tablet servers.
    pub fn new(seeds: Vec<String>, runtime: &Runtime) -> Self {
        let channels = Channels::new(runtime.net.clone());
        Self { seeds, channels, clock: runtime.clock.clone(), heard: Mutex::default() }
    }

    /// Asks one server after another until one answers.
    ///
    /// # Errors
    /// `Unavailable` when none does. `Unimplemented` when what answered last is no tablet server; `NoLeader` when its cluster
    /// has not started.
    pub async fn ask(&self) -> Result<ClusterReply, Error> {
        self.ask_each().await.map(|(_address, reply)| reply)
    }

    /// As [`Self::ask`]: the address at which a server answered.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub async fn ask_any(&self) -> Result<String, Error> {
        self.ask_each().await.map(|(address, _reply)| address)
    }

    async fn ask_each(&self) -> Result<(String, ClusterReply), Error> {
        let mut last = Error::new(Reason::Unavailable, "no address of a tablet server is known");
        for address in self.addresses() {
            match self.ask_at(&address).await {
                Ok(reply) => {
                    if self.hear(&reply) {
                        return Ok((address, reply));
                    }
                    last = Error::new(Reason::Unavailable, format!("another cluster is at {address}"));
                }
                Err(error) => {
                    let reason = match error.reason {
                        Reason::Unimplemented | Reason::NoLeader => error.reason,
                        _ => Reason::Unavailable,
                    };
                    last = Error::new(reason, format!("ask {address}: {error}"));
                }
            }
        }
        Err(last)
    }

    /// The servers that were ever heard of, with their last addresses.
    pub fn servers(&self) -> BTreeMap<ServerId, String> {
        self.heard().servers.clone()
    }

    /// The master in office as last heard of.
    pub fn master(&self) -> Option<String> {
        self.heard().master.as_ref().map(|master| master.address.clone())
    }

    async fn ask_at(&self, address: &str) -> Result<ClusterReply, Error> {
        let mut client = LocateClient::new(self.channels.get(address)).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut request = tonic::Request::new(ClusterRequest {});
        request.set_timeout(ANSWER);
        let silence = |_elapsed| Error::new(Reason::Unavailable, "no answer in time");
        let answer = tokio::time::timeout(ANSWER, client.cluster(request)).await.map_err(silence)?;
        answer.map(tonic::Response::into_inner).map_err(|status| from_status(&status).0)
    }

    /// Whom to ask, the servers in doubt last: a machine that is gone keeps the asker waiting.
    fn addresses(&self) -> Vec<String> {
        let heard = self.heard();
        let mut addresses = self.seeds.clone();
        for address in heard.servers.values() {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        let doubted: Vec<_> = heard.doubted.iter().filter_map(|server| heard.servers.get(server)).collect();
        addresses.sort_by_key(|address| doubted.contains(&address));
        addresses
    }

    /// Takes an answer in; false when it is another cluster's.
    fn hear(&self, reply: &ClusterReply) -> bool {
        let servers = reply.servers.iter().map(|server| (ServerId::new(server.server), server.address.clone()));
        let tables = reply.tables.iter().map(|table| (table.name.clone(), TableId::new(table.table)));
        let cluster = ClusterId::from_bytes(&reply.cluster);
        let mut heard = self.heard();
        if heard.cluster.is_some() && heard.cluster != cluster {
            return false;
        }
        heard.cluster = cluster;
        heard.at = Some(self.clock.monotonic());
        // A server that has lost its lease may still lead tablets: its address is kept.
        heard.servers.extend(servers);
        heard.doubted.clear();
        heard.tables = tables.collect();
        heard.master = reply.master.clone();
        true
    }

    fn is_recent(&self) -> bool {
        let now = self.clock.monotonic();
        self.heard().at.is_some_and(|at| now.saturating_sub(at) < RECENT)
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory for LocateDirectory {
    fn cluster(&self) -> Option<ClusterId> {
        self.heard().cluster
    }

    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>> {
        Box::pin(async move {
            let root = self.ask().await?.root;
            let root = root.ok_or_else(|| Error::new(Reason::NoLeader, "the cluster has no root tablet yet"))?;
            convert::descriptor_from_proto(&root)
        })
    }

    fn address(&self, server: ServerId) -> BoxFuture<'_, Option<String>> {
        Box::pin(async move {
            if !self.heard().knows(server) && !self.is_recent() {
                // Without an answer the last address has to do.
                drop(self.ask().await);
            }
            self.heard().servers.get(&server).cloned()
        })
    }

    fn doubt(&self, server: ServerId) {
        self.heard().doubted.insert(server);
    }

    fn table<'a>(&'a self, name: &'a TableName, freshness: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>> {
        Box::pin(async move {
            if freshness == Freshness::Cached
                && let Some(table) = self.heard().tables.get(name.as_str())
            {
                return Ok(Some(*table));
            }
            self.ask().await?;
            Ok(self.heard().tables.get(name.as_str()).copied())
        })
    }
}

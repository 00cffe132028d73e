//! All groups of a server as seen by the other servers: ways out, and where a message that comes in belongs.
//!
//! One `Network` a server. It owns the links to the peers, one for each, shared by all groups, and hands what arrives to
//! the group that is meant. Which replicas live here is not its business: a [`GroupDirectory`] says so, and decides what a
//! message for a replica that is not here means.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ebla_model::id::{ClusterId, ReplicaId, ServerId, TabletId};
use ebla_proto::raft::raft_server::RaftServer;
use ebla_runtime::{Blocking, Runtime};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::crew::{Crew, Crews};
use super::group::Group;
use super::link::{Answer, Ask, Header, Link, LocalLink, Origin, PeerLink, SentSnapshot, Unreachable};
use super::service::Service;
use super::stream::StreamLink;
use super::succession;
use super::types::{AppendRequest, AppendResponse, RaftVote};

/// Largest message between servers: a row may be as large as the public API allows, and travels alone.
pub(super) const MESSAGE_BYTES_MAX: usize = 320 * 1024 * 1024;

/// Where servers listen. Asked at every connection attempt.
pub trait AddressBook: Send + Sync + 'static {
    /// Whose addresses these are; `None` before that is known.
    fn cluster(&self) -> Option<ClusterId>;

    /// `host:port` of a server, as last heard of.
    fn address(&self, server: ServerId) -> Option<String>;
}

/// Which replicas live on this server.
pub trait GroupDirectory: Send + Sync + 'static {
    /// The group a message is meant for. May start to create the replica and answer [`Lookup::Unreachable`]
    /// meanwhile; must not block.
    fn group(&self, tablet: TabletId, replica: ReplicaId, origin: Origin) -> Lookup;
}

/// Whether a replica is here.
pub enum Lookup {
    /// It is.
    Here(Arc<Group>),
    /// Not, or not yet: the sender tries again later. The reason is for its log.
    Unreachable(String),
}

/// What a [`Network`] is made with.
pub struct NetworkOptions {
    /// The server that it belongs to.
    pub server: ServerId,
    /// Where the others listen.
    pub addresses: Arc<dyn AddressBook>,
    /// The servers of the same process.
    pub neighbours: Neighbours,
    /// Folder for checkpoints that arrive, on the same file system as the tablets; its content does not outlive the process.
    pub scratch: PathBuf,
    /// For writing what arrives.
    pub maintenance: Blocking,
    /// Without an answer in this time a peer is taken for unreachable. Not below the time a slow sync may take.
    pub answer_wait: Duration,
}

/// The links of a server and the door for the other servers' messages.
pub struct Network {
    options: NetworkOptions,
    runtime: Runtime,
    /// Streams of other servers that are answered here: they end first when the server stops.
    doors: Runtime,
    directory: OnceLock<Weak<dyn GroupDirectory>>,
    /// Guards the map only.
    links: Mutex<BTreeMap<ServerId, Arc<Link>>>,
    /// What the groups run on.
    crews: Crews,
}

impl Network {
    /// A network that answers nothing until [`Network::serve`]. Its tasks belong to `runtime`.
    pub fn new(options: NetworkOptions, runtime: &Runtime) -> Arc<Self> {
        let neighbours = options.neighbours.clone();
        let server = options.server;
        let runtime = runtime.child("raft-network");
        let crews = Crews::start(&runtime.tasks);
        let network = Self {
            options,
            doors: runtime.child("doors"),
            runtime,
            directory: OnceLock::new(),
            links: Mutex::default(),
            crews,
        };
        let network = Arc::new(network);
        neighbours.enter(server, &network);
        network
    }

    /// Names who knows the groups. Only the first call counts.
    pub fn serve(&self, directory: Weak<dyn GroupDirectory>) {
        // A second directory would be a second server in one network; the first stays.
        let _second = self.directory.set(directory);
    }

    /// The gRPC service `ebla.raft.Raft` of this server.
    pub fn service(self: &Arc<Self>) -> RaftServer<Service> {
        RaftServer::new(Service::new(Arc::clone(self)))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Ends the streams of other servers, which would hold the port for ever; what goes out from here goes on.
    pub fn shut_doors(&self) {
        self.doors.tasks.cancel();
    }

    /// Takes this server out of its process's neighbourhood and ends its links: for a stop without warning.
    pub fn abort(&self) {
        self.options.neighbours.leave(self.options.server);
        self.runtime.tasks.cancel();
        self.held().clear();
    }

    pub(super) fn options(&self) -> &NetworkOptions {
        &self.options
    }

    /// Cancelled when no stream is to be answered any more.
    pub(super) fn shut(&self) -> impl Future<Output = ()> + Send + use<> {
        self.doors.tasks.token().cancelled_owned()
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// What a tablet's group runs on.
    pub(super) fn crew(&self, tablet: TabletId) -> Crew {
        self.crews.of(tablet)
    }

    /// The way to `server`.
    pub(super) fn link(&self, server: ServerId) -> Arc<dyn PeerLink> {
        let mut links = self.held();
        let link = links.entry(server).or_insert_with(|| {
            let near = LocalLink::new(self.options.neighbours.clone(), self.options.server, server);
            Arc::new(Link { near, far: StreamLink::new(self, server) })
        });
        Arc::clone(link) as Arc<dyn PeerLink>
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<ServerId, Arc<Link>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn group(&self, header: &Header) -> Result<Arc<Group>, Unreachable> {
        let Some(directory) = self.directory.get().and_then(Weak::upgrade) else {
            return Err(Unreachable("the server is starting or ending".to_owned()));
        };
        match directory.group(header.tablet, header.to, header.origin) {
            Lookup::Here(group) => Ok(group),
            Lookup::Unreachable(reason) => Err(Unreachable(reason)),
        }
    }

    pub(super) fn receive_append(
        &self,
        header: Header,
        request: AppendRequest,
    ) -> BoxFuture<'static, Result<AppendResponse, Unreachable>> {
        match self.group(&header) {
            Ok(group) => async move { group.receive_append(request).await }.boxed(),
            Err(unreachable) => futures::future::ready(Err(unreachable)).boxed(),
        }
    }

    pub(super) async fn receive_ask(&self, header: Header, ask: Ask) -> Result<Answer, Unreachable> {
        self.group(&header)?.receive_ask(ask).await
    }

    /// The connection that brought this message has broken.
    pub(super) fn line_broke(&self, header: &Header) {
        let ends = self.doors.tasks.token().is_cancelled();
        if let (false, Ok(group)) = (ends, self.group(header)) {
            succession::prepare(&group, header, &self.runtime.rng);
        }
    }

    /// Whether a snapshot for this replica would be taken: asked before its files are.
    pub(super) fn expects(&self, header: &Header) -> Result<(), Unreachable> {
        self.group(header).map(|_group| ())
    }

    pub(super) async fn receive_snapshot(
        &self,
        header: Header,
        snapshot: SentSnapshot,
    ) -> Result<RaftVote, Unreachable> {
        self.group(&header)?.receive_snapshot(snapshot).await
    }
}

/// The servers of one process, which reach each other without a socket; clones are the same neighbourhood.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<Hood>>);

/// Guarded for a look-up.
#[derive(Default)]
struct Hood {
    servers: BTreeMap<ServerId, Weak<Network>>,
    cut: BTreeSet<(ServerId, ServerId)>,
}

impl Neighbours {
    /// Lets no message pass between two servers: for tests of partitions.
    pub fn cut(&self, one: ServerId, other: ServerId) {
        self.held().cut.insert((one, other));
    }

    /// Undoes all [`Neighbours::cut`].
    pub fn heal(&self) {
        self.held().cut.clear();
    }

    fn enter(&self, server: ServerId, network: &Arc<Network>) {
        self.held().servers.insert(server, Arc::downgrade(network));
    }

    fn leave(&self, server: ServerId) {
        self.held().servers.remove(&server);
    }

    pub(super) fn knows(&self, server: ServerId) -> bool {
        self.held().servers.contains_key(&server)
    }

    pub(super) fn reach(&self, from: ServerId, to: ServerId) -> Option<Arc<Network>> {
        let hood = self.held();
        if hood.cut.contains(&(from, to)) || hood.cut.contains(&(to, from)) {
            return None;
        }
        hood.servers.get(&to).and_then(Weak::upgrade)
    }

    fn held(&self) -> MutexGuard<'_, Hood> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

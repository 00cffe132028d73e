//! Three replicas in one process over real commit logs in temporary folders, with a state machine that is a list.

mod slow;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::capacity::{DiskSpace, Resources};
use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::id::{ClusterId, GroupId, LogId, LogIndex, ReplicaId, ServerId};
use ebla_model::metadata::{Membership, Replica};
use ebla_runtime::{Blocking, Clock, FixedResources, ResourceProbe, Runtime, ServeOptions, serve};
use ebla_storage::disk::RealDisk;
use ebla_storage::log::{CommitLog, LogOptions, MemoryManifest, OnFailure};
use parking_lot::Mutex;
use tempfile::TempDir;
use tonic::service::Routes;

use self::slow::Blockers;
use crate::capacity::Capacity;
use crate::local_servers::LocalServers;
use crate::raft::{
    AddressBook, AppliedPosition, BlockingPools, CheckpointOrigin, CommittedEntry, Fault, Group, GroupConfig,
    GroupDirectory, GroupLookup, GroupOrigin, GroupReplica, LocalPeers, Network, NetworkOptions, Payload, ProposeError,
    RaftTimings, StateMachine, force_membership,
};

pub(super) const TABLET: GroupId = GroupId::new(7);
/// How long a test waits for an expected event.
pub(super) const LIVENESS_TIMEOUT: Duration = Duration::from_secs(60);

/// The content of a checkpoint that counts as damaged.
pub(super) const DAMAGED: &[u8] = b"damaged";

pub(super) const QUICK: RaftTimings = RaftTimings {
    heartbeat: Duration::from_millis(60),
    election_min: Duration::from_millis(300),
    election_max: Duration::from_millis(600),
};

pub(super) fn now() -> Duration {
    Clock::system().monotonic()
}

/// Waits until a condition holds.
pub(super) async fn until(event: &str, mut holds: impl FnMut() -> bool) {
    let deadline = now() + LIVENESS_TIMEOUT;
    while !holds() {
        assert!(now() < deadline, "{event} did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Content {
    applied: AppliedPosition,
    commands: Vec<Bytes>,
}

/// A list of all commands. The state at the last `flush` survives a restart.
#[derive(Debug)]
pub(super) struct List {
    memory: Mutex<Content>,
    disk: Mutex<Content>,
    /// The next apply fails with it.
    fault: Mutex<Option<Fault>>,
}

impl List {
    fn with(applied: AppliedPosition) -> Self {
        Self::of(Content { applied, commands: Vec::new() })
    }

    fn of(content: Content) -> Self {
        Self { memory: Mutex::new(content.clone()), disk: Mutex::new(content), fault: Mutex::default() }
    }

    fn seeded(servers: &[ServerId]) -> Self {
        let membership = (Some(LogId::SEED), Membership::initial(servers));
        Self::with(AppliedPosition { last: Some(LogId::SEED), membership })
    }

    pub(super) fn empty() -> Self {
        Self::with(AppliedPosition { last: None, membership: (None, Membership::default()) })
    }

    /// The state that survives a crash.
    fn after_crash(&self) -> Self {
        Self::of(self.disk.lock().clone())
    }

    /// Makes the next apply fail.
    pub(super) fn fail(&self, fault: Fault) {
        *self.fault.lock() = Some(fault);
    }

    pub(super) fn flush(&self) {
        let content = self.memory.lock().clone();
        *self.disk.lock() = content;
    }

    pub(super) fn commands(&self) -> Vec<Bytes> {
        self.memory.lock().commands.clone()
    }

    pub(super) fn count(&self) -> usize {
        self.memory.lock().commands.len()
    }

    pub(super) fn last(&self) -> LogIndex {
        self.memory.lock().applied.last.unwrap_or_default().index
    }
}

impl StateMachine for List {
    fn applied(&self) -> AppliedPosition {
        self.memory.lock().applied.clone()
    }

    fn persisted(&self) -> Result<AppliedPosition, Fault> {
        Ok(self.disk.lock().applied.clone())
    }

    fn apply(&self, entries: &[CommittedEntry]) -> Result<Vec<Bytes>, Fault> {
        if let Some(fault) = self.fault.lock().take() {
            return Err(fault);
        }
        let mut content = self.memory.lock();
        let mut results = Vec::new();
        for entry in entries {
            let last = content.applied.last.unwrap_or_default().index;
            assert_eq!(entry.id.index, last.next(), "entries come without a gap");
            content.applied.last = Some(entry.id);
            match &entry.payload {
                Payload::Blank => {}
                Payload::Command(command) => content.commands.push(command.clone()),
                Payload::Membership(members) => content.applied.membership = (Some(entry.id), members.clone()),
            }
            results.push(Bytes::from(content.commands.len().to_string()));
        }
        Ok(results)
    }

    fn checkpoint(&self, folder: &Path) -> Result<AppliedPosition, Fault> {
        let content = self.memory.lock().clone();
        fs::create_dir(folder).unwrap();
        let commands: Vec<_> = content.commands.iter().map(|command| String::from_utf8_lossy(command)).collect();
        fs::write(folder.join("commands"), commands.join("\n")).unwrap();
        Ok(content.applied)
    }

    fn verify(&self, folder: &Path, _origin: CheckpointOrigin) -> Result<(), Fault> {
        match fs::read(folder.join("commands")).unwrap().as_slice() {
            DAMAGED => Err(Fault::new("the list is damaged")),
            _ => Ok(()),
        }
    }

    fn install(&self, folder: &Path, applied: AppliedPosition) -> Result<(), Fault> {
        let commands = fs::read_to_string(folder.join("commands")).unwrap();
        let commands = commands.split('\n').filter(|line| !line.is_empty()).map(|line| Bytes::from(line.to_owned()));
        let content = Content { applied, commands: commands.collect() };
        *self.memory.lock() = content.clone();
        *self.disk.lock() = content;
        Ok(())
    }
}

/// The address of each server, their cluster and its active version.
#[derive(Default)]
struct Addresses {
    cluster: Mutex<Option<ClusterId>>,
    version: Mutex<ClusterVersion>,
    servers: Mutex<BTreeMap<ServerId, String>>,
}

impl AddressBook for Addresses {
    fn cluster(&self) -> Option<ClusterId> {
        *self.cluster.lock()
    }

    fn active_version(&self) -> ClusterVersion {
        *self.version.lock()
    }

    fn address(&self, server: ServerId) -> Option<String> {
        self.servers.lock().get(&server).cloned()
    }
}

/// The one group of a server.
#[derive(Default)]
struct OneGroup(Mutex<Option<Arc<Group>>>);

impl GroupDirectory for OneGroup {
    fn group(&self, id: GroupId, replica: ReplicaId, _origin: GroupOrigin) -> GroupLookup {
        match &*self.0.lock() {
            Some(group) if group.id() == (GroupReplica { group: id, replica }) => GroupLookup::Local(Arc::clone(group)),
            _ => GroupLookup::Unreachable("no such replica".to_owned()),
        }
    }
}

/// A running server.
pub(super) struct Node {
    pub(super) group: Arc<Group>,
    pub(super) machine: Arc<List>,
    pub(super) log: CommitLog,
    pub(super) capacity: Arc<Capacity>,
    pub(super) network: Arc<Network>,
    directory: Arc<OneGroup>,
    runtime: Runtime,
}

/// The transport between the servers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    Direct,
    Grpc,
}

/// Whether a replica campaigns as soon as it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstElection {
    Immediate,
    ByTimeout,
}

/// The durable state of a server, which survives while the server is down.
struct Durable {
    folder: TempDir,
    witness: MemoryManifest,
    machine: Arc<List>,
    /// Block the disk of its log.
    blockers: Blockers,
    /// What the server's capacity reads.
    resources: Arc<FixedResources>,
}

pub(super) struct Cluster {
    pub(super) servers: Vec<ServerId>,
    pub(super) local_peers: LocalPeers,
    pub(super) timings: RaftTimings,
    transport: Transport,
    addresses: Arc<Addresses>,
    durable: BTreeMap<ServerId, Durable>,
    nodes: BTreeMap<ServerId, Node>,
}

impl Cluster {
    /// Servers 1 to `count`, each with a replica of the same number; the first one campaigns at once.
    pub(super) async fn start(count: u64, transport: Transport, timings: RaftTimings) -> Self {
        let servers: Vec<_> = (1..=count).map(ServerId::new).collect();
        let mut cluster = Self {
            servers: servers.clone(),
            local_peers: LocalPeers::default(),
            timings,
            transport,
            addresses: Arc::default(),
            durable: BTreeMap::new(),
            nodes: BTreeMap::new(),
        };
        for server in servers.iter().rev() {
            cluster.create(*server, List::seeded(&servers));
            let first = if *server == servers[0] { FirstElection::Immediate } else { FirstElection::ByTimeout };
            cluster.up(*server, None, first).await;
        }
        cluster
    }

    fn create(&mut self, server: ServerId, machine: List) {
        let folder = tempfile::tempdir().unwrap();
        let (witness, blockers) = (MemoryManifest::default(), Blockers::default());
        let (machine, resources) = (Arc::new(machine), Arc::default());
        self.durable.insert(server, Durable { folder, witness, machine, blockers, resources });
    }

    /// Adds a server with an empty replica.
    pub(super) async fn add_empty(&mut self, server: ServerId) {
        self.create(server, List::empty());
        self.up(server, None, FirstElection::ByTimeout).await;
    }

    /// Starts a server with its durable state.
    pub(super) async fn up(&mut self, server: ServerId, vote_holdoff: Option<Duration>, first: FirstElection) {
        let runtime = Runtime::system("test");
        let durable = &self.durable[&server];
        let log = open_log(durable);
        let config = self.config(server, vote_holdoff, first);
        let probe = Arc::clone(&durable.resources) as Arc<dyn ResourceProbe>;
        let capacity = Capacity::new(probe, LocalServers::default());
        capacity.sample_disk(server);
        let options = NetworkOptions {
            versions: SupportedVersions::OWN,
            election_max: self.timings.election_max,
            server,
            addresses: Arc::clone(&self.addresses) as Arc<dyn AddressBook>,
            local_peers: match self.transport {
                Transport::Direct => self.local_peers.clone(),
                Transport::Grpc => LocalPeers::default(),
            },
            scratch: config.scratch.clone(),
            maintenance: config.pools.maintenance.clone(),
            response_timeout: self.timings.election_max,
            capacity: Arc::clone(&capacity),
        };
        let network = Network::new(options, &runtime);
        let directory = Arc::new(OneGroup::default());
        let weak: Weak<OneGroup> = Arc::downgrade(&directory);
        network.set_directory(weak);
        self.listen(server, &network, &runtime).await;
        let machine = Arc::clone(&durable.machine);
        let state: Arc<dyn StateMachine> = Arc::<List>::clone(&machine);
        let group = network.start_group(config, log.clone(), state, &runtime).await.unwrap();
        *directory.0.lock() = Some(Arc::clone(&group));
        self.nodes.insert(server, Node { group, machine, log, capacity, network, directory, runtime });
    }

    fn config(&self, server: ServerId, vote_holdoff: Option<Duration>, first: FirstElection) -> GroupConfig {
        let pool = |name| Blocking::pool(name, 2, 64).unwrap();
        let pools = BlockingPools { apply: pool("apply"), maintenance: pool("maintenance") };
        let scratch = self.scratch(server);
        GroupConfig {
            vote_holdoff,
            campaign_at_start: first == FirstElection::Immediate,
            timings: self.timings,
            ..GroupConfig::new(group_replica(server), server, scratch, pools)
        }
    }

    /// The folder for snapshots that a server receives.
    pub(super) fn scratch(&self, server: ServerId) -> PathBuf {
        self.durable[&server].folder.path().join("scratch")
    }

    /// Another network to the replica of a server. It writes what it receives on the caller's thread: time that is paused does not wait for
    /// other threads.
    pub(super) fn inline_network(&self, server: ServerId) -> Arc<Network> {
        let node = &self.nodes[&server];
        let options = NetworkOptions {
            versions: SupportedVersions::OWN,
            election_max: self.timings.election_max,
            server,
            addresses: Arc::clone(&self.addresses) as Arc<dyn AddressBook>,
            local_peers: LocalPeers::default(),
            scratch: self.scratch(server),
            maintenance: Blocking::inline(),
            response_timeout: self.timings.election_max,
            capacity: Arc::clone(&node.capacity),
        };
        let network = Network::new(options, &node.runtime);
        let directory: Weak<OneGroup> = Arc::downgrade(&node.directory);
        network.set_directory(directory);
        network
    }

    /// Stops the replica of a server; the server and its log go on.
    pub(super) async fn stop_replica(&self, server: ServerId) {
        let node = &self.nodes[&server];
        *node.directory.0.lock() = None;
        node.group.stop().await;
    }

    /// Starts a replica again that was stopped.
    pub(super) async fn start_replica(&mut self, server: ServerId) {
        let config = self.config(server, None, FirstElection::ByTimeout);
        let node = self.nodes.get_mut(&server).unwrap();
        let state: Arc<dyn StateMachine> = Arc::<List>::clone(&node.machine);
        node.group = node.network.start_group(config, node.log.clone(), state, &node.runtime).await.unwrap();
        *node.directory.0.lock() = Some(Arc::clone(&node.group));
    }

    async fn listen(&self, server: ServerId, network: &Arc<Network>, runtime: &Runtime) {
        if let Transport::Grpc = self.transport {
            let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
            self.addresses.servers.lock().insert(server, listener.local_addr().to_string());
            serve(&runtime.tasks, listener, Routes::new(network.service()), ServeOptions::default());
        }
    }

    /// Kills a server: everything that was not synced or flushed is lost.
    pub(super) async fn kill(&mut self, server: ServerId) {
        let node = self.nodes.remove(&server).unwrap();
        node.network.abort();
        *node.directory.0.lock() = None;
        tokio::task::block_in_place(|| node.log.abort());
        node.group.stop().await;
        node.runtime.tasks.stop(Duration::ZERO).await;
        self.durable.get_mut(&server).unwrap().machine = Arc::new(node.machine.after_crash());
    }

    /// Makes the replica of a server that is down the only voter of the group.
    pub(super) fn force_membership(&self, server: ServerId) {
        let durable = &self.durable[&server];
        let log = open_log(durable);
        let id = group_replica(server);
        let applied = durable.machine.applied().last.unwrap_or_default();
        tokio::task::block_in_place(|| {
            force_membership(&log, id, replica_on(server), applied).unwrap();
            log.stop();
        });
    }

    /// Makes all servers members of this cluster.
    pub(super) fn set_cluster(&self, cluster: ClusterId) {
        *self.addresses.cluster.lock() = Some(cluster);
    }

    /// Makes this version the active one.
    pub(super) fn set_version(&self, active: ClusterVersion) {
        *self.addresses.version.lock() = active;
    }

    /// The address at which a server listens.
    pub(super) fn address(&self, server: ServerId) -> String {
        self.addresses.address(server).unwrap()
    }

    /// Sets the space on a server's disk, which may be down: free mebibytes, of 100 with a reserve of 20. A snapshot of these tests is
    /// smaller than one.
    pub(super) fn set_free_mebibytes(&self, server: ServerId, free: u64) {
        let [free_bytes, total_bytes, reserve_bytes] = [free, 100, 20].map(|mebibytes| mebibytes << 20);
        let disk = Some(DiskSpace { free_bytes, total_bytes, reserve_bytes });
        self.durable[&server].resources.set(Resources { disk, ..Resources::default() });
        if let Some(node) = self.nodes.get(&server) {
            node.capacity.sample_disk(server);
        }
    }

    /// Blocks a server's writes to its log.
    pub(super) fn block_disk(&self, server: ServerId) {
        self.durable[&server].blockers.writes.block();
    }

    pub(super) fn unblock_disk(&self, server: ServerId) {
        self.durable[&server].blockers.writes.unblock();
    }

    /// Blocks the reads of a server from its log's segments.
    pub(super) fn block_reads(&self, server: ServerId) {
        self.durable[&server].blockers.reads.block();
    }

    /// Whether a thread of a server waits for a read from its log's segments.
    pub(super) fn has_waiting_read(&self, server: ServerId) -> bool {
        self.durable[&server].blockers.reads.waiting() > 0
    }

    pub(super) fn unblock_reads(&self, server: ServerId) {
        self.durable[&server].blockers.reads.unblock();
    }

    pub(super) fn node(&self, server: ServerId) -> &Node {
        &self.nodes[&server]
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// The server that leads in the highest term.
    pub(super) fn leader_now(&self) -> Option<ServerId> {
        let leaders = self.nodes.iter().filter_map(|(server, node)| Some((node.group.leadership()?.term, *server)));
        leaders.max().map(|(_, server)| server)
    }

    pub(super) async fn leader(&self) -> ServerId {
        until("a leader", || self.leader_now().is_some()).await;
        self.leader_now().unwrap()
    }

    /// Proposes one command at the leader, until it is acknowledged.
    pub(super) async fn write(&self, command: &str) {
        let deadline = now() + LIVENESS_TIMEOUT;
        loop {
            assert!(now() < deadline, "{command} was not acknowledged");
            let leader = self.leader().await;
            match self.node(leader).group.propose(vec![Bytes::from(command.to_owned())], None).await.remove(0) {
                Ok(_) => return,
                Err(ProposeError::NotLeader { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{command}: {error}"),
            }
        }
    }

    /// Waits until all running replicas have applied the same log.
    pub(super) async fn settled(&self) {
        let same = || {
            let mut lasts = self.nodes().map(|node| node.machine.last());
            let first = lasts.next();
            lasts.all(|last| Some(last) == first)
        };
        until("all replicas at the same entry", same).await;
        let mut lists = self.nodes().map(|node| node.machine.commands());
        let first = lists.next().unwrap();
        assert!(lists.all(|list| list == first), "replicas differ");
    }
}

fn open_log(durable: &Durable) -> CommitLog {
    let folder = durable.folder.path().join("log");
    fs::create_dir_all(&folder).unwrap();
    let disk = Arc::new(durable.blockers.wrap(RealDisk::open(&folder).unwrap()));
    let options = LogOptions { on_failure: OnFailure::Report, ..LogOptions::default() };
    let (log, recovered) = CommitLog::open(disk, Arc::new(durable.witness.clone()), options).unwrap();
    assert!(recovered.quarantined.is_empty() && !recovered.all_quarantined, "the log is whole");
    log.start_writer().unwrap();
    log
}

pub(super) fn group_replica(server: ServerId) -> GroupReplica {
    GroupReplica { group: TABLET, replica: replica_on(server).replica }
}

pub(super) fn replica_on(server: ServerId) -> Replica {
    Replica { replica: ReplicaId::new(server.get()), server }
}

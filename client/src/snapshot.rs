//! A snapshot of a cluster's state: from its master, or, when none is available, from METADATA and the tablet servers
//! themselves. Unknown values are `None`, never zero.
//!
//! ```text
//!   responder   the first address at which a tablet server or a master answers     1 s
//!   status      the master, asked through it                                       the rest of 4.5 s
//!   probe      concurrently, after a second: METADATA, and each server directly
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use crate::{Admin, BearerToken, Client};
use ebla_model::Micros;
use ebla_model::call_times::CallTimes;
use ebla_model::capacity::{Resources, WriteState};
use ebla_model::clock_offset::ClockState;
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_model::key::KeyRange;
use ebla_model::memory_groups::MemoryGroups;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::scan_cache::ScanCacheState;
use ebla_model::scrub::ScrubState;
use ebla_model::sync_delay::SyncState;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::locate::{ClusterReply, ClusterRequest};
use ebla_proto::operate::DrainState;
use ebla_proto::status::from_status;
use ebla_proto::{convert, operate, record};
use ebla_runtime::Runtime;
use futures::StreamExt as _;
use futures::future::{Either, join_all, select};
use futures::stream::FuturesUnordered;

use crate::encoding::to_hex;

/// Timeout of the whole snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(4_500);
/// Timeout of a server that answers from its cached directory.
const SERVER_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of reading METADATA without a master.
const METADATA_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Time that the master has for its answer before METADATA and the servers are asked directly.
const MASTER_HEAD_START: Duration = Duration::from_secs(1);

/// The state of a cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSnapshot {
    /// Its id, in hexadecimal digits.
    pub cluster: Option<String>,
    /// Address of the master, or of the last one.
    pub master: Option<String>,
    /// The master's epoch.
    pub master_epoch: Option<u64>,
    /// Time since the master was lost, while there is none.
    pub master_lost: Option<Duration>,
    /// Why no master is available; `None` when one is.
    pub master_error: Option<String>,
    /// Why METADATA cannot be read; `None` when it can.
    pub metadata_error: Option<String>,
    /// Number of usable tables.
    pub tables: Option<u64>,
    /// Number of tablets.
    pub tablets: Option<u64>,
    /// Number of tablets with a leader.
    pub tablets_led: Option<u64>,
    /// Health of the known tablets.
    pub health: Option<operate::Health>,
    /// The last known state of METADATA, while METADATA cannot be read.
    pub remembered: Option<operate::Remembered>,
    /// The tablet servers that a new cluster is waiting for.
    pub awaited: Option<operate::Awaited>,
    /// The tablet servers, by id.
    pub servers: Vec<ServerSnapshot>,
    /// The master's clock when it answered.
    pub time: Option<Micros>,
    /// What the master observes to be wrong, and since when.
    pub problems: Vec<operate::ObservedProblem>,
}

impl ClusterSnapshot {
    /// Since when the master has observed a problem of a server, or of all tablets; `None`: not known.
    pub fn since(&self, kind: operate::ProblemKind, server: Option<u64>) -> Option<Micros> {
        self.since_at(kind, (server.unwrap_or_default(), 0))
    }

    /// Since when the master has observed a problem of one tablet; `None`: not known.
    pub fn since_of_tablet(&self, kind: operate::ProblemKind, tablet: u64) -> Option<Micros> {
        self.since_at(kind, (0, tablet))
    }

    /// `place`: a server and a tablet, as in the status.
    fn since_at(&self, kind: operate::ProblemKind, place: (u64, u64)) -> Option<Micros> {
        let wanted = |one: &&operate::ObservedProblem| one.kind() == kind && (one.server, one.tablet) == place;
        self.problems.iter().find(wanted).map(|one| Micros::new(one.since_micros))
    }
}

/// Replicas of a server that are far behind their leaders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaLag {
    /// How many.
    pub replicas: u64,
    /// The largest number of log entries that one has not applied.
    pub entries_max: u64,
    /// The largest difference in the times of the last applied commands.
    pub time_max: Duration,
    /// The first of their groups.
    pub groups_first: Vec<u64>,
}

impl From<&operate::ReplicaLag> for ReplicaLag {
    fn from(lag: &operate::ReplicaLag) -> Self {
        Self {
            replicas: lag.replicas,
            entries_max: lag.entries_max,
            time_max: Duration::from_millis(lag.millis_max),
            groups_first: lag.groups_first.clone(),
        }
    }
}

/// The state of a tablet server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSnapshot {
    /// Its id.
    pub id: u64,
    /// Its last known address, `host:port`.
    pub address: Option<String>,
    /// Whether it holds its lease.
    pub is_registered: bool,
    /// Whether it answers.
    pub is_reachable: bool,
    /// Its zone.
    pub zone: Option<String>,
    /// Incarnation of its process.
    pub incarnation: Option<u64>,
    /// Its release.
    pub release: Option<String>,
    /// Replicas that it runs.
    pub replicas: Option<u64>,
    /// Replicas that METADATA assigns to it.
    pub assigned: Option<u64>,
    /// Tablets that it leads.
    pub leads: Option<u64>,
    /// Bytes of its tablets.
    pub size_bytes: Option<u64>,
    /// Bytes of its commit log.
    pub log_bytes: Option<u64>,
    /// What it has of its resources.
    pub resources: Resources,
    /// Whether it accepts writes of clients.
    pub writes: WriteState,
    /// Its clock, in comparison with others.
    pub clock: ClockState,
    /// Its search for damaged blocks.
    pub scrub: ScrubState,
    /// The syncs of its commit log.
    pub sync: SyncState,
    /// Its scan cache; `None` when it is unknown.
    pub scan_cache: Option<ScanCacheState>,
    /// Its locality groups in memory; `None`: not known.
    pub memory_groups: Option<MemoryGroups>,
    /// How far its drain is.
    pub drain: DrainState,
    /// Rows that are read by their keys, and batches of scans, per second, of the tablets that it leads.
    pub reads_per_second: Option<u64>,
    /// Rows that are written per second, of the tablets that it leads.
    pub writes_per_second: Option<u64>,
    /// Its replicas that are far behind; `None`: not known.
    pub lag: Option<ReplicaLag>,
    /// Its calls of the data API within the last seconds; `None`: not known.
    pub calls: Option<CallTimes>,
}

impl ServerSnapshot {
    /// Its state in one word: `up`; `draining`, up and its replicas move away; `drained`, without replicas, and it runs or has stopped;
    /// `unreachable`, registered but not answering; `gone`, without a lease.
    pub const fn state(&self) -> &'static str {
        match (self.is_registered, self.is_reachable, self.drain) {
            (_, true, DrainState::None) => "up",
            (_, true, DrainState::Draining) => "draining",
            (_, true, DrainState::Drained) | (false, false, DrainState::Drained) => "drained",
            (true, false, _) => "unreachable",
            (false, false, DrainState::None | DrainState::Draining) => "gone",
        }
    }

    /// Whether it has stopped after a drain: nothing is missing without it.
    pub const fn is_retired(&self) -> bool {
        !self.is_registered && !self.is_reachable && matches!(self.drain, DrainState::Drained)
    }

    fn of_record(server: &record::Server) -> Self {
        let is_seen = server.incarnation != 0;
        Self {
            id: server.server,
            address: non_empty(&server.address),
            zone: non_empty(&server.zone),
            incarnation: is_seen.then_some(server.incarnation),
            release: non_empty(&server.release),
            ..Self::default()
        }
    }

    fn of_status(one: &operate::ServerStatus, knows_metadata: bool) -> Self {
        let known = |number: u64| one.reachable.then_some(number);
        // Masters that report loads report the lag too.
        let load = |number: u64| one.lag.as_ref().map(|_lag| number);
        let (resources, writes) = one.resources.as_ref().map(convert::resources_from_proto).unwrap_or_default();
        Self {
            is_registered: one.registered,
            is_reachable: one.reachable,
            replicas: known(one.replicas),
            assigned: knows_metadata.then_some(one.assigned),
            leads: known(one.leads),
            size_bytes: known(one.size_bytes),
            log_bytes: known(one.log_bytes),
            resources,
            writes,
            scrub: one.scrub.as_ref().map(convert::scrub_state_from_proto).unwrap_or_default(),
            clock: one.clock.as_ref().map(convert::clock_state_from_proto).unwrap_or_default(),
            sync: one.sync.as_ref().map(convert::sync_state_from_proto).unwrap_or_default(),
            scan_cache: one.scan_cache.as_ref().map(convert::scan_cache_state_from_proto),
            memory_groups: one.memory_groups.as_ref().map(convert::memory_groups_from_proto),
            drain: one.drain(),
            reads_per_second: load(one.reads_per_second),
            writes_per_second: load(one.writes_per_second),
            lag: one.lag.as_ref().map(ReplicaLag::from),
            calls: one.calls.as_ref().map(convert::call_times_from_proto),
            ..Self::of_record(&one.server.clone().unwrap_or_default())
        }
    }
}

/// The answer of the master.
impl From<operate::StatusReply> for ClusterSnapshot {
    fn from(reply: operate::StatusReply) -> Self {
        let has_begun = reply.awaited.is_none();
        let has_metadata = has_begun && reply.trouble.is_empty();
        let knows_metadata = has_metadata || reply.remembered.is_some();
        Self {
            cluster: has_begun.then(|| to_hex(&reply.cluster)),
            master: reply.master.map(|master| master.address),
            master_epoch: has_begun.then_some(reply.master_epoch),
            master_lost: None,
            master_error: None,
            metadata_error: non_empty(&reply.trouble),
            tables: has_begun.then_some(reply.tables),
            tablets: has_metadata.then_some(reply.tablets),
            tablets_led: has_metadata.then_some(reply.tablets_led),
            health: reply.health,
            remembered: reply.remembered,
            awaited: reply.awaited,
            servers: reply.servers.iter().map(|one| ServerSnapshot::of_status(one, knows_metadata)).collect(),
            time: (reply.time_micros != 0).then_some(Micros::new(reply.time_micros)),
            problems: reply.problems,
        }
    }
}

/// The kind of process that answers at an address.
#[derive(Clone, Debug)]
enum Responder {
    /// A tablet server, with its cached directory of the cluster.
    TabletServer(Box<ClusterReply>),
    /// A tablet server of a cluster that has not started.
    Waiting,
    /// Another process, usually a master.
    Other,
}

/// Results of asking METADATA and the servers directly.
#[derive(Clone, Debug, Default)]
struct DirectProbe {
    tablets: Option<Vec<TabletDescriptor>>,
    metadata_error: Option<String>,
    /// The registered servers that answer.
    answering: BTreeSet<u64>,
}

/// Fetches the state of the cluster at these addresses within five seconds, or within `timeout` if that is less.
///
/// # Errors
/// `Unavailable` when no address answers; `Unimplemented` when the process there is neither a tablet server nor a master;
/// `NotMaster` when it is a standby master.
pub async fn fetch(
    addresses: &[String],
    timeout: Option<Duration>,
    token: Option<BearerToken>,
    runtime: &Runtime,
) -> Result<ClusterSnapshot, Error> {
    let timeout = timeout.map_or(SNAPSHOT_TIMEOUT, |timeout| (timeout * 9 / 10).min(SNAPSHOT_TIMEOUT));
    let end = runtime.clock.monotonic() + timeout;
    let (address, responder) = find_responder(addresses, timeout.min(SERVER_TIMEOUT), runtime).await?;
    let left = end.saturating_sub(runtime.clock.monotonic());
    let asked = Box::pin(ask_master(&address, left, token, runtime));
    let probe = Box::pin(async {
        tokio::time::sleep(MASTER_HEAD_START.min(left / 3)).await;
        match &responder {
            Responder::TabletServer(known) => probe_directly(&address, known, left / 2, runtime).await,
            Responder::Waiting | Responder::Other => DirectProbe::default(),
        }
    });
    let (error, probe) = match select(asked, probe).await {
        Either::Left((Ok(reply), _probe)) => return Ok(reply.into()),
        Either::Left((Err(error), probe)) => (error, probe.await),
        Either::Right((probe, asked)) => match asked.await {
            Ok(reply) => return Ok(reply.into()),
            Err(error) => (error, probe),
        },
    };
    match responder {
        Responder::TabletServer(known) => Ok(without_master(&known, probe, &error)),
        Responder::Waiting => Ok(ClusterSnapshot {
            master_error: Some(error.message),
            metadata_error: Some("the cluster has not started".to_owned()),
            ..ClusterSnapshot::default()
        }),
        Responder::Other if error.reason == Reason::NotMaster => Err(Error::new(
            Reason::NotMaster,
            format!("{address} is a standby master: use --addr HOST:PORT of a tablet server"),
        )),
        Responder::Other if error.reason == Reason::Unimplemented => Err(Error::new(
            Reason::Unimplemented,
            format!("{address} is neither a tablet server nor a master: use --addr HOST:PORT of a tablet server"),
        )),
        Responder::Other => Err(unreachable(&address, &error)),
    }
}

/// Whether a tablet server answers at this address in time, without the master's help.
pub async fn answers(address: &str, timeout: Duration, runtime: &Runtime) -> bool {
    locate(address, timeout, runtime).await.is_ok()
}

/// The first address that answers.
async fn find_responder(
    addresses: &[String],
    timeout: Duration,
    runtime: &Runtime,
) -> Result<(String, Responder), Error> {
    let asked = addresses.iter().map(|address| async move { (address, locate(address, timeout, runtime).await) });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut last = Error::new(Reason::Unavailable, "no address was given");
    while let Some((address, answer)) = asked.next().await {
        let responder = match answer {
            Ok(known) => Responder::TabletServer(Box::new(known)),
            Err(error) if error.reason == Reason::NoLeader => Responder::Waiting,
            Err(error) if error.reason == Reason::Unimplemented => Responder::Other,
            Err(error) => {
                last = unreachable(address, &error);
                continue;
            }
        };
        return Ok((address.clone(), responder));
    }
    Err(last)
}

fn unreachable(address: &str, error: &Error) -> Error {
    Error::new(Reason::Unavailable, format!("cannot reach {address}: {error}"))
}

/// Fetches the cached directory of a tablet server.
async fn locate(address: &str, timeout: Duration, runtime: &Runtime) -> Result<ClusterReply, Error> {
    let mut client =
        LocateClient::new(runtime.net.channel(address)).max_decoding_message_size(crate::channel::MESSAGE_BYTES_MAX);
    let timed_out = |_elapsed| Error::new(Reason::Unavailable, "timed out");
    let answer = tokio::time::timeout(timeout, client.cluster(ClusterRequest {})).await.map_err(timed_out)?;
    answer.map(tonic::Response::into_inner).map_err(|status| from_status(&status).0)
}

async fn ask_master(
    address: &str,
    timeout: Duration,
    token: Option<BearerToken>,
    runtime: &Runtime,
) -> Result<operate::StatusReply, Error> {
    let admin = Admin::connect(address, runtime).with_timeout(timeout).with_token(token);
    let timed_out = |_elapsed| Error::new(Reason::Deadline, "timed out");
    tokio::time::timeout(timeout, admin.status()).await.map_err(timed_out)?
}

/// Reads METADATA and asks each server, without the master.
async fn probe_directly(address: &str, known: &ClusterReply, timeout: Duration, runtime: &Runtime) -> DirectProbe {
    let probes = known.servers.iter().map(|server| async move {
        let answer = locate(&server.address, timeout.min(SERVER_TIMEOUT), runtime).await;
        answer.is_ok_and(|reply| reply.cluster == known.cluster).then_some(server.server)
    });
    let (answering, tablets) =
        tokio::join!(join_all(probes), read_metadata(address, timeout.min(METADATA_TIMEOUT), runtime));
    let answering = answering.into_iter().flatten().collect();
    match tablets {
        Ok(tablets) => DirectProbe { tablets: Some(tablets), metadata_error: None, answering },
        Err(error) => {
            let metadata_error = Some(format!("METADATA cannot be read: {error}"));
            DirectProbe { tablets: None, metadata_error, answering }
        }
    }
}

async fn read_metadata(address: &str, timeout: Duration, runtime: &Runtime) -> Result<Vec<TabletDescriptor>, Error> {
    let client = Client::connect_cluster(address, runtime.clone()).await?;
    let cluster = client.low_level()?;
    let reading = cluster.read_metadata(KeyRange::all(), cluster.deadline(timeout)).await;
    Ok(reading?.into_iter().map(|entry| entry.descriptor).collect())
}

/// The snapshot without a master. Pure.
fn without_master(known: &ClusterReply, probe: DirectProbe, error: &Error) -> ClusterSnapshot {
    let DirectProbe { tablets, metadata_error, answering } = probe;
    let assigned = |id: u64| {
        let members = tablets.as_ref()?.iter().flat_map(|tablet| tablet.membership.replicas());
        Some(members.filter(|member| member.server == ServerId::new(id)).count() as u64)
    };
    let registered = known.servers.iter().map(|server| ServerSnapshot {
        is_registered: true,
        is_reachable: answering.contains(&server.server),
        assigned: assigned(server.server),
        ..ServerSnapshot::of_record(server)
    });
    let mut servers: Vec<ServerSnapshot> = registered.collect();
    let members = tablets.iter().flatten().flat_map(|tablet| tablet.membership.replicas());
    let holders: BTreeSet<u64> = members.map(|member| member.server.get()).collect();
    for id in holders {
        if servers.iter().all(|server| server.id != id) {
            servers.push(ServerSnapshot { id, assigned: assigned(id), ..ServerSnapshot::default() });
        }
    }
    servers.sort_by_key(|server| server.id);
    ClusterSnapshot {
        cluster: Some(to_hex(&known.cluster)),
        master: known.master.as_ref().or(known.last_master.as_ref()).map(|master| master.address.clone()),
        master_lost: known.last_master.as_ref().map(|_last| Duration::from_millis(known.master_lost_millis)),
        master_error: Some(error.message.clone()),
        metadata_error,
        tables: Some(known.tables.len() as u64),
        tablets: tablets.as_ref().map(|tablets| tablets.len() as u64),
        health: tablets.as_ref().map(|tablets| estimate(tablets, &answering)),
        servers,
        ..ClusterSnapshot::default()
    }
}

/// Health of the tablets if every replica on an answering server is live. Leaders are unknown then.
fn estimate(tablets: &[TabletDescriptor], answering: &BTreeSet<u64>) -> operate::Health {
    let mut health = operate::Health { tablets: tablets.len() as u64, ..operate::Health::default() };
    for tablet in tablets {
        let members = &tablet.membership;
        let lives = |replica| members.server_of(replica).is_some_and(|server| answering.contains(&server.get()));
        let voters = members.voters.last().cloned().unwrap_or_default();
        let wanted = voters.len() as u64;
        let live = voters.iter().filter(|replica| lives(**replica)).count() as u64;
        health.replicas_wanted += wanted;
        health.replicas_live += live;
        if live < wanted {
            let same = health.shortages.iter_mut().find(|short| (short.live, short.wanted) == (live, wanted));
            match same {
                Some(short) => short.tablets += 1,
                None => health.shortages.push(operate::Shortage { live, wanted, tablets: 1 }),
            }
        }
        if !members.voters.iter().all(|set| 2 * set.iter().filter(|replica| lives(**replica)).count() > set.len()) {
            health.without_quorum += 1;
            health.without_quorum_first.push(tablet.tablet.get());
        }
    }
    health.without_quorum_first.truncate(5);
    health.shortages.sort_by_key(|short| (short.live, short.wanted));
    health
}

/// An empty string in a message means that the value is unknown.
fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use ebla_model::id::{TableId, TabletId};

    use super::*;

    fn known(ids: &[u64]) -> ClusterReply {
        let server = |id: &u64| record::Server {
            server: *id,
            address: format!("host-{id}:1"),
            incarnation: 7,
            ..record::Server::default()
        };
        ClusterReply { servers: ids.iter().map(server).collect(), ..ClusterReply::default() }
    }

    fn tablet(number: u64, servers: &[u64]) -> TabletDescriptor {
        let servers: Vec<_> = servers.iter().copied().map(ServerId::new).collect();
        TabletDescriptor::initial(TableId::new(5), TabletId::new(number), KeyRange::all(), &servers)
    }

    #[test]
    fn without_a_master_the_state_comes_from_servers_and_metadata() {
        let probe = DirectProbe {
            tablets: Some(vec![tablet(7, &[1, 2, 3]), tablet(8, &[2, 3, 4])]),
            metadata_error: None,
            answering: BTreeSet::from([1, 2]),
        };
        let error = Error::new(Reason::Unavailable, "no master is active");
        let last_master = Some(record::Master { address: "master:1".to_owned(), ..record::Master::default() });
        let known = ClusterReply { last_master, master_lost_millis: 34_000, ..known(&[1, 2, 3]) };
        let snapshot = without_master(&known, probe, &error);
        assert_eq!(snapshot.master.as_deref(), Some("master:1"));
        assert_eq!(snapshot.master_lost, Some(Duration::from_secs(34)));
        let states: Vec<_> = snapshot.servers.iter().map(|one| (one.id, one.state(), one.assigned)).collect();
        let expected = [(1, "up", Some(1)), (2, "up", Some(2)), (3, "unreachable", Some(2)), (4, "gone", Some(1))];
        assert_eq!(states, expected);
        assert_eq!((snapshot.tablets, snapshot.tablets_led), (Some(2), None));
        assert!(snapshot.servers.iter().all(|one| one.replicas.is_none() && one.size_bytes.is_none()));
        let health = snapshot.health.unwrap();
        assert_eq!((health.replicas_live, health.replicas_wanted), (3, 6));
        assert_eq!((health.without_quorum, health.without_quorum_first), (1, vec![8]));
    }

    #[test]
    fn the_state_of_a_drained_server_is_shown() {
        let state = |is_registered, is_reachable, drain| {
            ServerSnapshot { is_registered, is_reachable, drain, ..ServerSnapshot::default() }.state()
        };
        let of =
            |drain| [(true, true), (true, false), (false, false)].map(|(lease, answers)| state(lease, answers, drain));
        assert_eq!(of(DrainState::None), ["up", "unreachable", "gone"]);
        assert_eq!(of(DrainState::Draining), ["draining", "unreachable", "gone"]);
        assert_eq!(of(DrainState::Drained), ["drained", "unreachable", "drained"]);
    }

    #[test]
    fn unknown_values_are_not_zero() {
        let probe =
            DirectProbe { metadata_error: Some("METADATA cannot be read".to_owned()), ..DirectProbe::default() };
        let error = Error::new(Reason::Unavailable, "no master is active");
        let snapshot = without_master(&known(&[1]), probe, &error);
        assert_eq!((snapshot.tablets, snapshot.health, snapshot.servers[0].assigned), (None, None, None));
        let reply = operate::StatusReply {
            trouble: "METADATA cannot be read: late".to_owned(),
            servers: vec![operate::ServerStatus {
                server: Some(record::Server { server: 2, ..record::Server::default() }),
                ..operate::ServerStatus::default()
            }],
            ..operate::StatusReply::default()
        };
        let snapshot = ClusterSnapshot::from(reply);
        assert_eq!((snapshot.tables, snapshot.tablets, snapshot.tablets_led), (Some(0), None, None));
        let gone = &snapshot.servers[0];
        assert_eq!((gone.state(), gone.replicas, gone.assigned, &gone.address), ("gone", None, None, &None));
    }
}

//! What is known of a cluster: by its master, or, when none answers, by what a tablet server, METADATA and the servers
//! themselves tell. What is not known is `None`, never zero.
//!
//! ```text
//!   contact    the first address at which a tablet server or a master answers     1 s
//!   status     the master, through it                                             what is left of 4.5 s
//!   around     meanwhile, after a second: METADATA, and each server by itself
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_client::{Admin, Client};
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_model::key::KeyRange;
use ebla_model::metadata::TabletDescriptor;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::locate::{ClusterReply, ClusterRequest};
use ebla_proto::status::from_status;
use ebla_proto::{operate, record};
use ebla_runtime::Runtime;
use futures::StreamExt as _;
use futures::future::{Either, join_all, select};
use futures::stream::FuturesUnordered;

/// All that is known must be known by then.
const LOOK_MAX: Duration = Duration::from_millis(4_500);
/// How long a server may take to answer from its own memory.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How long METADATA may take without a master.
const METADATA_MAX: Duration = Duration::from_millis(1_500);
/// A master that answers within this time is not doubted.
const PATIENCE: Duration = Duration::from_secs(1);

/// A cluster as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Its id, in hexadecimal digits.
    pub cluster: Option<String>,
    /// Where the master is or was.
    pub master: Option<String>,
    /// The master's epoch.
    pub master_epoch: Option<u64>,
    /// For how long there has been no master, while there is none.
    pub master_lost: Option<Duration>,
    /// Why no master answers; `None` when one does.
    pub master_error: Option<String>,
    /// Why METADATA cannot be read; `None` when it can.
    pub metadata_error: Option<String>,
    /// Tables that may be used.
    pub tables: Option<u64>,
    /// All tablets.
    pub tablets: Option<u64>,
    /// Those with a leader.
    pub tablets_led: Option<u64>,
    /// How well the tablets are that are known.
    pub health: Option<operate::Health>,
    /// What METADATA said when it was last read, while it cannot be.
    pub remembered: Option<operate::Remembered>,
    /// The tablet servers that a new cluster waits for.
    pub awaited: Option<operate::Awaited>,
    /// The tablet servers, by id.
    pub servers: Vec<Server>,
}

/// A tablet server as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Its id.
    pub id: u64,
    /// Where it is or was, `host:port`.
    pub address: Option<String>,
    /// Whether it holds its lease.
    pub is_registered: bool,
    /// Whether it answers.
    pub is_reachable: bool,
    /// This run of its process.
    pub incarnation: Option<u64>,
    /// The release that it runs.
    pub release: Option<String>,
    /// Replicas that run there.
    pub replicas: Option<u64>,
    /// Replicas that METADATA assigns to it.
    pub assigned: Option<u64>,
    /// Tablets that it leads.
    pub leads: Option<u64>,
    /// Bytes of its tablets.
    pub size_bytes: Option<u64>,
    /// Bytes of its commit log.
    pub log_bytes: Option<u64>,
}

impl Server {
    /// How it is, in a word: `up`; `unreachable`, holding its lease without an answer; `gone`, without a lease.
    pub const fn state(&self) -> &'static str {
        match (self.is_registered, self.is_reachable) {
            (_, true) => "up",
            (true, false) => "unreachable",
            (false, false) => "gone",
        }
    }

    fn of_record(server: &record::Server) -> Self {
        let is_seen = server.incarnation != 0;
        Self {
            id: server.server,
            address: Some(server.address.clone()).filter(|address| !address.is_empty()),
            incarnation: is_seen.then_some(server.incarnation),
            release: Some(server.release.clone()).filter(|release| !release.is_empty()),
            ..Self::default()
        }
    }

    fn of_status(one: &operate::ServerStatus, knows_metadata: bool) -> Self {
        let known = |number: u64| one.reachable.then_some(number);
        Self {
            is_registered: one.registered,
            is_reachable: one.reachable,
            replicas: known(one.replicas),
            assigned: knows_metadata.then_some(one.assigned),
            leads: known(one.leads),
            size_bytes: known(one.size_bytes),
            log_bytes: known(one.log_bytes),
            ..Self::of_record(&one.server.clone().unwrap_or_default())
        }
    }
}

/// What the master says.
impl From<operate::StatusReply> for Picture {
    fn from(reply: operate::StatusReply) -> Self {
        let has_begun = reply.awaited.is_none();
        let has_metadata = has_begun && reply.trouble.is_empty();
        let knows_metadata = has_metadata || reply.remembered.is_some();
        Self {
            cluster: has_begun.then(|| hex(&reply.cluster)),
            master: reply.master.map(|master| master.address),
            master_epoch: has_begun.then_some(reply.master_epoch),
            master_lost: None,
            master_error: None,
            metadata_error: Some(reply.trouble).filter(|trouble| !trouble.is_empty()),
            tables: has_begun.then_some(reply.tables),
            tablets: has_metadata.then_some(reply.tablets),
            tablets_led: has_metadata.then_some(reply.tablets_led),
            health: reply.health,
            remembered: reply.remembered,
            awaited: reply.awaited,
            servers: reply.servers.iter().map(|one| Server::of_status(one, knows_metadata)).collect(),
        }
    }
}

/// What answers at an address.
#[derive(Clone, Debug)]
enum Contact {
    /// A tablet server, and what it knows of the cluster.
    TabletServer(Box<ClusterReply>),
    /// A tablet server of a cluster that has not started.
    Waiting,
    /// Something else: a master, if all is well.
    Other,
}

/// What is known without a master.
#[derive(Clone, Debug, Default)]
struct Around {
    tablets: Option<Vec<TabletDescriptor>>,
    metadata_error: Option<String>,
    /// The registered servers that answer.
    answering: BTreeSet<u64>,
}

/// What is known of the cluster at these addresses, within five seconds, or within `timeout` if that is less.
///
/// # Errors
/// `Unavailable` when nothing answers at any of them; `Unimplemented` when what does is neither a tablet server nor a
/// master; `NotMaster` when it is a master that waits to become active.
pub async fn look(addresses: &[String], timeout: Option<Duration>, runtime: &Runtime) -> Result<Picture, Error> {
    let limit = timeout.map_or(LOOK_MAX, |timeout| (timeout * 9 / 10).min(LOOK_MAX));
    let end = runtime.clock.monotonic() + limit;
    let (address, contact) = contact(addresses, limit.min(ANSWER_MAX), runtime).await?;
    let left = end.saturating_sub(runtime.clock.monotonic());
    let asked = Box::pin(ask_master(&address, left, runtime));
    let around = Box::pin(async {
        tokio::time::sleep(PATIENCE.min(left / 3)).await;
        match &contact {
            Contact::TabletServer(known) => look_around(&address, known, left / 2, runtime).await,
            Contact::Waiting | Contact::Other => Around::default(),
        }
    });
    let (error, around) = match select(asked, around).await {
        Either::Left((Ok(reply), _around)) => return Ok(reply.into()),
        Either::Left((Err(error), around)) => (error, around.await),
        Either::Right((around, asked)) => match asked.await {
            Ok(reply) => return Ok(reply.into()),
            Err(error) => (error, around),
        },
    };
    match contact {
        Contact::TabletServer(known) => Ok(assemble(&known, around, &error)),
        Contact::Waiting => Ok(Picture {
            master_error: Some(error.message),
            metadata_error: Some("the cluster has not started".to_owned()),
            ..Picture::default()
        }),
        Contact::Other if error.reason == Reason::NotMaster => Err(Error::new(
            Reason::NotMaster,
            format!("{address} is a master that is not active: use --addr HOST:PORT of a tablet server"),
        )),
        Contact::Other if error.reason == Reason::Unimplemented => Err(Error::new(
            Reason::Unimplemented,
            format!("{address} is neither a tablet server nor a master: use --addr HOST:PORT of a tablet server"),
        )),
        Contact::Other => Err(Error::new(Reason::Unavailable, format!("ask {address}: {error}"))),
    }
}

/// The first address at which something answers.
async fn contact(addresses: &[String], limit: Duration, runtime: &Runtime) -> Result<(String, Contact), Error> {
    let asked = addresses.iter().map(|address| async move { (address, locate(address, limit, runtime).await) });
    let mut asked: FuturesUnordered<_> = asked.collect();
    let mut last = Error::new(Reason::Unavailable, "no address of a tablet server is known");
    while let Some((address, answer)) = asked.next().await {
        let contact = match answer {
            Ok(known) => Contact::TabletServer(Box::new(known)),
            Err(error) if error.reason == Reason::NoLeader => Contact::Waiting,
            Err(error) if error.reason == Reason::Unimplemented => Contact::Other,
            Err(error) => {
                last = Error::new(Reason::Unavailable, format!("ask {address}: {error}"));
                continue;
            }
        };
        return Ok((address.clone(), contact));
    }
    Err(last)
}

/// What a tablet server knows of its cluster, from its own memory.
async fn locate(address: &str, limit: Duration, runtime: &Runtime) -> Result<ClusterReply, Error> {
    let mut client = LocateClient::new(runtime.net.channel(address))
        .max_decoding_message_size(ebla_client::channel::MESSAGE_BYTES_MAX);
    let silence = |_elapsed| Error::new(Reason::Unavailable, "no answer in time");
    let answer = tokio::time::timeout(limit, client.cluster(ClusterRequest {})).await.map_err(silence)?;
    answer.map(tonic::Response::into_inner).map_err(|status| from_status(&status).0)
}

async fn ask_master(address: &str, limit: Duration, runtime: &Runtime) -> Result<operate::StatusReply, Error> {
    let admin = Admin::connect(address, runtime).with_timeout(limit);
    let silence = |_elapsed| Error::new(Reason::Deadline, "no answer in time");
    tokio::time::timeout(limit, admin.status()).await.map_err(silence)?
}

/// METADATA and the servers, asked without the master.
async fn look_around(address: &str, known: &ClusterReply, limit: Duration, runtime: &Runtime) -> Around {
    let probes = known.servers.iter().map(|server| async move {
        let answer = locate(&server.address, limit.min(ANSWER_MAX), runtime).await;
        answer.is_ok_and(|reply| reply.cluster == known.cluster).then_some(server.server)
    });
    let (answering, tablets) = tokio::join!(join_all(probes), read_metadata(address, limit.min(METADATA_MAX), runtime));
    let answering = answering.into_iter().flatten().collect();
    match tablets {
        Ok(tablets) => Around { tablets: Some(tablets), metadata_error: None, answering },
        Err(error) => {
            let metadata_error = Some(format!("METADATA cannot be read: {error}"));
            Around { tablets: None, metadata_error, answering }
        }
    }
}

async fn read_metadata(address: &str, limit: Duration, runtime: &Runtime) -> Result<Vec<TabletDescriptor>, Error> {
    let client = Client::connect_cluster(address, runtime.clone()).await?;
    let cluster = client.low_level()?;
    let reading = cluster.read_metadata(KeyRange::all(), cluster.deadline(limit)).await;
    Ok(reading?.into_iter().map(|entry| entry.descriptor).collect())
}

/// The picture without a master. Pure.
fn assemble(known: &ClusterReply, around: Around, error: &Error) -> Picture {
    let Around { tablets, metadata_error, answering } = around;
    let assigned = |id: u64| {
        let members = tablets.as_ref()?.iter().flat_map(|tablet| tablet.membership.replicas());
        Some(members.filter(|member| member.server == ServerId::new(id)).count() as u64)
    };
    let registered = known.servers.iter().map(|server| Server {
        is_registered: true,
        is_reachable: answering.contains(&server.server),
        assigned: assigned(server.server),
        ..Server::of_record(server)
    });
    let mut servers: Vec<Server> = registered.collect();
    let members = tablets.iter().flatten().flat_map(|tablet| tablet.membership.replicas());
    let holders: BTreeSet<u64> = members.map(|member| member.server.get()).collect();
    for id in holders {
        if servers.iter().all(|server| server.id != id) {
            servers.push(Server { id, assigned: assigned(id), ..Server::default() });
        }
    }
    servers.sort_by_key(|server| server.id);
    Picture {
        cluster: Some(hex(&known.cluster)),
        master: known.master.as_ref().or(known.last_master.as_ref()).map(|master| master.address.clone()),
        master_lost: known.last_master.as_ref().map(|_last| Duration::from_millis(known.master_lost_millis)),
        master_error: Some(error.message.clone()),
        metadata_error,
        tables: Some(known.tables.len() as u64),
        tablets: tablets.as_ref().map(|tablets| tablets.len() as u64),
        health: tablets.as_ref().map(|tablets| estimate(tablets, &answering)),
        servers,
        ..Picture::default()
    }
}

/// How well the tablets are when each replica lives whose server answers. Who leads is not known then.
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
    fn without_a_master_the_servers_and_metadata_tell_what_they_know() {
        let around = Around {
            tablets: Some(vec![tablet(7, &[1, 2, 3]), tablet(8, &[2, 3, 4])]),
            metadata_error: None,
            answering: BTreeSet::from([1, 2]),
        };
        let error = Error::new(Reason::Unavailable, "no master is in office");
        let last_master = Some(record::Master { address: "master:1".to_owned(), ..record::Master::default() });
        let known = ClusterReply { last_master, master_lost_millis: 34_000, ..known(&[1, 2, 3]) };
        let picture = assemble(&known, around, &error);
        assert_eq!(picture.master.as_deref(), Some("master:1"));
        assert_eq!(picture.master_lost, Some(Duration::from_secs(34)));
        let states: Vec<_> = picture.servers.iter().map(|one| (one.id, one.state(), one.assigned)).collect();
        let expected = [(1, "up", Some(1)), (2, "up", Some(2)), (3, "unreachable", Some(2)), (4, "gone", Some(1))];
        assert_eq!(states, expected);
        assert_eq!((picture.tablets, picture.tablets_led), (Some(2), None));
        assert!(picture.servers.iter().all(|one| one.replicas.is_none() && one.size_bytes.is_none()));
        let health = picture.health.unwrap();
        assert_eq!((health.replicas_live, health.replicas_wanted), (3, 6));
        assert_eq!((health.without_quorum, health.without_quorum_first), (1, vec![8]));
    }

    #[test]
    fn what_cannot_be_known_is_not_zero() {
        let around = Around { metadata_error: Some("METADATA cannot be read".to_owned()), ..Around::default() };
        let error = Error::new(Reason::Unavailable, "no master is in office");
        let picture = assemble(&known(&[1]), around, &error);
        assert_eq!((picture.tablets, picture.health, picture.servers[0].assigned), (None, None, None));
        let reply = operate::StatusReply {
            trouble: "METADATA cannot be read: late".to_owned(),
            servers: vec![operate::ServerStatus {
                server: Some(record::Server { server: 2, ..record::Server::default() }),
                ..operate::ServerStatus::default()
            }],
            ..operate::StatusReply::default()
        };
        let picture = Picture::from(reply);
        assert_eq!((picture.tables, picture.tablets, picture.tablets_led), (Some(0), None, None));
        let gone = &picture.servers[0];
        assert_eq!((gone.state(), gone.replicas, gone.assigned, &gone.address), ("gone", None, None, &None));
    }
}

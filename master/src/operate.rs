//! `ebla.operate`: what an operator asks of the master.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::metadata::Note;
use ebla_model::error::Error;
use ebla_model::id::ServerId;
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::validate_row_key;
use ebla_model::schema::{TableName, TableState};
use ebla_proto::operate::operate_server::Operate;
use ebla_proto::{convert, operate, record};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::admin::desk::{Desk, answer};
use crate::cluster::{Cluster, Role};
use crate::health::{Health, Shortage};
use crate::observe::Glance;
use crate::office::{Office, Remembered};
use crate::recover::Awaited;
use crate::route::TableMap;
use crate::{observe, schema};

/// How long a split may take.
const SPLIT_LIMIT: Duration = Duration::from_secs(60);

/// Tablets named in a status at most.
const FIRST: usize = 5;

/// The service, in office or not.
#[derive(Debug)]
pub(crate) struct Operator {
    desk: Desk,
    /// The tablet servers that a new cluster waits for.
    awaited: watch::Receiver<Option<Awaited>>,
    /// This master as its lock says.
    master: record::Master,
}

impl Operator {
    pub(crate) const fn new(desk: Desk, awaited: watch::Receiver<Option<Awaited>>, master: record::Master) -> Self {
        Self { desk, awaited, master }
    }

    async fn status(&self) -> Result<operate::StatusReply, Error> {
        let awaited = self.awaited.borrow().clone();
        if let Some(awaited) = awaited {
            return Ok(self.waits(awaited));
        }
        let office = self.desk.office()?;
        let Glance { picture, stale } = observe::glance(&office).await;
        let leaders = picture.leaders();
        let led = picture.metadata.values().filter(|tablet| leaders.contains_key(&tablet.tablet)).count();
        let active = picture.tables.values().filter(|schema| schema.state == TableState::Active).count();
        let reply = operate::StatusReply {
            cluster: Bytes::copy_from_slice(&office.cluster().to_bytes()),
            master: Some(self.master.clone()),
            master_epoch: office.epoch().get(),
            servers: servers(&picture, &observe::addresses(&office, &picture).await),
            tables: active as u64,
            health: Some(health(&Health::of(&picture, office.replicas()), office.repairs().under_way().len())),
            ..Default::default()
        };
        let now = office.runtime().clock.monotonic();
        Ok(match stale {
            None => operate::StatusReply { tablets: picture.metadata.len() as u64, tablets_led: led as u64, ..reply },
            Some((error, last)) => operate::StatusReply {
                trouble: format!("METADATA cannot be read: {error}"),
                remembered: last.map(|last| remembered(&last, now)),
                ..reply
            },
        })
    }

    /// What a new cluster can tell that waits for tablet servers.
    fn waits(&self, awaited: Awaited) -> operate::StatusReply {
        let Awaited { registered, wanted } = awaited;
        let counts = operate::Awaited { registered: registered.len() as u64, wanted: wanted as u64 };
        let server = |server| operate::ServerStatus {
            server: Some(server),
            reachable: true,
            registered: true,
            ..Default::default()
        };
        operate::StatusReply {
            master: Some(self.master.clone()),
            servers: registered.into_values().map(server).collect(),
            awaited: Some(counts),
            ..Default::default()
        }
    }
}

fn remembered(last: &Remembered, now: Duration) -> operate::Remembered {
    let age_millis = u64::try_from(now.saturating_sub(last.at).as_millis()).unwrap_or(u64::MAX);
    operate::Remembered { age_millis, tablets: last.metadata.len() as u64 }
}

fn health(health: &Health, repairs: usize) -> operate::Health {
    let shortage = |(short, tablets): (&Shortage, &usize)| operate::Shortage {
        live: short.live as u64,
        wanted: short.wanted as u64,
        tablets: *tablets as u64,
    };
    operate::Health {
        shortages: health.shortages.iter().map(shortage).collect(),
        without_quorum: health.without_quorum.len() as u64,
        without_quorum_first: health.without_quorum.iter().take(FIRST).map(|tablet| tablet.get()).collect(),
        without_leader: health.without_leader.len() as u64,
        replicas_live: health.replicas_live as u64,
        replicas_wanted: health.replicas_wanted as u64,
        tablets: health.tablets as u64,
        repairs: repairs as u64,
    }
}

fn servers(picture: &Cluster, addresses: &BTreeMap<ServerId, String>) -> Vec<operate::ServerStatus> {
    let assigned = picture.assigned();
    let missing = picture.holders().into_iter().filter(|id| !picture.servers.contains_key(id));
    let missing = missing.map(|id| operate::ServerStatus {
        server: Some(record::Server {
            version: convert::VERSION,
            server: id.get(),
            address: addresses.get(&id).cloned().unwrap_or_default(),
            ..Default::default()
        }),
        assigned: assigned.get(&id).copied().unwrap_or_default(),
        ..Default::default()
    });
    let mut shown: Vec<_> = registered(picture, &assigned).chain(missing).collect();
    shown.sort_by_key(|one| one.server.as_ref().map(|server| server.server));
    shown
}

fn registered(picture: &Cluster, assigned: &BTreeMap<ServerId, u64>) -> impl Iterator<Item = operate::ServerStatus> {
    picture.servers.iter().map(|(id, server)| {
        let replicas = server.report.iter().flat_map(|report| &report.replicas);
        operate::ServerStatus {
            server: Some(record::Server {
                version: convert::VERSION,
                server: id.get(),
                address: server.address.clone(),
                incarnation: server.incarnation.get(),
                release: server.release.clone(),
            }),
            reachable: server.report.is_some(),
            replicas: replicas.clone().count() as u64,
            leads: replicas.clone().filter(|replica| replica.role == Role::Leader).count() as u64,
            size_bytes: replicas.map(|replica| replica.size_bytes).sum(),
            log_bytes: server.report.as_ref().map_or(0, |report| report.log_bytes),
            registered: true,
            assigned: assigned.get(id).copied().unwrap_or_default(),
        }
    })
}

/// Splits the tablet of `at`, there; or the tablet of `within`, where its leader finds that it is halved.
async fn split(
    office: &Office,
    name: &TableName,
    at: Option<RowKey>,
    within: RowKey,
) -> Result<(TabletDescriptor, TabletDescriptor), Error> {
    let deadline = office.deadline(SPLIT_LIMIT);
    let table = schema::find_active(office.chubby(), name).await?.value.table;
    let mut map = TableMap::read(office, table, deadline).await?;
    let key = at.clone().unwrap_or(within);
    let order = |office: Office, server, tablet: TabletDescriptor| {
        let at = at.clone();
        Box::pin(async move { office.orders().split(server, &tablet, at.as_ref()).await }) as BoxFuture<'static, _>
    };
    let (left, right) = map.order(&key, deadline, order).await?;
    // The leader lists both halves itself; doing it here too lets the caller see them when this returns.
    if let Err(error) = office.metadata().put_split(&left, &right, &Note::default(), deadline).await {
        warn!(%error, "halves not listed yet");
    }
    Ok((left, right))
}

/// A tablet is split at the key of a row that may be written.
fn check_split(at: Option<&RowKey>) -> Result<(), Error> {
    let refused = |error: Error| {
        Error::invalid(format!(
            "no tablet can be split at this key: {error}; give the key of the first row of the right half, or give none and let \
             the server choose it"
        ))
    };
    at.map_or(Ok(()), |at| validate_row_key(at).map_err(refused))
}

#[tonic::async_trait]
impl Operate for Operator {
    async fn split(&self, request: Request<operate::SplitRequest>) -> Result<Response<operate::SplitReply>, Status> {
        let outcome = async {
            let office = self.desk.office()?;
            let request = request.into_inner();
            let name: TableName = request.table.parse()?;
            let at = request.at.map(RowKey::new);
            check_split(at.as_ref())?;
            let (left, right) = split(&office, &name, at, RowKey::new(request.within)).await?;
            Ok(operate::SplitReply {
                left: Some(convert::descriptor_to_proto(&left)),
                right: Some(convert::descriptor_to_proto(&right)),
            })
        };
        answer(outcome.await)
    }

    async fn status(
        &self,
        _request: Request<operate::StatusRequest>,
    ) -> Result<Response<operate::StatusReply>, Status> {
        answer(self.status().await)
    }
}

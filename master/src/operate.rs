//! `ebla.operate`: what an operator asks of the master.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::metadata::Note;
use ebla_model::error::Error;
use ebla_model::id::ServerId;
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{TableName, TableState};
use ebla_proto::operate::operate_server::Operate;
use ebla_proto::{convert, operate, record};
use futures::future::BoxFuture;
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::admin::desk::{Desk, answer};
use crate::cluster::{Cluster, Role};
use crate::office::Office;
use crate::route::TableMap;
use crate::{observe, schema};

/// How long a split may take.
const SPLIT_LIMIT: Duration = Duration::from_secs(60);

/// The service, in office or not.
#[derive(Debug)]
pub(crate) struct Operator {
    desk: Desk,
    /// This master as its lock says.
    master: record::Master,
}

impl Operator {
    pub(crate) const fn new(desk: Desk, master: record::Master) -> Self {
        Self { desk, master }
    }

    async fn status(&self) -> Result<operate::StatusReply, Error> {
        let office = self.desk.office()?;
        let (picture, trouble) = match observe::observe(&office).await {
            Ok(picture) => (picture, String::new()),
            // Who looks now wants to know which servers are left.
            Err(error) => {
                let servers = observe::observe_servers(&office).await?;
                (Cluster { servers, ..Cluster::default() }, format!("METADATA cannot be read: {error}"))
            }
        };
        let leaders = picture.leaders();
        let led = picture.metadata.values().filter(|tablet| leaders.contains_key(&tablet.tablet)).count();
        let active = picture.tables.values().filter(|schema| schema.state == TableState::Active).count();
        Ok(operate::StatusReply {
            cluster: Bytes::copy_from_slice(&office.cluster().to_bytes()),
            master: Some(self.master.clone()),
            master_epoch: office.epoch().get(),
            servers: servers(&picture),
            tablets: picture.metadata.len() as u64,
            tablets_led: led as u64,
            tables: active as u64,
            trouble,
        })
    }
}

fn servers(picture: &Cluster) -> Vec<operate::ServerStatus> {
    let assigned = picture.assigned();
    let missing = assigned.keys().filter(|id| !picture.servers.contains_key(id)).map(|id| operate::ServerStatus {
        server: Some(record::Server { version: convert::VERSION, server: id.get(), ..Default::default() }),
        assigned: assigned.get(id).copied().unwrap_or_default(),
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

#[tonic::async_trait]
impl Operate for Operator {
    async fn split(&self, request: Request<operate::SplitRequest>) -> Result<Response<operate::SplitReply>, Status> {
        let outcome = async {
            let office = self.desk.office()?;
            let request = request.into_inner();
            let name: TableName = request.table.parse()?;
            let at = request.at.map(RowKey::new);
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

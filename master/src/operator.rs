//! The operator API `ebla.operate`: status, groups, drains of servers, manual splits, merges, moves and divisions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId, TableId, TabletId};
use ebla_model::locality::{GroupSizes, LocalityGroupChange, StoredBytes};
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_model::tablet_event::TabletEventCause;
use ebla_model::zone::Zone;
use ebla_proto::operate::operate_server::Operate;
use ebla_proto::{convert, operate, record};
use ebla_runtime::Net;
use futures::FutureExt as _;
use futures::future::join_all;
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tracing::{debug, warn};

use crate::active::{ActiveMaster, CachedMetadata};
use crate::admin::handle::{MasterHandle, to_response};
use crate::bootstrap::PendingBootstrap;
use crate::cluster::{ClusterSnapshot, ReplicaReport, Role, TabletReport};
use crate::health::{Health, Shortage};
use crate::lag::{ServerLag, lagging_servers};
use crate::observation::StatusSnapshot;
use crate::plan::capacity::RepairWithoutRoom;
use crate::plan::drain::replicas_on;
use crate::problems::MetadataState;
use crate::server_client::DividedGroup;
use crate::{
    check, division, drain, event_log, group_status, heat, jobs, loads, merging, observation, problems, quorum_loss,
    recovery, registration, relocation, schema_store, splitting, upgrade, usage,
};

/// The timeout of a merge, which may move a tablet first.
const MERGE_TIMEOUT: Duration = Duration::from_secs(110);
/// The timeout of a move: the copy of a large tablet may take longer, and then continues.
const MOVE_TIMEOUT: Duration = Duration::from_secs(110);
/// The timeout of a change of locality groups or quotas.
const SCHEMA_TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of tablets, and of tables, that a status names.
const LISTED_TABLETS_MAX: usize = 5;

/// The service, on an active master or a standby.
#[derive(Debug)]
pub(crate) struct Operator {
    handle: MasterHandle,
    /// The tablet servers that a new cluster waits for.
    pending: watch::Receiver<Option<PendingBootstrap>>,
    /// This master, as the master lock names it.
    master: record::Master,
    net: Net,
}

impl Operator {
    pub(crate) const fn new(
        handle: MasterHandle,
        pending: watch::Receiver<Option<PendingBootstrap>>,
        master: record::Master,
        net: Net,
    ) -> Self {
        Self { handle, pending, master, net }
    }

    /// Recovers Chubby, as the active master or while this master waits for the servers of a new cluster.
    async fn recover(&self, request: operate::RecoverRequest) -> Result<operate::RecoverReply, Error> {
        let pending = self.pending.borrow().clone();
        match pending {
            Some(pending) => recovery::recover(&pending.lock, None, &self.net, request).await,
            None => {
                let master = self.handle.active()?;
                recovery::recover(master.lock(), Some(&master), &self.net, request).await
            }
        }
    }

    async fn change_locality_groups(
        &self,
        request: operate::ChangeLocalityGroupsRequest,
    ) -> Result<operate::ChangeLocalityGroupsReply, Error> {
        let name: TableName = request.table.parse()?;
        let sizes = convert::group_sizes_from_proto(request.sizes);
        let changes = request.changes.into_iter().map(convert::locality_group_change_from_proto);
        let changes = changes.collect::<Result<Vec<_>, _>>()?;
        let schema = if changes.is_empty() {
            jobs::update_schema::find_active(self.handle.active()?.chubby(), &name).await?.value
        } else {
            let master = self.handle.active_for_change().await?;
            check_memory(&master, &name, &changes).await?;
            let change = |schema: &TableSchema| schema.apply_to_groups(&changes);
            jobs::update_schema::change_schema(&master, &name, change, master.deadline(SCHEMA_TIMEOUT)).await?
        };
        let bytes = match sizes {
            GroupSizes::None => None,
            GroupSizes::Files | GroupSizes::Flushed => table_sizes(&self.handle.active()?, schema.table, sizes).await?,
        };
        Ok(operate::ChangeLocalityGroupsReply { groups: convert::locality_groups_to_proto(&schema, bytes.as_ref()) })
    }

    async fn table_usage(&self, request: operate::TableUsageRequest) -> Result<operate::TableUsageReply, Error> {
        let (name, master): (TableName, _) = (request.table.parse()?, self.handle.active()?);
        let schema = jobs::update_schema::find_active(master.chubby(), &name).await?.value;
        let snapshot = observation::observe_reports(&master).await?;
        Ok(usage::measure(&master, &snapshot, schema.table).await.to_reply(&schema))
    }

    async fn set_quota(&self, request: operate::SetQuotaRequest) -> Result<operate::SetQuotaReply, Error> {
        let name: TableName = request.table.parse()?;
        let limits = request.limits.as_ref().map(convert::limits_from_proto).unwrap_or_default();
        let family = Some(request.family.as_str()).filter(|family| !family.is_empty());
        let master = self.handle.active_for_change().await?;
        let change = |schema: &TableSchema| schema.with_quota(family, limits);
        jobs::update_schema::change_schema(&master, &name, change, master.deadline(SCHEMA_TIMEOUT)).await?;
        Ok(operate::SetQuotaReply {})
    }

    async fn status(&self) -> Result<operate::StatusReply, Error> {
        let pending = self.pending.borrow().clone();
        if let Some(pending) = pending {
            return Ok(self.waiting_status(pending));
        }
        let master = self.handle.active()?;
        let StatusSnapshot { snapshot, stale } = observation::observe_for_status(&master).await;
        let leaders = snapshot.leaders();
        let listed = snapshot.listed_tablets();
        let led = listed.iter().filter(|tablet| leaders.contains_key(&tablet.tablet)).count();
        let is_shown = |schema: &&TableSchema| schema.state == TableState::Active && !schema.name.is_system();
        let active = snapshot.tables.values().filter(is_shown).count();
        let of_tablets = Health::of(&snapshot, master.replicas());
        let metadata = if stale.is_some() { MetadataState::Unreadable } else { MetadataState::Readable };
        let problems = master.known_problems(&problems::problems(&snapshot, &of_tablets, metadata));
        let reply = operate::StatusReply {
            cluster: Bytes::copy_from_slice(&master.cluster().to_bytes()),
            master: Some(self.master.clone()),
            master_epoch: master.epoch().get(),
            servers: servers(&snapshot, &observation::addresses(&master, &snapshot).await),
            tables: active as u64,
            health: Some(operate::Health {
                behind: snapshot.behind.clone().unwrap_or_default(),
                ..health(&master, &of_tablets)
            }),
            time_micros: master.runtime().clock.wall().get(),
            problems: problems.to_proto(),
            ..Default::default()
        };
        let now = master.runtime().clock.monotonic();
        Ok(match stale {
            None => operate::StatusReply { tablets: listed.len() as u64, tablets_led: led as u64, ..reply },
            Some((error, cached)) => operate::StatusReply {
                trouble: format!("METADATA cannot be read: {error}"),
                remembered: cached.map(|cached| remembered(&cached, now)),
                ..reply
            },
        })
    }

    /// The status of a new cluster that waits for tablet servers.
    fn waiting_status(&self, pending: PendingBootstrap) -> operate::StatusReply {
        let PendingBootstrap { registered, required, .. } = pending;
        let counts = operate::Awaited { registered: registered.len() as u64, wanted: required as u64 };
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

fn remembered(cached: &CachedMetadata, now: Duration) -> operate::Remembered {
    let age_millis = u64::try_from(now.saturating_sub(cached.at).as_millis()).unwrap_or(u64::MAX);
    operate::Remembered { age_millis, tablets: cached.metadata.len() as u64 }
}

fn health(master: &ActiveMaster, health: &Health) -> operate::Health {
    let repairs = master.replica_changes().in_progress().len();
    let (without_room, unknown) = (master.repairs_without_room(), master.unknown_tables());
    let shortage = |(short, tablets): (&Shortage, &usize)| operate::Shortage {
        live: short.live as u64,
        wanted: short.wanted as u64,
        tablets: *tablets as u64,
    };
    let first = |tablets: &BTreeSet<TabletId>| tablets.iter().take(LISTED_TABLETS_MAX).map(|one| one.get()).collect();
    operate::Health {
        shortages: health.shortages.iter().map(shortage).collect(),
        without_quorum: health.without_quorum.len() as u64,
        without_quorum_first: first(&health.without_quorum),
        without_leader: health.without_leader.len() as u64,
        without_leader_first: first(&health.without_leader),
        replicas_live: health.replicas_live as u64,
        replicas_wanted: health.replicas_wanted as u64,
        tablets: health.tablets as u64,
        repairs: repairs as u64,
        repairs_without_room: without_room.len() as u64,
        no_room: without_room.first().map(RepairWithoutRoom::message).unwrap_or_default(),
        unknown_tables: unknown.len() as u64,
        unknown_tables_first: unknown.iter().take(LISTED_TABLETS_MAX).map(|table| table.get()).collect(),
        ..Default::default()
    }
}

/// Checks that what the changes put in memory fits on each server with replicas of the table. A server that does not answer bounds
/// nothing; of what it gets beyond its budget later it serves the largest part from files.
async fn check_memory(master: &ActiveMaster, name: &TableName, changes: &[LocalityGroupChange]) -> Result<(), Error> {
    let schema = jobs::update_schema::find_active(master.chubby(), name).await?.value;
    let groups = schema.groups_put_in_memory(&schema.apply_to_groups(changes)?);
    if groups.is_empty() {
        return Ok(());
    }
    for server in schema_store::list_servers(master.chubby()).await?.into_keys() {
        let measured = master.servers().measure_memory(server, schema.table).await;
        let Ok(reply) = measured.inspect_err(|failed| warn!(%server, error = %failed.error, "memory not measured"))
        else {
            continue;
        };
        let wanted = reply.groups.iter().filter(|group| groups.contains(&group.number)).map(|group| group.bytes);
        let room = reply.memory_groups.as_ref().map(convert::memory_groups_from_proto).unwrap_or_default();
        room.check_room(wanted.fold(0, u64::saturating_add), server)?;
    }
    Ok(())
}

fn servers(snapshot: &ClusterSnapshot, addresses: &BTreeMap<ServerId, String>) -> Vec<operate::ServerStatus> {
    let assigned = snapshot.assigned();
    let should_exist = &snapshot.assigned_servers() | &snapshot.drained;
    let missing = should_exist.into_iter().filter(|id| !snapshot.servers.contains_key(id));
    let missing = missing.map(|id| operate::ServerStatus {
        server: Some(record::Server {
            version: convert::VERSION,
            server: id.get(),
            address: addresses.get(&id).cloned().unwrap_or_default(),
            ..Default::default()
        }),
        assigned: assigned.get(&id).copied().unwrap_or_default(),
        drain: drain_state(snapshot, id).into(),
        ..Default::default()
    });
    let mut shown: Vec<_> = registered(snapshot, &assigned).chain(missing).collect();
    shown.sort_by_key(|one| one.server.as_ref().map(|server| server.server));
    shown
}

/// How far the drain of a server is.
fn drain_state(snapshot: &ClusterSnapshot, server: ServerId) -> operate::DrainState {
    match snapshot.drained.contains(&server) {
        false => operate::DrainState::None,
        true if replicas_on(snapshot, server).is_empty() => operate::DrainState::Drained,
        true => operate::DrainState::Draining,
    }
}

fn registered(
    snapshot: &ClusterSnapshot,
    assigned: &BTreeMap<ServerId, u64>,
) -> impl Iterator<Item = operate::ServerStatus> {
    let lagging = lagging_servers(snapshot);
    snapshot.servers.iter().map(move |(id, server)| {
        let replicas = server.report.iter().flat_map(|report| &report.replicas);
        let tablets = |role: Option<Role>| {
            let counted = replicas.clone().filter(|replica| role.is_none_or(|role| replica.role == role));
            counted.map(|replica| replica.tablets.len() as u64).sum()
        };
        let led = replicas.clone().filter(|replica| replica.role == Role::Leader).flat_map(|replica| &replica.tablets);
        operate::ServerStatus {
            server: Some(record::Server {
                version: convert::VERSION,
                server: id.get(),
                address: server.address.clone(),
                incarnation: server.incarnation.get(),
                release: server.release.clone(),
                zone: server.zone.as_ref().map(Zone::to_string).unwrap_or_default(),
                ..Default::default()
            }),
            reachable: server.report.is_some(),
            replicas: tablets(None),
            leads: tablets(Some(Role::Leader)),
            size_bytes: replicas.clone().map(ReplicaReport::size_bytes).sum(),
            log_bytes: server.report.as_ref().map_or(0, |report| report.log_bytes),
            registered: true,
            assigned: assigned.get(id).copied().unwrap_or_default(),
            resources: server
                .report
                .as_ref()
                .map(|report| convert::resources_to_proto(&report.resources, report.writes)),
            scrub: server.report.as_ref().map(|report| convert::scrub_state_to_proto(&report.scrub)),
            clock: server.report.as_ref().map(|report| convert::clock_state_to_proto(&report.clock)),
            sync: server.report.as_ref().map(|report| convert::sync_state_to_proto(&report.sync)),
            scan_cache: server.report.as_ref().map(|report| convert::scan_cache_state_to_proto(&report.scan_cache)),
            memory_groups: server.report.as_ref().map(|report| convert::memory_groups_to_proto(&report.memory_groups)),
            drain: drain_state(snapshot, *id).into(),
            reads_per_second: led.clone().map(|tablet| tablet.load.reads_per_second).sum(),
            writes_per_second: led.map(|tablet| tablet.load.writes_per_second).sum(),
            lag: server.report.as_ref().map(|_report| lag_status(lagging.get(id).cloned().unwrap_or_default())),
            calls: server.report.as_ref().and_then(|report| report.calls.as_ref()).map(convert::call_times_to_proto),
        }
    })
}

fn lag_status(lag: ServerLag) -> operate::ReplicaLag {
    operate::ReplicaLag {
        replicas: lag.groups.len() as u64,
        entries_max: lag.entries_max,
        millis_max: u64::try_from(lag.time_max.as_millis()).unwrap_or(u64::MAX),
        groups_first: lag.groups.iter().take(LISTED_TABLETS_MAX).map(|group| group.get()).collect(),
    }
}

/// Approximate bytes of a table in files, by the number of the locality group, at the leaders of its tablets. `None` while they are unknown:
/// a tablet has no leader that reports them.
async fn table_sizes(
    master: &ActiveMaster,
    table: TableId,
    sizes: GroupSizes,
) -> Result<Option<BTreeMap<u32, StoredBytes>>, Error> {
    let snapshot = observation::observe_reports(master).await?;
    let tablets = snapshot.tablets().values().filter(|tablet| tablet.table == table).count() as u64;
    let servers = snapshot.servers.iter().filter(|(_id, server)| server.report.is_some()).map(|(id, _server)| *id);
    let requests = servers.map(|server| master.servers().table_sizes(server, table, sizes).boxed());
    let replies = join_all(requests).await.into_iter();
    let replies: Vec<_> = replies
        .filter_map(|reply| reply.inspect_err(|failed| debug!(error = %failed.error, "sizes of a table not read")).ok())
        .collect();
    let mut groups: BTreeMap<u32, StoredBytes> = BTreeMap::new();
    for group in replies.iter().flat_map(|reply| &reply.groups) {
        let bytes = group.bytes.as_ref().map(convert::stored_bytes_from_proto).unwrap_or_default();
        groups.entry(group.group).or_default().add(bytes);
    }
    let counted: u64 = replies.iter().map(|reply| reply.tablets).sum();
    Ok((counted == tablets).then_some(groups))
}

/// The sizes and loads of the tablets of a table, at their leaders.
async fn tablet_loads(master: &ActiveMaster, name: &TableName) -> Result<Vec<operate::TabletLoadStatus>, Error> {
    let table = jobs::update_schema::find_active(master.chubby(), name).await?.value.table;
    let snapshot = observation::observe_reports(master).await?;
    let leaders = snapshot.leader_reports();
    let reports = leaders.values().flat_map(|(_server, report)| &report.tablets);
    let of_table = reports.filter(|tablet| tablet.descriptor.table == table);
    let status = |report: &TabletReport| operate::TabletLoadStatus {
        tablet: report.descriptor.tablet.get(),
        size_bytes: report.size_bytes,
        load: Some(convert::tablet_load_to_proto(&report.load)),
    };
    Ok(of_table.map(status).collect())
}

#[tonic::async_trait]
impl Operate for Operator {
    async fn split(&self, request: Request<operate::SplitRequest>) -> Result<Response<operate::SplitReply>, Status> {
        let outcome = async {
            let master = self.handle.active_for_change().await?;
            let (left, right) = splitting::split(&master, request.into_inner()).await?;
            Ok(operate::SplitReply {
                left: Some(convert::descriptor_to_proto(&left)),
                right: Some(convert::descriptor_to_proto(&right)),
            })
        };
        to_response(outcome.await)
    }

    async fn merge(&self, request: Request<operate::MergeRequest>) -> Result<Response<operate::MergeReply>, Status> {
        let outcome = async {
            let master = self.handle.active_for_change().await?;
            let (tablet, with) = merging::parts(request.get_ref());
            let (deadline, cause) = (master.deadline(MERGE_TIMEOUT), TabletEventCause::Operator);
            let (merged, removed) = merging::merge(&master, tablet, with, cause, deadline).await?;
            Ok(operate::MergeReply { merged: Some(convert::descriptor_to_proto(&merged)), removed: removed.get() })
        };
        to_response(outcome.await)
    }

    async fn move_tablet(
        &self,
        request: Request<operate::MoveTabletRequest>,
    ) -> Result<Response<operate::MoveTabletReply>, Status> {
        let outcome = async {
            let master = self.handle.active_for_change().await?;
            let operate::MoveTabletRequest { tablet, group } = request.into_inner();
            let deadline = master.deadline(MOVE_TIMEOUT);
            let (tablet, group) = (TabletId::new(tablet), GroupId::new(group));
            let cause = TabletEventCause::Operator;
            let (moved, source) = relocation::move_tablet(&master, tablet, group, cause, deadline).await?;
            Ok(operate::MoveTabletReply { tablet: Some(convert::descriptor_to_proto(&moved)), source: source.get() })
        };
        to_response(outcome.await)
    }

    async fn preview_merge(
        &self,
        request: Request<operate::MergeRequest>,
    ) -> Result<Response<operate::PreviewMergeReply>, Status> {
        let outcome = async { merging::preview(&self.handle.active()?, request.get_ref()).await };
        to_response(outcome.await)
    }

    async fn preview_move(
        &self,
        request: Request<operate::MoveTabletRequest>,
    ) -> Result<Response<operate::PreviewMoveReply>, Status> {
        let outcome = async { relocation::preview(&self.handle.active()?, request.get_ref()).await };
        to_response(outcome.await)
    }

    async fn status(
        &self,
        _request: Request<operate::StatusRequest>,
    ) -> Result<Response<operate::StatusReply>, Status> {
        to_response(self.status().await)
    }

    async fn recover(
        &self,
        request: Request<operate::RecoverRequest>,
    ) -> Result<Response<operate::RecoverReply>, Status> {
        to_response(self.recover(request.into_inner()).await)
    }

    async fn recover_tablets(
        &self,
        request: Request<operate::RecoverTabletsRequest>,
    ) -> Result<Response<operate::RecoverTabletsReply>, Status> {
        // Also while Chubby lacks changes: its own recovery needs majorities.
        let outcome = async { quorum_loss::recover(&self.handle.active()?, request.into_inner()).await };
        to_response(outcome.await)
    }

    async fn change_locality_groups(
        &self,
        request: Request<operate::ChangeLocalityGroupsRequest>,
    ) -> Result<Response<operate::ChangeLocalityGroupsReply>, Status> {
        to_response(self.change_locality_groups(request.into_inner()).await)
    }

    async fn table_usage(
        &self,
        request: Request<operate::TableUsageRequest>,
    ) -> Result<Response<operate::TableUsageReply>, Status> {
        to_response(self.table_usage(request.into_inner()).await)
    }

    async fn check(&self, request: Request<operate::CheckRequest>) -> Result<Response<operate::CheckReply>, Status> {
        let outcome = async { check::check(&self.handle.active()?, request.into_inner()).await };
        to_response(outcome.await)
    }

    async fn set_quota(
        &self,
        request: Request<operate::SetQuotaRequest>,
    ) -> Result<Response<operate::SetQuotaReply>, Status> {
        to_response(self.set_quota(request.into_inner()).await)
    }

    async fn drain_server(
        &self,
        request: Request<operate::DrainServerRequest>,
    ) -> Result<Response<operate::DrainServerReply>, Status> {
        let outcome = async { drain::drain(&self.handle.active_for_change().await?, request.into_inner()).await };
        to_response(outcome.await)
    }

    async fn undrain_server(
        &self,
        request: Request<operate::UndrainServerRequest>,
    ) -> Result<Response<operate::UndrainServerReply>, Status> {
        let outcome = async { drain::undrain(&self.handle.active_for_change().await?, request.into_inner()).await };
        to_response(outcome.await)
    }

    async fn remove_server(
        &self,
        request: Request<operate::RemoveServerRequest>,
    ) -> Result<Response<operate::RemoveServerReply>, Status> {
        let outcome = async { drain::remove(&self.handle.active_for_change().await?, request.into_inner()).await };
        to_response(outcome.await)
    }

    async fn events(&self, request: Request<operate::EventsRequest>) -> Result<Response<operate::EventsReply>, Status> {
        let outcome = async { event_log::events_after(&self.handle.active()?, request.into_inner().after).await };
        to_response(outcome.await)
    }

    async fn describe_cluster(
        &self,
        _request: Request<operate::DescribeClusterRequest>,
    ) -> Result<Response<operate::DescribeClusterReply>, Status> {
        let outcome = async { registration::read(&self.handle.active()?).await };
        to_response(outcome.await)
    }

    async fn upgrade_status(
        &self,
        _request: Request<operate::UpgradeStatusRequest>,
    ) -> Result<Response<operate::UpgradeStatusReply>, Status> {
        let outcome = async { upgrade::status(&self.handle.active()?, &self.master).await };
        to_response(outcome.await)
    }

    async fn hold_upgrade(
        &self,
        request: Request<operate::HoldUpgradeRequest>,
    ) -> Result<Response<operate::HoldUpgradeReply>, Status> {
        // Also while Chubby lacks changes: it makes nothing new.
        let outcome = async { upgrade::hold(&self.handle.active()?, request.into_inner()).await };
        to_response(outcome.await)
    }

    async fn groups(&self, request: Request<operate::GroupsRequest>) -> Result<Response<operate::GroupsReply>, Status> {
        let only = Some(request.into_inner().group).filter(|group| *group > 0).map(GroupId::new);
        let outcome = async {
            let master = self.handle.active()?;
            let snapshot = observation::observe_reports(&master).await?;
            Ok(operate::GroupsReply { groups: group_status::statuses(&snapshot, only) })
        };
        to_response(outcome.await)
    }

    async fn tablet_loads(
        &self,
        request: Request<operate::TabletLoadsRequest>,
    ) -> Result<Response<operate::TabletLoadsReply>, Status> {
        let outcome = async {
            let master = self.handle.active()?;
            let name: TableName = request.into_inner().table.parse()?;
            Ok(operate::TabletLoadsReply { tablets: tablet_loads(&master, &name).await? })
        };
        to_response(outcome.await)
    }

    async fn get_key_heat(
        &self,
        request: Request<operate::GetKeyHeatRequest>,
    ) -> Result<Response<operate::GetKeyHeatReply>, Status> {
        let outcome = async { Box::pin(heat::key_heat(&self.handle.active()?, request.into_inner())).await };
        to_response(outcome.await)
    }

    async fn loads(&self, request: Request<operate::LoadsRequest>) -> Result<Response<operate::LoadsReply>, Status> {
        let outcome = async { loads::loads(&self.handle.active()?, request.into_inner()).await };
        to_response(outcome.await)
    }

    async fn divide_group(
        &self,
        request: Request<operate::DivideGroupRequest>,
    ) -> Result<Response<operate::DivideGroupReply>, Status> {
        let outcome = async {
            let master = self.handle.active_for_change().await?;
            let DividedGroup { left, right, tablets_moved } =
                division::divide(&master, GroupId::new(request.into_inner().group)).await?;
            Ok(operate::DivideGroupReply {
                left: Some(convert::group_to_proto(&left)),
                right: Some(convert::group_to_proto(&right)),
                tablets: tablets_moved,
            })
        };
        to_response(outcome.await)
    }
}

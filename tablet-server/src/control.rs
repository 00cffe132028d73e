//! `ebla.control`: requests of the active master, and requests of groups' leaders: flushes, and tablets that move here.
//!
//! A request is accepted when it names this cluster and an epoch not below the highest one seen, which is persisted before
//! the request is executed; so a request of a former master has no effect, however late it arrives. A request about one
//! tablet or group also carries the master's view of it (generation, membership log id) and is refused when that is stale.
//! All requests may be repeated.

use std::collections::BTreeMap;
use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::capacity::Resources;
use ebla_model::command::NewTablet;
use ebla_model::error::Error;
use ebla_model::id::{
    ClusterId, Generation, GroupId, Incarnation, LogId, MasterEpoch, OperationId, ReplicaId, ServerId, TableId,
    TabletId,
};
use ebla_model::key::RowKey;
use ebla_model::metadata::{GroupDescriptor, Replica, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_model::tablet_event::TabletEventCause;
use ebla_model::time::Micros;
use ebla_proto::cluster_guard::check_cluster_id;
use ebla_proto::control::control_server::Control;
use ebla_proto::control::{self as wire, apply_request, import_reply};
use ebla_proto::{convert, status};
use ebla_routing::ChubbyDirectory;
use ebla_runtime::ConnectionLimit;
use ebla_storage::registry::Identity;
use tonic::{Request, Response, Status};

use crate::config::ServerOptions;
use crate::deadline::timeout;
use crate::evidence;
use crate::front::FrontMetrics;
use crate::raft::TransferError;
use crate::replica_reports::{not_running_report, replica_report};
use crate::rpc::call_status;
use crate::tablet::failure::Failure;
use crate::tablet::handler::wire_error;
use crate::tablet::lifecycle::digest::Digest;
use crate::tablet::lifecycle::manager::{CreateOutcome, InitialState, QuorumLoss, TabletManager};
use crate::tablet::lifecycle::replica_change::ReplicaChange;
use crate::tablet::{TableSizes, Tablet, TabletGroup};

/// Serves `ebla.control.Control`.
#[derive(Clone, Debug)]
pub struct ControlService {
    manager: Arc<TabletManager>,
    directory: ChubbyDirectory,
    incarnation: Incarnation,
    /// The size above which the server splits a tablet.
    split_bytes: u64,
    /// The same for a tablet of METADATA.
    metadata_split_bytes: u64,
    /// Counts the connections of the process.
    connections: ConnectionLimit,
    /// Counts the calls of clients.
    front: FrontMetrics,
}

impl ControlService {
    /// Executes requests on these replicas. `directory`: Chubby's files as this server has last seen them; `options`: of the server;
    /// `connections`: what counts the connections of its process; `front`: what counts the calls of clients.
    #[must_use]
    pub(crate) fn new(
        manager: &Arc<TabletManager>,
        directory: &ChubbyDirectory,
        incarnation: Incarnation,
        options: &ServerOptions,
        connections: &ConnectionLimit,
        front: &FrontMetrics,
    ) -> Self {
        Self {
            manager: Arc::clone(manager),
            directory: directory.clone(),
            incarnation,
            split_bytes: options.split_bytes.bytes(),
            metadata_split_bytes: options.metadata_split_bytes.bytes(),
            connections: connections.clone(),
            front: front.clone(),
        }
    }

    /// Checks the fence of a request: accepts or refuses its sender.
    async fn check_fence(&self, fence: Option<wire::Fence>) -> Result<(), Error> {
        let fence = fence.ok_or_else(|| Error::invalid("the request has no fence"))?;
        let cluster =
            ClusterId::from_bytes(&fence.cluster).ok_or_else(|| Error::invalid("cluster id is not 16 bytes long"))?;
        let epoch = MasterEpoch::new(fence.master_epoch);
        let registry = self.manager.registry();
        let identity = Identity { cluster, server: self.manager.server() };
        if registry.identity() == Some(identity) && registry.epoch() == epoch {
            return Ok(());
        }
        let registry = Arc::clone(registry);
        let accept = move || -> Result<(), Error> {
            registry.set_identity(identity)?;
            Ok(registry.accept_epoch(epoch)?)
        };
        let outcome = self.manager.maintenance().run(accept).await;
        outcome.map_err(|error| Error::new(Reason::Unavailable, error.to_string()))?
    }

    /// As [`Self::check_fence`], for a request that starts new work: a draining server refuses it.
    async fn check_fence_for_new_work(&self, fence: Option<wire::Fence>) -> Result<(), Error> {
        if self.manager.is_draining() {
            return Err(Error::new(Reason::Unavailable, "the server is draining"));
        }
        self.check_fence(fence).await
    }

    fn group(&self, group: u64) -> Result<Arc<TabletGroup>, Failure> {
        let missing = || Failure::new(Reason::WrongTablet, "this server has no replica of the group");
        self.manager.group(GroupId::new(group)).ok_or_else(missing)
    }

    /// The group of a request, and the master's view of it.
    fn group_and_fence(&self, expected: Option<wire::ExpectedGroup>) -> Result<(Arc<TabletGroup>, LogId), Failure> {
        let expected = expected.ok_or_else(|| Error::invalid("the request names no group"))?;
        let log_id = expected.membership_log_id.as_ref().map(convert::log_id_from_proto).unwrap_or_default();
        Ok((self.group(expected.group)?, log_id))
    }

    /// The group of a request, if the master's view of it is current.
    fn current_group(&self, expected: Option<wire::ExpectedGroup>) -> Result<Arc<TabletGroup>, Failure> {
        let (group, fence) = self.group_and_fence(expected)?;
        if group.descriptor().membership_log_id == fence {
            Ok(group)
        } else {
            Err(Failure::new(Reason::WrongTablet, "the replicas of the group have changed"))
        }
    }

    fn tablet(&self, tablet: u64) -> Result<Tablet, Failure> {
        let missing = || Failure::new(Reason::WrongTablet, "this server has no replica of the tablet");
        self.manager.tablet(TabletId::new(tablet)).ok_or_else(missing)
    }

    /// The tablet of a request, if the master's view of it is current.
    fn current_tablet(&self, expected: Option<wire::Expected>) -> Result<Tablet, Failure> {
        let expected = expected.ok_or_else(|| Error::invalid("the request names no tablet"))?;
        let log_id = expected.membership_log_id.as_ref().map(convert::log_id_from_proto).unwrap_or_default();
        let tablet = self.tablet(expected.tablet)?;
        let descriptor = tablet.descriptor()?;
        let is_current = descriptor.fence() == (Generation::new(expected.generation), log_id);
        if is_current { Ok(tablet) } else { Err(Failure::wrong_tablet(descriptor)) }
    }
}

fn failure_status(failure: Failure) -> Status {
    call_status(&wire_error(failure))
}

fn error_status(error: &Error) -> Status {
    status::to_status(error)
}

fn group_of(group: Option<ebla_proto::record::GroupDescriptor>) -> Result<GroupDescriptor, Error> {
    convert::group_from_proto(&group.ok_or_else(|| Error::invalid("the request has no group"))?)
}

/// The master's view of a tablet: its generation and the membership log id of its group.
type TabletFence = (Generation, LogId);

/// The cause that a request for a move names. One of an earlier release names none.
fn move_cause(name: &str) -> TabletEventCause {
    if name.is_empty() { TabletEventCause::Master } else { TabletEventCause::from_name(name) }
}

/// The target of a move, and the tablet as the master knows it.
fn move_parts(
    target: Option<ebla_proto::record::GroupDescriptor>,
    expected: Option<wire::Expected>,
) -> Result<(GroupDescriptor, TabletId, TabletFence), Error> {
    let expected = expected.ok_or_else(|| Error::invalid("the request names no tablet"))?;
    let log_id = expected.membership_log_id.as_ref().map(convert::log_id_from_proto).unwrap_or_default();
    let fence = (Generation::new(expected.generation), log_id);
    Ok((group_of(target)?, TabletId::new(expected.tablet), fence))
}

fn schema_and_tablets(request: &wire::CreateTabletsRequest) -> Result<(TableSchema, Vec<NewTablet>), Error> {
    let schema = request.schema.as_ref().ok_or_else(|| Error::invalid("the request has no schema"))?;
    let tablets = request.tablets.iter().map(convert::command::new_tablet_from_proto).collect::<Result<_, _>>()?;
    Ok((convert::schema_from_proto(schema)?, tablets))
}

#[tonic::async_trait]
impl Control for ControlService {
    async fn create_replica(
        &self,
        request: Request<wire::CreateReplicaRequest>,
    ) -> Result<Response<wire::CreateReplicaReply>, Status> {
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence).await.map_err(|error| error_status(&error))?;
        let group = group_of(request.group).map_err(|error| error_status(&error))?;
        let initial_state = if request.empty { InitialState::Empty } else { InitialState::Seed };
        let created = self.manager.create_replica(group, ReplicaId::new(request.replica), initial_state).await;
        let outcome = match created.map_err(|error| error_status(&error))? {
            CreateOutcome::Created => "made",
            CreateOutcome::AlreadyExists => "here",
            CreateOutcome::Removed => "removed",
        };
        Ok(Response::new(wire::CreateReplicaReply { outcome: outcome.to_owned() }))
    }

    async fn drop_replica(
        &self,
        request: Request<wire::DropReplicaRequest>,
    ) -> Result<Response<wire::DropReplicaReply>, Status> {
        let request = request.into_inner();
        self.check_fence(request.fence).await.map_err(|error| error_status(&error))?;
        let membership = request.membership_log_id.as_ref().map(convert::log_id_from_proto);
        let (group, replica) = (GroupId::new(request.group), ReplicaId::new(request.replica));
        let dropped = self.manager.drop_replica(group, replica, membership).await;
        dropped.map_err(|error| error_status(&error))?;
        Ok(Response::new(wire::DropReplicaReply {}))
    }

    async fn create_tablets(
        &self,
        request: Request<wire::CreateTabletsRequest>,
    ) -> Result<Response<wire::CreateTabletsReply>, Status> {
        let timeout = timeout(request.metadata());
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence.clone()).await.map_err(|error| error_status(&error))?;
        let group = self.group(request.group).map_err(failure_status)?;
        let (schema, tablets) = schema_and_tablets(&request).map_err(|error| error_status(&error))?;
        let created = group.create_tablets(OperationId::new(request.operation), schema, tablets, timeout).await;
        created.map_err(|failure| group_failure_status(&group, failure))?;
        let term = group.raft().leadership().map_or(0, |leadership| leadership.term.get());
        Ok(Response::new(wire::CreateTabletsReply { term }))
    }

    async fn divide(&self, request: Request<wire::DivideRequest>) -> Result<Response<wire::DivideReply>, Status> {
        let timeout = timeout(request.metadata());
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence).await.map_err(|error| error_status(&error))?;
        let (group, expected) = self.group_and_fence(request.expected).map_err(failure_status)?;
        let division = group.divide(expected, timeout).await;
        let division = division.map_err(|failure| group_failure_status(&group, failure))?;
        Ok(Response::new(wire::DivideReply {
            left: Some(convert::group_to_proto(&division.left)),
            right: Some(convert::group_to_proto(&division.right)),
            tablets: u64::try_from(division.moved.len()).unwrap_or(u64::MAX),
        }))
    }

    async fn split(&self, request: Request<wire::SplitRequest>) -> Result<Response<wire::SplitReply>, Status> {
        let timeout = timeout(request.metadata());
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence).await.map_err(|error| error_status(&error))?;
        let tablet = self.current_tablet(request.expected).map_err(failure_status)?;
        let (left, right) = tablet.split(request.at.map(RowKey::new), timeout).await.map_err(failure_status)?;
        Ok(Response::new(wire::SplitReply {
            left: Some(convert::descriptor_to_proto(&left)),
            right: Some(convert::descriptor_to_proto(&right)),
        }))
    }

    async fn merge(&self, request: Request<wire::MergeRequest>) -> Result<Response<wire::MergeReply>, Status> {
        let timeout = timeout(request.metadata());
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence).await.map_err(|error| error_status(&error))?;
        let (group, expected) = self.group_and_fence(request.expected).map_err(failure_status)?;
        let tablets = (TabletId::new(request.left), TabletId::new(request.right));
        let cause = TabletEventCause::from_name(&request.cause);
        let merged = group.merge_because(cause, expected, tablets, timeout).await;
        let merged = merged.map_err(|failure| group_failure_status(&group, failure))?;
        Ok(Response::new(wire::MergeReply { merged: Some(convert::descriptor_to_proto(&merged)) }))
    }

    async fn move_tablet(
        &self,
        request: Request<wire::MoveTabletRequest>,
    ) -> Result<Response<wire::MoveTabletReply>, Status> {
        let timeout = timeout(request.metadata());
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence).await.map_err(|error| error_status(&error))?;
        let (target, tablet, fence) = move_parts(request.target, request.expected).map_err(|e| error_status(&e))?;
        let group = self.group(request.source).map_err(failure_status)?;
        let cause = move_cause(&request.cause);
        let moved = group.move_tablet(tablet, fence, target, cause, timeout).await;
        moved.map_err(|failure| group_failure_status(&group, failure))?;
        Ok(Response::new(wire::MoveTabletReply {}))
    }

    async fn import(&self, request: Request<wire::ImportRequest>) -> Result<Response<wire::ImportReply>, Status> {
        let own = self.manager.registry().identity().map(|identity| identity.cluster);
        check_cluster_id(request.metadata(), own).map_err(|error| error_status(&error))?;
        let timeout = timeout(request.metadata());
        let wire::ImportRequest { group, step, cause, wall_micros } = request.into_inner();
        let group = self.group(group).map_err(failure_status)?;
        let kind = match step {
            None => {
                let ticket = group.import_ticket(timeout).await;
                let ticket = ticket.map_err(|failure| group_failure_status(&group, failure))?;
                import_reply::Kind::Ticket(ticket.get())
            }
            Some(step) => {
                let (id, step) = convert::tablet_move::step_from_proto(step).map_err(|error| error_status(&error))?;
                let wall = wall_micros.map(Micros::new);
                let status = group.import(id, step, move_cause(&cause), wall, timeout).await;
                let status = status.map_err(|failure| group_failure_status(&group, failure))?;
                import_reply::Kind::Status(convert::tablet_move::status_to_proto(&status))
            }
        };
        Ok(Response::new(wire::ImportReply { kind: Some(kind) }))
    }

    async fn apply(&self, request: Request<wire::ApplyRequest>) -> Result<Response<wire::ApplyReply>, Status> {
        let timeout = timeout(request.metadata());
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence.clone()).await.map_err(|error| error_status(&error))?;
        if let Some(apply_request::Kind::DropOperation(operation)) = request.kind {
            let group = self.group(request.group).map_err(failure_status)?;
            let table = TableId::new(request.table);
            let dropped = group.drop_table(OperationId::new(operation), table, timeout).await;
            dropped.map_err(|failure| group_failure_status(&group, failure))?;
            return Ok(Response::new(wire::ApplyReply { descriptor: None }));
        }
        let tablet = self.tablet(request.tablet).map_err(failure_status)?;
        if tablet.table().get() != request.table {
            return Err(error_status(&Error::invalid("the tablet belongs to another table")));
        }
        let kind = request.kind.ok_or_else(|| error_status(&Error::invalid("empty request: no operation set")))?;
        let descriptor = apply(&tablet, kind, timeout).await.map_err(failure_status)?;
        Ok(Response::new(wire::ApplyReply { descriptor: Some(convert::descriptor_to_proto(&descriptor)) }))
    }

    async fn transfer(&self, request: Request<wire::TransferRequest>) -> Result<Response<wire::TransferReply>, Status> {
        let request = request.into_inner();
        self.check_fence(request.fence).await.map_err(|error| error_status(&error))?;
        let group = self.current_group(request.expected).map_err(failure_status)?;
        let to = group.descriptor().membership.replica_on(ServerId::new(request.to_server));
        let to = to.ok_or_else(|| error_status(&Error::invalid("the group has no replica on that server")))?;
        let transferred = group.raft().transfer_leadership(to).await;
        transferred.map_err(|error| failure_status(transfer_failure(&group, error)))?;
        Ok(Response::new(wire::TransferReply {}))
    }

    async fn change_replicas(
        &self,
        request: Request<wire::ChangeReplicasRequest>,
    ) -> Result<Response<wire::ChangeReplicasReply>, Status> {
        let timeout = timeout(request.metadata());
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence).await.map_err(|error| error_status(&error))?;
        let (group, expected) = self.group_and_fence(request.expected).map_err(failure_status)?;
        let add =
            request.add.map(|add| Replica { replica: ReplicaId::new(add.replica), server: ServerId::new(add.server) });
        let remove = (request.remove > 0).then(|| ReplicaId::new(request.remove));
        let changed =
            group.change_replicas(ReplicaChange { expected, add, remove }, timeout).await.map_err(failure_status)?;
        Ok(Response::new(wire::ChangeReplicasReply { group: Some(convert::group_to_proto(&changed)) }))
    }

    async fn force_membership(
        &self,
        request: Request<wire::ForceMembershipRequest>,
    ) -> Result<Response<wire::ForceMembershipReply>, Status> {
        let request = request.into_inner();
        self.check_fence_for_new_work(request.fence).await.map_err(|error| error_status(&error))?;
        let expected = request.expected.ok_or_else(|| error_status(&Error::invalid("the request names no group")))?;
        let evidence = QuorumLoss {
            membership_log_id: expected.membership_log_id.as_ref().map(convert::log_id_from_proto).unwrap_or_default(),
            live: request.live.into_iter().map(ServerId::new).collect(),
            lost: request.lost.into_iter().map(ReplicaId::new).collect(),
        };
        let (group, replica) = (GroupId::new(expected.group), ReplicaId::new(request.replica));
        let forced = self.manager.force_membership(group, replica, evidence).await;
        let log_id = forced.map_err(|error| error_status(&error))?;
        Ok(Response::new(wire::ForceMembershipReply { membership_log_id: Some(convert::log_id_to_proto(log_id)) }))
    }

    async fn digest(&self, request: Request<wire::DigestRequest>) -> Result<Response<wire::DigestReply>, Status> {
        let tablets = request.into_inner().tablets;
        let mut replicas = Vec::new();
        for tablet in self.manager.tablets() {
            if tablets.is_empty() || tablets.contains(&tablet.id().get()) {
                let digest = tablet.digest().await;
                replicas.push(digest.map_or_else(
                    |failure| unreadable_replica(&tablet, failure.error.message),
                    |digest| replica_digest(&tablet, &digest),
                ));
            }
        }
        Ok(Response::new(wire::DigestReply { replicas }))
    }

    async fn report(&self, request: Request<wire::ReportRequest>) -> Result<Response<wire::ReportReply>, Status> {
        self.check_fence(request.into_inner().fence).await.map_err(|error| error_status(&error))?;
        let manager = Arc::clone(&self.manager);
        // Reading the sizes of the stores and the resources blocks: not on a thread that serves requests.
        let reports = self.manager.maintenance().run(move || (manager.report(), manager.capacity().resources())).await;
        let (reports, resources) =
            reports.map_err(|error| error_status(&Error::new(Reason::Unavailable, error.to_string())))?;
        let resources = Resources { connections: Some(self.connections.usage()), ..resources };
        let mut replicas: Vec<_> = reports.iter().map(replica_report).collect();
        let calls = self.front.last_calls(self.manager.clock().monotonic());
        let damaged = self.manager.quarantined().into_iter();
        replicas.extend(damaged.map(|id| wire::ReplicaReport { quarantined: true, ..not_running_report(id) }));
        replicas.extend(
            self.manager.idle().into_iter().map(|id| wire::ReplicaReport { idle: true, ..not_running_report(id) }),
        );
        Ok(Response::new(wire::ReportReply {
            server: self.manager.server().get(),
            incarnation: self.incarnation.get(),
            replicas,
            log_bytes: self.manager.log().bytes(),
            set_aside: self.manager.registry().set_aside(),
            resources: Some(convert::resources_to_proto(&resources, self.manager.capacity().write_state())),
            highest: Some(convert::highest_ids_to_proto(&evidence::highest_ids(&self.manager, &self.directory))),
            clock: Some(convert::clock_state_to_proto(&self.manager.clocks().state())),
            scrub: Some(convert::scrub_state_to_proto(
                &self.manager.scrub_results().state(self.manager.clock().monotonic()),
            )),
            sync: Some(convert::sync_state_to_proto(&self.manager.disk_speeds().state())),
            scan_cache: Some(convert::scan_cache_state_to_proto(&self.manager.shared().scan_cache_state())),
            memory_groups: Some(convert::memory_groups_to_proto(&self.manager.shared().memory_groups())),
            split_bytes: self.split_bytes,
            metadata_split_bytes: self.metadata_split_bytes,
            calls: calls.as_ref().map(convert::call_times_to_proto),
        }))
    }

    async fn measure_memory(
        &self,
        request: Request<wire::MeasureMemoryRequest>,
    ) -> Result<Response<wire::MeasureMemoryReply>, Status> {
        let (table, manager) = (TableId::new(request.into_inner().table), Arc::clone(&self.manager));
        let measured = self.manager.maintenance().run(move || group_memory(&manager, table)).await;
        let measured = measured.map_err(|error| error_status(&Error::new(Reason::Unavailable, error.to_string())))?;
        let groups = measured.map_err(|error| error_status(&error))?;
        Ok(Response::new(wire::MeasureMemoryReply {
            server: self.manager.server().get(),
            memory_groups: Some(convert::memory_groups_to_proto(&self.manager.shared().memory_groups())),
            groups: groups.into_iter().map(|(number, bytes)| wire::GroupMemory { number, bytes }).collect(),
        }))
    }

    async fn evidence(&self, request: Request<wire::EvidenceRequest>) -> Result<Response<wire::EvidenceReply>, Status> {
        let only = request.into_inner().groups.into_iter().map(GroupId::new).collect();
        Ok(Response::new(evidence::evidence(&self.manager, &self.directory, &only)))
    }

    async fn clock(&self, _request: Request<wire::ClockRequest>) -> Result<Response<wire::ClockReply>, Status> {
        let time_micros = self.manager.clock().wall().get();
        let slow_disk = self.manager.disk_speeds().state().is_slow;
        Ok(Response::new(wire::ClockReply { server: self.manager.server().get(), time_micros, slow_disk }))
    }

    async fn flush(&self, request: Request<wire::FlushRequest>) -> Result<Response<wire::FlushReply>, Status> {
        let group = self.group(request.into_inner().group).map_err(failure_status)?;
        let state_machine = Arc::clone(group.state_machine());
        let flushed = self.manager.maintenance().run(move || state_machine.flush()).await;
        let flushed = flushed.map_err(|error| error_status(&Error::new(Reason::Unavailable, error.to_string())))?;
        flushed.map_err(|error| error_status(&error))?;
        Ok(Response::new(wire::FlushReply {}))
    }

    async fn table_sizes(
        &self,
        request: Request<wire::TableSizesRequest>,
    ) -> Result<Response<wire::TableSizesReply>, Status> {
        let request = request.into_inner();
        let groups = self.manager.groups();
        let sizes = self.manager.maintenance().run(move || table_sizes(&groups, request)).await;
        let sizes = sizes.map_err(|error| error_status(&Error::new(Reason::Unavailable, error.to_string())))?;
        let TableSizes { tablets, groups } = sizes.map_err(|error| error_status(&error))?;
        let group = |(group, bytes)| {
            let bytes = Some(convert::stored_bytes_to_proto(bytes));
            wire::LocalityGroupBytes { group, bytes }
        };
        Ok(Response::new(wire::TableSizesReply { tablets, groups: groups.into_iter().map(group).collect() }))
    }

    async fn table_usage(
        &self,
        request: Request<wire::TableUsageRequest>,
    ) -> Result<Response<wire::TableUsageReply>, Status> {
        let table = TableId::new(request.into_inner().table);
        let groups = self.manager.groups();
        let tablets = self.manager.maintenance().run(move || table_usage(&groups, table)).await;
        let tablets = tablets.map_err(|error| error_status(&Error::new(Reason::Unavailable, error.to_string())))?;
        Ok(Response::new(wire::TableUsageReply { tablets: tablets.map_err(|error| error_status(&error))? }))
    }
}

/// What the families of a table cost in the tablets of those groups that are led here. Blocking.
fn table_usage(groups: &[Arc<TabletGroup>], table: TableId) -> Result<Vec<wire::TabletUsage>, Error> {
    let mut tablets = Vec::new();
    for group in groups.iter().filter(|group| group.leads_table(table)) {
        let of_group = group.table_usage(table)?.into_iter();
        tablets.extend(of_group.map(|(tablet, families)| wire::TabletUsage {
            tablet: tablet.get(),
            families: convert::usage_to_proto(&families),
        }));
    }
    Ok(tablets)
}

/// What the locality groups of a table cost in those of these groups that are led here. Blocking.
fn table_sizes(groups: &[Arc<TabletGroup>], request: wire::TableSizesRequest) -> Result<TableSizes, Error> {
    let table = TableId::new(request.table);
    let mut sizes = TableSizes::default();
    for group in groups.iter().filter(|group| group.leads_table(table)) {
        if request.flush {
            group.state_machine().flush()?;
        }
        group.add_table_sizes(table, &mut sizes)?;
    }
    Ok(sizes)
}

/// What the locality groups of a table need in memory on this server, by their numbers. Blocking.
fn group_memory(manager: &TabletManager, table: TableId) -> Result<BTreeMap<u32, u64>, Error> {
    let mut sums = BTreeMap::new();
    for group in manager.groups() {
        for (number, bytes) in group.group_memory(table)? {
            let sum: &mut u64 = sums.entry(number).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    Ok(sums)
}

async fn apply(
    tablet: &Tablet,
    kind: apply_request::Kind,
    timeout: std::time::Duration,
) -> Result<TabletDescriptor, Failure> {
    match kind {
        apply_request::Kind::SetSchema(schema) => {
            tablet.set_schema(convert::schema_from_proto(&schema)?, timeout).await
        }
        apply_request::Kind::DropRange(request) => {
            let range = request.range.ok_or_else(|| Error::invalid("the request has no range"))?;
            let range = convert::key_range_from_proto(&range)?;
            tablet.drop_range(OperationId::new(request.operation), range, timeout).await
        }
        apply_request::Kind::DropOperation(_) => Err(Error::internal("a table is dropped by its groups").into()),
    }
}

/// The status of a request to a group, with its leader as far as it is known.
fn group_failure_status(group: &TabletGroup, mut failure: Failure) -> Status {
    if matches!(failure.error.reason, Reason::NotLeader | Reason::NoLeader) {
        failure.leader = failure.leader.or_else(|| group.leader());
    }
    failure_status(failure)
}

fn transfer_failure(group: &TabletGroup, error: TransferError) -> Failure {
    match error {
        TransferError::NotLeader => Failure::not_leader(group.leader()),
        TransferError::NotVoter(_) => Error::new(Reason::FailedPrecondition, error.to_string()).into(),
        TransferError::TargetBehind => Failure::busy(std::time::Duration::from_millis(100)),
        TransferError::TargetNotElected | TransferError::Stopped => {
            Failure::new(Reason::Unavailable, error.to_string())
        }
    }
}

fn replica_digest(tablet: &Tablet, digest: &Digest) -> wire::ReplicaDigest {
    wire::ReplicaDigest {
        tablet: tablet.id().get(),
        replica: tablet.replica().get(),
        applied: Some(convert::log_id_to_proto(digest.applied)),
        cells: digest.cells,
        cell_bytes: digest.cell_bytes,
        cells_crc32c: digest.cells_crc32c,
        state_crc32c: digest.state_crc32c,
        unreadable: String::new(),
    }
}

fn unreadable_replica(tablet: &Tablet, unreadable: String) -> wire::ReplicaDigest {
    wire::ReplicaDigest {
        tablet: tablet.id().get(),
        replica: tablet.replica().get(),
        unreadable,
        ..wire::ReplicaDigest::default()
    }
}

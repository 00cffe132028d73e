//! `ebla.control`: orders of the master in office, and a leader's request to flush.
//!
//! An order is taken when it names this cluster and an epoch not below the highest seen, which is remembered on disk
//! before the order is carried out; so an order of a master whose time is over, however late it arrives, does nothing. An
//! order about one tablet also says what the master believed of it and is refused when that is not so (any more). All
//! orders may be repeated.

use std::sync::Arc;

use ebla_model::Reason;
use ebla_model::error::Error;
use ebla_model::id::{
    ClusterId, Generation, Incarnation, LogId, MasterEpoch, OperationId, ReplicaId, ServerId, TabletId,
};
use ebla_model::key::RowKey;
use ebla_model::metadata::{Replica, TabletDescriptor};
use ebla_proto::control::control_server::Control;
use ebla_proto::control::{self as wire, apply_request};
use ebla_proto::{convert, status};
use ebla_storage::registry::Identity;
use tonic::{Request, Response, Status};

use crate::internal::call_status;
use crate::limits::limit;
use crate::raft::{GroupId, TransferError};
use crate::tablet::digest::Digest;
use crate::tablet::failure::Failure;
use crate::tablet::hosted::{Beginning, Created, Hosted};
use crate::tablet::replicas::ReplicaChange;
use crate::tablet::serve::wire_error;
use crate::tablet::{Report, Tablet};

/// Serves `ebla.control.Control`.
#[derive(Clone, Debug)]
pub struct ControlService {
    hosted: Arc<Hosted>,
    incarnation: Incarnation,
}

impl ControlService {
    /// Carries orders out on these replicas.
    #[must_use]
    pub const fn new(hosted: Arc<Hosted>, incarnation: Incarnation) -> Self {
        Self { hosted, incarnation }
    }

    /// Accepts or refuses the sender of an order.
    async fn admit(&self, fence: Option<wire::Fence>) -> Result<(), Error> {
        let fence = fence.ok_or_else(|| Error::invalid("the order has no fence"))?;
        let cluster =
            ClusterId::from_bytes(&fence.cluster).ok_or_else(|| Error::invalid("a cluster id has 16 bytes"))?;
        let epoch = MasterEpoch::new(fence.master_epoch);
        let registry = self.hosted.registry();
        let identity = Identity { cluster, server: self.hosted.server() };
        if registry.identity() == Some(identity) && registry.epoch() == epoch {
            return Ok(());
        }
        let registry = Arc::clone(registry);
        let accept = move || -> Result<(), Error> {
            registry.adopt(identity)?;
            Ok(registry.accept_epoch(epoch)?)
        };
        let outcome = self.hosted.maintenance().run(accept).await;
        outcome.map_err(|error| Error::new(Reason::Unavailable, error.to_string()))?
    }

    /// As [`Self::admit`], for an order that begins something: a server that is about to end takes none.
    async fn admit_work(&self, fence: Option<wire::Fence>) -> Result<(), Error> {
        if self.hosted.is_leaving() {
            return Err(Error::new(Reason::Unavailable, "the server is stopping"));
        }
        self.admit(fence).await
    }

    fn tablet(&self, tablet: u64) -> Result<Arc<Tablet>, Failure> {
        let missing = || Failure::new(Reason::WrongTablet, "the tablet is not here");
        self.hosted.tablet(TabletId::new(tablet)).ok_or_else(missing)
    }

    /// The tablet that an order is about, when it is still as the master believed.
    fn expected(&self, expected: Option<wire::Expected>) -> Result<Arc<Tablet>, Failure> {
        let (tablet, fence) = self.named(expected)?;
        let descriptor = tablet.descriptor();
        if descriptor.fence() == fence { Ok(tablet) } else { Err(Failure::wrong_tablet(descriptor)) }
    }

    /// The tablet that an order is about, and what the master believed of it.
    fn named(&self, expected: Option<wire::Expected>) -> Result<(Arc<Tablet>, (Generation, LogId)), Failure> {
        let expected = expected.ok_or_else(|| Error::invalid("the order names no tablet"))?;
        let log_id = expected.membership_log_id.as_ref().map(convert::log_id_from_proto).unwrap_or_default();
        Ok((self.tablet(expected.tablet)?, (Generation::new(expected.generation), log_id)))
    }
}

fn refused(failure: Failure) -> Status {
    call_status(&wire_error(failure))
}

fn failed(error: &Error) -> Status {
    status::to_status(error)
}

fn descriptor_of(descriptor: Option<ebla_proto::record::TabletDescriptor>) -> Result<TabletDescriptor, Error> {
    let descriptor = descriptor.ok_or_else(|| Error::invalid("the order has no descriptor"))?;
    convert::descriptor_from_proto(&descriptor)
}

#[tonic::async_trait]
impl Control for ControlService {
    async fn create_replica(
        &self,
        request: Request<wire::CreateReplicaRequest>,
    ) -> Result<Response<wire::CreateReplicaReply>, Status> {
        let order = request.into_inner();
        self.admit_work(order.fence).await.map_err(|error| failed(&error))?;
        let descriptor = descriptor_of(order.descriptor).map_err(|error| failed(&error))?;
        let schema = order.schema.ok_or_else(|| failed(&Error::invalid("the order has no schema")))?;
        let schema = convert::schema_from_proto(&schema).map_err(|error| failed(&error))?;
        let beginning = if order.empty { Beginning::Empty } else { Beginning::Seed };
        let made = self.hosted.create_replica(descriptor, schema, ReplicaId::new(order.replica), beginning).await;
        let outcome = match made.map_err(|error| failed(&error))? {
            Created::Made => "made",
            Created::Here => "here",
            Created::Removed => "removed",
        };
        Ok(Response::new(wire::CreateReplicaReply { outcome: outcome.to_owned() }))
    }

    async fn drop_replica(
        &self,
        request: Request<wire::DropReplicaRequest>,
    ) -> Result<Response<wire::DropReplicaReply>, Status> {
        let order = request.into_inner();
        self.admit(order.fence).await.map_err(|error| failed(&error))?;
        let dropped = self.hosted.drop_replica(TabletId::new(order.tablet), ReplicaId::new(order.replica)).await;
        dropped.map_err(|error| failed(&error))?;
        Ok(Response::new(wire::DropReplicaReply {}))
    }

    async fn split(&self, request: Request<wire::SplitRequest>) -> Result<Response<wire::SplitReply>, Status> {
        let limit = limit(request.metadata());
        let order = request.into_inner();
        self.admit_work(order.fence).await.map_err(|error| failed(&error))?;
        let tablet = self.expected(order.expected).map_err(refused)?;
        let (left, right) = tablet.split(order.at.map(RowKey::new), limit).await.map_err(refused)?;
        Ok(Response::new(wire::SplitReply {
            left: Some(convert::descriptor_to_proto(&left)),
            right: Some(convert::descriptor_to_proto(&right)),
        }))
    }

    async fn apply(&self, request: Request<wire::ApplyRequest>) -> Result<Response<wire::ApplyReply>, Status> {
        let limit = limit(request.metadata());
        let order = request.into_inner();
        self.admit_work(order.fence.clone()).await.map_err(|error| failed(&error))?;
        let tablet = self.tablet(order.tablet).map_err(refused)?;
        if tablet.table().get() != order.table {
            return Err(failed(&Error::invalid("the tablet is part of another table")));
        }
        let kind = order.kind.ok_or_else(|| failed(&Error::invalid("the order says nothing")))?;
        let descriptor = apply(&tablet, kind, limit).await.map_err(refused)?;
        Ok(Response::new(wire::ApplyReply { descriptor: Some(convert::descriptor_to_proto(&descriptor)) }))
    }

    async fn transfer(&self, request: Request<wire::TransferRequest>) -> Result<Response<wire::TransferReply>, Status> {
        let order = request.into_inner();
        self.admit(order.fence).await.map_err(|error| failed(&error))?;
        let tablet = self.expected(order.expected).map_err(refused)?;
        let to = tablet.descriptor().membership.replica_on(ServerId::new(order.to_server));
        let to = to.ok_or_else(|| failed(&Error::invalid("the tablet has no replica on that server")))?;
        tablet.group().transfer(to).await.map_err(|error| refused(transfer_failure(&tablet, error)))?;
        Ok(Response::new(wire::TransferReply {}))
    }

    async fn change_replicas(
        &self,
        request: Request<wire::ChangeReplicasRequest>,
    ) -> Result<Response<wire::ChangeReplicasReply>, Status> {
        let limit = limit(request.metadata());
        let order = request.into_inner();
        self.admit_work(order.fence).await.map_err(|error| failed(&error))?;
        let (tablet, expected) = self.named(order.expected).map_err(refused)?;
        let add =
            order.add.map(|add| Replica { replica: ReplicaId::new(add.replica), server: ServerId::new(add.server) });
        let remove = (order.remove > 0).then(|| ReplicaId::new(order.remove));
        let changed = tablet.change_replicas(ReplicaChange { expected, add, remove }, limit).await.map_err(refused)?;
        Ok(Response::new(wire::ChangeReplicasReply { descriptor: Some(convert::descriptor_to_proto(&changed)) }))
    }

    async fn digest(&self, request: Request<wire::DigestRequest>) -> Result<Response<wire::DigestReply>, Status> {
        let wanted = request.into_inner().tablets;
        let mut replicas = Vec::new();
        for tablet in self.hosted.tablets() {
            if wanted.is_empty() || wanted.contains(&tablet.id().get()) {
                let digest = tablet.digest().await.map_err(refused)?;
                replicas.push(replica_digest(&tablet, &digest));
            }
        }
        Ok(Response::new(wire::DigestReply { replicas }))
    }

    async fn report(&self, request: Request<wire::ReportRequest>) -> Result<Response<wire::ReportReply>, Status> {
        self.admit(request.into_inner().fence).await.map_err(|error| failed(&error))?;
        let hosted = Arc::clone(&self.hosted);
        // Sizes are asked of the stores: not on a thread that serves requests.
        let reports = self.hosted.maintenance().run(move || hosted.report()).await;
        let reports = reports.map_err(|error| failed(&Error::new(Reason::Unavailable, error.to_string())))?;
        let mut replicas: Vec<_> = reports.iter().map(replica_report).collect();
        let damaged = self.hosted.quarantined().into_iter();
        replicas.extend(damaged.map(|id| wire::ReplicaReport { quarantined: true, ..silent_report(id) }));
        replicas
            .extend(self.hosted.idle().into_iter().map(|id| wire::ReplicaReport { idle: true, ..silent_report(id) }));
        Ok(Response::new(wire::ReportReply {
            server: self.hosted.server().get(),
            incarnation: self.incarnation.get(),
            replicas,
            log_bytes: self.hosted.log().bytes(),
        }))
    }

    async fn flush(&self, request: Request<wire::FlushRequest>) -> Result<Response<wire::FlushReply>, Status> {
        let tablet = self.tablet(request.into_inner().tablet).map_err(refused)?;
        let machine = Arc::clone(tablet.machine());
        let flushed = self.hosted.maintenance().run(move || machine.flush()).await;
        let flushed = flushed.map_err(|error| failed(&Error::new(Reason::Unavailable, error.to_string())))?;
        flushed.map_err(|error| failed(&error))?;
        Ok(Response::new(wire::FlushReply {}))
    }
}

async fn apply(
    tablet: &Tablet,
    kind: apply_request::Kind,
    limit: std::time::Duration,
) -> Result<TabletDescriptor, Failure> {
    match kind {
        apply_request::Kind::SetSchema(schema) => tablet.set_schema(convert::schema_from_proto(&schema)?, limit).await,
        apply_request::Kind::DropRange(order) => {
            let range = order.range.ok_or_else(|| Error::invalid("the order has no range"))?;
            let range = convert::key_range_from_proto(&range)?;
            tablet.drop_range(OperationId::new(order.operation), range, limit).await
        }
        apply_request::Kind::DropOperation(operation) => tablet.drop_table(OperationId::new(operation), limit).await,
    }
}

fn transfer_failure(tablet: &Tablet, error: TransferError) -> Failure {
    match error {
        TransferError::NotLeader => Failure::not_leader(tablet.leader()),
        TransferError::NotVoter(_) => Error::new(Reason::FailedPrecondition, error.to_string()).into(),
        TransferError::Lags => Failure::busy(std::time::Duration::from_millis(100)),
        TransferError::NotTaken | TransferError::Stopped => Failure::new(Reason::Unavailable, error.to_string()),
    }
}

fn replica_report(report: &Report) -> wire::ReplicaReport {
    wire::ReplicaReport {
        descriptor: Some(convert::descriptor_to_proto(&report.descriptor)),
        replica: report.replica.get(),
        leads: report.leads,
        term: report.term,
        size_bytes: report.size_bytes,
        schema_version: report.schema_version.get(),
        applied: Some(convert::log_id_to_proto(report.applied)),
        quarantined: false,
        idle: false,
        settled: report.settled,
        heard: report.heard.iter().map(|replica| replica.get()).collect(),
    }
}

/// All that is told of a replica that does not run.
fn silent_report(id: GroupId) -> wire::ReplicaReport {
    let descriptor = ebla_proto::record::TabletDescriptor { tablet: id.tablet.get(), ..Default::default() };
    wire::ReplicaReport { descriptor: Some(descriptor), replica: id.replica.get(), ..Default::default() }
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
    }
}

//! The recovery of Chubby as an operator requests it: asks the tablet servers what they know, determines the missing writes
//! ([`crate::plan::recovery`]), and carries them out under the master lock.
//!
//! It is served by the active master, and also by a master that waits for the servers of a new cluster: if they have an older
//! cluster, Chubby was emptied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_chubby::{Chubby, Compare, Counter, TransactionOutcome, Write, next_ids, paths, raise_counter};
use ebla_client::channel::MESSAGE_BYTES_MAX;
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, LogId, MasterEpoch, OperationId, ReplicaId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::record::ClusterState;
use ebla_proto::{control, convert, operate, record};
use ebla_runtime::Net;
use futures::future::join_all;
use tonic::Request;
use tracing::{info, warn};

use crate::active::ActiveMaster;
use crate::cluster::ClusterSnapshot;
use crate::election::MasterLock;
use crate::jobs::delete::intent;
use crate::plan::recovery::{ChubbyContent, GroupEvidence, Recovery, ServerEvidence, Step, recovery};
use crate::plan::upgrade::Hold;
use crate::schema_store::{self, Identity};

/// How long a tablet server may take to answer.
const EVIDENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Recovers Chubby, or only determines what a recovery would do. `active`: this master, unless it waits for the servers of a new
/// cluster.
///
/// # Errors
/// As [`recovery`]; `NotMaster` when the lock was lost meanwhile; errors of Chubby.
pub(crate) async fn recover(
    lock: &MasterLock,
    active: Option<&ActiveMaster>,
    net: &Net,
    request: operate::RecoverRequest,
) -> Result<operate::RecoverReply, Error> {
    let chubby = &**lock.chubby();
    let without: BTreeSet<ServerId> = request.without.iter().copied().map(ServerId::new).collect();
    let registered = schema_store::list_servers(chubby).await?;
    let first = registered.into_values().map(|server| server.address).chain(request.addresses).collect();
    let evidence = ask_all(net, first).await;
    // After the evidence: what is created meanwhile is in Chubby.
    let content = read_content(lock).await?;
    let Recovery { steps, findings } = recovery(&content, &evidence, &without)?;
    if !request.dry_run {
        for step in &steps {
            execute(lock, step).await?;
            info!(%step, "recovery step executed");
        }
        if let Some(master) = active {
            if steps.iter().any(|step| matches!(step, Step::WriteCluster(..))) {
                master.resign();
            } else {
                master.request_reconcile();
            }
        }
    }
    Ok(operate::RecoverReply {
        servers: evidence.keys().map(|server| server.get()).collect(),
        steps: steps.iter().map(Step::to_string).collect(),
        findings,
    })
}

/// The evidence of these servers and of all that they know, by server.
async fn ask_all(net: &Net, first: BTreeSet<String>) -> BTreeMap<ServerId, ServerEvidence> {
    let mut evidence: BTreeMap<ServerId, ServerEvidence> = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let mut next = first;
    while !next.is_empty() {
        let answers = join_all(next.iter().map(|address| ask(net, address))).await;
        asked.extend(std::mem::take(&mut next));
        for (server, known, addresses) in answers.into_iter().flatten() {
            // A new server may have the id of another one: what that one says must not hide it.
            if evidence.get(&server).is_none_or(|before| before.cluster.is_some()) {
                evidence.insert(server, known);
            }
            next.extend(addresses.into_iter().filter(|address| !asked.contains(address)));
        }
    }
    evidence
}

/// The evidence of one server, and the addresses of others.
async fn ask(net: &Net, address: &str) -> Option<(ServerId, ServerEvidence, Vec<String>)> {
    let mut client = ControlClient::new(net.peer_channel(address)).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut request = Request::new(control::EvidenceRequest::default());
    request.set_timeout(EVIDENCE_TIMEOUT);
    let answer = match tokio::time::timeout(EVIDENCE_TIMEOUT, client.evidence(request)).await {
        Ok(Ok(answer)) => answer.into_inner(),
        Ok(Err(error)) => {
            warn!(address, %error, "a tablet server does not say what it knows");
            return None;
        }
        Err(_elapsed) => {
            warn!(address, "a tablet server does not respond in time");
            return None;
        }
    };
    let directory = answer.directory.clone().unwrap_or_default();
    let addresses = directory.servers.into_iter().chain(directory.gone).map(|server| server.address);
    let addresses = addresses.filter(|address| !address.is_empty()).collect();
    let server = ServerId::new(answer.server);
    let evidence = evidence_from_proto(answer).inspect_err(|error| warn!(address, %error, "invalid evidence")).ok()?;
    Some((server, evidence, addresses))
}

fn evidence_from_proto(answer: control::EvidenceReply) -> Result<ServerEvidence, Error> {
    let directory = answer.directory.unwrap_or_default();
    let groups = answer.groups.iter().map(|group| {
        let group = group_from_proto(group)?;
        Ok((group.group.group, group))
    });
    Ok(ServerEvidence {
        cluster: ClusterId::from_bytes(&answer.cluster),
        epoch: MasterEpoch::new(answer.epoch),
        highest: answer.highest.as_ref().map(convert::highest_ids_from_proto).unwrap_or_default(),
        groups: groups.collect::<Result<_, Error>>()?,
        schemas: directory.tables.iter().map(convert::schema_from_proto).collect::<Result<_, _>>()?,
        active_version: directory.cluster.as_ref().map_or(ClusterVersion::FIRST, convert::active_version),
        registered: directory.servers.iter().map(|server| ServerId::new(server.server)).collect(),
        access: directory.access.into_iter().map(|file| (file.path, file.value)).collect(),
    })
}

fn group_from_proto(message: &control::GroupEvidence) -> Result<GroupEvidence, Error> {
    let group = message.group.as_ref().ok_or_else(|| Error::invalid("the evidence names no group"))?;
    let group = convert::group_from_proto(group)?;
    let tablet = |tablet: &record::TabletRecord| convert::tablet_record_from_proto(tablet, &group);
    Ok(GroupEvidence {
        replica: ReplicaId::new(message.replica),
        applied: message.applied.as_ref().map_or_else(LogId::default, convert::log_id_from_proto),
        tablets: message.tablets.iter().map(tablet).collect::<Result<Vec<TabletDescriptor>, _>>()?,
        schemas: message.schemas.iter().map(convert::schema_from_proto).collect::<Result<_, _>>()?,
        dropped: message.dropped.iter().copied().map(TableId::new).collect(),
        group,
    })
}

async fn read_content(lock: &MasterLock) -> Result<ChubbyContent, Error> {
    let chubby = &**lock.chubby();
    let identity = schema_store::read_identity(chubby).await?.map(|identity| identity.value);
    let (policies, _revision) = chubby.list(paths::ACCESS).await?;
    let (views, _revision) = chubby.list(paths::VIEWS).await?;
    Ok(ChubbyContent {
        cluster: identity.map(|identity| (identity.cluster, identity.epoch_base)),
        lock: lock.revision(),
        files: schema_store::read_files(chubby, ClusterSnapshot::default()).await?,
        names: schema_store::list_names(chubby).await?,
        access: policies.into_iter().chain(views).map(|file| file.path).collect(),
    })
}

/// Executes one step. A conflict is an error: only the holder of the lock writes these files.
async fn execute(lock: &MasterLock, step: &Step) -> Result<(), Error> {
    let chubby = &**lock.chubby();
    let writes = match step {
        Step::RaiseCounter(counter, next) => return Ok(raise_counter(chubby, *counter, *next).await?),
        Step::WriteAccess(path, content) => vec![Write::put(path.clone(), content.clone())],
        Step::WriteTable(schema) => {
            vec![Write::put(paths::table(schema.table), convert::schema_to_bytes(schema))]
        }
        Step::WriteName(name, table) => vec![Write::put(paths::name(name), table.to_string())],
        Step::DeleteTable(schema) => deletion(chubby, schema).await?,
        Step::WriteRoot(root) => vec![Write::put(paths::ROOT, convert::descriptor_to_bytes(root))],
        Step::RemoveGroupPlan(group) => vec![Write::delete(paths::group(*group))],
        Step::RemoveOperation(operation) => vec![Write::delete(paths::operation(*operation))],
        Step::WriteCluster(cluster, epoch_base, active) => {
            let stored = schema_store::read_identity(chubby).await?.map(|stored| stored.value);
            let (present, hold) = stored.map_or((ClusterVersion::FIRST, Hold::Released), |one| (one.active, one.hold));
            let identity = Identity {
                cluster: *cluster,
                state: ClusterState::Running,
                epoch_base: *epoch_base,
                first_tablets: Vec::new(),
                active: present.max(*active),
                hold,
            };
            vec![Write::put(paths::CLUSTER, schema_store::encode_identity(&identity))]
        }
        Step::AllowChanges => vec![Write::delete(paths::BEHIND)],
    };
    match lock.transact(Vec::<Compare>::new(), writes).await? {
        TransactionOutcome::Committed(_) => Ok(()),
        TransactionOutcome::Conflict => Err(Error::new(Reason::Conflict, format!("the lock service changed: {step}"))),
    }
}

/// The writes that start the deletion of a table; the reconciler completes it.
async fn deletion(chubby: &dyn Chubby, schema: &TableSchema) -> Result<Vec<Write>, Error> {
    let operation = OperationId::new(next_ids(chubby, Counter::Operations, 1).await?.start);
    let mut writes = Vec::from(intent(schema.clone(), operation));
    let name = paths::name(&schema.name);
    // Another table may have the name now.
    if schema_store::list_names(chubby).await?.get(&name) == Some(&schema.table) {
        writes.push(Write::delete(name));
    }
    Ok(writes)
}

//! What this server knows of the content of Chubby's files, for a recovery of Chubby, and which replicas run here
//! (`ebla.control.Control.Evidence`); and what other servers know of ids, for a server that takes one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use ebla_client::channel::Channels;
use ebla_model::highest_ids::HighestIds;
use ebla_model::id::{GroupId, ServerId, TableId};
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::{control as wire, convert};
use ebla_routing::ChubbyDirectory;
use ebla_storage::log::GroupReplica;
use futures::future::join_all;
use tonic::Request;

use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

/// Timeout of the question which ids another server knows.
const HIGHEST_IDS_TIMEOUT: Duration = Duration::from_secs(2);
/// No group has this id, so the evidence about it has nothing but the highest ids.
const NO_GROUP: u64 = 0;

/// The evidence of this server. Its groups are those whose replicas run, and if `only` is not empty, only those.
pub(crate) fn evidence(
    manager: &TabletManager,
    directory: &ChubbyDirectory,
    only: &BTreeSet<GroupId>,
) -> wire::EvidenceReply {
    let identity = manager.registry().identity();
    let groups = manager.groups().into_iter().filter(|group| only.is_empty() || only.contains(&group.id()));
    let running = groups.filter(|group| group.raft().is_running());
    wire::EvidenceReply {
        server: manager.server().get(),
        cluster: identity.map(|known| Bytes::copy_from_slice(&known.cluster.to_bytes())).unwrap_or_default(),
        epoch: manager.registry().epoch().get(),
        highest: Some(convert::highest_ids_to_proto(&highest_ids(manager, directory))),
        groups: running.map(|group| group_evidence(manager, &group)).collect(),
        directory: only.is_empty().then(|| directory.copy()),
    }
}

/// The highest ids that this server knows: those of its replicas, and the servers that it has seen registered.
pub(crate) fn highest_ids(manager: &TabletManager, directory: &ChubbyDirectory) -> HighestIds {
    let mut highest = manager.highest_ids();
    highest.server = highest.server.max(directory.highest_server());
    highest
}

/// The highest ids that the servers at these addresses know. Those that do not respond in time are missing.
pub(crate) async fn highest_ids_at(channels: &Channels, addresses: BTreeSet<String>) -> BTreeMap<ServerId, HighestIds> {
    let answers = join_all(addresses.into_iter().map(|address| ask_highest_ids(channels, address))).await;
    answers.into_iter().flatten().collect()
}

async fn ask_highest_ids(channels: &Channels, address: String) -> Option<(ServerId, HighestIds)> {
    let mut client = ControlClient::new(channels.get(&address));
    let mut request = Request::new(wire::EvidenceRequest { groups: vec![NO_GROUP] });
    request.set_timeout(HIGHEST_IDS_TIMEOUT);
    let answer = tokio::time::timeout(HIGHEST_IDS_TIMEOUT, client.evidence(request)).await;
    let answer = answer.ok()?.ok()?.into_inner();
    let highest = answer.highest.as_ref().map(convert::highest_ids_from_proto).unwrap_or_default();
    // The address of a dead server may belong to another server now.
    Some((ServerId::new(answer.server), highest))
}

fn group_evidence(manager: &TabletManager, group: &TabletGroup) -> wire::GroupEvidence {
    let applied_state = group.state_machine().applied_state();
    let metadata = &applied_state.metadata;
    // Adjacent tablets may be of one table; a schema is sent once.
    let mut schemas: Vec<_> = metadata.tablets.values().map(|tablet| tablet.schema()).collect();
    schemas.sort_by_key(|schema| schema.table);
    schemas.dedup_by_key(|schema| schema.table);
    schemas.retain(|schema| schema.table != TableId::METADATA);
    wire::GroupEvidence {
        group: Some(convert::group_to_proto(&metadata.descriptor)),
        replica: group.replica().get(),
        applied: Some(convert::log_id_to_proto(applied_state.applied)),
        tablets: metadata.tablets.values().map(|tablet| convert::tablet_record_to_proto(&tablet.descriptor)).collect(),
        schemas: schemas.into_iter().map(|schema| convert::schema_to_proto(schema)).collect(),
        dropped: metadata.dropped.iter().map(|table| table.get()).collect(),
        damaged: manager.scrub_results().is_damaged(GroupReplica { group: group.id(), replica: group.replica() }),
    }
}

//! What this server knows of the content of Chubby's files, for a recovery of Chubby, and which replicas run here
//! (`ebla.control.Control.Evidence`).

use std::collections::BTreeSet;

use bytes::Bytes;
use ebla_model::id::{GroupId, TableId};
use ebla_proto::{control as wire, convert};
use ebla_routing::ChubbyDirectory;
use ebla_storage::log::GroupReplica;

use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

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
        highest: Some(convert::highest_ids_to_proto(&manager.highest_ids())),
        groups: running.map(|group| group_evidence(manager, &group)).collect(),
        directory: only.is_empty().then(|| directory.copy()),
    }
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

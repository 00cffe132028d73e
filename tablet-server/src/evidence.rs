//! What this server knows of the content of Chubby's files, for a recovery of Chubby (`ebla.control.Control.Evidence`).

use bytes::Bytes;
use ebla_model::id::TableId;
use ebla_proto::{control as wire, convert};
use ebla_routing::ChubbyDirectory;

use crate::tablet::TabletGroup;
use crate::tablet::lifecycle::manager::TabletManager;

/// The evidence of this server. Its groups are those whose replicas run.
pub(crate) fn evidence(manager: &TabletManager, directory: &ChubbyDirectory) -> wire::EvidenceReply {
    let identity = manager.registry().identity();
    wire::EvidenceReply {
        server: manager.server().get(),
        cluster: identity.map(|known| Bytes::copy_from_slice(&known.cluster.to_bytes())).unwrap_or_default(),
        epoch: manager.registry().epoch().get(),
        highest: Some(convert::highest_ids_to_proto(&manager.highest_ids())),
        groups: manager.groups().iter().map(|group| group_evidence(group)).collect(),
        directory: Some(directory.copy()),
    }
}

fn group_evidence(group: &TabletGroup) -> wire::GroupEvidence {
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
    }
}

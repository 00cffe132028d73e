//! The applied state of a replica as one value, published for readers after each write batch.

use std::sync::Arc;

use ebla_model::id::LogId;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_model::time::Micros;

use crate::tablet::core::state::TabletState;
use crate::tablet::read::row_assembler::Families;

/// The part of a tablet's state that readers need and that changes rarely.
#[derive(Clone, Debug)]
pub struct TabletMetadata {
    /// Range, generation, replicas.
    pub descriptor: TabletDescriptor,
    /// The table's schema in the version that this replica has applied.
    pub schema: Arc<TableSchema>,
    /// The schema in the form that reads use.
    pub families: Families,
    /// Whether the tablet was dropped.
    pub dropped: bool,
}

/// The applied state of this replica as of its last write batch, as one consistent value for readers.
#[derive(Clone, Debug)]
pub struct AppliedState {
    /// The last entry applied.
    pub applied: LogId,
    /// The log's time.
    pub time: Micros,
    /// The time at which reads evaluate ages.
    pub gc_time: Micros,
    /// Range and schema.
    pub metadata: Arc<TabletMetadata>,
}

impl TabletMetadata {
    pub(super) fn of(state: &TabletState) -> Arc<Self> {
        Arc::new(Self {
            descriptor: state.descriptor.clone(),
            schema: Arc::clone(&state.schema),
            families: Families::new(&state.schema, &state.floors),
            dropped: state.dropped.is_some(),
        })
    }
}

impl AppliedState {
    pub(super) const fn of(state: &TabletState, metadata: Arc<TabletMetadata>) -> Self {
        Self { applied: state.applied, time: state.time, gc_time: state.gc_time, metadata }
    }
}

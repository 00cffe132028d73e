//! The applied state of a replica as one value, published for readers after each write batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ebla_model::id::{CopyId, FamilyId, GroupId, LogId, OperationId, TableId, TabletId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::schema::TableSchema;
use ebla_model::stored_row::stored_range;
use ebla_model::tablet_move::{Departure, MoveId};
use ebla_model::time::Micros;

use crate::tablet::core::family_counters::FamilyCounters;
use crate::tablet::core::state::{GroupState, TableState};
use crate::tablet::load::LoadMeter;
use crate::tablet::read::row_assembler::Families;

/// The part of a group's state that readers need and that changes rarely.
#[derive(Clone, Debug)]
pub struct GroupMetadata {
    /// The group and its replicas.
    pub descriptor: GroupDescriptor,
    /// The tablets of the group.
    pub tablets: BTreeMap<TabletId, Arc<TabletMetadata>>,
    /// Tables that were dropped.
    pub dropped: BTreeSet<TableId>,
    /// Tablets that move to other groups, or have moved a moment ago.
    pub departures: BTreeMap<TabletId, Departure>,
    /// Copies of tablets of other groups that were begun ahead of their moves and are not complete.
    pub copies: BTreeMap<MoveId, CopyId>,
}

/// One tablet of the group.
#[derive(Clone, Debug)]
pub struct TabletMetadata {
    /// Range, generation, replicas.
    pub descriptor: TabletDescriptor,
    /// Its table.
    pub table: Arc<TableMetadata>,
    /// The group that it is moving to. It is not served meanwhile.
    pub moves_to: Option<GroupId>,
    /// The cells that were read and written.
    pub counters: FamilyCounters,
    /// Measures its load. The same from state to state, for as long as the tablet has this generation.
    pub load: Arc<LoadMeter>,
}

/// A table, for all its tablets in the group.
#[derive(Clone, Debug)]
pub struct TableMetadata {
    /// The schema in the version that this replica has applied.
    pub schema: Arc<TableSchema>,
    /// The schema in the form that reads use.
    pub families: Families,
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
    /// The highest admin operation applied; 0: none.
    pub highest_operation: OperationId,
    /// Tablets and schemas.
    pub metadata: Arc<GroupMetadata>,
}

impl GroupMetadata {
    /// `previous`: the metadata that this one replaces; counters and meters of its tablets go on.
    pub(super) fn of(state: &GroupState, previous: Option<&Self>) -> Arc<Self> {
        let table = |table: &TableState| TableMetadata {
            schema: Arc::clone(&table.schema),
            families: Families::new(&table.schema, &table.floors),
        };
        let tables: BTreeMap<_, _> = state.tables.iter().map(|(id, state)| (*id, Arc::new(table(state)))).collect();
        let tablet = |tablet: &TabletDescriptor| {
            let table = Arc::clone(tables.get(&tablet.table)?);
            let moves_to = state.departure_of(tablet.tablet).map(|departure| departure.target.group);
            let load = load_meter(tablet, previous);
            let before = previous.and_then(|previous| previous.tablets.get(&tablet.tablet));
            let counters = FamilyCounters::new(&table.schema, before.map(|before| &before.counters));
            let descriptor = tablet.clone();
            Some((tablet.tablet, Arc::new(TabletMetadata { descriptor, table, moves_to, load, counters })))
        };
        Arc::new(Self {
            descriptor: state.descriptor.clone(),
            // The state has the table of each of its tablets.
            tablets: state.tablets.values().filter_map(tablet).collect(),
            dropped: state.dropped.clone(),
            departures: state.departures.clone(),
            copies: state.copies().collect(),
        })
    }
}

impl GroupMetadata {
    /// Counts cells that were written in the tablets that the group has.
    pub(super) fn count_written(&self, written: Vec<(TabletId, FamilyId, u64)>) {
        for (tablet, family, cells) in written {
            if let Some(tablet) = self.tablets.get(&tablet) {
                tablet.counters.count_written(family, cells);
            }
        }
    }
}

/// The meter of a tablet: its present one; after a merge one that continues those of its parts; otherwise a new one.
fn load_meter(tablet: &TabletDescriptor, previous: Option<&GroupMetadata>) -> Arc<LoadMeter> {
    let Some(previous) = previous else { return Arc::default() };
    match previous.tablets.get(&tablet.tablet) {
        Some(same) if same.descriptor.generation == tablet.generation => Arc::clone(&same.load),
        Some(same) if tablet.range != same.descriptor.range && tablet.range.covers(&same.descriptor.range) => {
            let tablets = previous.tablets.values();
            let parts = tablets
                .filter(|part| part.descriptor.table == tablet.table && tablet.range.covers(&part.descriptor.range));
            let parts: Vec<_> = parts.map(|part| Arc::clone(&part.load)).collect();
            Arc::new(LoadMeter::merged(&parts))
        }
        _ => Arc::default(),
    }
}

impl TabletMetadata {
    /// The table's schema.
    #[must_use]
    pub fn schema(&self) -> &Arc<TableSchema> {
        &self.table.schema
    }

    /// The table's families.
    #[must_use]
    pub fn families(&self) -> &Families {
        &self.table.families
    }

    /// A range of the tablet's rows, as stored.
    #[must_use]
    pub fn stored_range(&self, range: &KeyRange) -> KeyRange {
        stored_range(self.descriptor.table, range)
    }
}

impl AppliedState {
    pub(super) fn of(state: &GroupState, metadata: Arc<GroupMetadata>) -> Self {
        let highest_operation = state.operations.last_key_value().map(|(id, _dropped)| *id).unwrap_or_default();
        Self { applied: state.applied, time: state.time, gc_time: state.gc_time, highest_operation, metadata }
    }

    /// A tablet of the group.
    #[must_use]
    pub fn tablet(&self, tablet: TabletId) -> Option<&Arc<TabletMetadata>> {
        self.metadata.tablets.get(&tablet)
    }
}

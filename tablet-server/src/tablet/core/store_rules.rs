//! What a store needs to know of a group's state: which cells are garbage, and where the cells of each family belong. Pure.

use std::collections::BTreeMap;

use ebla_model::id::TableId;
use ebla_model::key::KeyRange;
use ebla_model::schema::{Family, TableSchema};
use ebla_storage::store::compaction::TableGcRules;
use ebla_storage::store::{CellFamily, GcRules, WantedFamilies};

use crate::tablet::core::state::GroupState;

/// What compactions may drop, and what reads hide, by the key of a cell alone.
pub(in crate::tablet) fn gc_rules(state: &GroupState) -> GcRules {
    let mut ranges: BTreeMap<TableId, Vec<KeyRange>> = BTreeMap::new();
    for tablet in state.tablets.values() {
        ranges.entry(tablet.table).or_default().push(tablet.range.clone());
    }
    for arrival in state.importing() {
        ranges.entry(arrival.table).or_default().push(arrival.range.clone());
    }
    let tables = ranges.into_iter().filter_map(|(table, ranges)| {
        let known = state.tables.get(&table)?;
        let rules = TableGcRules {
            table,
            families: known.schema.families.iter().map(|family| family.id).collect(),
            next_family: known.schema.next_family,
            floors: known.floors.clone(),
        };
        Some((rules, ranges))
    });
    GcRules::new(tables)
}

/// Where the schemas want the families of all tables.
pub(super) fn wanted_families(state: &GroupState) -> BTreeMap<TableId, WantedFamilies> {
    let families = |schema: &TableSchema| {
        let family = |family: &Family| {
            let group = family.locality_group;
            (family.id, CellFamily { group, options: schema.group_options(group) })
        };
        schema.families.iter().map(family).collect()
    };
    state.tables.iter().map(|(table, known)| (*table, families(&known.schema))).collect()
}

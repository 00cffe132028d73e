//! Aggregate merge: converts additions to plain writes, given the current states of the row.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{AggregateState, Aggregator};
use crate::cell::Row;
use crate::error::Error;
use crate::id::FamilyId;
use crate::mutation::Change;
use crate::schema::TableSchema;
use crate::time::Micros;

/// Maximum number of sketches that one request may add to. Each is read and written as a whole, up to 32 KiB for a few
/// bytes of the request, so this bounds the cost of a request.
pub const SKETCHES_MAX: usize = 1_000;

/// A mutation with a resolved family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ResolvedMutation {
    /// A change that does not depend on the row.
    Change(Change),
    /// An addition to an aggregate state.
    Merge { family: FamilyId, aggregator: Aggregator, qualifier: Bytes, timestamp: Micros, operand: AggregateState },
}

/// A row's mutations with resolved families. The resulting changes depend on the row if any of them adds to an aggregate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    mutations: Vec<ResolvedMutation>,
}

impl Resolution {
    /// # Errors
    /// `InvalidArgument` when more sketches are added to than a request may.
    pub(crate) fn new(mutations: Vec<ResolvedMutation>) -> Result<Self, Error> {
        let resolution = Self { mutations };
        let sketches = resolution.addresses().values().filter(|aggregator| aggregator.is_sketch()).count();
        if sketches > SKETCHES_MAX {
            return Err(Error::invalid(format!(
                "too many cells with approximate counts: {sketches}, the limit is {SKETCHES_MAX}"
            )));
        }
        Ok(resolution)
    }

    /// The cells that the mutations add to.
    fn addresses(&self) -> BTreeMap<CellAddress, Aggregator> {
        let address = |mutation: &ResolvedMutation| match mutation {
            ResolvedMutation::Change(_) => None,
            ResolvedMutation::Merge { family, aggregator, qualifier, timestamp, .. } => {
                Some(((*family, qualifier.clone(), *timestamp), *aggregator))
            }
        };
        self.mutations.iter().filter_map(address).collect()
    }

    /// The columns that must be read; empty when the row need not be read.
    pub fn columns(&self) -> BTreeSet<(FamilyId, Bytes)> {
        self.addresses().into_keys().map(|(family, qualifier, _time)| (family, qualifier)).collect()
    }

    /// Whether the changes are independent of the row (blind writes).
    pub fn is_blind(&self) -> bool {
        self.mutations.iter().all(|mutation| matches!(mutation, ResolvedMutation::Change(_)))
    }

    /// Merges the additions into the current states. Returns the changes: the plain ones in their order, then each state that
    /// has changed, once. So a state is written once however often it is added to, and not at all if it did not change.
    /// Deletes precede the states, which already exclude the deleted inputs.
    ///
    /// `current`: the visible cells of the [columns](Self::columns) (other cells are ignored), under the schema of the
    /// resolution.
    ///
    /// # Errors
    /// `DataDamaged` when a current cell is not a valid state. Then nothing may be applied.
    pub fn merge(self, schema: &TableSchema, current: &Row) -> Result<Vec<Change>, Error> {
        let mut states = States::of(&self.addresses(), schema, current)?;
        let mut changes: Vec<_> = self.mutations.into_iter().filter_map(|mutation| states.apply(mutation)).collect();
        changes.extend(states.writes());
        Ok(changes)
    }
}

/// The cell of a state.
type CellAddress = (FamilyId, Bytes, Micros);

/// A state during the merge.
struct StateEntry {
    state: AggregateState,
    /// Whether it differs from the row's.
    is_changed: bool,
}

/// The versions of a column.
type Versions = BTreeMap<Micros, StateEntry>;

/// The states of a row during the merge.
#[derive(Default)]
struct States {
    families: BTreeMap<FamilyId, BTreeMap<Bytes, Versions>>,
}

impl States {
    fn of(addresses: &BTreeMap<CellAddress, Aggregator>, schema: &TableSchema, current: &Row) -> Result<Self, Error> {
        let mut states = Self::default();
        if addresses.is_empty() {
            return Ok(states);
        }
        for cell in &current.cells {
            let Some(family) = schema.family_by_name(cell.family.as_str()) else { continue };
            let address = (family.id, cell.qualifier.clone(), cell.timestamp);
            let Some(aggregator) = addresses.get(&address) else { continue };
            let state = aggregator
                .decode(&cell.value)
                .map_err(|reason| Error::damaged(format!("a cell of aggregate family {} {reason}", family.name)))?;
            states.versions(family.id, &cell.qualifier).insert(cell.timestamp, StateEntry { state, is_changed: false });
        }
        Ok(states)
    }

    fn versions(&mut self, family: FamilyId, qualifier: &Bytes) -> &mut Versions {
        self.families.entry(family).or_default().entry(qualifier.clone()).or_default()
    }

    /// Merges an addition; returns any other change.
    fn apply(&mut self, mutation: ResolvedMutation) -> Option<Change> {
        match mutation {
            ResolvedMutation::Change(change) => {
                self.delete(&change);
                Some(change)
            }
            ResolvedMutation::Merge { family, aggregator, qualifier, timestamp, operand } => {
                let versions = self.versions(family, &qualifier);
                match versions.get_mut(&timestamp) {
                    Some(entry) => entry.is_changed |= aggregator.merge(&mut entry.state, &operand),
                    None => drop(versions.insert(timestamp, StateEntry { state: operand, is_changed: true })),
                }
                None
            }
        }
    }

    /// Removes the states that a change deletes. Each is removed once, so a request's deletes cost no more than its additions.
    fn delete(&mut self, change: &Change) {
        match change {
            // Never in an aggregate family.
            Change::SetCell { .. } => {}
            Change::DeleteColumn { family, qualifier, start, end } => {
                let Some(versions) = self.families.get_mut(family).and_then(|columns| columns.get_mut(qualifier))
                else {
                    return;
                };
                let mut deleted = versions.split_off(start);
                if let Some(end) = end {
                    versions.append(&mut deleted.split_off(end));
                }
            }
            Change::DeleteFamily(family) => drop(self.families.remove(family)),
            Change::DeleteRow => self.families.clear(),
        }
    }

    /// Writes of the changed states, by family, column and version.
    fn writes(self) -> impl Iterator<Item = Change> {
        let columns = self.families.into_iter().flat_map(|(family, columns)| {
            columns.into_iter().map(move |(qualifier, versions)| (family, qualifier, versions))
        });
        columns.flat_map(|(family, qualifier, versions)| {
            let changed = versions.into_iter().filter(|(_, entry)| entry.is_changed);
            changed.map(move |(timestamp, entry)| Change::SetCell {
                family,
                qualifier: qualifier.clone(),
                timestamp,
                value: entry.state.encode(),
            })
        })
    }
}

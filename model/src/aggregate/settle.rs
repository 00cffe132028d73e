//! Additions become plain writes: what a row's mutations come to, given what the row holds.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Aggregator, State};
use crate::cell::Row;
use crate::error::Error;
use crate::id::FamilyId;
use crate::mutation::Change;
use crate::schema::TableSchema;
use crate::time::Micros;

/// Most sketches that one request may add to. Each is read and written as a whole, up to 32 KiB for a few bytes of a
/// request, so this bounds what a request comes to.
pub const SKETCHES_MAX: usize = 1_000;

/// A mutation with its family looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It needs to know nothing of the row.
    Change(Change),
    /// It changes a state.
    Merge { family: FamilyId, aggregator: Aggregator, qualifier: Bytes, timestamp: Micros, operand: State },
}

/// A row's mutations with their families looked up. What they come to depends on the row if any of them aggregates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    steps: Vec<Step>,
}

impl Resolution {
    /// # Errors
    /// `InvalidArgument` when more sketches are added to than a request may.
    pub(crate) fn new(steps: Vec<Step>) -> Result<Self, Error> {
        let resolution = Self { steps };
        let sketches = resolution.places().values().filter(|aggregator| aggregator.is_sketch()).count();
        if sketches > SKETCHES_MAX {
            return Err(Error::invalid(format!(
                "too many cells of approximate counts: {sketches}, of which at most {SKETCHES_MAX} are allowed"
            )));
        }
        Ok(resolution)
    }

    /// The cells that are added to.
    fn places(&self) -> BTreeMap<Place, Aggregator> {
        let place = |step: &Step| match step {
            Step::Change(_) => None,
            Step::Merge { family, aggregator, qualifier, timestamp, .. } => {
                Some(((*family, qualifier.clone(), *timestamp), *aggregator))
            }
        };
        self.steps.iter().filter_map(place).collect()
    }

    /// The columns whose cells must be known; none when the row need not be read.
    pub fn columns(&self) -> BTreeSet<(FamilyId, Bytes)> {
        self.places().into_keys().map(|(family, qualifier, _time)| (family, qualifier)).collect()
    }

    /// Whether the changes are the same whatever the row holds.
    pub fn is_blind(&self) -> bool {
        self.steps.iter().all(|step| matches!(step, Step::Change(_)))
    }

    /// The changes: what is not added, in its order, then each state that is another at the end, once. So a state costs
    /// what it takes, however often it is added to, and nothing when it stays as it is. Deletes come before the states:
    /// what they leave out of a state is out of it already.
    ///
    /// `current`: what is to be seen of the [columns](Self::columns) (other cells do not matter), under the schema that
    /// this was resolved with.
    ///
    /// # Errors
    /// `DataDamaged` when a cell that is added to is no state. Then nothing may be applied.
    pub fn settle(self, schema: &TableSchema, current: &Row) -> Result<Vec<Change>, Error> {
        let mut states = States::of(&self.places(), schema, current)?;
        let mut changes: Vec<_> = self.steps.into_iter().filter_map(|step| states.take(step)).collect();
        changes.extend(states.writes());
        Ok(changes)
    }
}

/// Where a state is.
type Place = (FamilyId, Bytes, Micros);

/// A state while mutations are at work on it.
struct Held {
    state: State,
    /// It is not what the row holds.
    is_changed: bool,
}

/// The versions of a column.
type Versions = BTreeMap<Micros, Held>;

/// The states of a row while mutations are at work on it.
#[derive(Default)]
struct States {
    families: BTreeMap<FamilyId, BTreeMap<Bytes, Versions>>,
}

impl States {
    fn of(places: &BTreeMap<Place, Aggregator>, schema: &TableSchema, current: &Row) -> Result<Self, Error> {
        let mut states = Self::default();
        if places.is_empty() {
            return Ok(states);
        }
        for cell in &current.cells {
            let Some(family) = schema.family_by_name(cell.family.as_str()) else { continue };
            let place = (family.id, cell.qualifier.clone(), cell.timestamp);
            let Some(aggregator) = places.get(&place) else { continue };
            let state = aggregator
                .decode(&cell.value)
                .map_err(|reason| Error::damaged(format!("a cell of aggregate family {} {reason}", family.name)))?;
            states.versions(family.id, &cell.qualifier).insert(cell.timestamp, Held { state, is_changed: false });
        }
        Ok(states)
    }

    fn versions(&mut self, family: FamilyId, qualifier: &Bytes) -> &mut Versions {
        self.families.entry(family).or_default().entry(qualifier.clone()).or_default()
    }

    /// Takes an addition in; hands anything else on.
    fn take(&mut self, step: Step) -> Option<Change> {
        match step {
            Step::Change(change) => {
                self.forget(&change);
                Some(change)
            }
            Step::Merge { family, aggregator, qualifier, timestamp, operand } => {
                let versions = self.versions(family, &qualifier);
                match versions.get_mut(&timestamp) {
                    Some(held) => held.is_changed |= aggregator.merge(&mut held.state, &operand),
                    None => drop(versions.insert(timestamp, Held { state: operand, is_changed: true })),
                }
                None
            }
        }
    }

    /// Takes away what a change deletes. Each state is taken away once, so a request's deletes cost no more than its
    /// additions.
    fn forget(&mut self, change: &Change) {
        match change {
            // Never into an aggregate family.
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

    /// The states that are not what the row holds, by family, column and version.
    fn writes(self) -> impl Iterator<Item = Change> {
        let columns = self.families.into_iter().flat_map(|(family, columns)| {
            columns.into_iter().map(move |(qualifier, versions)| (family, qualifier, versions))
        });
        columns.flat_map(|(family, qualifier, versions)| {
            let changed = versions.into_iter().filter(|(_, held)| held.is_changed);
            changed.map(move |(timestamp, held)| Change::SetCell {
                family,
                qualifier: qualifier.clone(),
                timestamp,
                value: held.state.encode(),
            })
        })
    }
}

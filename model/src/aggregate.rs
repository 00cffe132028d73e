//! Aggregate families: cells that hold the sum, the least or the greatest of what was added to them.
//!
//! A cell's content is its state, a signed integer of 8 bytes, big endian; a reader sees just these bytes. Cells of
//! different timestamps aggregate apart from each other. What follows a delete begins anew, in the same request too.
//!
//! The leader turns additions into plain writes of the new state while it holds the row ([`Resolution::settle`]), so
//! nothing is added up when a log is applied: replicas cannot differ, and a log that is read again comes to the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use bytes::Bytes;

use crate::cell::Row;
use crate::error::Error;
use crate::id::FamilyId;
use crate::mutation::Change;
use crate::schema::{Family, TableSchema};
use crate::time::Micros;

/// How the cells of an aggregate family bring two states together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aggregator {
    /// Their sum, wrapping around.
    Sum,
    /// The lesser.
    Min,
    /// The greater.
    Max,
}

impl Aggregator {
    /// The state of two together. The order does not matter.
    pub fn merge(self, one: i64, other: i64) -> i64 {
        match self {
            Self::Sum => one.wrapping_add(other),
            Self::Min => one.min(other),
            Self::Max => one.max(other),
        }
    }
}

impl fmt::Display for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
        })
    }
}

/// The bytes of a state.
pub fn encode_state(state: i64) -> Bytes {
    Bytes::copy_from_slice(&state.to_be_bytes())
}

/// The state of these bytes, `None` when they are not 8.
pub fn decode_state(bytes: &[u8]) -> Option<i64> {
    bytes.try_into().ok().map(i64::from_be_bytes)
}

/// A mutation with its family looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It needs to know nothing of the row.
    Change(Change),
    /// It changes a state.
    Merge { family: FamilyId, aggregator: Aggregator, qualifier: Bytes, timestamp: Micros, operand: i64 },
}

/// A row's mutations with their families looked up. What they come to depends on the row if any of them aggregates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    steps: Vec<Step>,
}

impl Resolution {
    pub(crate) const fn new(steps: Vec<Step>) -> Self {
        Self { steps }
    }

    /// The columns whose cells must be known; none when the row need not be read.
    pub fn columns(&self) -> BTreeSet<(FamilyId, Bytes)> {
        let column = |step: &Step| match step {
            Step::Change(_) => None,
            Step::Merge { family, qualifier, .. } => Some((*family, qualifier.clone())),
        };
        self.steps.iter().filter_map(column).collect()
    }

    /// Whether the changes are the same whatever the row holds.
    pub fn is_blind(&self) -> bool {
        self.steps.iter().all(|step| matches!(step, Step::Change(_)))
    }

    /// The changes, in their order.
    ///
    /// `current`: what is to be seen of the [columns](Self::columns) (other cells do not matter), under the schema that
    /// this was resolved with.
    ///
    /// # Errors
    /// `DataDamaged` when a cell of an aggregate family is no state. Then nothing may be applied.
    pub fn settle(self, schema: &TableSchema, current: &Row) -> Result<Vec<Change>, Error> {
        if self.is_blind() {
            return Ok(self.steps.into_iter().filter_map(Step::blind).collect());
        }
        let mut states = States::of(schema, current)?;
        Ok(self.steps.into_iter().map(|step| states.take(step)).collect())
    }
}

impl Step {
    fn blind(self) -> Option<Change> {
        match self {
            Self::Change(change) => Some(change),
            Self::Merge { .. } => None,
        }
    }
}

/// The versions of a column.
type Versions = BTreeMap<Micros, i64>;

/// The states of a row while mutations are at work on it.
#[derive(Default)]
struct States {
    families: BTreeMap<FamilyId, BTreeMap<Bytes, Versions>>,
}

impl States {
    fn of(schema: &TableSchema, current: &Row) -> Result<Self, Error> {
        let mut states = Self::default();
        let aggregates = |family: &Family| family.aggregator.is_some();
        for cell in &current.cells {
            if let Some(family) = schema.family_by_name(cell.family.as_str()).filter(|family| aggregates(family)) {
                let state = decode_state(&cell.value)
                    .ok_or_else(|| Error::damaged(format!("a cell of aggregate family {} is no state", family.name)))?;
                states.versions(family.id, &cell.qualifier).insert(cell.timestamp, state);
            }
        }
        Ok(states)
    }

    fn versions(&mut self, family: FamilyId, qualifier: &Bytes) -> &mut Versions {
        self.families.entry(family).or_default().entry(qualifier.clone()).or_default()
    }

    fn take(&mut self, step: Step) -> Change {
        match step {
            Step::Change(change) => {
                self.forget(&change);
                change
            }
            Step::Merge { family, aggregator, qualifier, timestamp, operand } => {
                let versions = self.versions(family, &qualifier);
                let state = versions.get(&timestamp).map_or(operand, |state| aggregator.merge(*state, operand));
                versions.insert(timestamp, state);
                Change::SetCell { family, qualifier, timestamp, value: encode_state(state) }
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
}

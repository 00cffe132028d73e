//! The emulator's known errors. A step that would meet one is put to Ebla alone; what it changed is then written to the
//! emulator plainly, so that both continue with the same rows.
//!
//! Each line has the observed difference. To check whether it still exists, remove the line and run a few seeds.

use ebla_model::filter::Filter;
use tonic::Code;

use super::model::Outcome;
use super::program::{Step, Table};

/// A known difference of the emulator.
struct Known {
    #[expect(dead_code, reason = "documentation of the list")]
    reason: &'static str,
    meets: fn(&Step, &Outcome) -> bool,
}

const KNOWN: [Known; 6] = [
    Known {
        reason: "requests that must be refused are accepted, or half of them is carried out, or the code is another: \
                 unknown families, inverted ranges, filters that are not valid, conditions without mutations",
        meets: |_, expected| match expected {
            Outcome::Refused(_) => true,
            Outcome::Entries(codes) => codes.iter().any(|code| *code != Code::Ok),
            _ => false,
        },
    },
    Known { reason: "sinks are ignored", meets: |step, _| holds(step, |filter| matches!(filter, Filter::Sink)) },
    Known {
        reason: "masks of values are ignored: they are newer than it",
        meets: |step, _| holds(step, |filter| matches!(filter, Filter::ValueBitmask(_))),
    },
    Known {
        reason: "a value that is stripped loses its labels",
        meets: |step, _| holds(step, |filter| matches!(filter, Filter::StripValue)) && holds(step, labels),
    },
    Known {
        reason: "cells of a row are counted family by family in an order that changes",
        meets: |step, _| table(step) == Table::Two && holds(step, counts_rows),
    },
    Known {
        reason: "no error: which of two copies of a version comes first is open, and a count then takes either",
        meets: |step, _| {
            let counts = |filter: &Filter| counts_rows(filter) || matches!(filter, Filter::CellsPerColumnLimit(_));
            let changes = |filter: &Filter| matches!(filter, Filter::StripValue) || labels(filter);
            holds(step, |filter| matches!(filter, Filter::Interleave(_))) && holds(step, counts) && holds(step, changes)
        },
    },
];

/// What is put to the emulator for a step that must end so, and how it must end there. `None`: nothing.
pub(crate) fn put(step: &Step, expected: &Outcome) -> Option<(Step, Outcome)> {
    let known = KNOWN.iter().find(|known| (known.meets)(step, expected));
    if known.is_some() { plainly(step, expected) } else { Some((step.clone(), expected.clone())) }
}

/// The changes of a step, as a step without known differences.
fn plainly(step: &Step, expected: &Outcome) -> Option<(Step, Outcome)> {
    match (step, expected) {
        (Step::Bulk { table, entries }, Outcome::Entries(codes)) => {
            let good: Vec<_> = entries
                .iter()
                .zip(codes)
                .filter(|(_, code)| **code == Code::Ok)
                .map(|(entry, _)| entry.clone())
                .collect();
            let expected = Outcome::Entries(vec![Code::Ok; good.len()]);
            (!good.is_empty()).then_some((Step::Bulk { table: *table, entries: good }, expected))
        }
        (Step::Check { table, row, then, otherwise, .. }, Outcome::Matched(matched)) => {
            let changes = if *matched { then } else { otherwise }.clone();
            (!changes.is_empty()).then(|| (Step::Mutate { table: *table, row: row.clone(), changes }, Outcome::Done))
        }
        _ => None,
    }
}

fn labels(filter: &Filter) -> bool {
    matches!(filter, Filter::ApplyLabel(_))
}

fn counts_rows(filter: &Filter) -> bool {
    matches!(filter, Filter::CellsPerRowOffset(_) | Filter::CellsPerRowLimit(_))
}

fn table(step: &Step) -> Table {
    match step {
        Step::Mutate { table, .. }
        | Step::Bulk { table, .. }
        | Step::Check { table, .. }
        | Step::Modify { table, .. }
        | Step::Read { table, .. } => *table,
    }
}

/// Whether any filter in the step's tree matches.
fn holds(step: &Step, is_such: impl Fn(&Filter) -> bool) -> bool {
    let filter = match step {
        Step::Check { predicate, .. } => predicate.as_ref(),
        Step::Read { filter, .. } => filter.as_ref(),
        Step::Mutate { .. } | Step::Bulk { .. } | Step::Modify { .. } => None,
    };
    filter.is_some_and(|filter| inside(filter, &is_such))
}

fn inside(filter: &Filter, is_such: &dyn Fn(&Filter) -> bool) -> bool {
    let members: Vec<&Filter> = match filter {
        Filter::Chain(members) | Filter::Interleave(members) => members.iter().collect(),
        Filter::Condition { predicate, then, otherwise } => {
            let branches = [then, otherwise].into_iter().flatten();
            std::iter::once(predicate.as_ref()).chain(branches.map(AsRef::as_ref)).collect()
        }
        _ => Vec::new(),
    };
    is_such(filter) || members.into_iter().any(|member| inside(member, is_such))
}

//! Evaluates a filter on a row. Every filtered read runs this code.
//!
//! Leaves filter the row's own vector of cells in place, chains and conditions pass it on. Only an interleave needs its
//! input several times: inside one, cells are [`Pick`]s, three words each, and the final ones are cloned; a clone shares the
//! bytes. A predicate stops at the first cell that passes.
//!
//! The first member of the outermost chain decides which cells count for the budget: what a caller may not see is removed there.
//!
//! A sink moves cells directly to the output, past all later nodes. A program with a sink runs on picks throughout. No
//! predicate has one.

use std::ops::RangeBounds;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{Cell, FamilyName, Row};
use crate::error::Error;
use crate::filter::budget::FilterBudget;
use crate::filter::compile::{Leaf, Node, Program};
use crate::filter::regex::Matcher;

/// The cells of `row` that pass `program`.
pub(super) fn apply(program: &Program, row: Row, deadline_passed: &dyn Fn() -> bool) -> Result<Row, Error> {
    let budget = FilterBudget::new(row.cells.len(), deadline_passed);
    let row = match &program.root {
        _ if program.has_sink => apply_to_picks(&program.root, row, &budget),
        Node::Chain(members) => match members.split_first() {
            Some((first, rest)) => {
                let row = apply_in_place(first, row, &budget);
                budget.narrow(row.cells.len());
                rest.iter().fold(row, |row, member| apply_in_place(member, row, &budget))
            }
            None => row,
        },
        root => apply_in_place(root, row, &budget),
    };
    budget.finish(row)
}

/// Whether any cell of `row` passes `program`.
pub(super) fn matches(program: &Program, row: &Row, deadline_passed: &dyn Fn() -> bool) -> Result<bool, Error> {
    let budget = FilterBudget::new(row.cells.len(), deadline_passed);
    let matches = if program.has_sink {
        !passing_cells(&program.root, row, &budget).is_empty()
    } else if let Node::Chain(members) = &program.root {
        let picks: Vec<_> = row.cells.iter().map(Pick::new).collect();
        Run::new(row.key.as_bytes(), &budget).root_chain_matches_any(members, &picks)
    } else {
        matches_any(&program.root, row, &budget)
    };
    budget.finish(matches)
}

/// For a node without sinks.
fn apply_in_place(node: &Node, mut row: Row, budget: &FilterBudget<'_>) -> Row {
    if row.cells.is_empty() || budget.is_exhausted() {
        return row;
    }
    match node {
        Node::Leaf(leaf) => {
            Run::new(row.key.as_bytes(), budget).filter_cells(leaf, &mut row.cells);
            row
        }
        Node::Chain(members) => members.iter().fold(row, |row, member| apply_in_place(member, row, budget)),
        Node::Interleave(_) => apply_to_picks(node, row, budget),
        Node::Condition { predicate, then, otherwise } => {
            let branch = if matches_any(predicate, &row, budget) { then } else { otherwise };
            apply_in_place(branch, row, budget)
        }
    }
}

fn apply_to_picks(node: &Node, row: Row, budget: &FilterBudget<'_>) -> Row {
    let picks = passing_cells(node, &row, budget);
    if budget.is_exhausted() {
        return Row::empty(row.key);
    }
    let cells = picks.into_iter().map(Pick::into_cell).collect();
    Row { key: row.key, cells }
}

/// The cells of `row` that pass `node`, and those that its sinks took, in order.
fn passing_cells<'a>(node: &'a Node, row: &'a Row, budget: &'a FilterBudget<'a>) -> Vec<Pick<'a>> {
    let mut run = Run::new(row.key.as_bytes(), budget);
    let mut picks = row.cells.iter().map(Pick::new).collect();
    run.pass_root(node, &mut picks);
    run.into_output(picks)
}

/// Whether any cell of `row` passes `node`, which has no sinks.
fn matches_any(node: &Node, row: &Row, budget: &FilterBudget<'_>) -> bool {
    let key = row.key.as_bytes();
    match node {
        Node::Leaf(leaf) => Run::new(key, budget).any(leaf, &row.cells),
        _ => Run::new(key, budget).matches_any(node, &row.cells.iter().map(Pick::new).collect::<Vec<_>>()),
    }
}

/// Whether a node decides on each cell separately.
fn is_local(node: &Node) -> bool {
    matches!(node, Node::Leaf(leaf) if leaf.is_local())
}

/// A cell inside a filter that lives as long as `'a`.
trait Candidate<'a>: Clone {
    fn cell(&self) -> &Cell;
    fn value(&self) -> &[u8];
    fn strip(&mut self);
    fn label(&mut self, label: &'a Arc<str>);
}

impl<'a> Candidate<'a> for Cell {
    fn cell(&self) -> &Cell {
        self
    }

    fn value(&self) -> &[u8] {
        &self.value
    }

    fn strip(&mut self) {
        self.value = Bytes::new();
    }

    fn label(&mut self, label: &'a Arc<str>) {
        self.labels = vec![Arc::clone(label)];
    }
}

/// A reference to a cell of the row, whether its value is stripped, and its label.
#[derive(Clone, Copy)]
struct Pick<'a> {
    cell: &'a Cell,
    value: Value,
    label: Option<&'a Arc<str>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Kept,
    Stripped,
}

impl<'a> Pick<'a> {
    const fn new(cell: &'a Cell) -> Self {
        Self { cell, value: Value::Kept, label: None }
    }

    fn into_cell(self) -> Cell {
        let mut cell = Cell {
            family: self.cell.family.clone(),
            qualifier: self.cell.qualifier.clone(),
            timestamp: self.cell.timestamp,
            value: Bytes::new(),
            labels: self.label.map_or_else(|| self.cell.labels.clone(), |label| vec![Arc::clone(label)]),
        };
        if self.value == Value::Kept {
            cell.value.clone_from(&self.cell.value);
        }
        cell
    }
}

impl<'a> Candidate<'a> for Pick<'a> {
    fn cell(&self) -> &Cell {
        self.cell
    }

    fn value(&self) -> &[u8] {
        match self.value {
            Value::Kept => &self.cell.value,
            Value::Stripped => &[],
        }
    }

    fn strip(&mut self) {
        self.value = Value::Stripped;
    }

    fn label(&mut self, label: &'a Arc<str>) {
        self.label = Some(label);
    }
}

/// One run of a program on the cells of one row.
struct Run<'a, C> {
    /// The row's key.
    key: &'a [u8],
    /// Cells that sinks took.
    sunk: Vec<C>,
    /// Once it is exhausted, the output is meaningless.
    budget: &'a FilterBudget<'a>,
}

impl<'a, C: Candidate<'a>> Run<'a, C> {
    const fn new(key: &'a [u8], budget: &'a FilterBudget<'a>) -> Self {
        Self { key, sunk: Vec::new(), budget }
    }

    /// The cells that passed and those that sinks took, in order.
    fn into_output(self, mut passed: Vec<C>) -> Vec<C> {
        if !self.sunk.is_empty() {
            passed.extend(self.sunk);
            sort(&mut passed);
        }
        passed
    }

    /// As [`Self::pass`], for the root of a program or what is left of it.
    fn pass_root(&mut self, node: &'a Node, cells: &mut Vec<C>) {
        let Node::Chain(members) = node else { return self.pass(node, cells) };
        let mut members = members.iter();
        if let Some(first) = members.next() {
            self.pass(first, cells);
            self.budget.narrow(cells.len() + self.sunk.len());
        }
        members.for_each(|member| self.pass(member, cells));
    }

    /// Retains the cells that pass `node`.
    fn pass(&mut self, node: &'a Node, cells: &mut Vec<C>) {
        if cells.is_empty() || self.budget.is_exhausted() {
            return;
        }
        match node {
            Node::Leaf(leaf) => self.filter_cells(leaf, cells),
            Node::Chain(members) => members.iter().for_each(|member| self.pass(member, cells)),
            Node::Interleave(members) => self.interleave(members, cells),
            Node::Condition { predicate, then, otherwise } => {
                let branch = if self.matches_any(predicate, cells) { then } else { otherwise };
                self.pass(branch, cells);
            }
        }
    }

    /// Replaces `cells` by the outputs of all members on them, in order. A cell that passes several members occurs several
    /// times.
    fn interleave(&mut self, members: &'a [Node], cells: &mut Vec<C>) {
        let input = std::mem::take(cells);
        let mut outputs = 0;
        for member in members {
            if !self.budget.charge_cells(input.len()) {
                return;
            }
            let mut part = input.clone();
            self.pass(member, &mut part);
            if !self.budget.check_cells(cells.len() + part.len() + self.sunk.len()) {
                return;
            }
            outputs += usize::from(!part.is_empty());
            if cells.is_empty() {
                *cells = part;
            } else {
                cells.append(&mut part);
            }
        }
        if outputs > 1 {
            sort(cells);
        }
    }

    /// Whether any of `cells` passes `node`, which has no sinks.
    fn matches_any(&mut self, node: &'a Node, cells: &[C]) -> bool {
        match node {
            Node::Leaf(leaf) => self.any(leaf, cells),
            Node::Chain(members) => self.chain_matches_any(members, cells),
            Node::Interleave(members) => members.iter().any(|member| self.matches_any(member, cells)),
            Node::Condition { predicate, then, otherwise } => {
                let branch = if self.matches_any(predicate, cells) { then } else { otherwise };
                self.matches_any(branch, cells)
            }
        }
    }

    /// As [`Self::chain_matches_any`], for the root of a program.
    fn root_chain_matches_any(&mut self, members: &'a [Node], cells: &[C]) -> bool {
        match members.split_first() {
            Some((first, rest)) if !members.iter().all(is_local) => {
                let mut cells = cells.to_vec();
                self.pass(first, &mut cells);
                self.budget.narrow(cells.len());
                self.chain_matches_any(rest, &cells)
            }
            // Without copies there is no refusal.
            _ => self.chain_matches_any(members, cells),
        }
    }

    fn chain_matches_any(&mut self, members: &'a [Node], cells: &[C]) -> bool {
        if members.iter().all(is_local) {
            let passes =
                |cell: &C| members.iter().all(|member| matches!(member, Node::Leaf(leaf) if self.passes(leaf, cell)));
            return cells.iter().any(passes);
        }
        let Some((last, first)) = members.split_last() else { return !cells.is_empty() };
        let mut cells = cells.to_vec();
        for member in first {
            self.pass(member, &mut cells);
        }
        self.matches_any(last, &cells)
    }

    /// Whether any of `cells` passes a leaf.
    fn any(&self, leaf: &Leaf, cells: &[C]) -> bool {
        match leaf {
            Leaf::BlockAll => false,
            Leaf::PassAll
            | Leaf::CellsPerRowLimit(_)
            | Leaf::CellsPerColumnLimit(_)
            | Leaf::StripValue
            | Leaf::Label(_)
            | Leaf::Sink => !cells.is_empty(),
            Leaf::CellsPerRowOffset(count) => cells.len() > *count,
            Leaf::RowKey(pattern) => !cells.is_empty() && pattern.is_match(self.key),
            Leaf::Sample(sample) => !cells.is_empty() && sample.includes(self.key),
            _ => cells.iter().any(|cell| self.passes(leaf, cell)),
        }
    }

    /// Whether this cell passes a leaf that decides on each cell separately.
    fn passes(&self, leaf: &Leaf, cell: &C) -> bool {
        let continues = match leaf {
            Leaf::Value(_) => self.budget.charge_value(cell.value().len()),
            _ => self.budget.charge_cells(1),
        };
        continues && leaf.passes(cell)
    }

    /// Retains the cells that pass a leaf.
    fn filter_cells(&mut self, leaf: &'a Leaf, cells: &mut Vec<C>) {
        if !leaf.is_local() && !self.budget.charge_cells(cells.len()) {
            return;
        }
        match leaf {
            Leaf::PassAll => {}
            Leaf::BlockAll => cells.clear(),
            Leaf::RowKey(pattern) => {
                if !pattern.is_match(self.key) {
                    cells.clear();
                }
            }
            Leaf::Sample(sample) => {
                if !sample.includes(self.key) {
                    cells.clear();
                }
            }
            Leaf::Family(pattern) => self.filter_families(pattern, cells),
            Leaf::CellsPerRowOffset(count) => drop(cells.drain(..cells.len().min(*count))),
            Leaf::CellsPerRowLimit(count) => cells.truncate(*count),
            Leaf::CellsPerColumnLimit(count) => limit_columns(*count, cells),
            Leaf::StripValue => cells.iter_mut().for_each(Candidate::strip),
            Leaf::Label(label) => cells.iter_mut().for_each(|cell| cell.label(label)),
            Leaf::Sink => {
                self.sunk.append(cells);
                self.budget.check_cells(self.sunk.len());
            }
            Leaf::Qualifier(_)
            | Leaf::Columns { .. }
            | Leaf::Timestamps { .. }
            | Leaf::Value(_)
            | Leaf::Values { .. }
            | Leaf::Bits(_) => cells.retain(|cell| self.passes(leaf, cell)),
        }
    }

    /// Matches each family's name once, not once per cell.
    fn filter_families(&self, pattern: &Matcher, cells: &mut Vec<C>) {
        if !self.budget.charge_cells(cells.len()) {
            return;
        }
        let mut last_family: Option<(FamilyName, bool)> = None;
        cells.retain(|cell| {
            let family = &cell.cell().family;
            match &last_family {
                Some((last, passes)) if last.is_same(family) => *passes,
                _ => {
                    let passes = pattern.is_match(family.as_str().as_bytes());
                    last_family = Some((family.clone(), passes));
                    passes
                }
            }
        });
    }
}

/// Sorts cells of several sources. Stable, and fast on sorted runs.
fn sort<'a, C: Candidate<'a>>(cells: &mut [C]) {
    cells.sort_by(|a, b| a.cell().order(b.cell()));
}

/// Retains the first `count` cells, at least one, of each column.
fn limit_columns<'a, C: Candidate<'a>>(count: usize, cells: &mut Vec<C>) {
    let mut kept = 1;
    // The second argument is the last retained cell: it has the column of the cell before.
    cells.dedup_by(|cell, last| {
        if !cell.cell().is_same_column(last.cell()) {
            kept = 1;
            return false;
        }
        kept += 1;
        kept > count
    });
}

impl Leaf {
    /// Whether it decides on each cell separately.
    const fn is_local(&self) -> bool {
        matches!(
            self,
            Self::Family(_)
                | Self::Qualifier(_)
                | Self::Columns { .. }
                | Self::Timestamps { .. }
                | Self::Value(_)
                | Self::Values { .. }
                | Self::Bits(_)
        )
    }

    /// Whether this cell passes, for leaves that decide on each cell separately; true for the others.
    fn passes<'a, C: Candidate<'a>>(&self, candidate: &C) -> bool {
        let cell = candidate.cell();
        match self {
            Self::Family(pattern) => pattern.is_match(cell.family.as_str().as_bytes()),
            Self::Qualifier(pattern) => pattern.is_match(&cell.qualifier),
            Self::Columns { family, bounds } => {
                cell.family.as_str() == family && bounds.contains::<[u8]>(cell.qualifier.as_ref())
            }
            Self::Timestamps { start, end } => *start <= cell.timestamp && end.is_none_or(|end| cell.timestamp < end),
            Self::Value(pattern) => pattern.is_match(candidate.value()),
            Self::Values { bounds } => bounds.contains::<[u8]>(candidate.value()),
            Self::Bits(mask) => has_bits(candidate.value(), mask),
            Self::PassAll
            | Self::BlockAll
            | Self::RowKey(_)
            | Self::Sample(_)
            | Self::CellsPerRowOffset(_)
            | Self::CellsPerRowLimit(_)
            | Self::CellsPerColumnLimit(_)
            | Self::StripValue
            | Self::Label(_)
            | Self::Sink => true,
        }
    }
}

/// Whether `value` has the length of `mask` and all of its bits.
fn has_bits(value: &[u8], mask: &[u8]) -> bool {
    value.len() == mask.len() && value.iter().zip(mask).all(|(value, mask)| value & mask == *mask)
}

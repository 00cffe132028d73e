//! Running a filter on a row. This is on the path of every read.
//!
//! Leaves sift the row's own vector of cells in place, chains and conditions pass it on. Only an interleave needs its
//! input several times: inside one, cells are [`Pick`]s, three words each, and what comes out in the end is cloned; a
//! clone shares the bytes. A predicate stops at the first cell that passes.
//!
//! A sink takes cells out of the tree, past all that comes after it, into the answer. A program that has one runs on
//! picks throughout. No predicate has one.

use std::ops::RangeBounds;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::{Cell, FamilyName, Row};
use crate::error::Error;
use crate::filter::compile::{Leaf, Node, Program};
use crate::filter::effort::Effort;
use crate::filter::regex::Matcher;

/// What `program` lets pass of `row`.
pub(super) fn apply(program: &Program, row: Row, is_late: &dyn Fn() -> bool) -> Result<Row, Error> {
    let effort = Effort::new(row.cells.len(), is_late);
    let row = if program.has_sink {
        apply_to_picks(&program.root, row, &effort)
    } else {
        apply_in_place(&program.root, row, &effort)
    };
    effort.finish(row)
}

/// Whether `program` lets any cell of `row` pass.
pub(super) fn matches(program: &Program, row: &Row, is_late: &dyn Fn() -> bool) -> Result<bool, Error> {
    let effort = Effort::new(row.cells.len(), is_late);
    let matches = if program.has_sink {
        !passing(&program.root, row, &effort).is_empty()
    } else {
        yields(&program.root, row, &effort)
    };
    effort.finish(matches)
}

/// For a node without sinks.
fn apply_in_place(node: &Node, mut row: Row, effort: &Effort<'_>) -> Row {
    if row.cells.is_empty() || effort.is_over() {
        return row;
    }
    match node {
        Node::Leaf(leaf) => {
            Run::new(row.key.as_bytes(), effort).sift(leaf, &mut row.cells);
            row
        }
        Node::Chain(members) => members.iter().fold(row, |row, member| apply_in_place(member, row, effort)),
        Node::Interleave(_) => apply_to_picks(node, row, effort),
        Node::Condition { predicate, then, otherwise } => {
            let way = if yields(predicate, &row, effort) { then } else { otherwise };
            apply_in_place(way, row, effort)
        }
    }
}

fn apply_to_picks(node: &Node, row: Row, effort: &Effort<'_>) -> Row {
    let picks = passing(node, &row, effort);
    if effort.is_over() {
        return Row::empty(row.key);
    }
    let cells = picks.into_iter().map(Pick::into_cell).collect();
    Row { key: row.key, cells }
}

/// What `node` lets pass of `row`, with what its sinks took, in order.
fn passing<'a>(node: &'a Node, row: &'a Row, effort: &'a Effort<'a>) -> Vec<Pick<'a>> {
    let mut run = Run::new(row.key.as_bytes(), effort);
    let mut picks = row.cells.iter().map(Pick::new).collect();
    run.pass(node, &mut picks);
    run.answer(picks)
}

/// Whether `node`, which has no sinks, lets any cell of `row` pass.
fn yields(node: &Node, row: &Row, effort: &Effort<'_>) -> bool {
    let key = row.key.as_bytes();
    match node {
        Node::Leaf(leaf) => Run::new(key, effort).any(leaf, &row.cells),
        _ => Run::new(key, effort).yields(node, &row.cells.iter().map(Pick::new).collect::<Vec<_>>()),
    }
}

/// A cell on its way through a filter that lives as long as `'a`.
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

/// A cell of the row that the filter runs on, whether it has lost its value, and the label that it got.
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
    /// What sinks took.
    sunk: Vec<C>,
    /// What it may take. Once that is over, what comes out means nothing.
    effort: &'a Effort<'a>,
}

impl<'a, C: Candidate<'a>> Run<'a, C> {
    const fn new(key: &'a [u8], effort: &'a Effort<'a>) -> Self {
        Self { key, sunk: Vec::new(), effort }
    }

    /// What came through the program, and what its sinks took, in order.
    fn answer(self, mut passed: Vec<C>) -> Vec<C> {
        if !self.sunk.is_empty() {
            passed.extend(self.sunk);
            sort(&mut passed);
        }
        passed
    }

    /// Leaves in `cells` what `node` lets pass of them.
    fn pass(&mut self, node: &'a Node, cells: &mut Vec<C>) {
        if cells.is_empty() || self.effort.is_over() {
            return;
        }
        match node {
            Node::Leaf(leaf) => self.sift(leaf, cells),
            Node::Chain(members) => members.iter().for_each(|member| self.pass(member, cells)),
            Node::Interleave(members) => self.pool(members, cells),
            Node::Condition { predicate, then, otherwise } => {
                let way = if self.yields(predicate, cells) { then } else { otherwise };
                self.pass(way, cells);
            }
        }
    }

    /// Leaves in `cells` what each member lets pass of them, together and in order. A cell that several let pass
    /// stands there several times.
    fn pool(&mut self, members: &'a [Node], cells: &mut Vec<C>) {
        let input = std::mem::take(cells);
        let mut outputs = 0;
        for member in members {
            if !self.effort.looks_at(input.len()) {
                return;
            }
            let mut part = input.clone();
            self.pass(member, &mut part);
            if !self.effort.holds(cells.len() + part.len() + self.sunk.len()) {
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

    /// Whether `node`, which has no sinks, lets any of `cells` pass.
    fn yields(&mut self, node: &'a Node, cells: &[C]) -> bool {
        match node {
            Node::Leaf(leaf) => self.any(leaf, cells),
            Node::Chain(members) => self.chain_yields(members, cells),
            Node::Interleave(members) => members.iter().any(|member| self.yields(member, cells)),
            Node::Condition { predicate, then, otherwise } => {
                let way = if self.yields(predicate, cells) { then } else { otherwise };
                self.yields(way, cells)
            }
        }
    }

    fn chain_yields(&mut self, members: &'a [Node], cells: &[C]) -> bool {
        let is_local = |member: &Node| matches!(member, Node::Leaf(leaf) if leaf.is_local());
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
        self.yields(last, &cells)
    }

    /// Whether a leaf lets any of `cells` pass.
    fn any(&self, leaf: &Leaf, cells: &[C]) -> bool {
        match leaf {
            Leaf::BlockAll => false,
            Leaf::PassAll
            | Leaf::RowLimit(_)
            | Leaf::ColumnLimit(_)
            | Leaf::StripValue
            | Leaf::Label(_)
            | Leaf::Sink => !cells.is_empty(),
            Leaf::RowOffset(count) => cells.len() > *count,
            Leaf::RowKey(pattern) => !cells.is_empty() && pattern.is_match(self.key),
            Leaf::Sample(sample) => !cells.is_empty() && sample.holds(self.key),
            _ => cells.iter().any(|cell| self.passes(leaf, cell)),
        }
    }

    /// Whether a leaf that judges each cell by itself lets this one pass.
    fn passes(&self, leaf: &Leaf, cell: &C) -> bool {
        let goes_on = match leaf {
            Leaf::Value(_) => self.effort.reads(cell.value().len()),
            _ => self.effort.looks_at(1),
        };
        goes_on && leaf.passes(cell)
    }

    /// Leaves in `cells` what a leaf lets pass of them.
    fn sift(&mut self, leaf: &'a Leaf, cells: &mut Vec<C>) {
        if !leaf.is_local() && !self.effort.looks_at(cells.len()) {
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
                if !sample.holds(self.key) {
                    cells.clear();
                }
            }
            Leaf::Family(pattern) => self.sift_families(pattern, cells),
            Leaf::RowOffset(count) => drop(cells.drain(..cells.len().min(*count))),
            Leaf::RowLimit(count) => cells.truncate(*count),
            Leaf::ColumnLimit(count) => limit_columns(*count, cells),
            Leaf::StripValue => cells.iter_mut().for_each(Candidate::strip),
            Leaf::Label(label) => cells.iter_mut().for_each(|cell| cell.label(label)),
            Leaf::Sink => {
                self.sunk.append(cells);
                self.effort.holds(self.sunk.len());
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
    fn sift_families(&self, pattern: &Matcher, cells: &mut Vec<C>) {
        if !self.effort.looks_at(cells.len()) {
            return;
        }
        let mut judged: Option<(FamilyName, bool)> = None;
        cells.retain(|cell| {
            let family = &cell.cell().family;
            match &judged {
                Some((last, passes)) if last.is_same(family) => *passes,
                _ => {
                    let passes = pattern.is_match(family.as_str().as_bytes());
                    judged = Some((family.clone(), passes));
                    passes
                }
            }
        });
    }
}

/// Puts cells of several sources in order. Stable, and quick on what is sorted in runs.
fn sort<'a, C: Candidate<'a>>(cells: &mut [C]) {
    cells.sort_by(|a, b| a.cell().order(b.cell()));
}

/// Keeps the first so many, at least one, of each run of cells of one column.
fn limit_columns<'a, C: Candidate<'a>>(count: usize, cells: &mut Vec<C>) {
    let mut kept = 1;
    // The second argument is the last cell that stayed: its column is that of the cell before.
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
    /// Whether it judges each cell by itself.
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

    /// Whether it lets this cell pass, for those that judge each cell by itself; the others let it.
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
            | Self::RowOffset(_)
            | Self::RowLimit(_)
            | Self::ColumnLimit(_)
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

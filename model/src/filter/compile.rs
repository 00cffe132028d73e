//! Compiles the filter tree of a request to a program that runs on rows.
//!
//! Compilation does all work that is independent of rows: patterns, numbers, and removal of tree nodes without effect. The
//! program has no `Chain` directly inside a `Chain`, no `PassAll` inside a chain, nothing after a `BlockAll`, and no absent
//! branch.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::Row;
use crate::error::Error;
use crate::filter::pushdown::{ColumnRange, FilterUse};
use crate::filter::regex::{Matcher, ParsedPattern};
use crate::filter::sample::Sample;
use crate::filter::{Filter, eval, pushdown};
use crate::time::Micros;

/// Maximum size of all patterns of a filter, in instructions of their programs, estimated before compilation. More than a
/// filter of legal size can reach without counted repetitions.
const PROGRAM_SIZE_MAX: usize = 1 << 16;

/// A compiled filter. Cheap to clone; can be shared by threads.
#[derive(Clone, Debug)]
pub struct CompiledFilter {
    program: Arc<Program>,
}

/// The compiled program.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) root: Node,
    pub(super) has_sink: bool,
}

/// A node of the program.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Leaf(Leaf),
    Chain(Vec<Node>),
    Interleave(Vec<Node>),
    Condition { predicate: Box<Node>, then: Box<Node>, otherwise: Box<Node> },
}

/// A node without children.
#[derive(Clone, Debug)]
pub(super) enum Leaf {
    PassAll,
    BlockAll,
    RowKey(Matcher),
    Sample(Sample),
    Family(Matcher),
    Qualifier(Matcher),
    Columns { family: String, bounds: (Bound<Bytes>, Bound<Bytes>) },
    Timestamps { start: Micros, end: Option<Micros> },
    Value(Matcher),
    Values { bounds: (Bound<Bytes>, Bound<Bytes>) },
    Bits(Bytes),
    CellsPerRowOffset(usize),
    CellsPerRowLimit(usize),
    CellsPerColumnLimit(usize),
    StripValue,
    Label(Arc<str>),
    Sink,
}

impl Node {
    /// Whether it contains a sink.
    pub(super) fn has_sink(&self) -> bool {
        match self {
            Self::Leaf(leaf) => matches!(leaf, Leaf::Sink),
            Self::Chain(members) | Self::Interleave(members) => members.iter().any(Self::has_sink),
            Self::Condition { predicate, then, otherwise } => {
                predicate.has_sink() || then.has_sink() || otherwise.has_sink()
            }
        }
    }

    const fn is_block_all(&self) -> bool {
        matches!(self, Self::Leaf(Leaf::BlockAll))
    }
}

impl CompiledFilter {
    /// Validates and compiles a filter.
    ///
    /// # Errors
    /// `InvalidArgument` when the filter or a pattern is invalid.
    pub fn compile(filter: Filter) -> Result<Self, Error> {
        filter.validate()?;
        Ok(Self::new(Compiler::default().compile(&filter)?))
    }

    /// The filter that passes every cell.
    pub fn pass_all() -> Self {
        Self::new(Node::Leaf(Leaf::PassAll))
    }

    fn new(root: Node) -> Self {
        let has_sink = root.has_sink();
        Self { program: Arc::new(Program { root, has_sink }) }
    }

    /// Applies the filter to `row`, whose cells must be in the order of [`crate::cell::Cell::order`]. The result may be empty.
    ///
    /// `deadline_passed` is called periodically.
    ///
    /// # Errors
    /// `Deadline` when it returns true; `FailedPrecondition` when interleaves make too many copies of the row's cells.
    pub fn apply(&self, row: Row, deadline_passed: &dyn Fn() -> bool) -> Result<Row, Error> {
        eval::apply(&self.program, row, deadline_passed)
    }

    /// Whether it passes any cell of `row`.
    ///
    /// # Errors
    /// As [`CompiledFilter::apply`].
    pub fn matches(&self, row: &Row, deadline_passed: &dyn Fn() -> bool) -> Result<bool, Error> {
        eval::matches(&self.program, row, deadline_passed)
    }

    /// Filter push-down for rows: whether any cell of the row with this key may pass. If not, the row need not be read.
    pub fn may_pass_row(&self, key: &[u8]) -> bool {
        pushdown::may_pass_row(&self.program.root, key)
    }

    /// Filter push-down for columns: the column ranges of a family that [`CompiledFilter::apply`] depends on, ascending and
    /// disjoint. Cells outside of them, and columns and versions beyond their limits, need not be read.
    pub fn needed_columns(&self, family: &str) -> Vec<ColumnRange> {
        ColumnRange::merge_overlapping(pushdown::column_ranges(&self.program.root, family, FilterUse::Apply))
    }

    /// The same for [`CompiledFilter::matches`], which usually needs fewer columns.
    pub fn needed_columns_to_match(&self, family: &str) -> Vec<ColumnRange> {
        ColumnRange::merge_overlapping(pushdown::column_ranges(&self.program.root, family, FilterUse::Match))
    }
}

/// State of a compilation.
#[derive(Default)]
struct Compiler {
    /// Number of samples so far.
    samples: u64,
    /// Size of the patterns so far.
    program_size: usize,
}

impl Compiler {
    fn compile(&mut self, filter: &Filter) -> Result<Node, Error> {
        match filter {
            Filter::Chain(members) => Ok(chain(self.compile_all(members)?)),
            Filter::Interleave(members) => Ok(interleave(self.compile_all(members)?)),
            Filter::Condition { predicate, then, otherwise } => Ok(Node::Condition {
                predicate: Box::new(self.compile(predicate)?),
                then: Box::new(self.branch(then.as_deref())?),
                otherwise: Box::new(self.branch(otherwise.as_deref())?),
            }),
            Filter::RowSample(share) => Ok(Node::Leaf(Leaf::Sample(self.sample(*share)))),
            Filter::RowKeyRegex(pattern) => self.matcher("row_key_regex_filter", pattern, Leaf::RowKey),
            Filter::FamilyNameRegex(pattern) => self.matcher("family_name_regex_filter", pattern, Leaf::Family),
            Filter::ColumnQualifierRegex(pattern) => {
                self.matcher("column_qualifier_regex_filter", pattern, Leaf::Qualifier)
            }
            Filter::ValueRegex(pattern) => self.matcher("value_regex_filter", pattern, Leaf::Value),
            leaf => compile_simple(leaf).map(Node::Leaf),
        }
    }

    fn sample(&mut self, share: f64) -> Sample {
        let position = self.samples;
        self.samples += 1;
        Sample::new(share, position)
    }

    fn matcher(&mut self, field: &str, pattern: &[u8], leaf: fn(Matcher) -> Leaf) -> Result<Node, Error> {
        let parsed = ParsedPattern::new(field, pattern)?;
        self.program_size = self.program_size.saturating_add(parsed.program_size());
        if self.program_size > PROGRAM_SIZE_MAX {
            return Err(Error::invalid(
                "Row filter has too many or too large patterns (counted repetitions are expanded)",
            ));
        }
        Ok(Node::Leaf(leaf(parsed.compile()?)))
    }

    fn compile_all(&mut self, filters: &[Filter]) -> Result<Vec<Node>, Error> {
        filters.iter().map(|filter| self.compile(filter)).collect()
    }

    fn branch(&mut self, filter: Option<&Filter>) -> Result<Node, Error> {
        filter.map_or(Ok(Node::Leaf(Leaf::BlockAll)), |filter| self.compile(filter))
    }
}

/// A chain without members that have no effect, without nested chains, and without unreachable members.
fn chain(members: Vec<Node>) -> Node {
    let mut flat = Vec::with_capacity(members.len());
    for member in members {
        match member {
            Node::Leaf(Leaf::PassAll) => {}
            Node::Chain(inner) => flat.extend(inner),
            other => flat.push(other),
        }
    }
    if let Some(block) = flat.iter().position(Node::is_block_all) {
        flat.truncate(block + 1);
        // Cells that a sink took before are still part of the result.
        if !flat.iter().any(Node::has_sink) {
            return Node::Leaf(Leaf::BlockAll);
        }
    }
    only_member(flat, Leaf::PassAll, Node::Chain)
}

/// An interleave without members that pass nothing.
fn interleave(mut members: Vec<Node>) -> Node {
    members.retain(|member| !member.is_block_all());
    only_member(members, Leaf::BlockAll, Node::Interleave)
}

/// The only member; `none` without members; else all members joined.
fn only_member(mut members: Vec<Node>, none: Leaf, join: impl FnOnce(Vec<Node>) -> Node) -> Node {
    match members.pop() {
        None => Node::Leaf(none),
        Some(only) if members.is_empty() => only,
        Some(last) => {
            members.push(last);
            join(members)
        }
    }
}

/// A leaf that depends only on its own arguments.
fn compile_simple(filter: &Filter) -> Result<Leaf, Error> {
    Ok(match filter {
        Filter::PassAll => Leaf::PassAll,
        Filter::BlockAll => Leaf::BlockAll,
        Filter::ColumnRange { family, start, end } => {
            Leaf::Columns { family: family.clone(), bounds: (start.clone(), end.clone()) }
        }
        Filter::TimestampRange { start, end } => Leaf::Timestamps { start: *start, end: *end },
        Filter::ValueRange { start, end } => Leaf::Values { bounds: (start.clone(), end.clone()) },
        Filter::ValueBitmask(mask) => Leaf::Bits(mask.clone()),
        Filter::CellsPerRowOffset(count) => Leaf::CellsPerRowOffset(count_of(*count)?),
        Filter::CellsPerRowLimit(count) => Leaf::CellsPerRowLimit(count_of(*count)?),
        Filter::CellsPerColumnLimit(count) => Leaf::CellsPerColumnLimit(count_of(*count)?),
        Filter::StripValue => Leaf::StripValue,
        Filter::Sink => Leaf::Sink,
        Filter::ApplyLabel(label) => Leaf::Label(label.as_str().into()),
        Filter::Chain(_) | Filter::Interleave(_) | Filter::Condition { .. } => return Err(not_simple()),
        Filter::RowSample(_)
        | Filter::RowKeyRegex(_)
        | Filter::FamilyNameRegex(_)
        | Filter::ColumnQualifierRegex(_)
        | Filter::ValueRegex(_) => return Err(not_simple()),
    })
}

fn count_of(count: i32) -> Result<usize, Error> {
    usize::try_from(count).map_err(|_| Error::invalid("a filter's cell count must not be negative"))
}

fn not_simple() -> Error {
    Error::internal("compile filter: this node is not a simple leaf")
}

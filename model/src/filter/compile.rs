//! From the tree of a request to the program that runs on rows.
//!
//! Compiling does all that need not be done for each row: patterns, numbers, and the parts of the tree that do nothing.
//! What comes out has no `Chain` directly inside a `Chain`, no `PassAll` inside one, nothing behind a `BlockAll`, and no
//! branch that is absent.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::cell::Row;
use crate::error::Error;
use crate::filter::hint::{Ask, Stretch};
use crate::filter::regex::{Matcher, Weighed};
use crate::filter::sample::Sample;
use crate::filter::{Filter, eval, hint};
use crate::time::Micros;

/// All patterns of a filter together may weigh so much, in instructions of their programs before they are built. More than
/// a filter of legal size can hold without counted repetitions.
const PATTERNS_WEIGHT_MAX: usize = 1 << 16;

/// A filter that is ready to run on rows. Cheap to clone; may be used by several threads.
#[derive(Clone, Debug)]
pub struct CompiledFilter {
    program: Arc<Program>,
}

/// What runs.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) root: Node,
    pub(super) has_sink: bool,
}

/// A step of the program.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Leaf(Leaf),
    Chain(Vec<Node>),
    Interleave(Vec<Node>),
    Condition { predicate: Box<Node>, then: Box<Node>, otherwise: Box<Node> },
}

/// A step that has no steps inside.
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
    RowOffset(usize),
    RowLimit(usize),
    ColumnLimit(usize),
    StripValue,
    Label(Arc<str>),
    Sink,
}

impl Node {
    /// Whether it or any step inside it is a sink.
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
    /// Checks a filter and makes it ready.
    ///
    /// # Errors
    /// `InvalidArgument` for what is wrong with it, patterns included.
    pub fn compile(filter: Filter) -> Result<Self, Error> {
        filter.validate()?;
        Ok(Self::new(Compiler::default().compile(&filter)?))
    }

    /// The filter that lets everything pass.
    pub fn pass_all() -> Self {
        Self::new(Node::Leaf(Leaf::PassAll))
    }

    fn new(root: Node) -> Self {
        let has_sink = root.has_sink();
        Self { program: Arc::new(Program { root, has_sink }) }
    }

    /// What it lets pass of `row`, whose cells must stand in the order of [`crate::cell::Cell::order`]; maybe nothing.
    ///
    /// `is_late` is asked now and then whether the request's time is over.
    ///
    /// # Errors
    /// `Deadline` when it is; `FailedPrecondition` when interleaves make too many copies of the row's cells.
    pub fn apply(&self, row: Row, is_late: &dyn Fn() -> bool) -> Result<Row, Error> {
        eval::apply(&self.program, row, is_late)
    }

    /// Whether it lets any cell of `row` pass.
    ///
    /// # Errors
    /// As [`CompiledFilter::apply`].
    pub fn matches(&self, row: &Row, is_late: &dyn Fn() -> bool) -> Result<bool, Error> {
        eval::matches(&self.program, row, is_late)
    }

    /// Whether it may let anything of the row with this key pass. If not, the row need not be read.
    pub fn needs_row(&self, key: &[u8]) -> bool {
        hint::needs_row(&self.program.root, key)
    }

    /// The columns of a family that [`CompiledFilter::apply`] depends on, in order and apart. Cells outside of them, and
    /// columns and versions beyond what they say, may be left out of the row.
    pub fn needs(&self, family: &str) -> Vec<Stretch> {
        Stretch::in_order(hint::stretches(&self.program.root, family, Ask::Which))
    }

    /// The same for [`CompiledFilter::matches`], which mostly takes less.
    pub fn needs_to_match(&self, family: &str) -> Vec<Stretch> {
        Stretch::in_order(hint::stretches(&self.program.root, family, Ask::Any))
    }
}

/// What compiling needs to remember from leaf to leaf.
#[derive(Default)]
struct Compiler {
    /// Samples met so far.
    samples: u64,
    /// What the patterns so far weigh.
    weight: usize,
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
        let place = self.samples;
        self.samples += 1;
        Sample::new(share, place)
    }

    fn matcher(&mut self, field: &str, pattern: &[u8], leaf: fn(Matcher) -> Leaf) -> Result<Node, Error> {
        let weighed = Weighed::new(field, pattern)?;
        self.weight = self.weight.saturating_add(weighed.weight());
        if self.weight > PATTERNS_WEIGHT_MAX {
            return Err(Error::invalid(
                "Row filter holds too large or too many patterns, counted repetitions multiplied",
            ));
        }
        Ok(Node::Leaf(leaf(weighed.compile()?)))
    }

    fn compile_all(&mut self, filters: &[Filter]) -> Result<Vec<Node>, Error> {
        filters.iter().map(|filter| self.compile(filter)).collect()
    }

    fn branch(&mut self, filter: Option<&Filter>) -> Result<Node, Error> {
        filter.map_or(Ok(Node::Leaf(Leaf::BlockAll)), |filter| self.compile(filter))
    }
}

/// A chain without members that do nothing, without chains inside, and without what no cell reaches.
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
        // What a sink took before still goes out.
        if !flat.iter().any(Node::has_sink) {
            return Node::Leaf(Leaf::BlockAll);
        }
    }
    only_member(flat, Leaf::PassAll, Node::Chain)
}

/// An interleave without members that let nothing pass.
fn interleave(mut members: Vec<Node>) -> Node {
    members.retain(|member| !member.is_block_all());
    only_member(members, Leaf::BlockAll, Node::Interleave)
}

/// The only one of `members`, or `none` when there is none, or all of them joined.
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

/// A leaf that needs nothing but its own arguments.
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
        Filter::CellsPerRowOffset(count) => Leaf::RowOffset(count_of(*count)?),
        Filter::CellsPerRowLimit(count) => Leaf::RowLimit(count_of(*count)?),
        Filter::CellsPerColumnLimit(count) => Leaf::ColumnLimit(count_of(*count)?),
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
    Error::internal("compile filter: this one is compiled with what came before it")
}

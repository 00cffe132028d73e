//! Filter push-down: the rows and columns that a reader need not read.
//!
//! Push-down is conservative: skipping the excluded rows and columns never changes the filter's output, but not everything
//! that could be skipped is excluded.
//!
//! For columns, the analysis follows one family through the tree as a [`Flow`]: the range of its columns that can reach a
//! node. A node may narrow the range only if no earlier node has counted cells, moved them to the output, or duplicated them.

use std::ops::Bound;

use bytes::{BufMut, Bytes, BytesMut};

use crate::filter::compile::{Leaf, Node};
use crate::filter::regex::Matcher;

/// A contiguous range of columns of one family that a filter needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnRange {
    /// The first qualifier of the range.
    pub start: Bytes,
    /// The first qualifier after the range; `None`: to the end of the family.
    pub end: Option<Bytes>,
    /// Limit: only this many columns are needed, from the first; columns without cells do not count.
    pub columns: usize,
    /// Limit: only this many versions of each column are needed, the newest.
    pub versions: usize,
}

impl ColumnRange {
    /// All of a family.
    pub const fn whole() -> Self {
        Self { start: Bytes::new(), end: None, columns: usize::MAX, versions: usize::MAX }
    }

    /// All of one column.
    pub fn column(qualifier: Bytes) -> Self {
        let end = Some(successor(&qualifier));
        Self { start: qualifier, end, ..Self::whole() }
    }

    fn between(bounds: &(Bound<Bytes>, Bound<Bytes>)) -> Self {
        let start = match &bounds.0 {
            Bound::Included(first) => first.clone(),
            Bound::Excluded(before) => successor(before),
            Bound::Unbounded => Bytes::new(),
        };
        let end = match &bounds.1 {
            Bound::Included(last) => Some(successor(last)),
            Bound::Excluded(behind) => Some(behind.clone()),
            Bound::Unbounded => None,
        };
        Self { start, end, ..Self::whole() }
    }

    /// The intersection; `None` when it is empty.
    fn intersect(self, other: Self) -> Option<Self> {
        let end = match (self.end, other.end) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let start = self.start.max(other.start);
        let holds_any = end.as_ref().is_none_or(|end| start < *end);
        holds_any.then_some(Self { start, end, ..self })
    }

    /// The union of these ranges, ascending and disjoint.
    pub fn merge_overlapping(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.sort_by(|one, other| (&one.start, &one.end).cmp(&(&other.start, &other.end)));
        let mut joined: Vec<Self> = Vec::with_capacity(ranges.len());
        for next in ranges {
            match joined.last_mut() {
                Some(last) if last.overlaps(&next) => last.extend(next),
                _ => joined.push(next),
            }
        }
        joined
    }

    fn overlaps(&self, next: &Self) -> bool {
        self.end.as_ref().is_none_or(|end| next.start < *end)
    }

    /// Extends this range by `next`, which overlaps it and does not start before it.
    fn extend(&mut self, next: Self) {
        self.versions = self.versions.max(next.versions);
        if self.start == next.start && self.end == next.end {
            self.columns = self.columns.max(next.columns);
            return;
        }
        // The first columns of one range are not the first of the union.
        self.columns = usize::MAX;
        self.end = match (self.end.take(), next.end) {
            (Some(one), Some(other)) => Some(one.max(other)),
            _ => None,
        };
    }
}

/// The smallest greater byte string.
fn successor(bytes: &Bytes) -> Bytes {
    let mut after = BytesMut::with_capacity(bytes.len() + 1);
    after.put_slice(bytes);
    after.put_u8(0);
    after.freeze()
}

/// Whether any cell of the row with this key may pass.
pub(super) fn may_pass_row(node: &Node, key: &[u8]) -> bool {
    match node {
        Node::Leaf(Leaf::BlockAll) => false,
        Node::Leaf(Leaf::RowKey(pattern)) => pattern.is_match(key),
        Node::Leaf(Leaf::Sample(sample)) => sample.includes(key),
        Node::Leaf(_) => true,
        Node::Chain(members) => chain_may_pass_row(members, key),
        Node::Interleave(members) => members.iter().any(|member| may_pass_row(member, key)),
        // The predicate's result is not known before the row is read.
        Node::Condition { then, otherwise, .. } => may_pass_row(then, key) || may_pass_row(otherwise, key),
    }
}

/// A member that passes nothing ends a chain, but cells that an earlier sink took are part of the output.
fn chain_may_pass_row(members: &[Node], key: &[u8]) -> bool {
    for member in members {
        if !may_pass_row(member, key) {
            return false;
        }
        if member.has_sink() {
            return true;
        }
    }
    true
}

/// How a filter is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterUse {
    /// Find the cells that pass.
    Apply,
    /// Find out whether any cell passes.
    Match,
}

/// The column ranges of `family` that the output may depend on, unordered and possibly overlapping.
pub(super) fn column_ranges(node: &Node, family: &str, filter_use: FilterUse) -> Vec<ColumnRange> {
    let mut found = Vec::new();
    let all = Flow { range: ColumnRange::whole(), guarantee: Guarantee::AllCells };
    RangeCollector { family, found: &mut found }.visit(node, all, filter_use);
    found
}

/// The part of the family that reaches a node.
#[derive(Clone)]
struct Flow {
    /// No cell outside of it reaches the node.
    range: ColumnRange,
    guarantee: Guarantee,
}

/// What is guaranteed for the cells of a [`Flow`]'s range, if the row's key passes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Guarantee {
    /// Nothing.
    None,
    /// A column reaches the node with all of its versions that the range allows, or not at all.
    WholeColumns,
    /// Each cell that the range allows reaches the node.
    AllCells,
}

impl Flow {
    /// Limits the range to its first columns, if their cells are guaranteed to pass.
    fn limit_columns(&mut self, columns: usize) {
        if self.guarantee == Guarantee::AllCells {
            self.range.columns = self.range.columns.min(columns);
        }
    }
}

/// Whether the later nodes of a chain may narrow the range.
#[derive(PartialEq, Eq)]
enum Pushdown {
    Continues,
    Stops,
}

struct RangeCollector<'a> {
    family: &'a str,
    found: &'a mut Vec<ColumnRange>,
}

impl RangeCollector<'_> {
    fn visit(&mut self, node: &Node, flow: Flow, filter_use: FilterUse) {
        match node {
            Node::Leaf(_) => self.chain(std::slice::from_ref(node), flow, filter_use),
            Node::Chain(members) => self.chain(members, flow, filter_use),
            Node::Interleave(members) => members.iter().for_each(|member| self.visit(member, flow.clone(), filter_use)),
            Node::Condition { predicate, then, otherwise } => {
                self.visit(predicate, flow.clone(), FilterUse::Match);
                self.visit(then, flow.clone(), filter_use);
                self.visit(otherwise, flow, filter_use);
            }
        }
    }

    fn chain(&mut self, members: &[Node], mut flow: Flow, filter_use: FilterUse) {
        let mut members = members.iter();
        for member in members.by_ref() {
            let Node::Leaf(leaf) = member else {
                // Its input is the flow so far, and the input of later nodes is its output.
                let filter_use = if members.len() == 0 { filter_use } else { FilterUse::Apply };
                return self.visit(member, flow, filter_use);
            };
            match self.pass(leaf, flow) {
                None => return,
                Some((narrowed, Pushdown::Continues)) => flow = narrowed,
                Some((counted, Pushdown::Stops)) => return self.found.push(counted.range),
            }
        }
        if filter_use == FilterUse::Match {
            flow.limit_columns(1);
        }
        self.found.push(flow.range);
    }

    /// The flow after a leaf; `None`: no cell passes.
    fn pass(&self, leaf: &Leaf, mut flow: Flow) -> Option<(Flow, Pushdown)> {
        let mut next = Pushdown::Continues;
        match leaf {
            Leaf::BlockAll => return None,
            // The whole row or nothing.
            Leaf::PassAll | Leaf::RowKey(_) | Leaf::Sample(_) | Leaf::StripValue | Leaf::Label(_) => {}
            Leaf::Family(pattern) => {
                if !pattern.is_match(self.family.as_bytes()) {
                    return None;
                }
            }
            Leaf::Columns { family, bounds } => {
                if family != self.family {
                    return None;
                }
                flow.range = flow.range.intersect(ColumnRange::between(bounds))?;
            }
            Leaf::Qualifier(Matcher::Literal(qualifier)) => {
                flow.range = flow.range.intersect(ColumnRange::column(qualifier.clone()))?;
            }
            Leaf::Qualifier(Matcher::Pattern(_)) => flow.guarantee = flow.guarantee.min(Guarantee::WholeColumns),
            Leaf::Timestamps { .. } | Leaf::Value(_) | Leaf::Values { .. } | Leaf::Bits(_) => {
                flow.guarantee = Guarantee::None
            }
            Leaf::CellsPerColumnLimit(count) => {
                if flow.guarantee >= Guarantee::WholeColumns {
                    flow.range.versions = flow.range.versions.min(*count);
                }
            }
            Leaf::CellsPerRowLimit(count) => {
                flow.limit_columns(*count);
                next = Pushdown::Stops;
            }
            Leaf::CellsPerRowOffset(_) | Leaf::Sink => next = Pushdown::Stops,
        }
        Some((flow, next))
    }
}

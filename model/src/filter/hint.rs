//! What a filter lets a reader leave out.
//!
//! Each hint is safe, never exact: leaving out what a hint allows does not change what the filter answers; what it does
//! not allow may still turn out not to matter.
//!
//! For columns, one family is followed through the tree as a [`Flow`]: the stretch of it that can reach a step at all. A
//! step may narrow the stretch only as long as nothing before it has counted cells, let them out, or shared them.

use std::ops::Bound;

use bytes::{BufMut, Bytes, BytesMut};

use crate::filter::compile::{Leaf, Node};
use crate::filter::regex::Matcher;

/// Columns of one family, side by side, of which a filter wants to see something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The first qualifier that may belong to it.
    pub start: Bytes,
    /// The first behind it; `None`: it goes to the end of the family.
    pub end: Option<Bytes>,
    /// Only the first so many of its columns are wanted; such as have no cell do not count.
    pub columns: usize,
    /// Of each column only the newest so many versions.
    pub versions: usize,
}

impl Stretch {
    /// All of a family.
    pub const fn whole() -> Self {
        Self { start: Bytes::new(), end: None, columns: usize::MAX, versions: usize::MAX }
    }

    /// All of one column.
    pub fn column(qualifier: Bytes) -> Self {
        let end = Some(just_after(&qualifier));
        Self { start: qualifier, end, ..Self::whole() }
    }

    fn between(bounds: &(Bound<Bytes>, Bound<Bytes>)) -> Self {
        let start = match &bounds.0 {
            Bound::Included(first) => first.clone(),
            Bound::Excluded(before) => just_after(before),
            Bound::Unbounded => Bytes::new(),
        };
        let end = match &bounds.1 {
            Bound::Included(last) => Some(just_after(last)),
            Bound::Excluded(behind) => Some(behind.clone()),
            Bound::Unbounded => None,
        };
        Self { start, end, ..Self::whole() }
    }

    /// What both have of the columns; `None` when that is nothing.
    fn within(self, other: Self) -> Option<Self> {
        let end = match (self.end, other.end) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let start = self.start.max(other.start);
        let holds_any = end.as_ref().is_none_or(|end| start < *end);
        holds_any.then_some(Self { start, end, ..self })
    }

    /// All of what these hold, in order, none of which overlap.
    pub fn in_order(mut stretches: Vec<Self>) -> Vec<Self> {
        stretches.sort_by(|one, other| (&one.start, &one.end).cmp(&(&other.start, &other.end)));
        let mut joined: Vec<Self> = Vec::with_capacity(stretches.len());
        for next in stretches {
            match joined.last_mut() {
                Some(last) if last.overlaps(&next) => last.join(next),
                _ => joined.push(next),
            }
        }
        joined
    }

    fn overlaps(&self, next: &Self) -> bool {
        self.end.as_ref().is_none_or(|end| next.start < *end)
    }

    /// One stretch for two that overlap, of which `next` does not begin before this one.
    fn join(&mut self, next: Self) {
        self.versions = self.versions.max(next.versions);
        if self.start == next.start && self.end == next.end {
            self.columns = self.columns.max(next.columns);
            return;
        }
        // The first columns of the one are not the first of both.
        self.columns = usize::MAX;
        self.end = match (self.end.take(), next.end) {
            (Some(one), Some(other)) => Some(one.max(other)),
            _ => None,
        };
    }
}

/// The least byte string that is greater.
fn just_after(bytes: &Bytes) -> Bytes {
    let mut after = BytesMut::with_capacity(bytes.len() + 1);
    after.put_slice(bytes);
    after.put_u8(0);
    after.freeze()
}

/// Whether anything of the row with this key may pass.
pub(super) fn needs_row(node: &Node, key: &[u8]) -> bool {
    match node {
        Node::Leaf(Leaf::BlockAll) => false,
        Node::Leaf(Leaf::RowKey(pattern)) => pattern.is_match(key),
        Node::Leaf(Leaf::Sample(sample)) => sample.holds(key),
        Node::Leaf(_) => true,
        Node::Chain(members) => chain_needs_row(members, key),
        Node::Interleave(members) => members.iter().any(|member| needs_row(member, key)),
        // The predicate's way is not known before the row is read.
        Node::Condition { then, otherwise, .. } => needs_row(then, key) || needs_row(otherwise, key),
    }
}

/// A member that lets nothing pass ends a chain, but what a sink before it took goes out.
fn chain_needs_row(members: &[Node], key: &[u8]) -> bool {
    for member in members {
        if !needs_row(member, key) {
            return false;
        }
        if member.has_sink() {
            return true;
        }
    }
    true
}

/// What is asked of a filter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// Which cells pass.
    Which,
    /// Whether any does.
    Any,
}

/// The stretches of `family` that the answer may depend on, not in order and maybe overlapping.
pub(super) fn stretches(node: &Node, family: &str, ask: Ask) -> Vec<Stretch> {
    let mut found = Vec::new();
    let all = Flow { stretch: Stretch::whole(), sure: Sure::Exactly };
    Survey { family, found: &mut found }.visit(node, all, ask);
    found
}

/// What of the family reaches a step.
#[derive(Clone)]
struct Flow {
    /// Nothing but this.
    stretch: Stretch,
    sure: Sure,
}

/// What is sure of the cells of a [`Flow`]'s stretch, if the row's key passes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sure {
    /// Nothing.
    Nothing,
    /// A column reaches the step with all of its versions that the stretch allows, or not at all.
    WholeColumns,
    /// Each cell that the stretch allows reaches the step.
    Exactly,
}

impl Flow {
    /// Ends with the first columns, where it is known that cells of them come through.
    fn first(&mut self, columns: usize) {
        if self.sure == Sure::Exactly {
            self.stretch.columns = self.stretch.columns.min(columns);
        }
    }
}

/// Whether the steps of a chain that follow may narrow what a reader has to read.
#[derive(PartialEq, Eq)]
enum Next {
    Narrows,
    Counts,
}

struct Survey<'a> {
    family: &'a str,
    found: &'a mut Vec<Stretch>,
}

impl Survey<'_> {
    fn visit(&mut self, node: &Node, flow: Flow, ask: Ask) {
        match node {
            Node::Leaf(_) => self.chain(std::slice::from_ref(node), flow, ask),
            Node::Chain(members) => self.chain(members, flow, ask),
            Node::Interleave(members) => members.iter().for_each(|member| self.visit(member, flow.clone(), ask)),
            Node::Condition { predicate, then, otherwise } => {
                self.visit(predicate, flow.clone(), Ask::Any);
                self.visit(then, flow.clone(), ask);
                self.visit(otherwise, flow, ask);
            }
        }
    }

    fn chain(&mut self, members: &[Node], mut flow: Flow, ask: Ask) {
        let mut members = members.iter();
        for member in members.by_ref() {
            let Node::Leaf(leaf) = member else {
                // It sees what came so far, and what follows sees what it makes of that.
                let ask = if members.len() == 0 { ask } else { Ask::Which };
                return self.visit(member, flow, ask);
            };
            match self.pass(leaf, flow) {
                None => return,
                Some((narrowed, Next::Narrows)) => flow = narrowed,
                Some((counted, Next::Counts)) => return self.found.push(counted.stretch),
            }
        }
        if ask == Ask::Any {
            flow.first(1);
        }
        self.found.push(flow.stretch);
    }

    /// What a leaf makes of the flow; `None`: nothing comes of it.
    fn pass(&self, leaf: &Leaf, mut flow: Flow) -> Option<(Flow, Next)> {
        let mut next = Next::Narrows;
        match leaf {
            Leaf::BlockAll => return None,
            // All of the row or nothing.
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
                flow.stretch = flow.stretch.within(Stretch::between(bounds))?;
            }
            Leaf::Qualifier(Matcher::Literal(qualifier)) => {
                flow.stretch = flow.stretch.within(Stretch::column(qualifier.clone()))?;
            }
            Leaf::Qualifier(Matcher::Pattern(_)) => flow.sure = flow.sure.min(Sure::WholeColumns),
            Leaf::Timestamps { .. } | Leaf::Value(_) | Leaf::Values { .. } | Leaf::Bits(_) => flow.sure = Sure::Nothing,
            Leaf::ColumnLimit(count) => {
                if flow.sure >= Sure::WholeColumns {
                    flow.stretch.versions = flow.stretch.versions.min(*count);
                }
            }
            Leaf::RowLimit(count) => {
                flow.first(*count);
                next = Next::Counts;
            }
            Leaf::RowOffset(_) | Leaf::Sink => next = Next::Counts,
        }
        Some((flow, next))
    }
}

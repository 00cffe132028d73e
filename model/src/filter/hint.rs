//! What a filter lets a reader leave out.
//!
//! Each hint is safe, never exact: leaving out what a hint allows does not change what the filter answers; what it does
//! not allow may still turn out not to matter.

use crate::filter::compile::{Leaf, Node};

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

/// Whether the answer may depend on cells of this family.
pub(super) fn needs_family(node: &Node, family: &str) -> bool {
    match node {
        Node::Leaf(Leaf::BlockAll) => false,
        Node::Leaf(Leaf::Family(pattern)) => pattern.is_match(family.as_bytes()),
        Node::Leaf(Leaf::Columns { family: only, .. }) => only == family,
        Node::Leaf(_) => true,
        Node::Chain(members) => chain_needs_family(members, family),
        Node::Interleave(members) => members.iter().any(|member| needs_family(member, family)),
        Node::Condition { predicate, then, otherwise } => {
            [predicate, then, otherwise].iter().any(|member| needs_family(member, family))
        }
    }
}

/// A member of a chain that drops a family hides it from all that follow, but a count or a sink before it has
/// seen the family.
fn chain_needs_family(members: &[Node], family: &str) -> bool {
    for member in members {
        if !needs_family(member, family) {
            return false;
        }
        match member {
            Node::Leaf(Leaf::RowOffset(_) | Leaf::RowLimit(_) | Leaf::Sink) => return true,
            Node::Leaf(_) => {}
            // Its inside may count, or be a sink.
            _ => return true,
        }
    }
    true
}

/// How many of the newest versions of each column matter; `None`: all.
pub(super) fn versions_needed(node: &Node) -> Option<usize> {
    match node {
        Node::Leaf(Leaf::BlockAll) => Some(0),
        Node::Leaf(Leaf::ColumnLimit(count)) => Some(*count),
        Node::Leaf(_) => None,
        Node::Chain(members) => {
            // Only members that take or leave whole columns may stand before the limit.
            let mut members = members.iter().skip_while(|member| takes_whole_columns(member));
            members.next().and_then(versions_needed)
        }
        Node::Interleave(members) => {
            let needs: Option<Vec<_>> = members.iter().map(versions_needed).collect();
            needs?.into_iter().max()
        }
        Node::Condition { predicate, then, otherwise } => {
            let needs: Option<Vec<_>> = [predicate, then, otherwise].iter().map(|node| versions_needed(node)).collect();
            needs?.into_iter().max()
        }
    }
}

const fn takes_whole_columns(node: &Node) -> bool {
    matches!(
        node,
        Node::Leaf(
            Leaf::RowKey(_)
                | Leaf::Sample(_)
                | Leaf::Family(_)
                | Leaf::Qualifier(_)
                | Leaf::Columns { .. }
                | Leaf::StripValue
                | Leaf::Label(_)
        )
    )
}

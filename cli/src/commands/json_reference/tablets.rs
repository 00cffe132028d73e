//! The documents of commands that change tablets and groups, for the reference.

use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::metadata::GroupDescriptor;
use ebla_proto::operate::PreviewMergeReply;
use serde_json::Value;

use super::descriptors;
use crate::commands::{group, tablet};

/// The command, what its document is, and documents that together have every type of every field.
pub(super) fn documents() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    vec![
        (
            "ebla tablet split",
            "The two halves, as in `ebla tablet list`. The leaders are not known yet: `leader` is null.",
            vec![split()],
        ),
        (
            "ebla tablet merge",
            "The tablet that holds the cells of both, as in `ebla tablet list`, and the number of the one that is gone. `leader` is null.",
            merged(),
        ),
        (
            "ebla tablet merge --dry-run",
            "The two tablets. `moves` is the one that would move to the group of the other one before; null if they are in one group.",
            merge_previews(),
        ),
        ("ebla tablet move", "The tablet in its new group, and the group that it has left. `leader` is null.", moved()),
        ("ebla tablet move --dry-run", "The tablet in its present group, and where it would move.", move_previews()),
        (
            "ebla group divide",
            "The group, and the new one with its servers. `tablets_moved` are in the new one.",
            vec![divided()],
        ),
    ]
}

fn split() -> Value {
    let [left, right] = descriptors();
    tablet::split_json(&left, &right)
}

/// One with an end, and the last one of its table.
fn merged() -> Vec<Value> {
    descriptors().iter().map(|merged| tablet::merge_json(merged, TabletId::new(8))).collect()
}

fn moved() -> Vec<Value> {
    descriptors().iter().map(|moved| tablet::move_json(moved, GroupId::new(4))).collect()
}

fn merge_previews() -> Vec<Value> {
    let [left, right] = descriptors();
    let reply = |bytes, moved| PreviewMergeReply {
        left_bytes: bytes,
        right_bytes: bytes,
        moved,
        ..PreviewMergeReply::default()
    };
    let preview = |reply: &PreviewMergeReply| tablet::preview::merge_json(&left, &right, reply);
    // The right one may be the last of its table, the left one is followed by the right one.
    let inner = tablet::preview::merge_json(&left, &left, &reply(None, 0));
    vec![preview(&reply(Some(1), 7)), preview(&reply(None, 0)), inner]
}

fn move_previews() -> Vec<Value> {
    let [left, right] = descriptors();
    let (to, servers) = (GroupId::new(4), [1]);
    vec![
        tablet::preview::move_json(&left, Some(1), to, &servers),
        tablet::preview::move_json(&right, None, to, &servers),
    ]
}

fn divided() -> Value {
    let group = |id| GroupDescriptor::initial(GroupId::new(id), &[ServerId::new(1)]);
    group::divide_json(&group(4), &group(5), 1)
}

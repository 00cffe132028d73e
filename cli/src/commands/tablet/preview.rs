//! `--dry-run` of `ebla tablet merge` and `ebla tablet move`: what the master would do.

use ebla_model::capacity::readable_bytes;
use ebla_model::id::{GroupId, TabletId};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_proto::{convert, operate};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::to_json;
use crate::commands::ClusterArguments;
use crate::output::{self, Failure, Format};

/// Shows what a merge would do.
///
/// # Errors
/// Why the two cannot be merged.
pub(super) async fn merge(
    cluster: &ClusterArguments,
    tablet: TabletId,
    with: Option<TabletId>,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let reply = cluster.client(runtime).await?.admin().preview_merge(tablet, with).await?;
    let (left, right) = (descriptor(reply.left.clone())?, descriptor(reply.right.clone())?);
    match cluster.output {
        Format::Json => output::print_json(&merge_json(&left, &right, &reply)),
        Format::Table => output::print(&merge_text(&left, &right, &reply)),
    }
    Ok(())
}

/// The tablets, and which of them would move before.
pub(in crate::commands) fn merge_json(
    left: &TabletDescriptor,
    right: &TabletDescriptor,
    reply: &operate::PreviewMergeReply,
) -> Value {
    json!({
        "left": to_json(left, None),
        "left_bytes": reply.left_bytes,
        "right": to_json(right, None),
        "right_bytes": reply.right_bytes,
        "moves": (reply.moved != 0).then_some(reply.moved),
    })
}

fn merge_text(left: &TabletDescriptor, right: &TabletDescriptor, reply: &operate::PreviewMergeReply) -> String {
    let one = |tablet: &TabletDescriptor, bytes| {
        format!("tablet {} (group {}, {})", tablet.tablet, tablet.group, size(bytes))
    };
    let moved = match reply.moved {
        0 => String::new(),
        moved => {
            let target = if moved == left.tablet.get() { right.group } else { left.group };
            format!(
                "before that, tablet {moved} would move to group {target}; its reads and writes wait while it is copied\n"
            )
        }
    };
    format!(
        "{} would be merged into {}, which keeps its number\n{moved}",
        one(left, reply.left_bytes),
        one(right, reply.right_bytes)
    )
}

/// Shows what a move would do.
///
/// # Errors
/// Why the tablet cannot move there.
pub(super) async fn movement(
    cluster: &ClusterArguments,
    tablet: TabletId,
    group: GroupId,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let reply = cluster.client(runtime).await?.admin().preview_move(tablet, group).await?;
    let tablet = descriptor(reply.tablet)?;
    let target = reply.target.as_ref().map(convert::group_from_proto).transpose()?;
    let servers =
        |group: &GroupDescriptor| group.membership.replicas().map(|replica| replica.server.get()).collect::<Vec<_>>();
    let to = target.as_ref().map(servers).unwrap_or_default();
    match cluster.output {
        Format::Json => output::print_json(&move_json(&tablet, reply.size_bytes, group, &to)),
        Format::Table => output::print(&format!(
            "tablet {} ({}) would move from group {} on servers {} to group {group} on servers {}; its reads and writes wait while \
             it is copied\n",
            tablet.tablet,
            size(reply.size_bytes),
            tablet.group,
            list(&super::servers(&tablet)),
            list(&to)
        )),
    }
    Ok(())
}

/// The tablet in its present group, and where it would move.
pub(in crate::commands) fn move_json(
    tablet: &TabletDescriptor,
    size_bytes: Option<u64>,
    group: GroupId,
    servers: &[u64],
) -> Value {
    json!({
        "tablet": to_json(tablet, None),
        "size_bytes": size_bytes,
        "to_group": group.get(),
        "to_servers": servers,
    })
}

fn descriptor(message: Option<ebla_proto::record::TabletDescriptor>) -> Result<TabletDescriptor, Failure> {
    let missing = || ebla_model::error::Error::internal("the reply names no tablet");
    Ok(convert::descriptor_from_proto(&message.ok_or_else(missing)?)?)
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown size".to_owned(), readable_bytes)
}

fn list(servers: &[u64]) -> String {
    servers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use ebla_model::id::TableId;
    use ebla_model::key::KeyRange;

    use super::*;

    fn tablet(id: u64, group: u64) -> TabletDescriptor {
        let group = GroupDescriptor::initial(GroupId::new(group), &[]);
        group.new_tablet(TableId::new(9), TabletId::new(id), KeyRange::all())
    }

    #[test]
    fn a_merge_names_the_tablet_that_moves_before() {
        let reply = |moved| operate::PreviewMergeReply {
            left_bytes: Some(3 << 20),
            right_bytes: None,
            moved,
            ..operate::PreviewMergeReply::default()
        };
        let text = merge_text(&tablet(12, 2), &tablet(13, 2), &reply(0));
        assert_eq!(
            text,
            "tablet 12 (group 2, 3.0 MiB) would be merged into tablet 13 (group 2, unknown size), which keeps its number\n"
        );
        let moved = |moved| merge_text(&tablet(12, 2), &tablet(13, 4), &reply(moved));
        assert!(moved(12).contains("before that, tablet 12 would move to group 4"));
        assert!(moved(13).contains("before that, tablet 13 would move to group 2"));
    }
}

//! `ebla tablet recover`: makes the replicas on one server the only ones of groups that have lost their majorities.

use std::collections::BTreeSet;

use ebla_client::admin::ExecutionMode;
use ebla_model::Micros;
use ebla_model::id::{ServerId, TabletId};
use ebla_proto::operate::{RecoverTabletsReply, RecoveredGroup};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use crate::commands::{ClusterArguments, connectivity, given_timeout};
use crate::output::{self, Failure, Format};

/// Carries out the command. `tablet`: only its group; `from`: the server whose replicas remain.
///
/// # Errors
/// What the master answers: a majority may exist, another replica knows more, a server does not respond.
pub(super) async fn run(
    cluster: &ClusterArguments,
    tablet: Option<TabletId>,
    from: ServerId,
    dry_run: bool,
    runtime: &Runtime,
) -> Result<(), Failure> {
    // Not through the tables: METADATA may be lost, too.
    let address = connectivity::first_reachable(&cluster.addresses()?, runtime).await?;
    let mut admin = cluster.admin_at(&address, runtime)?;
    if let Some(timeout) = given_timeout() {
        admin = admin.with_timeout(timeout);
    }
    let mode = ExecutionMode::from(dry_run);
    let reply = admin.recover_tablets(mode, from, tablet).await?;
    match cluster.output {
        Format::Json => output::print_json(&to_json(&reply, mode)),
        Format::Table => output::print(&render(&reply, from, mode)),
    }
    Ok(())
}

fn render(reply: &RecoverTabletsReply, from: ServerId, mode: ExecutionMode) -> String {
    let mut shown = String::new();
    for group in &reply.groups {
        shown.push_str(&format!(
            "group {} ({}): replica {} on tablet server {from} remains; given up: {}\n  it has all acknowledged writes up to {}; later \
             ones are lost\n",
            group.group,
            tablets(group),
            group.replica,
            given_up(group),
            last_write(group),
        ));
    }
    for group in &reply.given_up_groups {
        shown.push_str(&format!("group {group} was being created and has no tablets: given up\n"));
    }
    if !reply.lost_servers.is_empty() {
        let servers: Vec<String> = reply.lost_servers.iter().map(u64::to_string).collect();
        shown.push_str(&format!(
            "tablet servers {} are recorded as lost: delete their data folders before they start again\n",
            servers.join(", ")
        ));
    }
    shown.push_str(match mode {
        ExecutionMode::DryRun => "nothing was changed; run the command with --accept-data-loss to do this\n",
        ExecutionMode::Execute => "done; ebla status shows when the tablets have all their replicas again\n",
    });
    shown
}

fn tablets(group: &RecoveredGroup) -> String {
    let tables: BTreeSet<u64> = group.tablets.iter().map(|tablet| tablet.table).collect();
    let count = group.tablets.len();
    format!("{count} tablet{} of {} table{}", plural(count), tables.len(), plural(tables.len()))
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn given_up(group: &RecoveredGroup) -> String {
    let one = |replica: &ebla_proto::record::Replica| {
        format!("replica {} on tablet server {}", replica.replica, replica.server)
    };
    group.lost.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The last write that the replica has: a time if it has applied any command.
fn last_write(group: &RecoveredGroup) -> String {
    let last = group.last.unwrap_or_default();
    let entry = format!("log entry {}.{}", last.term, last.index);
    match group.time_micros {
        0 => entry,
        micros => format!("{} ({entry})", output::time(Micros::new(micros))),
    }
}

pub(in crate::commands) fn to_json(reply: &RecoverTabletsReply, mode: ExecutionMode) -> Value {
    let one = |group: &RecoveredGroup| {
        let last = group.last.unwrap_or_default();
        json!({
            "group": group.group,
            "replica": group.replica,
            "given_up": group.lost.iter().map(|one| json!({"replica": one.replica, "server": one.server})).collect::<Vec<_>>(),
            "last_entry": {"term": last.term, "index": last.index},
            "last_write_micros": group.time_micros,
            "tablets": group.tablets.iter().map(|one| json!({"table": one.table, "tablet": one.tablet})).collect::<Vec<_>>(),
        })
    };
    json!({
        "dry_run": mode == ExecutionMode::DryRun,
        "groups": reply.groups.iter().map(one).collect::<Vec<_>>(),
        "given_up_groups": reply.given_up_groups,
        "lost_servers": reply.lost_servers,
    })
}

#[cfg(test)]
mod tests {
    use ebla_proto::record::{LogId, Replica, TabletRecord};

    use super::*;

    #[test]
    fn a_dry_run_names_what_is_lost_and_says_that_nothing_was_changed() {
        let tablet = |table, tablet| TabletRecord { table, tablet, ..Default::default() };
        let reply = RecoverTabletsReply {
            groups: vec![RecoveredGroup {
                group: 7,
                replica: 1,
                lost: vec![Replica { replica: 2, server: 2 }, Replica { replica: 3, server: 3 }],
                last: Some(LogId { term: 4, index: 120 }),
                time_micros: 1_763_879_499_123_456,
                tablets: vec![tablet(5, 8), tablet(5, 9)],
            }],
            lost_servers: vec![2, 3],
            given_up_groups: vec![9],
        };
        let expected = [
            "group 7 (2 tablets of 1 table): replica 1 on tablet server 1 remains; given up: replica 2 on tablet server 2, replica 3 on \
             tablet server 3",
            "  it has all acknowledged writes up to 2025-11-23T06:31:39.123456Z (log entry 4.120); later ones are lost",
            "group 9 was being created and has no tablets: given up",
            "tablet servers 2, 3 are recorded as lost: delete their data folders before they start again",
            "nothing was changed; run the command with --accept-data-loss to do this",
        ];
        let shown = render(&reply, ServerId::new(1), ExecutionMode::DryRun);
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
        let shown = render(&reply, ServerId::new(1), ExecutionMode::Execute);
        assert!(shown.ends_with("done; ebla status shows when the tablets have all their replicas again\n"), "{shown}");
    }
}

//! `ebla server drain`, `undrain` and `remove`: the request, and the progress of a drain until the server has no replica.

use std::time::Duration;

use ebla_client::Admin;
use ebla_client::admin::ExecutionMode;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_proto::operate::{DrainServerReply, DrainedReplica};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use crate::commands::{ClusterArguments, connectivity, given_timeout};
use crate::output::{self, Failure, Format, Table};
use crate::process::Signals;

/// Between two looks at a drain in progress.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// How often the request is repeated whose outcome is unknown.
const REPETITIONS: u32 = 5;
/// The exit code after Ctrl-C, as shells report it.
const INTERRUPTED: u8 = 130;

/// When the command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// When the drain is recorded.
    Recorded,
    /// When the server has no replica.
    Empty,
}

/// Shows what a drain would move.
///
/// # Errors
/// What the master answers: the server is unknown, or the other servers cannot have its replicas.
pub(super) async fn preview(cluster: &ClusterArguments, server: ServerId, runtime: &Runtime) -> Result<(), Failure> {
    let reply = connect(cluster, runtime).await?.drain_server(ExecutionMode::DryRun, server).await?;
    match cluster.output {
        Format::Json => output::print_json(&to_json(server, &reply)),
        Format::Table => output::print(&format!("{}\n{}", summary(server, &reply), render(&reply.replicas))),
    }
    Ok(())
}

/// Drains the server.
///
/// # Errors
/// As [`preview`]; when the drain is ended by another request; code 130 after Ctrl-C.
pub(super) async fn drain(
    cluster: &ClusterArguments,
    server: ServerId,
    until: Until,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    let (admin, begun) = begin(cluster, server, runtime).await?;
    let reply = if until == Until::Empty && !begun.replicas.is_empty() {
        if cluster.output == Format::Table {
            output::print(&format!("{}\n{}", summary(server, &begun), render(&begun.replicas)));
        }
        match signals.unless_signalled(wait_until_empty(&admin, server, &begun)).await {
            Some(emptied) => emptied?,
            None => return Err(interrupted(server)),
        }
    } else {
        begun
    };
    match cluster.output {
        Format::Json => output::print_json(&to_json(server, &reply)),
        Format::Table => output::print(&format!("{}\n", summary(server, &reply))),
    }
    Ok(())
}

/// Begins the drain. To begin it again changes nothing, so the request is repeated when a connection is lost, as while a server restarts.
async fn begin(
    cluster: &ClusterArguments,
    server: ServerId,
    runtime: &Runtime,
) -> Result<(Admin, DrainServerReply), Failure> {
    let mut left = REPETITIONS;
    loop {
        let admin = connect(cluster, runtime).await?;
        match admin.drain_server(ExecutionMode::Execute, server).await {
            Err(error) if error.reason == Reason::OutcomeUnknown && left > 0 => left -= 1,
            outcome => return Ok((admin, outcome?)),
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

fn interrupted(server: ServerId) -> Failure {
    let message = format!(
        "the drain continues without this command: ebla server drain {server} shows its progress, ebla server undrain {server} \
         ends it"
    );
    Failure { message, code: INTERRUPTED }
}

/// Shows the progress on stderr whenever it changes.
async fn wait_until_empty(
    admin: &Admin,
    server: ServerId,
    begun: &DrainServerReply,
) -> Result<DrainServerReply, Failure> {
    let mut shown = String::new();
    loop {
        let line = match admin.drain_server(ExecutionMode::DryRun, server).await {
            Ok(reply) if !reply.drained => {
                let message = format!("the drain of server {server} was ended by another request");
                return Err(Error::new(Reason::FailedPrecondition, message).into());
            }
            Ok(reply) if reply.replicas.is_empty() => return Ok(reply),
            Ok(reply) => progress(server, begun.replicas.len(), &reply),
            // Another master takes over, or the address does not answer for a moment: the drain goes on.
            Err(error) => format!("server {server}: the progress is unknown: {error}"),
        };
        if line != shown {
            output::note(&line);
            shown = line;
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// The server, and whether there was a drain to end.
pub(in crate::commands) fn undrain_json(server: ServerId, was_drained: bool) -> Value {
    json!({"server": server.get(), "was_drained": was_drained})
}

/// The server, and whether the cluster has forgotten it.
pub(in crate::commands) fn remove_json(server: ServerId, mode: ExecutionMode) -> Value {
    json!({"server": server.get(), "removed": mode == ExecutionMode::Execute})
}

/// Ends the drain of a server.
///
/// # Errors
/// What the master answers.
pub(super) async fn undrain(
    cluster: &ClusterArguments,
    server: ServerId,
    mode: ExecutionMode,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let was_drained = connect(cluster, runtime).await?.undrain_server(mode, server).await?;
    match cluster.output {
        Format::Json => output::print_json(&undrain_json(server, was_drained)),
        Format::Table => {
            let text = match (was_drained, mode) {
                (false, _) => format!("server {server} is not drained: nothing to do"),
                (true, ExecutionMode::DryRun) => {
                    format!("server {server} is drained, and may get replicas again after it")
                }
                (true, ExecutionMode::Execute) => format!("server {server} may get replicas again"),
            };
            output::print(&format!("{text}\n"));
        }
    }
    Ok(())
}

/// Makes the cluster forget a server.
///
/// # Errors
/// What the master answers: it has replicas, or is registered.
pub(super) async fn remove(
    cluster: &ClusterArguments,
    server: ServerId,
    mode: ExecutionMode,
    runtime: &Runtime,
) -> Result<(), Failure> {
    connect(cluster, runtime).await?.remove_server(mode, server).await?;
    match cluster.output {
        Format::Json => output::print_json(&remove_json(server, mode)),
        Format::Table => {
            let done = if mode == ExecutionMode::DryRun { "can be removed" } else { "removed" };
            output::print(&format!("server {server} {done}\n"));
        }
    }
    Ok(())
}

/// Not through the tables: tablets may be unavailable meanwhile.
pub(in crate::commands) async fn connect(cluster: &ClusterArguments, runtime: &Runtime) -> Result<Admin, Failure> {
    let address = connectivity::first_reachable(&cluster.addresses()?, runtime).await?;
    let admin = cluster.admin_at(&address, runtime)?;
    Ok(match given_timeout() {
        Some(timeout) => admin.with_timeout(timeout),
        None => admin,
    })
}

/// The state of a drain in one line.
fn summary(server: ServerId, reply: &DrainServerReply) -> String {
    let amount = amount(&reply.replicas);
    match (reply.drained, reply.replicas.is_empty()) {
        (true, true) => {
            format!(
                "server {server} is drained: it has no replica; stop its process, then: ebla server remove {server}"
            )
        }
        (true, false) => format!("server {server} is being drained: {amount} must move"),
        (false, true) => format!("server {server} has no replica: nothing would move"),
        (false, false) => format!("a drain of server {server} would move {amount}"),
    }
}

fn amount(replicas: &[DrainedReplica]) -> String {
    let noun = if replicas.len() == 1 { "replica" } else { "replicas" };
    format!("{} {noun} ({})", replicas.len(), readable_bytes(size(replicas)))
}

fn size(replicas: &[DrainedReplica]) -> u64 {
    replicas.iter().map(|replica| replica.size_bytes).fold(0, u64::saturating_add)
}

/// The progress of a drain that had `all` replicas to move.
fn progress(server: ServerId, all: usize, reply: &DrainServerReply) -> String {
    let DrainServerReply { replicas, changes, obstacle, .. } = reply;
    let (left, all) = (replicas.len(), all.max(replicas.len()));
    let size = readable_bytes(size(replicas));
    let mut line = format!("server {server}: {left} of {all} replicas left ({size}), {changes} are moving");
    if *changes == 0 && !obstacle.is_empty() {
        line.push_str(&format!("; waiting: {obstacle}"));
    }
    line
}

/// Replicas as a table: group, tablets, size, whether it leads, the server that would get it.
fn render(replicas: &[DrainedReplica]) -> String {
    if replicas.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["GROUP", "TABLETS", "SIZE", "LEADS", "TO SERVER"]);
    for one in replicas {
        table.row(vec![
            one.group.to_string(),
            one.tablets.to_string(),
            readable_bytes(one.size_bytes),
            if one.leads { "yes" } else { "no" }.to_owned(),
            if one.to == 0 { "-".to_owned() } else { one.to.to_string() },
        ]);
    }
    table.render()
}

pub(in crate::commands) fn to_json(server: ServerId, reply: &DrainServerReply) -> Value {
    let replica = |one: &DrainedReplica| {
        json!({
            "group": one.group,
            "replica": one.replica,
            "tablets": one.tablets,
            "size_bytes": one.size_bytes,
            "leads": one.leads,
            "to": (one.to != 0).then_some(one.to),
        })
    };
    json!({
        "server": server.get(),
        "drained": reply.drained,
        "replicas": reply.replicas.iter().map(replica).collect::<Vec<_>>(),
        "obstacle": (!reply.obstacle.is_empty()).then_some(&reply.obstacle),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(drained: bool, sizes: &[u64]) -> DrainServerReply {
        let replica = |(group, size): (u64, &u64)| DrainedReplica {
            group,
            replica: 1,
            tablets: 2,
            size_bytes: *size << 20,
            leads: group == 1,
            to: if group == 1 { 4 } else { 0 },
        };
        DrainServerReply { drained, replicas: (1..).zip(sizes).map(replica).collect(), ..DrainServerReply::default() }
    }

    #[test]
    fn a_drain_is_summarized() {
        let server = ServerId::new(3);
        let summary = |drained, sizes: &[u64]| summary(server, &reply(drained, sizes));
        assert_eq!(summary(false, &[1, 2]), "a drain of server 3 would move 2 replicas (3.0 MiB)");
        assert_eq!(summary(true, &[1]), "server 3 is being drained: 1 replica (1.0 MiB) must move");
        assert!(summary(true, &[]).contains("then: ebla server remove 3"));
        assert!(interrupted(server).message.contains("the drain continues"));
    }

    #[test]
    fn the_progress_names_an_obstacle_only_while_nothing_moves() {
        let waits =
            DrainServerReply { obstacle: "group 2 has no leader that responds".to_owned(), ..reply(true, &[1]) };
        let line = progress(ServerId::new(3), 2, &waits);
        assert_eq!(
            line,
            "server 3: 1 of 2 replicas left (1.0 MiB), 0 are moving; waiting: group 2 has no leader that responds"
        );
        let moves = DrainServerReply { changes: 1, ..waits };
        assert!(progress(ServerId::new(3), 2, &moves).ends_with("1 are moving"));
    }

    #[test]
    fn replicas_are_shown_with_their_targets() {
        let shown = render(&reply(true, &[1, 2]).replicas);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["1", "2", "1.0", "MiB", "yes", "4"]);
        assert_eq!(lines[2], ["2", "2", "2.0", "MiB", "no", "-"]);
    }
}

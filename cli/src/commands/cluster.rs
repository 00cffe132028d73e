//! `ebla cluster`: what clusters register about themselves, and the cluster version during an upgrade.

mod registered;

use std::time::Duration;

use ebla_client::admin::{ExecutionMode, VersionHold};
use ebla_model::error::{Error, Reason};
use ebla_proto::convert::supported_from_proto;
use ebla_proto::operate::{DescribeClusterReply, HoldUpgradeReply, UpgradeProcess, UpgradeStatusReply};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::ClusterArguments;
use super::server::connect;
use crate::output::{self, Failure, Format, Table};

/// Show what clusters register about themselves; control the upgrade of a cluster
///
/// Examples:
///   ebla cluster list
///   ebla cluster describe
///   ebla cluster upgrade status
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Cluster {
    /// List the clusters at the addresses of --addr: name, size, traffic, versions
    ///
    /// The active master of a cluster registers it in Chubby every 30 s, with the name of `ebla master --cluster-name`. Addresses of one
    /// cluster are shown once.
    ///
    /// Examples:
    ///   ebla cluster list
    ///   ebla cluster list --addr server-1:8086,test-1:8086 -o json
    #[command(verbatim_doc_comment)]
    List {
        /// Which clusters
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Show what a cluster registers about itself
    ///
    /// Example:
    ///   ebla cluster describe
    #[command(verbatim_doc_comment)]
    Describe {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Show the active cluster version and what the next one waits for; hold it
    ///
    /// A cluster version says which formats and requests the processes of a cluster use among each other. A later one becomes active by
    /// itself when every master and tablet server has supported it for a while (ebla master --upgrade-delay). Until then every process can
    /// return to the previous release; afterwards the previous release does not start.
    ///
    /// Examples:
    ///   ebla cluster upgrade status
    ///   ebla cluster upgrade hold
    ///   ebla cluster upgrade continue
    #[command(subcommand, verbatim_doc_comment)]
    Upgrade(Upgrade),
}

/// The commands of an upgrade.
#[derive(Debug, clap::Subcommand)]
pub enum Upgrade {
    /// Show the active cluster version, the release and the versions of each process, and what the next version waits for
    ///
    /// Examples:
    ///   ebla cluster upgrade status
    ///   ebla cluster upgrade status -o json
    #[command(verbatim_doc_comment)]
    Status {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Keep the active cluster version, so that every process can return to the previous release
    ///
    /// Example:
    ///   ebla cluster upgrade hold
    ///
    /// It is stored in etcd until ebla cluster upgrade continue. What needs the next version is refused meanwhile.
    #[command(verbatim_doc_comment)]
    Hold {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Only show whether it is held
        #[arg(long)]
        dry_run: bool,
    },
    /// Let the next cluster version become active when every process supports it
    ///
    /// Example:
    ///   ebla cluster upgrade continue
    ///
    /// This ends ebla cluster upgrade hold. Once the next version is active, no process can return to the previous release.
    #[command(verbatim_doc_comment)]
    Continue {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Only show whether it is held
        #[arg(long)]
        dry_run: bool,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers; when no cluster answers.
pub async fn run(command: Cluster, runtime: Runtime) -> Result<(), Failure> {
    let command = match command {
        Cluster::List { cluster } => return registered::list(&cluster, &runtime).await,
        Cluster::Describe { cluster } => return registered::describe(&cluster, &runtime).await,
        Cluster::Upgrade(command) => command,
    };
    match command {
        Upgrade::Status { cluster } => status(&cluster, &runtime).await,
        Upgrade::Hold { cluster, dry_run } => hold(&cluster, VersionHold::Hold, dry_run.into(), &runtime).await,
        Upgrade::Continue { cluster, dry_run } => hold(&cluster, VersionHold::Continue, dry_run.into(), &runtime).await,
    }
}

async fn status(cluster: &ClusterArguments, runtime: &Runtime) -> Result<(), Failure> {
    let reply = connect(cluster, runtime).await?.upgrade_status().await.map_err(explain)?;
    match cluster.output {
        Format::Json => output::print_json(&to_json(&reply)),
        Format::Table => output::print(&render(&reply)),
    }
    Ok(())
}

async fn hold(
    cluster: &ClusterArguments,
    hold: VersionHold,
    mode: ExecutionMode,
    runtime: &Runtime,
) -> Result<(), Failure> {
    let reply = connect(cluster, runtime).await?.hold_upgrade(mode, hold).await.map_err(explain)?;
    match cluster.output {
        Format::Json => output::print_json(&hold_json(&reply, hold, mode)),
        Format::Table => output::print(&format!("{}\n", outcome(&reply, hold, mode))),
    }
    Ok(())
}

/// Whether the version is held, now and before.
pub(super) fn hold_json(reply: &HoldUpgradeReply, hold: VersionHold, mode: ExecutionMode) -> Value {
    json!({
        "active_version": reply.active_version,
        "was_held": reply.was_held,
        "held": if mode == ExecutionMode::Execute { hold == VersionHold::Hold } else { reply.was_held },
    })
}

/// A master of an earlier release does not know the request.
fn explain(error: Error) -> Error {
    if error.reason != Reason::Unimplemented {
        return error;
    }
    let message = "the active master runs a release without cluster versions: restart the masters with the new release first, then the \
                   tablet servers";
    Error::new(Reason::FailedPrecondition, message)
}

fn outcome(reply: &HoldUpgradeReply, hold: VersionHold, mode: ExecutionMode) -> String {
    let version = reply.active_version;
    let is_held = hold == VersionHold::Hold;
    match (mode, reply.was_held == is_held) {
        (ExecutionMode::DryRun, _) if reply.was_held => format!("version {version} is held"),
        (ExecutionMode::DryRun, _) => format!("version {version} is not held"),
        (ExecutionMode::Execute, true) if is_held => format!("version {version} is held already: nothing to do"),
        (ExecutionMode::Execute, true) => format!("version {version} is not held: nothing to do"),
        (ExecutionMode::Execute, false) if is_held => {
            format!(
                "version {version} is held: the next one does not become active until ebla cluster upgrade continue"
            )
        }
        (ExecutionMode::Execute, false) => format!(
            "version {version} is not held any more: the next one becomes active when every process supports it (ebla cluster upgrade \
             status)"
        ),
    }
}

fn render(reply: &UpgradeStatusReply) -> String {
    let mut table = Table::new(&["PROCESS", "ADDRESS", "RELEASE", "VERSIONS"]);
    for one in &reply.processes {
        table.row(vec![
            name(one),
            if one.address.is_empty() { "-".to_owned() } else { one.address.clone() },
            if one.release.is_empty() { "-".to_owned() } else { one.release.clone() },
            if one.registered { supported_from_proto(one.versions.as_ref()).to_string() } else { "unknown".to_owned() },
        ]);
    }
    format!("{}\n{}", verdict(reply), table.render())
}

fn name(process: &UpgradeProcess) -> String {
    match (process.server, process.active) {
        (0, true) => "active master".to_owned(),
        (0, false) => "master".to_owned(),
        (server, _) => format!("tablet server {server}"),
    }
}

/// The active version, what the next one waits for, and the next step.
fn verdict(reply: &UpgradeStatusReply) -> String {
    let held = if reply.held { " (held)" } else { "" };
    let mut text = format!("cluster version {}{held} is active\n", reply.active_version);
    match (reply.next_version, reply.activates_in_millis) {
        (0, _) => text.push_str("no process supports a later version: the upgrade is complete, or has not begun\n"),
        (next, Some(millis)) => {
            let seconds = Duration::from_millis(millis).as_secs();
            text.push_str(&format!(
                "version {next} becomes active in {seconds} s, if nothing changes; to keep the way back: ebla cluster upgrade hold\n"
            ));
        }
        (next, None) => {
            text.push_str(&format!("version {next} waits:\n"));
            reply.obstacles.iter().for_each(|obstacle| text.push_str(&format!("  {obstacle}\n")));
        }
    }
    text
}

/// `ebla cluster describe`.
pub(super) fn registration_json(reply: &DescribeClusterReply) -> Value {
    registered::to_json(reply)
}

pub(super) fn to_json(reply: &UpgradeStatusReply) -> Value {
    let process = |one: &UpgradeProcess| {
        let versions = one.registered.then(|| supported_from_proto(one.versions.as_ref()));
        json!({
            "role": if one.server == 0 { "master" } else { "tablet-server" },
            "server": (one.server != 0).then_some(one.server),
            "address": (!one.address.is_empty()).then_some(&one.address),
            "release": (!one.release.is_empty()).then_some(&one.release),
            "registered": one.registered,
            "active": one.active,
            "oldest_version": versions.map(|versions| versions.oldest.get()),
            "newest_version": versions.map(|versions| versions.newest.get()),
        })
    };
    json!({
        "active_version": reply.active_version,
        "held": reply.held,
        "next_version": (reply.next_version != 0).then_some(reply.next_version),
        "activates_in_millis": reply.activates_in_millis,
        "obstacles": reply.obstacles,
        "processes": reply.processes.iter().map(process).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use ebla_model::cluster_version::SupportedVersions;
    use ebla_proto::convert::supported_to_proto;

    use super::*;

    fn process(server: u64, release: &str) -> UpgradeProcess {
        UpgradeProcess {
            server,
            address: format!("host:{server}"),
            release: release.to_owned(),
            versions: (!release.is_empty()).then(|| supported_to_proto(SupportedVersions::OWN)),
            registered: true,
            active: server == 0,
        }
    }

    fn reply() -> UpgradeStatusReply {
        UpgradeStatusReply {
            active_version: 1,
            next_version: 2,
            obstacles: vec!["tablet server 2 (host:2) runs an earlier release".to_owned()],
            processes: vec![process(0, "0.2.0"), process(2, "")],
            ..UpgradeStatusReply::default()
        }
    }

    #[test]
    fn the_status_says_what_the_next_version_waits_for() {
        let shown = render(&reply());
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines[..3],
            ["cluster version 1 is active", "version 2 waits:", "  tablet server 2 (host:2) runs an earlier release"]
        );
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines[5]), "active master host:0 0.2.0 1 to 2");
        assert_eq!(words(lines[6]), "tablet server 2 host:2 - 1");

        let ready = UpgradeStatusReply { activates_in_millis: Some(30_500), obstacles: Vec::new(), ..reply() };
        assert!(verdict(&ready).contains("version 2 becomes active in 30 s"), "{}", verdict(&ready));
        let done = UpgradeStatusReply { active_version: 2, next_version: 0, held: true, ..ready };
        assert!(verdict(&done).starts_with("cluster version 2 (held) is active\nno process supports a later version"));
    }

    #[test]
    fn json_has_the_same_content() {
        let shown = to_json(&reply());
        assert_eq!((shown["active_version"].as_u64(), shown["next_version"].as_u64()), (Some(1), Some(2)));
        assert_eq!(shown["processes"][0]["role"], "master");
        assert_eq!(shown["processes"][0]["newest_version"], SupportedVersions::OWN.newest.get());
        assert_eq!(
            (&shown["processes"][1]["release"], &shown["processes"][1]["newest_version"]),
            (&Value::Null, &json!(1))
        );
        assert_eq!(shown["obstacles"][0], "tablet server 2 (host:2) runs an earlier release");
    }

    #[test]
    fn a_hold_says_what_it_has_changed() {
        let reply = |was_held| HoldUpgradeReply { active_version: 1, was_held };
        let outcome = |was_held, hold, mode| outcome(&reply(was_held), hold, mode);
        let execute = ExecutionMode::Execute;
        assert!(outcome(false, VersionHold::Hold, execute).starts_with("version 1 is held: the next one does not"));
        assert_eq!(outcome(true, VersionHold::Hold, execute), "version 1 is held already: nothing to do");
        assert!(outcome(true, VersionHold::Continue, execute).starts_with("version 1 is not held any more"));
        assert_eq!(outcome(false, VersionHold::Continue, execute), "version 1 is not held: nothing to do");
        assert_eq!(outcome(true, VersionHold::Continue, ExecutionMode::DryRun), "version 1 is held");
    }

    #[test]
    fn an_earlier_master_is_explained() {
        let explained = explain(Error::new(Reason::Unimplemented, ""));
        assert!(explained.message.contains("restart the masters with the new release first"), "{explained}");
        let other = Error::new(Reason::Unavailable, "no master");
        assert_eq!(explain(other.clone()), other);
    }
}

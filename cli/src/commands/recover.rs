//! `ebla recover`: restores the files of the lock service from what the tablet servers know.

use ebla_client::admin::ExecutionMode;
use ebla_model::id::ServerId;
use ebla_proto::operate::RecoverReply;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{ClusterArguments, connectivity, given_timeout};
use crate::address::Addresses;
use crate::output::{self, Failure, Format};

/// Restore what the lock service (etcd) has lost from what the tablet servers know
///
/// After etcd was restored from a backup, or started empty, it lacks tables and gives ids twice. The cluster keeps all data and
/// refuses changes of tables then. This command asks all tablet servers what they know, and writes what is missing: tables,
/// names, counters, the root tablet, the cluster itself. It deletes nothing, except a table again whose deletion the tablet
/// servers have seen. Begin with --dry-run.
///
/// Start the master and all tablet servers first. Servers are found through etcd, at --addr, and through each other.
///
/// Examples:
///   ebla recover --dry-run
///   ebla recover
///   ebla recover --addr 10.0.0.1:8086 --server 10.0.0.2:8086,10.0.0.3:8086
///   ebla recover --without 3
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Recover {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Only show what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// HOST:PORT of more tablet servers to ask, separated by commas
    #[arg(long, value_name = "HOST:PORT,…")]
    pub server: Option<Addresses>,
    /// Number of a tablet server that is lost permanently; can be repeated
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    pub without: Vec<u64>,
}

/// Carries out the command.
///
/// # Errors
/// What the master answers: which servers are missing, or why the evidence cannot be used.
pub async fn run(recover: Recover, runtime: Runtime) -> Result<(), Failure> {
    let addresses = recover.cluster.addresses()?;
    let address = connectivity::first_reachable(&addresses, &runtime).await?;
    let mut asked = addresses;
    asked.extend(recover.server.iter().flat_map(Addresses::list).cloned());
    let without: Vec<ServerId> = recover.without.iter().copied().map(ServerId::new).collect();
    let mode = if recover.dry_run { ExecutionMode::DryRun } else { ExecutionMode::Execute };
    let mut admin = recover.cluster.admin_at(&address, &runtime)?;
    if let Some(timeout) = given_timeout() {
        admin = admin.with_timeout(timeout);
    }
    let reply = admin.recover(mode, asked, &without).await?;
    match recover.cluster.output {
        Format::Json => output::print_json(&to_json(&reply, mode)),
        Format::Table => output::print(&render(&reply, mode)),
    }
    Ok(())
}

fn render(reply: &RecoverReply, mode: ExecutionMode) -> String {
    let servers: Vec<String> = reply.servers.iter().map(u64::to_string).collect();
    let mut shown = format!("asked tablet servers {}\n", servers.join(", "));
    if reply.steps.is_empty() {
        shown.push_str("the lock service lacks nothing that they know\n");
    } else {
        shown.push_str(match mode {
            ExecutionMode::DryRun => "would do:\n",
            ExecutionMode::Execute => "done:\n",
        });
        reply.steps.iter().for_each(|step| shown.push_str(&format!("  {step}\n")));
    }
    if !reply.findings.is_empty() {
        shown.push_str("to check:\n");
        reply.findings.iter().for_each(|finding| shown.push_str(&format!("  {finding}\n")));
    }
    if mode == ExecutionMode::DryRun && !reply.steps.is_empty() {
        shown.push_str("nothing was changed; run the command without --dry-run to do this\n");
    }
    shown
}

pub(super) fn to_json(reply: &RecoverReply, mode: ExecutionMode) -> Value {
    json!({
        "dry_run": mode == ExecutionMode::DryRun,
        "servers": reply.servers,
        "steps": reply.steps,
        "findings": reply.findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_says_that_nothing_was_changed() {
        let reply = RecoverReply {
            servers: vec![1, 3],
            steps: vec!["raise the counter tables to 6".to_owned()],
            findings: vec!["check the instances".to_owned()],
        };
        let shown = render(&reply, ExecutionMode::DryRun);
        let lines = [
            "asked tablet servers 1, 3",
            "would do:",
            "  raise the counter tables to 6",
            "to check:",
            "  check the instances",
            "nothing was changed; run the command without --dry-run to do this",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), lines);
        assert!(render(&reply, ExecutionMode::Execute).contains("done:\n  raise"));
        let complete = RecoverReply { servers: vec![1], ..Default::default() };
        assert_eq!(
            render(&complete, ExecutionMode::Execute),
            "asked tablet servers 1\nthe lock service lacks nothing that they know\n"
        );
    }
}

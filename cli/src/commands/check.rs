//! `ebla check`: whether the cluster's metadata and replicas are as they should be.

use std::time::Duration;

use ebla_client::admin::{CheckDepth, CheckMode};
use ebla_proto::operate::CheckReply;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{ClusterArguments, connectivity, given_timeout};
use crate::output::{self, Failure, Format};

/// Check that metadata and replicas are as they should be
///
/// It checks that the tablets of each table cover all its rows once; that METADATA describes them; that the replicas of a tablet have the same
/// content (it reads all data for that: --quick leaves it out); that no server has replicas or folders that belong to nothing. It changes
/// nothing without --repair. The master repairs the same by itself, within a minute.
///
/// Exit code: 0 when nothing is wrong, 8 when something is, or a server does not respond.
///
/// Examples:
///   ebla check
///   ebla check --quick
///   ebla check --repair
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Check {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Do not compare the content of replicas
    #[arg(long)]
    pub quick: bool,
    /// Repair what can be repaired without an operator
    #[arg(long)]
    pub repair: bool,
}

/// The exit code when something is wrong, as of `ebla mt check`.
const INCONSISTENT: u8 = 8;
/// All data is read.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Carries out the command.
///
/// # Errors
/// What the master answers; an exit code without a message when something was found.
pub async fn run(check: Check, runtime: Runtime) -> Result<(), Failure> {
    let address = connectivity::first_reachable(&check.cluster.addresses()?, &runtime).await?;
    let mut admin = check.cluster.admin_at(&address, &runtime)?.with_timeout(CHECK_TIMEOUT);
    if let Some(timeout) = given_timeout() {
        admin = admin.with_timeout(timeout);
    }
    let depth = if check.quick { CheckDepth::Metadata } else { CheckDepth::Contents };
    let mode = if check.repair { CheckMode::Repair } else { CheckMode::ReadOnly };
    let reply = admin.check(depth, mode).await?;
    match check.cluster.output {
        Format::Json => output::print_json(&to_json(&reply)),
        Format::Table => output::print(&render(&reply, depth)),
    }
    if reply.findings.is_empty() && reply.silent_servers.is_empty() {
        Ok(())
    } else {
        Err(Failure { message: String::new(), code: INCONSISTENT })
    }
}

fn render(reply: &CheckReply, depth: CheckDepth) -> String {
    let mut shown = format!("checked {} tables with {} tablets", reply.tables, reply.tablets);
    if depth == CheckDepth::Contents {
        shown.push_str(&format!("; compared the replicas of {} tablets", reply.compared));
    }
    shown.push('\n');
    if reply.not_compared > 0 {
        shown.push_str(&format!(
            "{} tablets were not compared: their replicas have not applied the same writes; run the check again when they are not written to\n",
            reply.not_compared
        ));
    }
    for server in &reply.silent_servers {
        shown.push_str(&format!("tablet server {server} does not respond: its replicas were not checked\n"));
    }
    for problem in &reply.repaired {
        shown.push_str(&format!("repaired: {problem}\n"));
    }
    for finding in &reply.findings {
        let next = if finding.repairable { "ebla check --repair" } else { finding.next_step.as_str() };
        shown.push_str(&format!("found: {}\n  next: {next}\n", finding.problem));
    }
    if reply.findings.is_empty() {
        let others = if reply.silent_servers.is_empty() { "" } else { " with the others" };
        shown.push_str(&format!("nothing is wrong{others}\n"));
    }
    shown
}

pub(super) fn to_json(reply: &CheckReply) -> Value {
    let findings = reply.findings.iter().map(|finding| {
        json!({ "problem": finding.problem, "next_step": finding.next_step, "repairable": finding.repairable })
    });
    json!({
        "tables": reply.tables,
        "tablets": reply.tablets,
        "compared": reply.compared,
        "not_compared": reply.not_compared,
        "silent_servers": reply.silent_servers,
        "repaired": reply.repaired,
        "findings": findings.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use ebla_proto::operate::CheckFinding;

    use super::*;

    #[test]
    fn findings_are_shown_with_the_next_step() {
        let mut reply = CheckReply { tables: 2, tablets: 5, compared: 5, ..Default::default() };
        let sound = "checked 2 tables with 5 tablets; compared the replicas of 5 tablets\nnothing is wrong\n";
        assert_eq!(render(&reply, CheckDepth::Contents), sound);
        reply.findings = vec![
            CheckFinding { problem: "a".to_owned(), next_step: String::new(), repairable: true },
            CheckFinding { problem: "b".to_owned(), next_step: "do".to_owned(), repairable: false },
        ];
        reply.silent_servers = vec![3];
        reply.repaired = vec!["c".to_owned()];
        let lines = [
            "checked 2 tables with 5 tablets",
            "tablet server 3 does not respond: its replicas were not checked",
            "repaired: c",
            "found: a",
            "  next: ebla check --repair",
            "found: b",
            "  next: do",
        ];
        assert_eq!(render(&reply, CheckDepth::Metadata).lines().collect::<Vec<_>>(), lines);
        assert_eq!(to_json(&reply)["findings"][1]["next_step"], "do");
    }
}

//! `ebla doctor`: what is wrong with a cluster, and with this machine where commands run, as a pure function of values.
//!
//! ```text
//!   Facts      the status, the loads, the versions, and what was seen of this machine
//!   cluster    the master, METADATA, tablets, the lock service, TLS, versions
//!   local      this machine: its clock, its certificate, its environment
//!   of_servers, of_loads   the checks that the console has too, in its crate
//! ```
//!
//! A rule is a function from facts to findings. A finding names its place, since when it has been so, and the next step. Values that are not known give no
//! finding; a check whose values could not be fetched at all is listed as not made. Findings contain no keys of rows.

mod cluster;
mod local;
#[cfg(test)]
mod tests;

pub use ebla_console::findings::{Finding, Severity};
use ebla_console::findings::{counted, first_of, of_loads, of_servers, span};
use ebla_model::Micros;
use ebla_proto::operate::{LoadsReply, UpgradeStatusReply};
use serde_json::{Value, json};

use crate::output::{self, Table};
use crate::process::ClusterSecurity;
use ebla_client::snapshot::ClusterSnapshot;
use ebla_client::verdict::Level;

/// The checks: their names in findings, and what they compare.
pub const CHECKS: [(&str, &str); 30] = [
    ("cluster", "something answers at the addresses"),
    ("start", "a new cluster has the tablet servers that it waits for"),
    ("master", "a master is active"),
    ("metadata", "METADATA can be read"),
    ("quorum", "every tablet has a majority of its replicas"),
    ("leader", "every tablet has a leader"),
    ("replicas", "every tablet has all its replicas"),
    ("unknown-tables", "the lock service knows every table of which servers have tablets"),
    ("lock-service", "the lock service has all changes that tablet servers have seen"),
    ("tls", "connections beyond this machine use TLS"),
    ("release", "all processes run the same release"),
    ("cluster-version", "the newest cluster version that the processes support is active"),
    ("server", "every tablet server answers and has its lease"),
    ("writes", "every tablet server accepts writes"),
    ("clock", "the clocks of the tablet servers agree"),
    ("slow-disk", "syncs of the commit log are fast"),
    ("damage", "no damaged replica stays in use"),
    ("lag", "no replica is far behind its leader"),
    ("disk", "at least 15 % of each disk are free, and more than twice the reserve"),
    ("memory", "each process uses less than 90 % of its memory"),
    ("files", "each process uses less than 80 % of its open files"),
    ("connections", "each process has less than 80 % of its connections"),
    ("memory-groups", "the locality groups in memory fit"),
    ("hot-row", "no single row has most of the requests of a busy tablet"),
    ("hot-tablet", "no tablet has most of the requests of the cluster"),
    ("quota", "no quota is used by 90 % or more"),
    ("local-clock", "the clock of this machine agrees with that of the master"),
    ("local-certificate", "the certificate of this command is valid for a week"),
    ("local-environment", "the variables of the environment name one cluster"),
    ("local-release", "this program has the release of the cluster"),
];

/// What was seen of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalFacts {
    /// By how many microseconds its clock is ahead of the master's, and by how many that may be wrong.
    pub clock: Option<(i64, u64)>,
    /// The certificate of this command expires within a week.
    pub certificate_expires: bool,
    /// `EBLA_ADDR` and `BIGTABLE_EMULATOR_HOST`, if both are set and differ.
    pub variables: Option<(String, String)>,
}

/// What the checks know.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The addresses that were asked.
    pub addresses: Vec<String>,
    /// Why nothing answers there; `None`: the cluster answers.
    pub unreachable: Option<String>,
    /// The status.
    pub snapshot: ClusterSnapshot,
    /// How connections to the cluster are secured.
    pub security: ClusterSecurity,
    /// Loads and quotas; `None`: they could not be fetched.
    pub loads: Option<LoadsReply>,
    /// Versions; `None`: they could not be fetched.
    pub versions: Option<UpgradeStatusReply>,
    /// This machine.
    pub local: LocalFacts,
    /// The release of this program.
    pub release: String,
    /// The time: that of the master, or of this machine.
    pub now: Micros,
    /// Checks that could not be made, and why.
    pub not_checked: Vec<(&'static str, String)>,
}

/// The outcome of all checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// The worst first, then in the order of [`CHECKS`].
    pub findings: Vec<Finding>,
    /// Checks that could not be made, and why.
    pub not_checked: Vec<(&'static str, String)>,
}

/// Makes all checks.
pub fn diagnose(facts: &Facts) -> Diagnosis {
    let mut findings = match &facts.unreachable {
        Some(error) => vec![cluster::unreachable(facts, error)],
        None => {
            let mut found = cluster::findings(facts);
            found.extend(of_servers(&facts.snapshot));
            found.extend(facts.loads.iter().flat_map(|loads| of_loads(&facts.snapshot, loads)));
            found
        }
    };
    findings.extend(local::findings(facts));
    let place = |finding: &Finding| CHECKS.iter().position(|(name, _what)| *name == finding.check);
    findings.sort_by_key(|finding| (std::cmp::Reverse(finding.severity), place(finding)));
    Diagnosis { findings, not_checked: facts.not_checked.clone() }
}

impl Diagnosis {
    /// The verdict: that of the worst finding.
    pub fn level(&self) -> Level {
        self.findings.iter().map(|finding| finding.severity.level()).max().unwrap_or(Level::Healthy)
    }

    /// For programs. Its fields are documented in docs/reference/json.md.
    pub fn to_json(&self) -> Value {
        let finding = |one: &Finding| {
            json!({
                "check": one.check,
                "severity": one.severity.name(),
                "place": one.place,
                "since_micros": one.since.map(Micros::get),
                "problem": one.problem,
                "next_step": one.next_step,
            })
        };
        let not_checked = |(check, reason): &(&str, String)| json!({"check": check, "reason": reason});
        json!({
            "verdict": self.level().name(),
            "findings": self.findings.iter().map(finding).collect::<Vec<_>>(),
            "checks": CHECKS.len() - self.not_checked.len(),
            "not_checked": self.not_checked.iter().map(not_checked).collect::<Vec<_>>(),
        })
    }

    /// For people: a paragraph for each finding.
    pub fn to_text(&self, now: Micros) -> String {
        let mut text = format!("{}: {}\n", self.level().name(), self.summary());
        for one in &self.findings {
            let since = one.since.map(|since| format!(", for {}", span(now, since))).unwrap_or_default();
            let severity = one.severity.name().to_uppercase();
            text.push_str(&format!(
                "\n{severity}  {}{since} ({})\n  {}\n  Next: {}\n",
                one.place, one.check, one.problem, one.next_step
            ));
        }
        if !self.not_checked.is_empty() {
            text.push_str("\nNot checked:\n");
            self.not_checked.iter().for_each(|(check, reason)| text.push_str(&format!("  {check}: {reason}\n")));
        }
        output::printable_lines(&text).into_owned()
    }

    /// The findings as a table, for `-o csv` and `-o raw`.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&["SEVERITY", "CHECK", "PLACE", "SINCE", "PROBLEM", "NEXT STEP"]);
        for one in &self.findings {
            table.row(vec![
                one.severity.name().to_owned(),
                one.check.to_owned(),
                one.place.clone(),
                one.since.map(output::time).unwrap_or_default(),
                one.problem.clone(),
                one.next_step.clone(),
            ]);
        }
        table
    }

    fn summary(&self) -> String {
        let checks = CHECKS.len() - self.not_checked.len();
        if self.findings.is_empty() {
            return format!("{checks} checks found nothing");
        }
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        let parts = [Severity::Critical, Severity::Warning, Severity::Note].into_iter().filter_map(|severity| {
            let noun = match (severity, count(severity)) {
                (_, 0) => return None,
                (Severity::Critical, _) => "critical",
                (_, 1) => severity.name(),
                (Severity::Warning, _) => "warnings",
                (Severity::Note, _) => "notes",
            };
            Some(format!("{} {noun}", count(severity)))
        });
        format!("{} in {checks} checks", parts.collect::<Vec<_>>().join(", "))
    }
}

/// [`list`] for programs.
pub fn list_json() -> Value {
    CHECKS.iter().map(|(name, what)| json!({"check": name, "what": what})).collect()
}

/// Every check with what it compares, for `ebla doctor --list`.
pub fn list() -> Table {
    let mut table = Table::new(&["CHECK", "WHAT"]);
    CHECKS.iter().for_each(|(name, what)| table.row(vec![(*name).to_owned(), (*what).to_owned()]));
    table
}

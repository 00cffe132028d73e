//! Checks of this machine and of the environment of this command.

use super::{Facts, Finding, Severity};

/// How far the clock of this machine may be from that of the master, in microseconds, beside what the measurement may be wrong by.
const CLOCK_MICROS: u64 = 5_000_000;
/// This machine as a place.
const HERE: &str = "this machine";

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    [clock(facts), certificate(facts), environment(facts), release(facts)].into_iter().flatten().collect()
}

fn note(check: &'static str, severity: Severity, problem: String, next_step: &str) -> Finding {
    let (place, next_step) = (HERE.to_owned(), next_step.to_owned());
    Finding { check, severity, place, page: None, since: None, problem, next_step }
}

fn clock(facts: &Facts) -> Option<Finding> {
    let (ahead, error) = facts.local.clock?;
    if ahead.unsigned_abs() <= CLOCK_MICROS.saturating_add(error) {
        return None;
    }
    let direction = if ahead < 0 { "behind" } else { "ahead of" };
    let problem = format!(
        "its clock is {} s {direction} that of the master: tokens and timestamps that are made here may be refused",
        ahead.unsigned_abs() / 1_000_000
    );
    Some(note("local-clock", Severity::Warning, problem, "synchronise the clocks of both machines (NTP)"))
}

fn certificate(facts: &Facts) -> Option<Finding> {
    let problem = "the certificate of --tls-cert expires within a week".to_owned();
    let next_step = "make a new one with ebla cert client, or as your CA does";
    facts.local.certificate_expires.then(|| note("local-certificate", Severity::Warning, problem, next_step))
}

fn environment(facts: &Facts) -> Option<Finding> {
    let (own, emulator) = facts.local.variables.as_ref()?;
    let problem = format!(
        "EBLA_ADDR is {own} and BIGTABLE_EMULATOR_HOST is {emulator}: ebla uses the former, client libraries the latter"
    );
    Some(note("local-environment", Severity::Note, problem, "unset one of them, or give both the same address"))
}

fn release(facts: &Facts) -> Option<Finding> {
    let releases = facts.snapshot.servers.iter().filter_map(|server| server.release.as_deref());
    let other = releases.into_iter().find(|release| *release != facts.release)?;
    let problem = format!("this program has release {}, and the cluster runs {other}", facts.release);
    let next_step = "use the program of the newest release of the cluster";
    Some(note("local-release", Severity::Note, problem, next_step))
}

//! The planted faults, and which run finds each: every one must be found, and the same runs without a fault must be clean.

use std::collections::BTreeSet;
use std::process::ExitCode;

use ebla_runtime::{Bug, Clock};

use crate::process::{Ran, start};

/// A fault, the plan that is apt to find it, and the seeds to try in turn.
const CATALOGUE: [(Bug, &str, [u64; 4]); 16] = [
    (Bug::VoteAfterRestart, "votes", [1, 2, 3, 4]),
    (Bug::AckBeforeSync, "power", [1, 2, 3, 4]),
    (Bug::VoteNotSaved, "votes", [1, 2, 3, 4]),
    (Bug::LogTailLost, "power", [1, 2, 3, 4]),
    (Bug::ReadWithoutLease, "parts", [1, 2, 3, 4]),
    (Bug::LeaseTooLong, "parts", [1, 2, 3, 4]),
    (Bug::AnswerBeforeCommit, "parts", [1, 2, 3, 4]),
    (Bug::AppliedTwice, "parts", [1, 2, 3, 4]),
    (Bug::RetryUnderNewNumber, "parts", [1, 2, 3, 4]),
    (Bug::SplitForgetsSessions, "parts", [1, 2, 3, 4]),
    (Bug::TimeGoesBack, "clocks", [1, 2, 3, 4]),
    (Bug::DecisionUnlatched, "parts", [1, 2, 3, 4]),
    (Bug::GenerationUnchecked, "parts", [1, 2, 3, 4]),
    (Bug::UnsentReportedWritten, "parts", [1, 2, 3, 4]),
    (Bug::ApplyReadsClock, "power", [1, 2, 3, 4]),
    (Bug::ScanSkipsRest, "parts", [1, 2, 3, 4]),
];

/// Tries every fault, or the one that `EBLA_PLANTED` names.
pub(crate) fn all() -> ExitCode {
    let wanted = std::env::var("EBLA_PLANTED").ok();
    let mut missed = Vec::new();
    for (plan, seed) in CATALOGUE.iter().map(|(_, plan, seeds)| (*plan, seeds[0])).collect::<BTreeSet<_>>() {
        let clean = start(seed, plan, "");
        if !clean.succeeded {
            missed.push(format!("{plan} {seed} fails without a fault:\n{}", clean.text));
        }
    }
    for (bug, plan, seeds) in CATALOGUE {
        let name = format!("{bug:?}");
        if wanted.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        let clock = Clock::system();
        let began = clock.monotonic();
        let found = seeds.iter().map(|seed| start(*seed, plan, &name)).find(|ran| !ran.succeeded);
        let took = clock.monotonic().saturating_sub(began).as_secs_f64();
        match found {
            Some(ran) => println!("{name}: {plan} {} after {took:.1} s: {}", ran.seed, said(&ran)),
            None => missed.push(format!("{name}: not found by {plan} {seeds:?} in {took:.1} s")),
        }
    }
    for miss in &missed {
        println!("MISSED {miss}");
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The first thing that a run found wrong.
fn said(ran: &Ran) -> &str {
    ran.text.lines().find(|line| line.starts_with("  ")).or_else(|| ran.text.lines().next()).unwrap_or_default().trim()
}

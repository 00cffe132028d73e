//! The planted faults, and which run finds each: every one must be found, and the same runs without a fault must be clean.

use std::collections::BTreeSet;

use ebla_runtime::{Bug, Clock};

use crate::process::{Ran, side_by_side, start};

/// A fault, the plan that is apt to find it, and the seeds to try in turn. Not here: `SplitForgetsSessions` and
/// `ScanSkipsRest`, which no seed has found yet.
const CATALOGUE: [(Bug, &str, &[u64]); 14] = [
    (Bug::VoteAfterRestart, "votes", &[1]),
    (Bug::AckBeforeSync, "power", &[2]),
    (Bug::VoteNotSaved, "votes", &[1]),
    (Bug::LogTailLost, "power", &[1]),
    (Bug::ReadWithoutLease, "parts", &[2]),
    (Bug::LeaseTooLong, "parts", &[1]),
    (Bug::AnswerBeforeCommit, "parts", &[1]),
    (Bug::AppliedTwice, "parts", &[1]),
    (Bug::RetryUnderNewNumber, "parts", &[1]),
    (Bug::TimeGoesBack, "clocks", &[1]),
    (Bug::DecisionUnlatched, "parts", &[2]),
    (Bug::GenerationUnchecked, "parts", &[1]),
    (Bug::UnsentReportedWritten, "parts", &[1]),
    (Bug::ApplyReadsClock, "power", &[1]),
];

/// One thing to try: a fault, or, without one, that the run is clean.
struct Trial {
    bug: Option<Bug>,
    plan: &'static str,
    seeds: &'static [u64],
}

/// Tries every fault, or the one that `EBLA_PLANTED` names; whether all were found.
pub(crate) fn all() -> bool {
    let wanted = std::env::var("EBLA_PLANTED").ok();
    let trials = trials(wanted.as_deref());
    let mut all_hold = true;
    side_by_side(trials.into_iter(), |trial| trial.holds(), |holds| all_hold &= holds);
    all_hold
}

fn trials(wanted: Option<&str>) -> Vec<Trial> {
    let planted: Vec<Trial> = CATALOGUE
        .into_iter()
        .filter(|(bug, _, _)| wanted.is_none_or(|wanted| wanted == format!("{bug:?}")))
        .map(|(bug, plan, seeds)| Trial { bug: Some(bug), plan, seeds })
        .collect();
    assert!(!planted.is_empty(), "no planted fault of this name: {wanted:?}");
    // Each run that finds something is to find nothing where there is nothing.
    let clean: BTreeSet<(&str, &[u64])> =
        planted.iter().filter_map(|one| Some((one.plan, one.seeds.get(..1)?))).collect();
    let clean = clean.into_iter().map(|(plan, seeds)| Trial { bug: None, plan, seeds });
    clean.chain(planted).collect()
}

impl Trial {
    /// Whether the fault is found, or none is where none is planted; says what came of it.
    fn holds(&self) -> bool {
        let clock = Clock::system();
        let began = clock.monotonic();
        let name = self.bug.map_or_else(String::new, |bug| format!("{bug:?}"));
        let found = self.seeds.iter().map(|seed| start(*seed, self.plan, &name)).find(|ran| !ran.succeeded);
        let took = clock.monotonic().saturating_sub(began).as_secs_f64();
        let (plan, seeds) = (self.plan, self.seeds);
        match (self.bug, &found) {
            (Some(_), Some(ran)) => println!("{name}: {plan} {} after {took:.1} s: {}", ran.seed, said(ran)),
            (Some(_), None) => println!("MISSED {name}: not found by {plan} {seeds:?} in {took:.1} s"),
            (None, None) => println!("no fault: {plan} {seeds:?} clean in {took:.1} s"),
            (None, Some(ran)) => println!("FAILED {plan} {} without a fault:\n{}", ran.seed, ran.text),
        }
        self.bug.is_some() == found.is_some()
    }
}

/// The first thing that a run found wrong.
fn said(ran: &Ran) -> &str {
    ran.text.lines().find(|line| line.starts_with("  ")).or_else(|| ran.text.lines().next()).unwrap_or_default().trim()
}

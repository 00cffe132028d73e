//! The planted faults, and which run finds each: every one must be found, and the same runs without a fault must be clean.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ebla_runtime::{Clock, Failpoint};

use crate::process::{Ran, run_concurrently, start};

/// The faults with the plans that find them. `LeaseFromResponse`, `SchemaNotSaved`, `DivideForgetsSessions` and `ChubbyNotCompared` are missing: it
/// may take dozens of seeds to find them.
const CATALOGUE: [(Failpoint, &str); 54] = [
    (Failpoint::VoteAfterRestart, "votes"),
    (Failpoint::AckBeforeSync, "outage"),
    (Failpoint::VoteNotSaved, "votes"),
    (Failpoint::LogTailLost, "power"),
    (Failpoint::ReadWithoutLease, "suspend"),
    (Failpoint::LeaseTooLong, "parts"),
    (Failpoint::AnswerBeforeCommit, "parts"),
    (Failpoint::AppliedTwice, "parts"),
    (Failpoint::RetryUnderNewNumber, "parts"),
    (Failpoint::MoveForgetsSessions, "lost-answers"),
    (Failpoint::TimeGoesBack, "clocks"),
    (Failpoint::ClockJumpAgesCells, "clocks"),
    (Failpoint::CatchUpUnbounded, "leap"),
    (Failpoint::DecisionUnlatched, "parts"),
    (Failpoint::GenerationUnchecked, "parts"),
    (Failpoint::UnsentReportedWritten, "parts"),
    (Failpoint::ApplyReadsClock, "power"),
    (Failpoint::ResultForgotten, "kills"),
    (Failpoint::LatchReleasedEarly, "parts"),
    (Failpoint::ReadIndexUnapplied, "lags"),
    (Failpoint::ClocksNotCompared, "clocks"),
    (Failpoint::MoveForgetsTime, "drift"),
    (Failpoint::MoveKeepsWriting, "moves"),
    (Failpoint::MoveForgetsTokens, "transit"),
    (Failpoint::MoveForgetsDifference, "transit"),
    (Failpoint::DropIgnoresMove, "transit"),
    (Failpoint::DropUnlatched, "transit"),
    (Failpoint::TokenForgotten, "sums"),
    (Failpoint::AdditionUnlatched, "sums"),
    (Failpoint::CollectMixesColumns, "bulk"),
    (Failpoint::SnapshotForgetsSessions, "snapshots"),
    (Failpoint::SnapshotLosesTablet, "snapshots"),
    (Failpoint::BootClockStops, "suspend"),
    (Failpoint::ScanCacheKeepsRows, "parts"),
    (Failpoint::ExpiredServerReturned, "names"),
    (Failpoint::MountOnDeletedNode, "duels"),
    (Failpoint::ExpiryForgetsRefresh, "duels"),
    (Failpoint::LeaseWithoutMargin, "skew"),
    (Failpoint::FullDiskIgnored, "full"),
    (Failpoint::FullDiskAcknowledged, "full"),
    (Failpoint::DiskErrorIgnored, "failing"),
    (Failpoint::RecoveryReportsNow, "lost"),
    (Failpoint::SlowDiskIgnored, "slow"),
    (Failpoint::LogDamageCut, "damage"),
    (Failpoint::DamagedStoreReopened, "rot"),
    (Failpoint::ReceiverUnchecked, "rejoins"),
    (Failpoint::DamageNotExamined, "decay"),
    (Failpoint::ScanSkipsRest, "scans"),
    (Failpoint::IteratorStatusIgnored, "decay"),
    (Failpoint::ScanResumesInclusively, "scans"),
    (Failpoint::VersionIgnoresStarts, "versions"),
    (Failpoint::VersionIgnoresAbsent, "versions"),
    (Failpoint::CopyAheadUnchecked, "versions"),
    (Failpoint::RegistryNotSynced, "power"),
];

/// Tried in order until one finds the fault; which one does depends on the code.
const SEEDS: RangeInclusive<u64> = 1..=24;

/// One thing to try: a fault, or, without one, that the plan's first seed is clean.
struct Trial {
    bug: Option<Failpoint>,
    plan: &'static str,
}

/// Tries every fault, or the one that `EBLA_PLANTED` names; whether all were found.
pub(crate) fn all() -> bool {
    let wanted = std::env::var("EBLA_PLANTED").ok();
    let trials = trials(wanted.as_deref());
    let mut all_hold = true;
    run_concurrently(trials.into_iter(), |trial| trial.holds(), |holds| all_hold &= holds);
    all_hold
}

fn trials(wanted: Option<&str>) -> Vec<Trial> {
    let planted: Vec<Trial> = CATALOGUE
        .into_iter()
        .filter(|(bug, _)| wanted.is_none_or(|wanted| wanted == format!("{bug:?}")))
        .map(|(bug, plan)| Trial { bug: Some(bug), plan })
        .collect();
    assert!(!planted.is_empty(), "no planted fault of this name: {wanted:?}");
    // Each plan must pass without a planted fault.
    let plans: BTreeSet<&str> = planted.iter().map(|one| one.plan).collect();
    plans.into_iter().map(|plan| Trial { bug: None, plan }).chain(planted).collect()
}

impl Trial {
    /// Whether the fault is found, or whether a run without a fault passes; prints the result.
    fn holds(&self) -> bool {
        let clock = Clock::system();
        let began = clock.monotonic();
        let name = self.bug.map_or_else(String::new, |bug| format!("{bug:?}"));
        let seeds = match self.bug {
            Some(_) => SEEDS,
            None => 1..=1,
        };
        let found = seeds.clone().map(|seed| start(seed, self.plan, &name)).find(|ran| !ran.succeeded);
        let took = clock.monotonic().saturating_sub(began).as_secs_f64();
        let plan = self.plan;
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

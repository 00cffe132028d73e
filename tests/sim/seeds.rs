//! Many seeds: this program, started again for each, two at a time. Also a few seeds of the plans that no seed draws.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use ebla_runtime::Clock;

use crate::process::{Ran, run_concurrently, start};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// The figures of a run's line.
fn figures(ran: &Ran) -> impl Iterator<Item = (&str, &str)> {
    ran.text.lines().next().unwrap_or_default().split_whitespace().filter_map(|word| word.split_once('='))
}

/// Which seeds to run by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// From 1 on: the result is deterministic.
    Fixed,
    /// New seeds in each run.
    Fresh,
}

/// Plans that no seed draws and no planted fault needs, with the seeds of each that are run before the others.
const NAMED_PLANS: [(&str, Range<u64>); 3] = [("many-groups", 1..3), ("large-values", 1..3), ("beside", 1..3)];

/// Checks that seeds are deterministic, then runs as many seeds as possible in the time; returns whether all passed.
pub(crate) fn all(choice: Choice) -> bool {
    let seconds = number("EBLA_SIM_SECONDS");
    let named = seeds();
    let mut failed = Vec::new();
    if named.is_none() {
        failed.extend(repeats(1, "calm"));
        failed.extend(repeats(2, "swarm"));
        failed.extend(repeats(1, "names"));
        failed.extend(repeats(1, "suspend"));
        failed.extend(of_named_plans());
    }
    let first = match choice {
        Choice::Fixed => 1,
        Choice::Fresh => Clock::system().wall().get().unsigned_abs() % 1_000_000_000,
    };
    let timeout = seconds.unwrap_or(if named.is_some() { u64::MAX } else { 180 });
    failed.extend(many(named.unwrap_or(first..u64::MAX), Duration::from_secs(timeout)));
    for ran in &failed {
        let Ran { seed, plan, text, .. } = ran;
        println!("FAILED: seed {seed}\n{text}\nrun it again: EBLA_SIM_PLAN={plan} make sim SEED={seed}");
    }
    failed.is_empty()
}

/// `EBLA_SIM_SEEDS=A..B`.
fn seeds() -> Option<Range<u64>> {
    let text = std::env::var("EBLA_SIM_SEEDS").ok()?;
    let (from, to) = text.split_once("..").unwrap();
    Some(from.parse().unwrap()..to.parse().unwrap())
}

/// Runs a seed twice; fails when a run fails or the runs differ.
fn repeats(seed: u64, plan: &str) -> Vec<Ran> {
    let mut runs = Vec::new();
    run_concurrently(0..2, |_turn| start(seed, plan, ""), |ran| runs.push(ran));
    let hashes: Vec<_> = runs.iter().map(|ran| figures(ran).find(|(name, _)| *name == "hash")).collect();
    println!("{plan} {}", runs[0].text.trim_end());
    if hashes[0].is_some() && hashes[0] == hashes[1] {
        return runs.into_iter().filter(|ran| !ran.succeeded).take(1).collect();
    }
    println!("seed {seed} is not deterministic: {hashes:?}");
    runs
}

/// Runs the seeds of the named plans; returns the failed runs.
fn of_named_plans() -> Vec<Ran> {
    let runs = NAMED_PLANS.into_iter().flat_map(|(plan, seeds)| seeds.map(move |seed| (plan, seed)));
    let mut failed = Vec::new();
    run_concurrently(
        runs,
        |(plan, seed)| start(seed, plan, ""),
        |ran| {
            println!("{} {}", ran.plan, ran.text.trim_end());
            if !ran.succeeded {
                failed.push(ran);
            }
        },
    );
    failed
}

/// Runs the seeds until the end of the range or of the time; returns the failed runs.
fn many(seeds: Range<u64>, timeout: Duration) -> Vec<Ran> {
    let clock = Clock::system();
    let end = clock.monotonic().saturating_add(timeout);
    let mut totals = Totals { next: seeds.start, ..Totals::default() };
    let in_time = seeds.take_while(|_seed| clock.monotonic() < end);
    run_concurrently(in_time, |seed| start(seed, "swarm", ""), |ran| totals.add(ran));
    totals.print(clock.monotonic().saturating_add(timeout).saturating_sub(end));
    totals.failed
}

/// After each such number of runs their state is printed.
const REPORTED_RUNS: u64 = 100;

/// Totals of all runs.
#[derive(Default)]
struct Totals {
    /// The first seed whose run has not ended: from there an interrupted series goes on.
    next: u64,
    /// Later seeds whose runs have ended.
    later: BTreeSet<u64>,
    runs: u64,
    simulated_seconds: u64,
    figures: BTreeMap<String, u64>,
    failed: Vec<Ran>,
}

impl Totals {
    fn add(&mut self, ran: Ran) {
        self.runs += 1;
        self.later.insert(ran.seed);
        while self.later.remove(&self.next) {
            self.next += 1;
        }
        for (name, value) in figures(&ran) {
            match (name, value.parse::<u64>()) {
                ("seed" | "hash" | "events", _) | (_, Err(_)) => {}
                ("simulated_s", Ok(seconds)) => self.simulated_seconds += seconds,
                (name, Ok(count)) => *self.figures.entry(name.to_owned()).or_default() += count,
            }
        }
        if !ran.succeeded {
            println!("seed {} failed:\n{}", ran.seed, ran.text);
            self.failed.push(ran);
        }
        if self.runs.is_multiple_of(REPORTED_RUNS) {
            println!("{} seeds, {} failed; all before seed {} have ended", self.runs, self.failed.len(), self.next);
        }
    }

    fn print(&self, took: Duration) {
        let figures: Vec<String> = self.figures.iter().map(|(name, count)| format!("{name}={count}")).collect();
        println!(
            "{} seeds, {} failed, {:.1} simulated hours in {:.1} minutes: {}",
            self.runs,
            self.failed.len(),
            self.simulated_seconds as f64 / 3600.0,
            took.as_secs_f64() / 60.0,
            figures.join(" ")
        );
    }
}

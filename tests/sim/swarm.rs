//! Many seeds: this program, started again for each, two at a time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ebla_runtime::Clock;

use crate::process::{Ran, start};

/// Runs at once.
const AT_ONCE: usize = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// A figure of a run's line.
fn figure<'r>(ran: &'r Ran, name: &str) -> Option<&'r str> {
    ran.text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// First that a seed repeats itself, then as many seeds as there is time for.
pub(crate) fn all() -> ExitCode {
    let seconds = number("EBLA_SIM_SECONDS");
    let seeds = seeds();
    let mut failed = Vec::new();
    if seeds.is_none() {
        failed.extend(repeats(1, "calm"));
        failed.extend(repeats(2, "swarm"));
    }
    let fresh = Clock::system().wall().get().unsigned_abs() % 1_000_000_000;
    let (seeds, seconds) = match seeds {
        Some(seeds) => (seeds, seconds.unwrap_or(u64::MAX)),
        None => (fresh..fresh + 1_000_000, seconds.unwrap_or(180)),
    };
    failed.extend(many(seeds, Duration::from_secs(seconds)));
    for ran in &failed {
        println!("FAILED: seed {}\n{}\nrun it again: make sim SEED={}", ran.seed, ran.text, ran.seed);
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `EBLA_SIM_SEEDS=A..B`.
fn seeds() -> Option<Range<u64>> {
    let text = std::env::var("EBLA_SIM_SEEDS").ok()?;
    let (from, to) = text.split_once("..").unwrap();
    Some(from.parse().unwrap()..to.parse().unwrap())
}

/// Runs a seed twice; fails when a run fails, or the second differs from the first.
fn repeats(seed: u64, plan: &str) -> Vec<Ran> {
    let runs = [start(seed, plan, ""), start(seed, plan, "")];
    let hashes = runs.each_ref().map(|ran| figure(ran, "hash").map(str::to_owned));
    println!("{plan} {}", runs[0].text.trim_end());
    if hashes[0].is_some() && hashes[0] == hashes[1] {
        return runs.into_iter().filter(|ran| !ran.succeeded).take(1).collect();
    }
    println!("seed {seed} does not repeat itself: {hashes:?}");
    runs.into_iter().collect()
}

/// Runs seeds until they, or the time, are at their end; gives those that failed, at most a few.
fn many(seeds: Range<u64>, limit: Duration) -> Vec<Ran> {
    let clock = Clock::system();
    let end = clock.monotonic().saturating_add(limit);
    let next = AtomicU64::new(seeds.start);
    let (sender, results) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            let (sender, next, seeds, clock) = (sender.clone(), &next, &seeds, &clock);
            scope.spawn(move || {
                while clock.monotonic() < end {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) || sender.send(start(seed, "swarm", "")).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        tally(results.iter())
    })
}

fn tally(results: impl Iterator<Item = Ran>) -> Vec<Ran> {
    let (mut runs, mut simulated, mut failed) = (0_u64, 0_u64, Vec::new());
    let mut figures: BTreeMap<String, u64> = BTreeMap::new();
    for ran in results {
        runs += 1;
        for (name, value) in
            ran.text.lines().next().unwrap_or_default().split_whitespace().filter_map(|w| w.split_once('='))
        {
            match (name, value.parse::<u64>()) {
                ("seed" | "hash" | "events", _) | (_, Err(_)) => {}
                ("simulated_s", Ok(seconds)) => simulated += seconds,
                (name, Ok(count)) => *figures.entry(name.to_owned()).or_default() += count,
            }
        }
        if !ran.succeeded {
            println!("seed {} failed", ran.seed);
            failed.push(ran);
        }
    }
    let figures: Vec<String> = figures.iter().map(|(name, count)| format!("{name}={count}")).collect();
    println!(
        "{runs} seeds, {} failed, {:.1} simulated hours: {}",
        failed.len(),
        simulated as f64 / 3600.0,
        figures.join(" ")
    );
    failed
}

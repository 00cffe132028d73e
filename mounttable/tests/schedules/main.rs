//! The protocol between parents and children under many orders of its steps, each made from a seed: the real code over the storage
//! in memory, which yields before every call; a scheduler draws who goes on, and whose process ends there.
//!
//! ```text
//!   scheduler   draws the next step from a seed
//!   workload    what is done at the same time, and what was promised
//!   verdict     what must hold afterwards
//!   control     the two-step protocol this one replaces, under the same schedules: it must fail
//! ```
//!
//! An ordinary run makes a few thousand schedules for each share of crashes; `SCHEDULES=250000` makes as many as that. A
//! failure prints the seed, and `SEED=n` runs that one alone.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test may fail, and then says where"
)]

mod control;
mod scheduler;
mod verdict;
mod workload;

use std::panic::catch_unwind;

use crate::verdict::Verdict;

/// Schedules for each share of crashes, unless `SCHEDULES` says otherwise.
const SCHEDULES: u64 = 4_000;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs every seed; the sum of what was found, which no single schedule may have made bad.
fn check(crashes_per_thousand: u64) -> Verdict {
    let seeds = number("SEED").map_or(0..number("SCHEDULES").unwrap_or(SCHEDULES), |seed| seed..seed + 1);
    let mut sum = Verdict::default();
    for seed in seeds {
        // A schedule that panics tells its seed too.
        let found = catch_unwind(|| verdict::of_schedule(seed, crashes_per_thousand));
        match found {
            Ok(verdict) if verdict.is_good() => sum.add(&verdict),
            bad => panic!("SEED={seed} with {crashes_per_thousand} crashes in a thousand steps: {bad:?}"),
        }
    }
    eprintln!("{crashes_per_thousand} crashes in a thousand steps: {sum:?}");
    sum
}

/// T112 T113, without crashes: nothing is left over either.
#[test]
fn nothing_comes_back_and_nothing_is_lost() {
    let sum = check(0);
    assert!(number("SEED").is_some() || sum.promised > 0 && sum.listed > 0, "the schedules prove nothing: {sum:?}");
}

/// T112 T113
#[test]
fn nothing_comes_back_and_nothing_is_lost_with_few_crashes() {
    check(10);
}

/// T112 T113
#[test]
fn nothing_comes_back_and_nothing_is_lost_with_many_crashes() {
    let sum = check(80);
    assert!(number("SEED").is_some() || sum.residue > 0, "no crash left anything behind: {sum:?}");
}

/// T113: the check can fail. The protocol of two steps lets rows of a deleted directory come back.
#[test]
fn the_control_fails() {
    let schedules = number("SCHEDULES").unwrap_or(SCHEDULES);
    let resurrected = (0..schedules).filter(|seed| control::resurrects(*seed)).count();
    eprintln!("control: {resurrected} of {schedules} schedules bring a deleted node back");
    assert!(resurrected > 0, "the two-step protocol passed {schedules} schedules: they are too tame");
}

//! The simulation: the whole system on one thread, on hosts that crash, over links that are cut, with disks that lose what was
//! not synced and clocks that jump, all of it drawn from a seed. The same seed gives the same run.
//!
//! ```text
//!   main      without EBLA_SIM_SEED: runs itself, seed by seed, two at a time; with it: one seed
//!   seeds     many seeds;   catalogue   the planted faults, and which plan finds each
//!   run       one seed: hosts, faults and load, then recovery and checks;   plan   what a seed does
//!   cluster   the simulated cluster: state that survives crashes, processes of each host
//!   nemesis   fault injection by the driver of tests/harness/faults;   rates   how often faults recur
//!   effects   what each fault does
//!   transfers cuts of links in the middle of large messages;   large   a client of large values
//!   space     disks that are full;   slow   disks that are slow;   rot   files whose bytes change;   lost   the loss of a majority
//!   tenant    a client that creates, changes and deletes tables
//!   drains    an operator who drains servers
//!   divisions divisions of groups, and answers that are lost around them
//!   quiet     a table of many groups, most of which get no request while faults occur;   beside   groups without a majority beside healthy ones
//!   sums      clients that count, with and without idempotency tokens;   drops   a client that drops ranges of rows
//!   ages      a client of a family with a maximum age
//!   steps     crashes exactly after a step of a move, a change of replicas, a transfer, a split, a merge or a division
//!   names     the mounttable as a tenant, and clients that use names
//!   load      the clients;   history   checks of their operations;   replicas   comparison of replicas;   clocks   no wrong clock leads
//!   time, net, chubby   simulated interfaces;   trace   the events, as a hash
//! ```
//!
//! One seed for each process: `mad-turmoil` replaces the clock and random numbers of the process.
//! `EBLA_SIM_TASK` is `seeds`, `planted`, `steps`, or `all`. Seeds come from `EBLA_SIM_SEEDS=A..B`, and no new run begins when
//! `EBLA_SIM_SECONDS` are over. A seed that fails prints the command that runs it again.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may fail, and then says where"
)]

mod ages;
mod beside;
mod catalogue;
mod chubby;
mod clocks;
mod cluster;
mod divisions;
mod drains;
mod drops;
mod effects;
mod history;
mod large;
mod load;
mod lost;
mod lost_answers;
mod names;
mod nemesis;
mod net;
mod plan;
mod process;
mod quiet;
mod rates;
mod replicas;
mod restored;
mod rot;
mod run;
mod seeds;
mod slow;
mod space;
mod steps;
mod sums;
mod tenant;
mod time;
mod trace;
mod transfers;
mod versions;

use std::process::ExitCode;

use self::seeds::Choice;

/// A seed allocates all the time on one thread: glibc's allocator took a tenth of its processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match std::env::var("EBLA_SIM_SEED") {
        Ok(seed) => process::one(seed.parse().unwrap()),
        Err(_) => tasks(),
    }
}

fn tasks() -> ExitCode {
    let task = std::env::var("EBLA_SIM_TASK").unwrap_or_else(|_| "all".to_owned());
    let is_fine = match task.as_str() {
        "seeds" => seeds::all(Choice::Fresh),
        "planted" => catalogue::all(),
        "steps" => steps::all(steps::Choice::All),
        _ => [seeds::all(Choice::Fixed), catalogue::all(), steps::all(steps::Choice::Actors)] == [true; 3],
    };
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

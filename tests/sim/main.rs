//! The simulation: the whole system on one thread, on hosts that crash, over links that are cut, with disks that lose what was
//! not synced and clocks that jump, all of it drawn from a seed. The same seed gives the same run.
//!
//! ```text
//!   main      without EBLA_SIM_SEED: runs itself, seed by seed, two at a time; with it: one seed
//!   swarm     many seeds;   catalogue   the planted faults, and which run finds each
//!   run       one seed: hosts, faults, load, then peace and the proof
//!   world     what outlives a crash; what runs on each host
//!   nemesis   which faults, when;   image   what a crash leaves in a folder
//!   load      what the clients do;   history   whether the answers were right;   replicas   whether all hold the same
//!   time, net, chubby   the seams;   trace   what happened, as a hash
//! ```
//!
//! One seed a process: `mad-turmoil` replaces the process's clock and random numbers, so nothing else may live here.
//! `EBLA_SIM_TASK` is `seeds`, `planted`, or `all`. Seeds come from `EBLA_SIM_SEEDS=A..B`, and no new run begins when
//! `EBLA_SIM_SECONDS` are over. A seed that fails prints the command that runs it again.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test may fail, and then says where"
)]

mod catalogue;
mod chubby;
mod history;
mod image;
mod load;
mod nemesis;
mod net;
mod process;
mod replicas;
mod run;
mod swarm;
mod time;
mod trace;
mod world;

use std::process::ExitCode;

use self::swarm::Choice;

fn main() -> ExitCode {
    match std::env::var("EBLA_SIM_SEED") {
        Ok(seed) => process::one(seed.parse().unwrap()),
        Err(_) => tasks(),
    }
}

fn tasks() -> ExitCode {
    let task = std::env::var("EBLA_SIM_TASK").unwrap_or_else(|_| "all".to_owned());
    let is_fine = match task.as_str() {
        "seeds" => swarm::all(Choice::Fresh),
        "planted" => catalogue::all(),
        _ => [swarm::all(Choice::Fixed), catalogue::all()] == [true; 2],
    };
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! The simulation in a build that has planted faults: each of them must be found, by the plan and the seeds that `catalogue`
//! names. See `main.rs` beside this file. `EBLA_PLANTED` names one fault to try alone.
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
mod load;
mod nemesis;
mod net;
mod process;
mod replicas;
mod run;
mod time;
mod trace;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::var("EBLA_SIM_SEED") {
        Ok(seed) => process::one(seed.parse().unwrap()),
        Err(_) => catalogue::all(),
    }
}

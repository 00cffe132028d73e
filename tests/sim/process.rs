//! One seed in a separate process.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use ebla_runtime::{Failpoint, spawn_thread};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::plan::Plan;
use crate::run::run;
use crate::time::HostClocks;
use crate::trace::Trace;

/// Timeout of a run in real time.
const REAL_MAX: Duration = Duration::from_secs(600);
/// Exit code of a run that timed out.
const TOO_LONG: i32 = 3;
/// Exit code after a panic.
const PANICKED: i32 = 4;

/// One seed in this process.
pub(crate) fn one(seed: u64) -> ExitCode {
    // Before the first random number is drawn, for example for the keys of this thread's hash maps.
    mad_turmoil::rand::set_rng(StdRng::seed_from_u64(seed));
    start_watchdog();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}\n{}", std::backtrace::Backtrace::force_capture());
        std::process::exit(PANICKED);
    }));
    let folder = own_folder();
    assert!(ebla_runtime::clock::replace_system_clock(Arc::new(HostClocks)));
    let _clocks = mad_turmoil::time::SimClocksGuard::init();
    // Always, because logging must not change the sequence of random numbers.
    ebla_runtime::logging::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_| "off".to_owned()));
    if let Some(bug) = chosen_bug() {
        bug.enable();
    }
    let plan = Plan::named(&std::env::var("EBLA_SIM_PLAN").unwrap_or_default(), seed);
    let trace = Trace::new(std::env::var("EBLA_SIM_TRACE").ok().as_deref());
    let outcome = run(&plan, folder.path(), trace);
    println!("{}", outcome.figures);
    for wrong in &outcome.wrong {
        println!("  {wrong}");
    }
    if outcome.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The planted fault of this run; `None` when the variable is absent or empty.
fn chosen_bug() -> Option<Failpoint> {
    let name = std::env::var("EBLA_PLANTED_BUG").ok().filter(|name| !name.is_empty())?;
    let bug = Failpoint::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    assert!(bug.is_some(), "EBLA_PLANTED_BUG={name}: no planted fault has this name");
    bug
}

/// Exits the process when the run takes too long, because an endless loop does not advance simulated time.
fn start_watchdog() {
    let watch = spawn_thread("watch", || {
        #[expect(clippy::disallowed_methods, reason = "real time, outside of the simulation")]
        std::thread::sleep(REAL_MAX);
        eprintln!("not done after {REAL_MAX:?}");
        std::process::exit(TOO_LONG);
    });
    drop(watch.unwrap());
}

/// A folder that is removed at the end. Its name is not random: two processes with one seed would draw the same name, and the
/// second one would draw again, which would change its run.
fn own_folder() -> tempfile::TempDir {
    let name = format!("ebla-sim-{}", std::process::id());
    // Removes leftovers of a killed process with the same id.
    drop(std::fs::remove_dir_all(fast_folder().join(&name)));
    tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir_in(fast_folder()).unwrap()
}

/// A folder in memory if possible, because every flush syncs.
fn fast_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Result of a process.
pub(crate) struct Ran {
    pub(crate) seed: u64,
    pub(crate) plan: String,
    pub(crate) text: String,
    pub(crate) succeeded: bool,
}

/// Runs a seed in a separate process. `bug`: the name of its planted fault; empty: none.
pub(crate) fn start(seed: u64, plan: &str, bug: &str) -> Ran {
    start_with(seed, plan, &[("EBLA_PLANTED_BUG", bug)])
}

/// As [`start`], with these variables.
pub(crate) fn start_with(seed: u64, plan: &str, variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("EBLA_SIM_SEED", seed.to_string()).env("EBLA_SIM_PLAN", plan).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ran { seed, plan: plan.to_owned(), text, succeeded: output.status.success() }
}

/// Concurrent runs.
const AT_ONCE: usize = 2;

/// Runs work items, two at a time, and passes on the results as they arrive.
pub(crate) fn run_concurrently<W: Send, R: Send>(
    work: impl Iterator<Item = W> + Send,
    run: impl Fn(W) -> R + Sync,
    outcome: impl FnMut(R),
) {
    let work = Mutex::new(work);
    let next = || work.lock().next();
    std::thread::scope(|scope| {
        let (sender, outcomes) = mpsc::channel();
        for _ in 0..AT_ONCE {
            let (sender, next, run) = (sender.clone(), &next, &run);
            scope.spawn(move || {
                while let Some(piece) = next() {
                    // The receiver waits for all results.
                    let _taken = sender.send(run(piece));
                }
            });
        }
        drop(sender);
        outcomes.iter().for_each(outcome);
    });
}

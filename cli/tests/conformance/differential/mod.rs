//! Random programs, run on Ebla, on a model of two hundred lines, and on Google's emulator where it is installed.
//!
//! ```text
//!   program   steps drawn from a seed: writes, conditions, increments, reads with filters
//!   model     what each step must answer: a sorted map, the filters of `ebla_model`
//!   endpoint  the same step over a real connection
//!   known     where the emulator is known to differ, with the reason: such steps are not put to it
//!   shrink    the shortest part of a program that still fails
//! ```
//!
//! The model is the hub: Ebla and the emulator are each compared with it. A difference from the emulator is therefore a
//! fault of the model, and so of the filters that Ebla itself runs, or an error of the emulator that `known` lacks.
//!
//! All explicit timestamps are in the year 2100, so that timestamps of servers are recognised; these are not compared.

mod endpoint;
mod known;
mod model;
mod program;
mod shrink;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ebla_runtime::{Clock, Rng, Runtime};

use self::endpoint::Endpoint;
use self::program::Step;
use crate::support::{self, Up};

/// Steps of one program, on empty tables.
const STEPS: usize = 150;
/// The endpoint that must agree with the model in everything.
const EBLA: &str = "Ebla";
/// Time in which programs are started, by default; set by `EBLA_DIFFERENTIAL_SECONDS`.
const SECONDS: u64 = 20;

/// A difference between an endpoint and the model.
#[derive(Debug)]
struct Difference {
    who: &'static str,
    /// The index of the step.
    at: usize,
    expected: model::Outcome,
    actual: model::Outcome,
}

#[test]
fn random_programs_do_the_same_on_ebla_on_the_model_and_on_googles_emulator() {
    let seed = number("EBLA_DIFFERENTIAL_SEED").unwrap_or_else(|| Rng::from_entropy().below(1_000_000));
    let seconds = number("EBLA_DIFFERENTIAL_SECONDS").unwrap_or(SECONDS);
    eprintln!("EBLA_DIFFERENTIAL_SEED={seed} for {seconds} s");
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let emulator = Emulator::start();
    if emulator.is_none() {
        eprintln!("Google's emulator is not installed: Ebla is compared with the model alone");
    }
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(Box::pin(run(&up, emulator.as_ref(), seed, Duration::from_secs(seconds))));
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

async fn run(up: &Up, emulator: Option<&Emulator>, seed: u64, timeout: Duration) {
    let runtime = Runtime::system("differential");
    let mut endpoints = vec![Endpoint::new(EBLA, &up.addresses, &runtime.net)];
    endpoints.extend(
        emulator.map(|emulator| Endpoint::new("the emulator", std::slice::from_ref(&emulator.address), &runtime.net)),
    );
    let clock = Clock::system();
    let begun = clock.monotonic();
    let (mut programs, mut steps, mut asked) = (0, 0, 0);
    while clock.monotonic() - begun < timeout {
        let this = seed + programs;
        let program = program::draw(&Rng::seeded(this), STEPS);
        match execute(&mut endpoints, &program).await {
            Ok(put) => asked += put,
            Err(difference) => {
                let (shortest, difference) = shrink::shrink(&mut endpoints, program, difference).await;
                panic!("{}", message(this, &shortest, &difference));
            }
        }
        programs += 1;
        steps += STEPS;
    }
    eprintln!("{programs} programs, {steps} steps, {asked} of them put to the emulator too");
}

/// Runs a program on fresh tables of every endpoint. How many steps went to the emulator, or the first difference.
async fn execute(endpoints: &mut [Endpoint], program: &[Step]) -> Result<usize, Difference> {
    for endpoint in &mut *endpoints {
        endpoint.begin().await;
    }
    let mut model = model::Model::default();
    let mut asked = 0;
    for (at, step) in program.iter().enumerate() {
        let expected = model.run(step);
        for endpoint in &mut *endpoints {
            let (actual, same) = if endpoint.who == EBLA {
                let actual = endpoint.run(step).await;
                let same = actual == expected;
                (actual, same)
            } else {
                let Some((step, expected)) = known::put(step, &expected) else { continue };
                asked += 1;
                let actual = endpoint.run(&step).await;
                let same = actual.loosely() == expected.loosely();
                (actual, same)
            };
            if !same {
                return Err(Difference { who: endpoint.who, at, expected, actual });
            }
        }
    }
    Ok(asked)
}

fn message(seed: u64, program: &[Step], difference: &Difference) -> String {
    let steps: Vec<_> = program.iter().enumerate().map(|(at, step)| format!("  {at}: {step:?}")).collect();
    format!(
        "{} differs from the model (EBLA_DIFFERENTIAL_SEED={seed}):\n{}\nstep {} must return\n  {:?}\nbut returned\n  {:?}",
        difference.who,
        steps.join("\n"),
        difference.at,
        difference.expected,
        difference.actual
    )
}

/// Google's emulator as a process, ended when dropped.
struct Emulator {
    child: Child,
    address: String,
}

impl Emulator {
    /// Starts it where it is installed (`EBLA_EMULATOR`, or with the Google Cloud CLI) on a port that was free a moment ago.
    fn start() -> Option<Self> {
        let usual = "/usr/lib/google-cloud-sdk/platform/bigtable-emulator/cbtemulator".to_owned();
        let program = std::env::var("EBLA_EMULATOR").unwrap_or(usual);
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(program);
        command.args(["-host", "127.0.0.1", "-port", &port.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
        let emulator = Self { child: command.spawn().ok()?, address: format!("127.0.0.1:{port}") };
        let clock = Clock::system();
        let begun = clock.monotonic();
        while std::net::TcpStream::connect(&emulator.address).is_err() {
            assert!(clock.monotonic() - begun < Duration::from_secs(60), "the emulator does not come up");
            support::pause();
        }
        Some(emulator)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

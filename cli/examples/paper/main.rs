//! The benchmark of the Bigtable paper: the rate of six workloads over the number of tablet servers, on a machine that has fewer
//! cores than servers.
//!
//! ```text
//!   for each number of servers:   an etcd, a master and the tablet servers start, each a process; a table is created and filled
//!     for each workload:          closed loops, while each tablet server has the same small processor quota   -> rates
//!                                 a load at a fixed rate, without quotas                                      -> work
//!   passes in the order 1 2 3 4 5, 5 4 3 2 1
//! ```
//!
//! Without control groups the rates are skipped, and the work is measured. A number of servers that fails is reported, and the
//! next one follows. Every process is stopped at the end, and the control groups are removed.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example paper -- target/release/ebla --servers 1,2,3,4,5 --json paper.json --svg paper.svg
//! ```

mod cgroup;
mod cluster;
mod rounds;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use ebla_runtime::Runtime;
use ebla_workload::bench::paper::Layout;
use ebla_workload::bench::paper::figures::Figures;
use ebla_workload::bench::paper::quota::Quota;
use ebla_workload::bench::paper::report::{json, markdown, svg};

use crate::cgroup::Groups;

/// The longest text of a failure.
const FAILURE_CHARACTERS_MAX: usize = 300;

#[derive(clap::Parser)]
struct Arguments {
    /// The program
    ebla: PathBuf,
    /// Numbers of tablet servers
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5", value_parser = clap::value_parser!(u8).range(1..=16))]
    servers: Vec<u8>,
    /// Replicas of each tablet: 1 as in the paper, where another system replicates; smaller clusters are skipped
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=7))]
    replicas: u8,
    /// Processor quota of each tablet server, in percent of a core
    #[arg(long, default_value_t = 8.0, value_parser = percent)]
    quota: f64,
    /// Tablets for each server
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    tablets: u64,
    /// Rows for each server
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    rows: u64,
    /// Clients for each server
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    clients: u64,
    /// Requests per second for each server when the work is measured, a tenth of it for scans
    #[arg(long, default_value_t = 400.0, value_parser = rate)]
    rate: f64,
    /// Seconds of each round
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
    /// How often each number of servers is measured
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=20))]
    passes: u8,
    /// Write the figures into this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the rates into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Arguments {
    fn round_length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    fn layout(&self, servers: u8) -> Layout {
        let rows_per_tablet = (self.rows / self.tablets).max(1);
        Layout { servers: servers.into(), tablets_per_server: self.tablets, rows_per_tablet }
    }
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (least..=most).contains(&number) { Ok(number) } else { Err(format!("between {least} and {most}")) }
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, 0.1, 100.0)
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 1.0, 100_000.0)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.1, 600.0)
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match Box::pin(run(&arguments)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paper: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::system("paper");
    let quota = Quota::percent_of_core(arguments.quota).ok_or("this quota is not possible")?;
    if let Err(reason) = Groups::create(1) {
        eprintln!("rates under quotas are skipped, only work is measured: {reason}");
    }
    let mut figures = Figures::default();
    for pass in 0..arguments.passes {
        for servers in in_order(arguments, pass) {
            eprintln!("pass {} of {}: {servers} tablet servers", pass + 1, arguments.passes);
            if let Err(error) = Box::pin(rounds::measure(servers, quota, arguments, &mut figures, &runtime)).await {
                note(&mut figures, servers, &*error);
            }
        }
    }
    print!("{}", markdown(&figures));
    if let Some(file) = &arguments.json {
        fs::write(file, format!("{:#}\n", json(&figures)))?;
    }
    if let Some(file) = &arguments.svg {
        fs::write(file, svg(&figures))?;
    }
    if figures.measurements().next().is_none() { Err("nothing was measured".into()) } else { Ok(()) }
}

/// The numbers of servers of a pass, without those that are too small for the replicas: slow changes of the machine affect
/// all numbers equally.
fn in_order(arguments: &Arguments, pass: u8) -> Vec<u8> {
    let (mut possible, small): (Vec<_>, Vec<_>) =
        arguments.servers.iter().partition(|servers| **servers >= arguments.replicas);
    if pass == 0 && !small.is_empty() {
        eprintln!("{small:?} tablet servers are skipped: {} replicas need as many servers", arguments.replicas);
    }
    if pass % 2 == 1 {
        possible.reverse();
    }
    possible
}

fn note(figures: &mut Figures, servers: u8, error: &dyn Error) {
    eprintln!("{servers} tablet servers: {error}");
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default().chars().take(FAILURE_CHARACTERS_MAX).collect();
    figures.failures.push((servers.into(), first));
}

//! How long requests wait while data moves: the longest request to a tablet while it is moved to another group, split or merged, and to all
//! other tablets; and while a server is drained, stops and returns, so that leaderships and replicas move. With `--spread`: how evenly bytes
//! and load are spread after servers have joined. With `--shrink`: how a table shrinks after most of its rows have been deleted.
//!
//! A cluster of processes: an etcd of three members, a master, and four tablet servers, or five and two that join. Each tablet has a client
//! that writes and reads.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example movement -- target/release/ebla --megabytes 0,1,8,32,100
//! cargo run --release -p ebla-cli --example movement -- target/release/ebla --spread
//! cargo run --release -p ebla-cli --example movement -- target/release/ebla --shrink
//! ```

mod probes;
mod rows;
mod shrink;
mod spread;
mod stalls;
#[path = "../support/stored_bytes.rs"]
mod stored_bytes;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;
use ebla_runtime::Runtime;
use ebla_tests::etcd::Build;
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};

/// The result of a measurement.
type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(clap::Parser)]
struct Arguments {
    /// The program
    ebla: PathBuf,
    /// Sizes in MB of the tablets whose moves are measured
    #[arg(long, value_delimiter = ',', default_value = "0,1,8,32,100")]
    megabytes: Vec<u64>,
    /// Splits, merges and moves of each kind
    #[arg(long, default_value_t = 5)]
    times: u64,
    /// Measure the balance after servers have joined instead
    #[arg(long)]
    spread: bool,
    /// Measure how a table shrinks after most of its rows have been deleted instead
    #[arg(long, conflicts_with = "spread")]
    shrink: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let measured = if arguments.spread {
        Box::pin(spread::measure(&arguments)).await
    } else if arguments.shrink {
        Box::pin(shrink::measure(&arguments)).await
    } else {
        Box::pin(stalls::measure(&arguments)).await
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("movement: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A cluster of this number of tablet servers with one master, which has these options besides.
async fn start(
    arguments: &Arguments,
    servers: usize,
    master_options: &[&str],
    split_bytes: Option<u64>,
    runtime: &Runtime,
) -> Outcome<ProcessCluster<Loopback>> {
    let master_options = master_options.iter().map(|option| (*option).to_owned()).collect();
    let program = arguments.ebla.display().to_string();
    let plan = Plan { masters: 1, build: Build::newest(), master_options, split_bytes, ..Plan::new(&program, servers) };
    Ok(ProcessCluster::start(plan, Loopback::claim()?, runtime).await?)
}

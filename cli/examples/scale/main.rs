//! What tablets cost: for each number of tablets, the time to create the table, processor time, memory and open files at rest, the
//! time of a restart and of a failover.
//!
//! ```text
//!   up           `ebla up`, three servers in one process: create, rest, memory, open files, restart
//!   failover     three tablet servers, a master and an etcd, each a process: one server is killed
//! ```
//!
//! A row with 0 tablets has the figures of the cluster without the table. Each step has a timeout; a number of tablets that fails
//! has a row that says what failed, and the next number follows.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example scale -- target/release/ebla --tablets 100,300,1000 --json scale.json
//! ```

mod failover;
mod table;
mod up;

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;
use ebla_runtime::Runtime;
use ebla_workload::bench::scale::{Scale, json, markdown};

/// The longest text of a failure in the table.
const FAILURE_CHARACTERS_MAX: usize = 200;

#[derive(clap::Parser)]
struct Arguments {
    /// The program
    ebla: PathBuf,
    /// Numbers of tablets
    #[arg(long, value_delimiter = ',', default_value = "100,300,1000", value_parser = clap::value_parser!(u64).range(1..))]
    tablets: Vec<u64>,
    /// Limit of open files of `ebla up` and of each tablet server, soft and hard; without it that of this process
    #[arg(long)]
    files: Option<u64>,
    /// Write the figures into this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match Box::pin(run(&arguments)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scale: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::system("scale");
    let mut all = Vec::new();
    for tablets in [&[0], arguments.tablets.as_slice()].concat() {
        let mut scale = Scale { tablets, ..Scale::default() };
        if let Err(error) = Box::pin(up::measure(&mut scale, arguments, &runtime)).await {
            note(&mut scale, "up", &*error);
        }
        if tablets > 0 {
            match Box::pin(failover::measure(tablets, arguments, &runtime)).await {
                Ok(time) => scale.failover = Some(time),
                Err(error) => note(&mut scale, "failover", &*error),
            }
        }
        eprint!("{}", markdown(std::slice::from_ref(&scale)));
        all.push(scale);
    }
    println!("open files: at most {}\n", arguments.files.map_or("as given".to_owned(), |files| files.to_string()));
    print!("{}", markdown(&all));
    if let Some(file) = &arguments.json {
        fs::write(file, format!("{:#}\n", json(&all)))?;
    }
    Ok(())
}

fn note(scale: &mut Scale, part: &str, error: &dyn Error) {
    eprintln!("{} tablets, {part}: {error}", scale.tablets);
    let text = error.to_string();
    let first: String = text.lines().next().unwrap_or_default().chars().take(FAILURE_CHARACTERS_MAX).collect();
    scale.failures.push(format!("{part}: {first}"));
}

/// The prefix of a command line that limits the open files of its process.
fn limited(files: Option<u64>) -> Vec<String> {
    let prefix = |files: u64| vec!["prlimit".to_owned(), format!("--nofile={files}:{files}"), "--".to_owned()];
    files.map(prefix).unwrap_or_default()
}

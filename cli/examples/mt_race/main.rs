//! Starts a mounttable and its peer side by side on this machine and measures both in alternation; or starts a mounttable
//! alone, in a separate process, and runs `ebla mt bench` on it.
//!
//! | | mounttable | etcd |
//! |---|---|---|
//! | mount | mounts servers on names that are there, with a time to live | puts keys that are there, with a lease |
//! | resolve | resolves names, as of the last second at most | gets keys: linearizable, and serializable |
//!
//! The mounttable is served by `ebla up`: three tablet servers, each write on two of three logs. The etcd has one member
//! by default. Both write below the folder for temporary files, and sync before they answer. Rounds in the order
//! A B C, C B A; a ratio is the median of the rounds' ratios with its 95 % interval.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example mt_race -- target/release/ebla
//! cargo run --release -p ebla-cli --example mt_race -- target/release/ebla --bench -- --clients 64
//! cargo run --release -p ebla-cli --example mt_race -- target/release/ebla --bench --written -- --workloads wide --children 1000000 --keep
//! ```

mod contest;
#[path = "../race/systems.rs"]
mod systems;

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser as _;
use ebla_cli::output::{self, Table};
use ebla_runtime::Runtime;
use ebla_tests::etcd::{Build, EtcdCluster};
use ebla_workload::bench::processes::{Processes, children};
use ebla_workload::bench::report::COLUMNS;
use serde_json::{Value, json};

use crate::contest::{Contest, Ours, Theirs, channels};
use crate::systems::{Running, serve};

#[derive(clap::Parser)]
struct Arguments {
    /// The program
    ebla: PathBuf,
    /// Members of the etcd
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    members: u8,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    clients: Vec<usize>,
    /// Names, or keys
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=5_000))]
    names: u64,
    /// Seconds of a slice
    #[arg(long, default_value_t = 1.5, value_parser = seconds)]
    seconds: f64,
    /// Slices of each for each figure
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// Show JSON
    #[arg(long)]
    json: bool,
    /// Run `ebla mt bench` on a mounttable in a separate process instead
    #[arg(long)]
    bench: bool,
    /// In the bench: the large directory is written into the table, not mounted
    #[arg(long, requires = "bench")]
    written: bool,
    /// Handed on to `ebla mt bench`
    #[arg(last = true)]
    arguments: Vec<String>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if (0.01..=60.0).contains(&seconds) { Ok(seconds) } else { Err("between 0.01 and 60".to_owned()) }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = if arguments.bench { bench(&arguments) } else { race(&arguments).await };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mt_race: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A cluster, and the contents of its ready file.
fn up(program: &Path, folder: &Path, more: &[&str]) -> Result<(Value, Running), Box<dyn Error>> {
    let data = folder.join("data");
    let fixed = ["up", "--listen", "127.0.0.1:0", "--data"].map(OsStr::new);
    let more: Vec<_> = more.iter().map(OsStr::new).collect();
    serve(program, &[&fixed[..], &[data.as_os_str()], &more].concat(), folder)
}

fn field<'a>(ready: &'a Value, what: &str) -> Result<&'a str, String> {
    ready.get(what).and_then(Value::as_str).ok_or_else(|| format!("the ready file does not have {what}"))
}

fn bench(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let (folder, beside) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (cluster, _running) = up(&arguments.ebla, folder.path(), &[])?;
    let fixed = ["mounttable", "--listen", "127.0.0.1:0", "--insecure-dev-identity", "--cluster"];
    let all: Vec<_> = fixed.into_iter().chain([field(&cluster, "bigtable")?]).map(OsStr::new).collect();
    let (ready, _names) = serve(&arguments.ebla, &all, beside.path())?;
    let pid = ready.get("pid").and_then(Value::as_u64).ok_or("the ready file does not have pid")?;
    let mut bench = Command::new(&arguments.ebla);
    bench.args(["mt", "bench", "--root", field(&ready, "address")?, "--pid", &pid.to_string()]);
    if arguments.json {
        bench.args(["-o", "json"]);
    }
    if arguments.written {
        bench.args(["--cluster", field(&cluster, "bigtable")?]);
    }
    let status = bench.args(&arguments.arguments).status()?;
    if status.success() { Ok(()) } else { Err(format!("ebla mt bench: {status}").into()) }
}

/// The processes that `start` has started.
fn started<T>(before: &BTreeSet<u32>, started: T) -> Result<(Processes, T), Box<dyn Error>> {
    let new: Vec<_> = children(std::process::id()).difference(before).map(u32::to_string).collect();
    Ok((Processes::parse(&new.join(","))?, started))
}

async fn race(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::system("race");
    let folder = tempfile::tempdir()?;
    let own = || children(std::process::id());
    let before = own();
    let (processes, (ready, _running)) =
        started(&before, up(&arguments.ebla, folder.path(), &["--mounttable", "127.0.0.1:0"])?)?;
    let most = arguments.clients.iter().copied().max().unwrap_or(1);
    let address = [field(&ready, "mounttable")?.to_owned()];
    let ours = Ours::new(channels(&runtime, &address, most), processes, arguments.names);
    let before = own();
    let (processes, etcd) = started(&before, EtcdCluster::start(arguments.members.into(), Build::newest()).await?)?;
    eprintln!("etcd: {:?}, members: {}", Build::newest(), etcd.len());
    let endpoints: Vec<_> = etcd.endpoints().iter().map(|one| one.replace("http://", "")).collect();
    let theirs = Theirs::new(channels(&runtime, &endpoints, most), processes, arguments.names).await?;
    let contest = Contest {
        runtime: &runtime,
        ours,
        theirs,
        slice: Duration::from_secs_f64(arguments.seconds),
        rounds: arguments.rounds.max(1),
    };
    contest.fill().await?;
    let mut measured = Vec::new();
    for clients in &arguments.clients {
        measured.push(contest.mounts((*clients).max(1)).await?);
        measured.push(contest.resolves((*clients).max(1)).await?);
    }
    if arguments.json {
        output::print_json(&json!(measured.iter().map(|one| one.json()).collect::<Vec<_>>()));
        return Ok(());
    }
    let mut table = Table::new(&COLUMNS);
    measured.iter().flat_map(|one| one.lines()).for_each(|line| table.row(line));
    output::print(&table.render());
    Ok(())
}

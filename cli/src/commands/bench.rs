//! `ebla bench`: load on a cluster, alone or in alternation with others.

use std::time::Duration;

use ebla_runtime::Runtime;
use serde_json::json;

use super::Place;
use crate::bench::processes::Processes;
use crate::bench::report::{COLUMNS, Measured};
use crate::bench::slice;
use crate::bench::target::Target;
use crate::bench::{Plan, Values, Workload};
use crate::output::{self, Failure, Format, Table};

/// Measure reads, writes and scans. The tables `bench` and `bench-wide` are made anew in the project and instance `bench`.
///
/// A peer is a Bigtable (HOST:PORT), an etcd (etcd://HOST:PORT), an etcd with all clients on its leader
/// (etcd-leader://HOST:PORT); several members with commas. Its keys are overwritten. Or it is a PostgreSQL that trusts its user
/// postgres (postgres://HOST:PORT); its table `bench` is made anew.
///
/// Examples:
///   ebla bench --clients 1,16,128
///   ebla bench --peer emulator=127.0.0.1:9000 --workloads read,scan
///   ebla bench --peer etcd=etcd://127.0.0.1:2379 --processes ebla=4711 --processes etcd=4712
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Bench {
    /// Which cluster
    #[command(flatten)]
    pub place: Place,
    /// Another system measured in alternation; may be given several times
    #[arg(long, value_name = "NAME=PLACES")]
    pub peer: Vec<String>,
    /// The processes of `ebla` or of a peer, whose processor time is then counted
    #[arg(long, value_name = "NAME=PID,PID…")]
    pub processes: Vec<String>,
    /// What to do
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write,read,scan")]
    pub workloads: Vec<Workload>,
    /// Numbers of clients
    #[arg(long, value_delimiter = ',', default_value = "1,16,128")]
    pub clients: Vec<usize>,
    /// Rows in the table
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..))]
    pub rows: u64,
    /// Bytes of each value
    #[arg(long, default_value_t = 1_000)]
    pub value_bytes: usize,
    /// Seconds of a slice
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Slices of each target for each figure
    #[arg(long, alias = "pairs", default_value_t = 6)]
    pub rounds: usize,
}

/// Prepares the tables, runs the slices, shows the figures.
///
/// # Errors
/// The first error that any client meets.
pub async fn run(bench: Bench, runtime: Runtime) -> Result<(), Failure> {
    if !(0.01..=3_600.0).contains(&bench.seconds) {
        return Err(Failure::usage("--seconds must lie between 0.01 and 3600"));
    }
    let plan = Plan {
        workloads: bench.workloads.clone(),
        clients: bench.clients.clone(),
        rows: bench.rows,
        value_bytes: bench.value_bytes,
        slice: Duration::from_secs_f64(bench.seconds),
        rounds: bench.rounds.max(1),
    };
    let values = Values::new(&runtime, plan.value_bytes);
    let targets = targets(&bench, &runtime).await?;
    for target in &targets {
        eprintln!("filling {} with {} rows of {} bytes", target.name, plan.rows, plan.value_bytes);
        target.prepare(&plan, &values).await?;
    }
    let mut measured = Vec::new();
    for workload in &plan.workloads {
        for clients in &plan.clients {
            measured.push(measure(&runtime, &targets, *workload, *clients, &plan, &values).await?);
        }
    }
    show(&bench, &measured);
    Ok(())
}

async fn targets(bench: &Bench, runtime: &Runtime) -> Result<Vec<Target>, Failure> {
    let most = bench.clients.iter().copied().max().unwrap_or(1);
    let mut named = vec![("ebla", bench.place.addresses()?.join(","))];
    for peer in &bench.peer {
        let (name, places) = peer.split_once('=').ok_or_else(|| Failure::usage("--peer is NAME=PLACES"))?;
        named.push((name, places.to_owned()));
    }
    let mut targets = Vec::new();
    for (name, places) in named {
        let processes = processes(&bench.processes, name)?;
        targets.push(Target::new(runtime, name, &places, processes, most).await?);
    }
    Ok(targets)
}

fn processes(given: &[String], name: &str) -> Result<Processes, Failure> {
    let of_this = given.iter().filter_map(|one| one.split_once('=')).find(|(of, _)| *of == name);
    Ok(of_this.map(|(_, pids)| Processes::parse(pids)).transpose()?.unwrap_or_default())
}

async fn measure(
    runtime: &Runtime,
    targets: &[Target],
    workload: Workload,
    clients: usize,
    plan: &Plan,
    values: &Values,
) -> Result<Measured, Failure> {
    let one = async |target: &Target| slice::run(runtime, target, workload, clients, plan, values).await;
    let slices = slice::alternate(targets, plan.rounds, |target| &target.name, one).await?;
    eprintln!("{} with {clients} clients: done", workload.name());
    Ok(Measured::new(workload.name(), clients, &slices, &runtime.rng))
}

fn show(bench: &Bench, measured: &[Measured]) {
    if bench.place.output == Format::Json {
        return output::print_json(&json!(measured.iter().map(Measured::json).collect::<Vec<_>>()));
    }
    let mut table = Table::new(&COLUMNS);
    for line in measured.iter().flat_map(Measured::lines) {
        table.row(line);
    }
    output::print(&table.render());
}

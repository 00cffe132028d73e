//! `ebla bench`: load on a Bigtable address, alone or in alternation with a peer.

use std::time::Duration;

use ebla_runtime::Runtime;
use serde_json::json;

use super::Place;
use crate::bench::report::Measured;
use crate::bench::target::{Target, Values};
use crate::bench::{Plan, Workload, slice};
use crate::output::{self, Failure, Format, Table};

/// Measure reads, writes and scans. The table `bench` is made anew in the project and instance `bench`.
///
/// Examples:
///   ebla bench --clients 1,16,128
///   ebla bench --peer emulator=127.0.0.1:9000 --workloads read,scan
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Bench {
    /// Which cluster
    #[command(flatten)]
    pub place: Place,
    /// Another Bigtable measured in alternation, as NAME=HOST:PORT
    #[arg(long, value_name = "NAME=HOST:PORT")]
    pub peer: Option<String>,
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
    #[arg(long, default_value_t = 6)]
    pub pairs: usize,
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
        pairs: bench.pairs.max(1),
    };
    let values = Values::new(&runtime, plan.value_bytes);
    let targets = targets(&bench, &runtime)?;
    for target in &targets {
        eprintln!("filling {} with {} rows of {} bytes", target.name, plan.rows, plan.value_bytes);
        target.prepare(plan.rows, &values).await?;
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

fn targets(bench: &Bench, runtime: &Runtime) -> Result<Vec<Target>, Failure> {
    let most = bench.clients.iter().copied().max().unwrap_or(1);
    let mut targets = vec![Target::new(runtime, "ebla", &bench.place.address(), most)];
    if let Some(peer) = &bench.peer {
        let (name, address) = peer.split_once('=').ok_or_else(|| Failure::usage("--peer is NAME=HOST:PORT"))?;
        targets.push(Target::new(runtime, name, address, most));
    }
    Ok(targets)
}

/// Slices in the order A B, B A, A B …: a machine that slowly changes changes both alike.
async fn measure(
    runtime: &Runtime,
    targets: &[Target],
    workload: Workload,
    clients: usize,
    plan: &Plan,
    values: &Values,
) -> Result<Measured, Failure> {
    let mut slices: Vec<Vec<slice::Slice>> = targets.iter().map(|_| Vec::new()).collect();
    for pair in 0..plan.pairs {
        let mut order: Vec<_> = targets.iter().zip(&mut slices).collect();
        if pair % 2 == 1 {
            order.reverse();
        }
        for (target, done) in order {
            done.push(slice::run(runtime, target, workload, clients, plan, values).await?);
        }
    }
    eprintln!("{} with {clients} clients: done", workload.name());
    let targets = targets.iter().map(|target| target.name.clone()).zip(slices).collect();
    Ok(Measured { workload, clients, targets })
}

fn show(bench: &Bench, measured: &[Measured]) {
    if bench.place.output == Format::Json {
        return output::print_json(&json!(measured.iter().map(Measured::json).collect::<Vec<_>>()));
    }
    let mut table = Table::new(&["WORKLOAD", "CLIENTS", "TARGET", "ROWS/S", "P50 MS", "P99 MS", "RATIO [MIN, MAX]"]);
    for line in measured.iter().flat_map(Measured::lines) {
        table.row(line);
    }
    output::print(&table.render());
}

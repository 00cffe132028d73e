//! `ebla mt bench`: load on a mounttable, each figure beside the bar that it is to keep.

use std::time::Duration;

use ebla_mounttable::naming;
use ebla_runtime::Runtime;
use serde_json::json;

use super::{Root, refused};
use crate::bench::names::report::{COLUMNS, Figures};
use crate::bench::names::stock::Stock;
use crate::bench::names::{self, Plan, Workload};
use crate::bench::processes::Processes;
use crate::commands::mounttable::Kept;
use crate::output::{self, Failure, Format, Table};

/// What the load's users are called when nobody says.
const CALLED: &str = "bench";

/// Measure resolving and mounting on a running mounttable
///
/// Examples:
///   ebla mt bench --root 127.0.0.1:8101 --pid 4711
///   ebla mt bench --workloads wide --children 1000000 --cluster 127.0.0.1:8086 --keep
///
/// The load mounts below one node of its own, bench-…, and deletes it in the end. Several users share the load, so that
/// none exceeds the limits of a server.
///
/// Columns:
///   OPS/S                 operations a second over all clients
///   P50 MS, P99 MS        time until the answer, in milliseconds: half of the operations, 99 of 100 were faster
///   CPU S/M (+ LOAD)      processor time in seconds for a million operations: of the --pid processes, and of this program
///   READS + CHANGES + COUNTERS EACH
///                         requests to the storage for each operation
///   MEMORY (PEAK, AFTER)  resident memory of the --pid processes: before, at most, after
///   BAR                   the figure that a workload must not exceed, and whether it did
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Bench {
    /// Process ids of the mounttable, whose processor time and memory are then measured
    #[arg(long, value_name = "PID,PID…")]
    pid: Option<String>,
    /// Which workloads to run, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "resolve,batch-resolve,cold,mount,same-node,wide")]
    workloads: Vec<Workload>,
    /// Number of clients, each of which sends its next request when the last one was answered
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// Seconds for each workload that has no end of its own
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Names that are resolved and mounted again and again
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    names: u64,
    /// Names of ten elements that are resolved once each
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    cold: u64,
    /// Servers that are mounted on one node
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    servers: u64,
    /// Children of the large directory; a million take an hour to mount
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(2..))]
    children: u64,
    /// Address of a tablet server of the cluster that stores the mounttable: all but the first hundred children of the
    /// large directory are then written into its table instead of being mounted, which takes minutes for a million
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::process::host_port)]
    cluster: Option<String>,
    /// Which table of that cluster
    #[command(flatten)]
    table: Kept,
    /// Do not delete what was mounted; it expires after six hours
    #[arg(long)]
    keep: bool,
}

/// Carries the workloads out, shows the figures, takes everything away.
///
/// # Errors
/// When nothing answers, or what is to be measured cannot be mounted.
pub(super) async fn run(command: Bench, root: &Root, runtime: Runtime) -> Result<(), Failure> {
    if !(0.01..=3_600.0).contains(&command.seconds) {
        return Err(Failure::usage("--seconds must lie between 0.01 and 3600"));
    }
    let plan = Plan {
        clients: command.clients.into(),
        length: Duration::from_secs_f64(command.seconds),
        names: command.names,
        cold: command.cold,
        servers: command.servers,
        children: command.children,
    };
    let processes = command.pid.as_deref().map(Processes::parse).transpose()?;
    if processes.as_ref().is_none_or(|processes| processes.cpu_micros().is_none()) {
        output::note("without a --pid that runs, neither processor time nor memory of the mounttable is measured");
    }
    output::note(&estimate(&command));
    let called = root.identity.as_deref().unwrap_or(CALLED);
    let addresses = addresses(root)?;
    let stock = match &command.cluster {
        Some(address) => Some(Stock::of(address, &command.table.name()?, &runtime).await?),
        None => None,
    };
    let bench = names::Bench::new(runtime, &addresses, called, processes.unwrap_or_default(), plan)?.stocked(stock);
    let mut measured = Vec::new();
    let outcome = measure(&bench, &command.workloads, &mut measured).await;
    if !command.keep {
        match bench.clean_up().await {
            Ok(nodes) => output::note(&format!("{nodes} nodes deleted")),
            Err(error) => {
                output::note(&format!("cannot delete what was mounted, which expires after six hours: {error}"))
            }
        }
    }
    show(root.output, &measured);
    outcome
}

/// What was measured before a workload that could not be is shown all the same.
async fn measure(bench: &names::Bench, workloads: &[Workload], measured: &mut Vec<Figures>) -> Result<(), Failure> {
    for (number, workload) in workloads.iter().enumerate() {
        if number > 0 && *workload == Workload::Wide {
            // A large directory uses up what its users may have, and so does a node with many servers before it.
            bench.clean_up().await?;
        }
        let figures = bench.measure(*workload).await?;
        for one in &figures {
            output::note(&format!("{}: done", one.name));
            if let Some(error) = &one.outcome.first_error {
                output::note(&format!("{}: {} errors, the first: {error}", one.name, one.outcome.errors));
            }
        }
        measured.extend(figures);
    }
    Ok(())
}

/// How long it will take, as far as that is known before.
fn estimate(command: &Bench) -> String {
    let timed = [Workload::Resolve, Workload::BatchResolve, Workload::Mount];
    let (timed, counted): (Vec<Workload>, Vec<Workload>) =
        command.workloads.iter().partition(|workload| timed.contains(workload));
    let seconds = f64::from(u32::try_from(timed.len()).unwrap_or(u32::MAX)) * command.seconds;
    let counted = match counted.len() {
        0 => String::new(),
        count => format!(", and {count} that last until all their names or servers are done"),
    };
    format!("workloads of {} s: {}, about {seconds:.0} s{counted}", command.seconds, timed.len())
}

fn addresses(root: &Root) -> Result<Vec<String>, Failure> {
    let roots = root.roots().map_err(refused)?;
    let host = |root: &str| match naming::split_address(root) {
        (host, inner) if inner.is_empty() => Ok(host),
        _ => Err(Failure::usage(format!("{root} is a name in a mounttable: the load needs a server, HOST:PORT"))),
    };
    roots.addresses().iter().map(|root| host(root.as_str())).collect()
}

fn show(format: Format, measured: &[Figures]) {
    if format == Format::Json {
        return output::print_json(&json!(measured.iter().map(Figures::json).collect::<Vec<_>>()));
    }
    let mut table = Table::new(&COLUMNS);
    measured.iter().for_each(|figures| table.row(figures.line()));
    output::print(&table.render());
    output::note("`ebla mt bench --help` explains the columns");
}

//! `ebla mt bench`: load on a mounttable; each result is compared with a limit.

use std::time::Duration;

use ebla_mounttable_tree::naming;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{Root, to_failure};
use crate::commands::mounttable::TableArguments;
use crate::output::{self, Failure, Format, Table};
use ebla_workload::bench::names::fixture::Fixture;
use ebla_workload::bench::names::report::{COLUMNS, Measurement};
use ebla_workload::bench::names::{self, Plan, Workload};
use ebla_workload::bench::processes::Processes;

/// The default prefix of the names of the load's users.
const USER_PREFIX: &str = "bench";

/// Measure resolving and mounting on a running mounttable
///
/// Examples:
///   ebla mt bench --root 127.0.0.1:8101 --pid 4711
///   ebla mt bench --workloads wide --children 1000000 --cluster 127.0.0.1:8086 --keep
///
/// The load mounts below a separate node, bench-…, and deletes it at the end. Several users share the load, so that none
/// exceeds the limits of a server.
///
/// Columns:
///   OPS/S                 operations per second over all clients
///   P50 MS, P99 MS        latency percentiles in milliseconds
///   CPU S/M (+ LOAD)      processor time in seconds per million operations: of the --pid processes, and of this program
///   READS + CHANGES + COUNTERS EACH
///                         requests to the storage per operation
///   MEMORY (PEAK, AFTER)  resident memory of the --pid processes: before, peak, after
///   LIMIT                 the result that a workload must not exceed, and whether it was met
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Bench {
    /// Process ids of the mounttable, to measure their processor time and memory
    #[arg(long, value_name = "PID,PID…")]
    pid: Option<String>,
    /// Which workloads to run, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "resolve,batch-resolve,cold,mount,same-node,wide")]
    workloads: Vec<Workload>,
    /// Number of clients; each sends its next request when the last one was answered (closed loop)
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    clients: u16,
    /// Seconds for each time-limited workload
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Names that are resolved and mounted repeatedly
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    names: u64,
    /// Names with ten elements that are resolved once each
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    cold: u64,
    /// Servers mounted on one node
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    servers: u64,
    /// Children of the large directory; mounting a million takes an hour
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(2..))]
    children: u64,
    /// Address of a tablet server of the cluster that stores the mounttable. Then all but the first hundred children of the
    /// large directory are written into its table instead of being mounted, which takes minutes for a million
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::process::host_port)]
    cluster: Option<String>,
    /// Table of that cluster
    #[command(flatten)]
    table: TableArguments,
    /// Do not delete the mounts; they expire after six hours
    #[arg(long)]
    keep: bool,
}

/// Runs the workloads, shows the results, and deletes the mounts.
///
/// # Errors
/// When nothing answers, or the mounts for a workload cannot be created.
pub(super) async fn run(command: Bench, root: &Root, runtime: Runtime) -> Result<(), Failure> {
    if !(0.01..=3_600.0).contains(&command.seconds) {
        return Err(Failure::usage("--seconds must be between 0.01 and 3600"));
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
        output::note("processor time and memory of the mounttable are not measured: give its process id with --pid");
    }
    output::note(&estimate(&command));
    let user_prefix = root.identity.as_deref().unwrap_or(USER_PREFIX);
    let addresses = addresses(root)?;
    let fixture = match &command.cluster {
        Some(address) => Some(Fixture::of(address, &command.table.name()?, &runtime).await?),
        None => None,
    };
    let bench =
        names::Bench::new(runtime, &addresses, user_prefix, processes.unwrap_or_default(), plan)?.with_fixture(fixture);
    let mut measured = Vec::new();
    let outcome = measure(&bench, &command.workloads, &mut measured).await;
    if !command.keep {
        match bench.clean_up().await {
            Ok(nodes) => output::note(&format!("deleted {nodes} nodes")),
            Err(error) => output::note(&format!("cannot delete the mounts, which expire after six hours: {error}")),
        }
    }
    show(root.output, &measured);
    outcome
}

/// Runs the workloads in order. When one fails, the results of the earlier ones are still shown.
async fn measure(bench: &names::Bench, workloads: &[Workload], measured: &mut Vec<Measurement>) -> Result<(), Failure> {
    for (number, workload) in workloads.iter().enumerate() {
        if number > 0 && *workload == Workload::Wide {
            // A large directory uses up the quota of its users, and so does a node with many servers before it.
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

/// How long the time-limited workloads will take.
fn estimate(command: &Bench) -> String {
    let timed = [Workload::Resolve, Workload::BatchResolve, Workload::Mount];
    let (timed, counted): (Vec<Workload>, Vec<Workload>) =
        command.workloads.iter().partition(|workload| timed.contains(workload));
    let seconds = f64::from(u32::try_from(timed.len()).unwrap_or(u32::MAX)) * command.seconds;
    let counted = match counted.len() {
        0 => String::new(),
        count => format!(", and {count} that run until all their names or servers are processed"),
    };
    format!("workloads of {} s: {}, about {seconds:.0} s{counted}", command.seconds, timed.len())
}

fn addresses(root: &Root) -> Result<Vec<String>, Failure> {
    let roots = root.roots().map_err(to_failure)?;
    let host = |root: &str| match naming::split_address(root) {
        (host, inner) if inner.is_empty() => Ok(host),
        _ => Err(Failure::usage(format!(
            "{root} is a name in a mounttable; the load needs the address of a server, HOST:PORT"
        ))),
    };
    roots.addresses().iter().map(|root| host(root.as_str())).collect()
}

/// The results, an element for each part of the load.
pub(super) fn to_json(measured: &[Measurement]) -> Value {
    json!(measured.iter().map(Measurement::json).collect::<Vec<_>>())
}

fn show(format: Format, measured: &[Measurement]) {
    if format == Format::Json {
        return output::print_json(&to_json(measured));
    }
    let mut table = Table::new(&COLUMNS);
    measured.iter().for_each(|figures| table.row(figures.line()));
    output::print(&table.render());
    output::note("`ebla mt bench --help` explains the columns");
}

//! `ebla bench`: load on a cluster, alone or in alternation with other systems.

use std::path::Path;
use std::time::Duration;

use ebla_runtime::tls::TlsFiles;
use ebla_runtime::units::ByteSize;
use ebla_runtime::{Runtime, Tls};
use serde_json::{Value, json};

use super::connectivity;
use super::{ClusterArguments, token_in};
use crate::output::{self, Failure, Format, Table};
use crate::size;
use ebla_workload::bench::processes::Processes;
use ebla_workload::bench::report::{COLUMNS, COUNT_COLUMNS, Comparison};
use ebla_workload::bench::round;
use ebla_workload::bench::target::Target;
use ebla_workload::bench::{Combination, Plan, Values, Workload};

/// Measure reads, writes and scans, alone or in comparison with other systems
///
/// Examples:
///   ebla bench --clients 1,16,128
///   ebla bench --workloads write --clients 16 --tablets 1,12,100,1000
///   ebla bench --peer emulator=127.0.0.1:9000 --workloads read,scan
///   ebla bench --peer etcd=etcd://127.0.0.1:2379 --processes ebla=4711 --processes etcd=4712
///   ebla bench --peer secure=127.0.0.1:8087 --peer-tls-ca secure=ca.crt --peer-token-file secure=job.token
///
/// The tables `bench` and `bench-wide` in the project and instance `bench` are deleted and created again.
///
/// A peer is a Bigtable (HOST:PORT), an etcd (etcd://HOST:PORT), an etcd with all clients on its leader
/// (etcd-leader://HOST:PORT), or a PostgreSQL that trusts its user postgres (postgres://HOST:PORT); several members with
/// commas. The load overwrites the keys of an etcd, and creates the table `bench` of a PostgreSQL again.
///
/// The first cluster is called with --tls-ca and --token-file, a peer with --peer-tls-ca and --peer-token-file. With --peer-lists the
/// tables of a peer have lists of families: its caller may use the family of the values, and another family is hidden from it. The
/// caller needs roles/bigtable.admin for the instance, and must not be an administrator of the configuration, whom no list restricts.
///
/// For each of several --tablets the tables are created and filled again, then all workloads run. A peer without tablets
/// (etcd, PostgreSQL) is filled once, and measured beside each.
///
/// Columns:
///   CLIENTS            number of clients; each sends its next request when the last one was answered (closed loop)
///   TABLETS            tablets of the table `bench` of a Bigtable
///   ROWS/S             rows per second over all clients, the median over the rounds
///   P50 MS, P99 MS     latency percentiles in milliseconds
///   CPU US (+ LOAD)    processor time per row in microseconds: of the target's --processes, and of this program
///   FIRST / THIS       throughput of the first target divided by that of this one; the interval contains the true ratio
///                      with a probability of 95 %
///
/// Columns of the second table, per row, the sum of all --processes or of all servers of a Bigtable that counts:
///   SWITCHES           context switches of all threads, voluntary and involuntary
///   WRITE CALLS        system calls write, writev and pwrite, for files, sockets and event counters; not send
///   SYNCS              commit log fsyncs
///   RECORDS            records written to commit logs; a replicated log entry is a record on each of its servers
///   PROPOSALS          Raft log entries proposed
///   FRAMES             Raft frames sent to servers of other processes, heartbeats included
///   FRAME BYTES        their size
///   ENTRIES/FRAME      log entries in a frame that has any; not per row
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Bench {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Another system to compare with; repeat for several
    #[arg(long, value_name = "NAME=ADDRESSES")]
    pub peer: Vec<String>,
    /// CA file of a peer (PEM): its connections use TLS
    #[arg(long, value_name = "NAME=FILE")]
    pub peer_tls_ca: Vec<String>,
    /// File with the token (JWT) of the caller of a peer
    #[arg(long, value_name = "NAME=FILE")]
    pub peer_token_file: Vec<String>,
    /// Member of policies that is the caller of a peer, such as subject:job: its tables have lists of families
    #[arg(long, value_name = "NAME=MEMBER")]
    pub peer_lists: Vec<String>,
    /// Process ids of `ebla` or of a peer, to measure their processor time
    #[arg(long, value_name = "NAME=PID,PID…")]
    pub processes: Vec<String>,
    /// Which workloads to run, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "write,read,scan")]
    pub workloads: Vec<Workload>,
    /// Numbers of clients to run each workload with
    #[arg(long, value_delimiter = ',', default_value = "1,16,128")]
    pub clients: Vec<usize>,
    /// Numbers of tablets of the table to run all of this with
    #[arg(long, value_delimiter = ',', default_value = "12", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub tablets: Vec<u64>,
    /// Rows in the table
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(100..))]
    pub rows: u64,
    /// Size of each value, as in 1000 or 4K
    #[arg(long, value_name = "SIZE", default_value = "1000", value_parser = size::parse)]
    pub value_bytes: ByteSize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Number of measurements of each target for each figure
    #[arg(long, alias = "pairs", default_value_t = 6)]
    pub rounds: usize,
}

/// Prepares the tables, runs the measurements, shows the results.
///
/// # Errors
/// The first error that any client receives; 6 when nothing listens at an address.
pub async fn run(bench: Bench, runtime: Runtime) -> Result<(), Failure> {
    if !(0.01..=3_600.0).contains(&bench.seconds) {
        return Err(Failure::usage("--seconds must be between 0.01 and 3600"));
    }
    if bench.tablets.iter().any(|tablets| *tablets > bench.rows) {
        return Err(Failure::usage("--tablets must not be greater than --rows: each tablet has a row"));
    }
    let too_large = |_| Failure::usage("--value-bytes is larger than this machine can address");
    let plan = Plan {
        workloads: bench.workloads.clone(),
        clients: bench.clients.clone(),
        tablets: bench.tablets.clone(),
        rows: bench.rows,
        value_bytes: usize::try_from(bench.value_bytes.bytes()).map_err(too_large)?,
        round_length: Duration::from_secs_f64(bench.seconds),
        rounds: bench.rounds.max(1),
    };
    let named = [("--peer-tls-ca", &bench.peer_tls_ca), ("--peer-token-file", &bench.peer_token_file)];
    for (option, given) in named.into_iter().chain([("--peer-lists", &bench.peer_lists)]) {
        let names = bench.peer.iter().filter_map(|peer| peer.split_once('=').map(|(name, _)| name)).collect::<Vec<_>>();
        if let Some(wrong) =
            given.iter().find(|one| !one.split_once('=').is_some_and(|(name, _)| names.contains(&name)))
        {
            return Err(Failure::usage(format!("{option} {wrong}: expected NAME=VALUE with the NAME of a --peer")));
        }
    }
    let values = Values::new(&runtime, plan.value_bytes);
    connectivity::require_any(&bench.cluster.addresses()?, &runtime).await?;
    let targets = targets(&bench, &runtime).await?;
    output::note(&estimate(&plan, targets.len()));
    let mut measured = Vec::new();
    for (number, tablets) in plan.tablets.iter().enumerate() {
        for target in targets.iter().filter(|target| number == 0 || target.has_tablets()) {
            let parts = if target.has_tablets() { format!(" in {tablets} tablets") } else { String::new() };
            let (rows, bytes) = (plan.rows, plan.value_bytes);
            output::note(&format!("filling {} with {rows} rows of {bytes} bytes{parts}", target.name));
            target.prepare(&plan, *tablets, &values).await?;
        }
        for (workload, combination) in plan.combinations(*tablets) {
            measured.push(measure(&runtime, &targets, workload, combination, &plan, &values).await?);
        }
    }
    show(&bench, &measured);
    Ok(())
}

/// How long the measurements will take.
fn estimate(plan: &Plan, targets: usize) -> String {
    let figures = plan.workloads.len().saturating_mul(plan.clients.len()).saturating_mul(plan.tablets.len());
    let rounds = figures.saturating_mul(plan.rounds).saturating_mul(targets);
    let time = plan.round_length.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX));
    format!(
        "figures: {figures}, with {} measurements of {:?} each: about {}, plus the time to fill the tables",
        plan.rounds.saturating_mul(targets),
        plan.round_length,
        rough(time)
    )
}

/// A duration rounded for people.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} seconds"),
        seconds @ 120..7_200 => format!("{} minutes", seconds.saturating_add(30) / 60),
        seconds => format!("{} hours", seconds.saturating_add(1_800) / 3_600),
    }
}

async fn targets(bench: &Bench, runtime: &Runtime) -> Result<Vec<Target>, Failure> {
    let most = bench.clients.iter().copied().max().unwrap_or(1);
    let mut named = vec![("ebla", bench.cluster.addresses()?.join(","))];
    for peer in &bench.peer {
        let (name, addresses) = peer.split_once('=').ok_or_else(|| Failure::usage("--peer needs NAME=ADDRESSES"))?;
        named.push((name, addresses.to_owned()));
    }
    let mut targets = Vec::new();
    for (number, (name, addresses)) in named.into_iter().enumerate() {
        let processes = processes(&bench.processes, name)?;
        let target = if number == 0 {
            let target = Target::new(runtime, name, &addresses, processes, most).await?;
            target.with_caller(bench.cluster.token()?, None)
        } else {
            let runtime = peer_runtime(of_peer(&bench.peer_tls_ca, name), runtime)?;
            let token = token_in(of_peer(&bench.peer_token_file, name).map(Path::new))?;
            let member = of_peer(&bench.peer_lists, name).map(str::parse).transpose()?;
            Target::new(&runtime, name, &addresses, processes, most).await?.with_caller(token, member)
        };
        targets.push(target);
    }
    Ok(targets)
}

/// The value of an option NAME=VALUE for a peer.
fn of_peer<'a>(given: &'a [String], name: &str) -> Option<&'a str> {
    given.iter().filter_map(|one| one.split_once('=')).find(|(of, _)| *of == name).map(|(_, value)| value)
}

/// The runtime of a peer: with TLS if it has a CA file, and otherwise without.
fn peer_runtime(ca: Option<&str>, runtime: &Runtime) -> Result<Runtime, Failure> {
    let net = match ca {
        Some(ca) => {
            let files = TlsFiles { ca: ca.into(), own: None };
            let tls = Tls::open(files, runtime.clock.clone()).map_err(|error| Failure::usage(error.to_string()))?;
            runtime.net.clone().with_tls(tls)
        }
        None => runtime.net.without_tls(),
    };
    Ok(Runtime { net, ..runtime.clone() })
}

fn processes(given: &[String], name: &str) -> Result<Processes, Failure> {
    Ok(of_peer(given, name).map(Processes::parse).transpose()?.unwrap_or_default())
}

async fn measure(
    runtime: &Runtime,
    targets: &[Target],
    workload: Workload,
    combination: Combination,
    plan: &Plan,
    values: &Values,
) -> Result<Comparison, Failure> {
    let clients = combination.clients;
    let one = async |target: &Target| round::run(runtime, target, workload, clients, plan, values).await;
    let rounds = round::alternate(targets, plan.rounds, |target| &target.name, one).await?;
    let tablets = combination.tablets.map(|tablets| format!(" and {tablets} tablets")).unwrap_or_default();
    output::note(&format!("{} with {clients} clients{tablets}: done", workload.name()));
    Ok(Comparison::new(combination, &rounds, &runtime.rng))
}

/// The results, an element for each combination of workload, clients and tablets.
pub(super) fn to_json(measured: &[Comparison]) -> Value {
    json!(measured.iter().map(Comparison::json).collect::<Vec<_>>())
}

fn show(bench: &Bench, measured: &[Comparison]) {
    if bench.cluster.output == Format::Json {
        return output::print_json(&to_json(measured));
    }
    let mut table = Table::new(&COLUMNS);
    for line in measured.iter().flat_map(Comparison::lines) {
        table.row(line);
    }
    output::print(&table.render());
    let counts: Vec<_> = measured.iter().flat_map(Comparison::count_lines).collect();
    if !counts.is_empty() {
        let mut table = Table::new(&COUNT_COLUMNS);
        counts.into_iter().for_each(|line| table.row(line));
        output::print(&format!("\nper row:\n{}", table.render()));
    }
    output::note("`ebla bench --help` explains the columns");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_covers_all_measurements() {
        let plan = Plan {
            workloads: vec![Workload::Write, Workload::Read, Workload::Scan],
            clients: vec![1, 16, 128],
            tablets: vec![12, 100],
            rows: 100,
            value_bytes: 10,
            round_length: Duration::from_secs(5),
            rounds: 6,
        };
        let said = estimate(&plan, 2);
        assert!(said.starts_with("figures: 18, with 12 measurements of 5s each: about 18 minutes"), "{said}");
        assert_eq!(
            [1, 119, 120, 7_200].map(|seconds| rough(Duration::from_secs(seconds))),
            ["1 seconds", "119 seconds", "2 minutes", "2 hours"]
        );
    }
}

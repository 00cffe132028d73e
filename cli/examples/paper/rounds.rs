//! The rounds with one number of servers: for each workload the rate under quotas, then the work at a fixed rate.

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use ebla_runtime::Runtime;
use ebla_workload::bench::closed_loop::{self, LoopResult};
use ebla_workload::bench::paper::PaperWorkload;
use ebla_workload::bench::paper::figures::{Figures, QuotaRound, WorkRound};
use ebla_workload::bench::paper::quota::Quota;
use ebla_workload::bench::processes::{MachineTime, Processes, children, thread_time};

use crate::Arguments;
use crate::cgroup::Groups;
use crate::cluster::PaperCluster;

/// The rate of scans is this fraction of the rate of other requests, because each reads many rows.
const SCANS_PER_REQUEST: f64 = 0.1;

/// Starts a cluster and adds a round of each kind and workload to `figures`. What was measured before an error stays there.
pub(super) async fn measure(
    servers: u8,
    quota: Quota,
    arguments: &Arguments,
    figures: &mut Figures,
    runtime: &Runtime,
) -> Result<(), Box<dyn Error>> {
    let layout = arguments.layout(servers);
    let cluster = PaperCluster::start(layout, arguments, runtime).await?;
    let clients = arguments.clients.saturating_mul(layout.servers);
    for workload in PaperWorkload::ALL {
        cluster.load.warm_up(workload).await?;
        let entry = figures.entry(workload, layout.servers);
        if let Some(groups) = cluster.groups() {
            let clients = cluster.load.clients(workload, clients, &runtime.rng);
            let load = closed_loop::run(runtime, clients, Some(arguments.round_length()));
            entry.quota.push(under_quotas(groups, quota, load).await?);
        }
        let share = if workload == PaperWorkload::Scans { SCANS_PER_REQUEST } else { 1.0 };
        let rate = arguments.rate * share * f64::from(servers);
        let clients = cluster.load.paced_clients(workload, clients, rate, &runtime.rng);
        let load = closed_loop::run(runtime, clients, Some(arguments.round_length()));
        entry.work.push(work(&cluster, load).await?);
        eprintln!("  {}: {}", workload.name(), last_figures(entry.quota.last(), entry.work.last()));
    }
    Ok(())
}

/// Runs a closed loop while every server has the quota.
async fn under_quotas(
    groups: &Groups,
    quota: Quota,
    load: impl Future<Output = Result<LoopResult, ebla_model::error::Error>>,
) -> Result<QuotaRound, Box<dyn Error>> {
    groups.set(Some(quota))?;
    let (throttled, machine, generator) = (groups.throttled()?, MachineTime::now(), own_time());
    let result = load.await;
    let after = groups.throttled()?;
    let machine_busy = machine.zip(MachineTime::now()).and_then(|(before, after)| after.busy_since(&before));
    let generator = generator.zip(own_time()).map(|(before, after)| after.saturating_sub(before));
    groups.set(None)?;
    let result = without_errors(result?)?;
    let share = |(before, after): (&u64, &u64)| share_of(after.saturating_sub(*before), quota.periods(result.took));
    Ok(QuotaRound {
        rows_per_second: result.per_second(),
        throttled: throttled.iter().zip(&after).map(share).collect(),
        machine_busy,
        generator_cores: generator.map(|time| time.as_secs_f64() / result.took.as_secs_f64().max(1e-9)),
    })
}

/// Runs a load and measures the processor time of each process.
async fn work(
    cluster: &PaperCluster,
    load: impl Future<Output = Result<LoopResult, ebla_model::error::Error>>,
) -> Result<WorkRound, Box<dyn Error>> {
    let servers = cluster.server_pids();
    let all = children(std::process::id());
    let others: Vec<u32> = all.difference(&servers.iter().copied().collect::<BTreeSet<_>>()).copied().collect();
    let before = (times(&servers)?, times(&others)?);
    let result = without_errors(load.await?)?;
    let after = (times(&servers)?, times(&others)?);
    let grown = |before: &[Duration], after: &[Duration]| -> Vec<Duration> {
        before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).collect()
    };
    Ok(WorkRound {
        rows: result.operations,
        took: result.took,
        servers: grown(&before.0, &after.0),
        others: Some(grown(&before.1, &after.1).iter().sum()),
    })
}

fn times(pids: &[u32]) -> Result<Vec<Duration>, &'static str> {
    let times: Option<_> = pids.iter().map(|pid| thread_time(*pid)).collect();
    times.ok_or("a process has exited, or this kernel does not count the time of threads")
}

/// Of the load generator.
fn own_time() -> Option<Duration> {
    Processes::own().cpu_micros().map(Duration::from_micros)
}

#[expect(clippy::cast_precision_loss, reason = "a round has few periods")]
fn share_of(throttled: u64, periods: f64) -> f64 {
    (throttled as f64 / periods).min(1.0)
}

/// Refused requests are fast and would improve the result.
fn without_errors(result: LoopResult) -> Result<LoopResult, String> {
    match result.first_error {
        Some(error) => Err(format!("{} requests failed, the first: {error}", result.errors)),
        None => Ok(result),
    }
}

fn last_figures(quota: Option<&QuotaRound>, work: Option<&WorkRound>) -> String {
    let quota = quota.map(|round| {
        let throttled: Vec<_> = round.throttled.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
        format!(
            "{:.0} rows/s, throttled {} % of the periods, machine busy {:.0} %; ",
            round.rows_per_second,
            throttled.join("/"),
            round.machine_busy.unwrap_or(f64::NAN) * 100.0
        )
    });
    let work = work.map(|round| {
        format!(
            "work {:.1} us per row, capacity {:.0} rows/s",
            round.micros_per_row().unwrap_or(f64::NAN),
            round.capacity().unwrap_or(f64::NAN)
        )
    });
    quota.unwrap_or_default() + &work.unwrap_or_default()
}

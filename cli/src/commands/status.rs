//! `ebla status`: the health of a cluster, its servers, and how much data they store.

use ebla_model::Micros;
use ebla_model::capacity::{WriteState, readable_bytes};
use ebla_model::error::Reason;
use ebla_proto::operate::{ObservedProblem, ProblemKind};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::server::part;
use super::{ClusterArguments, given_timeout, server, unreachable};
use crate::output::{self, Columns, Failure, Format, Table};
use crate::process::ClusterSecurity;
use crate::watch::{WatchArguments, repeat};
use ebla_client::snapshot::{ClusterSnapshot, fetch};
use ebla_client::verdict::{Level, Verdict, evaluate};

/// Show the health of the cluster, its servers, and how much data they store
///
/// The first line is the verdict: `healthy`; `degraded` when all tablets are served but replicas or servers are missing;
/// `unavailable` when some tablets cannot be read or written, or no master is available. Without a master the data comes from
/// the tablet servers and METADATA; unknown values are shown as unknown (null in JSON).
///
/// With -o wide also loads and resources of each server, and when its stores were last read as a whole to find damage.
///
/// Examples:
///   ebla status
///   ebla status --watch
///   ebla status --exit-code --addr 127.0.0.1:8086,127.0.0.1:8087
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Status {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Exit with 0 when healthy, 5 when degraded, 6 when unavailable
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
    /// How often
    #[command(flatten)]
    pub watch: WatchArguments,
}

/// Shows the state of the cluster within five seconds.
///
/// # Errors
/// When nothing answers at the addresses; with `--exit-code` also the verdict's exit code, without a message.
pub async fn run(status: Status, runtime: Runtime) -> Result<(), Failure> {
    repeat(status.watch.period(), async || show(&status, &runtime).await).await
}

async fn show(status: &Status, runtime: &Runtime) -> Result<(), Failure> {
    let snapshot = snapshot(&status.cluster, runtime).await?;
    let verdict = evaluate(&snapshot);
    let addresses = snapshot.servers.iter().filter_map(|one| one.address.as_deref()).chain(snapshot.master.as_deref());
    let security = ClusterSecurity::of(&runtime.net, addresses);
    match status.cluster.output {
        Format::Json => output::print_json(&to_json(&snapshot, &verdict, security)),
        Format::Table => output::print(&render(&snapshot, &verdict, security, output::columns())),
    }
    if status.exit_code && verdict.level != Level::Healthy {
        return Err(Failure { message: String::new(), code: verdict.level.exit_code() });
    }
    Ok(())
}

/// Fetches the state of the cluster.
///
/// # Errors
/// When nothing answers at the addresses, with what to do.
pub async fn snapshot(cluster: &ClusterArguments, runtime: &Runtime) -> Result<ClusterSnapshot, Failure> {
    let addresses = cluster.addresses()?;
    match fetch(&addresses, given_timeout(), cluster.token()?, runtime).await {
        Ok(snapshot) => Ok(snapshot),
        Err(error) if error.reason == Reason::Unavailable => Err(unreachable(&addresses, error, runtime).await),
        Err(error) if error.reason == Reason::Unimplemented => Err(Failure::usage(error.message)),
        Err(error) => Err(error.into()),
    }
}

fn render(snapshot: &ClusterSnapshot, verdict: &Verdict, security: ClusterSecurity, columns: Columns) -> String {
    let mut facts = vec![format!("cluster {}", snapshot.cluster.as_deref().unwrap_or("unknown")), master(snapshot)];
    facts.push(format!("tables {}", or_unknown(snapshot.tables)));
    facts.push(tablets(snapshot));
    if let Some(health) = &snapshot.health {
        facts.push(format!("replicas {}/{} live", health.replicas_live, health.replicas_wanted));
    }
    facts.extend(scrubbed(snapshot));
    facts.push(security.described().to_owned());
    let mut heading =
        vec!["SERVER", "ADDRESS", "STATE", "REPLICAS", "LEADS", "SIZE", "LOG", "DISK FREE", "FILES", "MEMORY"];
    if columns == Columns::Wide {
        heading.extend(["READS/S", "WRITES/S", "CONNECTIONS", "SYNC", "LAG", "SCRUBBED", "ZONE", "RELEASE"]);
    }
    let mut table = Table::new(&heading);
    for one in &snapshot.servers {
        let mut row = vec![
            one.id.to_string(),
            server::or_dash(one.address.clone()),
            match one.writes {
                WriteState::Accepts => one.state().to_owned(),
                WriteState::Refuses => format!("{}, refuses writes: disk", one.state()),
            },
            server::or_dash(one.replicas),
            server::or_dash(one.leads),
            server::or_dash(one.size_bytes.map(readable_bytes)),
            server::or_dash(one.log_bytes.map(readable_bytes)),
            server::or_dash(one.resources.disk.map(|disk| part(disk.free_bytes, disk.total_bytes, readable_bytes))),
            server::or_dash(one.resources.files.map(|files| part(files.used, files.limit, |count| count.to_string()))),
            server::or_dash(one.resources.memory.map(|memory| part(memory.used, memory.limit, readable_bytes))),
        ];
        if columns == Columns::Wide {
            let connections =
                one.resources.connections.map(|open| part(open.used, open.limit, |count| count.to_string()));
            row.extend([
                server::or_dash(one.reads_per_second),
                server::or_dash(one.writes_per_second),
                server::or_dash(connections),
                server::or_dash(one.sync.delay.map(server::delay)),
                server::or_dash(one.lag.as_ref().map(server::lag)),
                server::scrubbed(&one.scrub),
                server::or_dash(one.zone.clone()),
                server::or_dash(one.release.clone()),
            ]);
        }
        table.row(row);
    }
    format!("{verdict}\n\n{}\n\n{}", facts.join("   "), table.render())
}

/// How long ago the last of the servers that respond had read all its stores, at what rate they read, and the damage that was found, also by reads.
fn scrubbed(snapshot: &ClusterSnapshot) -> Option<String> {
    let scrubs: Vec<_> = snapshot.servers.iter().filter(|one| one.is_reachable).map(|one| one.scrub).collect();
    let rate = scrubs.iter().map(|scrub| scrub.bytes_per_second).max()?;
    let damaged: u64 = scrubs.iter().map(|scrub| scrub.damaged).sum();
    let when: Option<Vec<_>> = scrubs.iter().map(|scrub| scrub.finished_ago).collect();
    let when = when.and_then(|all| all.into_iter().max()).map_or_else(|| "not yet".to_owned(), server::ago);
    Some(format!("scrubbed {when} ({}/s, {damaged} damaged replicas found)", readable_bytes(rate)))
}

fn master(snapshot: &ClusterSnapshot) -> String {
    match (&snapshot.master, &snapshot.master_error, snapshot.master_epoch) {
        (Some(address), None, Some(epoch)) => format!("master {address} (epoch {epoch})"),
        (Some(address), None, None) => format!("master {address}"),
        (Some(address), Some(error), _) => {
            let ago = snapshot.master_lost.map(|lost| format!(", lost {} s ago", lost.as_secs())).unwrap_or_default();
            format!("master unknown (last at {address}{ago}: {error})")
        }
        (None, Some(error), _) => format!("master unknown ({error})"),
        (None, None, _) => "master unknown".to_owned(),
    }
}

fn tablets(snapshot: &ClusterSnapshot) -> String {
    match (snapshot.tablets, snapshot.tablets_led, &snapshot.remembered) {
        (Some(tablets), Some(led), _) => format!("tablets {led}/{tablets} led"),
        (Some(tablets), None, _) => format!("tablets {tablets}, leaders unknown"),
        (None, _, Some(last)) => {
            format!("tablets unknown ({} known {} s ago)", last.tablets, last.age_millis / 1000)
        }
        (None, _, None) => "tablets unknown".to_owned(),
    }
}

fn problem_json(problem: &ObservedProblem) -> Value {
    json!({
        "problem": problem_name(problem.kind()),
        "server": (problem.server != 0).then_some(problem.server),
        "tablet": (problem.tablet != 0).then_some(problem.tablet),
        "since_micros": problem.since_micros,
    })
}

/// The name of a kind of problem in JSON.
const fn problem_name(kind: ProblemKind) -> &'static str {
    match kind {
        ProblemKind::Unknown => "unknown",
        ProblemKind::NoResponse => "no-response",
        ProblemKind::RefusesWrites => "refuses-writes",
        ProblemKind::ClockOff => "clock-off",
        ProblemKind::SlowDisk => "slow-disk",
        ProblemKind::Damaged => "damaged-replicas",
        ProblemKind::Lagging => "lagging-replicas",
        ProblemKind::NoLeader => "tablets-without-leader",
        ProblemKind::NoQuorum => "tablets-without-quorum",
        ProblemKind::UnderReplicated => "under-replicated",
        ProblemKind::MetadataUnreadable => "metadata-unreadable",
        ProblemKind::DiskNearlyFull => "disk-nearly-full",
        ProblemKind::MemoryNearlyUsed => "memory-nearly-used",
        ProblemKind::FilesNearlyUsed => "files-nearly-used",
        ProblemKind::ConnectionsNearlyUsed => "connections-nearly-used",
        ProblemKind::HotRow => "hot-row",
        ProblemKind::HotTablet => "hot-tablet",
    }
}

fn or_unknown(count: Option<u64>) -> String {
    count.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
}

pub(super) fn to_json(snapshot: &ClusterSnapshot, verdict: &Verdict, security: ClusterSecurity) -> Value {
    let health = snapshot.health.as_ref();
    let shortages = health.map(|health| {
        let one = |short: &ebla_proto::operate::Shortage| {
            json!({"live": short.live, "wanted": short.wanted, "tablets": short.tablets})
        };
        health.shortages.iter().map(one).collect::<Vec<_>>()
    });
    let remembered = snapshot.remembered.as_ref();
    let trouble: Vec<&str> =
        [&snapshot.master_error, &snapshot.metadata_error].into_iter().flatten().map(String::as_str).collect();
    // Only a master counts the leaders.
    let unled = health.filter(|_| snapshot.master_error.is_none()).map(|health| health.without_leader);
    json!({
        "verdict": verdict.level.name(),
        "reasons": verdict.reasons,
        "security": security.name(),
        "cluster": snapshot.cluster,
        "master": snapshot.master,
        "master_epoch": snapshot.master_epoch,
        "master_answers": snapshot.master_error.is_none(),
        "master_lost_seconds": snapshot.master_lost.map(|lost| lost.as_secs()),
        "trouble": trouble.join("; "),
        "tables": snapshot.tables,
        "tablets": snapshot.tablets,
        "tablets_led": snapshot.tablets_led,
        "tablets_without_quorum": health.map(|health| health.without_quorum),
        "tablets_without_leader": unled,
        "under_replicated": shortages,
        "replicas_live": health.map(|health| health.replicas_live),
        "replicas_wanted": health.map(|health| health.replicas_wanted),
        "repairs": health.map(|health| health.repairs),
        "repairs_without_room": health.map(|health| health.repairs_without_room),
        "lock_service_behind": health.map(|health| &health.behind),
        "unknown_tables": health.map(|health| health.unknown_tables),
        "tablets_without_leader_first": health.map(|health| &health.without_leader_first),
        "time_micros": snapshot.time.map(Micros::get),
        "problems": snapshot.problems.iter().map(problem_json).collect::<Vec<_>>(),
        "last_known": remembered.map(|last| json!({"age_seconds": last.age_millis / 1000, "tablets": last.tablets})),
        "servers": snapshot.servers.iter().map(server::to_json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebla_model::capacity::{Resources, Usage};
    use ebla_model::scrub::ScrubState;

    use super::*;
    use ebla_client::snapshot::{ReplicaLag, ServerSnapshot};

    #[test]
    fn wide_columns_follow_the_standard_ones() {
        let server = ServerSnapshot {
            id: 1,
            address: Some("host:1".to_owned()),
            is_registered: true,
            is_reachable: true,
            resources: Resources { connections: Some(Usage { used: 7, limit: 10 }), ..Resources::default() },
            reads_per_second: Some(5),
            writes_per_second: Some(6),
            lag: Some(ReplicaLag::default()),
            scrub: ScrubState {
                finished_ago: Some(Duration::from_hours(2)),
                bytes_per_second: 8 << 20,
                ..ScrubState::default()
            },
            release: Some("0.1.0".to_owned()),
            ..ServerSnapshot::default()
        };
        let snapshot = ClusterSnapshot { servers: vec![server], tables: Some(2), ..ClusterSnapshot::default() };
        let show = |columns| render(&snapshot, &evaluate(&snapshot), ClusterSecurity::Loopback, columns);
        let expected = "\
SERVER  ADDRESS  STATE  REPLICAS  LEADS  SIZE  LOG  DISK FREE  FILES  MEMORY  READS/S  WRITES/S  CONNECTIONS  SYNC  LAG   SCRUBBED            ZONE  RELEASE
1       host:1   up     -         -      -     -    -          -      -       5        6         7/10         -     none  2 h ago, 8.0 MiB/s  -     0.1.0
";
        let wide = show(Columns::Wide);
        assert!(wide.starts_with("healthy\n\n") && wide.ends_with(expected), "{wide}");
        assert!(wide.contains("   scrubbed 2 h ago (8.0 MiB/s, 0 damaged replicas found)   "), "{wide}");
        let standard = show(Columns::Standard);
        assert!(standard.lines().zip(wide.lines()).all(|(narrow, wide)| wide.starts_with(narrow)), "{standard}");
    }

    #[test]
    fn the_last_scrubber_and_all_damage_are_shown() {
        let server = |finished_ago: Option<u64>, damaged| ServerSnapshot {
            is_reachable: true,
            scrub: ScrubState {
                finished_ago: finished_ago.map(Duration::from_hours),
                bytes_per_second: 1 << 20,
                damaged,
                ..ScrubState::default()
            },
            ..ServerSnapshot::default()
        };
        let show = |servers| scrubbed(&ClusterSnapshot { servers, ..ClusterSnapshot::default() });
        let lost = ServerSnapshot { is_reachable: false, ..server(None, 7) };
        let all = show(vec![server(Some(1), 1), server(Some(72), 2), lost.clone()]);
        assert_eq!(all.as_deref(), Some("scrubbed 3 d ago (1.0 MiB/s, 3 damaged replicas found)"));
        let new = show(vec![server(Some(1), 0), server(None, 0)]);
        assert_eq!(new.as_deref(), Some("scrubbed not yet (1.0 MiB/s, 0 damaged replicas found)"));
        assert_eq!(show(vec![lost]), None);
    }
}

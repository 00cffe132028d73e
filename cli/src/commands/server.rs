//! `ebla server`: the tablet servers of a cluster.

mod argument;
pub(super) mod drain;

pub(in crate::commands) use self::drain::connect;

use std::fmt;
use std::time::Duration;

use ebla_model::capacity::{Resources, WriteState, readable_bytes};
use ebla_model::scan_cache::ScanCacheState;
use ebla_model::scrub::ScrubState;
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use self::argument::ServerArgument;
use super::{ClusterArguments, status};
use crate::output::{self, Columns, Failure, Format, Table};
use crate::watch::{WatchArguments, repeat};
use ebla_client::snapshot::{ReplicaLag, ServerSnapshot};

/// List, drain and remove tablet servers
///
/// Examples:
///   ebla server list
///   ebla server drain 3
///   ebla server remove 3
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Server {
    /// List the tablet servers: registered ones, drained ones, and those that have replicas according to METADATA
    ///
    /// With -o wide also loads and resources.
    ///
    /// Examples:
    ///   ebla server list
    ///   ebla server list -o wide --watch
    #[command(verbatim_doc_comment)]
    List {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// How often
        #[command(flatten)]
        watch: WatchArguments,
    },
    /// Move all replicas of a tablet server to other servers, so that it can be removed
    ///
    /// Examples:
    ///   ebla server drain 3 --dry-run
    ///   ebla server drain 3
    ///   ebla server drain tablet-server-3:8086
    ///
    /// Reads and writes go on: the leaderships leave the server first, and a replica is removed only together with the addition of
    /// another one. The command shows the progress and ends when the server has no replica. After Ctrl-C the drain continues; the same
    /// command shows its progress again. It is refused when the other servers are too few, or have no room. The server gets no replicas
    /// until ebla server undrain.
    #[command(verbatim_doc_comment)]
    Drain {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of the tablet server, or its address
        #[arg(value_parser = argument::parse)]
        server: ServerArgument,
        /// Only show what would move, and where to
        #[arg(long)]
        dry_run: bool,
        /// Return at once instead of waiting until the server has no replica
        #[arg(long, conflicts_with = "dry_run")]
        no_wait: bool,
    },
    /// End the drain of a tablet server: it may get replicas and leaderships again
    ///
    /// Example:
    ///   ebla server undrain 3
    ///
    /// What has moved away does not move back by this, but replica balance may move other replicas to it.
    #[command(verbatim_doc_comment)]
    Undrain {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of the tablet server, or its address
        #[arg(value_parser = argument::parse)]
        server: ServerArgument,
        /// Only show whether the server is drained
        #[arg(long)]
        dry_run: bool,
    },
    /// Make the cluster forget a tablet server that has no replicas and was stopped
    ///
    /// Example:
    ///   ebla server remove 3
    ///
    /// It is refused while the server has replicas (drain it first), and while it is registered (stop its process first).
    #[command(verbatim_doc_comment)]
    Remove {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of the tablet server, or its address
        #[arg(value_parser = argument::parse)]
        server: ServerArgument,
        /// Only check whether it can be removed
        #[arg(long)]
        dry_run: bool,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers; when no cluster answers.
pub async fn run(command: Server, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Server::List { cluster, watch } => repeat(watch.period(), async || list(&cluster, &runtime).await).await,
        Server::Drain { cluster, server, dry_run, no_wait } => {
            let server = server.resolve(&cluster, &runtime).await?;
            let until = if no_wait { drain::Until::Recorded } else { drain::Until::Empty };
            match dry_run {
                true => drain::preview(&cluster, server, &runtime).await,
                false => drain::drain(&cluster, server, until, &runtime).await,
            }
        }
        Server::Undrain { cluster, server, dry_run } => {
            let server = server.resolve(&cluster, &runtime).await?;
            drain::undrain(&cluster, server, dry_run.into(), &runtime).await
        }
        Server::Remove { cluster, server, dry_run } => {
            let server = server.resolve(&cluster, &runtime).await?;
            drain::remove(&cluster, server, dry_run.into(), &runtime).await
        }
    }
}

async fn list(cluster: &ClusterArguments, runtime: &Runtime) -> Result<(), Failure> {
    let snapshot = status::snapshot(cluster, runtime).await?;
    if let Some(error) = &snapshot.master_error {
        output::note(&format!("no master is available, so replicas and sizes are unknown: {error}"));
    }
    if let Some(error) = &snapshot.metadata_error {
        output::note(&format!("servers without a lease may be missing from the list: {error}"));
    }
    match cluster.output {
        Format::Json => output::print_json(&snapshot.servers.iter().map(to_json).collect()),
        Format::Table => output::print(&render(&snapshot.servers, output::columns())),
    }
    Ok(())
}

fn render(servers: &[ServerSnapshot], columns: Columns) -> String {
    let mut heading = vec![
        "SERVER",
        "ADDRESS",
        "STATE",
        "ZONE",
        "INCARNATION",
        "RELEASE",
        "REPLICAS",
        "LEADS",
        "SIZE",
        "LOG",
        "CLOCK",
        "SYNC",
        "CACHED ROWS",
        "SCRUBBED",
    ];
    if columns == Columns::Wide {
        heading.extend(["READS/S", "WRITES/S", "DISK FREE", "FILES", "MEMORY", "CONNECTIONS", "LAG"]);
    }
    let mut table = Table::new(&heading);
    for one in servers {
        let replicas = match (one.replicas, one.assigned) {
            (None, None) => "-".to_owned(),
            (replicas, assigned) => format!("{}/{}", or_dash(replicas), or_dash(assigned)),
        };
        let mut row = vec![
            one.id.to_string(),
            or_dash(one.address.clone()),
            one.state().to_owned(),
            or_dash(one.zone.clone()),
            or_dash(one.incarnation.map(incarnation)),
            or_dash(one.release.clone()),
            replicas,
            or_dash(one.leads),
            or_dash(one.size_bytes.map(readable_bytes)),
            or_dash(one.log_bytes.map(readable_bytes)),
            or_dash(one.clock.offset_micros.map(offset)),
            or_dash(one.sync.delay.map(delay)),
            or_dash(one.scan_cache.as_ref().map(cached_rows)),
            scrubbed(&one.scrub),
        ];
        if columns == Columns::Wide {
            let Resources { disk, files, memory, connections, .. } = one.resources;
            row.extend([or_dash(one.reads_per_second), or_dash(one.writes_per_second)]);
            row.push(or_dash(disk.map(|disk| part(disk.free_bytes, disk.total_bytes, readable_bytes))));
            row.push(or_dash(files.map(|files| part(files.used, files.limit, |count| count.to_string()))));
            row.push(or_dash(memory.map(|memory| part(memory.used, memory.limit, readable_bytes))));
            row.push(or_dash(connections.map(|open| part(open.used, open.limit, |count| count.to_string()))));
            row.push(or_dash(one.lag.as_ref().map(lag)));
        }
        table.row(row);
    }
    table.render()
}

/// A server as JSON; unknown values are null.
pub fn to_json(one: &ServerSnapshot) -> Value {
    let Resources { disk, files, memory, connections, .. } = one.resources;
    let cache = one.scan_cache;
    let mut document = json!({
        "id": one.id,
        "bigtable": one.address,
        "state": one.state(),
        "zone": one.zone,
        "registered": one.is_registered,
        "reachable": one.is_reachable,
        "incarnation": one.incarnation.map(incarnation),
        "release": one.release,
        "replicas": one.replicas,
        "assigned": one.assigned,
        "leads": one.leads,
        "size_bytes": one.size_bytes,
        "log_bytes": one.log_bytes,
        "disk_free_bytes": disk.map(|disk| disk.free_bytes),
        "disk_total_bytes": disk.map(|disk| disk.total_bytes),
        "disk_reserve_bytes": disk.map(|disk| disk.reserve_bytes),
        "files_open": files.map(|files| files.used),
        "files_limit": files.map(|files| files.limit),
        "memory_bytes": memory.map(|memory| memory.used),
        "memory_limit_bytes": memory.map(|memory| memory.limit),
        "memory_groups": one.memory_groups.map(|groups| json!({
            "limit_bytes": groups.limit_bytes,
            "needed_bytes": groups.needed_bytes,
            "excess_bytes": groups.excess_bytes,
            "cached_bytes": groups.cached_bytes,
            "disk_reads": groups.disk_reads,
        })),
        "clock_offset_micros": one.clock.offset_micros,
        "clock_is_off": one.clock.is_off,
        "sync_delay_micros": one.sync.delay.map(|delay| u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)),
        "disk_is_slow": one.sync.is_slow,
    });
    // The macro has a limit of fields.
    let more = json!({
        "scan_cache_hits": cache.map(|cache| cache.hits),
        "scan_cache_misses": cache.map(|cache| cache.misses),
        "scan_cache_fills": cache.map(|cache| cache.fills),
        "scan_cache_refused_fills": cache.map(|cache| cache.refused_fills),
        "scan_cache_evictions": cache.map(|cache| cache.evictions),
        "scan_cache_rows": cache.map(|cache| cache.rows),
        "scan_cache_bytes": cache.map(|cache| cache.bytes),
        "scan_cache_capacity_bytes": cache.map(|cache| cache.capacity_bytes),
        "scrub_finished_seconds_ago": one.scrub.finished_ago.map(|ago| ago.as_secs()),
        "scrub_bytes": one.scrub.bytes,
        "scrub_bytes_per_second": one.scrub.bytes_per_second,
        "damaged_replicas_found": one.scrub.damaged,
        "damaged_replicas_kept": one.scrub.kept,
        "connections_open": connections.map(|connections| connections.used),
        "connections_limit": connections.map(|connections| connections.limit),
        "reads_per_second": one.reads_per_second,
        "writes_per_second": one.writes_per_second,
        "lagging_replicas": one.lag.as_ref().map(|lag| lag.replicas),
        "lag_entries_max": one.lag.as_ref().map(|lag| lag.entries_max),
        "lag_seconds_max": one.lag.as_ref().map(|lag| lag.time_max.as_secs()),
        "refuses_writes": (one.writes == WriteState::Refuses).then_some("disk"),
    });
    if let (Some(document), Value::Object(more)) = (document.as_object_mut(), more) {
        document.extend(more);
    }
    document
}

/// The offset of a clock from the median, such as `+0.002 s`.
fn offset(micros: i64) -> String {
    let sign = if micros < 0 { '-' } else { '+' };
    let millis = micros.unsigned_abs() / 1_000;
    format!("{sign}{}.{:03} s", millis / 1_000, millis % 1_000)
}

/// A duration in milliseconds, such as `1.4 ms`.
pub(crate) fn delay(delay: Duration) -> String {
    let tenths = delay.as_micros() / 100;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}

/// A part of a resource, and all of it.
pub(super) fn part(part: u64, all: u64, show: impl Fn(u64) -> String) -> String {
    format!("{}/{}", show(part), show(all))
}

/// The replicas that are far behind, such as `2 by up to 41 s`.
pub(super) fn lag(lag: &ReplicaLag) -> String {
    match lag.replicas {
        0 => "none".to_owned(),
        replicas => format!("{replicas} by up to {} s", lag.time_max.as_secs()),
    }
}

/// How long ago, in the largest whole unit.
pub(super) fn ago(ago: Duration) -> String {
    match ago.as_secs() {
        seconds @ 0..60 => format!("{seconds} s ago"),
        seconds @ 60..3_600 => format!("{} min ago", seconds / 60),
        seconds @ 3_600..86_400 => format!("{} h ago", seconds / 3_600),
        seconds => format!("{} d ago", seconds / 86_400),
    }
}

/// The size of the scan cache, and the share of reads by key that it answered since the server started.
fn cached_rows(cache: &ScanCacheState) -> String {
    match (cache.capacity_bytes, cache.hit_percent()) {
        (0, _) => "off".to_owned(),
        (_, None) => readable_bytes(cache.bytes),
        (_, Some(percent)) => format!("{}, {percent} % hits", readable_bytes(cache.bytes)),
    }
}

/// When the stores were last read as a whole, at which rate they are read, and the damaged replicas that stay.
pub(super) fn scrubbed(scrub: &ScrubState) -> String {
    let when = or_dash(scrub.finished_ago.map(ago));
    let when = format!("{when}, {}/s", readable_bytes(scrub.bytes_per_second));
    if scrub.kept == 0 { when } else { format!("{when}, {} damaged", scrub.kept) }
}

/// As text, because not every JSON parser reads 64-bit numbers.
fn incarnation(number: u64) -> String {
    format!("{number:016x}")
}

/// The value, or a dash when it is unknown.
pub(super) fn or_dash(known: Option<impl fmt::Display>) -> String {
    known.map_or_else(|| "-".to_owned(), |known| known.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_cache_is_shown_with_its_hit_rate() {
        let cache = |capacity_bytes, hits| ScanCacheState {
            capacity_bytes,
            hits,
            misses: hits,
            bytes: 5 << 20,
            ..ScanCacheState::default()
        };
        assert_eq!(cached_rows(&cache(0, 0)), "off");
        assert_eq!(cached_rows(&cache(32 << 20, 0)), readable_bytes(5 << 20));
        assert_eq!(cached_rows(&cache(32 << 20, 7)), format!("{}, 50 % hits", readable_bytes(5 << 20)));
    }
}

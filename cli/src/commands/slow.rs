//! `ebla slow` and `ebla trace`: what slow, failed and sampled operations waited for.

mod waterfall;

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_client::Admin;
use ebla_client::waterfall::{code_name, process_name, trace_id, traces};
use ebla_model::Micros;
use ebla_proto::trace::{Follower, ListReply, ListRequest, Record};
use ebla_runtime::Runtime;
use ebla_runtime::units::HumanDuration;
use serde_json::{Value, json};

use self::waterfall::waterfall;
use super::{ClusterArguments, connectivity};
use crate::output::{self, Failure, Format};

/// Show slow operations of all servers and of the master, and where the time of each went
///
/// An operation is slow if it takes longer than --slow-ms of its server (100 ms); with --slow-p99 also if it takes longer than 99 of 100 recent ones
/// of its method. Each server keeps the last 1,000 and 250; no collector is needed. The stages are explained in docs/operate/observe.md.
///
/// Examples:
///   ebla slow
///   ebla slow --table web --since 10m
///   ebla slow --failed -o json
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Slow {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// What is shown
    #[command(flatten)]
    pub selection: Selection,
    /// How many records, the newest ones
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub number: u32,
    /// Only operations that ended within this time, such as 10m [default: all that the servers have]
    #[arg(long, value_name = "DURATION")]
    pub since: Option<HumanDuration>,
    /// Also operations that failed and were not slow
    #[arg(long)]
    pub failed: bool,
}

/// Which operations are shown.
#[derive(Clone, Debug, clap::Args)]
pub struct Selection {
    /// Only those of this server
    #[arg(long, value_name = "SERVER")]
    pub server: Option<u64>,
    /// Only those of this table
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
}

/// Traces of operations
///
/// Example:
///   ebla trace tail
#[derive(Clone, Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Trace {
    /// Follow slow, failed and sampled operations, until Ctrl-C
    ///
    /// Servers sample one trace of a thousand, unless --trace-sample says otherwise, and those that a client marks as sampled (traceparent).
    ///
    /// Examples:
    ///   ebla trace tail
    ///   ebla trace tail --table web -o ndjson
    #[command(verbatim_doc_comment)]
    Tail(Tail),
}

/// Arguments of `ebla trace tail`.
#[derive(Clone, Debug, clap::Args)]
pub struct Tail {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// What is shown
    #[command(flatten)]
    pub selection: Selection,
}

/// Time between two requests of `ebla trace tail`.
const PERIOD: Duration = Duration::from_secs(1);
/// How far back each of them looks, because the clocks of servers differ. What was shown is not shown again.
const OVERLAP: Duration = Duration::from_secs(10);

/// Shows slow operations.
///
/// # Errors
/// An error from the cluster; `PermissionDenied` for a table that the caller may not see.
pub async fn run(slow: Slow, runtime: Runtime) -> Result<(), Failure> {
    let Slow { cluster, selection, number, since, failed } = slow;
    let now = runtime.clock.wall();
    let since_micros = since.map_or(0, |since| before(now, since.get()));
    let request = ListRequest { failed, limit: number, ..selection.request(&cluster, since_micros)? };
    let ListReply { records, unreachable } = admin(&cluster, &runtime).await?.traces(request).await?;
    match cluster.output {
        Format::Json => output::print_json(&json!(records.iter().map(to_json).collect::<Vec<_>>())),
        Format::Table if records.is_empty() => output::note("no slow operations"),
        Format::Table => {
            let all: Vec<_> = traces(records).iter().map(waterfall).collect();
            output::print(&all.join("\n"));
        }
    }
    for missing in unreachable {
        output::note(&format!("the records of {} are missing: {}", process_name(missing.server), missing.message));
    }
    Ok(())
}

/// Runs a command for traces.
///
/// # Errors
/// As [`run`].
pub async fn trace(command: Trace, runtime: Runtime) -> Result<(), Failure> {
    let Trace::Tail(Tail { cluster, selection }) = command;
    let admin = admin(&cluster, &runtime).await?;
    let mut seen = Seen::default();
    let mut since = runtime.clock.wall().get();
    while !output::is_closed() {
        let request = ListRequest { sampled: true, failed: true, ..selection.request(&cluster, since)? };
        let asked_at = runtime.clock.wall();
        let new = seen.new_among(admin.traces(request).await?.records);
        for trace in traces(new) {
            match cluster.output {
                Format::Json => trace.iter().for_each(|(_depth, record)| output::print_json(&to_json(record))),
                Format::Table => output::print(&format!("{}\n", waterfall(&trace))),
            }
        }
        since = since.max(before(asked_at, OVERLAP));
        tokio::time::sleep(PERIOD).await;
    }
    Ok(())
}

impl Selection {
    fn request(&self, cluster: &ClusterArguments, since_micros: i64) -> Result<ListRequest, Failure> {
        let table = self.table.as_deref().map(|table| cluster.table(table)).transpose()?;
        Ok(ListRequest {
            since_micros,
            server: self.server.unwrap_or_default(),
            table: table.map(|table| table.as_str().to_owned()).unwrap_or_default(),
            ..ListRequest::default()
        })
    }
}

/// The operations that were shown.
#[derive(Debug, Default)]
struct Seen(BTreeSet<(u64, u64)>);

impl Seen {
    /// Those of `records` that were not in the last list. Its size is bounded by that of a list.
    fn new_among(&mut self, records: Vec<Record>) -> Vec<Record> {
        let id = |record: &Record| (record.server, record.span);
        let before = std::mem::replace(&mut self.0, records.iter().map(id).collect());
        records.into_iter().filter(|record| !before.contains(&id(record))).collect()
    }
}

async fn admin(cluster: &ClusterArguments, runtime: &Runtime) -> Result<Admin, Failure> {
    let address = connectivity::first_reachable(&cluster.addresses()?, runtime).await?;
    cluster.admin_at(&address, runtime)
}

/// A time before another one, in microseconds since 1970.
fn before(now: Micros, time: Duration) -> i64 {
    now.get().saturating_sub(i64::try_from(time.as_micros()).unwrap_or(i64::MAX)).max(0)
}

/// A record, as `ebla slow` shows it.
pub(super) fn to_json(record: &Record) -> Value {
    let id = |id: u64| (id > 0).then_some(id);
    let span = |id: u64| (id > 0).then(|| format!("{id:016x}"));
    let stage = |time: &ebla_proto::trace::StageTime| {
        json!({
            "stage": time.stage,
            "begin_micros": time.begin_micros,
            "end_micros": time.end_micros,
            "total_micros": time.total_micros,
            "count": time.count,
        })
    };
    let follower = |follower: &Follower| {
        let measured = |micros: u64| follower.is_measured.then_some(micros);
        json!({
            "server": follower.server,
            "sent_micros": follower.sent_micros,
            "answered_micros": follower.answered_micros,
            "queue_micros": measured(follower.queue_micros),
            "sync_micros": measured(follower.sync_micros),
            "total_micros": measured(follower.total_micros),
        })
    };
    let batch = record.batch.as_ref();
    json!({
        "trace": trace_id(record),
        "span": span(record.span),
        "parent": span(record.parent),
        "kept": record.kept,
        "origin": record.origin,
        "server": id(record.server),
        "method": record.method,
        "code": code_name(record.code),
        "table": Some(&record.table).filter(|table| !table.is_empty()),
        "table_id": id(record.table_id),
        "tablet": id(record.tablet),
        "group": id(record.group),
        "leader": id(record.leader),
        "batch": batch.map(|batch| json!({"term": batch.term, "index": batch.index, "writes": batch.writes})),
        "began_micros": record.began_micros,
        "elapsed_micros": record.elapsed_micros,
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
        "stages": record.stages.iter().map(stage).collect::<Vec<_>>(),
        "followers": record.followers.iter().map(follower).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(server: u64, span: u64) -> Record {
        Record { server, span, ..Record::default() }
    }

    #[test]
    fn an_operation_is_shown_once() {
        let mut seen = Seen::default();
        assert_eq!(seen.new_among(vec![record(1, 7), record(2, 7)]).len(), 2);
        assert_eq!(seen.new_among(vec![record(1, 7), record(2, 7), record(1, 8)]), [record(1, 8)]);
        assert_eq!(seen.new_among(vec![]), []);
        assert!(seen.0.is_empty());
    }

    #[test]
    fn json_has_names_for_numbers() {
        let shown = to_json(&Record { code: 14, trace_low: 255, table_id: 3, ..record(1, 7) });
        assert_eq!(shown["trace"], "000000000000000000000000000000ff");
        assert_eq!((&shown["code"], &shown["span"]), (&json!("UNAVAILABLE"), &json!("0000000000000007")));
        assert_eq!((&shown["parent"], &shown["table"], &shown["table_id"]), (&Value::Null, &Value::Null, &json!(3)));
    }
}

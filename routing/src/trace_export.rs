//! The export of records to a collector, by the protocol of OpenTelemetry (OTLP) over gRPC.
//!
//! Each record becomes a span, with a child span for each of its stages. Records wait in a bounded queue; a task sends them in batches. What the
//! collector does not take within a few seconds is dropped and counted: no operation ever waits for a collector.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_proto::otlp::trace_service_client::TraceServiceClient;
use ebla_proto::otlp::{
    AnyValue, ExportTraceServiceRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span, SpanStatus,
    any_value, span, span_status,
};
use ebla_proto::status::CODE_NAMES;
use ebla_runtime::Runtime;
use ebla_runtime::trace::{
    FollowerTime, FollowerWork, MASTER, Origin, Record, RecordQueue, Recorder, Sampling, StageTime,
};
use tonic::transport::Channel;
use tracing::{info, warn};

/// The records that wait for their export. More are dropped.
const QUEUED_MAX: usize = 4_096;
/// The records of one message.
const BATCH_MAX: usize = 256;
/// How long a record waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// The time limit of an export.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The address of a collector: `http://HOST:PORT`, or `https://HOST:PORT` with the certificates of `--tls-ca`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorAddress {
    address: String,
    security: CollectorSecurity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CollectorSecurity {
    Plain,
    Tls,
}

impl FromStr for CollectorAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (security, rest) = match text.split_once("://") {
            Some(("http", rest)) => (CollectorSecurity::Plain, rest),
            Some(("https", rest)) => (CollectorSecurity::Tls, rest),
            Some((scheme, _rest)) => {
                return Err(format!("{scheme} is no protocol of OTLP over gRPC: give http://HOST:PORT"));
            }
            None => (CollectorSecurity::Plain, text),
        };
        let address = rest.trim_end_matches('/');
        let is_valid = address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if is_valid {
            Ok(Self { address: address.to_owned(), security })
        } else {
            Err(format!(
                "{text} is not the address of a collector: give http://HOST:PORT, such as http://127.0.0.1:4317"
            ))
        }
    }
}

impl fmt::Display for CollectorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.security {
            CollectorSecurity::Plain => "http",
            CollectorSecurity::Tls => "https",
        };
        write!(f, "{scheme}://{}", self.address)
    }
}

/// Exports the records of `recorder` that are sampled or slow, until the tasks of `runtime` stop. Only the first call for a recorder has an effect.
///
/// # Errors
/// `InvalidArgument` for a collector with `https` when this process has no certificates of TLS: the records would be sent in clear text.
pub fn start_trace_export(
    recorder: &Arc<Recorder>,
    collector: &CollectorAddress,
    runtime: &Runtime,
) -> Result<(), Error> {
    if collector.security == CollectorSecurity::Tls && runtime.net.tls().is_none() {
        let message = format!(
            "--otlp {collector} needs TLS: give --tls-ca, --tls-cert and --tls-key, or an address with http://"
        );
        return Err(Error::invalid(message));
    }
    let Some(queue) = recorder.export_queue(QUEUED_MAX) else { return Ok(()) };
    let net = match collector.security {
        CollectorSecurity::Plain => runtime.net.without_tls(),
        CollectorSecurity::Tls => runtime.net.clone(),
    };
    let client = TraceServiceClient::new(net.channel(&collector.address));
    let work = export(Arc::clone(recorder), queue, client, collector.clone());
    runtime.tasks.spawn_until_stopped("trace-export", work);
    Ok(())
}

async fn export(
    recorder: Arc<Recorder>,
    mut queue: RecordQueue,
    mut client: TraceServiceClient<Channel>,
    collector: CollectorAddress,
) {
    let mut is_failing = false;
    while let Some(records) = next_batch(&mut queue).await {
        let count = u64::try_from(records.len()).unwrap_or(u64::MAX);
        let sent = tokio::time::timeout(TIMEOUT, client.export(request(&records))).await;
        let failure = match sent {
            Ok(Ok(reply)) => reply
                .into_inner()
                .partial_success
                .filter(|partial| partial.rejected_spans > 0)
                .map(|partial| format!("it rejected {} spans: {}", partial.rejected_spans, partial.error_message)),
            Ok(Err(status)) => Some(status.to_string()),
            Err(_elapsed) => Some("it did not answer in time".to_owned()),
        };
        match failure {
            None => {
                recorder.counts().exported.add(count);
                if std::mem::take(&mut is_failing) {
                    info!(%collector, "the collector of traces takes records again");
                }
            }
            Some(error) => {
                recorder.counts().dropped.add(count);
                if !std::mem::replace(&mut is_failing, true) {
                    warn!(%collector, error, "the collector of traces does not take records; they are dropped");
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// The next records, at least one; `None` when there will be no more.
async fn next_batch(queue: &mut RecordQueue) -> Option<Vec<Arc<Record>>> {
    let mut records = Vec::with_capacity(BATCH_MAX);
    records.push(queue.recv().await?);
    let more = async {
        while records.len() < BATCH_MAX {
            match queue.recv().await {
                Some(record) => records.push(record),
                None => return,
            }
        }
    };
    // What is gathered by then is sent.
    let _elapsed = tokio::time::timeout(GATHER, more).await;
    Some(records)
}

fn request(records: &[Arc<Record>]) -> ExportTraceServiceRequest {
    let server = records.first().map(|record| record.server).unwrap_or_default();
    let instance = if server == MASTER { "master".to_owned() } else { server.to_string() };
    let resource = Resource { attributes: vec![text("service.name", "ebla"), text("service.instance.id", &instance)] };
    let scope = Scope { name: "ebla".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = records.iter().flat_map(|record| spans(record)).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }
}

/// The span of a record, and those of its stages.
fn spans(record: &Record) -> Vec<Span> {
    let began = u64::try_from(record.began.get()).unwrap_or_default();
    let at = |offset: Duration| {
        let micros = began.saturating_add(u64::try_from(offset.as_micros()).unwrap_or(u64::MAX));
        micros.saturating_mul(1_000)
    };
    let trace_id = Bytes::copy_from_slice(&record.trace.get().to_be_bytes());
    let span_id = |id: u64| Bytes::copy_from_slice(&id.to_be_bytes());
    let own = Span {
        trace_id: trace_id.clone(),
        span_id: span_id(record.span.get()),
        parent_span_id: record.parent.map(|parent| span_id(parent.get())).unwrap_or_default(),
        name: record.method.clone().into_owned(),
        kind: span::Kind::Server.into(),
        start_time_unix_nano: at(Duration::ZERO),
        end_time_unix_nano: at(record.elapsed),
        attributes: attributes(record),
        status: Some(status(record)),
        flags: u32::from(record.sampling == Sampling::Sampled),
    };
    let stage = |time: &StageTime| Span {
        trace_id: trace_id.clone(),
        // The ids of stages only need to differ from each other within the trace.
        span_id: span_id(record.span.get() ^ (u64::from(time.stage.number() + 1) << 56)),
        parent_span_id: span_id(record.span.get()),
        name: time.stage.name().to_owned(),
        kind: span::Kind::Internal.into(),
        start_time_unix_nano: at(time.begin),
        end_time_unix_nano: at(time.end),
        attributes: vec![
            number("ebla.stage.count", time.count.into()),
            number("ebla.stage.total_micros", u64::try_from(time.total.as_micros()).unwrap_or(u64::MAX)),
        ],
        status: None,
        flags: own.flags,
    };
    // The other side of the call is not in this trace: followers report what they did in their replies.
    let follower = |(number, time): (u64, &FollowerTime)| Span {
        trace_id: trace_id.clone(),
        span_id: span_id(record.span.get() ^ ((FIRST_FOLLOWER + number) << 56)),
        parent_span_id: span_id(record.span.get()),
        name: "Append".to_owned(),
        kind: span::Kind::Client.into(),
        start_time_unix_nano: at(time.sent),
        end_time_unix_nano: at(time.answered),
        attributes: follower_attributes(time),
        status: None,
        flags: own.flags,
    };
    let stages: Vec<_> = record.stages.iter().map(stage).collect();
    let followers: Vec<_> = (0..).zip(&record.followers).map(follower).collect();
    std::iter::once(own.clone()).chain(stages).chain(followers).collect()
}

/// The first number behind those of stages, for the ids of the spans of followers.
const FIRST_FOLLOWER: u64 = 128;

fn follower_attributes(time: &FollowerTime) -> Vec<KeyValue> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let work = |work: FollowerWork| {
        [("queue", work.queue), ("sync", work.sync), ("total", work.total)]
            .map(|(name, time)| number(&format!("ebla.follower.{name}_micros"), micros(time)))
    };
    let server = number("ebla.follower", time.server.get());
    std::iter::once(server).chain(time.work.into_iter().flat_map(work)).collect()
}

fn status(record: &Record) -> SpanStatus {
    match record.outcome.code() {
        0 => SpanStatus { code: span_status::Code::Ok.into(), ..SpanStatus::default() },
        code => SpanStatus {
            message: CODE_NAMES.get(usize::from(code)).copied().unwrap_or_default().to_owned(),
            code: span_status::Code::Error.into(),
        },
    }
}

/// What identifies the operation: numbers and the name of the table, no keys.
fn attributes(record: &Record) -> Vec<KeyValue> {
    let mut attributes = vec![
        text("rpc.system", "grpc"),
        text("rpc.method", &record.method),
        number("rpc.grpc.status_code", record.outcome.code().into()),
        number("ebla.server", record.server.get()),
        number("ebla.request_bytes", record.request_bytes),
        number("ebla.response_bytes", record.response_bytes),
    ];
    if record.origin == Origin::Data {
        attributes.push(text("rpc.service", "google.bigtable.v2.Bigtable"));
    }
    if let Some(table) = &record.table {
        attributes.push(text("ebla.table", table.as_str()));
    }
    if let Some(tablet) = record.tablet {
        attributes.push(number("ebla.table_id", tablet.table.get()));
        attributes.push(number("ebla.tablet", tablet.tablet.get()));
        attributes.push(number("ebla.group", tablet.group.get()));
    }
    if let Some(leader) = record.leader {
        attributes.push(number("ebla.leader", leader.get()));
    }
    if let Some(batch) = record.batch {
        attributes.push(number("ebla.batch.term", batch.term.get()));
        attributes.push(number("ebla.batch.index", batch.index.get()));
        attributes.push(number("ebla.batch.writes", batch.writes.into()));
    }
    attributes
}

fn text(key: &str, value: &str) -> KeyValue {
    key_value(key, any_value::Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    key_value(key, any_value::Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn key_value(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[cfg(test)]
mod tests;

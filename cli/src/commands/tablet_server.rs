//! `ebla tablet-server`: a tablet server as a separate process.

use std::path::PathBuf;
use std::time::Duration;

use ebla_console::AccessMode;
use ebla_model::access::Member;
use ebla_model::zone::Zone;
use ebla_runtime::Runtime;
use ebla_runtime::trace::{SampleRate, SlowPercentile, TraceOptions};
use ebla_runtime::units::ByteSize;
use ebla_tablet_server::{
    AccessOptions, AuditOptions, AuditRotation, AuditedData, CollectorAddress, IdentityLimits, ServerConfig,
    ServerOptions, TokenOptions,
};
use serde_json::json;

use super::console::{ConsoleArguments, ConsoleParts};
use super::heat_map::HeatMapArgument;
use super::mt;
use super::node::{Announcement, NodeArguments};
use crate::output::Failure;
use crate::process::{Signals, Users};
use crate::splits::SplitArguments;

/// Time for a serving server to register before it reports that it is ready; it also serves without etcd.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the tasks of a server that failed to start to stop.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Run a tablet server: it serves the Bigtable API and stores replicas of tablets.
///
/// On SIGTERM it transfers its tablets to other servers and stops gracefully. On a second SIGTERM it stops at once, like
/// kill -9, which loses no data either.
///
/// Example:
///   ebla tablet-server --etcd http://127.0.0.1:2379 --listen 127.0.0.1:8086 --data ./server-1
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct TabletServer {
    /// Options of every process of a cluster
    #[command(flatten)]
    pub node: NodeArguments,
    /// When tablets split
    #[command(flatten)]
    pub splits: SplitArguments,
    /// Key heat
    #[command(flatten)]
    pub heat: HeatMapArgument,
    /// Disk space below which writes that store cells are refused: bytes, or a number with K, M or G [default: 2 GiB, or a tenth
    /// of a file system below 20 GiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub disk_reserve: Option<ByteSize>,
    /// Memory for rows that are read again and again: bytes, or a number with K, M or G; 0: none [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_or_zero)]
    pub scan_cache: Option<ByteSize>,
    /// Memory of the server for locality groups in memory: bytes, or a number with K, M or G [default: 256 MiB]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    pub memory_groups: Option<ByteSize>,
    /// Zone of the server, such as its rack or data centre: no two replicas of a tablet are in one zone while there are at least as many
    /// zones as replicas [default: each server is a zone of its own]
    #[arg(long, value_name = "NAME", env = "EBLA_ZONE")]
    pub zone: Option<Zone>,
    /// Traces
    #[command(flatten)]
    pub traces: TraceArguments,
    /// Access control
    #[command(flatten)]
    pub access: AccessArguments,
    /// The web console
    #[command(flatten)]
    pub console: ConsoleArguments,
}

/// Options of traces.
#[derive(Clone, Debug, clap::Args)]
pub struct TraceArguments {
    /// Milliseconds from which on an operation is slow: `ebla slow` shows it with what it waited for; 0: every one
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    pub slow_ms: u64,
    /// An operation counts as slow also when it takes longer than 99 of 100 recent ones of its method, up to 5 per second
    #[arg(long)]
    pub slow_p99: bool,
    /// Fraction of traces that are sampled, from 0 (none) to 1 (all), of calls whose client does not decide (traceparent)
    #[arg(long, value_name = "FRACTION", default_value_t = SampleRate::DEFAULT)]
    pub trace_sample: SampleRate,
    /// Collector of OpenTelemetry that gets sampled and slow operations (OTLP over gRPC): http://HOST:PORT, or https://HOST:PORT with --tls-ca
    /// [default: none]
    #[arg(long, value_name = "URL", env = "EBLA_OTLP")]
    pub otlp: Option<CollectorAddress>,
}

impl TraceArguments {
    /// What the server records.
    pub fn options(&self) -> TraceOptions {
        TraceOptions {
            slow: Duration::from_millis(self.slow_ms),
            sample: self.trace_sample,
            percentile: if self.slow_p99 { SlowPercentile::P99 } else { SlowPercentile::Off },
        }
    }
}

/// Options of access control. It is on if `--token-keys` is given.
#[derive(Clone, Debug, clap::Args)]
pub struct AccessArguments {
    /// File with the public keys of the issuer of tokens, a JWK Set or PEM: turns access control on. Then each call of the public API
    /// needs a token (authorization: Bearer JWT). The file is read again when it changes
    #[arg(long, value_name = "FILE", env = "EBLA_TOKEN_KEYS", requires_all = ["token_issuer", "token_audience", "administrators"])]
    pub token_keys: Option<PathBuf>,
    /// Issuer of tokens: their `iss`
    #[arg(long, value_name = "URL", env = "EBLA_TOKEN_ISSUER", requires = "token_keys")]
    pub token_issuer: Option<String>,
    /// Audience of tokens for this cluster: their `aud`
    #[arg(long, value_name = "NAME", env = "EBLA_TOKEN_AUDIENCE", requires = "token_keys")]
    pub token_audience: Option<String>,
    /// Callers who may do everything, separated by commas: subject:SUB, user:EMAIL, group:NAME or certificate:NAME
    #[arg(
        long,
        value_name = "IDENTITY,…",
        env = "EBLA_ADMINISTRATORS",
        value_delimiter = ',',
        requires = "token_keys"
    )]
    pub administrators: Vec<Member>,
    /// File to which records of admin calls and refusals are appended [default: the log of the process, target ebla::audit]
    #[arg(long, value_name = "FILE", requires = "token_keys")]
    pub audit_log: Option<PathBuf>,
    /// Size of the audit log, such as 100M, at which the file becomes FILE.1, FILE.1 becomes FILE.2, and so on; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "0", requires = "audit_log", value_parser = crate::size::parse_or_zero)]
    pub audit_log_bytes: ByteSize,
    /// How many earlier files of the audit log are kept, with --audit-log-bytes; older ones are deleted
    #[arg(long, value_name = "NUMBER", default_value = "9", requires = "audit_log", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub audit_log_files: u32,
    /// Record all calls of the data API too, not only refused ones
    #[arg(long, requires = "token_keys")]
    pub audit_data: bool,
    /// Calls per second of one identity on this server; 0: no limit. Administrators have no limits
    #[arg(long, value_name = "NUMBER", default_value = "0", requires = "token_keys")]
    pub identity_requests: u64,
    /// Bytes of requests and responses per second of one identity on this server, such as 10M; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "0", requires = "token_keys", value_parser = crate::size::parse_or_zero)]
    pub identity_bytes: ByteSize,
    /// Calls at once of one identity on this server; 0: no limit
    #[arg(long, value_name = "NUMBER", default_value = "0", requires = "token_keys")]
    pub identity_streams: u64,
}

impl AccessArguments {
    /// The options of the server; `None`: no access control.
    fn options(&self) -> Option<AccessOptions> {
        let (keys, issuer, audience) =
            (self.token_keys.clone()?, self.token_issuer.clone()?, self.token_audience.clone()?);
        let data = if self.audit_data { AuditedData::All } else { AuditedData::Refusals };
        let file_bytes = self.audit_log_bytes.bytes();
        let rotation = (file_bytes > 0).then_some(AuditRotation { file_bytes, files_kept: self.audit_log_files });
        Some(AccessOptions {
            tokens: TokenOptions { keys, issuer, audience },
            administrators: self.administrators.clone(),
            audit: AuditOptions { file: self.audit_log.clone(), rotation, data },
            limits: IdentityLimits {
                requests: self.identity_requests,
                bytes: self.identity_bytes.bytes(),
                streams: self.identity_streams,
            },
        })
    }
}

/// Runs until Ctrl-C or SIGTERM. Ready means that it serves, and is registered if etcd is available.
///
/// # Errors
/// The reason why it cannot start or cannot join the cluster, and what to do.
pub async fn run(server: TabletServer, runtime: Runtime) -> Result<(), Failure> {
    let runtime = server.node.connections.limit(runtime);
    let mut signals = Signals::watch()?;
    let chubby = server.node.prepare(&runtime).await?;
    let monitoring = server.node.monitor("tablet-server", &runtime).await?;
    monitoring.readiness.refuse("the server is opening its stores, or waits for Chubby to assign its id");
    let mut options = ServerOptions { lease_ttl: server.node.lease_ttl(), ..ServerOptions::server() };
    server.splits.apply_to(&mut options);
    options.heat = server.heat.heat_map;
    options.disk_reserve = server.disk_reserve;
    options.zone = server.zone;
    options.traces = server.traces.options();
    options.collector = server.traces.otlp;
    options.access = server.access.options();
    let users = if options.access.is_some() { Users::Authenticated } else { Users::Anonymous };
    options.store.resize_scan_cache(server.scan_cache.map(ByteSize::bytes));
    if let Some(size) = server.memory_groups {
        options.store.memory_group_bytes = usize::try_from(size.bytes()).unwrap_or(usize::MAX);
    }
    let config = ServerConfig {
        data_dir: server.node.data.clone(),
        listen: server.node.listen.clone(),
        advertise: server.node.advertise.clone(),
        options,
    };
    // The server locks its folder itself.
    let start = ebla_tablet_server::TabletServer::start(config, chubby, runtime.clone());
    let running = match signals.unless_signalled(start).await {
        Some(Ok(running)) => running,
        unfinished => {
            // Tasks that a partly started server has left running.
            runtime.tasks.stop(STOP_GRACE).await;
            return unfinished.map_or(Ok(()), |failed| failed.map(drop)).map_err(Failure::from);
        }
    };
    let (address, id) = (running.address(), running.id());
    monitoring.register(running.metrics());
    let check = running.readiness();
    monitoring.readiness.decide_by(move || check());
    let parts = ConsoleParts {
        role: "tablet-server",
        server: &running,
        access: if users == Users::Authenticated { AccessMode::Tokens } else { AccessMode::Open },
        mounttable: server.node.publish_to.iter().map(|root| mt::rooted(root)).collect(),
    };
    monitoring.add_console(server.console.site(parts, &runtime));
    let announcement = Announcement {
        process: format!("tablet server {id}"),
        address,
        http: monitoring.address(),
        name: format!("ebla/tablet-servers/{id}"),
        ready: json!({"role": "tablet-server", "bigtable": address, "pid": std::process::id(), "server": id.get()}),
        users,
    };
    let registration = async {
        // A server that is not registered in time serves too.
        let _elapsed = tokio::time::timeout(REGISTRATION_TIMEOUT, running.ready()).await;
    };
    let mut published = None;
    let serve = server.node.serve(announcement, registration, &mut published, &runtime);
    let served = tokio::select! {
        served = signals.unless_signalled(serve) => served.unwrap_or(Ok(())),
        refused = running.registration_refused() => Err(refused.into()),
        failed = running.failed() => Err(failed.into()),
    };
    monitoring.stopping();
    eprintln!("stopping: transferring leaderships, draining, flushing");
    let graceful = async {
        // First, so that no client is directed here any more.
        if let Some(publisher) = published {
            publisher.shutdown().await;
        }
        running.drain().await;
        running.stop().await;
    };
    signals.stop(graceful).await;
    served
}

//! `ebla mounttable`: a process that serves a mounttable.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use ebla_client::Client;
use ebla_model::schema::TableName;
use ebla_mounttable_server::server::{Server, ServerConfig, StartError, Storage};
use ebla_mounttable_server::service::identity::AuthMethod;
use ebla_mounttable_server::service::key_files::KeyFiles;
use ebla_mounttable_tree::file;
use ebla_mounttable_tree::identity::BlessingPattern;
use ebla_mounttable_tree::outage::Credit;
use ebla_mounttable_tree::store::bigtable::BigtableStore;
use ebla_mounttable_tree::store::cache;
use ebla_mounttable_tree::table::TableOptions;
use ebla_runtime::Runtime;
use serde_json::json;

use super::mt::to_failure;
use super::node::ConnectionArguments;
use crate::address::Addresses;
use crate::config::ConfigArguments;
use crate::output::{self, Failure};
use crate::process::{self, Exposure, Listen, Monitoring, Signals};

/// The superuser of the mounttable of [`Mounttable::beside`], which accepts any claimed identity.
const OPERATOR: &str = "admin";
/// Pause between two attempts to start.
const START_PAUSE: Duration = Duration::from_millis(500);

/// TableOptions that select the table that stores a mounttable.
#[derive(Clone, Debug, clap::Args)]
pub struct TableArguments {
    /// Project of the table
    #[arg(long, env = "EBLA_PROJECT", default_value = "dev")]
    pub project: String,
    /// Instance of the table
    #[arg(long, env = "EBLA_INSTANCE", default_value = "dev")]
    pub instance: String,
    /// Name of the table; a second table, NAME-counters, holds counters
    #[arg(long, value_name = "NAME", default_value = "mounttable")]
    pub table: String,
}

impl TableArguments {
    /// The full name of the table.
    ///
    /// # Errors
    /// Names that the API does not allow.
    pub fn name(&self) -> Result<TableName, Failure> {
        Ok(TableName::from_parts(&self.project, &self.instance, &self.table)?)
    }
}

/// Serve names: a mounttable that is stored in a cluster, or in memory
///
/// Examples:
///   ebla mounttable --cluster 127.0.0.1:8086,127.0.0.1:8087 --listen 127.0.0.1:8101 --insecure-dev-identity
///   ebla mounttable --in-memory --http-listen 127.0.0.1:8180 --insecure-dev-identity
///
/// Any number of processes may serve the same table. A missing table is created. With --insecure-dev-identity its root is
/// open to all callers; otherwise it is closed until a permissions file or a superuser opens it.
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Mounttable {
    /// Configuration file
    #[command(flatten)]
    pub config: ConfigArguments,
    /// Addresses of tablet servers of the cluster that stores the table, separated by commas: tried in turn at the start, so
    /// give several. Later all servers of the cluster are known
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "in_memory", conflicts_with = "in_memory")]
    pub cluster: Option<Addresses>,
    /// Store nothing: mounts are lost when the process stops
    #[arg(long)]
    pub in_memory: bool,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", value_parser = process::host_port, default_value = "127.0.0.1:8101")]
    pub listen: String,
    /// Where to serve names as JSON over HTTP too, described by /v1/openapi.json; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", value_parser = process::host_port)]
    pub http_listen: Option<String>,
    /// Where to serve metrics, health and readiness over HTTP: /metrics, /healthz, /readyz, /debug/; port 0 takes a free one [default: no
    /// such port]
    #[arg(long, value_name = "HOST:PORT", env = "EBLA_HTTP", value_parser = process::host_port)]
    pub http: Option<String>,
    /// Table of the cluster
    #[command(flatten)]
    pub table: TableArguments,
    /// Tablets that a new table starts with
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub tablets: u16,
    /// JSON file with nodes and their permissions for a new table; `ebla mt admin setup FILE` applies one to an existing table
    #[arg(long, value_name = "FILE")]
    pub permissions_file: Option<PathBuf>,
    /// Pattern of callers who may do everything, whatever the permissions say; repeat for several
    #[arg(long, value_name = "PATTERN")]
    pub superuser: Vec<String>,
    /// File with the public keys of an issuer of tokens: a JWK Set (RFC 7517). With it callers are authenticated by their
    /// tokens. The file is read again when it changes. Repeat for several issuers: the first file belongs to the first --jwt-issuer, and so on
    #[arg(long, value_name = "FILE", requires_all = ["jwt_issuer", "jwt_audience"])]
    pub jwt_keys: Vec<PathBuf>,
    /// Trusted issuer of tokens: their `iss`. Without its scheme it is the first part of callers' names: ISSUER:u:SUBJECT,
    /// ISSUER:e:EMAIL (if `email_verified` is true), ISSUER:g:GROUP. Repeat for several
    #[arg(long, value_name = "URL", requires = "jwt_keys")]
    pub jwt_issuer: Vec<String>,
    /// Audience that tokens for this table must have: their `aud`
    #[arg(long, value_name = "NAME", requires = "jwt_keys")]
    pub jwt_audience: Option<String>,
    /// Believe the identity that callers claim. Without this and without --jwt-keys every call is refused
    #[arg(long, conflicts_with = "jwt_keys")]
    pub insecure_dev_identity: bool,
    /// Most nodes that a user may create; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(i64).range(0..))]
    pub max_nodes_per_user: i64,
    /// Most servers that a user may mount; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(i64).range(0..))]
    pub max_servers_per_user: i64,
    /// Seconds before an empty node is deleted
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub gc_grace: u32,
    /// Seconds between two sweeps of the whole table; 0 means never
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    pub sweep_period: u32,
    /// Parts of rows in the cache; 0 means none: every lookup reads the storage
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub cache_rows: usize,
    /// Milliseconds that a cache entry is valid; changes by other processes become visible after at most this time
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub cache_ttl: u32,
    /// Let mounts expire even when a storage outage prevented their renewal
    #[arg(long)]
    pub no_outage_credit: bool,
    /// Threads that serve. One is most efficient: a lookup takes less than two thirds of the processor time then. For more
    /// lookups run more processes or more threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub threads: u16,
    /// File to write when the process is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Listen on addresses other than loopback although there is no TLS
    #[arg(long)]
    pub insecure: bool,
    /// Connections
    #[command(flatten)]
    pub connections: ConnectionArguments,
}

impl Mounttable {
    /// The command with default options for a local cluster, where callers' claimed identities are accepted. `http`: the
    /// address to serve HTTP on.
    ///
    /// # Errors
    /// Usage, when an environment variable has an invalid value.
    pub fn beside(cluster: &str, listen: &str, http: Option<&str>) -> Result<Self, Failure> {
        let command = Self::augment_args(clap::Command::new("mounttable").no_binary_name(true));
        let given = ["--cluster", cluster, "--listen", listen, "--insecure-dev-identity", "--superuser", OPERATOR];
        let given = given.into_iter().chain(http.into_iter().flat_map(|listen| ["--http-listen", listen]));
        let found = command.try_get_matches_from(given).and_then(|matches| Self::from_arg_matches(&matches));
        found.map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Runs until Ctrl-C or SIGTERM. Ready means that the table exists and is served; until then it waits for its cluster.
///
/// # Errors
/// The reason why it cannot start.
pub async fn run(command: Mounttable, runtime: Runtime) -> Result<(), Failure> {
    let runtime = command.connections.limit(runtime);
    let mut signals = Signals::watch()?;
    let listen = [
        ("--listen", Some(&command.listen)),
        ("--http-listen", command.http_listen.as_ref()),
        ("--http", command.http.as_ref()),
    ];
    let listen = listen.into_iter().filter_map(|(option, address)| Some(Listen { option, address: address? }));
    let listen: Vec<_> = listen.collect();
    for Listen { address, .. } in &listen {
        process::check_exposure(address, Exposure::from(command.insecure).with_tls_of(&runtime.net))?;
    }
    if let Some(file) = &command.ready_file {
        process::check_ready(file)?;
    }
    process::check_free(&listen).await?;
    let monitoring = Monitoring::new("mounttable", &runtime).listen(command.http.as_deref(), &runtime).await?;
    monitoring.readiness.refuse("the mounttable waits for its cluster");
    let starting = Box::pin(serve_when_possible(&command, &runtime));
    let Some(server) = signals.unless_signalled(starting).await.transpose()? else {
        return Ok(());
    };
    monitoring.register(&[server.metrics()]);
    monitoring.readiness.decide_by(server.readiness());
    monitoring.name_console(super::console::ELSEWHERE);
    let announced = announce(&command, &server, &monitoring, &runtime);
    if announced.is_ok() {
        signals.next().await;
    }
    monitoring.stopping();
    signals.stop(server.stop()).await;
    announced
}

/// As [`serve`]. While the cluster does not answer, or refuses what it may permit later, the start is repeated and the reason printed on stderr. So a
/// mounttable can be started before its cluster, and before it has its rights there.
///
/// # Errors
/// Those that do not pass while the process waits.
async fn serve_when_possible(command: &Mounttable, runtime: &Runtime) -> Result<Server, Failure> {
    let mut reported = String::new();
    loop {
        let failure = match serve(command, storage(command, runtime), runtime).await {
            Err(failure) if command.cluster.is_some() && may_pass(&failure) => failure,
            outcome => return outcome,
        };
        if reported != failure.message {
            output::note(&format!("waiting for the cluster: {}", failure.message));
            reported = failure.message;
        }
        tokio::time::sleep(START_PAUSE).await;
    }
}

/// Whether a repeated start may succeed: wrong arguments (2) and damage (8) stay as they are.
const fn may_pass(failure: &Failure) -> bool {
    !matches!(failure.code, 2 | 8)
}

/// Reports that the process is ready: writes the ready file and a line on stderr.
fn announce(command: &Mounttable, server: &Server, monitoring: &Monitoring, runtime: &Runtime) -> Result<(), Failure> {
    if let Some(file) = &command.ready_file {
        let mut ready = json!({"role": "mounttable", "address": server.address(), "pid": std::process::id()});
        if let (Some(address), Some(ready)) = (server.http_address(), ready.as_object_mut()) {
            ready.insert("http".to_owned(), address.into());
        }
        if let (Some(address), Some(ready)) = (monitoring.address(), ready.as_object_mut()) {
            ready.insert("metrics".to_owned(), address.into());
        }
        process::write_ready(file, &ready)?;
    }
    let callers = match (command.jwt_keys.is_empty(), command.insecure_dev_identity) {
        (false, _) => "callers are authenticated by tokens",
        (true, true) => "callers are not authenticated",
        (true, false) => "all calls are refused",
    };
    let storage = command.cluster.as_ref().map_or_else(|| "memory".to_owned(), |cluster| cluster.list().join(", "));
    let (scheme, security) = match runtime.net.tls() {
        Some(_tls) => ("https", "TLS"),
        None => ("http", "no TLS"),
    };
    let http = server.http_address().map(|address| format!(" and {scheme}://{address}")).unwrap_or_default();
    eprintln!(
        "ebla {}   mounttable at {}{http}   stored in {storage}   {security}; {callers}",
        env!("CARGO_PKG_VERSION"),
        server.address()
    );
    Ok(())
}

/// The storage that the arguments describe; in a cluster its tables exist afterwards.
async fn storage(command: &Mounttable, runtime: &Runtime) -> Result<Storage, Failure> {
    match &command.cluster {
        Some(cluster) if cluster.list().is_empty() => Err(Failure::usage("--cluster contains no address")),
        Some(cluster) => in_cluster(command, &Client::connect_any(cluster.list(), runtime.clone()).await?).await,
        None => Ok(Storage::Memory),
    }
}

/// The storage in the cluster of `client`; its tables exist afterwards.
///
/// # Errors
/// An invalid name of the table; those of the cluster.
pub async fn in_cluster(command: &Mounttable, client: &Client) -> Result<Storage, Failure> {
    let store = BigtableStore::new(client, &command.table.name()?)?;
    store.create_tables(&client.admin(), command.tablets).await?;
    Ok(Storage::Cluster(Box::new(store)))
}

/// Starts the server that the arguments describe. `storage` is awaited once the arguments are valid.
///
/// # Errors
/// The reason why it cannot start.
pub async fn serve(
    command: &Mounttable,
    storage: impl Future<Output = Result<Storage, Failure>>,
    runtime: &Runtime,
) -> Result<Server, Failure> {
    let identity = identity(command, runtime)?;
    let nodes = match &command.permissions_file {
        Some(path) => {
            file::parse(&read(path)?, &identity.default_root()).map_err(|error| Failure::usage(error.message))?
        }
        None => Vec::new(),
    };
    Server::open(config(command, identity), nodes, storage.await?, runtime.clone()).await.map_err(failed)
}

fn identity(command: &Mounttable, runtime: &Runtime) -> Result<AuthMethod, Failure> {
    if command.jwt_keys.is_empty() {
        return Ok(if command.insecure_dev_identity { AuthMethod::Development } else { AuthMethod::RefuseAll });
    }
    if command.jwt_keys.len() != command.jwt_issuer.len() {
        return Err(Failure::usage(format!(
            "--jwt-keys is given {} times and --jwt-issuer {} times: each issuer has a file of its own keys",
            command.jwt_keys.len(),
            command.jwt_issuer.len()
        )));
    }
    let files = KeyFiles {
        issuers: command.jwt_issuer.iter().cloned().zip(command.jwt_keys.iter().cloned()).collect(),
        audience: command.jwt_audience.clone().unwrap_or_default(),
    };
    files.verifier(runtime).map(AuthMethod::Bearer).map_err(|error| Failure::usage(error.message))
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("read {}: {error}", path.display())))
}

fn config(command: &Mounttable, identity: AuthMethod) -> ServerConfig {
    let options = TableOptions {
        grace: Duration::from_secs(command.gc_grace.into()),
        nodes_per_user: command.max_nodes_per_user,
        servers_per_user: command.max_servers_per_user,
        credit: if command.no_outage_credit { Credit::Off } else { Credit::On },
        ..TableOptions::default()
    };
    ServerConfig {
        listen: command.listen.clone(),
        http_listen: command.http_listen.clone(),
        table: command.table.table.clone(),
        options,
        identity,
        superusers: command.superuser.iter().map(BlessingPattern::new).collect(),
        sweep_period: Duration::from_secs(command.sweep_period.into()),
        cache: cache::CacheOptions { rows: command.cache_rows, ttl: Duration::from_millis(command.cache_ttl.into()) },
    }
}

fn failed(error: StartError) -> Failure {
    match error {
        StartError::Table(error) => to_failure(error),
        StartError::Server(error) => error.into(),
    }
}

//! `ebla mounttable`: a process that serves a table of names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use ebla_client::Client;
use ebla_model::schema::TableName;
use ebla_mounttable::file;
use ebla_mounttable::identity::BlessingPattern;
use ebla_mounttable::outage::Credit;
use ebla_mounttable::server::{Server, ServerConfig};
use ebla_mounttable::service::bearer::{Bearer, Trust};
use ebla_mounttable::service::identity::Identity;
use ebla_mounttable::store::bigtable::Bigtable;
use ebla_mounttable::store::cache;
use ebla_mounttable::store::grounded::Grounded;
use ebla_mounttable::store::memory::Memory;
use ebla_mounttable::table::Options;
use ebla_mounttable::{Store, Surroundings, Table};
use ebla_runtime::Runtime;
use serde_json::json;

use super::mt::refused;
use crate::output::Failure;
use crate::process::{self, Signals};

/// Who looks after the table of [`Mounttable::beside`]: whoever calls himself so is believed.
const OPERATOR: &str = "admin";

/// Where a cluster keeps a table of names.
#[derive(Clone, Debug, clap::Args)]
pub struct Kept {
    /// The project of the table
    #[arg(long, env = "EBLA_PROJECT", default_value = "dev")]
    pub project: String,
    /// The instance of the table
    #[arg(long, env = "EBLA_INSTANCE", default_value = "dev")]
    pub instance: String,
    /// The table; a second one beside it, NAME-counters, holds counters
    #[arg(long, value_name = "NAME", default_value = "mounttable")]
    pub table: String,
}

impl Kept {
    /// The full name of the table.
    ///
    /// # Errors
    /// Names that the API does not allow.
    pub fn name(&self) -> Result<TableName, Failure> {
        Ok(TableName::from_parts(&self.project, &self.instance, &self.table)?)
    }
}

/// Serve a table of names. Any number of processes may serve the same one.
///
/// The table is made when it is not there: everybody may do everything in it, unless a permissions file says otherwise.
///
/// Examples:
///   ebla mounttable --cluster 127.0.0.1:8086 --listen 127.0.0.1:8101 --insecure-dev-identity
///   ebla mounttable --in-memory --http-listen 127.0.0.1:8180 --insecure-dev-identity
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Mounttable {
    /// Any tablet server of the cluster that keeps the table
    #[arg(long, value_name = "HOST:PORT", required_unless_present = "in_memory", conflicts_with = "in_memory")]
    pub cluster: Option<String>,
    /// Keep nothing: what is mounted is gone when the process ends
    #[arg(long)]
    pub in_memory: bool,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8101")]
    pub listen: String,
    /// Where to serve names as JSON over HTTP too, described by /v1/openapi.json; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    pub http_listen: Option<String>,
    /// Which table of the cluster
    #[command(flatten)]
    pub table: Kept,
    /// Tablets that a new table begins with
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub tablets: u16,
    /// Nodes that are made when they are not there, and their permissions: JSON
    #[arg(long, value_name = "FILE")]
    pub permissions_file: Option<PathBuf>,
    /// Who may do everything, whatever the permissions say; repeat for several
    #[arg(long, value_name = "PATTERN")]
    pub superuser: Vec<String>,
    /// The public keys of whoever signs callers' tokens: a JWK Set (RFC 7517). With it callers are known by their tokens
    #[arg(long, value_name = "FILE", requires_all = ["jwt_issuer", "jwt_audience"])]
    pub jwt_keys: Option<PathBuf>,
    /// An issuer whose tokens count: their `iss`; its host is the first part of callers' names. Repeat for several
    #[arg(long, value_name = "URL", requires = "jwt_keys")]
    pub jwt_issuer: Vec<String>,
    /// What tokens for this table have as `aud`
    #[arg(long, value_name = "NAME", requires = "jwt_keys")]
    pub jwt_audience: Option<String>,
    /// Believe what callers say of themselves. Without this and without --jwt-keys every call is refused
    #[arg(long, conflicts_with = "jwt_keys")]
    pub insecure_dev_identity: bool,
    /// Nodes that a user may make; 0: any number
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(i64).range(0..))]
    pub max_nodes_per_user: i64,
    /// Servers that a user may mount; 0: any number
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(i64).range(0..))]
    pub max_servers_per_user: i64,
    /// How old an empty node must be before it is removed
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub gc_grace: u32,
    /// How often the whole table is swept; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 3_600)]
    pub sweep_period: u32,
    /// Parts of rows that are remembered between lookups; 0: none, every lookup reads the storage
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub cache_rows: usize,
    /// How long what is remembered is taken to be true, and how late what other processes did may be seen
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub cache_ttl: u32,
    /// Mounts end at their deadlines also when an outage of the storage kept them from being refreshed
    #[arg(long)]
    pub no_outage_credit: bool,
    /// Threads that serve. A lookup takes less than two thirds of the processor time when it meets no other thread; for more
    /// lookups run more processes, or give this one more threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub threads: u16,
    /// Written, whole, when the process is ready
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Serve beyond loopback although there is no TLS and no login
    #[arg(long)]
    pub insecure: bool,
}

impl Mounttable {
    /// What the command is without another word, for a cluster of this machine's own: callers are believed. `http`: where
    /// it serves HTTP too.
    ///
    /// # Errors
    /// Usage, when an environment variable has no legal value.
    pub fn beside(cluster: &str, listen: &str, http: Option<&str>) -> Result<Self, Failure> {
        let command = Self::augment_args(clap::Command::new("mounttable").no_binary_name(true));
        let given = ["--cluster", cluster, "--listen", listen, "--insecure-dev-identity", "--superuser", OPERATOR];
        let given = given.into_iter().chain(http.into_iter().flat_map(|listen| ["--http-listen", listen]));
        let found = command.try_get_matches_from(given).and_then(|matches| Self::from_arg_matches(&matches));
        found.map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Runs until Ctrl-C or SIGTERM. Ready means that the table is there and is served.
///
/// # Errors
/// What kept it from starting.
pub async fn run(command: Mounttable, runtime: Runtime) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    for listen in [Some(&command.listen), command.http_listen.as_ref()].into_iter().flatten() {
        process::check_exposure(listen, command.insecure)?;
    }
    let server = serve(&command, &runtime).await?;
    if let Some(file) = &command.ready_file {
        let mut ready = json!({"role": "mounttable", "address": server.address(), "pid": std::process::id()});
        if let (Some(address), Some(ready)) = (server.http_address(), ready.as_object_mut()) {
            ready.insert("http".to_owned(), address.into());
        }
        process::write_ready(file, &ready)?;
    }
    let callers = match (&command.jwt_keys, command.insecure_dev_identity) {
        (Some(_keys), _) => "callers are known by their tokens",
        (None, true) => "callers are believed",
        (None, false) => "nobody is let in",
    };
    let place = command.cluster.as_deref().unwrap_or("memory");
    let http = server.http_address().map(|address| format!(" and http://{address}")).unwrap_or_default();
    eprintln!(
        "ebla {}   mounttable at {}{http}   in {place}   no TLS; {callers}",
        env!("CARGO_PKG_VERSION"),
        server.address()
    );
    signals.next().await;
    signals.stop(server.stop()).await;
    Ok(())
}

/// Serves as the arguments say, until it is stopped.
///
/// # Errors
/// What kept it from starting.
pub async fn serve(command: &Mounttable, runtime: &Runtime) -> Result<Server, Failure> {
    let nodes = match &command.permissions_file {
        Some(path) => file::nodes(&read(path)?).map_err(|error| Failure::usage(error.message))?,
        None => Vec::new(),
    };
    match &command.cluster {
        Some(address) => {
            let client = Client::connect_cluster(address, runtime.clone()).await?;
            let name = command.table.name()?;
            let store = Bigtable::new(&client, &name)?;
            store.make(&client.admin(), command.tablets).await?;
            start(command, &nodes, Grounded::new(store, runtime.clone()), runtime).await
        }
        None => start(command, &nodes, Grounded::new(Memory::default(), runtime.clone()), runtime).await,
    }
}

fn identity(command: &Mounttable, runtime: &Runtime) -> Result<Identity, Failure> {
    let Some(path) = &command.jwt_keys else {
        return Ok(if command.insecure_dev_identity { Identity::Development } else { Identity::Nobody });
    };
    let trust = Trust {
        keys: read(path)?,
        issuers: command.jwt_issuer.clone(),
        audience: command.jwt_audience.clone().unwrap_or_default(),
    };
    let bearer = Bearer::new(&trust, runtime.clock.clone());
    let bearer = bearer.map_err(|error| Failure::usage(format!("{}: {}", path.display(), error.message)))?;
    Ok(Identity::Bearer(Arc::new(bearer)))
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("read {}: {error}", path.display())))
}

/// Makes what the table begins with, and serves it.
async fn start<S>(
    command: &Mounttable,
    nodes: &[file::FileNode],
    store: S,
    runtime: &Runtime,
) -> Result<Server, Failure>
where
    S: Store + Surroundings + Clone + 'static,
{
    let options = Options {
        grace: Duration::from_secs(command.gc_grace.into()),
        nodes_per_user: command.max_nodes_per_user,
        servers_per_user: command.max_servers_per_user,
        credit: if command.no_outage_credit { Credit::Off } else { Credit::On },
        ..Options::default()
    };
    let table = Table::new(store.clone(), options);
    table.apply(nodes).await.map_err(refused)?;
    // A root that is there keeps the permissions that it was given since.
    table.setup(ebla_mounttable::Permissions::open()).await.map_err(refused)?;
    let config = ServerConfig {
        listen: command.listen.clone(),
        http_listen: command.http_listen.clone(),
        table: command.table.table.clone(),
        options,
        identity: identity(command, runtime)?,
        superusers: command.superuser.iter().map(BlessingPattern::new).collect(),
        sweep_period: Duration::from_secs(command.sweep_period.into()),
        cache: cache::Options { rows: command.cache_rows, ttl: Duration::from_millis(command.cache_ttl.into()) },
    };
    Ok(Server::start(config, store, runtime.clone()).await?)
}

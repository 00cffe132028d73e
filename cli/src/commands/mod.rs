//! The command line: one enum, one file for each command.
//!
//! Commands that talk to a cluster find it by `--addr`, then `EBLA_ADDR`, then `BIGTABLE_EMULATOR_HOST`, then
//! 127.0.0.1:8086; several addresses are tried in turn. Tables are named by their short name inside `--project` and
//! `--instance`. `--timeout` bounds each of these commands as a whole.

pub mod bench;
pub mod cbt;
pub mod cert;
pub mod check;
pub mod cluster;
pub mod completion;
pub mod config;
mod connectivity;
pub mod console;
pub mod debug;
pub mod demo;
pub mod doctor;
pub(crate) mod documents;
pub mod events;
pub mod family;
pub mod group;
pub mod heat_map;
mod help;
pub mod hot;
pub mod iam;
#[cfg(test)]
mod json_reference;
pub mod load;
pub mod locality_group;
pub mod master;
pub mod merges;
pub mod meta;
pub mod mounttable;
pub mod mt;
mod new_file;
pub mod node;
pub mod quota;
pub mod recover;
pub mod row;
pub mod server;
pub mod slow;
pub mod status;
pub mod table;
pub mod tablet;
pub mod tablet_server;
pub mod token;
pub mod top;
pub mod up;
pub mod verify;
pub mod version;
pub mod view;
pub mod wait;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, Subcommand};
use ebla_client::{Admin, BearerToken, Client};
use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_runtime::logging::{InvalidLogFilter, LogFilter};
use ebla_runtime::units::HumanDuration;
use futures::future::LocalBoxFuture;

pub(crate) use help::program;

use crate::address::Addresses;
use crate::output::{self, Failure, Format};
use crate::tls::TlsArguments;

/// Default address: `up` listens there, and commands connect to it.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8086";

/// Arguments of every command.
#[derive(Debug, Parser)]
#[command(name = "ebla", version, about = "A Bigtable that anyone can run", max_term_width = 100)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Log filter for stderr: off, error, warn, info, debug, trace, or a filter such as warn,ebla_master=debug
    #[arg(long, global = true, env = "EBLA_LOG", default_value = DEFAULT_LOG, value_parser = log_filter)]
    pub log_level: LogFilter,
    /// Timeout of a command that talks to a cluster, such as 500ms, 10s or 5m [default: 60s for a read or write, 2m for a
    /// change of tables]
    #[arg(long, global = true, env = "EBLA_TIMEOUT", value_name = "DURATION", value_parser = parse_timeout)]
    pub timeout: Option<HumanDuration>,
    /// The files of TLS.
    #[command(flatten)]
    pub tls: TlsArguments,
}

/// Warnings, the master's events for operators (servers lost and returned, replicas missing and repaired), and what superusers of a
/// mounttable do.
const DEFAULT_LOG: &str = "warn,ebla_master::events=info,ebla_mounttable_server::service::admin=info";

/// An empty text means the default, for scripts that pass a variable on.
pub(crate) fn log_filter(text: &str) -> Result<LogFilter, InvalidLogFilter> {
    if text.is_empty() { DEFAULT_LOG } else { text }.parse()
}

fn parse_timeout(text: &str) -> Result<HumanDuration, String> {
    match text.parse::<HumanDuration>() {
        Ok(span) if !span.get().is_zero() => Ok(span),
        Ok(_zero) => Err("the timeout must be longer than zero; example: 10s".to_owned()),
        Err(error) => Err(format!("{error}; examples: 500ms, 10s, 5m")),
    }
}

tokio::task_local! {
    /// The value of `--timeout`, while a command runs.
    static TIMEOUT: Duration;
}

/// The `--timeout` of the running command, if it was given.
pub fn given_timeout() -> Option<Duration> {
    TIMEOUT.try_with(|timeout| *timeout).ok()
}

/// Timeout of a call to the master, unless `--timeout` is shorter, whose answer a command can do without, or which it repeats. A tablet
/// server repeats a call until its timeout while no master is active.
const MASTER_TIMEOUT: Duration = Duration::from_secs(3);

/// The same calls, which fail soon without a master.
fn within_seconds(admin: Admin) -> Admin {
    admin.with_timeout(shorter(given_timeout()))
}

fn shorter(given: Option<Duration>) -> Duration {
    given.map_or(MASTER_TIMEOUT, |given| given.min(MASTER_TIMEOUT))
}

impl Arguments {
    /// Number of worker threads of the async runtime; `None`: one for each processor.
    pub fn threads(&self) -> Option<usize> {
        match &self.command {
            Command::Mounttable(command) => Some(command.threads.into()),
            _ => None,
        }
    }
}

/// Options that select a cluster and the tables in it.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterArguments {
    /// HOST:PORT of any tablet server; of several, separated by commas, the first that answers is used
    #[arg(long, env = "EBLA_ADDR", value_name = "HOST:PORT,…")]
    pub addr: Option<Addresses>,
    /// Project of the tables
    #[arg(long, env = "EBLA_PROJECT", default_value = "dev")]
    pub project: String,
    /// Instance of the tables
    #[arg(long, env = "EBLA_INSTANCE", default_value = "dev")]
    pub instance: String,
    /// Output format
    #[arg(short = 'o', long = "output", env = "EBLA_OUTPUT", value_parser = output::layouts(), default_value = "table")]
    pub output: Format,
    /// The caller
    #[command(flatten)]
    pub caller: TokenArguments,
}

/// A table, and the options that select its cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct TableArguments {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Name of the table
    pub table: String,
}

impl TableArguments {
    /// The full name of the table.
    ///
    /// # Errors
    /// As [`ClusterArguments::table`].
    pub fn name(&self) -> Result<TableName, Failure> {
        self.cluster.table(&self.table)
    }
}

/// Options with the token of the caller.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenArguments {
    /// File with the token (JWT) of the caller, for servers with access control
    #[arg(long, env = "EBLA_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Send the token although the connection has no TLS: everybody on the network path can read it and use it
    #[arg(long)]
    pub insecure_token: bool,
}

impl TokenArguments {
    /// The token of `--token-file`.
    ///
    /// # Errors
    /// Usage, when the file cannot be read or has no token.
    pub fn token(&self) -> Result<Option<BearerToken>, Failure> {
        let token = token_in(self.token_file.as_deref())?;
        Ok(if self.insecure_token { token.map(BearerToken::allow_plaintext) } else { token })
    }
}

impl ClusterArguments {
    /// The token of `--token-file`.
    ///
    /// # Errors
    /// As [`TokenArguments::token`].
    pub fn token(&self) -> Result<Option<BearerToken>, Failure> {
        self.caller.token()
    }

    /// Admin calls at an address, with the token.
    ///
    /// # Errors
    /// As [`Self::token`].
    pub fn admin_at(&self, address: &str, runtime: &Runtime) -> Result<Admin, Failure> {
        Ok(Admin::connect(address, runtime).with_token(self.token()?))
    }

    /// The addresses to connect to, in the order in which they are tried; at least one.
    ///
    /// # Errors
    /// Usage, when `BIGTABLE_EMULATOR_HOST` is used and is not an address.
    pub fn addresses(&self) -> Result<Vec<String>, Failure> {
        let emulator = || std::env::var("BIGTABLE_EMULATOR_HOST").ok().filter(|address| !address.is_empty());
        let given = self.addr.clone().filter(|given| !given.list().is_empty());
        let addresses = match (given, emulator()) {
            (Some(given), _) => given,
            (None, Some(text)) => {
                text.parse().map_err(|error| Failure::usage(format!("BIGTABLE_EMULATOR_HOST: {error}")))?
            }
            (None, None) => return Ok(vec![DEFAULT_ADDRESS.to_owned()]),
        };
        Ok(addresses.list().to_vec())
    }

    /// The full name of a table. `name` is its last part or already the full name, as `ebla table list -o json` prints it.
    ///
    /// # Errors
    /// Names that the API does not allow.
    pub fn table(&self, name: &str) -> Result<TableName, Failure> {
        if name.contains('/') {
            Ok(name.parse()?)
        } else {
            Ok(TableName::from_parts(&self.project, &self.instance, name)?)
        }
    }

    /// A client of the cluster, which locates tablets itself; while access control is on, a client of the public API. Its calls time out after
    /// `--timeout`.
    ///
    /// # Errors
    /// When nothing answers at the addresses.
    pub async fn client(&self, runtime: &Runtime) -> Result<Client, Failure> {
        let addresses = self.addresses()?;
        let client = match Client::connect_any(&addresses, runtime.clone()).await {
            Ok(client) => client.with_token(self.token()?),
            Err(error) => return Err(unreachable(&addresses, error, runtime).await),
        };
        Ok(match given_timeout() {
            Some(timeout) => client.with_timeout(timeout),
            None => client,
        })
    }
}

/// The token in a file; `None` without a file, or with an empty name of one.
///
/// # Errors
/// Usage, when the file cannot be read or has no token.
pub(crate) fn token_in(file: Option<&Path>) -> Result<Option<BearerToken>, Failure> {
    let Some(path) = file.filter(|path| !path.as_os_str().is_empty()) else { return Ok(None) };
    let failure = |error: &dyn Display| Failure::usage(format!("read the token in {}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failure(&error))?;
    BearerToken::new(&text).map(Some).map_err(|error| failure(&error))
}

/// Timeout for asking a process that is not a tablet server for the addresses of the tablet servers.
const ADVICE_TIMEOUT: Duration = Duration::from_secs(2);

/// The failure for addresses without a cluster: the cause and what to do.
pub(crate) async fn unreachable(addresses: &[String], error: Error, runtime: &Runtime) -> Failure {
    let shown = addresses.join(", ");
    let message = match error.reason {
        // A master serves the operator API and no tablet lookups.
        Reason::Unimplemented => {
            let servers = tablet_servers(addresses, runtime).await;
            let instead =
                if servers.is_empty() { "HOST:PORT of a tablet server".to_owned() } else { servers.join(",") };
            return Failure::usage(format!("{shown} is not a tablet server; use --addr {instead}"));
        }
        Reason::NoLeader => format!("{}; `ebla status` shows what is missing", error.message),
        _ => format!("no cluster at {shown}: {}; start one with `ebla up`", error.message),
    };
    Failure { message, ..Failure::from(error) }
}

/// The tablet servers known to the active master, if it listens at one of these addresses.
async fn tablet_servers(addresses: &[String], runtime: &Runtime) -> Vec<String> {
    for address in addresses {
        if let Ok(reply) = Admin::connect(address, runtime).with_timeout(ADVICE_TIMEOUT).status().await {
            let up = reply.servers.into_iter().filter(|one| one.reachable);
            return up.filter_map(|one| Some(one.server?.address)).filter(|address| !address.is_empty()).collect();
        }
    }
    Vec::new()
}

/// The commands. The help of each is the documentation of its type.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "documentation of a variant would replace the help of its command")]
pub enum Command {
    Up(up::Up),
    Demo(demo::Demo),
    Master(master::Master),
    TabletServer(Box<tablet_server::TabletServer>),
    Status(status::Status),
    Top(Box<top::Top>),
    Doctor(Box<doctor::Doctor>),
    #[command(subcommand)]
    Debug(debug::Debug),
    Wait(wait::Wait),
    #[command(subcommand)]
    Server(server::Server),
    #[command(subcommand)]
    Table(table::Table),
    #[command(subcommand)]
    Family(family::Family),
    #[command(subcommand)]
    View(view::View),
    #[command(subcommand)]
    Iam(iam::Iam),
    #[command(subcommand)]
    Row(row::Row),
    Get(row::Get),
    Set(row::Set),
    Scan(row::Scan),
    Count(row::Count),
    #[command(flatten)]
    Cbt(Box<cbt::Cbt>),
    #[command(subcommand)]
    Tablet(tablet::Tablet),
    Events(events::Events),
    Slow(Box<slow::Slow>),
    #[command(subcommand)]
    Trace(Box<slow::Trace>),
    #[command(subcommand)]
    Group(group::Group),
    #[command(subcommand)]
    Meta(meta::Meta),
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    #[command(subcommand)]
    Cert(cert::Cert),
    #[command(subcommand)]
    Config(config::Config),
    #[command(subcommand)]
    Token(token::Token),
    Check(check::Check),
    Recover(recover::Recover),
    Mounttable(mounttable::Mounttable),
    Mt(mt::Mt),
    #[command(subcommand)]
    Load(load::Load),
    Bench(bench::Bench),
    Verify(verify::Verify),
    Version(version::Version),
    Completion(completion::Completion),
    Man(completion::Man),
}

impl Command {
    /// Whether the command runs a part of a cluster until a signal stops it; then `--timeout` does not apply.
    pub const fn serves(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Demo(_) | Self::Master(_) | Self::TabletServer(_) | Self::Mounttable(_))
    }

    /// Whether the command shows its output again and again until Ctrl-C; then `--timeout` applies to each of its calls only.
    pub fn is_repeated(&self) -> bool {
        match self {
            Self::Top(top) => top.is_repeated(),
            Self::Status(status) => status.watch.is_repeated(),
            Self::Server(server::Server::List { watch, .. })
            | Self::Table(table::Table::List { watch, .. })
            | Self::Tablet(tablet::Tablet::List { watch, .. }) => watch.is_repeated(),
            _ => false,
        }
    }
}

/// Runs the command. Boxed here, so that its machine code is generated in this crate and not again in each program that
/// polls it (decision 0012).
///
/// # Errors
/// The failure to show, with its exit code.
pub fn run(arguments: Arguments) -> LocalBoxFuture<'static, Result<(), Failure>> {
    Box::pin(dispatch(arguments))
}

async fn dispatch(arguments: Arguments) -> Result<(), Failure> {
    let runtime = secured(Runtime::system("ebla"), &arguments)?;
    match arguments.timeout.map(HumanDuration::get) {
        Some(timeout) if arguments.command.is_repeated() => {
            TIMEOUT.scope(timeout, Box::pin(execute(arguments.command, runtime))).await
        }
        Some(timeout) if !arguments.command.serves() => {
            let clock = runtime.clock.clone();
            let started = clock.monotonic();
            let command = TIMEOUT.scope(timeout, Box::pin(execute(arguments.command, runtime)));
            match tokio::time::timeout(timeout, command).await {
                // The calls of the command have the same timeout, and may end first.
                Ok(Err(_failure)) if clock.monotonic().saturating_sub(started) >= timeout => Err(timed_out(timeout)),
                Ok(outcome) => outcome,
                Err(_elapsed) => Err(timed_out(timeout)),
            }
        }
        _ => Box::pin(execute(arguments.command, runtime)).await,
    }
}

/// The runtime with the TLS of the arguments, if there is any. Its files are watched until the process ends.
fn secured(runtime: Runtime, arguments: &Arguments) -> Result<Runtime, Failure> {
    // The files may be the ones that shall be made.
    if matches!(
        arguments.command,
        Command::Cert(_) | Command::Token(_) | Command::Config(_) | Command::Completion(_) | Command::Man(_)
    ) {
        return Ok(runtime);
    }
    let Some(tls) = arguments.tls.open(&runtime.clock)? else { return Ok(runtime) };
    if arguments.command.serves() {
        tls.check_server().map_err(|error| Failure::usage(error.to_string()))?;
    }
    tls.watch(&runtime.tasks);
    let net = runtime.net.clone().with_tls(tls);
    Ok(Runtime { net, ..runtime })
}

fn timed_out(timeout: Duration) -> Failure {
    let message = format!(
        "timed out after {timeout:?}; a change may have been applied, so check before you repeat it; set a longer time with --timeout"
    );
    Failure::from(Error::new(Reason::Deadline, message))
}

async fn execute(command: Command, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Command::Up(up) => Box::pin(up::run(up, runtime)).await,
        Command::Demo(demo) => Box::pin(demo::run(demo, runtime)).await,
        Command::Master(master) => Box::pin(master::run(master, runtime)).await,
        Command::TabletServer(server) => Box::pin(tablet_server::run(*server, runtime)).await,
        Command::Server(server) => Box::pin(server::run(server, runtime)).await,
        Command::Status(status) => Box::pin(status::run(status, runtime)).await,
        Command::Top(top) => Box::pin(top::run(*top, runtime)).await,
        Command::Debug(debug) => Box::pin(debug::run(debug, runtime)).await,
        Command::Doctor(doctor) => Box::pin(doctor::run(*doctor, runtime)).await,
        Command::Wait(wait) => Box::pin(wait::run(wait, runtime)).await,
        Command::Table(table) => Box::pin(table::run(table, runtime)).await,
        Command::Family(family) => Box::pin(family::run(family, runtime)).await,
        Command::View(view) => Box::pin(view::run(view, runtime)).await,
        Command::Iam(iam) => Box::pin(iam::run(iam, runtime)).await,
        Command::Row(row) => Box::pin(row::run(row, runtime)).await,
        Command::Get(get) => Box::pin(row::run(row::Row::Get(get), runtime)).await,
        Command::Set(set) => Box::pin(row::run(row::Row::Set(set), runtime)).await,
        Command::Scan(scan) => Box::pin(row::run(row::Row::Scan(scan), runtime)).await,
        Command::Count(count) => Box::pin(row::run(row::Row::Count(count), runtime)).await,
        Command::Cbt(command) => Box::pin(cbt::run(*command, runtime)).await,
        Command::Tablet(tablet) => Box::pin(tablet::run(tablet, runtime)).await,
        Command::Events(events) => Box::pin(events::run(events, runtime)).await,
        Command::Slow(slow) => Box::pin(slow::run(*slow, runtime)).await,
        Command::Trace(command) => Box::pin(slow::trace(*command, runtime)).await,
        Command::Group(group) => Box::pin(group::run(group, runtime)).await,
        Command::Meta(meta) => Box::pin(meta::run(meta, runtime)).await,
        Command::Cluster(cluster) => Box::pin(cluster::run(cluster, runtime)).await,
        Command::Cert(cert) => cert::run(&cert, &runtime),
        Command::Config(config) => config::run(&config),
        Command::Token(token) => token::run(&token, &runtime),
        Command::Check(check) => Box::pin(check::run(check, runtime)).await,
        Command::Recover(recover) => Box::pin(recover::run(recover, runtime)).await,
        Command::Mounttable(server) => Box::pin(mounttable::run(server, runtime)).await,
        Command::Mt(command) => Box::pin(mt::run(command, runtime)).await,
        Command::Load(load) => Box::pin(load::run(load, runtime)).await,
        Command::Bench(bench) => Box::pin(bench::run(bench, runtime)).await,
        Command::Verify(verify) => Box::pin(verify::run(verify, runtime)).await,
        Command::Completion(completion) => {
            completion::complete(&completion);
            Ok(())
        }
        Command::Man(man) => completion::man(&man),
        Command::Version(version) => {
            version::run(&version);
            Ok(())
        }
    }
}

//! The command line: one enum, one file a command.
//!
//! Commands that talk to a cluster find it by `--addr`, then `EBLA_ADDR`, then `BIGTABLE_EMULATOR_HOST`, then
//! 127.0.0.1:8086. Tables are named by their short name inside `--project` and `--instance`.

pub mod bench;
pub mod demo;
pub mod load;
pub mod master;
pub mod meta;
pub mod mounttable;
pub mod mt;
pub mod role;
pub mod row;
pub mod server;
pub mod status;
pub mod table;
pub mod tablet;
pub mod tablet_server;
pub mod up;
pub mod verify;
pub mod wait;

use clap::{Parser, Subcommand};
use ebla_client::Client;
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use futures::future::LocalBoxFuture;

use crate::output::{Failure, Format};

/// Where `up` listens and commands look when nothing else is said.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8086";

/// What every command takes.
#[derive(Debug, Parser)]
#[command(name = "ebla", version, about = "A Bigtable that anyone can run", max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// What is logged on stderr: error, warn, info, debug, or a filter such as ebla_master=debug,warn
    #[arg(long, global = true, env = "EBLA_LOG", default_value = "warn,openraft=error")]
    pub log_level: String,
}

impl Arguments {
    /// How many threads the process wants for what it does not wait for; `None`: one for each processor.
    pub fn threads(&self) -> Option<usize> {
        match &self.command {
            Command::Mounttable(command) => Some(command.threads.into()),
            _ => None,
        }
    }
}

/// Which cluster, and which tables of it.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// HOST:PORT of any tablet server
    #[arg(long, env = "EBLA_ADDR")]
    pub addr: Option<String>,
    /// The project that tables are looked for in
    #[arg(long, env = "EBLA_PROJECT", default_value = "dev")]
    pub project: String,
    /// The instance that tables are looked for in
    #[arg(long, env = "EBLA_INSTANCE", default_value = "dev")]
    pub instance: String,
    /// How data is shown
    #[arg(short = 'o', long = "output", env = "EBLA_OUTPUT", value_enum, default_value = "table")]
    pub output: Format,
}

impl Place {
    /// The address to talk to.
    pub fn address(&self) -> String {
        let emulator = || std::env::var("BIGTABLE_EMULATOR_HOST").ok().filter(|address| !address.is_empty());
        self.addr.clone().or_else(emulator).unwrap_or_else(|| DEFAULT_ADDRESS.to_owned())
    }

    /// The full name of a table.
    ///
    /// # Errors
    /// Names that the API does not allow.
    pub fn table(&self, short: &str) -> Result<TableName, Failure> {
        Ok(TableName::from_parts(&self.project, &self.instance, short)?)
    }

    /// A client of the cluster, which finds tablets by itself.
    ///
    /// # Errors
    /// When nothing answers at the address.
    pub async fn client(&self, runtime: &Runtime) -> Result<Client, Failure> {
        let address = self.address();
        Client::connect_cluster(&address, runtime.clone()).await.map_err(|error| {
            let mut failure = Failure::from(error);
            failure.message = format!("no cluster at {address}: {}; start one with `ebla up`", failure.message);
            failure
        })
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a cluster in this process: lock service, master and tablet servers; data is kept in a folder
    Up(up::Up),
    /// Run a cluster as `up` does and load a real data set into it
    Demo(demo::Demo),
    /// Run a master of a cluster of processes that meet through etcd
    Master(master::Master),
    /// Run a tablet server of such a cluster
    TabletServer(tablet_server::TabletServer),
    /// Who is there and how much they hold
    Status(status::Status),
    /// Wait until a server answers, or until a whole cluster serves
    Wait(wait::Wait),
    /// List tablet servers
    #[command(subcommand)]
    Server(server::Server),
    /// List, create, delete and describe tables
    #[command(subcommand)]
    Table(table::Table),
    /// Read and write rows
    #[command(subcommand)]
    Row(row::Row),
    /// List and split tablets
    #[command(subcommand)]
    Tablet(tablet::Tablet),
    /// Follow a row key through the three levels to its tablet
    #[command(subcommand)]
    Meta(meta::Meta),
    /// Serve names: a mounttable on a cluster, or in memory
    Mounttable(mounttable::Mounttable),
    /// Use a mounttable: mount, resolve, list, permissions
    Mt(mt::Mt),
    /// Load a data set
    #[command(subcommand)]
    Load(load::Load),
    /// Measure reads, writes and scans, alone or beside another Bigtable
    Bench(bench::Bench),
    /// Write, note every answer, read everything back: is anything lost, stale, doubled, half?
    Verify(verify::Verify),
}

/// Carries out what the arguments ask. Boxed here, so that its machine code is made in this crate and not once more in
/// each program that polls it (decision 0012).
///
/// # Errors
/// The failure to show, with its exit code.
pub fn run(arguments: Arguments) -> LocalBoxFuture<'static, Result<(), Failure>> {
    Box::pin(dispatch(arguments))
}

async fn dispatch(arguments: Arguments) -> Result<(), Failure> {
    let runtime = Runtime::system("ebla");
    match arguments.command {
        Command::Up(up) => Box::pin(up::run(up, runtime)).await,
        Command::Demo(demo) => Box::pin(demo::run(demo, runtime)).await,
        Command::Master(master) => Box::pin(master::run(master, runtime)).await,
        Command::TabletServer(server) => Box::pin(tablet_server::run(server, runtime)).await,
        Command::Server(server) => server::run(server, runtime).await,
        Command::Status(status) => status::run(status, runtime).await,
        Command::Wait(wait) => Box::pin(wait::run(wait, runtime)).await,
        Command::Table(table) => Box::pin(table::run(table, runtime)).await,
        Command::Row(row) => Box::pin(row::run(row, runtime)).await,
        Command::Tablet(tablet) => Box::pin(tablet::run(tablet, runtime)).await,
        Command::Meta(meta) => Box::pin(meta::run(meta, runtime)).await,
        Command::Mounttable(server) => Box::pin(mounttable::run(server, runtime)).await,
        Command::Mt(command) => Box::pin(mt::run(command, runtime)).await,
        Command::Load(load) => Box::pin(load::run(load, runtime)).await,
        Command::Bench(bench) => Box::pin(bench::run(bench, runtime)).await,
        Command::Verify(verify) => Box::pin(verify::run(verify, runtime)).await,
    }
}

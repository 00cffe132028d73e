//! Starts Ebla and its peers side by side on this machine and runs `ebla bench` on all of them in alternation.
//!
//! ```text
//!   ebla         three tablet servers, a master and an etcd of three members, each a process
//!   ebla-secure  as `ebla`, with TLS on every connection, access control, a token, and lists of families that restrict each call
//!   up           the same in one process, `ebla up`
//!   ebla-before  as `ebla`, and up-before: as `up`, of another version of the program (`--before`)
//!   etcd         an etcd of three members, clients on all; etcd-leader: the same, clients on its leader
//!   postgres     PostgreSQL, a primary with two standbys, on disk on two of the three before it answers
//!   emulator     Google's, which stores everything in memory and does not sync
//! ```
//!
//! Every one that writes to a disk writes below the folder for temporary files, and syncs before it answers. What is not
//! installed is left out, with the reason. Processor time is that of all processes of a system.
//!
//! ```sh
//! cargo run --release -p ebla-cli --example race -- target/release/ebla --emulator path/to/cbtemulator -- --rounds 6
//! ```

mod postgres;
mod systems;

use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser as _;
use ebla_model::access::{Permission, Policy, Resource, Role};
use ebla_runtime::Runtime;
use ebla_tests::cluster::Cluster as _;
use ebla_tests::etcd::{Build, EtcdCluster};
use ebla_tests::network::Loopback;
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::secured::{Callers, Security, USER};
use ebla_workload::bench::processes::children;

use crate::systems::{Running, serve, wait_for};

/// Far from the ports that people use.
const UP_ADDRESS: &str = "127.0.0.1:21186";
const EMULATOR_PORT: u16 = 21_187;
/// The instance of the tables of `ebla bench`.
const BENCH_INSTANCE: &str = "projects/bench/instances/bench";
const UP_BEFORE_ADDRESS: &str = "127.0.0.1:21188";

#[derive(clap::Parser)]
struct Arguments {
    /// The program
    ebla: PathBuf,
    /// Google's emulator
    #[arg(long)]
    emulator: Option<PathBuf>,
    /// Another version of the program, for the systems ebla-before and up-before
    #[arg(long)]
    before: Option<PathBuf>,
    /// Systems to run
    #[arg(long, value_delimiter = ',', default_value = "ebla,up,etcd,etcd-leader,postgres,emulator")]
    systems: Vec<String>,
    /// Handed on to `ebla bench`
    #[arg(last = true)]
    bench: Vec<String>,
}

/// A running system; stopped when dropped.
struct System {
    name: &'static str,
    /// In the format of `ebla bench --peer`.
    addresses: String,
    /// More options of `ebla bench` for this peer, each `--peer-OPTION=NAME=VALUE` without the name.
    options: Vec<(&'static str, String)>,
    processes: BTreeSet<u32>,
    _guard: Box<dyn Any>,
}

/// Addresses, options of a peer, and what ends the system when it is dropped.
struct Started {
    addresses: String,
    options: Vec<(&'static str, String)>,
    guard: Box<dyn Any>,
}

impl Started {
    fn new(addresses: String, guard: impl Any) -> Self {
        Self { addresses, options: Vec::new(), guard: Box::new(guard) }
    }
}

type Start = Result<Started, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = Runtime::system("race");
    let mut systems = Vec::new();
    for name in ["ebla", "ebla-before", "ebla-secure", "up", "up-before", "etcd", "postgres", "emulator"] {
        let wanted = |one: &String| one == name || (name == "etcd" && one == "etcd-leader");
        if !arguments.systems.iter().any(wanted) {
            continue;
        }
        let before = children(std::process::id());
        match start(name, &arguments, &runtime).await {
            Ok(Started { addresses, options, guard }) => {
                let processes = children(std::process::id()).difference(&before).copied().collect();
                systems.push(System { name, addresses, options, processes, _guard: guard });
            }
            Err(reason) => eprintln!("{name} is skipped: {reason}"),
        }
    }
    race(&arguments, &systems)
}

async fn start(name: &str, arguments: &Arguments, runtime: &Runtime) -> Start {
    let before = || arguments.before.as_deref().ok_or("no --before is given");
    match name {
        "ebla" => processes(&arguments.ebla, runtime).await,
        "ebla-before" => processes(before()?, runtime).await,
        "ebla-secure" => secure(&arguments.ebla, runtime).await,
        "up" => up(&arguments.ebla, UP_ADDRESS),
        "up-before" => up(before()?, UP_BEFORE_ADDRESS),
        "etcd" => etcd().await,
        "postgres" => postgres::start(),
        _ => emulator(arguments.emulator.as_deref()),
    }
}

async fn processes(program: &Path, runtime: &Runtime) -> Start {
    let mut help = Command::new(program);
    help.args(["tablet-server", "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !help.status()?.success() {
        return Err("this program has no roles".into());
    }
    let plan = Plan { etcd: 3, build: Build::newest(), masters: 1, ..Plan::new(&program.display().to_string(), 3) };
    let cluster = ProcessCluster::start(plan, Loopback::claim()?, runtime).await?;
    Ok(Started::new(cluster.addresses().join(","), cluster))
}

/// The caller of the load is no administrator, because no list of families restricts those; it may create its tables.
async fn secure(program: &Path, runtime: &Runtime) -> Start {
    let mut plan = Plan { etcd: 3, masters: 1, ..Plan::new(&program.display().to_string(), 3) };
    let member = format!("subject:{USER}");
    let policy = Policy::new([(Role::Admin, member.parse()?)])?;
    let instance: Resource = BENCH_INSTANCE.parse()?;
    plan.policies.push((instance.clone(), policy));
    let network = Loopback::claim()?;
    let callers = Callers::prepare(Security::On, &mut plan, 0, &network, runtime)?;
    let cluster = ProcessCluster::start(plan, network, &callers.operator).await?;
    callers.wait_permitted(&cluster.addresses(), USER, &instance, Permission::CreateTable).await?;
    let file = |path: Option<PathBuf>| path.map(|path| path.display().to_string()).unwrap_or_default();
    let options = vec![
        ("--peer-tls-ca", file(callers.ca_file())),
        ("--peer-token-file", file(callers.token_file(USER)?)),
        ("--peer-lists", member),
    ];
    Ok(Started { options, ..Started::new(cluster.addresses().join(","), (cluster, callers)) })
}

fn up(program: &Path, address: &str) -> Start {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let arguments = ["up", "--listen", address, "--data"].map(OsStr::new);
    let (ready, running) = serve(program, &[&arguments[..], &[data.as_os_str()]].concat(), folder.path())?;
    // All three servers take requests; the file tells where.
    let servers = ready.get("servers").and_then(serde_json::Value::as_array).into_iter().flatten();
    let all: Vec<_> = servers.filter_map(|server| Some(server.get("bigtable")?.as_str()?.to_owned())).collect();
    let addresses = if all.is_empty() { address.to_owned() } else { all.join(",") };
    Ok(Started::new(addresses, (running, folder)))
}

async fn etcd() -> Start {
    let build = Build::newest();
    println!("etcd: {build:?}");
    let cluster = EtcdCluster::start(3, build).await?;
    let addresses: Vec<_> = cluster.endpoints().iter().map(|one| one.replace("http://", "etcd://")).collect();
    Ok(Started::new(addresses.join(","), cluster))
}

fn emulator(program: Option<&Path>) -> Start {
    let program = program.filter(|path| path.exists()).ok_or("it is not installed")?;
    let mut command = Command::new(program);
    command.arg(format!("--port={EMULATOR_PORT}")).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(command.spawn()?);
    wait_for(|| std::net::TcpStream::connect(("127.0.0.1", EMULATOR_PORT)).is_ok())?;
    Ok(Started::new(format!("127.0.0.1:{EMULATOR_PORT}"), running))
}

fn race(arguments: &Arguments, systems: &[System]) -> ExitCode {
    let Some((first, peers)) = systems.split_first() else { return ExitCode::FAILURE };
    println!("the first one, `ebla` below, is {}", first.name);
    if !first.options.is_empty() {
        eprintln!("{} is compared with another system: name that one in --systems too", first.name);
        return ExitCode::FAILURE;
    }
    let mut bench = Command::new(&arguments.ebla);
    bench.args(["bench", "--addr", &first.addresses]).arg(counted("ebla", &first.processes));
    for peer in peers {
        let ways = if peer.name == "etcd" { vec!["etcd", "etcd-leader"] } else { vec![peer.name] };
        for way in ways.into_iter().filter(|way| arguments.systems.iter().any(|wanted| wanted == way)) {
            let addresses = peer.addresses.replace("etcd://", &format!("{way}://"));
            bench.arg(format!("--peer={way}={addresses}")).arg(counted(way, &peer.processes));
            bench.args(peer.options.iter().map(|(option, value)| format!("{option}={way}={value}")));
        }
    }
    bench.args(&arguments.bench);
    match bench.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        failed => {
            eprintln!("ebla bench: {failed:?}");
            ExitCode::FAILURE
        }
    }
}

fn counted(name: &str, processes: &BTreeSet<u32>) -> String {
    let list: Vec<_> = processes.iter().map(u32::to_string).collect();
    format!("--processes={name}={}", list.join(","))
}

//! A trial as a new operator makes it: a cluster of five tablet servers has five faults, and the pages of the console say for each one where it
//! is, since when, and what to do next. Nothing but these pages is read.
//!
//! ```text
//!   a server   slow disk         each sync takes 800 ms longer (support/faults.c)
//!   a server   clock off         its wall clock is 600 s behind (support/faults.c)
//!   a server   lagging replica   it receives at most 100 KB/s (support/faults.c), and its leaders write more
//!   a server   near capacity     clients hold 170 of its 200 connections
//!   a table    hot row           16 readers of one row
//! ```
//!
//! A replica lags only while its group writes without it, so its server is chosen by the groups: see [`Roles::choose`].

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::admin::GroupStatus;
use ebla_client::{Admin, Client, Table};
use ebla_model::id::ServerId;
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tests::etcd::{Build, EtcdCluster};
use futures::future::join_all;
use prost_types::Timestamp;

use crate::support::pages::{Response, get};
use crate::support::{self, Process};

/// The number of servers.
const SERVERS: usize = 5;
/// Timeout until all faults are found.
const FOUND_MAX: Duration = Duration::from_secs(60);
/// The latest beginning of a problem after that of its fault.
const LATE_MAX: Duration = Duration::from_secs(45);
/// Between two readings of the console.
const READING_PERIOD: Duration = Duration::from_millis(500);
/// Connections that the server accepts, and how many of them are held.
const CONNECTIONS: &str = "200";
const CONNECTIONS_HELD: usize = 170;
/// Tablets of the table that is written to, each by one writer, and the pause of each after a write: the machine has other work too.
const WRITTEN_TABLETS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const WRITER_PAUSE: Duration = Duration::from_millis(2);
/// A write: several of them are more than what the lagging server receives in a second.
const WRITTEN_BYTES: usize = 4_000;
/// Readers of the hot row, and the pause of each after a read.
const HOT_ROW: &str = "row-7";
const READERS: usize = 16;
const READER_PAUSE: Duration = Duration::from_millis(2);

#[test]
fn five_faults_are_found_in_the_console_with_place_time_and_next_step() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = fault_library(folder.path()) else {
        println!("skipped: no C compiler (cc) is installed");
        return;
    };
    support::block_on(trial(folder.path(), &library));
}

/// Compiles the library of faults; `None`: there is no compiler.
fn fault_library(folder: &Path) -> Option<PathBuf> {
    let (source, library) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/faults.c"), folder.join("libfaults.so"));
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .arg(source)
        .output();
    let compiled = compiled.ok()?;
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Some(library)
}

/// A cluster of processes.
struct Fixture {
    servers: Vec<Process>,
    _master: Process,
    _etcd: EtcdCluster,
    /// The folder in which a file is a fault.
    faults: PathBuf,
    runtime: Runtime,
}

impl Fixture {
    async fn start(folder: &Path, library: &Path) -> Self {
        let etcd = EtcdCluster::start(1, Build::Debian).await.unwrap();
        let endpoints = etcd.endpoints().join(",");
        let faults = folder.join("faults");
        std::fs::create_dir(&faults).unwrap();
        let command = |role: &str, name: &str| {
            let mut command = Command::new(support::ebla());
            command.args([role, "--etcd", &endpoints, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"]);
            command.arg(folder.join(name));
            command
        };
        let master = Process::start_command(&folder.join("master-process"), command("master", "master"));
        let server = |number: usize| {
            let name = format!("server-{number}");
            let mut command = command("tablet-server", &name);
            let own = faults.join(&name);
            std::fs::create_dir(&own).unwrap();
            command.env("LD_PRELOAD", library).env("FAULTS_FOLDER", own);
            // All clients come from one address here.
            command.args(["--connections", CONNECTIONS, "--connections-per-address", CONNECTIONS]);
            Process::start_command(&folder.join(format!("{name}-process")), command)
        };
        let servers: Vec<Process> = (0..SERVERS).map(server).collect();
        Self { servers, _master: master, _etcd: etcd, faults, runtime: Runtime::system("trial") }
    }

    fn ready(&self, server: usize, key: &str) -> &str {
        self.servers[server].ready[key].as_str().unwrap()
    }

    fn address(&self, server: usize) -> &str {
        self.ready(server, "bigtable")
    }

    /// A page of a server's console.
    fn page(&self, server: usize, path: &str) -> Response {
        get(self.ready(server, "metrics"), path)
    }

    fn create_fault(&self, server: usize, name: &str) {
        std::fs::write(self.faults.join(format!("server-{server}")).join(name), "").unwrap();
    }

    /// Calls of clients with a connection of their own each, which stay open.
    async fn connect(&self, server: usize, count: usize) -> Vec<Admin> {
        let clients: Vec<Admin> = (0..count).map(|_| Admin::connect(self.address(server), &self.runtime)).collect();
        for answer in join_all(clients.iter().map(Admin::status)).await {
            answer.unwrap();
        }
        clients
    }
}

/// The servers, by what they are in the trial.
#[derive(Clone, Copy, Debug)]
struct Roles {
    slow_disk: usize,
    clock_off: usize,
    lagging: usize,
    full: usize,
    /// It has no fault, and its console is read.
    sound: usize,
}

impl Roles {
    /// The lagging server follows in groups without the slow disk, whose writes wait for neither of the two; they have as many tablets as
    /// possible.
    async fn choose(fixture: &Fixture) -> Self {
        let admin = Admin::connect(fixture.address(0), &fixture.runtime);
        let (groups, status) = (admin.groups().await.unwrap(), admin.status().await.unwrap());
        let servers = status.servers.into_iter().filter_map(|one| one.server);
        let ids: BTreeMap<String, ServerId> =
            servers.map(|server| (server.address, ServerId::new(server.server))).collect();
        let id = |number: usize| ids[fixture.address(number)];
        let tablets = |lagging: usize, slow: usize| {
            let has = |group: &GroupStatus, number| {
                group.group.membership.replicas().any(|replica| replica.server == id(number))
            };
            let lags = |group: &&GroupStatus| {
                has(group, lagging) && !has(group, slow) && group.leader.is_some_and(|leader| leader != id(lagging))
            };
            groups.iter().filter(lags).map(|group| group.tablets).sum::<u64>()
        };
        let pairs = (0..SERVERS).flat_map(|lagging| (0..SERVERS).map(move |slow| (lagging, slow)));
        let (lagging, slow_disk) = pairs
            .filter(|(lagging, slow)| lagging != slow)
            .max_by_key(|(lagging, slow)| tablets(*lagging, *slow))
            .unwrap();
        assert!(tablets(lagging, slow_disk) > 0, "no group fits: {groups:#?}");
        let rest: Vec<usize> = (0..SERVERS).filter(|number| ![lagging, slow_disk].contains(number)).collect();
        Self { slow_disk, clock_off: rest[0], lagging, full: rest[1], sound: rest[2] }
    }
}

/// A line of the problems on the first page.
#[derive(Debug)]
struct Found {
    place: String,
    since: String,
    next: String,
    link: String,
}

/// What the first page says about a check.
fn findings(overview: &Response, check: &str) -> Vec<Found> {
    let column = |name: &str| overview.values(&format!("problem-{check}-{name}"));
    let links = overview.links(&format!("problem-{check}-place"));
    let rows = column("place").into_iter().zip(column("since")).zip(column("next")).zip(links);
    rows.map(|(((place, since), next), link)| Found { place, since, next, link }).collect()
}

/// A fault, and what the console must say about it.
struct Expected {
    check: &'static str,
    /// Part of the place.
    place: String,
    /// Part of the next step.
    next: String,
    /// When the fault began, in microseconds.
    began: i64,
}

impl Expected {
    /// The line about this fault, if it is complete.
    fn find(&self, overview: &Response) -> Option<Found> {
        let mut found = findings(overview, self.check).into_iter();
        found.find(|found| found.place.contains(&self.place) && found.since != "not known")
    }

    fn check(&self, found: &Found) {
        let since: Timestamp = found.since.parse().unwrap_or_else(|_| panic!("no time: {found:?}"));
        let late = since.seconds * 1_000_000 + i64::from(since.nanos) / 1_000 - self.began;
        println!("{}: {} since {} s after the fault; next: {}", self.check, found.place, late / 1_000_000, found.next);
        assert!((0..=i64::try_from(LATE_MAX.as_micros()).unwrap()).contains(&late), "{late} us late: {found:?}");
        assert!(found.next.contains(&self.next), "{found:?}");
    }
}

fn table(client: &Client, name: &str) -> Table {
    client.table(&TableName::from_parts("dev", "dev", name).unwrap())
}

fn cell(value: Bytes) -> [Mutation; 1] {
    [Mutation::SetCell {
        family: "f".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value,
    }]
}

/// One writer for each tablet. A write that fails is as good as none.
fn write(fixture: &Fixture, client: &Client) {
    for tablet in WRITTEN_TABLETS {
        let table = table(client, "written");
        fixture.runtime.tasks.spawn_until_stopped("writer", async move {
            for number in 0_u64.. {
                let (row, value) = (format!("{tablet}{}", number % 1_000), Bytes::from(vec![b'v'; WRITTEN_BYTES]));
                drop(table.mutate_row(&RowKey::new(row), &cell(value)).await);
                tokio::time::sleep(WRITER_PAUSE).await;
            }
        });
    }
}

/// Readers of one row.
fn read(fixture: &Fixture, client: &Client) {
    for _ in 0..READERS {
        let table = table(client, "busy");
        fixture.runtime.tasks.spawn_until_stopped("reader", async move {
            loop {
                drop(table.read_row(&RowKey::new(HOT_ROW), None).await);
                tokio::time::sleep(READER_PAUSE).await;
            }
        });
    }
}

async fn trial(folder: &Path, library: &Path) {
    let fixture = Fixture::start(folder, library).await;
    let (first, clock) = (fixture.address(0), fixture.runtime.clock.clone());
    support::run(first, &["table", "create", "busy", "--family", "f"]);
    let splits = WRITTEN_TABLETS.iter().skip(1).flat_map(|start| ["--split", *start]);
    support::run(first, &["table", "create", "written", "--family", "f"].into_iter().chain(splits).collect::<Vec<_>>());
    let roles = Roles::choose(&fixture).await;
    println!("{roles:?}");
    let client = Client::connect_cluster(fixture.address(roles.sound), fixture.runtime.clone()).await.unwrap();
    table(&client, "busy").mutate_row(&RowKey::new(HOT_ROW), &cell(Bytes::from_static(b"value"))).await.unwrap();
    write(&fixture, &client);
    let page = |path: &str| fixture.page(roles.sound, path);
    for check in ["hot-row", "clock", "connections", "lag"] {
        let found = findings(&page("/"), check);
        assert!(found.is_empty(), "before the faults: {found:?}");
    }

    let now = || clock.wall().get();
    let place = |server: usize| format!("at {}", fixture.address(server));
    let fault = |check, place, next: &str, began| Expected { check, place, next: next.to_owned(), began };
    let slow_disk = fault("slow-disk", place(roles.slow_disk), "ebla server drain", now());
    fixture.create_fault(roles.slow_disk, "slow-disk");
    let clock_off = fault("clock", place(roles.clock_off), "synchronise the clock (NTP)", now());
    fixture.create_fault(roles.clock_off, "clock-off");
    let lag = fault("lag", place(roles.lagging), "compare its disk, processor and network", now());
    fixture.create_fault(roles.lagging, "slow-network");
    let full = fault("connections", place(roles.full), "raise --connections", now());
    let held = fixture.connect(roles.full, CONNECTIONS_HELD).await;
    let table = "projects/dev/instances/dev/tables/busy on tablet server".to_owned();
    let hot_row = fault("hot-row", table, "spread its cells over several rows", now());
    read(&fixture, &client);

    let expected = [slow_disk, clock_off, lag, full, hot_row];
    let deadline = clock.monotonic() + FOUND_MAX;
    let found = loop {
        let overview = page("/");
        let found: Vec<_> = expected.iter().map(|one| one.find(&overview)).collect();
        if found.iter().all(Option::is_some) {
            break found.into_iter().flatten().collect::<Vec<_>>();
        }
        let of_all = || expected.iter().map(|one| (one.check, findings(&overview, one.check))).collect::<Vec<_>>();
        assert!(clock.monotonic() < deadline, "not all is found: {:#?}", of_all());
        tokio::time::sleep(READING_PERIOD).await;
    };
    for (one, found) in expected.iter().zip(&found) {
        one.check(found);
        let linked = page(&found.link);
        let subject = if one.check == "hot-row" { HOT_ROW } else { one.place.trim_start_matches("at ") };
        assert!(linked.body.contains(subject), "{subject} is not on {}: {}", found.link, linked.body);
    }
    // The page of the tablets names the row, which the problem does not: a key may be confidential.
    let hot = &found[4];
    let tablet = hot.place.split(' ').nth(1).unwrap();
    assert_eq!(page(&hot.link).value(&format!("hot-row-{tablet}")), HOT_ROW);
    drop(held);
}

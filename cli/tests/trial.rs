//! A trial as a new operator makes it: a cluster of five tablet servers has three faults, and the pages of the console say for each one where
//! it is, since when, and what to do next. Nothing but these pages is read.
//!
//! ```text
//!   server 1   slow disk       each sync takes 800 ms longer (support/faults.c)
//!   server 2   clock off       its wall clock is 600 s behind (support/faults.c)
//!   server 3   near capacity   clients hold 170 of its 200 connections
//! ```
//!
//! The first two give their leaderships away: three servers lead.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Admin, Client, Table};
use ebla_model::key::RowKey;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::Runtime;
use ebla_tests::etcd::{Build, EtcdCluster};
use futures::future::join_all;
use prost_types::Timestamp;

use crate::support::pages::{Response, get};
use crate::support::{self, Process};

/// The servers with faults.
const SLOW_DISK: usize = 0;
const CLOCK_OFF: usize = 1;
const FULL: usize = 2;
/// The server without a fault, whose console is read.
const SOUND: usize = 3;
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
/// Tablets of the table that is written to, each by one writer.
const WRITTEN_TABLETS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

#[test]
fn three_faults_are_found_in_the_console_with_place_time_and_next_step() {
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
            if number == SLOW_DISK || number == CLOCK_OFF {
                let own = faults.join(&name);
                std::fs::create_dir(&own).unwrap();
                command.env("LD_PRELOAD", library).env("FAULTS_FOLDER", own);
            }
            if number == FULL {
                // All come from one address here.
                command.args(["--connections", CONNECTIONS, "--connections-per-address", CONNECTIONS]);
            }
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

    /// A page of the console.
    fn page(&self, path: &str) -> Response {
        get(self.ready(SOUND, "metrics"), path)
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

fn cell(value: &'static [u8]) -> [Mutation; 1] {
    [Mutation::SetCell {
        family: "f".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(value),
    }]
}

/// One writer for each tablet. A write that fails is as good as none.
fn write(fixture: &Fixture, client: &Client) {
    for tablet in WRITTEN_TABLETS {
        let table = table(client, "written");
        fixture.runtime.tasks.spawn_until_stopped("writer", async move {
            for number in 0_u64.. {
                drop(table.mutate_row(&RowKey::new(format!("{tablet}{}", number % 1_000)), &cell(b"value")).await);
            }
        });
    }
}

async fn trial(folder: &Path, library: &Path) {
    let fixture = Fixture::start(folder, library).await;
    let (sound, clock) = (fixture.address(SOUND), fixture.runtime.clock.clone());
    let splits = WRITTEN_TABLETS.iter().skip(1).flat_map(|start| ["--split", *start]);
    support::run(sound, &["table", "create", "written", "--family", "f"].into_iter().chain(splits).collect::<Vec<_>>());
    let client = Client::connect_cluster(sound, fixture.runtime.clone()).await.unwrap();
    write(&fixture, &client);
    for check in ["clock", "connections"] {
        let found = findings(&fixture.page("/"), check);
        assert!(found.is_empty(), "before the faults: {found:?}");
    }

    let now = || clock.wall().get();
    let place = |server: usize| format!("at {}", fixture.address(server));
    let fault = |check, place, next: &str, began| Expected { check, place, next: next.to_owned(), began };
    let slow_disk = fault("slow-disk", place(SLOW_DISK), "ebla server drain", now());
    fixture.create_fault(SLOW_DISK, "slow-disk");
    let clock_off = fault("clock", place(CLOCK_OFF), "synchronise the clock (NTP)", now());
    fixture.create_fault(CLOCK_OFF, "clock-off");
    let full = fault("connections", place(FULL), "raise --connections", now());
    let held = fixture.connect(FULL, CONNECTIONS_HELD).await;
    let expected = [slow_disk, clock_off, full];
    let deadline = clock.monotonic() + FOUND_MAX;
    let found = loop {
        let overview = fixture.page("/");
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
        let page = fixture.page(&found.link);
        let subject = one.place.trim_start_matches("at ");
        assert!(page.body.contains(subject), "{subject} is not on {}: {}", found.link, page.body);
    }
    drop(held);
}

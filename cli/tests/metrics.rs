//! Metrics, health and readiness over HTTP, of real processes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, and then says where")]

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ebla_cli::metrics_reference::families;
use ebla_client::Client;
use ebla_client::table::ReadOptions;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_proto::health::health_client::HealthClient;
use ebla_proto::health::{HealthCheckRequest, health_check_response::ServingStatus};
use ebla_runtime::metrics::Kind;
use ebla_runtime::{Clock, Runtime};
use ebla_tests::etcd::{Build, EtcdCluster};
use support::Up;

/// Timeout of expected changes.
const LIVE: Duration = Duration::from_secs(60);

/// The status and the body of a page; `None` when nothing listens.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIVE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// The samples of a scrape, by series.
fn scrape(address: &str) -> BTreeMap<String, f64> {
    let (status, body) = get(address, "/metrics").unwrap();
    assert_eq!(status, 200, "{body}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
    };
    lines.map(sample).collect()
}

/// The sum of all series of a family that contain these texts.
fn sum(samples: &BTreeMap<String, f64>, family: &str, labels: &[&str]) -> f64 {
    let is_wanted = |series: &str| {
        let name = series.split('{').next().unwrap_or_default();
        name == family && labels.iter().all(|label| series.contains(label))
    };
    samples.iter().filter(|(series, _value)| is_wanted(series)).map(|(_series, value)| value).sum()
}

/// Waits until this is true.
fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let clock = Clock::system();
    let started = clock.monotonic();
    while !is_true() {
        assert!(clock.monotonic() - started < LIVE, "timed out waiting for {what}");
        support::pause();
    }
}

/// Waits until the process answers whether it is ready with this status and text.
fn wait_ready(address: &str, status: u16, text: &str) {
    let is_wanted = |(found, body): (u16, String)| found == status && body.contains(text);
    until(&format!("{status} {text}"), || get(address, "/readyz").is_some_and(is_wanted));
}

async fn health(address: &str, service: &str) -> ServingStatus {
    let channel = Runtime::system("health").net.channel(address);
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel).check(request).await.unwrap().into_inner().status()
}

#[test]
fn figures_of_a_cluster_follow_what_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--http", "127.0.0.1:0"]);
    let http = up.ready()["metrics"].as_str().unwrap().to_owned();
    let cluster = up.addresses[0].clone();
    assert_eq!(get(&http, "/healthz").unwrap(), (200, "ok\n".to_owned()));
    assert_eq!(get(&http, "/readyz").unwrap(), (200, "ready\n".to_owned()));
    let debug = get(&http, "/debug/").unwrap().1;
    assert!(debug.contains("role        up\n") && debug.contains("--http 127.0.0.1:0"), "{debug}");
    assert_eq!(support::block_on(health(&cluster, "")), ServingStatus::Serving);
    assert_eq!(support::block_on(health(&cluster, "google.bigtable.v2.Bigtable")), ServingStatus::Serving);

    let before = scrape(&http);
    assert_eq!(sum(&before, "ebla_build", &["role=\"up\""]), 1.0);
    assert_eq!(sum(&before, "ebla_master_active", &[]), 1.0);
    assert_eq!(sum(&before, "ebla_chubby_registered", &[]), 3.0);
    assert_eq!(sum(&before, "ebla_metrics_missing_sources", &[]), 0.0);
    until("a leader for every replica", || sum(&scrape(&http), "ebla_raft_leaderless_replicas", &[]) == 0.0);

    support::run(&cluster, &["table", "create", "counted", "--family", "f"]);
    support::block_on(write_and_read(&cluster));
    let after = scrape(&http);
    let grown = |family: &str, labels: &[&str]| sum(&after, family, labels) - sum(&before, family, labels);
    assert_eq!(grown("ebla_front_calls_total", &["MutateRow\"", "code=\"OK\""]), 20.0, "{after:?}");
    assert_eq!(grown("ebla_front_call_seconds_count", &["MutateRow\""]), 21.0, "the refused one too");
    assert!(grown("ebla_front_calls_total", &["MutateRow\""]) > 20.5, "the refused one has another code");
    assert!(grown("ebla_front_calls_total", &["ReadRows", "code=\"OK\""]) >= 1.0);
    assert!(grown("ebla_front_calls_total", &["service=\"admin\"", "code=\"OK\""]) >= 1.0);
    assert!(grown("ebla_front_response_bytes_total", &["ReadRows"]) > 20.0 * 5.0);
    assert!(grown("ebla_front_request_bytes_total", &["service=\"data\""]) > 20.0 * 5.0);
    for family in ["ebla_log_syncs_total", "ebla_log_sync_seconds_count", "ebla_log_records_total"] {
        assert!(grown(family, &[]) >= 20.0, "{family}");
    }
    assert!(grown("ebla_tablet_rows_total", &["operation=\"write\""]) >= 20.0);
    assert!(grown("ebla_tablet_rows_total", &["operation=\"read\""]) >= 20.0);
    assert!(grown("ebla_tablet_cells_scanned_total", &[]) >= 20.0);
    assert!(grown("ebla_raft_proposals_total", &[]) >= 20.0);
    assert!(grown("ebla_raft_commit_seconds_count", &[]) >= 20.0);
    assert!(grown("ebla_store_written_bytes_total", &[]) > 20.0 * 3.0 * 5.0, "on three replicas");
    assert!(grown("ebla_tablets", &["role=\"leader\""]) >= 1.0);
    assert!(
        sum(&after, "ebla_disk_free_bytes", &[]) > 0.0 && sum(&after, "ebla_process_resident_memory_bytes", &[]) > 1e6
    );
    assert!(sum(&after, "ebla_master_rounds_total", &[]) >= 1.0);

    // The number of series does not depend on the number of tablets.
    let splits: Vec<String> = (0..30).map(|split| format!("row-{split:03}")).collect();
    let mut create = vec!["table", "create", "many", "--family", "f"];
    splits.iter().for_each(|split| create.extend(["--split", split]));
    support::run(&cluster, &create);
    let many = scrape(&http);
    assert!(
        sum(&many, "ebla_tablets", &["role=\"leader\""]) >= sum(&after, "ebla_tablets", &["role=\"leader\""]) + 30.0
    );
    let names = |samples: &BTreeMap<String, f64>| samples.keys().cloned().collect::<BTreeSet<String>>();
    let new: Vec<String> = names(&many).difference(&names(&after)).cloned().collect();
    // What has occurred for the first time, such as an action of the master or the code of a call, has a new series; 30 tablets would have 30.
    assert!(new.len() < 15, "{new:?}");
    check_against_table(&http);
    up.stop();
    assert_eq!(get(&http, "/healthz"), None, "the port is closed");
}

/// 20 rows, and one that is refused, through the public API.
async fn write_and_read(cluster: &str) {
    let name = TableName::from_parts("dev", "dev", "counted").unwrap();
    let table = Client::endpoint(cluster, Runtime::system("writer")).table(&name);
    let set = |family: &str| Mutation::SetCell {
        family: family.to_owned(),
        qualifier: "q".into(),
        timestamp: WriteTime::Server,
        value: "value".into(),
    };
    for row in 0..20 {
        table.mutate_row(&RowKey::new(format!("row-{row}")), &[set("f")]).await.unwrap();
    }
    table.mutate_row(&RowKey::new("row"), &[set("absent")]).await.unwrap_err();
    let rows = table.read_rows(RowSet::all(), ReadOptions::default()).await.unwrap();
    assert_eq!(rows.len(), 20);
}

/// Every family of the scrape is one of the table, of the same type, with the same labels, and one of this process.
fn check_against_table(http: &str) {
    let table: BTreeMap<&str, _> = families().into_iter().map(|(_part, family)| (family.name, family)).collect();
    let body = get(http, "/metrics").unwrap().1;
    let mut found = BTreeSet::new();
    for line in body.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            let family = table.get(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            assert_eq!(family.kind.as_str(), kind, "{name}");
            found.insert(family.name);
        } else if let Some((series, labels)) = line.split_once('{')
            && let Some(family) = table.get(series).filter(|family| family.kind != Kind::Histogram)
        {
            let given = labels.matches("=\"").count();
            assert_eq!(given, family.labels.len(), "{line}");
        }
    }
    let of_up = families().into_iter().filter(|(part, _family)| *part != "mounttable");
    let missing: Vec<_> = of_up.map(|(_part, family)| family.name).filter(|name| !found.contains(name)).collect();
    // Present only in a state that this cluster is not in.
    let conditional = [
        "ebla_master_actions_total",
        "ebla_disk_sync_delay_seconds",
        "ebla_clock_offset_seconds",
        "ebla_scrub_last_pass_age_seconds",
        "ebla_tls_certificate_expiring",
    ];
    assert!(missing.iter().all(|name| conditional.contains(name)), "{missing:?}");
}

/// A port that was free a moment ago.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A process of `ebla`, killed when dropped.
struct Started(std::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn start(arguments: &[&OsStr], log: &Path) -> Started {
    let log = std::fs::File::create(log).unwrap();
    Started(Command::new(support::ebla()).args(arguments).stderr(log).spawn().unwrap())
}

#[test]
fn a_process_is_ready_when_it_can_serve() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(become_ready());
}

async fn become_ready() {
    let folder = tempfile::tempdir().unwrap();
    let mut etcd = EtcdCluster::start(1, Build::Debian).await.unwrap();
    let endpoints = etcd.endpoints().join(",");
    etcd.kill(0);
    let process = |role: &str| {
        let (http, listen) = (free_address(), free_address());
        let data = folder.path().join(role);
        let log = folder.path().join(format!("{role}.log"));
        let fixed = [role, "--etcd", &endpoints, "--listen", &listen, "--http", &http, "--data"].map(OsStr::new);
        (start(&[&fixed[..], &[data.as_os_str()]].concat(), &log), http, listen)
    };
    let (_server, server_http, server) = process("tablet-server");
    let (_master, master_http, master) = process("master");
    for (http, reason) in [(&server_http, "Chubby"), (&master_http, "Chubby")] {
        wait_ready(http, 503, reason);
        assert_eq!(get(http, "/healthz").unwrap().0, 200, "it lives");
        assert!(scrape(http).contains_key("ebla_process_uptime_seconds"));
    }
    etcd.restart(0).unwrap();
    etcd.wait_ready().await.unwrap();
    wait_ready(&server_http, 200, "ready\n");
    wait_ready(&master_http, 200, "ready\n");
    assert_eq!(health(&server, "").await, ServingStatus::Serving);
    assert_eq!(health(&master, "").await, ServingStatus::Serving);
    assert_eq!(sum(&scrape(&server_http), "ebla_build", &["role=\"tablet-server\""]), 1.0);

    // A server that was registered stays ready without Chubby: it serves.
    etcd.kill(0);
    until("the end of the lease", || sum(&scrape(&server_http), "ebla_chubby_registered", &[]) == 0.0);
    assert_eq!(get(&server_http, "/readyz").unwrap().0, 200);
}

#[test]
fn a_mounttable_shows_its_lookups() {
    let folder = tempfile::tempdir().unwrap();
    let fixed =
        ["mounttable", "--in-memory", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--insecure-dev-identity"];
    let process = support::Process::start(&folder.path().join("names"), &fixed.map(OsStr::new));
    let (http, address) =
        (process.ready["metrics"].as_str().unwrap().to_owned(), process.ready["address"].as_str().unwrap().to_owned());
    wait_ready(&http, 200, "ready\n");
    let before = scrape(&http);
    let mounted = Command::new(support::ebla())
        .args(["mt", "mount", "a/b", "127.0.0.1:1", "--root", &address, "--as", "me"])
        .output()
        .unwrap();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let resolve = ["mt", "resolve", "a/b", "--root", &address, "--as", "me"];
    let resolved = Command::new(support::ebla()).args(resolve).output().unwrap();
    assert!(resolved.status.success(), "{}", String::from_utf8_lossy(&resolved.stderr));
    let after = scrape(&http);
    let grown = |family: &str, labels: &[&str]| sum(&after, family, labels) - sum(&before, family, labels);
    assert!(grown("ebla_mounttable_storage_requests_total", &["kind=\"changes\""]) >= 1.0, "{after:?}");
    assert!(grown("ebla_mounttable_lookups_total", &[]) >= 1.0, "{after:?}");
    assert_eq!(sum(&after, "ebla_mounttable_healthy", &[]), 1.0);
    process.stop();
}

#[test]
fn the_port_can_be_switched_off_and_is_loopback_only_without_tls() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &["--http", "off", "--servers", "1"]);
    assert!(up.ready().get("metrics").is_none());
    up.stop();
    let exposed = Command::new(support::ebla())
        .args(["up", "--ephemeral", "--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"])
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&exposed.stderr).into_owned();
    assert!(exposed.status.code() == Some(2) && message.contains("not a loopback address"), "{message}");
}

//! A cluster of processes with TLS on every connection, with certificates as `ebla cert` makes them: etcd, master, tablet servers, mounttable and
//! its gateway; Ebla's client, cbt and Google's Python client; who is refused; and a new CA under load.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use ebla_model::error::Reason;
use ebla_model::schema::TableName;
use ebla_proto::control::ReportRequest;
use ebla_proto::control::control_client::ControlClient;
use ebla_proto::status::from_status;
use ebla_runtime::Runtime;
use ebla_runtime::tls::RELOAD_INTERVAL;
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::etcd::Build;
use ebla_tests::network::{Loopback, NodeNetwork as _};
use ebla_tests::process::{Plan, ProcessCluster};
use ebla_tests::secured;
use ebla_workload::verify::{Load, Plan as LoadPlan, create_table, endpoints};

use crate::support::{self, Process};

const TABLET_SERVERS: usize = 3;
/// The certificate of the test's own clients.
pub(crate) const CLIENT: &str = "tester";
/// Timeout until processes that started before the mounttable are mounted in it.
const PUBLISHED_MAX: Duration = Duration::from_secs(120);

/// Certificates in a folder.
pub(crate) struct Certificates(secured::Certificates);

impl Certificates {
    /// A new CA.
    pub(crate) fn init(folder: PathBuf) -> Self {
        Self(secured::Certificates::init(Path::new(support::ebla()), folder).unwrap())
    }

    pub(crate) fn cert(&self, arguments: &[&str]) {
        self.0.cert(arguments).unwrap();
    }

    /// Certificates of all nodes and of the test.
    pub(crate) fn issue(&self, nodes: &[(Node, String)]) {
        self.0.issue(nodes).unwrap();
        self.cert(&["client", CLIENT]);
    }

    pub(crate) fn folder(&self) -> &Path {
        self.0.folder()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// A runtime whose connections use these files, also when they change.
    pub(crate) fn runtime(&self, name: Option<&str>) -> Runtime {
        self.0.runtime(name, &Runtime::system("tls")).unwrap()
    }

    /// Runs a command of `ebla` without a certificate of its own, as most users have none.
    fn ebla(&self, address: &str, arguments: &[&str]) -> String {
        let output = Command::new(support::ebla())
            .args(arguments)
            .env("EBLA_ADDR", address)
            .env("EBLA_TLS_CA", self.file("ca.crt"))
            .output()
            .unwrap();
        assert!(output.status.success(), "ebla {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Takes a file over from other certificates, at once.
    fn replace(&self, name: &str, from: &Self) {
        let new = self.file(&format!("{name}.new"));
        std::fs::copy(from.file(name), &new).unwrap();
        std::fs::rename(new, self.file(name)).unwrap();
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_cluster_with_tls_everywhere_serves_its_clients_and_refuses_others() {
    if let Err(skip) = Build::Debian.program() {
        eprintln!("skipped: {skip}");
        return;
    }
    support::block_on(everywhere());
}

async fn everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::init(folder.path().join("certs"));
    let network = Loopback::claim().unwrap();
    let plan = Plan {
        etcd: 1,
        masters: 1,
        mounttables: 1,
        publishes: true,
        certificates: Some(certificates.folder().to_path_buf()),
        ..Plan::new(support::ebla(), TABLET_SERVERS)
    };
    let nodes: Vec<_> = plan.nodes().into_iter().map(|node| (node, network.host(node))).collect();
    certificates.issue(&nodes);
    let runtime = certificates.runtime(Some(CLIENT));
    let cluster = ProcessCluster::start(plan, network, &runtime).await.unwrap();
    let addresses = cluster.addresses();

    commands(&certificates, &addresses);
    names(&certificates, cluster.mounttable_addresses().first().unwrap(), &runtime).await;
    refused(&certificates, &addresses).await;
    cbt(&certificates, &addresses);
    python(&certificates, &addresses);
    new_ca_under_load(&certificates, &folder.path().join("next"), &nodes, &addresses, &runtime).await;
}

/// Ebla's own client, without a certificate.
fn commands(certificates: &Certificates, addresses: &[String]) {
    let first = addresses.first().unwrap();
    let status = certificates.ebla(first, &["status"]);
    assert!(status.contains("healthy") && status.contains("   TLS\n"), "{status}");
    let status = certificates.ebla(first, &["status", "-o", "json"]);
    assert!(status.contains(r#""security": "tls""#), "{status}");
    certificates.ebla(first, &["table", "create", "web", "--family", "f"]);
    for (number, address) in addresses.iter().enumerate() {
        certificates.ebla(address, &["row", "set", "web", &format!("row-{number}"), "f:q=value"]);
    }
    for address in addresses {
        let rows = certificates.ebla(address, &["row", "scan", "web"]);
        assert!((0..addresses.len()).all(|number| rows.contains(&format!("row-{number}"))), "{rows}");
    }
}

/// Waits until the processes have published themselves in the mounttable, which is stored in the cluster.
async fn names(certificates: &Certificates, root: &str, runtime: &Runtime) {
    let deadline = runtime.clock.monotonic() + PUBLISHED_MAX;
    loop {
        let listed = certificates.ebla("", &["mt", "--root", root, "--as", "server", "ls", "ebla"]);
        if listed.contains("masters") && listed.contains("tablet-servers") {
            return;
        }
        assert!(runtime.clock.monotonic() < deadline, "not published: {listed}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Clients and certificates that must not get what they want.
async fn refused(certificates: &Certificates, addresses: &[String]) {
    let first = addresses.first().unwrap();
    // No TLS at all.
    let plain = Command::new(support::ebla()).args(["status", "--addr", first]).output().unwrap();
    assert!(!plain.status.success() && said(&plain).contains("this port requires TLS"), "{}", said(&plain));
    // A CA that has not signed the certificate of the server.
    let other = tempfile::tempdir().unwrap();
    let other = Certificates::init(other.path().join("other"));
    let foreign = Command::new(support::ebla())
        .args(["status", "--addr", first, "--tls-ca"])
        .arg(other.file("ca.crt"))
        .output()
        .unwrap();
    assert!(!foreign.status.success() && said(&foreign).contains("--tls-ca"), "{}", said(&foreign));
    // The orders of a master, by a client, by a caller without a certificate, by a mounttable; and by a member of the cluster.
    for (name, is_allowed) in [
        (Some(CLIENT), false),
        (None, false),
        (Some("mounttable-0"), false),
        (Some("master-0"), true),
        (Some("tablet-server-1"), true),
    ] {
        let runtime = certificates.runtime(name);
        for address in addresses {
            let mut control = ControlClient::new(runtime.net.channel(address));
            let outcome =
                control.report(ReportRequest::default()).await.map_err(|status| from_status(&status).0.reason);
            // A member gets as far as the service, which wants more than an empty order.
            let wanted = if is_allowed { Reason::InvalidArgument } else { Reason::PermissionDenied };
            assert_eq!(outcome.map(drop), Err(wanted), "{name:?}");
        }
        runtime.tasks.cancel();
    }
    // Messages of Raft, by a client.
    let runtime = certificates.runtime(Some(CLIENT));
    let mut raft = ebla_proto::raft::raft_client::RaftClient::new(runtime.net.channel(first));
    let frame = ebla_proto::raft::Frame::default();
    let outcome = raft.call(frame).await.map_err(|status| from_status(&status).0.reason);
    assert_eq!(outcome.map(drop), Err(Reason::PermissionDenied));
    runtime.tasks.cancel();
}

/// Google's command-line client.
fn cbt(certificates: &Certificates, addresses: &[String]) {
    if Command::new("cbt").arg("version").output().is_err() {
        eprintln!("skipped: cbt is not installed; it comes with the Google Cloud CLI");
        return;
    }
    let run = |address: &str, arguments: &[&str]| {
        let output = Command::new("cbt")
            .args(["-project", "dev", "-instance", "dev", "-access-token", "none"])
            .args(["-data-endpoint", address, "-admin-endpoint", address, "-cert-file"])
            .arg(certificates.file("ca.crt"))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "cbt {arguments:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    for (number, address) in addresses.iter().enumerate() {
        let table = format!("cbt-{number}");
        run(address, &["createtable", &table, "families=f"]);
        run(address, &["set", &table, "row", "f:q=over-tls"]);
        let read = run(address, &["read", &table]);
        assert!(read.contains("over-tls"), "{read}");
    }
}

/// Google's Python client.
fn python(certificates: &Certificates, addresses: &[String]) {
    let Some(python) = support::python() else {
        eprintln!("skipped: no Python client; `make python` prepares one");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/clients/python_client.py");
    let address = addresses.first().unwrap();
    let output =
        Command::new(&python).args([script, address, "python"]).arg(certificates.file("ca.crt")).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && shown.contains("all done"), "{shown}\n{}", said(&output));
}

/// Replaces the CA of the running cluster in three steps, and no request fails.
async fn new_ca_under_load(
    certificates: &Certificates,
    folder: &Path,
    nodes: &[(Node, String)],
    addresses: &[String],
    runtime: &Runtime,
) {
    let next = Certificates::init(folder.to_path_buf());
    next.issue(nodes);
    let name = TableName::from_parts("test", "test", "verified").unwrap();
    create_table(addresses.first().unwrap(), &name, 4, runtime).await.unwrap();
    let endpoints = endpoints(addresses, &name, runtime);
    let mut load = Load::new(LoadPlan { writers: 4, readers: 2, slots: 4, ..LoadPlan::default() }, runtime);
    let running = load.start(&endpoints).await.unwrap();
    let taken_up = || tokio::time::sleep(2 * RELOAD_INTERVAL + Duration::from_secs(1));

    let (old_ca, new_ca) = (certificates.file("ca.crt"), next.file("ca.crt"));
    let old = Certificates::init(folder.with_extension("old"));
    std::fs::copy(&old_ca, old.file("ca.crt")).unwrap();
    let both = [std::fs::read(&old_ca).unwrap(), std::fs::read(&new_ca).unwrap()].concat();
    std::fs::write(certificates.file("ca.crt.new"), both).unwrap();
    std::fs::rename(certificates.file("ca.crt.new"), &old_ca).unwrap();
    taken_up().await;
    let names = nodes.iter().map(|(node, _host)| node.to_string()).chain([CLIENT.to_owned()]);
    for name in names.filter(|name| !name.starts_with("etcd")) {
        // The key first: until the certificate follows, the two do not fit, and the old ones stay in use.
        certificates.replace(&format!("{name}.key"), &next);
        certificates.replace(&format!("{name}.crt"), &next);
    }
    taken_up().await;
    // Who trusts only the new CA connects, because the servers have new certificates; who trusts only the old one does not.
    for address in addresses {
        assert!(next.ebla(address, &["row", "scan", "web"]).contains("row-0"));
    }
    let left_behind = old.runtime(None);
    let client = ebla_client::Client::endpoint(addresses.first().unwrap(), left_behind.clone());
    let refused = client.with_timeout(Duration::from_secs(5)).admin().list_tables("dev", "dev").await;
    assert!(refused.is_err(), "the old CA is still enough");
    left_behind.tasks.cancel();

    let round = load.finish(running).await;
    assert!(round.acknowledged > 0 && round.errors.is_empty(), "a new CA caused errors: {round:?}");
    let report = load.check(&endpoints).await.unwrap();
    assert!(report.is_good(), "{}", report.text());
}

#[test]
fn a_server_refuses_to_start_with_files_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::init(folder.path().join("certs"));
    certificates.cert(&["client", CLIENT]);
    certificates.cert(&["server", "up"]);
    let file = |name: &str| certificates.file(name).display().to_string();
    let start = |cert: &str, key: &str| {
        let (ca, cert, key) = (file("ca.crt"), file(cert), file(key));
        let arguments =
            ["up", "--ephemeral", "--listen", "127.0.0.1:0", "--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
        let output = Command::new(support::ebla()).args(arguments).output().unwrap();
        (output.status.code(), said(&output))
    };
    for (cert, key, wanted) in [
        ("tester.crt", "tester.key", "not one of a server"),
        ("up.crt", "tester.key", "does not belong to the certificate"),
        ("absent.crt", "up.key", "No such file"),
    ] {
        let (code, said) = start(cert, key);
        assert!(code == Some(2) && said.contains(wanted), "{said}");
    }
}

#[test]
fn up_and_its_gateway_serve_with_tls_on_any_address() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::init(folder.path().join("certs"));
    certificates.cert(&["server", "up"]);
    let [ca, cert, key] = ["ca.crt", "up.crt", "up.key"].map(|name| certificates.file(name));
    let data = folder.path().join("data");
    let mut command = Command::new(support::ebla());
    // Without TLS this address would need --insecure.
    command.args(["up", "--listen", "0.0.0.0:0", "--servers", "1", "--mounttable", "127.0.0.1:0"]);
    command.args(["--mounttable-http", "127.0.0.1:0", "--data"]).arg(&data);
    command.arg("--tls-ca").arg(&ca).arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
    let process = Process::start_command(&folder.path().join("up"), command);
    let port = process.ready["bigtable"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let status = certificates.ebla(&format!("127.0.0.1:{port}"), &["status"]);
    assert!(status.contains("   TLS\n"), "{status}");
    let gateway = process.ready["mounttable_http"].as_str().unwrap();
    let curl = |scheme: &str| {
        let url = format!("{scheme}://{gateway}/v1/openapi.json");
        Command::new("curl").args(["--silent", "--show-error", "--cacert"]).arg(&ca).arg(url).output()
    };
    let Ok(answer) = curl("https") else {
        eprintln!("skipped: curl is not installed");
        return;
    };
    assert!(String::from_utf8_lossy(&answer.stdout).contains("openapi"), "{answer:?}");
    let plain = curl("http").unwrap();
    assert_eq!(String::from_utf8_lossy(&plain.stdout), "this port requires TLS");
}

//! The cluster of `make cluster` as it is by default: containers are confined, every connection has TLS, and only callers with a token are served. It
//! grows and shrinks too. Skipped with the reason if Docker is not available.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bytes::Bytes;
use ebla_client::{BearerToken, Client, ReadOptions};
use ebla_model::error::Reason;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_runtime::tls::TlsFiles;
use ebla_runtime::{Runtime, Tls};
use ebla_tests::cluster::{Cluster as _, Node};
use ebla_tests::containers::{ContainerCluster, missing};
use ebla_tests::secured::Security;
use serde_json::{Value, json};

use crate::support;

const TABLET_SERVERS: usize = 3;
/// The user of all processes in containers.
const USER: &str = "10001";

#[test]
fn containers_are_confined_and_serve_only_callers_with_a_token() {
    if let Some(reason) = missing() {
        println!("skipped: {reason}");
        return;
    }
    support::block_on(async {
        let program = Path::new(support::ebla());
        let mut cluster = ContainerCluster::start_with(program, Security::On, TABLET_SERVERS).await.unwrap();
        confined(&cluster).await;
        keys_are_secret(&cluster);
        let caller = Caller::of(&cluster).await;
        caller.is_served().await;
        caller.is_refused_without_token_or_tls().await;
        etcd_serves_its_own_clients_only(&cluster).await;
        names(&cluster).await;
        // Two masters and two mounttables.
        cluster.add_metrics(TABLET_SERVERS + 4).await.unwrap();
        cluster.scale(TABLET_SERVERS + 1).await.unwrap();
        cluster.add_metrics(TABLET_SERVERS + 1 + 4).await.unwrap();
        cluster.scale(TABLET_SERVERS).await.unwrap();
        assert_eq!(caller.rows(caller.token()).await, Ok(1), "after servers came and went");
        cbt(&caller);
    });
}

/// No process is root, has a capability, gains privileges, or writes outside of its volume and /tmp.
async fn confined(cluster: &ContainerCluster) {
    let mounttables = [Node::Mounttable(0), Node::Mounttable(1)];
    for node in cluster.nodes().into_iter().chain(mounttables) {
        let inspected = Command::new("docker").args(["inspect", &cluster.container(node)]).output().unwrap();
        let inspected: Value = serde_json::from_slice(&inspected.stdout).unwrap();
        let host = inspected.pointer("/0/HostConfig").unwrap();
        assert_eq!(host.get("ReadonlyRootfs"), Some(&json!(true)), "{node}");
        assert_eq!(host.get("CapDrop"), Some(&json!(["ALL"])), "{node}");
        assert_eq!(host.get("Privileged"), Some(&json!(false)), "{node}");
        let options = host.get("SecurityOpt").unwrap().to_string();
        assert!(options.contains("no-new-privileges"), "{node}: {options}");

        let said = async |command: &str| cluster.ask(node, &["sh", "-c", command]).await;
        assert_eq!(said("id -u; id -g").await.unwrap().split_whitespace().collect::<Vec<_>>(), [USER, USER], "{node}");
        // Of the process that serves, not of the shell: process 1 is Docker's init, which has started it.
        let status = said("cat /proc/1/status").await.unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:"] {
            assert_eq!(field(set), "0000000000000000", "{node}: {set}");
        }
        assert_eq!(field("NoNewPrivs:"), "1", "{node}");
        for file in ["/x", "/usr/local/bin/x", "/etc/ebla/x"] {
            let refused = said(&format!("touch {file} 2>&1 && echo done")).await.unwrap_err().to_string();
            assert!(refused.contains("Read-only file system"), "{node}: {file}: {refused}");
        }
        said("touch /tmp/x").await.unwrap();
    }
}

/// Each container has its own keys, and the folder of all keys is closed to other users of this machine.
fn keys_are_secret(cluster: &ContainerCluster) {
    let folder = cluster.files();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(folder.clone()), 0o700);
    for file in ["ca/ca.key", "etcd/ca.key", "tokens/token.key", "containers/operator/operator.token"] {
        assert_eq!(mode(folder.join(file)), 0o600, "{file}");
    }
    let copies = std::fs::read_dir(folder.join("containers/tablet-server-1")).unwrap();
    let mut copies: Vec<_> = copies.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    copies.sort();
    let wanted = ["ca.crt", "etcd-ca.crt", "etcd.crt", "etcd.key", "server.crt", "server.key", "token-keys.json"];
    assert_eq!(copies, wanted);
}

/// A caller on this machine, outside of the containers.
struct Caller {
    address: String,
    ca: PathBuf,
    token: PathBuf,
    table: TableName,
}

impl Caller {
    async fn of(cluster: &ContainerCluster) -> Self {
        Self {
            address: cluster.host_address(0).await.unwrap(),
            ca: cluster.files().join("ca/ca.crt"),
            token: cluster.files().join("containers/operator/operator.token"),
            table: "projects/dev/instances/dev/tables/web".parse().unwrap(),
        }
    }

    fn token(&self) -> Option<BearerToken> {
        Some(BearerToken::new(&std::fs::read_to_string(&self.token).unwrap()).unwrap())
    }

    /// A client that trusts this CA.
    fn client(&self, ca: &Path, token: Option<BearerToken>) -> Client {
        let runtime = Runtime::system("secured");
        let files = TlsFiles { ca: ca.to_path_buf(), own: None };
        let tls = Tls::open(files, runtime.clock.clone()).unwrap();
        let net = runtime.net.clone().with_tls(tls);
        Client::endpoint(&self.address, Runtime { net, ..runtime }).with_token(token)
    }

    async fn rows(&self, token: Option<BearerToken>) -> Result<usize, Reason> {
        let table = self.client(&self.ca, token).table(&self.table);
        let rows = table.read_rows(RowSet::all(), ReadOptions::default()).await;
        rows.map(|rows| rows.len()).map_err(|error| error.reason)
    }

    /// Runs `ebla` on this machine; what is not given is not used.
    fn ebla(&self, arguments: &[&str], ca: Option<&Path>, token: Option<&Path>) -> Output {
        let mut command = Command::new(support::ebla());
        command.args(arguments).env("EBLA_ADDR", &self.address).env("EBLA_TIMEOUT", "30s");
        command.envs(ca.map(|ca| ("EBLA_TLS_CA", ca))).envs(token.map(|token| ("EBLA_TOKEN_FILE", token)));
        command.output().unwrap()
    }

    async fn is_served(&self) {
        let made = self.ebla(&["table", "create", "web", "--family", "f"], Some(&self.ca), Some(&self.token));
        assert!(made.status.success(), "{made:?}");
        let status = self.ebla(&["status"], Some(&self.ca), Some(&self.token));
        assert!(status.status.success() && String::from_utf8_lossy(&status.stdout).contains("TLS"), "{status:?}");
        let cell = Mutation::SetCell {
            family: "f".to_owned(),
            qualifier: Bytes::from_static(b"q"),
            timestamp: WriteTime::Server,
            value: Bytes::from_static(b"value"),
        };
        let row = RowKey::copy_from_slice(b"row");
        self.client(&self.ca, self.token())
            .table(&self.table)
            .mutate_row(&row, std::slice::from_ref(&cell))
            .await
            .unwrap();
        assert_eq!(self.rows(self.token()).await, Ok(1));
        let unnamed = self.client(&self.ca, None).table(&self.table).mutate_row(&row, &[cell]).await;
        assert_eq!(unnamed.map_err(|error| error.reason), Err(Reason::Unauthenticated));
    }

    async fn is_refused_without_token_or_tls(&self) {
        assert_eq!(self.rows(None).await, Err(Reason::Unauthenticated));
        let refused = |ca, token, wanted: &str| {
            let output = self.ebla(&["table", "list"], ca, token);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains(wanted), "{wanted}: {output:?}");
        };
        refused(Some(self.ca.as_path()), None, "this server needs a token");
        refused(None, Some(self.token.as_path()), "this port requires TLS");
        // A CA that has not signed the certificate of the server.
        let other = tempfile::tempdir().unwrap();
        for arguments in [["cert", "init"], ["token", "init"]] {
            let made = Command::new(support::ebla()).args(arguments).arg("--dir").arg(other.path()).output().unwrap();
            assert!(made.status.success(), "{made:?}");
        }
        refused(Some(&other.path().join("ca.crt")), Some(self.token.as_path()), "--tls-ca");
        // A token for the right issuer, by another key.
        let issue = ["token", "issue", "operator", "--issuer", "https://ebla.example.org", "--audience", "ebla"];
        let file = other.path().join("operator.token");
        let mut made = Command::new(support::ebla());
        made.args(issue).arg("--dir").arg(other.path()).arg("--out").arg(&file);
        assert!(made.output().unwrap().status.success());
        let forged = BearerToken::new(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(self.rows(Some(forged)).await, Err(Reason::Unauthenticated));
    }
}

/// etcd takes certificates of its own CA only. Those of the cluster's CA, which users have too, are none.
async fn etcd_serves_its_own_clients_only(cluster: &ContainerCluster) {
    let health = async |more: &str| {
        let command = format!(
            "ETCDCTL_API=3 etcdctl --endpoints https://etcd-1:2379 --cacert /etc/ebla/etcd-ca.crt {more} --command-timeout=5s endpoint health"
        );
        cluster.ask(Node::Master(0), &["sh", "-c", &command]).await
    };
    health("--cert /etc/ebla/etcd.crt --key /etc/ebla/etcd.key").await.unwrap();
    assert!(health("").await.is_err(), "without a certificate");
    assert!(health("--cert /etc/ebla/server.crt --key /etc/ebla/server.key").await.is_err(), "of the cluster's CA");
}

/// The mounttable authenticates callers by the same tokens.
async fn names(cluster: &ContainerCluster) {
    let token = ["--root", "mounttable-1:8101", "--token-file", "/etc/ebla/operator.token"];
    cluster.operator(&[&["mt"], &token[..], &["mount", "services/web", "10.0.0.1:80"]].concat()).await.unwrap();
    let found = cluster.operator(&[&["mt"], &token[..], &["resolve", "services/web"]].concat()).await.unwrap();
    assert!(found.contains("10.0.0.1:80"), "{found}");
    let refused = cluster.operator(&["mt", "--root", "mounttable-1:8101", "ls"]).await;
    assert!(refused.is_err(), "without a token: {refused:?}");
    // Its certificate has rights for its own instance, and is no administrator's.
    let asks = async |command: &str| cluster.ask(Node::Mounttable(0), &["sh", "-c", command]).await;
    let own = asks("ebla table list --addr tablet-server-1:8086").await.unwrap();
    assert!(own.contains("mounttable"), "{own}");
    for command in ["table list --instance dev", "server drain 1", "iam get --instance dev"] {
        let refused = asks(&format!("ebla {command} --addr tablet-server-1:8086")).await.unwrap_err().to_string();
        assert!(refused.contains("is denied") || refused.contains("for administrators"), "{command}: {refused}");
    }
}

/// Google's command-line client, as `make cluster` shows it.
fn cbt(caller: &Caller) {
    if Command::new("cbt").arg("version").output().is_err() {
        println!("skipped: cbt is not installed; it comes with the Google Cloud CLI");
        return;
    }
    let run = |token: &str| {
        let address = caller.address.as_str();
        let mut command = Command::new("cbt");
        command.args(["-project", "dev", "-instance", "dev", "-data-endpoint", address, "-admin-endpoint", address]);
        command.arg("-cert-file").arg(&caller.ca).args(["-access-token", token, "read", "web"]).output().unwrap()
    };
    let read = run(std::fs::read_to_string(&caller.token).unwrap().trim());
    assert!(read.status.success() && String::from_utf8_lossy(&read.stdout).contains("value"), "{read:?}");
    let refused = run("none");
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("Unauthenticated"),
        "{refused:?}"
    );
}

//! A cluster of processes with TLS and access control: identities by client certificates, policies, lists of families and authorized views, and that nothing but the
//! public API is open to users.

#![expect(clippy::unwrap_used, reason = "a test may fail, and then says where")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Admin, BearerToken, Client, ReadOptions};
use ebla_model::access::{Member, Policy, Role};
use ebla_model::error::Reason;
use ebla_model::filter::Filter;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_model::schema::TableName;
use ebla_proto::data::ReadRowsRequest;
use ebla_proto::locate::ClusterRequest;
use ebla_proto::locate::locate_client::LocateClient;
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_runtime::Runtime;
use ebla_tests::cluster::Cluster as _;
use ebla_tests::etcd::Build;
use ebla_tests::network::{Loopback, NodeNetwork as _};
use ebla_tests::process::{Plan, ProcessCluster};
use serde_json::Value;

use crate::support::{self, documents};
use crate::tls::{CLIENT, Certificates};

/// What the tokens of this test say, and the servers expect.
const ISSUER: [&str; 4] = ["--issuer", "https://login.example.org", "--audience", "ebla"];
/// How long a change of a policy takes at most, with a second for a busy machine.
const EFFECTIVE_MAX: Duration = Duration::from_secs(2);
/// How long a record of the audit log may take on a busy machine.
const AUDITED_MAX: Duration = Duration::from_secs(30);

#[test]
fn certificates_are_identities_and_only_the_public_api_is_open_to_users() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(guarded());
}

/// The test as its callers.
struct Callers {
    certificates: Certificates,
    address: String,
    master: String,
}

impl Callers {
    /// Runs a command of `ebla` with this certificate, or with none.
    fn ebla(&self, name: Option<&str>, address: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(support::ebla());
        command.args(arguments).env("EBLA_ADDR", address).env("EBLA_TLS_CA", self.certificates.file("ca.crt"));
        if let Some(name) = name {
            command.env("EBLA_TLS_CERT", self.certificates.file(&format!("{name}.crt")));
            command.env("EBLA_TLS_KEY", self.certificates.file(&format!("{name}.key")));
        }
        command.output().unwrap()
    }

    fn succeeds(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.ebla(Some(name), &self.address, arguments);
        assert!(output.status.success(), "{name}: ebla {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn is_refused(&self, name: Option<&str>, address: &str, arguments: &[&str], wanted: &str) {
        let output = self.ebla(name, address, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{name:?}: ebla {arguments:?}: {said}");
    }

    fn runtime(&self, name: Option<&str>) -> Runtime {
        self.certificates.runtime(name)
    }
}

/// Runs `ebla token` in a folder, and returns what it printed.
fn token(arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(support::ebla()).arg("token").args(arguments).arg("--dir").arg(folder).output().unwrap();
    assert!(output.status.success(), "ebla token {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

async fn guarded() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::init(folder.path().join("certs"));
    let tokens = folder.path().join("tokens");
    token(&["init"], &tokens);
    let keys = tokens.join("token-keys.json");
    let network = Loopback::claim().unwrap();
    // All servers append to it.
    let audit = folder.path().join("audit.log");
    let administrators = format!("certificate:{CLIENT},subject:operator");
    let names: Member = "certificate:mounttable-0".parse().unwrap();
    let options = [
        ("--token-keys", keys.display().to_string()),
        ("--token-issuer", "https://login.example.org".to_owned()),
        ("--token-audience", "ebla".to_owned()),
        ("--administrators", administrators),
        ("--audit-log", audit.display().to_string()),
        // Every operation is recorded.
        ("--slow-ms", "0".to_owned()),
    ];
    let plan = Plan {
        etcd: 1,
        masters: 1,
        mounttables: 1,
        certificates: Some(certificates.folder().to_path_buf()),
        policies: vec![("projects/dev/instances/dev".parse().unwrap(), Policy::new([(Role::Admin, names)]).unwrap())],
        server_options: options.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect(),
        ..Plan::new(support::ebla(), 3)
    };
    let nodes: Vec<_> = plan.nodes().into_iter().map(|node| (node, network.host(node))).collect();
    certificates.issue(&nodes);
    certificates.cert(&["client", "reader"]);
    let runtime = certificates.runtime(Some(CLIENT));
    let cluster = ProcessCluster::start(plan, network, &runtime).await.unwrap();
    let address = cluster.addresses().first().unwrap().clone();
    let master = Admin::connect(&address, &runtime).status().await.unwrap().master.unwrap().address;
    let callers = Callers { certificates, address, master };

    policies(&callers).await;
    tokens_are_identities(&callers, &tokens).await;
    views(&callers).await;
    not_for_users(&callers).await;
    // The mounttable has created its table, with its own certificate, and reads and writes it.
    let root = cluster.mounttable_addresses().first().unwrap().clone();
    callers.succeeds(CLIENT, &["mt", "--root", &root, "--as", "server", "ls"]);
    mounttables_need_rights(&callers, &audit).await;
}

/// A mounttable calls tablets directly, with its rights for their tables.
async fn mounttables_need_rights(callers: &Callers, audit: &Path) {
    const MOUNTTABLE: &str = "mounttable-0";
    let own = "projects/dev/instances/dev/tables/own".parse::<TableName>().unwrap();
    let other = "projects/dev/instances/other/tables/web".parse::<TableName>().unwrap();
    for table in [&own, &other] {
        callers.succeeds(CLIENT, &["table", "create", table.as_str(), "--family", "open", "--family", "secret"]);
    }
    let client = Client::connect_cluster(&callers.address, callers.runtime(Some(MOUNTTABLE))).await.unwrap();
    assert!(client.low_level().is_ok(), "it calls tablets, not the public API");
    let set = |family: &str| Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from_static(b"value"),
    };
    let key = RowKey::copy_from_slice(b"row");
    let write = async |table: &TableName, families: &[&str]| {
        let mutations: Vec<_> = families.iter().map(|family| set(family)).collect();
        client.table(table).mutate_row(&key, &mutations).await.map_err(|error| error.reason)
    };
    let read = async |table: &TableName, filter: Option<Filter>| {
        let options = ReadOptions { filter, ..ReadOptions::default() };
        let rows = client.table(table).read_rows(RowSet::all(), options).await.map_err(|error| error.reason)?;
        Ok::<usize, Reason>(rows.into_iter().map(|row| row.cells.len()).sum())
    };
    // By the policy of the instance.
    assert_eq!(write(&own, &["open", "secret"]).await, Ok(()));
    assert_eq!(read(&own, None).await, Ok(2));
    let rule = increment("secret");
    let counter = RowKey::copy_from_slice(b"counter");
    client.table(&own).read_modify_write(&counter, std::slice::from_ref(&rule)).await.unwrap();
    // Without a policy.
    let (denied, resource) = (Err(Reason::PermissionDenied), other.as_str());
    assert_eq!(write(&other, &["open"]).await, denied);
    assert_eq!(read(&other, None).await, denied.map(|()| 0));
    are_audited(audit, resource, &["Read", "Write"]).await;
    let shown = client.table(&other).read_rows(RowSet::all(), ReadOptions::default()).await.unwrap_err().to_string();
    assert!(shown.contains("permission bigtable.tables.readRows is denied on projects/dev/instances/other"), "{shown}");
    // A reader does not write.
    let reader = ["iam", "set", resource, "--add", "roles/bigtable.reader=certificate:mounttable-0"];
    callers.succeeds(CLIENT, &reader);
    tokio::time::sleep(EFFECTIVE_MAX).await;
    assert_eq!(read(&other, None).await, Ok(0));
    assert_eq!(write(&other, &["open"]).await, denied);
    // A list that leaves it out.
    let list = ["iam", "set", own.as_str(), "--family", "secret", "--add", "roles/ebla.familyReader=subject:nobody"];
    callers.succeeds(CLIENT, &list);
    tokio::time::sleep(EFFECTIVE_MAX).await;
    assert_eq!(read(&own, None).await, denied.map(|()| 0), "a part of the rows would be misleading");
    let open = Filter::FamilyNameRegex(Bytes::from_static(b"open"));
    assert_eq!(read(&own, Some(open)).await, Ok(1));
    assert_eq!(write(&own, &["open"]).await, Ok(()));
    assert_eq!(write(&own, &["open", "secret"]).await, denied);
    let modified = client.table(&own).read_modify_write(&counter, &[rule]).await;
    assert_eq!(modified.map(drop).map_err(|error| error.reason), denied);
    are_audited(audit, own.as_str(), &["Modify", "Read", "Write"]).await;
}

fn increment(family: &str) -> Rule {
    let (family, qualifier) = (family.to_owned(), Bytes::from_static(b"n"));
    Rule { family, qualifier, operation: Operation::Increment(1) }
}

/// Waits until the audit log has these methods, and no others, as refused to the mounttable on a resource.
async fn are_audited(audit: &Path, resource: &str, methods: &[&str]) {
    let is_refusal = |record: &Value| {
        record["identity"] == "certificate:mounttable-0"
            && record["resource"] == resource
            && record["decision"] == "PERMISSION_DENIED"
    };
    let wanted: BTreeSet<_> = methods.iter().map(|method| format!("/ebla.tablet.Tablets/{method}")).collect();
    let found = || -> BTreeSet<String> {
        let lines = std::fs::read_to_string(audit).unwrap();
        let records = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        records.filter(is_refusal).filter_map(|record| record.get("method")?.as_str().map(str::to_owned)).collect()
    };
    let written = async {
        while found() != wanted {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(AUDITED_MAX, written).await;
    assert!(waited.is_ok(), "{resource}: {:?}", found());
}

/// Policies of a table, and the list of a family, for a caller with a certificate.
async fn policies(callers: &Callers) {
    let table = "projects/dev/instances/dev/tables/web".parse::<TableName>().unwrap();
    callers.succeeds(CLIENT, &["table", "create", "web", "--family", "open", "--family", "secret"]);
    let of = |name| Client::endpoint(&callers.address, callers.runtime(name)).table(&table);
    let set = |family: &str| Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: WriteTime::Server,
        value: Bytes::from(family.to_owned()),
    };
    let key = RowKey::copy_from_slice(b"row");
    of(Some(CLIENT)).mutate_row(&key, &[set("open"), set("secret")]).await.unwrap();

    let families = async |name| {
        let rows = of(name).read_rows(RowSet::all(), ReadOptions::default()).await.map_err(|error| error.reason)?;
        let cells = rows.into_iter().flat_map(|row| row.cells);
        Ok::<Vec<String>, Reason>(cells.map(|cell| cell.family.as_str().to_owned()).collect())
    };
    assert_eq!(families(Some(CLIENT)).await, Ok(vec!["open".to_owned(), "secret".to_owned()]));
    assert_eq!(families(Some("reader")).await, Err(Reason::PermissionDenied), "without a policy");
    assert_eq!(families(None).await, Err(Reason::Unauthenticated), "without a certificate");

    callers.succeeds(CLIENT, &["iam", "set", "web", "--add", "roles/bigtable.reader=certificate:reader"]);
    let list = ["iam", "set", "web", "--family", "secret", "--add", "roles/ebla.familyReader=subject:nobody"];
    callers.succeeds(CLIENT, &list);
    tokio::time::sleep(EFFECTIVE_MAX).await;
    assert_eq!(families(Some("reader")).await, Ok(vec!["open".to_owned()]));
    assert_eq!(traced(callers, "reader"), BTreeSet::from([Some(table.as_str().to_owned())]));
    let all = traced(callers, CLIENT);
    assert!(all.contains(&None) && all.contains(&Some(table.as_str().to_owned())), "{all:?}");
    let refused = of(Some("reader")).mutate_row(&key, &[set("open")]).await.unwrap_err();
    assert_eq!(refused.reason, Reason::PermissionDenied, "a reader does not write");
    callers.succeeds(CLIENT, &["iam", "set", "web", "--remove", "roles/bigtable.reader=certificate:reader"]);
    tokio::time::sleep(EFFECTIVE_MAX).await;
    assert_eq!(families(Some("reader")).await, Err(Reason::PermissionDenied), "the right was revoked");
    assert_eq!(traced(callers, "reader"), BTreeSet::new());
    callers.is_refused(Some("reader"), &callers.address, &["slow", "--table", "web"], "is denied");
    callers.is_refused(None, &callers.address, &["slow"], "this server needs a token");
}

/// The tables of the operations that a caller sees; `None`: operations without a table.
fn traced(callers: &Callers, name: &str) -> BTreeSet<Option<String>> {
    let shown = callers.succeeds(name, &["slow", "--failed", "-n", "1000", "-o", "json"]);
    let records: Vec<Value> = serde_json::from_str(&shown).unwrap();
    records.iter().map(|record| record.get("table").and_then(Value::as_str).map(str::to_owned)).collect()
}

/// Callers without a certificate, with tokens as `ebla token` issues them.
async fn tokens_are_identities(callers: &Callers, folder: &Path) {
    let issue = |subject: &str, more: &[&str], folder: &Path| {
        BearerToken::new(&token(&[&["issue", subject], &ISSUER[..], more].concat(), folder)).unwrap()
    };
    let table = "projects/dev/instances/dev/tables/web".parse::<TableName>().unwrap();
    let read = async |token| {
        let client = Client::endpoint(&callers.address, callers.runtime(None)).with_token(Some(token));
        let rows = client.table(&table).read_rows(RowSet::all(), ReadOptions::default()).await;
        rows.map(|rows| rows.len()).map_err(|error| error.reason)
    };
    assert_eq!(read(issue("operator", &[], folder)).await, Ok(1), "an administrator");
    assert_eq!(read(issue("alice", &[], folder)).await, Err(Reason::PermissionDenied), "without a policy");
    callers.succeeds(CLIENT, &["iam", "set", "web", "--add", "roles/bigtable.reader=group:staff"]);
    tokio::time::sleep(EFFECTIVE_MAX).await;
    assert_eq!(read(issue("alice", &["--group", "staff,others"], folder)).await, Ok(1), "of a group");
    assert_eq!(read(issue("alice", &["--group", "others"], folder)).await, Err(Reason::PermissionDenied));
    let elsewhere = ["issue", "operator", "--issuer", "https://login.example.org", "--audience", "another"];
    let elsewhere = BearerToken::new(&token(&elsewhere, folder)).unwrap();
    assert_eq!(read(elsewhere).await, Err(Reason::Unauthenticated), "of another audience");
    let other = tempfile::tempdir().unwrap();
    token(&["init"], other.path());
    assert_eq!(read(issue("operator", &[], other.path())).await, Err(Reason::Unauthenticated), "of another key");
    let file = folder.join("operator.token");
    token(&[&["issue", "operator", "--out", file.to_str().unwrap()], &ISSUER[..]].concat(), folder);
    let file = file.to_str().unwrap();
    for command in [&["status"][..], &["wait", "--servers", "3", "--for", "30"], &["get", "web", "row"], &["slow"]] {
        let with_token = [command, &["--token-file", file]].concat();
        let output = callers.ebla(None, &callers.address, &with_token);
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    callers.is_refused(None, &callers.address, &["server", "drain", "1"], "this server needs a token");
}

/// A view by the commands, and a read through it by a caller who has no right for the table.
async fn views(callers: &Callers) {
    let create = ["view", "create", "web", "rows", "--row-prefix", "ro", "--family", "open"];
    callers.is_refused(Some("reader"), &callers.address, &create, "is denied");
    callers.succeeds(CLIENT, &create);
    let grant = ["iam", "set", "web", "--view", "rows", "--add", "roles/bigtable.admin=certificate:reader"];
    callers.succeeds(CLIENT, &grant);
    tokio::time::sleep(EFFECTIVE_MAX).await;
    let request = ReadRowsRequest {
        authorized_view_name: "projects/dev/instances/dev/tables/web/authorizedViews/rows".to_owned(),
        ..Default::default()
    };
    let mut data = BigtableClient::new(callers.runtime(Some("reader")).net.channel(&callers.address));
    let mut messages = data.read_rows(request).await.unwrap().into_inner();
    let mut families = Vec::new();
    while let Some(message) = messages.message().await.unwrap() {
        families.extend(message.chunks.into_iter().filter_map(|chunk| chunk.family_name).map(|name| name.value));
    }
    assert_eq!(families, ["open"]);
    // Who has the view alone does not change it.
    let widen = ["view", "update", "web", "rows", "--all-rows", "--family", "secret"];
    callers.is_refused(Some("reader"), &callers.address, &widen, "is denied");
    callers.is_refused(Some("reader"), &callers.address, &["view", "delete", "web", "rows", "--yes"], "is denied");
    assert_eq!(callers.succeeds(CLIENT, &["view", "list", "web"]), "rows\n");
    let protect = |state: &'static str| ["view", "update", "web", "rows", "--deletion-protection", state];
    callers.succeeds(CLIENT, &protect("on"));
    let delete = ["table", "delete", "web", "--yes"];
    callers.is_refused(Some(CLIENT), &callers.address, &delete, "authorized view that is protected");
    callers.succeeds(CLIENT, &protect("off"));
    let deleted = callers.succeeds(CLIENT, &["view", "delete", "web", "rows", "--yes", "-o", "json"]);
    let deleted: Value = serde_json::from_str(&deleted).unwrap();
    documents::check("ebla view delete", &deleted);
    let name = "projects/dev/instances/dev/tables/web/authorizedViews/rows";
    assert_eq!(deleted, serde_json::json!({"name": name, "deleted": true}));
    assert_eq!(callers.succeeds(CLIENT, &["view", "list", "web", "-o", "json"]), "[]\n");
}

/// The services between servers, and the master.
async fn not_for_users(callers: &Callers) {
    // Ebla's own client calls the public API instead of tablets: an administrator is served, others are refused.
    assert!(callers.succeeds(CLIENT, &["row", "scan", "web"]).contains("row"));
    callers.succeeds(CLIENT, &["row", "set", "web", "row-2", "open:q=value"]);
    callers.is_refused(Some("reader"), &callers.address, &["row", "scan", "web"], "is denied");
    callers.is_refused(None, &callers.address, &["row", "scan", "web"], "this server needs a token");
    callers.is_refused(Some(CLIENT), &callers.address, &["meta", "list"], "only servers learn it");
    for (name, wanted) in [
        (Some("reader"), Some(Reason::PermissionDenied)),
        (Some(CLIENT), Some(Reason::PermissionDenied)),
        (None, Some(Reason::PermissionDenied)),
        (Some("tablet-server-1"), None),
    ] {
        let listed = Admin::connect(&callers.master, &callers.runtime(name)).list_tables("dev", "dev").await;
        assert_eq!(listed.err().map(|error| error.reason), wanted, "{name:?} at the master");
    }
    for (name, has_tables) in [(Some("reader"), false), (None, false), (Some("mounttable-0"), true)] {
        let mut locate = LocateClient::new(callers.runtime(name).net.channel(&callers.address));
        let cluster = locate.cluster(ClusterRequest::default()).await.unwrap().into_inner();
        assert_eq!(
            (!cluster.tables.is_empty(), cluster.root.is_some()),
            (has_tables, has_tables),
            "{name:?}: {cluster:?}"
        );
    }
    callers.is_refused(Some("reader"), &callers.address, &["server", "drain", "1"], "for administrators");
    callers.succeeds(CLIENT, &["status"]);
}

//! Every method of every public service, called with empty and with random requests.
//!
//! Each call must return a response or a status with a message, must not break its connection, and must not affect later calls.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_proto::admin;
use ebla_proto::raw::Raw;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_runtime::net::Network;
use ebla_runtime::{Connection, Listener, Net, Rng};
use futures::future::BoxFuture;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::conformance::noise;
use crate::support::Up;

/// Timeout of a call: none of them waits for anything.
const DEADLINE: Duration = Duration::from_secs(60);
/// Random bodies for each method.
const BODIES: usize = 24;
const INSTANCE: &str = "projects/probe/instances/probe";

const SERVICES: [(&str, &[&str]); 4] = [
    (
        "google.bigtable.v2.Bigtable",
        &[
            "ReadRows",
            "SampleRowKeys",
            "MutateRow",
            "MutateRows",
            "CheckAndMutateRow",
            "PingAndWarm",
            "ReadModifyWriteRow",
            "GenerateInitialChangeStreamPartitions",
            "ReadChangeStream",
            "PrepareQuery",
            "ExecuteQuery",
        ],
    ),
    (
        "google.bigtable.admin.v2.BigtableTableAdmin",
        &[
            "CreateTable",
            "CreateTableFromSnapshot",
            "ListTables",
            "GetTable",
            "UpdateTable",
            "DeleteTable",
            "UndeleteTable",
            "CreateAuthorizedView",
            "ListAuthorizedViews",
            "GetAuthorizedView",
            "UpdateAuthorizedView",
            "DeleteAuthorizedView",
            "ModifyColumnFamilies",
            "DropRowRange",
            "GenerateConsistencyToken",
            "CheckConsistency",
            "SnapshotTable",
            "GetSnapshot",
            "ListSnapshots",
            "DeleteSnapshot",
            "CreateBackup",
            "GetBackup",
            "UpdateBackup",
            "DeleteBackup",
            "ListBackups",
            "RestoreTable",
            "CopyBackup",
            "GetIamPolicy",
            "SetIamPolicy",
            "TestIamPermissions",
            "CreateSchemaBundle",
            "UpdateSchemaBundle",
            "GetSchemaBundle",
            "ListSchemaBundles",
            "DeleteSchemaBundle",
        ],
    ),
    (
        "google.bigtable.admin.v2.BigtableInstanceAdmin",
        &[
            "CreateInstance",
            "GetInstance",
            "ListInstances",
            "UpdateInstance",
            "PartialUpdateInstance",
            "DeleteInstance",
            "CreateCluster",
            "GetCluster",
            "ListClusters",
            "UpdateCluster",
            "PartialUpdateCluster",
            "DeleteCluster",
            "CreateAppProfile",
            "GetAppProfile",
            "ListAppProfiles",
            "UpdateAppProfile",
            "DeleteAppProfile",
            "GetIamPolicy",
            "SetIamPolicy",
            "TestIamPermissions",
            "ListHotTablets",
            "CreateLogicalView",
            "GetLogicalView",
            "ListLogicalViews",
            "UpdateLogicalView",
            "DeleteLogicalView",
            "CreateMaterializedView",
            "GetMaterializedView",
            "ListMaterializedViews",
            "UpdateMaterializedView",
            "DeleteMaterializedView",
        ],
    ),
    (
        "google.longrunning.Operations",
        &["ListOperations", "GetOperation", "DeleteOperation", "CancelOperation", "WaitOperation"],
    ),
];

/// Methods newer than the published messages, and an unknown one: they must be refused at once, because clients wait for them.
const UNKNOWN: [&str; 5] = [
    "google.bigtable.v2.Bigtable/GetClientConfiguration",
    "google.bigtable.v2.Bigtable/OpenTable",
    "google.bigtable.v2.Bigtable/OpenAuthorizedView",
    "google.bigtable.v2.Bigtable/OpenMaterializedView",
    "google.example.Nothing/Never",
];

#[test]
fn every_method_answers_every_request() {
    let seed = std::env::var("EBLA_PROBE_SEED").map_or(1, |seed| seed.parse().unwrap());
    eprintln!("EBLA_PROBE_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), &[]);
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(Box::pin(probe(&up.addresses[1], &Rng::seeded(seed))));
}

async fn probe(address: &str, rng: &Rng) {
    let connections = Arc::new(AtomicUsize::new(0));
    let net = Net::custom(Arc::new(Counting { net: Net::tcp(), connections: Arc::clone(&connections) }));
    let channel = net.channel(address);
    let names = names();
    create_table(channel.clone(), INSTANCE, "probe").await;
    let (mut calls, mut answers) = (0, 0);
    for (service, methods) in SERVICES {
        for method in methods {
            let path = format!("{service}/{method}");
            let bodies = std::iter::once(Bytes::new()).chain((0..BODIES).map(|_| noise::body(rng, &names)));
            for body in bodies {
                calls += 1;
                match call(&channel, &path, body.clone()).await {
                    Ok(()) => answers += 1,
                    Err(status) => check(&path, &body, &status),
                }
            }
            let alive = call(&channel, "google.bigtable.v2.Bigtable/PingAndWarm", ping()).await;
            assert!(alive.is_ok(), "after {path}: {alive:?}");
        }
    }
    for path in UNKNOWN {
        let status = call(&channel, path, Bytes::new()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status}");
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1, "a connection broke");
    // The instance may have been deleted by then.
    create_table(channel, "projects/probe/instances/afterwards", "alive").await;
    eprintln!("{calls} calls, {answers} answered without an error");
}

/// A refusal has a message and a code that does not indicate a failure of the server.
fn check(path: &str, body: &Bytes, status: &Status) {
    let at_fault = matches!(status.code(), Code::Internal | Code::Unknown | Code::Cancelled | Code::DataLoss);
    // tonic refuses bytes that are no message before any of our code sees them, and calls that internal.
    let not_a_message =
        status.code() == Code::Internal && status.message().contains("failed to decode Protobuf message");
    let hung = status.code() == Code::DeadlineExceeded;
    let lost = status.code() == Code::Unavailable;
    assert!(
        !hung && !lost && !status.message().is_empty() && (not_a_message || !at_fault),
        "{path} with {}: {status:?}",
        body.escape_ascii()
    );
}

/// Makes a call with these bytes as its request, and takes all of its answers.
async fn call(channel: &Channel, path: &str, body: Bytes) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let mut request = Request::new(body);
    request.set_timeout(DEADLINE);
    let path = format!("/{path}").parse().unwrap();
    let all = async {
        let mut answers = grpc.server_streaming(request, path, Raw).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok(())
    };
    let hung = |_elapsed| {
        Err(ebla_proto::status::to_status(&ebla_model::Error::new(ebla_model::Reason::Deadline, "timed out")))
    };
    tokio::time::timeout(DEADLINE, all).await.unwrap_or_else(hung)
}

async fn create_table(channel: Channel, instance: &str, table: &str) {
    let families = [("f".to_owned(), admin::ColumnFamily::default())].into();
    let request = admin::CreateTableRequest {
        parent: instance.to_owned(),
        table_id: table.to_owned(),
        table: Some(admin::Table { column_families: families, ..Default::default() }),
        ..Default::default()
    };
    BigtableTableAdminClient::new(channel).create_table(request).await.unwrap();
}

/// Strings for requests of the methods.
fn names() -> Vec<String> {
    let first = [format!("{INSTANCE}/tables/probe"), INSTANCE.to_owned(), "projects/probe".to_owned()];
    let here = ["tables/-", "clusters/c", "clusters/c/backups/b", "appProfiles/default", "logicalViews/v", ""];
    let other = ["operations/1", "f", "k", "", "*", "\u{0}", "../..", "max_versions"];
    let here = here.iter().map(|name| format!("{INSTANCE}/{name}"));
    first.into_iter().chain(here).chain(other.map(str::to_owned)).collect()
}

fn ping() -> Bytes {
    use prost::Message as _;
    let ping = ebla_proto::data::PingAndWarmRequest { name: INSTANCE.to_owned(), ..Default::default() };
    ping.encode_to_vec().into()
}

/// TCP that counts its connections.
#[derive(Debug)]
struct Counting {
    net: Net,
    connections: Arc<AtomicUsize>,
}

impl Network for Counting {
    fn listen(&self, address: String) -> BoxFuture<'_, io::Result<Listener>> {
        Box::pin(async move { self.net.listen(&address).await })
    }

    fn connect(&self, address: String) -> BoxFuture<'_, io::Result<Connection>> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { self.net.connect(&address).await })
    }
}

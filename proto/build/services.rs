//! Google's public services by name: four tables, one line a method.
//!
//! Each line names the method and the Rust types of its request and answer, as paths from this crate's root. A server method that nobody implements
//! answers UNIMPLEMENTED with its own name, so a client never waits for what is not there; lines of methods that are not
//! served say what to do instead. Out of the same lines comes the catalogue that `docs/reference/api.md` is compared with.
//!
//! Server and client may use different types for one message, as long as the bytes agree: the server of `ReadRows`
//! sends encoded answers that it never decoded.

use tonic_build::{
    CodeGenBuilder,
    manual::{Method, Service},
};

/// What `tonic-build` writes into every default method; replaced by a refusal in the method's name.
const STUB: &str = r#"tonic :: Status :: unimplemented ("Not yet implemented")"#;

#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    request: &'static str,
    answer: Answer,
    /// Type of the answer on the server's side.
    served: &'static str,
    /// What to do instead, if it is not served.
    instead: Option<&'static str>,
}

#[derive(Clone, Copy)]
enum Answer {
    One(&'static str),
    Stream(&'static str),
}

const fn unary(name: &'static str, request: &'static str, answer: &'static str) -> Call {
    Call { name, request, answer: Answer::One(answer), served: answer, instead: None }
}

const fn stream(name: &'static str, request: &'static str, answer: &'static str) -> Call {
    Call { name, request, answer: Answer::Stream(answer), served: answer, instead: None }
}

impl Call {
    /// The same call with another Rust type for the answer on the server's side.
    const fn served_as(self, served: &'static str) -> Self {
        Self { served, ..self }
    }

    /// The same call, which is not served: what to do instead.
    const fn refused(self, instead: &'static str) -> Self {
        Self { instead: Some(instead), ..self }
    }
}

/// The Rust text of all stubs, servers and clients, and of the catalogue.
///
/// # Errors
/// When the generator writes default methods in another way than this knows.
pub(crate) fn stubs() -> Result<String, String> {
    let services = [
        ("google.bigtable.v2", "Bigtable", BIGTABLE),
        ("google.bigtable.admin.v2", "BigtableTableAdmin", TABLE_ADMIN),
        ("google.bigtable.admin.v2", "BigtableInstanceAdmin", INSTANCE_ADMIN),
        ("google.longrunning", "Operations", OPERATIONS),
    ];
    let mut text = catalogue(&services);
    for (package, name, calls) in services {
        text.push_str(&server(package, name, calls)?);
        text.push_str(&client(package, name, calls));
        text.push('\n');
    }
    Ok(text)
}

/// All calls by name, as a constant.
fn catalogue(services: &[(&str, &str, &[Call])]) -> String {
    let call = |call: &Call| format!("PublicCall {{ name: {:?}, instead: {:?} }},", call.name, call.instead);
    let service = |(package, name, calls): &(&str, &str, &[Call])| {
        let calls: String = calls.iter().map(call).collect();
        format!("PublicService {{ name: \"{package}.{name}\", calls: &[{calls}] }},")
    };
    let all: String = services.iter().map(service).collect();
    format!("/// Every call of every public service.\npub const CATALOGUE: &[PublicService] = &[{all}];\n")
}

fn server(package: &str, name: &str, calls: &[Call]) -> Result<String, String> {
    let described = service(package, name, calls, |call| call.served);
    let text = CodeGenBuilder::new().generate_default_stubs(true).generate_server(&described, "").to_string();
    if text.matches(STUB).count() != calls.len() {
        return Err(format!("{name}: the generator's default methods do not read {STUB:?}"));
    }
    // Default methods stand in the trait in the order of the table.
    let refusal = |call: &Call| {
        format!("crate :: status :: not_served (\"{package}.{name}/{}\" , {:?})", call.name, call.instead)
    };
    Ok(calls.iter().fold(text, |text, call| text.replacen(STUB, &refusal(call), 1)))
}

fn client(package: &str, name: &str, calls: &[Call]) -> String {
    let described = service(package, name, calls, |call| match call.answer {
        Answer::One(kind) | Answer::Stream(kind) => kind,
    });
    CodeGenBuilder::new().generate_client(&described, "").to_string()
}

fn service(package: &str, name: &str, calls: &[Call], answer: fn(&Call) -> &'static str) -> Service {
    calls
        .iter()
        .fold(Service::builder().name(name).package(package), |service, call| {
            service.method(method(call, answer(call)))
        })
        .build()
}

fn method(call: &Call, answer: &str) -> Method {
    let method = Method::builder()
        .name(snake_case(call.name))
        .route_name(call.name)
        .input_type(format!("crate::{}", call.request))
        .output_type(format!("crate::{answer}"))
        .codec_path("tonic_prost::ProstCodec");
    match call.answer {
        Answer::One(_) => method.build(),
        Answer::Stream(_) => method.server_streaming().build(),
    }
}

/// `ReadRows` -> `read_rows`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

// What to do instead of calls that are not served.
const CHANGES: &str = "read what is new with ReadRows and a timestamp range";
const SQL: &str = "read rows with ReadRows and a filter";
const SNAPSHOTS: &str = "copy the rows with ReadRows and MutateRows";
const BACKUPS: &str = "copy the rows with ReadRows and MutateRows";
const UNDELETE: &str = "guard tables with deletion_protection: a deleted one is gone";
const VIEWS: &str = "give each group of readers a table of its own";
const RIGHTS: &str = "guard the port: whoever reaches it may do everything";
const BUNDLES: &str = "keep schemas of values with the programs that read them";
const CLUSTERS: &str = "start or stop tablet servers: ebla tablet-server";
const HOT_TABLETS: &str = "look at tablets and their servers with ebla tablet list";
const QUERIES: &str = "write what the view should hold into a table";

const BIGTABLE: &[Call] = &[
    stream("ReadRows", "data::ReadRowsRequest", "data::ReadRowsResponse")
        .served_as("data::Encoded<crate::data::ReadRowsResponse>"),
    stream("SampleRowKeys", "data::SampleRowKeysRequest", "data::SampleRowKeysResponse"),
    unary("MutateRow", "data::MutateRowRequest", "data::MutateRowResponse"),
    stream("MutateRows", "data::MutateRowsRequest", "data::MutateRowsResponse"),
    unary("CheckAndMutateRow", "data::CheckAndMutateRowRequest", "data::CheckAndMutateRowResponse"),
    unary("PingAndWarm", "data::PingAndWarmRequest", "data::PingAndWarmResponse"),
    unary("ReadModifyWriteRow", "data::ReadModifyWriteRowRequest", "data::ReadModifyWriteRowResponse")
        .served_as("data::Encoded<crate::data::ReadModifyWriteRowResponse>"),
    stream(
        "GenerateInitialChangeStreamPartitions",
        "data::GenerateInitialChangeStreamPartitionsRequest",
        "data::GenerateInitialChangeStreamPartitionsResponse",
    )
    .refused(CHANGES),
    stream("ReadChangeStream", "data::ReadChangeStreamRequest", "data::ReadChangeStreamResponse").refused(CHANGES),
    unary("PrepareQuery", "data::PrepareQueryRequest", "data::PrepareQueryResponse").refused(SQL),
    stream("ExecuteQuery", "data::ExecuteQueryRequest", "data::ExecuteQueryResponse").refused(SQL),
];

const TABLE_ADMIN: &[Call] = &[
    unary("CreateTable", "admin::CreateTableRequest", "admin::Table"),
    unary("CreateTableFromSnapshot", "admin::CreateTableFromSnapshotRequest", "admin::longrunning::Operation")
        .refused(SNAPSHOTS),
    unary("ListTables", "admin::ListTablesRequest", "admin::ListTablesResponse"),
    unary("GetTable", "admin::GetTableRequest", "admin::Table"),
    unary("UpdateTable", "admin::UpdateTableRequest", "admin::longrunning::Operation"),
    unary("DeleteTable", "admin::DeleteTableRequest", "services::Empty"),
    unary("UndeleteTable", "admin::UndeleteTableRequest", "admin::longrunning::Operation").refused(UNDELETE),
    unary("CreateAuthorizedView", "admin::CreateAuthorizedViewRequest", "admin::longrunning::Operation").refused(VIEWS),
    unary("ListAuthorizedViews", "admin::ListAuthorizedViewsRequest", "admin::ListAuthorizedViewsResponse")
        .refused(VIEWS),
    unary("GetAuthorizedView", "admin::GetAuthorizedViewRequest", "admin::AuthorizedView").refused(VIEWS),
    unary("UpdateAuthorizedView", "admin::UpdateAuthorizedViewRequest", "admin::longrunning::Operation").refused(VIEWS),
    unary("DeleteAuthorizedView", "admin::DeleteAuthorizedViewRequest", "services::Empty").refused(VIEWS),
    unary("ModifyColumnFamilies", "admin::ModifyColumnFamiliesRequest", "admin::Table"),
    unary("DropRowRange", "admin::DropRowRangeRequest", "services::Empty"),
    unary(
        "GenerateConsistencyToken",
        "admin::GenerateConsistencyTokenRequest",
        "admin::GenerateConsistencyTokenResponse",
    ),
    unary("CheckConsistency", "admin::CheckConsistencyRequest", "admin::CheckConsistencyResponse"),
    unary("SnapshotTable", "admin::SnapshotTableRequest", "admin::longrunning::Operation").refused(SNAPSHOTS),
    unary("GetSnapshot", "admin::GetSnapshotRequest", "admin::Snapshot").refused(SNAPSHOTS),
    unary("ListSnapshots", "admin::ListSnapshotsRequest", "admin::ListSnapshotsResponse").refused(SNAPSHOTS),
    unary("DeleteSnapshot", "admin::DeleteSnapshotRequest", "services::Empty").refused(SNAPSHOTS),
    unary("CreateBackup", "admin::CreateBackupRequest", "admin::longrunning::Operation").refused(BACKUPS),
    unary("GetBackup", "admin::GetBackupRequest", "admin::Backup").refused(BACKUPS),
    unary("UpdateBackup", "admin::UpdateBackupRequest", "admin::Backup").refused(BACKUPS),
    unary("DeleteBackup", "admin::DeleteBackupRequest", "services::Empty").refused(BACKUPS),
    unary("ListBackups", "admin::ListBackupsRequest", "admin::ListBackupsResponse").refused(BACKUPS),
    unary("RestoreTable", "admin::RestoreTableRequest", "admin::longrunning::Operation").refused(BACKUPS),
    unary("CopyBackup", "admin::CopyBackupRequest", "admin::longrunning::Operation").refused(BACKUPS),
    unary("GetIamPolicy", "admin::iam::GetIamPolicyRequest", "admin::iam::Policy").refused(RIGHTS),
    unary("SetIamPolicy", "admin::iam::SetIamPolicyRequest", "admin::iam::Policy").refused(RIGHTS),
    unary("TestIamPermissions", "admin::iam::TestIamPermissionsRequest", "admin::iam::TestIamPermissionsResponse")
        .refused(RIGHTS),
    unary("CreateSchemaBundle", "admin::CreateSchemaBundleRequest", "admin::longrunning::Operation").refused(BUNDLES),
    unary("UpdateSchemaBundle", "admin::UpdateSchemaBundleRequest", "admin::longrunning::Operation").refused(BUNDLES),
    unary("GetSchemaBundle", "admin::GetSchemaBundleRequest", "admin::SchemaBundle").refused(BUNDLES),
    unary("ListSchemaBundles", "admin::ListSchemaBundlesRequest", "admin::ListSchemaBundlesResponse").refused(BUNDLES),
    unary("DeleteSchemaBundle", "admin::DeleteSchemaBundleRequest", "services::Empty").refused(BUNDLES),
];

const INSTANCE_ADMIN: &[Call] = &[
    unary("CreateInstance", "admin::CreateInstanceRequest", "admin::longrunning::Operation"),
    unary("GetInstance", "admin::GetInstanceRequest", "admin::Instance"),
    unary("ListInstances", "admin::ListInstancesRequest", "admin::ListInstancesResponse"),
    unary("UpdateInstance", "admin::Instance", "admin::Instance"),
    unary("PartialUpdateInstance", "admin::PartialUpdateInstanceRequest", "admin::longrunning::Operation"),
    unary("DeleteInstance", "admin::DeleteInstanceRequest", "services::Empty"),
    unary("CreateCluster", "admin::CreateClusterRequest", "admin::longrunning::Operation").refused(CLUSTERS),
    unary("GetCluster", "admin::GetClusterRequest", "admin::Cluster"),
    unary("ListClusters", "admin::ListClustersRequest", "admin::ListClustersResponse"),
    unary("UpdateCluster", "admin::Cluster", "admin::longrunning::Operation"),
    unary("PartialUpdateCluster", "admin::PartialUpdateClusterRequest", "admin::longrunning::Operation"),
    unary("DeleteCluster", "admin::DeleteClusterRequest", "services::Empty").refused(CLUSTERS),
    unary("CreateAppProfile", "admin::CreateAppProfileRequest", "admin::AppProfile"),
    unary("GetAppProfile", "admin::GetAppProfileRequest", "admin::AppProfile"),
    unary("ListAppProfiles", "admin::ListAppProfilesRequest", "admin::ListAppProfilesResponse"),
    unary("UpdateAppProfile", "admin::UpdateAppProfileRequest", "admin::longrunning::Operation"),
    unary("DeleteAppProfile", "admin::DeleteAppProfileRequest", "services::Empty"),
    unary("GetIamPolicy", "admin::iam::GetIamPolicyRequest", "admin::iam::Policy").refused(RIGHTS),
    unary("SetIamPolicy", "admin::iam::SetIamPolicyRequest", "admin::iam::Policy").refused(RIGHTS),
    unary("TestIamPermissions", "admin::iam::TestIamPermissionsRequest", "admin::iam::TestIamPermissionsResponse")
        .refused(RIGHTS),
    unary("ListHotTablets", "admin::ListHotTabletsRequest", "admin::ListHotTabletsResponse").refused(HOT_TABLETS),
    unary("CreateLogicalView", "admin::CreateLogicalViewRequest", "admin::longrunning::Operation").refused(QUERIES),
    unary("GetLogicalView", "admin::GetLogicalViewRequest", "admin::LogicalView").refused(QUERIES),
    unary("ListLogicalViews", "admin::ListLogicalViewsRequest", "admin::ListLogicalViewsResponse").refused(QUERIES),
    unary("UpdateLogicalView", "admin::UpdateLogicalViewRequest", "admin::longrunning::Operation").refused(QUERIES),
    unary("DeleteLogicalView", "admin::DeleteLogicalViewRequest", "services::Empty").refused(QUERIES),
    unary("CreateMaterializedView", "admin::CreateMaterializedViewRequest", "admin::longrunning::Operation")
        .refused(QUERIES),
    unary("GetMaterializedView", "admin::GetMaterializedViewRequest", "admin::MaterializedView").refused(QUERIES),
    unary("ListMaterializedViews", "admin::ListMaterializedViewsRequest", "admin::ListMaterializedViewsResponse")
        .refused(QUERIES),
    unary("UpdateMaterializedView", "admin::UpdateMaterializedViewRequest", "admin::longrunning::Operation")
        .refused(QUERIES),
    unary("DeleteMaterializedView", "admin::DeleteMaterializedViewRequest", "services::Empty").refused(QUERIES),
];

const OPERATIONS: &[Call] = &[
    unary("ListOperations", "admin::longrunning::ListOperationsRequest", "admin::longrunning::ListOperationsResponse"),
    unary("GetOperation", "admin::longrunning::GetOperationRequest", "admin::longrunning::Operation"),
    unary("DeleteOperation", "admin::longrunning::DeleteOperationRequest", "services::Empty"),
    unary("CancelOperation", "admin::longrunning::CancelOperationRequest", "services::Empty"),
    unary("WaitOperation", "admin::longrunning::WaitOperationRequest", "admin::longrunning::Operation"),
];

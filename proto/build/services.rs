//! Google's public services by name: four tables, one line a method.
//!
//! Each line names the method and the Rust types of its request and answer, as paths from this crate's root. A server method that nobody implements
//! answers UNIMPLEMENTED with its own name, so a client never waits for what is not there.
//!
//! Server and client may use different types for one message, as long as the bytes agree: the server of `ReadRows`
//! sends encoded answers that it never decoded.

use tonic_build::{
    CodeGenBuilder,
    manual::{Method, Service},
};

/// What `tonic-build` writes into every default method; replaced by the method's name.
const STUB_MESSAGE: &str = "Not yet implemented";

#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    request: &'static str,
    answer: Answer,
    /// Type of the answer on the server's side.
    served: &'static str,
}

#[derive(Clone, Copy)]
enum Answer {
    One(&'static str),
    Stream(&'static str),
}

const fn unary(name: &'static str, request: &'static str, answer: &'static str) -> Call {
    Call { name, request, answer: Answer::One(answer), served: answer }
}

const fn stream(name: &'static str, request: &'static str, answer: &'static str) -> Call {
    Call { name, request, answer: Answer::Stream(answer), served: answer }
}

impl Call {
    /// The same call with another Rust type for the answer on the server's side.
    const fn served_as(self, served: &'static str) -> Self {
        Self { served, ..self }
    }
}

/// The Rust text of all stubs, servers and clients.
pub(crate) fn stubs() -> String {
    let services = [
        ("google.bigtable.v2", "Bigtable", BIGTABLE),
        ("google.bigtable.admin.v2", "BigtableTableAdmin", TABLE_ADMIN),
        ("google.bigtable.admin.v2", "BigtableInstanceAdmin", INSTANCE_ADMIN),
        ("google.longrunning", "Operations", OPERATIONS),
    ];
    services
        .iter()
        .map(|(package, name, calls)| format!("{}\n{}\n", server(package, name, calls), client(package, name, calls)))
        .collect()
}

fn server(package: &str, name: &str, calls: &[Call]) -> String {
    let described = service(package, name, calls, |call| call.served);
    let text = CodeGenBuilder::new().generate_default_stubs(true).generate_server(&described, "").to_string();
    // Default methods stand in the trait in the order of the table.
    calls.iter().fold(text, |text, call| {
        text.replacen(STUB_MESSAGE, &format!("{package}.{name}/{} is not served by this release", call.name), 1)
    })
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
    ),
    stream("ReadChangeStream", "data::ReadChangeStreamRequest", "data::ReadChangeStreamResponse"),
    unary("PrepareQuery", "data::PrepareQueryRequest", "data::PrepareQueryResponse"),
    stream("ExecuteQuery", "data::ExecuteQueryRequest", "data::ExecuteQueryResponse"),
];

const TABLE_ADMIN: &[Call] = &[
    unary("CreateTable", "admin::CreateTableRequest", "admin::Table"),
    unary("CreateTableFromSnapshot", "admin::CreateTableFromSnapshotRequest", "admin::longrunning::Operation"),
    unary("ListTables", "admin::ListTablesRequest", "admin::ListTablesResponse"),
    unary("GetTable", "admin::GetTableRequest", "admin::Table"),
    unary("UpdateTable", "admin::UpdateTableRequest", "admin::longrunning::Operation"),
    unary("DeleteTable", "admin::DeleteTableRequest", "services::Empty"),
    unary("UndeleteTable", "admin::UndeleteTableRequest", "admin::longrunning::Operation"),
    unary("CreateAuthorizedView", "admin::CreateAuthorizedViewRequest", "admin::longrunning::Operation"),
    unary("ListAuthorizedViews", "admin::ListAuthorizedViewsRequest", "admin::ListAuthorizedViewsResponse"),
    unary("GetAuthorizedView", "admin::GetAuthorizedViewRequest", "admin::AuthorizedView"),
    unary("UpdateAuthorizedView", "admin::UpdateAuthorizedViewRequest", "admin::longrunning::Operation"),
    unary("DeleteAuthorizedView", "admin::DeleteAuthorizedViewRequest", "services::Empty"),
    unary("ModifyColumnFamilies", "admin::ModifyColumnFamiliesRequest", "admin::Table"),
    unary("DropRowRange", "admin::DropRowRangeRequest", "services::Empty"),
    unary(
        "GenerateConsistencyToken",
        "admin::GenerateConsistencyTokenRequest",
        "admin::GenerateConsistencyTokenResponse",
    ),
    unary("CheckConsistency", "admin::CheckConsistencyRequest", "admin::CheckConsistencyResponse"),
    unary("SnapshotTable", "admin::SnapshotTableRequest", "admin::longrunning::Operation"),
    unary("GetSnapshot", "admin::GetSnapshotRequest", "admin::Snapshot"),
    unary("ListSnapshots", "admin::ListSnapshotsRequest", "admin::ListSnapshotsResponse"),
    unary("DeleteSnapshot", "admin::DeleteSnapshotRequest", "services::Empty"),
    unary("CreateBackup", "admin::CreateBackupRequest", "admin::longrunning::Operation"),
    unary("GetBackup", "admin::GetBackupRequest", "admin::Backup"),
    unary("UpdateBackup", "admin::UpdateBackupRequest", "admin::Backup"),
    unary("DeleteBackup", "admin::DeleteBackupRequest", "services::Empty"),
    unary("ListBackups", "admin::ListBackupsRequest", "admin::ListBackupsResponse"),
    unary("RestoreTable", "admin::RestoreTableRequest", "admin::longrunning::Operation"),
    unary("CopyBackup", "admin::CopyBackupRequest", "admin::longrunning::Operation"),
    unary("GetIamPolicy", "admin::iam::GetIamPolicyRequest", "admin::iam::Policy"),
    unary("SetIamPolicy", "admin::iam::SetIamPolicyRequest", "admin::iam::Policy"),
    unary("TestIamPermissions", "admin::iam::TestIamPermissionsRequest", "admin::iam::TestIamPermissionsResponse"),
    unary("CreateSchemaBundle", "admin::CreateSchemaBundleRequest", "admin::longrunning::Operation"),
    unary("UpdateSchemaBundle", "admin::UpdateSchemaBundleRequest", "admin::longrunning::Operation"),
    unary("GetSchemaBundle", "admin::GetSchemaBundleRequest", "admin::SchemaBundle"),
    unary("ListSchemaBundles", "admin::ListSchemaBundlesRequest", "admin::ListSchemaBundlesResponse"),
    unary("DeleteSchemaBundle", "admin::DeleteSchemaBundleRequest", "services::Empty"),
];

const INSTANCE_ADMIN: &[Call] = &[
    unary("CreateInstance", "admin::CreateInstanceRequest", "admin::longrunning::Operation"),
    unary("GetInstance", "admin::GetInstanceRequest", "admin::Instance"),
    unary("ListInstances", "admin::ListInstancesRequest", "admin::ListInstancesResponse"),
    unary("UpdateInstance", "admin::Instance", "admin::Instance"),
    unary("PartialUpdateInstance", "admin::PartialUpdateInstanceRequest", "admin::longrunning::Operation"),
    unary("DeleteInstance", "admin::DeleteInstanceRequest", "services::Empty"),
    unary("CreateCluster", "admin::CreateClusterRequest", "admin::longrunning::Operation"),
    unary("GetCluster", "admin::GetClusterRequest", "admin::Cluster"),
    unary("ListClusters", "admin::ListClustersRequest", "admin::ListClustersResponse"),
    unary("UpdateCluster", "admin::Cluster", "admin::longrunning::Operation"),
    unary("PartialUpdateCluster", "admin::PartialUpdateClusterRequest", "admin::longrunning::Operation"),
    unary("DeleteCluster", "admin::DeleteClusterRequest", "services::Empty"),
    unary("CreateAppProfile", "admin::CreateAppProfileRequest", "admin::AppProfile"),
    unary("GetAppProfile", "admin::GetAppProfileRequest", "admin::AppProfile"),
    unary("ListAppProfiles", "admin::ListAppProfilesRequest", "admin::ListAppProfilesResponse"),
    unary("UpdateAppProfile", "admin::UpdateAppProfileRequest", "admin::longrunning::Operation"),
    unary("DeleteAppProfile", "admin::DeleteAppProfileRequest", "services::Empty"),
    unary("GetIamPolicy", "admin::iam::GetIamPolicyRequest", "admin::iam::Policy"),
    unary("SetIamPolicy", "admin::iam::SetIamPolicyRequest", "admin::iam::Policy"),
    unary("TestIamPermissions", "admin::iam::TestIamPermissionsRequest", "admin::iam::TestIamPermissionsResponse"),
    unary("ListHotTablets", "admin::ListHotTabletsRequest", "admin::ListHotTabletsResponse"),
    unary("CreateLogicalView", "admin::CreateLogicalViewRequest", "admin::longrunning::Operation"),
    unary("GetLogicalView", "admin::GetLogicalViewRequest", "admin::LogicalView"),
    unary("ListLogicalViews", "admin::ListLogicalViewsRequest", "admin::ListLogicalViewsResponse"),
    unary("UpdateLogicalView", "admin::UpdateLogicalViewRequest", "admin::longrunning::Operation"),
    unary("DeleteLogicalView", "admin::DeleteLogicalViewRequest", "services::Empty"),
    unary("CreateMaterializedView", "admin::CreateMaterializedViewRequest", "admin::longrunning::Operation"),
    unary("GetMaterializedView", "admin::GetMaterializedViewRequest", "admin::MaterializedView"),
    unary("ListMaterializedViews", "admin::ListMaterializedViewsRequest", "admin::ListMaterializedViewsResponse"),
    unary("UpdateMaterializedView", "admin::UpdateMaterializedViewRequest", "admin::longrunning::Operation"),
    unary("DeleteMaterializedView", "admin::DeleteMaterializedViewRequest", "services::Empty"),
];

const OPERATIONS: &[Call] = &[
    unary("ListOperations", "admin::longrunning::ListOperationsRequest", "admin::longrunning::ListOperationsResponse"),
    unary("GetOperation", "admin::longrunning::GetOperationRequest", "admin::longrunning::Operation"),
    unary("DeleteOperation", "admin::longrunning::DeleteOperationRequest", "services::Empty"),
    unary("CancelOperation", "admin::longrunning::CancelOperationRequest", "services::Empty"),
    unary("WaitOperation", "admin::longrunning::WaitOperationRequest", "admin::longrunning::Operation"),
];

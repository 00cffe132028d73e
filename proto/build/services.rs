//! Google's public services: four tables, one line per method.
//!
//! Each line names the method and the Rust types of its request and response, as paths from this crate's root. A server
//! method without an implementation returns UNIMPLEMENTED with its own name, so a client never waits for it; lines of
//! methods that are not served name the alternative. The catalogue that `docs/reference/api.md` is compared with is generated
//! from the same lines.
//!
//! The descriptors for server reflection ([`crate::descriptors`]) have the same methods.
//!
//! Server and client may use different types for one message with the same encoding: the server of `ReadRows` sends encoded
//! responses that it never decodes.

use protox::prost_reflect::prost_types::{MethodDescriptorProto, ServiceDescriptorProto};
use tonic_build::{
    CodeGenBuilder,
    manual::{Method, Service},
};

/// The body of every default method that `tonic-build` generates; replaced by an error with the method's name.
const STUB: &str = r#"tonic :: Status :: unimplemented ("Not yet implemented")"#;

#[derive(Clone, Copy)]
struct Call {
    name: &'static str,
    request: &'static str,
    response: ResponseKind,
    /// Type of the response on the server's side.
    served: &'static str,
    /// The alternative, if it is not served.
    instead: Option<&'static str>,
}

#[derive(Clone, Copy)]
enum ResponseKind {
    One(&'static str),
    Stream(&'static str),
}

const fn unary(name: &'static str, request: &'static str, response: &'static str) -> Call {
    Call { name, request, response: ResponseKind::One(response), served: response, instead: None }
}

const fn stream(name: &'static str, request: &'static str, response: &'static str) -> Call {
    Call { name, request, response: ResponseKind::Stream(response), served: response, instead: None }
}

impl Call {
    /// The same call with another Rust type for the response on the server's side.
    const fn served_as(self, served: &'static str) -> Self {
        Self { served, ..self }
    }

    /// The same call as not served, with the alternative.
    const fn not_served(self, instead: &'static str) -> Self {
        Self { instead: Some(instead), ..self }
    }
}

/// Package, name and calls of each service.
const SERVICES: &[(&str, &str, &[Call])] = &[
    ("google.bigtable.v2", "Bigtable", BIGTABLE),
    ("google.bigtable.admin.v2", "BigtableTableAdmin", TABLE_ADMIN),
    ("google.bigtable.admin.v2", "BigtableInstanceAdmin", INSTANCE_ADMIN),
    ("google.longrunning", "Operations", OPERATIONS),
];

/// The packages of the messages in the tables, by the Rust paths that begin so. The first that fits counts.
const PACKAGES: [(&str, &str); 5] = [
    ("data::", "google.bigtable.v2"),
    ("admin::longrunning::", "google.longrunning"),
    ("admin::iam::", "google.iam.v1"),
    ("admin::", "google.bigtable.admin.v2"),
    ("services::", "google.protobuf"),
];

/// The Rust code of all stubs, servers and clients, and of the catalogue.
///
/// # Errors
/// When the generator's default methods have an unexpected form.
pub(crate) fn stubs() -> Result<String, String> {
    let mut text = catalogue(SERVICES);
    for (package, name, calls) in SERVICES {
        text.push_str(&server(package, name, calls)?);
        text.push_str(&client(package, name, calls));
        text.push('\n');
    }
    Ok(text)
}

/// Package and descriptor of each service.
///
/// # Errors
/// When a message is of no known package.
pub(crate) fn descriptors() -> Result<Vec<(&'static str, ServiceDescriptorProto)>, String> {
    let described = |(package, name, calls): &(&'static str, &str, &[Call])| {
        let method = calls.iter().map(method_descriptor).collect::<Result<_, _>>()?;
        Ok((*package, ServiceDescriptorProto { name: Some((*name).to_owned()), method, options: None }))
    };
    SERVICES.iter().map(described).collect()
}

fn method_descriptor(call: &Call) -> Result<MethodDescriptorProto, String> {
    let (response, is_stream) = match call.response {
        ResponseKind::One(response) => (response, false),
        ResponseKind::Stream(response) => (response, true),
    };
    Ok(MethodDescriptorProto {
        name: Some(call.name.to_owned()),
        input_type: Some(message_name(call.request)?),
        output_type: Some(message_name(response)?),
        server_streaming: is_stream.then_some(true),
        ..Default::default()
    })
}

/// `data::Row` -> `.google.bigtable.v2.Row`.
fn message_name(rust: &str) -> Result<String, String> {
    let mut packages = PACKAGES.iter();
    let found = packages.find_map(|(prefix, package)| Some(format!(".{package}.{}", rust.strip_prefix(prefix)?)));
    found.ok_or_else(|| format!("{rust} is of no known package"))
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
        return Err(format!("{name}: the generator's default methods do not contain {STUB:?}"));
    }
    // Default methods are in the trait in the order of the table.
    let refusal = |call: &Call| {
        format!("crate :: status :: not_served (\"{package}.{name}/{}\" , {:?})", call.name, call.instead)
    };
    Ok(calls.iter().fold(text, |text, call| text.replacen(STUB, &refusal(call), 1)))
}

fn client(package: &str, name: &str, calls: &[Call]) -> String {
    let described = service(package, name, calls, |call| match call.response {
        ResponseKind::One(kind) | ResponseKind::Stream(kind) => kind,
    });
    CodeGenBuilder::new().generate_client(&described, "").to_string()
}

fn service(package: &str, name: &str, calls: &[Call], response: fn(&Call) -> &'static str) -> Service {
    calls
        .iter()
        .fold(Service::builder().name(name).package(package), |service, call| {
            service.method(method(call, response(call)))
        })
        .build()
}

fn method(call: &Call, response: &str) -> Method {
    let method = Method::builder()
        .name(snake_case(call.name))
        .route_name(call.name)
        .input_type(format!("crate::{}", call.request))
        .output_type(format!("crate::{response}"))
        .codec_path("tonic_prost::ProstCodec");
    match call.response {
        ResponseKind::One(_) => method.build(),
        ResponseKind::Stream(_) => method.server_streaming().build(),
    }
}

/// `ReadRows` -> `read_rows`.
pub(crate) fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

// Alternatives to calls that are not served.
const CHANGES: &str = "read new cells with ReadRows and a timestamp range";
const SQL: &str = "read rows with ReadRows and a filter";
const SNAPSHOTS: &str = "copy the rows with ReadRows and MutateRows";
const BACKUPS: &str = "copy the rows with ReadRows and MutateRows";
const UNDELETE: &str = "protect tables with deletion_protection: deletion is permanent";
const BUNDLES: &str = "store value schemas with the programs that read them";
const CLUSTERS: &str = "start or stop tablet servers: ebla tablet-server";
const QUERIES: &str = "write the content of the view into a table";

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
    .not_served(CHANGES),
    stream("ReadChangeStream", "data::ReadChangeStreamRequest", "data::ReadChangeStreamResponse").not_served(CHANGES),
    unary("PrepareQuery", "data::PrepareQueryRequest", "data::PrepareQueryResponse").not_served(SQL),
    stream("ExecuteQuery", "data::ExecuteQueryRequest", "data::ExecuteQueryResponse").not_served(SQL),
];

const TABLE_ADMIN: &[Call] = &[
    unary("CreateTable", "admin::CreateTableRequest", "admin::Table"),
    unary("CreateTableFromSnapshot", "admin::CreateTableFromSnapshotRequest", "admin::longrunning::Operation")
        .not_served(SNAPSHOTS),
    unary("ListTables", "admin::ListTablesRequest", "admin::ListTablesResponse"),
    unary("GetTable", "admin::GetTableRequest", "admin::Table"),
    unary("UpdateTable", "admin::UpdateTableRequest", "admin::longrunning::Operation"),
    unary("DeleteTable", "admin::DeleteTableRequest", "services::Empty"),
    unary("UndeleteTable", "admin::UndeleteTableRequest", "admin::longrunning::Operation").not_served(UNDELETE),
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
    unary("SnapshotTable", "admin::SnapshotTableRequest", "admin::longrunning::Operation").not_served(SNAPSHOTS),
    unary("GetSnapshot", "admin::GetSnapshotRequest", "admin::Snapshot").not_served(SNAPSHOTS),
    unary("ListSnapshots", "admin::ListSnapshotsRequest", "admin::ListSnapshotsResponse").not_served(SNAPSHOTS),
    unary("DeleteSnapshot", "admin::DeleteSnapshotRequest", "services::Empty").not_served(SNAPSHOTS),
    unary("CreateBackup", "admin::CreateBackupRequest", "admin::longrunning::Operation").not_served(BACKUPS),
    unary("GetBackup", "admin::GetBackupRequest", "admin::Backup").not_served(BACKUPS),
    unary("UpdateBackup", "admin::UpdateBackupRequest", "admin::Backup").not_served(BACKUPS),
    unary("DeleteBackup", "admin::DeleteBackupRequest", "services::Empty").not_served(BACKUPS),
    unary("ListBackups", "admin::ListBackupsRequest", "admin::ListBackupsResponse").not_served(BACKUPS),
    unary("RestoreTable", "admin::RestoreTableRequest", "admin::longrunning::Operation").not_served(BACKUPS),
    unary("CopyBackup", "admin::CopyBackupRequest", "admin::longrunning::Operation").not_served(BACKUPS),
    unary("GetIamPolicy", "admin::iam::GetIamPolicyRequest", "admin::iam::Policy"),
    unary("SetIamPolicy", "admin::iam::SetIamPolicyRequest", "admin::iam::Policy"),
    unary("TestIamPermissions", "admin::iam::TestIamPermissionsRequest", "admin::iam::TestIamPermissionsResponse"),
    unary("CreateSchemaBundle", "admin::CreateSchemaBundleRequest", "admin::longrunning::Operation")
        .not_served(BUNDLES),
    unary("UpdateSchemaBundle", "admin::UpdateSchemaBundleRequest", "admin::longrunning::Operation")
        .not_served(BUNDLES),
    unary("GetSchemaBundle", "admin::GetSchemaBundleRequest", "admin::SchemaBundle").not_served(BUNDLES),
    unary("ListSchemaBundles", "admin::ListSchemaBundlesRequest", "admin::ListSchemaBundlesResponse")
        .not_served(BUNDLES),
    unary("DeleteSchemaBundle", "admin::DeleteSchemaBundleRequest", "services::Empty").not_served(BUNDLES),
];

const INSTANCE_ADMIN: &[Call] = &[
    unary("CreateInstance", "admin::CreateInstanceRequest", "admin::longrunning::Operation"),
    unary("GetInstance", "admin::GetInstanceRequest", "admin::Instance"),
    unary("ListInstances", "admin::ListInstancesRequest", "admin::ListInstancesResponse"),
    unary("UpdateInstance", "admin::Instance", "admin::Instance"),
    unary("PartialUpdateInstance", "admin::PartialUpdateInstanceRequest", "admin::longrunning::Operation"),
    unary("DeleteInstance", "admin::DeleteInstanceRequest", "services::Empty"),
    unary("CreateCluster", "admin::CreateClusterRequest", "admin::longrunning::Operation").not_served(CLUSTERS),
    unary("GetCluster", "admin::GetClusterRequest", "admin::Cluster"),
    unary("ListClusters", "admin::ListClustersRequest", "admin::ListClustersResponse"),
    unary("UpdateCluster", "admin::Cluster", "admin::longrunning::Operation"),
    unary("PartialUpdateCluster", "admin::PartialUpdateClusterRequest", "admin::longrunning::Operation"),
    unary("DeleteCluster", "admin::DeleteClusterRequest", "services::Empty").not_served(CLUSTERS),
    unary("CreateAppProfile", "admin::CreateAppProfileRequest", "admin::AppProfile"),
    unary("GetAppProfile", "admin::GetAppProfileRequest", "admin::AppProfile"),
    unary("ListAppProfiles", "admin::ListAppProfilesRequest", "admin::ListAppProfilesResponse"),
    unary("UpdateAppProfile", "admin::UpdateAppProfileRequest", "admin::longrunning::Operation"),
    unary("DeleteAppProfile", "admin::DeleteAppProfileRequest", "services::Empty"),
    unary("GetIamPolicy", "admin::iam::GetIamPolicyRequest", "admin::iam::Policy"),
    unary("SetIamPolicy", "admin::iam::SetIamPolicyRequest", "admin::iam::Policy"),
    unary("TestIamPermissions", "admin::iam::TestIamPermissionsRequest", "admin::iam::TestIamPermissionsResponse"),
    unary("ListHotTablets", "admin::ListHotTabletsRequest", "admin::ListHotTabletsResponse"),
    unary("CreateLogicalView", "admin::CreateLogicalViewRequest", "admin::longrunning::Operation").not_served(QUERIES),
    unary("GetLogicalView", "admin::GetLogicalViewRequest", "admin::LogicalView").not_served(QUERIES),
    unary("ListLogicalViews", "admin::ListLogicalViewsRequest", "admin::ListLogicalViewsResponse").not_served(QUERIES),
    unary("UpdateLogicalView", "admin::UpdateLogicalViewRequest", "admin::longrunning::Operation").not_served(QUERIES),
    unary("DeleteLogicalView", "admin::DeleteLogicalViewRequest", "services::Empty").not_served(QUERIES),
    unary("CreateMaterializedView", "admin::CreateMaterializedViewRequest", "admin::longrunning::Operation")
        .not_served(QUERIES),
    unary("GetMaterializedView", "admin::GetMaterializedViewRequest", "admin::MaterializedView").not_served(QUERIES),
    unary("ListMaterializedViews", "admin::ListMaterializedViewsRequest", "admin::ListMaterializedViewsResponse")
        .not_served(QUERIES),
    unary("UpdateMaterializedView", "admin::UpdateMaterializedViewRequest", "admin::longrunning::Operation")
        .not_served(QUERIES),
    unary("DeleteMaterializedView", "admin::DeleteMaterializedViewRequest", "services::Empty").not_served(QUERIES),
];

const OPERATIONS: &[Call] = &[
    unary("ListOperations", "admin::longrunning::ListOperationsRequest", "admin::longrunning::ListOperationsResponse"),
    unary("GetOperation", "admin::longrunning::GetOperationRequest", "admin::longrunning::Operation"),
    unary("DeleteOperation", "admin::longrunning::DeleteOperationRequest", "services::Empty"),
    unary("CancelOperation", "admin::longrunning::CancelOperationRequest", "services::Empty"),
    unary("WaitOperation", "admin::longrunning::WaitOperationRequest", "admin::longrunning::Operation"),
];

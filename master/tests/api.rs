//! The admin API as clients meet it: over gRPC, through a tablet server, before and after a change of the master.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, also in its helpers")]

use std::collections::HashMap;
use std::time::Duration;

use ebla_chubby::SharedChubby;
use ebla_chubby::embedded::Embedded;
use ebla_master::{Master, MasterConfig};
use ebla_model::error::Reason;
use ebla_proto::admin::drop_row_range_request::Target;
use ebla_proto::admin::longrunning::operation::Result as Outcome;
use ebla_proto::admin::modify_column_families_request::{Modification, modification::Mod};
use ebla_proto::admin::{self, longrunning, rpc};
use ebla_proto::services::bigtable_instance_admin_client::BigtableInstanceAdminClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_proto::services::operations_client::OperationsClient;
use ebla_proto::services::{CATALOGUE, PublicCall};
use ebla_proto::status::from_status;
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};
use prost::Message;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);
const INSTANCE: &str = "projects/p/instances/inst";

/// One server and a master, and a client's connection to the server.
struct TestCluster {
    chubby: SharedChubby,
    server: TabletServer,
    master: Master,
    channel: Channel,
    runtime: Runtime,
    _data: tempfile::TempDir,
}

impl TestCluster {
    async fn start() -> Self {
        ebla_runtime::logging::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let data = tempfile::tempdir().unwrap();
        let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
        let options = ServerOptions::up(LocalServers::default());
        let config = ServerConfig::new(data.path(), "127.0.0.1:0", options);
        let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
        let master = start_master(&chubby, &runtime).await;
        let channel = runtime.net.channel(server.address());
        Self { chubby, server, master, channel, runtime, _data: data }
    }

    /// Stops the master and starts another one.
    async fn change_master(&mut self) {
        self.master.stop().await;
        self.master = start_master(&self.chubby, &self.runtime).await;
    }

    async fn stop(self) {
        self.master.stop().await;
        self.server.stop().await;
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }

    fn tables(&self) -> BigtableTableAdminClient<Channel> {
        BigtableTableAdminClient::new(self.channel.clone())
    }

    fn instances(&self) -> BigtableInstanceAdminClient<Channel> {
        BigtableInstanceAdminClient::new(self.channel.clone())
    }

    fn operations(&self) -> OperationsClient<Channel> {
        OperationsClient::new(self.channel.clone())
    }

    async fn create_table(&self, table: &str, splits: &[&'static str]) -> admin::Table {
        let split = |key: &&'static str| admin::create_table_request::Split { key: (*key).into() };
        let families = ["a", "b"].map(|family| (family.to_owned(), admin::ColumnFamily::default()));
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: table.to_owned(),
            table: Some(admin::Table { column_families: HashMap::from(families), ..Default::default() }),
            initial_splits: splits.iter().map(split).collect(),
        };
        done(self.tables().create_table(request).await)
    }

    async fn get_table(&self, table: &str, view: i32) -> admin::Table {
        done(self.tables().get_table(admin::GetTableRequest { name: table_name(table), view }).await)
    }

    async fn protect(&self, table: &str, deletion_protection: bool) -> longrunning::Operation {
        let request = admin::UpdateTableRequest {
            table: Some(admin::Table { name: table_name(table), deletion_protection, ..Default::default() }),
            update_mask: mask(&["deletion_protection"]),
            ..Default::default()
        };
        done(self.tables().update_table(request).await)
    }

    async fn modify(&self, table: &str, changes: &[(&str, Mod)]) -> Result<admin::Table, Status> {
        let modification = |(id, change): &(&str, Mod)| Modification {
            id: (*id).to_owned(),
            r#mod: Some(change.clone()),
            ..Default::default()
        };
        let modifications = changes.iter().map(modification).collect();
        let request =
            admin::ModifyColumnFamiliesRequest { name: table_name(table), modifications, ..Default::default() };
        self.tables().modify_column_families(request).await.map(Response::into_inner)
    }

    /// Names and token of a page of tables.
    async fn page(&self, parent: &str, page_size: i32, token: &str) -> Result<(Vec<String>, String), Status> {
        let request = admin::ListTablesRequest {
            parent: parent.to_owned(),
            page_size,
            page_token: token.to_owned(),
            ..Default::default()
        };
        let page = self.tables().list_tables(request).await?.into_inner();
        Ok((page.tables.into_iter().map(|table| table.name).collect(), page.next_page_token))
    }

    async fn instance_names(&self) -> Vec<String> {
        let request = admin::ListInstancesRequest { parent: "projects/p".to_owned(), ..Default::default() };
        let listed = done(self.instances().list_instances(request).await).instances;
        listed.into_iter().map(|instance| instance.name).collect()
    }

    async fn create_instance(&self, id: &str, cluster: &str) -> Result<longrunning::Operation, Status> {
        let location = "projects/p/locations/z".to_owned();
        let described = admin::Cluster {
            location,
            serve_nodes: 2,
            default_storage_type: admin::StorageType::Hdd.into(),
            // As cbt sends it.
            encryption_config: Some(admin::cluster::EncryptionConfig::default()),
            ..Default::default()
        };
        let cluster = (cluster.to_owned(), described);
        let request = admin::CreateInstanceRequest {
            parent: "projects/p".to_owned(),
            instance_id: id.to_owned(),
            instance: Some(admin::Instance { display_name: "Shown".to_owned(), ..Default::default() }),
            clusters: HashMap::from([cluster]),
        };
        self.instances().create_instance(request).await.map(Response::into_inner)
    }

    /// Changes the display name of the instance and the size of its cluster, and reads both.
    async fn update_instance(&self, created: admin::Instance) -> admin::Instance {
        let wanted = admin::Instance { display_name: "Another".to_owned(), ..created };
        let request = |paths: &[&str]| admin::PartialUpdateInstanceRequest {
            instance: Some(wanted.clone()),
            update_mask: mask(paths),
        };
        let operation = done(self.instances().partial_update_instance(request(&["display_name"])).await);
        assert_eq!(response::<admin::Instance>(&operation, "Instance"), wanted);
        let nothing = self.instances().partial_update_instance(request(&[])).await;
        assert_eq!(reason(nothing), Reason::InvalidArgument);
        assert_eq!(done(self.instances().update_instance(wanted.clone()).await), wanted);
        let unsaid = admin::Instance { name: INSTANCE.to_owned(), ..wanted.clone() };
        assert_eq!(reason(self.instances().update_instance(unsaid).await), Reason::FailedPrecondition);

        let name = format!("{}/clusters/my-cluster", wanted.name);
        let get = admin::GetClusterRequest { name: name.clone() };
        for serve_nodes in [7, 8] {
            let cluster = admin::Cluster { name: name.clone(), serve_nodes, ..Default::default() };
            let operation = match serve_nodes {
                7 => done(self.instances().update_cluster(cluster).await),
                _ => {
                    let update_mask = mask(&["serve_nodes"]);
                    let request = admin::PartialUpdateClusterRequest { cluster: Some(cluster), update_mask };
                    done(self.instances().partial_update_cluster(request).await)
                }
            };
            let shown = done(self.instances().get_cluster(get.clone()).await);
            assert_eq!(response::<admin::Cluster>(&operation, "Cluster"), shown);
            assert_eq!(shown.serve_nodes, serve_nodes);
        }
        let other = admin::Cluster { name: format!("{name}-2"), serve_nodes: 1, ..Default::default() };
        assert_eq!(reason(self.instances().update_cluster(other).await), Reason::NotFound);
        let of_unsaid = |id: &str| admin::Cluster {
            name: format!("{INSTANCE}/clusters/{id}"),
            serve_nodes: 3,
            ..Default::default()
        };
        let refused = self.instances().update_cluster(of_unsaid("ebla")).await.unwrap_err();
        assert!(refused.message().contains("ebla tablet-server"), "{}", refused.message());
        assert_eq!(reason::<()>(Err(refused)), Reason::FailedPrecondition);
        assert_eq!(reason(self.instances().update_cluster(of_unsaid("else")).await), Reason::NotFound);
        wanted
    }

    async fn delete_instance(&self, name: &str) -> Result<(), Status> {
        let request = admin::DeleteInstanceRequest { name: name.to_owned() };
        self.instances().delete_instance(request).await.map(Response::into_inner)
    }

    async fn create_profile(&self, id: &str, cluster: &str) -> Result<admin::AppProfile, Status> {
        let request = admin::CreateAppProfileRequest {
            parent: INSTANCE.to_owned(),
            app_profile_id: id.to_owned(),
            app_profile: Some(admin::AppProfile { routing_policy: Some(single(cluster)), ..Default::default() }),
            ..Default::default()
        };
        self.instances().create_app_profile(request).await.map(Response::into_inner)
    }

    async fn profile_ids(&self, parent: &str) -> Vec<String> {
        let request = admin::ListAppProfilesRequest { parent: parent.to_owned(), ..Default::default() };
        let listed = done(self.instances().list_app_profiles(request).await).app_profiles;
        listed.iter().map(|profile| profile.name.rsplit('/').next().unwrap().to_owned()).collect()
    }

    async fn operation(&self, name: &str) -> Result<longrunning::Operation, Status> {
        let request = longrunning::GetOperationRequest { name: name.to_owned() };
        self.operations().get_operation(request).await.map(Response::into_inner)
    }

    /// What the server answers to an empty message.
    async fn empty_call(&self, service: &str, call: &PublicCall) -> Result<(), Status> {
        let path = format!("/{service}/{}", call.name).parse().unwrap();
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.unwrap();
        let mut answers =
            grpc.server_streaming(Request::new(()), path, ProstCodec::<(), ()>::default()).await?.into_inner();
        while answers.message().await?.is_some() {}
        Ok(())
    }
}

async fn start_master(chubby: &SharedChubby, runtime: &Runtime) -> Master {
    let config = MasterConfig::new("127.0.0.1:0", 1);
    let master = Master::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    master
}

fn table_name(table: &str) -> String {
    format!("{INSTANCE}/tables/{table}")
}

fn mask(paths: &[&str]) -> Option<prost_types::FieldMask> {
    Some(prost_types::FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() })
}

fn single(cluster: &str) -> admin::app_profile::RoutingPolicy {
    admin::app_profile::RoutingPolicy::SingleClusterRouting(admin::app_profile::SingleClusterRouting {
        cluster_id: cluster.to_owned(),
        allow_transactional_writes: true,
    })
}

fn done<T>(answer: Result<Response<T>, Status>) -> T {
    answer.unwrap().into_inner()
}

/// The reason of an error, which must also have a domain and an action.
fn reason<T>(answer: Result<T, Status>) -> Reason {
    let Err(status) = answer else { panic!("not refused") };
    let (reason, action) = info(&status);
    assert_eq!(reason, from_status(&status).0.reason.name());
    assert!(!action.is_empty());
    from_status(&status).0.reason
}

/// Reason and action of the `ErrorInfo` that a status carries.
fn info(status: &Status) -> (String, String) {
    let details = rpc::Status::decode(status.details()).unwrap().details;
    let info = details.iter().find(|any| any.type_url.ends_with("google.rpc.ErrorInfo")).unwrap();
    let info = rpc::ErrorInfo::decode(info.value.as_slice()).unwrap();
    assert_eq!(info.domain, "ebla");
    (info.reason, info.metadata.get("action").unwrap().clone())
}

/// The response of a finished operation.
fn response<M: Message + Default>(operation: &longrunning::Operation, name: &str) -> M {
    assert!(operation.done);
    let Some(Outcome::Response(response)) = &operation.result else { panic!("no response: {operation:?}") };
    assert_eq!(response.type_url, format!("type.googleapis.com/google.bigtable.admin.v2.{name}"));
    M::decode(response.value.as_slice()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_responds_as_described() {
    let cluster = TestCluster::start().await;
    let mut wrong = Vec::new();
    for service in CATALOGUE {
        for call in service.calls {
            let name = format!("{}/{}", service.name, call.name);
            let refusal = match cluster.empty_call(service.name, call).await {
                Err(status) if from_status(&status).0.reason == Reason::Unimplemented => Some(status),
                _served => None,
            };
            let is_right = match (&refusal, call.instead) {
                (None, None) => true,
                (Some(status), Some(instead)) => {
                    status.message() == format!("{name} is not served by this release: {instead}")
                        && info(status) == ("UNIMPLEMENTED".to_owned(), instead.to_owned())
                }
                _ => false,
            };
            if !is_right {
                wrong.push(format!("{name}: {refusal:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "proto/build/services.rs differs:\n{}", wrong.join("\n"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_created_read_changed_and_protected() {
    let cluster = TestCluster::start().await;
    let created = cluster.create_table("fruit", &["p", "g", "p"]).await;
    assert_eq!((created.name.as_str(), created.granularity), (table_name("fruit").as_str(), 1));
    let shows = |table: &admin::Table| {
        (table.column_families.len(), table.granularity, table.deletion_protection, table.cluster_states.len())
    };
    let expected =
        [(2, 1, false, 0), (0, 0, false, 0), (2, 1, false, 0), (0, 0, false, 1), (2, 1, false, 1), (0, 0, false, 1)];
    for (view, expected) in (0..).zip(expected) {
        assert_eq!(shows(&cluster.get_table("fruit", view).await), expected, "view {view}");
    }

    // Atomic, in order.
    let rule = admin::GcRule { rule: Some(admin::gc_rule::Rule::MaxNumVersions(1)) };
    let ruled = admin::ColumnFamily { gc_rule: Some(rule), ..Default::default() };
    let half = [("c", Mod::Create(ruled.clone())), ("a", Mod::Create(ruled.clone()))];
    assert_eq!(reason(cluster.modify("fruit", &half).await), Reason::AlreadyExists);
    assert_eq!(reason(cluster.modify("fruit", &[("x", Mod::Drop(true))]).await), Reason::NotFoundFamily);
    assert_eq!(reason(cluster.modify("none", &[("x", Mod::Drop(true))]).await), Reason::NotFoundTable);
    assert_eq!(reason(cluster.modify("fruit", &[]).await), Reason::InvalidArgument);
    let changes = [("c", Mod::Create(ruled)), ("b", Mod::Drop(true)), ("c", Mod::Update(Default::default()))];
    let changed = cluster.modify("fruit", &changes).await.unwrap();
    assert_eq!(changed, cluster.get_table("fruit", 0).await);
    assert_eq!(changed.column_families.get("c").unwrap().gc_rule, Some(admin::GcRule::default()), "cleared");
    assert_eq!(changed.column_families.len(), 2);

    // Deletion protection covers the table and its families, not its rows.
    let operation = cluster.protect("fruit", true).await;
    let updated: admin::Table = response(&operation, "Table");
    assert!(updated.deletion_protection && updated == cluster.get_table("fruit", 0).await);
    let delete = || admin::DeleteTableRequest { name: table_name("fruit") };
    assert_eq!(reason(cluster.tables().delete_table(delete()).await), Reason::FailedPrecondition);
    assert_eq!(reason(cluster.modify("fruit", &[("a", Mod::Drop(true))]).await), Reason::FailedPrecondition);
    assert_eq!(reason(cluster.delete_instance(INSTANCE).await), Reason::FailedPrecondition);
    let target = Some(Target::DeleteAllDataFromTable(true));
    done(cluster.tables().drop_row_range(admin::DropRowRangeRequest { name: table_name("fruit"), target }).await);
    let unmasked = admin::UpdateTableRequest { table: Some(updated), ..Default::default() };
    assert_eq!(reason(cluster.tables().update_table(unmasked).await), Reason::InvalidArgument);
    cluster.protect("fruit", false).await;
    done(cluster.tables().delete_table(delete()).await);
    assert_eq!(reason(cluster.tables().delete_table(delete()).await), Reason::NotFoundTable);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_are_listed_in_pages() {
    let cluster = TestCluster::start().await;
    for table in ["c", "a", "b"] {
        cluster.create_table(table, &[]).await;
    }
    let (first, token) = cluster.page(INSTANCE, 2, "").await.unwrap();
    assert_eq!(first, [table_name("a"), table_name("b")]);
    assert_eq!(cluster.page(INSTANCE, 2, &token).await.unwrap(), (vec![table_name("c")], String::new()));
    assert_eq!(cluster.page(INSTANCE, 0, "").await.unwrap().0.len(), 3);
    assert_eq!(cluster.page("projects/p/instances/other", 0, "").await.unwrap(), (vec![], String::new()));
    assert_eq!(reason(cluster.page(INSTANCE, -1, "").await), Reason::InvalidArgument);
    assert_eq!(reason(cluster.page("projects/p/instances/other", 2, &token).await), Reason::InvalidArgument);
    assert_eq!(reason(cluster.page("projects/p/instances/-", 0, "").await), Reason::InvalidArgument);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_are_finished_and_stored_for_the_next_master() {
    let mut cluster = TestCluster::start().await;
    cluster.create_table("t", &[]).await;
    let operation = cluster.protect("t", true).await;
    let metadata = operation.metadata.clone().unwrap();
    let metadata = admin::UpdateTableMetadata::decode(metadata.value.as_slice()).unwrap();
    assert!(metadata.name == table_name("t") && metadata.start_time.is_some() && metadata.end_time.is_some());
    cluster.change_master().await;
    assert!(cluster.get_table("t", 0).await.deletion_protection);
    assert_eq!(cluster.operation(&operation.name).await.unwrap(), operation);
    let wait = longrunning::WaitOperationRequest { name: operation.name.clone(), timeout: None };
    assert_eq!(done(cluster.operations().wait_operation(wait).await), operation);
    let cancel = longrunning::CancelOperationRequest { name: operation.name.clone() };
    done(cluster.operations().cancel_operation(cancel).await);
    let later = cluster.protect("t", false).await;
    let list = |name: &str, page_token: &str, page_size| longrunning::ListOperationsRequest {
        name: name.to_owned(),
        page_token: page_token.to_owned(),
        page_size,
        ..Default::default()
    };
    let listed = done(cluster.operations().list_operations(list("operations/projects/p", "", 0)).await).operations;
    assert!(listed.len() == 2 && listed.contains(&operation) && listed.contains(&later));
    let first = done(cluster.operations().list_operations(list("operations", "", 1)).await);
    assert_eq!(first.operations.len(), 1);
    let rest = done(cluster.operations().list_operations(list("operations", &first.next_page_token, 1)).await);
    assert!(rest.next_page_token.is_empty() && rest.operations.len() == 1);
    assert!(
        done(cluster.operations().list_operations(list("operations/projects/q", "", 0)).await).operations.is_empty()
    );
    assert_eq!(reason(cluster.operations().list_operations(list("", "", 0)).await), Reason::InvalidArgument);

    let delete = || longrunning::DeleteOperationRequest { name: operation.name.clone() };
    done(cluster.operations().delete_operation(delete()).await);
    assert_eq!(reason(cluster.operations().delete_operation(delete()).await), Reason::NotFound);
    assert_eq!(reason(cluster.operation(&operation.name).await), Reason::NotFound);
    assert_eq!(reason(cluster.operation("operations/else").await), Reason::NotFound);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_exist_and_created_ones_are_stored() {
    let mut cluster = TestCluster::start().await;
    let get = |name: &str| admin::GetInstanceRequest { name: name.to_owned() };
    let cluster_request = |name: &str| admin::GetClusterRequest { name: name.to_owned() };
    let unsaid = done(cluster.instances().get_instance(get(INSTANCE)).await);
    assert_eq!((unsaid.name.as_str(), unsaid.display_name.as_str(), unsaid.state), (INSTANCE, "inst", 1));
    assert!(cluster.instance_names().await.is_empty(), "it was not used yet");
    assert_eq!(reason(cluster.delete_instance(INSTANCE).await), Reason::NotFound);
    cluster.create_table("t", &[]).await;
    assert_eq!(cluster.instance_names().await, [INSTANCE]);
    let whole = done(cluster.instances().get_cluster(cluster_request(&format!("{INSTANCE}/clusters/ebla"))).await);
    assert_eq!((whole.serve_nodes, whole.state), (1, 1));
    let other = cluster.instances().get_cluster(cluster_request(&format!("{INSTANCE}/clusters/other"))).await;
    assert_eq!(reason(other), Reason::NotFound);

    let operation = cluster.create_instance("made-here", "my-cluster").await.unwrap();
    let created: admin::Instance = response(&operation, "Instance");
    assert_eq!(reason(cluster.create_instance("made-here", "my-cluster").await), Reason::AlreadyExists);
    assert_eq!(reason(cluster.create_instance("short", "my-cluster").await), Reason::InvalidArgument);
    cluster.change_master().await;
    assert_eq!(done(cluster.instances().get_instance(get(&created.name)).await), created);
    assert_eq!(cluster.instance_names().await, [INSTANCE, &created.name]);
    let list = |parent: &str| admin::ListClustersRequest { parent: parent.to_owned(), ..Default::default() };
    let clusters = done(cluster.instances().list_clusters(list("projects/p/instances/-")).await).clusters;
    let names: Vec<_> = clusters.into_iter().map(|cluster| cluster.name).collect();
    assert_eq!(names, [format!("{INSTANCE}/clusters/ebla"), format!("{}/clusters/my-cluster", created.name)]);
    let kept =
        done(cluster.instances().get_cluster(cluster_request(&format!("{}/clusters/my-cluster", created.name))).await);
    assert_eq!((kept.default_storage_type(), kept.serve_nodes), (admin::StorageType::Hdd, 2));

    let created = cluster.update_instance(created).await;
    cluster.delete_instance(&created.name).await.unwrap();
    cluster.delete_instance(INSTANCE).await.unwrap();
    assert!(cluster.instance_names().await.is_empty());
    assert!(cluster.page(INSTANCE, 0, "").await.unwrap().0.is_empty(), "its tables were deleted with it");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn app_profiles_are_stored() {
    let mut cluster = TestCluster::start().await;
    let get = |id: &str| admin::GetAppProfileRequest { name: format!("{INSTANCE}/appProfiles/{id}") };
    let built_in = done(cluster.instances().get_app_profile(get("default")).await);
    assert_eq!(built_in.routing_policy, Some(single("ebla")));
    assert_eq!(reason(cluster.create_profile("default", "any-cluster").await), Reason::AlreadyExists);
    let created = cluster.create_profile("mine", "any-cluster").await.unwrap();
    assert_eq!(reason(cluster.create_profile("mine", "any-cluster").await), Reason::AlreadyExists);
    assert_eq!(reason(cluster.create_profile("-", "any-cluster").await), Reason::InvalidArgument);
    assert_eq!(reason(cluster.create_profile("nowhere", "").await), Reason::InvalidArgument);
    cluster.change_master().await;
    assert_eq!(done(cluster.instances().get_app_profile(get("mine")).await), created);
    assert_eq!(cluster.profile_ids(INSTANCE).await, ["default", "mine"]);
    assert_eq!(cluster.profile_ids("projects/p/instances/-").await, ["default", "mine"]);

    let update = |description: &str, etag: &str| admin::UpdateAppProfileRequest {
        app_profile: Some(admin::AppProfile {
            description: description.to_owned(),
            etag: etag.to_owned(),
            ..created.clone()
        }),
        update_mask: mask(&["description"]),
        ..Default::default()
    };
    let operation = done(cluster.instances().update_app_profile(update("new", &created.etag)).await);
    let updated: admin::AppProfile = response(&operation, "AppProfile");
    assert_eq!((updated.description.as_str(), &updated.routing_policy), ("new", &created.routing_policy));
    assert_ne!(updated.etag, created.etag);
    let stale = cluster.instances().update_app_profile(update("newer", &created.etag)).await;
    assert_eq!(reason(stale), Reason::Conflict);
    done(cluster.instances().update_app_profile(update("newest", "")).await);

    let delete = |id: &str| admin::DeleteAppProfileRequest {
        name: format!("{INSTANCE}/appProfiles/{id}"),
        ignore_warnings: true,
    };
    assert_eq!(reason(cluster.instances().delete_app_profile(delete("default")).await), Reason::FailedPrecondition);
    done(cluster.instances().delete_app_profile(delete("mine")).await);
    assert_eq!(reason(cluster.instances().delete_app_profile(delete("mine")).await), Reason::NotFound);
    assert_eq!(reason(cluster.instances().get_app_profile(get("mine")).await), Reason::NotFound);
    cluster.stop().await;
}

//! Server reflection over a connection: a client that knows nothing but the protocol finds the services of a tablet server, and calls one.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, also in its helpers")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_master::{Master, MasterConfig};
use ebla_proto::raw::Raw;
use ebla_proto::services::CATALOGUE;
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, ServerConfig, ServerOptions, TabletServer};
use futures::stream;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Value};
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tonic::Request;
use tonic::transport::Channel;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha;

/// How long a test waits for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn ask(channel: &Channel, request: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
    let mut client = ServerReflectionClient::new(channel.clone());
    let mut responses = client.server_reflection_info(stream::iter([request])).await.unwrap().into_inner();
    responses.message().await.unwrap().unwrap().message_response.unwrap()
}

/// The names of all services that the server lists.
async fn services(channel: &Channel) -> BTreeSet<String> {
    let response = ask(channel, MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(listed) = response else { panic!("{response:?}") };
    listed.service.into_iter().map(|service| service.name).collect()
}

/// The files that declare these symbols, with all files that they import.
async fn files_of(channel: &Channel, symbols: &BTreeSet<String>) -> DescriptorPool {
    let mut files = BTreeMap::new();
    let mut missing: Vec<_> = symbols.iter().cloned().map(MessageRequest::FileContainingSymbol).collect();
    while let Some(request) = missing.pop() {
        if matches!(&request, MessageRequest::FileByFilename(name) if files.contains_key(name)) {
            continue;
        }
        let response = ask(channel, request).await;
        let MessageResponse::FileDescriptorResponse(found) = response else { panic!("{response:?}") };
        for file in found.file_descriptor_proto {
            let file = FileDescriptorProto::decode(file.as_slice()).unwrap();
            missing.extend(file.dependency.iter().cloned().map(MessageRequest::FileByFilename));
            files.insert(file.name().to_owned(), file);
        }
    }
    DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file: files.into_values().collect() }).unwrap()
}

/// Calls a method with messages that are known by their descriptors only.
async fn call(
    channel: &Channel,
    pool: &DescriptorPool,
    (service, method): (&str, &str),
    fields: &[(&str, Value)],
) -> DynamicMessage {
    let described = pool.get_service_by_name(service).unwrap();
    let described = described.methods().find(|described| described.name() == method).unwrap();
    let mut request = DynamicMessage::new(described.input());
    for (name, value) in fields {
        request.set_field_by_name(name, value.clone());
    }
    let path = format!("/{service}/{method}").parse().unwrap();
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let response = grpc.unary(Request::new(request.encode_to_vec().into()), path, Raw).await.unwrap().into_inner();
    DynamicMessage::decode(described.output(), response).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_proto_files_finds_the_services_and_calls_one() {
    let runtime = Runtime::system("test");
    let data = tempfile::tempdir().unwrap();
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared();
    let config = ServerConfig::new(data.path(), "127.0.0.1:0", ServerOptions::up(LocalServers::default()));
    let server = TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap();
    let master = Master::start(MasterConfig::new("127.0.0.1:0", 1), chubby, runtime.clone()).await.unwrap();
    tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
    let channel = runtime.net.channel(server.address());

    let listed = services(&channel).await;
    for service in CATALOGUE {
        assert!(listed.contains(service.name), "{} is not listed", service.name);
    }
    assert!(!listed.contains("ebla.raft.Raft"), "it is for members of the cluster only");
    let pool = files_of(&channel, &listed).await;
    for name in &listed {
        assert!(pool.get_service_by_name(name).is_some(), "{name} is listed, but not described");
    }

    let admin = "google.bigtable.admin.v2.BigtableTableAdmin";
    let parent = Value::String("projects/p/instances/i".to_owned());
    let table_id = Value::String("t".to_owned());
    let created =
        call(&channel, &pool, (admin, "CreateTable"), &[("parent", parent.clone()), ("table_id", table_id)]).await;
    let listed = call(&channel, &pool, (admin, "ListTables"), &[("parent", parent)]).await;
    let tables = listed.get_field_by_name("tables").unwrap();
    let [Value::Message(table)] = tables.as_list().unwrap() else { panic!("{tables:?}") };
    assert_eq!(table.get_field_by_name("name"), created.get_field_by_name("name"));

    let at_master = services(&runtime.net.channel(master.address())).await;
    assert!(at_master.contains(admin) && !at_master.contains("google.bigtable.v2.Bigtable"), "{at_master:?}");
    let pool = files_of(&runtime.net.channel(master.address()), &at_master).await;
    assert!(at_master.iter().all(|name| pool.get_service_by_name(name).is_some()));

    // Many clients know only the earlier version of the protocol.
    let message_request = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let request = v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(message_request) };
    let mut earlier = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut responses = earlier.server_reflection_info(stream::iter([request])).await.unwrap().into_inner();
    assert!(responses.message().await.unwrap().is_some());
    master.stop().await;
    server.stop().await;
    runtime.tasks.stop(Duration::from_secs(5)).await;
}

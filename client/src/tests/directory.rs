//! The directory over Chubby: it follows the files, and goes on when they are out of reach.

use std::sync::{Arc, Mutex};

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{Chubby, Write, paths};
use ebla_model::id::{ServerId, TableId};
use ebla_model::metadata::first_tablets;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::locate::locate_server::{Locate, LocateServer};
use ebla_proto::locate::{ClusterReply, ClusterRequest, CountersReply, CountersRequest};
use ebla_proto::{convert, record};
use ebla_runtime::{Runtime, ServeOptions, serve};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::directory::{ChubbyDirectory, Directory, Freshness, LocateDirectory};

fn server(id: u64, address: &str) -> Write {
    let server = record::Server { server: id, address: address.to_owned(), ..Default::default() };
    Write::put(paths::server(ServerId::new(id)), convert::encode_record(server))
}

fn schema(name: &TableName, id: u64, state: TableState) -> TableSchema {
    TableSchema { state, ..TableSchema::new(TableId::new(id), name.clone(), Vec::new()).unwrap() }
}

#[tokio::test]
async fn it_tells_who_was_master_when_there_is_none() {
    let runtime = Runtime::system("test");
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
    let directory = ChubbyDirectory::start(chubby.shared(), &runtime);
    directory.ready().await;
    assert_eq!(directory.last_master(), None, "there was none");
    let mut changes = directory.changes();
    let master = record::Master { address: "master:1".to_owned(), ..Default::default() };
    let write = Write::put(paths::MASTER, convert::encode_record(master));
    chubby.transact(Vec::new(), vec![write]).await.unwrap();
    while directory.master().is_none() {
        changes.changed().await.unwrap();
    }
    assert_eq!(directory.last_master(), None, "there is one");
    chubby.transact(Vec::new(), vec![Write::delete(paths::MASTER)]).await.unwrap();
    while directory.last_master().is_none() {
        changes.changed().await.unwrap();
    }
    assert_eq!(directory.last_master().unwrap().0.address, "master:1");
}

#[tokio::test]
async fn it_follows_chubby_and_remembers_servers_that_are_gone() {
    let runtime = Runtime::system("test");
    let chubby = Embedded::in_memory(runtime.clock.clone(), &runtime.tasks);
    let name: TableName = "projects/p/instances/i/tables/t".parse().unwrap();
    let [root, _metadata] = first_tablets(&[ServerId::new(1)]);
    let writes = vec![
        Write::put(paths::ROOT, convert::descriptor_to_bytes(&root)),
        server(1, "one:1"),
        Write::put(paths::name(&name), "7"),
        Write::put(paths::table(TableId::new(7)), convert::schema_to_bytes(&schema(&name, 7, TableState::Creating))),
    ];
    chubby.transact(Vec::new(), writes).await.unwrap();
    let directory = ChubbyDirectory::start(chubby.shared(), &runtime);
    directory.ready().await;
    assert_eq!(directory.root().await.unwrap(), root);
    assert_eq!(directory.table(&name, Freshness::Cached).await.unwrap(), None, "it is not ready yet");

    let mut changes = directory.changes();
    let active = schema(&name, 7, TableState::Active);
    let writes = vec![
        Write::put(paths::table(TableId::new(7)), convert::schema_to_bytes(&active)),
        Write::delete(paths::server(ServerId::new(1))),
        server(2, "two:1"),
    ];
    chubby.transact(Vec::new(), writes).await.unwrap();
    while directory.servers().iter().all(|server| server.server != 2) {
        changes.changed().await.unwrap();
    }
    assert_eq!(directory.table(&name, Freshness::Cached).await.unwrap(), Some(TableId::new(7)));
    assert_eq!(directory.servers().len(), 1);
    assert_eq!(directory.address(ServerId::new(1)).await.as_deref(), Some("one:1"));

    let absent: TableName = "projects/p/instances/i/tables/absent".parse().unwrap();
    assert_eq!(directory.table(&absent, Freshness::Fresh).await.unwrap(), None);
    runtime.tasks.stop(std::time::Duration::from_secs(30)).await;
    assert_eq!(directory.table(&name, Freshness::Cached).await.unwrap(), Some(TableId::new(7)));
}

/// A tablet server that knows where server 1 is, and counts how often it was asked.
#[derive(Clone, Default)]
struct Told {
    first: Arc<Mutex<String>>,
    asked: Arc<Mutex<usize>>,
}

#[tonic::async_trait]
impl Locate for Told {
    async fn cluster(&self, _request: Request<ClusterRequest>) -> Result<Response<ClusterReply>, Status> {
        *self.asked.lock().unwrap() += 1;
        let server = record::Server { server: 1, address: self.first.lock().unwrap().clone(), ..Default::default() };
        Ok(Response::new(ClusterReply { servers: vec![server], ..Default::default() }))
    }

    async fn counters(&self, _request: Request<CountersRequest>) -> Result<Response<CountersReply>, Status> {
        Err(Status::unimplemented("nobody counts"))
    }
}

#[tokio::test]
async fn an_address_where_nobody_answered_is_asked_for_again() {
    let runtime = Runtime::system("test");
    let told = Told::default();
    *told.first.lock().unwrap() = "one:1".to_owned();
    let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
    let seed = listener.local_addr().to_string();
    serve(&runtime.tasks, listener, Routes::new(LocateServer::new(told.clone())), ServeOptions::default());

    let first = ServerId::new(1);
    let directory = LocateDirectory::new(vec![seed], &runtime);
    assert_eq!(directory.address(first).await.as_deref(), Some("one:1"));
    *told.first.lock().unwrap() = "elsewhere:1".to_owned();
    assert_eq!(directory.address(first).await.as_deref(), Some("one:1"), "nobody has a reason to doubt it");
    assert_eq!(*told.asked.lock().unwrap(), 1);

    directory.doubt(first);
    // What was heard a moment ago is not asked again, so that a dead server does not make everybody ask.
    while directory.address(first).await.as_deref() != Some("elsewhere:1") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(*told.asked.lock().unwrap(), 2);
    assert_eq!(directory.address(first).await.as_deref(), Some("elsewhere:1"));
    assert_eq!(*told.asked.lock().unwrap(), 2, "the new address is not in doubt");
    runtime.tasks.stop(std::time::Duration::from_secs(30)).await;
}

//! The directory over Chubby: it follows the files, and goes on when they are out of reach.

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{Chubby, Write, paths};
use ebla_model::id::{ServerId, TableId};
use ebla_model::metadata::first_tablets;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::{convert, record};
use ebla_runtime::Runtime;

use crate::directory::{ChubbyDirectory, Directory, Freshness};

fn server(id: u64, address: &str) -> Write {
    let server = record::Server { server: id, address: address.to_owned(), ..Default::default() };
    Write::put(paths::server(ServerId::new(id)), convert::encode_record(server))
}

fn schema(name: &TableName, id: u64, state: TableState) -> TableSchema {
    TableSchema { state, ..TableSchema::new(TableId::new(id), name.clone(), Vec::new()).unwrap() }
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

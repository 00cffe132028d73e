//! A cluster whose Chubby was restored from an older backup.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{File, Revision, SharedChubby, Write, paths};
use ebla_client::Client;
use ebla_master::Master;
use ebla_model::id::{TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::schema::TableName;
use ebla_proto::operate::StatusReply;
use ebla_runtime::Runtime;
use ebla_tablet_server::{LocalServers, TabletServer};

use super::life::{key, keys, name, server_config, set, soon, start_master};

/// Three servers and a master from their start to their stop, on data that outlives them.
struct Run {
    chubby: SharedChubby,
    servers: Vec<TabletServer>,
    master: Master,
    client: Client,
    runtime: Runtime,
}

impl Run {
    /// Starts with the data in `data`. Chubby's revision is raised to `revision` first: etcd's is, too, after a restore, at the
    /// latest when it has run for a while.
    async fn start(data: &Path, revision: Revision) -> Self {
        ebla_runtime::logging::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let chubby = Embedded::open(&data.join("chubby"), runtime.clock.clone(), &runtime.tasks).unwrap().shared();
        while chubby.list("").await.unwrap().1 < revision {
            chubby.transact(vec![], vec![Write::put("other", "x")]).await.unwrap();
        }
        let (local_servers, mut servers) = (LocalServers::default(), Vec::new());
        for number in 0..3 {
            let config = server_config(data, number, &local_servers);
            servers.push(TabletServer::start(config, chubby.clone(), runtime.clone()).await.unwrap());
        }
        let master = start_master(&chubby, &runtime).await;
        let client = Client::connect_cluster(servers.first().unwrap().address(), runtime.clone()).await.unwrap();
        Self { chubby, servers, master, client, runtime }
    }

    /// Stops everything. Returns Chubby's last revision.
    async fn stop(self) -> Revision {
        self.master.stop().await;
        for server in self.servers {
            server.stop().await;
        }
        let revision = self.chubby.list("").await.unwrap().1;
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
        revision
    }

    async fn status(&self) -> StatusReply {
        self.client.admin().status().await.unwrap()
    }

    async fn tablets(&self, table: &TableName) -> Vec<TabletId> {
        self.client.tablets(table).await.unwrap().into_iter().map(|(tablet, _leader)| tablet.tablet).collect()
    }

    /// Chubby's files of a table.
    async fn files(&self, table: &TableName) -> Vec<File> {
        let name = self.chubby.read(&paths::name(table)).await.unwrap().unwrap();
        let id: TableId = std::str::from_utf8(&name.value).unwrap().parse().unwrap();
        vec![self.chubby.read(&paths::table(id)).await.unwrap().unwrap(), name]
    }
}

/// A copy of Chubby's folder as it is now.
fn back_up(data: &Path) {
    fs::create_dir(data.join("backup")).unwrap();
    fs::copy(data.join("chubby/journal"), data.join("backup/journal")).unwrap();
}

fn restore(data: &Path) {
    fs::remove_dir_all(data.join("chubby")).unwrap();
    fs::rename(data.join("backup"), data.join("chubby")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_later_than_the_backup_are_kept_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (data, families) = (folder.path(), [("a".to_owned(), None)]);
    let (old, new) = (name("old"), name("new"));
    let run = Run::start(data, Revision::ZERO).await;
    run.client.admin().create_table(&old, &families, &[]).await.unwrap();
    back_up(data);
    run.client.admin().create_table(&new, &families, &[key("g"), key("p")]).await.unwrap();
    let rows = ["apple", "grape", "pear"];
    for row in rows {
        run.client.table(&new).mutate_row(&key(row), &set("a")).await.unwrap();
    }
    let (tablets, files) = (run.tablets(&new).await, run.files(&new).await);
    let last = run.stop().await;
    restore(data);

    let run = Run::start(data, last).await;
    soon("the table is reported", || async { run.status().await.health.unwrap().unknown_tables == 1 }).await;
    let status = run.status().await;
    let number = files.iter().find_map(|file| paths::parse_table(&file.path)).unwrap().get();
    assert_eq!(status.health.unwrap().unknown_tables_first, [number]);
    assert_eq!(status.tablets, 6, "METADATA still lists two of its own, one of the old table and three of the new one");
    // A later backup has the table: it serves as before.
    let puts = files.into_iter().map(|file| Write::put(file.path, file.value)).collect();
    run.chubby.transact(vec![], puts).await.unwrap();
    soon("the servers know the table", || async { run.client.tablets(&new).await.is_ok() }).await;
    assert_eq!(run.tablets(&new).await, tablets);
    assert_eq!(keys(&run.client.table(&new)).await, rows);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_not_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (data, families) = (folder.path(), [("a".to_owned(), None)]);
    let (old, new, later) = (name("old"), name("new"), name("later"));
    let run = Run::start(data, Revision::ZERO).await;
    run.client.admin().create_table(&old, &families, &[]).await.unwrap();
    back_up(data);
    run.client.admin().create_table(&new, &families, &[]).await.unwrap();
    let rows = ["apple", "pear"];
    for row in rows {
        run.client.table(&new).mutate_row(&key(row), &set("a")).await.unwrap();
    }
    let (tablets, files) = (run.tablets(&new).await, run.files(&new).await);
    let last = run.stop().await;
    restore(data);

    let run = Run::start(data, last).await;
    let admin = run.client.admin();
    admin.create_table(&later, &families, &[]).await.unwrap();
    assert!(run.tablets(&later).await > tablets, "ids above those that are in use");
    let table = run.client.table(&later);
    assert!(keys(&table).await.is_empty(), "no row of the other table");
    table.mutate_row(&key("fig"), &set("a")).await.unwrap();
    let (_left, right) = admin.split(&later, Some(&key("g")), &RowKey::EMPTY).await.unwrap();
    assert!(right.tablet > *tablets.first().unwrap());
    admin.delete_table(&later).await.unwrap();
    // The table that Chubby has lost has lost nothing.
    let puts = files.into_iter().map(|file| Write::put(file.path, file.value)).collect();
    run.chubby.transact(vec![], puts).await.unwrap();
    soon("the servers know the table", || async { run.client.tablets(&new).await.is_ok() }).await;
    assert_eq!(keys(&run.client.table(&new)).await, rows);
    run.stop().await;
}

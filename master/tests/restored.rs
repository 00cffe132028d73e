//! A cluster whose Chubby was restored from an older backup or has lost its files, and its recovery.

#![expect(clippy::unwrap_used, reason = "a test may fail, also in its helpers")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use ebla_chubby::embedded::Embedded;
use ebla_chubby::{Counter, Revision, SharedChubby, Write, paths, raise_counter};
use ebla_client::Client;
use ebla_client::admin::ExecutionMode;
use ebla_master::{Master, MasterConfig};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_model::tablet_event::TabletEventCause;
use ebla_proto::convert;
use ebla_proto::operate::{RecoverReply, StatusReply};
use ebla_runtime::Runtime;
use ebla_tablet_server::tablet::Tablet;
use ebla_tablet_server::{LocalServers, TabletServer};

use super::life::{TIMEOUT, key, keys, name, server_config, set, soon};

/// Three servers and a master from their start to their stop, on data that outlives them.
struct Run {
    chubby: SharedChubby,
    servers: Vec<TabletServer>,
    master: Master,
    client: Client,
    runtime: Runtime,
}

impl Run {
    /// Starts with the data in `data`, and waits for nothing else than that the processes run. Chubby's revision is raised to
    /// `revision` first: etcd's is, too, after a restore, at the latest when it has run for a while.
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
        let config = MasterConfig::new("127.0.0.1:0", 3);
        let master = Master::start(config, chubby.clone(), runtime.clone()).await.unwrap();
        let client = connect(servers.first().unwrap().address(), &runtime).await;
        Self { chubby, servers, master, client, runtime }
    }

    /// As [`Self::start`], and waits until the cluster serves.
    async fn start_ready(data: &Path) -> Self {
        let run = Self::start(data, Revision::ZERO).await;
        run.ready().await;
        run
    }

    async fn ready(&self) {
        tokio::time::timeout(TIMEOUT, self.master.ready()).await.unwrap();
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

    /// Starts another server with a folder in `data`, and waits until it is registered.
    async fn join(&self, data: &Path, number: usize) -> TabletServer {
        let config = server_config(data, number, &LocalServers::default());
        let joins = async {
            let server = TabletServer::start(config, self.chubby.clone(), self.runtime.clone()).await.unwrap();
            server.ready().await;
            server
        };
        tokio::time::timeout(TIMEOUT, joins).await.unwrap()
    }

    async fn status(&self) -> StatusReply {
        self.client.admin().status().await.unwrap()
    }

    async fn create(&self, table: &TableName) {
        self.client.admin().create_table(table, &[("a".to_owned(), None)], &[key("g"), key("p")]).await.unwrap();
    }

    async fn write(&self, table: &TableName, rows: &[&'static str]) {
        for row in rows {
            self.client.table(table).mutate_row(&key(row), &set("a")).await.unwrap();
        }
    }

    async fn rows(&self, table: &TableName) -> Vec<String> {
        soon("the servers know the table", || async { self.client.tablets(table).await.is_ok() }).await;
        keys(&self.client.table(table)).await
    }

    async fn tablets(&self, table: &TableName) -> Vec<TabletId> {
        self.client.tablets(table).await.unwrap().into_iter().map(|(tablet, _leader)| tablet.tablet).collect()
    }

    /// Waits until the master knows that Chubby is behind.
    async fn wait_until_behind(&self) {
        let is_behind = || async {
            let status = self.client.admin().status().await;
            status.is_ok_and(|status| status.health.is_some_and(|health| !health.behind.is_empty()))
        };
        soon("the master knows that Chubby is behind", is_behind).await;
    }

    async fn recover(&self, mode: ExecutionMode) -> RecoverReply {
        let addresses = self.servers.iter().map(|server| server.address().to_owned()).collect();
        self.client.admin().recover(mode, addresses, &[]).await.unwrap()
    }

    async fn assert_changes_are_refused(&self) {
        let admin = self.client.admin();
        let refused = admin.create_table(&name("refused"), &[("a".to_owned(), None)], &[]).await.unwrap_err();
        assert_eq!(refused.reason, Reason::FailedPrecondition);
        assert!(refused.message.contains("ebla recover --dry-run"), "{refused}");
        let split = admin.split(&name("old"), Some(&key("c")), &RowKey::EMPTY).await.unwrap_err();
        assert_eq!(split.message, refused.message);
        let own = self.split_by_a_server().await;
        assert_eq!(own.reason, Reason::FailedPrecondition);
        assert!(own.message.contains("ebla recover --dry-run"), "{own}");
    }

    /// The error of a split that a tablet server makes by itself, as those above a size.
    async fn split_by_a_server(&self) -> Error {
        let tablets = || self.servers.iter().flat_map(|server| server.tablet_manager().tablets());
        let is_led = |tablet: &Tablet| {
            let descriptor = tablet.descriptor();
            let has_key = descriptor.is_ok_and(|it| it.table != TableId::METADATA && it.range.contains(b"c"));
            has_key && tablet.raft().leadership().is_some()
        };
        soon("a tablet has a leader", || async { tablets().any(|tablet| is_led(&tablet)) }).await;
        let tablet = tablets().find(is_led).unwrap();
        tablet.split_because(TabletEventCause::Size, Some(key("c")), TIMEOUT).await.unwrap_err().error
    }
}

/// A client, once the server knows its cluster: a new one is created first.
async fn connect(address: &str, runtime: &Runtime) -> Client {
    let connecting = async {
        loop {
            if let Ok(client) = Client::connect_cluster(address, runtime.clone()).await {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, connecting).await.unwrap()
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

const ROWS: [&str; 3] = ["apple", "grape", "pear"];

/// More revisions than a cluster writes between its start and the moment at which a test compares its revision.
const REVISIONS_AFTER_BACKUP: u64 = 500;

/// A cluster with the table `old`, of which a backup is made, and `new`, which is later than the backup; both have rows. The
/// master that creates `new` is elected many revisions after the backup. Then Chubby's folder is replaced by the backup.
/// Returns Chubby's last revision, and the tablets of `new`.
async fn restored(data: &Path) -> (Revision, Vec<TabletId>) {
    let run = Run::start_ready(data).await;
    let (old, new) = (name("old"), name("new"));
    run.create(&old).await;
    run.write(&old, &ROWS).await;
    back_up(data);
    let later = Revision::new(run.stop().await.get() + REVISIONS_AFTER_BACKUP);
    let run = Run::start(data, later).await;
    run.ready().await;
    run.create(&new).await;
    run.write(&new, &ROWS).await;
    let tablets = run.tablets(&new).await;
    let last = run.stop().await;
    restore(data);
    (last, tablets)
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_later_than_the_backup_are_kept_and_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let (last, tablets) = restored(folder.path()).await;
    let run = Run::start(folder.path(), last).await;
    run.wait_until_behind().await;
    soon("the table is reported", || async { run.status().await.health.unwrap().unknown_tables == 1 }).await;
    assert_eq!(run.status().await.tablets, 8, "METADATA still lists two of its own and three of each table");
    assert_eq!(run.rows(&name("old")).await, ROWS, "reads continue");
    run.write(&name("old"), &["quince"]).await;
    run.assert_changes_are_refused().await;

    let planned = run.recover(ExecutionMode::DryRun).await;
    assert_eq!(planned.servers, [1, 2, 3]);
    assert!(planned.steps.iter().any(|step| step.contains("tables/new")), "{planned:?}");
    run.assert_changes_are_refused().await;
    let done = run.recover(ExecutionMode::Execute).await;
    assert_eq!(done.steps, planned.steps);
    run.ready().await;
    assert_eq!(run.rows(&name("new")).await, ROWS);
    assert_eq!(run.tablets(&name("new")).await, tablets);
    assert_eq!(run.rows(&name("old")).await, ["apple", "grape", "pear", "quince"]);
    // Ids are not given twice.
    run.create(&name("later")).await;
    assert!(run.tablets(&name("later")).await.first() > tablets.last(), "ids above those that are in use");
    assert!(run.rows(&name("later")).await.is_empty(), "no row of another table");
    run.client.admin().delete_table(&name("later")).await.unwrap();
    assert_eq!(run.rows(&name("new")).await, ROWS);
    assert_eq!(run.recover(ExecutionMode::Execute).await.steps, Vec::<String>::new(), "nothing is missing any more");
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chubby_with_lower_revisions_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let (last, _tablets) = restored(folder.path()).await;
    // No revision is skipped, so the epoch of the master is below those that the servers have accepted.
    let run = Run::start(folder.path(), Revision::ZERO).await;
    assert!(run.chubby.list("").await.unwrap().1 < last);
    run.wait_until_behind().await;
    assert_eq!(run.rows(&name("old")).await, ROWS, "reads continue");
    run.assert_changes_are_refused().await;
    run.recover(ExecutionMode::Execute).await;
    run.ready().await;
    assert_eq!(run.rows(&name("new")).await, ROWS);
    soon("a master whose requests are accepted", || async {
        run.status().await.servers.iter().all(|server| server.reachable)
    })
    .await;
    run.create(&name("later")).await;
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_chubby_is_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let (_last, tablets) = restored(folder.path()).await;
    fs::remove_dir_all(folder.path().join("chubby")).unwrap();
    let run = Run::start(folder.path(), Revision::ZERO).await;
    soon("the master waits for servers", || async {
        run.client.admin().status().await.is_ok_and(|status| status.awaited.is_some())
    })
    .await;
    assert_eq!(run.recover(ExecutionMode::DryRun).await.servers, [1, 2, 3]);
    assert!(run.chubby.read(paths::CLUSTER).await.unwrap().is_none(), "a dry run writes nothing");
    run.recover(ExecutionMode::Execute).await;
    run.ready().await;
    for table in ["old", "new"] {
        assert_eq!(run.rows(&name(table)).await, ROWS);
    }
    run.create(&name("later")).await;
    assert!(run.tablets(&name("later")).await.first() > tablets.last(), "ids above those that are in use");
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_deleted_after_the_backup_is_deleted_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let run = Run::start_ready(data).await;
    run.create(&name("old")).await;
    run.create(&name("deleted")).await;
    run.write(&name("old"), &ROWS).await;
    back_up(data);
    run.client.admin().delete_table(&name("deleted")).await.unwrap();
    run.create(&name("new")).await;
    let last = run.stop().await;
    restore(data);

    let run = Run::start(data, last).await;
    run.wait_until_behind().await;
    let done = run.recover(ExecutionMode::Execute).await;
    assert!(
        done.steps.iter().any(|step| step.starts_with("delete table") && step.contains("tables/deleted")),
        "{done:?}"
    );
    soon("the table is deleted", || async {
        let listed = run.client.admin().list_tables("p", "inst").await;
        listed.is_ok_and(|listed| listed == [name("new"), name("old")])
    })
    .await;
    assert_eq!(run.rows(&name("old")).await, ROWS);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chubby_that_is_later_than_the_servers_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::start_ready(folder.path()).await;
    run.create(&name("old")).await;
    run.write(&name("old"), &ROWS).await;
    // The files of a table that no server has.
    let schema = TableSchema::new(TableId::new(900), name("gone"), Vec::new()).unwrap();
    let schema = TableSchema { state: TableState::Active, ..schema };
    let files = vec![
        Write::put(paths::table(schema.table), convert::schema_to_bytes(&schema)),
        Write::put(paths::name(&schema.name), "900"),
    ];
    raise_counter(&*run.chubby, Counter::Tables, 901).await.unwrap();
    run.chubby.transact(vec![], files).await.unwrap();
    let reply = run.recover(ExecutionMode::Execute).await;
    assert_eq!(reply.steps, Vec::<String>::new());
    assert!(reply.findings.iter().any(|finding| finding.contains("table 900")), "{reply:?}");
    assert!(run.chubby.read(&paths::table(schema.table)).await.unwrap().is_some(), "nothing is deleted");
    run.create(&name("later")).await;
    assert_eq!(run.rows(&name("old")).await, ROWS);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_without_all_servers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (last, _tablets) = restored(folder.path()).await;
    let mut run = Run::start(folder.path(), last).await;
    run.wait_until_behind().await;
    let lost = run.servers.pop().unwrap();
    let id = lost.id();
    lost.stop().await;
    let admin = run.client.admin();
    let refused = admin.recover(ExecutionMode::Execute, Vec::new(), &[]).await.unwrap_err();
    assert_eq!(refused.reason, Reason::FailedPrecondition);
    assert!(refused.message.contains(&format!("--without {id}")), "{refused}");
    run.assert_changes_are_refused().await;
    admin.recover(ExecutionMode::Execute, Vec::new(), &[id]).await.unwrap();
    assert_eq!(run.rows(&name("new")).await, ROWS);
    run.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_joins_waits_for_the_recovery_and_gets_no_id_that_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let run = Run::start_ready(data).await;
    back_up(data);
    let fourth = run.join(data, 3).await;
    assert_eq!(fourth.id(), ServerId::new(4));
    fourth.stop().await;
    let last = run.stop().await;
    restore(data);

    let mut run = Run::start(data, last).await;
    // The counter would give its id again.
    let fourth = run.join(data, 3).await;
    run.servers.push(fourth);
    let recovery = async {
        run.wait_until_behind().await;
        run.recover(ExecutionMode::Execute).await;
    };
    let (fifth, ()) = tokio::join!(run.join(data, 4), recovery);
    assert_eq!(fifth.id(), ServerId::new(5));
    fifth.stop().await;
    run.stop().await;
}

/// A restoration that takes less time than the lease of the master's lock: its term goes on, and no round has compared Chubby yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_gives_no_id_again_if_chubby_goes_back_in_its_term() {
    let folder = tempfile::tempdir().unwrap();
    let run = Run::start_ready(folder.path()).await;
    let files = async || {
        let listed = run.chubby.list("").await.unwrap().0.into_iter();
        listed.filter(|file| file.lease.is_none()).map(|file| (file.path, file.value)).collect::<BTreeMap<_, _>>()
    };
    let backup = files().await;
    let (first, second) = (name("first"), name("second"));
    run.create(&first).await;
    run.write(&first, &ROWS).await;

    let lost = files().await.into_keys().filter(|path| !backup.contains_key(path)).map(Write::delete);
    let earlier = backup.iter().map(|(path, value)| Write::put(path.clone(), value.clone()));
    run.chubby.transact(Vec::new(), lost.chain(earlier).collect()).await.unwrap();
    let refused = run.client.admin().create_table(&second, &[("a".to_owned(), None)], &[key("g"), key("p")]).await;
    let refused = refused.unwrap_err();
    assert!(refused.message.contains("ebla recover --dry-run"), "{refused}");
    assert!(run.chubby.read(&paths::name(&second)).await.unwrap().is_none());
    run.wait_until_behind().await;
    soon("the table is reported", || async { run.status().await.health.unwrap().unknown_tables == 1 }).await;
    run.stop().await;
}

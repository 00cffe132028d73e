//! Tables, other servers, and a namespace over them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ebla_mounttable_namespace::{Builder, ChangeScope, MountEntry, MountOptions, Namespace, Roots};
use ebla_mounttable_server::testing::FakeMountTable;
use ebla_mounttable_tree::{Error, ServerAddress, Target};
use ebla_runtime::net::{Connection, Listener};
use ebla_runtime::{Clock, Net, Network, Runtime, ServeOptions, serve};
use futures::StreamExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::secured;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Tables by name, with a root.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) tables: BTreeMap<&'static str, FakeMountTable>,
    pub(crate) names: Namespace,
}

/// A builder of a namespace with this table as its root, for the caller `test`. Changes follow mounts.
pub(crate) fn builder(table: &FakeMountTable, runtime: &Runtime) -> Builder {
    let roots = Roots::new([table.root().as_str()]).unwrap();
    Namespace::builder(runtime.clone()).roots(roots).identity("test").change_scope(ChangeScope::MountedTables)
}

impl World {
    /// A root and these other tables, not mounted yet. Its clock is manual.
    pub(crate) async fn new(others: &[&'static str]) -> Self {
        let runtime = Runtime { clock: Clock::manual(), ..secured::runtime() };
        let mut tables = BTreeMap::new();
        for name in others.iter().chain(&["root"]) {
            tables.insert(*name, FakeMountTable::start(&runtime).await.unwrap());
        }
        let names = builder(&tables["root"], &runtime).build().unwrap();
        Self { runtime, tables, names }
    }

    /// A builder of a namespace with this table as its root.
    pub(crate) fn builder(&self, table: &str) -> Builder {
        builder(&self.tables[table], &self.runtime)
    }

    /// The rooted address of a table.
    pub(crate) fn at(&self, table: &str) -> String {
        self.tables[table].root()
    }

    /// Mounts a table under a name.
    pub(crate) async fn mount_table(&self, name: &str, table: &str) {
        self.mount(name, &self.at(table), Target::MountTable).await.unwrap();
    }

    /// Mounts a server under a name, at all servers of its table.
    pub(crate) async fn mount(&self, name: &str, server: &str, target: Target) -> Result<(), Error> {
        let options = MountOptions::new(HOUR).target(target);
        self.names.mount(name, &address(server), options).await?.all().map(drop)
    }

    /// The names that a name resolves to, in order.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Vec<String>, Error> {
        self.names.resolve(name).await.map(sorted)
    }

    /// The names of the table that holds a name, in order.
    pub(crate) async fn table_of(&self, name: &str) -> Vec<String> {
        self.names.resolve_to_mount_table(name).await.map(sorted).unwrap()
    }

    /// The matches of a pattern, in order; errors as `name: REASON`.
    pub(crate) async fn glob(&self, pattern: &str) -> Vec<String> {
        globbed(&self.names, pattern).await
    }

    /// A gRPC server that is not a mount table.
    pub(crate) async fn ordinary(&self) -> String {
        let listener = self.runtime.net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        serve(&self.runtime.tasks, listener, tonic::service::Routes::default(), ServeOptions::default());
        format!("/{address}")
    }
}

pub(crate) async fn globbed(names: &Namespace, pattern: &str) -> Vec<String> {
    let results = names.glob(pattern).unwrap().map(|item| match item {
        Ok(entry) => entry.name,
        Err(failed) => format!("{}: {}", failed.name, failed.error.reason),
    });
    let mut results: Vec<_> = results.collect().await;
    results.sort();
    results
}

pub(crate) fn address(text: &str) -> ServerAddress {
    text.parse().unwrap()
}

/// An address without a listener.
pub(crate) const NOBODY: &str = "/127.0.0.1:1";

fn sorted(entry: MountEntry) -> Vec<String> {
    let mut names = entry.names();
    names.sort();
    names
}

/// The system's network, with a record of connections.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    net: Net,
    connected: Arc<Mutex<BTreeSet<String>>>,
}

impl Noted {
    pub(crate) fn new() -> Self {
        Self { net: Net::tcp(), connected: Arc::default() }
    }

    /// Whether this rooted address was connected to.
    pub(crate) fn has_connected(&self, root: &str) -> bool {
        self.connected.lock().contains(root.trim_start_matches('/'))
    }
}

impl Network for Noted {
    fn listen(&self, address: String) -> BoxFuture<'_, io::Result<Listener>> {
        Box::pin(async move { self.net.listen(&address).await })
    }

    fn connect(&self, address: String) -> BoxFuture<'_, io::Result<Connection>> {
        self.connected.lock().insert(address.clone());
        Box::pin(async move { self.net.connect(&address).await })
    }
}

//! Tables, servers that are no tables, and a namespace over them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ebla_mounttable::{Error, ServerAddress, Target};
use ebla_mounttable_namespace::testing::FakeMountTable;
use ebla_mounttable_namespace::{MountEntry, MountOptions, Namespace};
use ebla_runtime::net::{Connection, Listener};
use ebla_runtime::{Clock, Net, Network, Runtime, ServeOptions, serve};
use futures::StreamExt;
use futures::future::BoxFuture;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Tables by name, the first of which is the root.
pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) tables: BTreeMap<&'static str, FakeMountTable>,
    pub(crate) names: Namespace,
}

impl World {
    /// A root and these other tables, not mounted yet. Its clock stands still.
    pub(crate) async fn new(others: &[&'static str]) -> Self {
        let runtime = Runtime { clock: Clock::manual(), ..Runtime::system("test") };
        let mut tables = BTreeMap::new();
        for name in others.iter().chain(&["root"]) {
            tables.insert(*name, FakeMountTable::start(&runtime).await.unwrap());
        }
        let names = tables["root"].namespace().unwrap().build().unwrap();
        Self { runtime, tables, names }
    }

    /// The address of a table, rooted.
    pub(crate) fn at(&self, table: &str) -> String {
        self.tables[table].root()
    }

    /// Mounts a table under a name.
    pub(crate) async fn mount_table(&self, name: &str, table: &str) {
        self.mount(name, &self.at(table), Target::MountTable).await.unwrap();
    }

    /// Mounts a server under a name, at all places that hold it.
    pub(crate) async fn mount(&self, name: &str, server: &str, target: Target) -> Result<(), Error> {
        let options = MountOptions::new(HOUR).target(target);
        self.names.mount(name, &address(server), options).await?.all().map(drop)
    }

    /// The names that a name leads to, in order.
    pub(crate) async fn resolve(&self, name: &str) -> Result<Vec<String>, Error> {
        self.names.resolve(name).await.map(sorted)
    }

    /// The names of the table that holds a name, in order.
    pub(crate) async fn table_of(&self, name: &str) -> Vec<String> {
        self.names.resolve_to_mount_table(name).await.map(sorted).unwrap()
    }

    /// The names that a pattern asks for, in order; what failed as `name: REASON`.
    pub(crate) async fn glob(&self, pattern: &str) -> Vec<String> {
        globbed(&self.names, pattern).await
    }

    /// A server that speaks gRPC and is no mount table.
    pub(crate) async fn ordinary(&self) -> String {
        let listener = self.runtime.net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        serve(&self.runtime.tasks, listener, tonic::service::Routes::default(), ServeOptions::default());
        format!("/{address}")
    }
}

pub(crate) async fn globbed(names: &Namespace, pattern: &str) -> Vec<String> {
    let told = names.glob(pattern).unwrap().map(|item| match item {
        Ok(entry) => entry.name,
        Err(failed) => format!("{}: {}", failed.name, failed.error.reason),
    });
    let mut told: Vec<_> = told.collect().await;
    told.sort();
    told
}

pub(crate) fn address(text: &str) -> ServerAddress {
    text.parse().unwrap()
}

/// An address where nobody listens.
pub(crate) const NOBODY: &str = "/127.0.0.1:1";

fn sorted(entry: MountEntry) -> Vec<String> {
    let mut names = entry.names();
    names.sort();
    names
}

/// The machine's network, and who was connected to.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    net: Net,
    connected: Arc<Mutex<BTreeSet<String>>>,
}

impl Noted {
    pub(crate) fn new() -> Self {
        Self { net: Net::tcp(), connected: Arc::default() }
    }

    /// Whether anybody connected to this rooted address.
    pub(crate) fn has_connected(&self, root: &str) -> bool {
        self.connected.lock().unwrap().contains(root.trim_start_matches('/'))
    }
}

impl Network for Noted {
    fn listen(&self, address: String) -> BoxFuture<'_, io::Result<Listener>> {
        Box::pin(async move { self.net.listen(&address).await })
    }

    fn connect(&self, address: String) -> BoxFuture<'_, io::Result<Connection>> {
        self.connected.lock().unwrap().insert(address.clone());
        Box::pin(async move { self.net.connect(&address).await })
    }
}

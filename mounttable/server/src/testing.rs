//! A mount table for tests: the real service, in memory, in this process, on a free local port.

use std::time::Duration;

use ebla_model::Error as ModelError;
use ebla_mounttable_tree::identity::BlessingPattern;
use ebla_mounttable_tree::outage::Credit;
use ebla_mounttable_tree::store::cache;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::system::SystemStore;
use ebla_mounttable_tree::table::TableOptions;
use ebla_mounttable_tree::{Error, Permissions, Reason, Table};
use ebla_runtime::Runtime;

use crate::server::{Server, ServerConfig};
use crate::service::identity::AuthMethod;

/// An in-memory mount table. It believes the callers' names, everybody may do everything, and a caller called `server`
/// is a superuser.
///
/// Its deadlines follow the clock of the given runtime; with a manual clock a test advances them.
#[derive(Debug)]
pub struct FakeMountTable {
    server: Server,
    /// Its own runtime, so that it can be stopped alone.
    runtime: Runtime,
}

impl FakeMountTable {
    /// Starts one.
    ///
    /// # Errors
    /// `UNAVAILABLE` when no port is free.
    pub async fn start(runtime: &Runtime) -> Result<Self, Error> {
        Self::listen(runtime, "127.0.0.1:0").await
    }

    /// Starts one at this address, such as that of one that was stopped.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the address cannot be bound.
    pub async fn listen(runtime: &Runtime, address: &str) -> Result<Self, Error> {
        let inside = runtime.child("fake");
        let store = SystemStore::new(MemoryStore::default(), inside.clone());
        // A test's clock jumps without outages, and mounts must be visible at once.
        let options = TableOptions { grace: Duration::ZERO, credit: Credit::Off, ..TableOptions::default() };
        let cache = cache::CacheOptions { rows: 0, ..cache::CacheOptions::default() };
        Table::new(store.clone(), options).setup(Permissions::open()).await?;
        let config = ServerConfig {
            listen: address.to_owned(),
            http_listen: None,
            table: "fake".to_owned(),
            options,
            identity: AuthMethod::Development,
            superusers: vec![BlessingPattern::new("server")],
            sweep_period: Duration::ZERO,
            cache,
        };
        let bound = |error: ModelError| Error::new(Reason::Unavailable, error.message);
        let server = Server::start(config, store, inside.clone()).await.map_err(bound)?;
        Ok(Self { server, runtime: inside })
    }

    /// Its address, `host:port`.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// The root of its names.
    pub fn root(&self) -> String {
        format!("/{}", self.address())
    }

    /// Stops it like a crash: connections break.
    pub async fn stop(&self) {
        self.runtime.tasks.stop(Duration::ZERO).await;
    }
}

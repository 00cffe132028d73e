//! A mount table for applications' own tests: the real service, in memory, in this process, on a free port of this
//! machine.

use std::time::Duration;

use ebla_model::Error as ModelError;
use ebla_mounttable::identity::BlessingPattern;
use ebla_mounttable::outage::Credit;
use ebla_mounttable::server::{Server, ServerConfig};
use ebla_mounttable::service::identity::Identity;
use ebla_mounttable::store::cache;
use ebla_mounttable::store::grounded::Grounded;
use ebla_mounttable::store::memory::Memory;
use ebla_mounttable::table::Options;
use ebla_mounttable::{Error, Permissions, Reason, Table};
use ebla_runtime::Runtime;

use crate::namespace::{Builder, Namespace};
use crate::roots::Roots;

/// A mount table that forgets everything when it ends. It believes what callers say of themselves, everybody may do
/// everything in it, and whoever calls himself `server` is a superuser.
///
/// Its deadlines follow the clock of the runtime that it is given: with a manual one a test moves them.
#[derive(Debug)]
pub struct FakeMountTable {
    server: Server,
    /// What it runs in, to be stopped alone.
    inside: Runtime,
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

    /// Starts one at this address, such as that of another one that was stopped.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the address cannot be bound.
    pub async fn listen(runtime: &Runtime, address: &str) -> Result<Self, Error> {
        let inside = runtime.child("fake");
        let store = Grounded::new(Memory::default(), inside.clone());
        // A clock that a test moves by minutes is no outage, and what was mounted is to be seen at once.
        let options = Options { grace: Duration::ZERO, credit: Credit::Off, ..Options::default() };
        let cache = cache::Options { rows: 0, ..cache::Options::default() };
        Table::new(store.clone(), options).setup(Permissions::open()).await?;
        let config = ServerConfig {
            listen: address.to_owned(),
            http_listen: None,
            table: "fake".to_owned(),
            options,
            identity: Identity::Development,
            superusers: vec![BlessingPattern::new("server")],
            sweep_period: Duration::ZERO,
            cache,
        };
        let bound = |error: ModelError| Error::new(Reason::Unavailable, error.message);
        let server = Server::start(config, store, inside.clone()).await.map_err(bound)?;
        Ok(Self { server, inside, runtime: runtime.clone() })
    }

    /// Where it listens, `host:port`.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// The name that its names begin with.
    pub fn root(&self) -> String {
        format!("/{}", self.address())
    }

    /// The beginning of a namespace with this table as its root, for the caller `test`.
    ///
    /// # Errors
    /// None: its address is one.
    pub fn namespace(&self) -> Result<Builder, Error> {
        let roots = Roots::new([self.root().as_str()])?;
        Ok(Namespace::builder(self.runtime.clone()).roots(roots).identity("test"))
    }

    /// Ends it as a crash would: connections break.
    pub async fn stop(&self) {
        self.inside.tasks.stop(Duration::ZERO).await;
    }
}

//! The handle that a program holds, and the two ways in.
//!
//! | | how | for |
//! |---|---|---|
//! | [`Client::cluster`], [`Client::connect_cluster`] | looks tablets up, asks their leaders directly | this system |
//! | [`Client::endpoint`] | the public Bigtable API at one address | this system or another one |
//!
//! Both give the same [`Table`].

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use ebla_proto::record;
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_runtime::Runtime;
use tonic::transport::Channel;

use crate::admin::Admin;
use crate::channel::{GrpcTransport, MESSAGE_BYTES_MAX};
use crate::cluster::{Cluster, Lookup, Options};
use crate::deadline::Deadline;
use crate::directory::{Directory, Freshness, LocateDirectory};
use crate::locate::LeaderHint;
use crate::table::Table;

/// How long a call may take unless the table is told otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A way in. Cheap to clone; clones share caches and connections.
#[derive(Clone, Debug)]
pub struct Client {
    way: Way,
    runtime: Runtime,
    /// Where admin calls go.
    address: String,
    /// How long a call may take; `None`: as long as is usual for its kind.
    timeout: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) enum Way {
    Cluster(Cluster),
    Endpoint(BigtableClient<Channel>),
}

impl Client {
    /// A client over the given parts. It has no address for [`Self::admin`].
    pub fn cluster(options: Options) -> Self {
        let runtime = options.runtime.clone();
        Self { way: Way::Cluster(Cluster::new(options)), runtime, address: String::new(), timeout: None }
    }

    /// Joins the cluster that the tablet server at `address` (`host:port`) belongs to.
    ///
    /// # Errors
    /// `Unavailable` when no server answers there.
    pub async fn connect_cluster(address: &str, runtime: Runtime) -> Result<Self, Error> {
        Self::connect_any(&[address.to_owned()], runtime).await
    }

    /// Joins the cluster of these tablet servers through the first of them (`host:port`) that answers, which also gets the
    /// admin calls.
    ///
    /// # Errors
    /// `Unavailable` when no server answers; `Unimplemented` when something answers that is no tablet server, such as a
    /// master; `NoLeader` when the cluster has not started yet.
    pub async fn connect_any(addresses: &[String], runtime: Runtime) -> Result<Self, Error> {
        let directory = LocateDirectory::new(addresses.to_vec(), &runtime);
        let address = directory.ask_any().await?;
        let directory: Arc<dyn Directory> = Arc::new(directory);
        let transport = Arc::new(GrpcTransport::new(runtime.net.clone(), Arc::clone(&directory)));
        let options = Options { directory, transport, runtime, home: None };
        Ok(Self { address, ..Self::cluster(options) })
    }

    /// The same client whose calls end after `timeout`, each counted by itself.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Speaks the public Bigtable API to `address` (`host:port`), without TLS. Connects at the first call.
    pub fn endpoint(address: &str, runtime: Runtime) -> Self {
        let client = BigtableClient::new(runtime.net.channel(address))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Self { way: Way::Endpoint(client), runtime, address: address.to_owned(), timeout: None }
    }

    /// A table; it need not exist yet.
    pub fn table(&self, name: &TableName) -> Table {
        let table = Table::new(self.way.clone(), name.clone(), self.runtime.clone());
        match self.timeout {
            Some(timeout) => table.with_timeout(timeout),
            None => table,
        }
    }

    /// Tables, families, splits and the cluster's state, over the address that this client was given. For a client that was
    /// made of parts use [`Admin::connect`]: here it has none, and each call fails as unavailable.
    pub fn admin(&self) -> Admin {
        let admin = Admin::connect(&self.address, &self.runtime);
        match self.timeout {
            Some(timeout) => admin.with_timeout(timeout),
            None => admin,
        }
    }

    /// The low-level handle.
    ///
    /// # Errors
    /// `Unimplemented` for [`Client::endpoint`]: the public API does not tell where tablets are.
    pub fn low_level(&self) -> Result<&Cluster, Error> {
        match &self.way {
            Way::Cluster(cluster) => Ok(cluster),
            Way::Endpoint(_) => Err(Error::unimplemented("the public API does not tell where tablets are")),
        }
    }

    /// Which tablet holds a row, how that was found, and what it cost.
    ///
    /// # Errors
    /// `NotFoundTable`, or as [`Self::low_level`] and [`Cluster::locate`].
    pub async fn locate(&self, table: &TableName, key: &RowKey) -> Result<Lookup, Error> {
        let cluster = self.low_level()?;
        let table = cluster.directory().table(table, Freshness::Cached).await?.ok_or_else(|| no_such_table(table))?;
        cluster.locate(table, key, self.deadline()).await
    }

    /// The tablets of a table in key order as METADATA lists them, with the leaders that were noted.
    ///
    /// # Errors
    /// `NotFoundTable`, or as [`Self::low_level`] and [`crate::Metadata::read_table`].
    pub async fn tablets(&self, table: &TableName) -> Result<Vec<(TabletDescriptor, Option<LeaderHint>)>, Error> {
        let cluster = self.low_level()?;
        let table = cluster.directory().table(table, Freshness::Cached).await?.ok_or_else(|| no_such_table(table))?;
        let entries = cluster.metadata().read_table(table, self.deadline()).await?;
        Ok(entries.into_iter().map(|entry| (entry.descriptor, entry.leader)).collect())
    }

    /// The tablet servers that live, as the server at this client's address knows them.
    ///
    /// # Errors
    /// `Unavailable` when it does not answer, or when this client was made of parts.
    pub async fn servers(&self) -> Result<Vec<record::Server>, Error> {
        Ok(LocateDirectory::new(vec![self.address.clone()], &self.runtime).ask().await?.servers)
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(&self.runtime.clock, self.timeout.unwrap_or(TIMEOUT))
    }
}

pub(crate) fn no_such_table(name: &TableName) -> Error {
    Error::new(Reason::NotFoundTable, format!("Table not found: {name}"))
}

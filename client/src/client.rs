//! The client of a program, with two backends.
//!
//! | constructor | backend | for |
//! |---|---|---|
//! | [`Client::cluster`], [`Client::connect_cluster`] | looks up tablets and sends requests to their leaders directly | this system |
//! | [`Client::endpoint`] | the public Bigtable API at one address | this system or another one |
//!
//! Both have the same [`Table`]. While access control is on, tablets are for servers only: then [`Client::connect_cluster`] gives a user the
//! second backend, at the address that has replied.

use std::sync::Arc;
use std::time::Duration;

use ebla_model::error::Error;
use ebla_model::id::TableId;
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::limit::RowLimit;
use ebla_model::metadata::{self, TabletDescriptor};
use ebla_model::schema::TableName;
use ebla_proto::record;
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_runtime::Runtime;

use crate::admin::Admin;
use crate::backend::{Backend, TIMEOUT};
use crate::channel::MESSAGE_BYTES_MAX;
use crate::cluster::Cluster;
use crate::deadline::Deadline;
use crate::directory::{Directory, LocateDirectory};
use crate::grpc_transport::GrpcTransport;
use crate::history::{LastEvents, TableEvent};
use crate::locate::LeaderHint;
use crate::lookup::Lookup;
use crate::metadata::{MetadataTablet, TabletEvent, TabletEvents, metadata_tablets};
use crate::options::ClusterOptions;
use crate::table::Table;
use crate::token::{BearerToken, Credentials};

/// A client. Cheap to clone; clones share caches and connections.
#[derive(Clone, Debug)]
pub struct Client {
    backend: Backend,
    runtime: Runtime,
    /// The address of admin calls.
    address: String,
    /// The timeout of a call; `None`: the default of its kind.
    timeout: Option<Duration>,
    /// The caller of admin calls.
    token: Option<BearerToken>,
}

impl Client {
    /// A client with the given parts. It has no address for [`Self::admin`].
    pub fn cluster(options: ClusterOptions) -> Self {
        let runtime = options.runtime.clone();
        Self {
            backend: Backend::Cluster(Cluster::new(options)),
            runtime,
            address: String::new(),
            timeout: None,
            token: None,
        }
    }

    /// A client that uses the handle of a tablet server of this process: calls to tablets of the process need no connection.
    /// `address` (`host:port`) is where that server accepts admin calls.
    pub fn in_process(cluster: Cluster, address: &str, runtime: Runtime) -> Self {
        Self { backend: Backend::Cluster(cluster), runtime, address: address.to_owned(), timeout: None, token: None }
    }

    /// Connects to the cluster of the tablet server at `address` (`host:port`).
    ///
    /// # Errors
    /// `Unavailable` when no server responds there.
    pub async fn connect_cluster(address: &str, runtime: Runtime) -> Result<Self, Error> {
        Self::connect_any(&[address.to_owned()], runtime).await
    }

    /// Connects to the cluster of these tablet servers (`host:port`) through the first one that responds. The same
    /// server receives the admin calls; and, if the caller may not call tablets because access control is on, all calls: see [`Self::endpoint`].
    ///
    /// # Errors
    /// `Unavailable` when no server responds; `Unimplemented` when the process that responds is not a tablet server,
    /// such as a master; `NoLeader` when the cluster has not started yet.
    pub async fn connect_any(addresses: &[String], runtime: Runtime) -> Result<Self, Error> {
        let directory = LocateDirectory::new(addresses.to_vec(), &runtime);
        let (address, reply) = directory.fetch_from_any().await?;
        if reply.public_api_only {
            return Ok(Self::endpoint(&address, runtime));
        }
        let directory: Arc<dyn Directory> = Arc::new(directory);
        let transport = Arc::new(GrpcTransport::new(runtime.clone(), Arc::clone(&directory)));
        let options = ClusterOptions { directory, transport, runtime, home: None };
        Ok(Self { address, ..Self::cluster(options) })
    }

    /// The same client with `timeout` for each call.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same client, whose admin calls are those of the caller whom `token` names, and with [`Client::endpoint`] also reads and writes. Without
    /// TLS these calls fail with `FailedPrecondition`, unless the token permits it: [`BearerToken::allow_plaintext`].
    #[must_use]
    pub fn with_token(mut self, token: Option<BearerToken>) -> Self {
        if let Backend::Endpoint(_) = &self.backend {
            self.backend = endpoint(&self.address, token.clone(), &self.runtime);
        }
        self.token = token;
        self
    }

    /// A client of the public Bigtable API at `address` (`host:port`), with the TLS of `runtime`. Connects at the first call. The server retries
    /// calls to its tablets; calls that do not reach the server are not retried.
    pub fn endpoint(address: &str, runtime: Runtime) -> Self {
        let backend = endpoint(address, None, &runtime);
        Self { backend, runtime, address: address.to_owned(), timeout: None, token: None }
    }

    /// A table; it need not exist yet.
    pub fn table(&self, name: &TableName) -> Table {
        let table = Table::new(self.backend.clone(), name.clone(), self.runtime.clone());
        match self.timeout {
            Some(timeout) => table.with_timeout(timeout),
            None => table,
        }
    }

    /// Admin calls for tables, families, splits and the cluster state, at the address of this client. A client that was
    /// created from parts has no address: each call fails as unavailable; use [`Admin::connect`].
    pub fn admin(&self) -> Admin {
        let admin = Admin::connect(&self.address, &self.runtime).with_token(self.token.clone());
        match self.timeout {
            Some(timeout) => admin.with_timeout(timeout),
            None => admin,
        }
    }

    /// The cluster handle.
    ///
    /// # Errors
    /// `Unimplemented` for [`Client::endpoint`]: the public API does not report tablet locations.
    pub fn low_level(&self) -> Result<&Cluster, Error> {
        match &self.backend {
            Backend::Cluster(cluster) => Ok(cluster),
            Backend::Endpoint(_) => Err(Error::unimplemented(
                "the public API does not report where tablets are; while access control is on, only servers learn it",
            )),
        }
    }

    /// The tablet that holds a row, with the hops of its lookup and their cost.
    ///
    /// # Errors
    /// `NotFoundTable`, or as [`Self::low_level`] and [`Cluster::locate`].
    pub async fn locate(&self, table: &TableName, key: &RowKey) -> Result<Lookup, Error> {
        let cluster = self.low_level()?;
        let table = cluster.table_id(table).await?;
        cluster.locate(table, key, self.deadline()).await
    }

    /// The tablets of a table that METADATA lists, in key order, with the recorded leaders.
    ///
    /// # Errors
    /// `NotFoundTable`, or as [`Self::low_level`] and [`Cluster::read_metadata`].
    pub async fn tablets(&self, table: &TableName) -> Result<Vec<(TabletDescriptor, Option<LeaderHint>)>, Error> {
        let cluster = self.low_level()?;
        let table = cluster.table_id(table).await?;
        let rows = cluster.read_metadata(metadata::table_range(table), self.deadline()).await?;
        Ok(rows.into_iter().map(|row| (row.descriptor, row.leader)).collect())
    }

    /// The events of the tablets of a table, in key order of their tablets; without a table: of all tablets but the root.
    ///
    /// # Errors
    /// As [`Self::tablets`].
    pub async fn tablet_events(&self, table: Option<&TableName>) -> Result<Vec<TabletEvents>, Error> {
        let cluster = self.low_level()?;
        let rows = events_range(cluster, table).await?;
        cluster.read_tablet_events(rows, self.deadline()).await
    }

    /// The last `number` accepted events of a table or of the cluster, ascending by time. All are read, and only the last ones are held.
    ///
    /// # Errors
    /// As [`Self::tablet_events`].
    pub async fn last_tablet_events(
        &self,
        table: Option<&TableName>,
        number: usize,
        accepts: impl Fn(&TabletEvent) -> bool + Send + Sync,
    ) -> Result<Vec<TableEvent>, Error> {
        let cluster = self.low_level()?;
        let rows = events_range(cluster, table).await?;
        let mut last = LastEvents::new(number);
        cluster.visit_tablet_events(rows, self.deadline(), |part| last.add(part, &accepts)).await?;
        Ok(last.into_events())
    }

    /// METADATA's own tablets, in key order: the root tablet, then those of the second level, with the rows that list tablets in each.
    ///
    /// # Errors
    /// As [`Self::low_level`], [`Cluster::read_metadata`] and [`Cluster::sample`].
    pub async fn metadata_tablets(&self) -> Result<Vec<MetadataTablet>, Error> {
        let cluster = self.low_level()?;
        let rows = cluster.read_metadata(KeyRange::all(), self.deadline()).await?;
        let samples = cluster.sample(TableId::METADATA, self.deadline()).await?;
        Ok(metadata_tablets(&rows, &samples))
    }

    /// The live tablet servers, as the server at this client's address knows them.
    ///
    /// # Errors
    /// `Unavailable` when it does not respond, or when this client was created from parts.
    pub async fn servers(&self) -> Result<Vec<record::Server>, Error> {
        Ok(LocateDirectory::new(vec![self.address.clone()], &self.runtime).fetch().await?.servers)
    }

    /// The names of all tables of the cluster, as the server at this client's address knows them, in order; none while that server does not
    /// show them to this caller.
    ///
    /// # Errors
    /// As [`Self::servers`].
    pub async fn table_names(&self) -> Result<Vec<TableName>, Error> {
        let tables = LocateDirectory::new(vec![self.address.clone()], &self.runtime).fetch().await?.tables;
        // METADATA has no name of the API.
        let mut names: Vec<TableName> = tables.iter().filter_map(|table| table.name.parse().ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Tablets of a table that METADATA lists, in key order, with the recorded leaders: the one with the key `from`, and those after it,
    /// at most `limit`.
    ///
    /// # Errors
    /// As [`Self::tablets`].
    pub async fn tablets_from(
        &self,
        table: &TableName,
        from: &RowKey,
        limit: RowLimit,
    ) -> Result<Vec<(TabletDescriptor, Option<LeaderHint>)>, Error> {
        let cluster = self.low_level()?;
        let table = cluster.table_id(table).await?;
        let rows = metadata::lookup_range(table, from);
        let rows = cluster.read_metadata_rows(rows, limit, self.deadline()).await?;
        Ok(rows.into_iter().map(|row| (row.descriptor, row.leader)).collect())
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(&self.runtime.clock, self.timeout.unwrap_or(TIMEOUT))
    }
}

/// The rows of METADATA with the events of a table, or of all.
async fn events_range(cluster: &Cluster, table: Option<&TableName>) -> Result<KeyRange, Error> {
    Ok(match table {
        Some(table) => metadata::table_range(cluster.table_id(table).await?),
        None => KeyRange::all(),
    })
}

fn endpoint(address: &str, token: Option<BearerToken>, runtime: &Runtime) -> Backend {
    let credentials = Credentials::new(token, &runtime.net);
    let client = BigtableClient::with_interceptor(runtime.net.channel(address), credentials);
    let client = client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX);
    Backend::Endpoint(Box::new(client))
}

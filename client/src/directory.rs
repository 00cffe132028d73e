//! The directory: the root tablet, server addresses and table names, which every lookup needs first.
//!
//! It has two implementations. [`LocateDirectory`] asks any tablet server, for clients without access to Chubby. The
//! servers use `ChubbyDirectory` of the crate `routing`, which watches the files of Chubby.

mod locate;

use ebla_model::error::Error;
use ebla_model::id::{ClusterId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use futures::future::BoxFuture;

pub use locate::LocateDirectory;

/// Whether a cached value is sufficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The cached value.
    Cached,
    /// A fresh value: the cached one has proved stale.
    Fresh,
}

/// The directory of a cluster. Each call has a timeout.
pub trait Directory: Send + Sync + 'static {
    /// The id of the cluster; `None` until it is known.
    fn cluster(&self) -> Option<ClusterId>;

    /// The descriptor of the root tablet. The caller has no newer one, so implementations fetch it again where
    /// possible.
    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>>;

    /// The `host:port` of a server; `None` when it is unknown.
    fn address(&self, server: ServerId) -> BoxFuture<'_, Option<String>>;

    /// A server did not respond at its address: it may have a new address. A directory that watches for changes ignores
    /// this.
    fn mark_unreachable(&self, server: ServerId) {
        let _ignored = server;
    }

    /// The id of an active table; `None` when no table has this name.
    fn table<'a>(&'a self, name: &'a TableName, freshness: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>>;
}

//! What must be known before anything can be looked up: the root tablet, servers' addresses, names of tables.
//!
//! Two ways to know it. [`ChubbyDirectory`] watches Chubby's files and serves from its copy, so it goes on while Chubby
//! is away, also over a restart. [`LocateDirectory`] asks any tablet server, for clients that have no access to Chubby.

mod chubby;
mod locate;
mod picture;

use ebla_model::error::Error;
use ebla_model::id::{ClusterId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableName;
use futures::future::BoxFuture;

pub use chubby::ChubbyDirectory;
pub use locate::LocateDirectory;
pub use picture::MasterInOffice;

/// Whether an old answer will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// What was known last.
    Cached,
    /// Ask again: what was known has proved wrong.
    Fresh,
}

/// The way to the root tablet and to the servers. All calls are bounded in time.
pub trait Directory: Send + Sync + 'static {
    /// Which cluster it is; `None` before that is known.
    fn cluster(&self) -> Option<ClusterId>;

    /// The root tablet's descriptor. Asked for when no better is known, so it asks afresh where that makes sense.
    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>>;

    /// The `host:port` of a server; `None` when it is not known to live.
    fn address(&self, server: ServerId) -> BoxFuture<'_, Option<String>>;

    /// Nobody answered at the address of this server: it may be elsewhere by now. A directory that is told of changes
    /// has nothing to do.
    fn doubt(&self, server: ServerId) {
        let _known = server;
    }

    /// The id of a table that may be read and written; `None` when there is none of that name.
    fn table<'a>(&'a self, name: &'a TableName, freshness: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>>;
}

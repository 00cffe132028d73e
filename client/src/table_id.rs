//! Table names to table ids: a table that does not exist any more is looked up once again.
//!
//! A table of a cluster has a name in the API and an id below, which the directory caches. A dropped table that is
//! created again has a new id, so a cached id may be stale. Every call of a table uses the rule of this file.

use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::schema::TableName;

use crate::cluster::Cluster;
use crate::directory::Freshness;

impl Cluster {
    /// The id of a table. The directory fetches a fresh value before the table counts as missing: it may have been
    /// created a moment ago.
    ///
    /// # Errors
    /// `NotFoundTable`, or the error of the directory.
    pub async fn table_id(&self, name: &TableName) -> Result<TableId, Error> {
        match self.directory().table(name, Freshness::Cached).await? {
            Some(table) => Ok(table),
            None => self.fresh_table_id(name).await,
        }
    }

    async fn fresh_table_id(&self, name: &TableName) -> Result<TableId, Error> {
        let table = self.directory().table(name, Freshness::Fresh).await?;
        table.ok_or_else(|| Error::new(Reason::NotFoundTable, format!("Table not found: {name}")))
    }

    /// Calls with the id of the table; once more with a fresh id if the call fails with `NotFoundTable` and the id has
    /// changed.
    ///
    /// # Errors
    /// As [`Self::table_id`], or the error of `call`.
    pub async fn with_table<T, F>(&self, name: &TableName, call: impl Fn(TableId) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let table = self.table_id(name).await?;
        match call(table).await {
            Err(error) if error.reason == Reason::NotFoundTable => match self.fresh_table_id(name).await? {
                fresh if fresh == table => Err(error),
                fresh => call(fresh).await,
            },
            result => result,
        }
    }
}

/// The results of a bulk write for [`Cluster::with_table`]: if every row failed with `NotFoundTable`, the call fails.
///
/// # Errors
/// `NotFoundTable` as the error of the call.
pub fn unless_table_missing(results: Vec<Result<(), Error>>) -> Result<Vec<Result<(), Error>>, Error> {
    let is_missing =
        |result: &Result<(), Error>| result.as_ref().is_err_and(|error| error.reason == Reason::NotFoundTable);
    match results.first() {
        Some(Err(error)) if results.iter().all(is_missing) => Err(error.clone()),
        _ => Ok(results),
    }
}

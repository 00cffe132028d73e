//! The stored rows and counters, for backups and diagnosis.

use crate::error::Error;
use crate::store::{ChildSelection, Environment, Row, Store};
use crate::table::Table;

/// The number of rows, counters, or references of one row in one read.
const PAGE: usize = 256;

impl<S: Store + Environment> Table<S> {
    /// The next keys of rows after `after`, in order; none at the end.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn row_keys(&self, after: Option<&str>) -> Result<Vec<String>, Error> {
        self.store.keys(after, PAGE).await
    }

    /// A row with its next references after `after`, and the last of those if there may be more.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn stored(&self, key: &str, after: Option<String>) -> Result<(Option<Row>, Option<String>), Error> {
        let children = ChildSelection::Page { prefix: String::new(), after, limit: PAGE };
        let row = self.store.read(&[key.to_owned()], &children).await?.into_iter().next().flatten();
        let references = row.iter().flat_map(Row::keys).filter(|(family, _)| *family == crate::store::Family::Children);
        let names: Vec<_> = references.map(|(_, name)| name).collect();
        let more = names.last().filter(|_| names.len() >= PAGE).map(|last| (*last).clone());
        Ok((row, more))
    }

    /// The next counters after `after`, in order; none at the end.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn stored_counters(&self, after: Option<&str>) -> Result<Vec<(String, i64)>, Error> {
        self.store.counters(after, PAGE).await
    }
}

//! The table as it is stored, for who keeps a copy of it or looks for a fault.

use crate::error::Error;
use crate::store::{Children, Row, Store, Surroundings};
use crate::table::Table;

/// How many rows, counters, or children of one row are read at a time.
const PAGE: usize = 256;

impl<S: Store + Surroundings> Table<S> {
    /// The next keys of rows behind `after`, in order; none at the end.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn row_keys(&self, after: Option<&str>) -> Result<Vec<String>, Error> {
        self.store.keys(after, PAGE).await
    }

    /// A row with the next of its references behind `after`, and the last of those, if there may be more.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn stored(&self, key: &str, after: Option<String>) -> Result<(Option<Row>, Option<String>), Error> {
        let children = Children::Page { prefix: String::new(), after, limit: PAGE };
        let row = self.store.read(&[key.to_owned()], &children).await?.into_iter().next().flatten();
        let references = row.iter().flat_map(Row::keys).filter(|(family, _)| *family == crate::store::Family::Children);
        let names: Vec<_> = references.map(|(_, name)| name).collect();
        let more = names.last().filter(|_| names.len() >= PAGE).map(|last| (*last).clone());
        Ok((row, more))
    }

    /// The next counters behind `after`, in order; none at the end.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn stored_counters(&self, after: Option<&str>) -> Result<Vec<(String, i64)>, Error> {
        self.store.counters(after, PAGE).await
    }
}

//! The validation of transactions that every implementation does.

use std::collections::BTreeSet;

use crate::{Error, Write};

/// Rejects a transaction that writes a path twice or has an empty path.
pub(crate) fn validate(writes: &[Write]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for write in writes {
        let (Write::Put { path, .. } | Write::Delete { path }) = write;
        if path.is_empty() || !seen.insert(path) {
            return Err(Error::Invalid(format!("path {path:?} is empty or written twice")));
        }
    }
    Ok(())
}

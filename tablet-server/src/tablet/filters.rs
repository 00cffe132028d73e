//! Filters that were compiled lately.
//!
//! A program sends the same few filters again and again, and to compile a pattern takes longer than to read some rows.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::filter::CompiledFilter;
use ebla_proto::convert;

/// Filters that are kept; one may take half a megabyte with what its patterns need to match.
const KEPT_MAX: usize = 32;
/// A longer one, in bytes, was made for one call, and is compiled for each.
const KEPT_BYTES_MAX: usize = 1024;

/// The filters of one server, by their encoding.
#[derive(Debug, Default)]
pub(super) struct Filters(Mutex<BTreeMap<Bytes, CompiledFilter>>);

impl Filters {
    /// The encoded filter, ready to run.
    ///
    /// # Errors
    /// `InvalidArgument` for what is wrong with it.
    pub(super) fn compiled(&self, encoded: &Bytes) -> Result<CompiledFilter, Error> {
        if encoded.len() > KEPT_BYTES_MAX {
            return compile(encoded);
        }
        if let Some(known) = self.held().get(encoded) {
            return Ok(known.clone());
        }
        let compiled = compile(encoded)?;
        let mut kept = self.held();
        if kept.len() >= KEPT_MAX {
            // Seldom, and what is in use comes back at once.
            kept.clear();
        }
        // A copy: the bytes at hand are a part of a whole request.
        kept.insert(Bytes::copy_from_slice(encoded), compiled.clone());
        Ok(compiled)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Bytes, CompiledFilter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compile(encoded: &Bytes) -> Result<CompiledFilter, Error> {
    CompiledFilter::compile(convert::filter_from_bytes(encoded)?)
}

#[cfg(test)]
mod tests {
    use ebla_model::filter::Filter;

    use super::*;

    fn encoded(pattern: String) -> Bytes {
        convert::filter_to_bytes(&Filter::ValueRegex(Bytes::from(pattern)))
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_wrong_is_never_kept() {
        let filters = Filters::default();
        for number in 0..3 * KEPT_MAX {
            filters.compiled(&encoded(format!("a{number}.*"))).unwrap();
            assert!(filters.held().len() <= KEPT_MAX);
        }
        let before = filters.held().len();
        filters.compiled(&encoded("a*".repeat(KEPT_BYTES_MAX))).unwrap();
        for _ in 0..2 {
            filters.compiled(&encoded("(".to_owned())).unwrap_err();
        }
        assert_eq!(filters.held().len(), before);
    }
}

//! A cache of compiled filters.
//!
//! A program sends the same few filters repeatedly, and compiling a pattern takes longer than reading a few rows.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::filter::CompiledFilter;
use ebla_proto::convert;
use parking_lot::Mutex;

/// Maximum number of cached filters; one may use half a megabyte for its compiled patterns.
const FILTERS_MAX: usize = 32;
/// Maximum length of a cached filter's encoding, in bytes; longer ones were probably generated for one call.
const ENCODED_BYTES_MAX: usize = 1024;

/// The compiled filters of one server, by their encoding.
#[derive(Debug, Default)]
pub(in crate::tablet) struct FilterCache(Mutex<BTreeMap<Bytes, CompiledFilter>>);

impl FilterCache {
    /// The compiled form of an encoded filter.
    ///
    /// # Errors
    /// `InvalidArgument` when the filter is invalid.
    pub(in crate::tablet) fn get_or_compile(&self, encoded: &Bytes) -> Result<CompiledFilter, Error> {
        if encoded.len() > ENCODED_BYTES_MAX {
            return compile(encoded);
        }
        if let Some(known) = self.0.lock().get(encoded) {
            return Ok(known.clone());
        }
        let compiled = compile(encoded)?;
        let mut cached = self.0.lock();
        if cached.len() >= FILTERS_MAX {
            // Rare, and filters in use are cached again at once.
            cached.clear();
        }
        // A copy, because these bytes are a slice of a whole request.
        cached.insert(Bytes::copy_from_slice(encoded), compiled.clone());
        Ok(compiled)
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
    fn the_cache_is_bounded_and_holds_no_invalid_filter() {
        let filters = FilterCache::default();
        for number in 0..3 * FILTERS_MAX {
            filters.get_or_compile(&encoded(format!("a{number}.*"))).unwrap();
            assert!(filters.0.lock().len() <= FILTERS_MAX);
        }
        let before = filters.0.lock().len();
        filters.get_or_compile(&encoded("a*".repeat(ENCODED_BYTES_MAX))).unwrap();
        for _ in 0..2 {
            filters.get_or_compile(&encoded("(".to_owned())).unwrap_err();
        }
        assert_eq!(filters.0.lock().len(), before);
    }
}

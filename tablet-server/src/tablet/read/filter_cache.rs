//! A cache of compiled filters.
//!
//! A program sends the same few filters repeatedly, and compiling a pattern takes longer than reading a few rows.

use std::fmt;

use bytes::Bytes;
use ebla_model::error::Error;
use ebla_model::filter::CompiledFilter;
use ebla_proto::convert;
use quick_cache::sync::Cache;

/// Maximum number of cached filters; one may use half a megabyte for its compiled patterns.
const FILTERS_MAX: usize = 32;
/// Maximum length of a cached filter's encoding, in bytes; longer ones were probably generated for one call.
const ENCODED_BYTES_MAX: usize = 1024;

/// The compiled filters of one server, by their encoding.
pub(in crate::tablet) struct FilterCache(Cache<Vec<u8>, CompiledFilter>);

impl FilterCache {
    /// The compiled form of an encoded filter. Concurrent callers with the same filter compile it once.
    ///
    /// # Errors
    /// `InvalidArgument` when the filter is invalid.
    pub(in crate::tablet) fn get_or_compile(&self, encoded: &Bytes) -> Result<CompiledFilter, Error> {
        if encoded.len() > ENCODED_BYTES_MAX {
            return compile(encoded);
        }
        // The key is a copy: these bytes are a slice of a whole request.
        self.0.get_or_insert_with(encoded.as_ref(), || compile(encoded))
    }
}

impl Default for FilterCache {
    fn default() -> Self {
        Self(Cache::new(FILTERS_MAX))
    }
}

impl fmt::Debug for FilterCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterCache").field("filters", &self.0.len()).finish_non_exhaustive()
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
            assert!(filters.0.len() <= FILTERS_MAX);
        }
        let before = filters.0.len();
        filters.get_or_compile(&encoded("a*".repeat(ENCODED_BYTES_MAX))).unwrap();
        for _ in 0..2 {
            filters.get_or_compile(&encoded("(".to_owned())).unwrap_err();
        }
        assert_eq!(filters.0.len(), before);
    }

    #[test]
    fn a_filter_in_use_is_compiled_once() {
        let filters = FilterCache::default();
        let in_use = encoded("a.*".to_owned());
        for number in 0..10 * FILTERS_MAX {
            filters.get_or_compile(&in_use).unwrap();
            filters.get_or_compile(&encoded(format!("b{number}.*"))).unwrap();
            assert!(filters.0.contains_key(in_use.as_ref()), "evicted by filters that are used once");
        }
    }
}

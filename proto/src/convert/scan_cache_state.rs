//! The scan cache of a server, in its reports.

use ebla_model::scan_cache::ScanCacheState;

use crate::record;

/// The state of a scan cache as a message.
#[must_use]
pub fn scan_cache_state_to_proto(state: &ScanCacheState) -> record::ScanCacheState {
    let ScanCacheState { hits, misses, fills, refused_fills, evictions, rows, bytes, capacity_bytes } = *state;
    record::ScanCacheState { hits, misses, fills, refused_fills, evictions, rows, bytes, capacity_bytes }
}

/// The state of a scan cache of a message.
#[must_use]
pub fn scan_cache_state_from_proto(state: &record::ScanCacheState) -> ScanCacheState {
    let record::ScanCacheState { hits, misses, fills, refused_fills, evictions, rows, bytes, capacity_bytes } = *state;
    ScanCacheState { hits, misses, fills, refused_fills, evictions, rows, bytes, capacity_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive_a_round_trip() {
        let state = ScanCacheState {
            hits: 1,
            misses: 2,
            fills: 3,
            refused_fills: 4,
            evictions: 5,
            rows: 6,
            bytes: 7,
            capacity_bytes: 8,
        };
        assert_eq!(scan_cache_state_from_proto(&scan_cache_state_to_proto(&state)), state);
    }
}

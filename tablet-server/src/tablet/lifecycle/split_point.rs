//! The split point: the key that divides a tablet into halves of similar size.

use ebla_model::key::{KeyRange, RowKey};

/// The row key that divides a tablet best, or `None` when no interior key exists.
///
/// `sizes`: row keys ascending, each with the bytes between it and the next one. The result is one of these
/// keys and lies strictly inside `range`, so both halves are non-empty. Of two equally good keys the lower one is chosen.
/// Paper section 5: tablets split as they grow.
#[must_use]
pub fn split_point(range: &KeyRange, sizes: &[(RowKey, u64)]) -> Option<RowKey> {
    let total: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    let mut before = 0_u64;
    let mut best: Option<(u64, &RowKey)> = None;
    for (key, bytes) in sizes {
        let lopsided = before.abs_diff(total.saturating_sub(before));
        if range.split_at(key).is_some() && best.is_none_or(|(least, _)| lopsided < least) {
            best = Some((lopsided, key));
        }
        before = before.saturating_add(*bytes);
    }
    best.map(|(_, key)| key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(of: &[(&'static str, u64)]) -> Vec<(RowKey, u64)> {
        of.iter().map(|(key, bytes)| (RowKey::new(*key), *bytes)).collect()
    }

    #[test]
    fn the_key_with_half_the_bytes_before_it_is_taken() {
        let even = sizes(&[("a", 10), ("b", 10), ("c", 10), ("d", 10)]);
        assert_eq!(split_point(&KeyRange::all(), &even), Some(RowKey::new("c")));
        let heavy_end = sizes(&[("a", 1), ("b", 1), ("c", 100)]);
        assert_eq!(split_point(&KeyRange::all(), &heavy_end), Some(RowKey::new("c")));
        let heavy_start = sizes(&[("a", 100), ("b", 1), ("c", 1)]);
        assert_eq!(split_point(&KeyRange::all(), &heavy_start), Some(RowKey::new("b")));
    }

    #[test]
    fn only_interior_keys_count() {
        let range = KeyRange::new(RowKey::new("b"), Some(RowKey::new("d"))).unwrap();
        let keys = sizes(&[("a", 50), ("b", 1), ("c", 1), ("d", 50)]);
        assert_eq!(split_point(&range, &keys), Some(RowKey::new("c")));
        assert_eq!(split_point(&range, &sizes(&[("b", 10)])), None);
        assert_eq!(split_point(&range, &[]), None);
    }
}

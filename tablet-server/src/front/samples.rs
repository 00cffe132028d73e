//! Which row keys a sample of a table may contain, and what their offsets may tell. Pure.

use ebla_model::{KeyRange, RowKey, RowSet};

/// A request for samples.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct SampleSpec {
    /// Samples lie inside of it.
    pub(super) range: KeyRange,
    /// Which keys may be samples.
    pub(super) keys: SampleKeys,
}

/// Which keys may be samples.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum SampleKeys {
    /// The ends of tablets, with the bytes up to each.
    Tablets,
    /// Those that are in this set. Bytes count if they are of tablets that lie in the set as a whole.
    TabletsWithin(RowSet),
    /// The starts of the ranges of this set, without sizes: nothing about the table.
    RangesOf(RowSet),
}

impl SampleKeys {
    /// The samples of a table whose tablets end at `tablets`: ascending, the last one empty for the table's end, and the bytes up to each.
    pub(super) fn of_table(&self, tablets: Vec<(RowKey, u64)>) -> Vec<(RowKey, u64)> {
        match self {
            Self::Tablets => tablets,
            Self::TabletsWithin(rows) => within(&tablets, rows),
            Self::RangesOf(rows) => {
                let starts = rows.ranges().iter().map(KeyRange::start).filter(|start| !start.is_empty());
                starts.cloned().chain([RowKey::EMPTY]).map(|key| (key, 0)).collect()
            }
        }
    }

    /// Whether the samples depend on the tablets of the table.
    pub(super) const fn needs_tablets(&self) -> bool {
        matches!(self, Self::Tablets | Self::TabletsWithin(_))
    }
}

fn within(tablets: &[(RowKey, u64)], rows: &RowSet) -> Vec<(RowKey, u64)> {
    let (mut start, mut before, mut bytes) = (RowKey::EMPTY, 0, 0);
    let mut shown = Vec::new();
    for (key, offset) in tablets {
        let end = (!key.is_empty()).then(|| key.clone());
        let tablet = KeyRange::new(start, end);
        if tablet.is_some_and(|tablet| rows.clamp(&tablet).ranges() == std::slice::from_ref(&tablet)) {
            bytes += offset.saturating_sub(before);
        }
        if key.is_empty() || rows.contains(key.as_bytes()) {
            shown.push((key.clone(), bytes));
        }
        (start, before) = (key.clone(), *offset);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &'static str) -> RowKey {
        RowKey::new(key)
    }

    fn tablets() -> Vec<(RowKey, u64)> {
        vec![(key("b"), 10), (key("d"), 30), (key("f"), 60), (key(""), 100)]
    }

    fn rows(prefixes: &[&str]) -> RowSet {
        prefixes.iter().map(|prefix| KeyRange::prefix(prefix.as_bytes())).collect()
    }

    #[test]
    fn keys_and_sizes_outside_of_a_view_are_hidden() {
        assert_eq!(SampleKeys::Tablets.of_table(tablets()), tablets());
        assert_eq!(SampleKeys::TabletsWithin(rows(&[""])).of_table(tablets()), tablets(), "a view of all rows");
        // [b, e) has the tablet [b, d) as a whole.
        let some = SampleKeys::TabletsWithin(rows(&["b", "c", "d"])).of_table(tablets());
        assert_eq!(some, [(key("b"), 0), (key("d"), 20), (key(""), 20)]);
        assert_eq!(SampleKeys::TabletsWithin(rows(&["x"])).of_table(tablets()), [(key(""), 0)]);
    }

    #[test]
    fn without_all_columns_samples_are_of_the_view_alone() {
        let keys = SampleKeys::RangesOf(rows(&["c", "x"]));
        assert!(!keys.needs_tablets());
        assert_eq!(keys.of_table(Vec::new()), [(key("c"), 0), (key("x"), 0), (key(""), 0)]);
        assert_eq!(SampleKeys::RangesOf(rows(&[""])).of_table(Vec::new()), [(key(""), 0)]);
    }
}

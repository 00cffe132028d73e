//! Checker of scans while tablets split and move: every required row exactly once, in order; other rows may be there or not.

use std::collections::BTreeSet;

use ebla_client::Direction;

use crate::verify::finding::{Anomaly, Finding};
use crate::verify::rows::Layout;

/// A successful scan.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    /// The keys that may exist in its range, ascending.
    pub range: &'a [String],
    /// The keys that must be in it, ascending.
    pub required: &'a [String],
    /// Its order.
    pub direction: Direction,
    /// Maximum number of rows; 0: no limit.
    pub limit: usize,
    /// The keys that it returned.
    pub seen: &'a [String],
    /// Identifies rows of other loads, which may be in the scan too; `None`: there are none.
    pub layout: Option<&'a Layout>,
}

/// All anomalies of the scan.
pub fn check(scan: &Scan<'_>) -> Vec<Finding> {
    let of_range: BTreeSet<&String> = scan.range.iter().collect();
    let row = scan.range.first().map_or("", String::as_str);
    let mut findings = Vec::new();
    let mut seen: BTreeSet<&String> = BTreeSet::new();
    let mut previous: Option<&String> = None;
    for key in scan.seen {
        let is_behind = |previous: &&String| match scan.direction {
            Direction::Ascending => *previous > key,
            Direction::Descending => *previous < key,
        };
        if !of_range.contains(key) && scan.layout.is_some_and(|layout| !layout.is_own(key)) {
            // A row of another load only counts for the order and the limit.
        } else if !of_range.contains(key) {
            findings.push(Finding::new(Anomaly::Phantom, key, "only known rows of the range", "an unknown row"));
        } else if !seen.insert(key) {
            findings.push(Finding::new(Anomaly::Duplicate, key, "each row once in a scan", "twice"));
        } else if let Some(previous) = previous.filter(is_behind) {
            findings.push(Finding::new(Anomaly::Torn, key, "rows in order", format!("it followed {previous}")));
        }
        previous = Some(key);
    }
    if scan.limit > 0 && scan.seen.len() > scan.limit {
        let seen = format!("{} rows", scan.seen.len());
        findings.push(Finding::new(Anomaly::Phantom, row, format!("at most {} rows", scan.limit), seen));
    }
    // A scan that reached its limit ends with its last row, any other at the end of its range.
    let last = previous.filter(|_| scan.limit > 0 && scan.seen.len() >= scan.limit);
    let is_within = |key: &&String| match (last, scan.direction) {
        (None, _) => true,
        (Some(last), Direction::Ascending) => *key <= last,
        (Some(last), Direction::Descending) => *key >= last,
    };
    let missing = scan.required.iter().filter(is_within).filter(|key| !seen.contains(key));
    findings.extend(missing.map(|key| {
        let what = format!("a scan of {} rows without it", scan.seen.len());
        Finding::new(Anomaly::Lost, key, "a row that existed throughout", what)
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn static_keys(range: &[String]) -> Vec<String> {
        range.iter().filter(|key| crate::verify::rows::is_static(key)).cloned().collect()
    }

    fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
        numbers.into_iter().map(|number| format!("00/z/r/{number:04}")).collect()
    }

    fn anomalies(direction: Direction, limit: usize, seen: &[String]) -> Vec<Anomaly> {
        let range = keys(0..8);
        let required = static_keys(&range);
        let layout = Layout { run: "r".into(), slots: 2 };
        let scan = Scan { range: &range, required: &required, direction, limit, seen, layout: Some(&layout) };
        check(&scan).iter().map(|finding| finding.anomaly).collect()
    }

    #[test]
    fn required_rows_are_in_every_scan_once() {
        use Direction::{Ascending, Descending};
        assert_eq!(anomalies(Ascending, 0, &keys([1, 2, 3, 5, 7])), []);
        assert_eq!(anomalies(Descending, 0, &keys([7, 5, 4, 3, 1])), []);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 3, 7])), [Anomaly::Lost]);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 3, 3, 5, 7])), [Anomaly::Duplicate]);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 5, 3, 7])), [Anomaly::Torn]);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 3, 5, 7, 9])), [Anomaly::Phantom]);
    }

    #[test]
    fn rows_of_other_loads_only_count_for_the_limit() {
        let other = "00/z/q/0009".to_owned();
        let seen = [vec![other.clone()], keys([1])].concat();
        assert_eq!(anomalies(Direction::Ascending, 2, &seen), []);
        assert_eq!(anomalies(Direction::Ascending, 3, &seen), [Anomaly::Lost; 3]);
    }

    #[test]
    fn a_scan_that_reached_its_limit_ends_there() {
        use Direction::{Ascending, Descending};
        assert_eq!(anomalies(Ascending, 3, &keys([0, 1, 3])), []);
        assert_eq!(anomalies(Descending, 2, &keys([7, 5])), []);
        assert_eq!(anomalies(Ascending, 3, &keys([1, 3])), [Anomaly::Lost, Anomaly::Lost], "it ended before its limit");
        assert_eq!(anomalies(Ascending, 2, &keys([1, 5])), [Anomaly::Lost]);
        assert_eq!(anomalies(Ascending, 1, &keys([1, 3])), [Anomaly::Phantom]);
    }
}

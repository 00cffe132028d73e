//! Scans while tablets split and move: every row that stood still exactly once, in order; the rest may come and go.

use std::collections::BTreeSet;

use ebla_client::Direction;

use crate::verify::finding::{Anomaly, Finding};
use crate::verify::rows::{Layout, is_static};

/// A scan that was answered without an error.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    /// The keys that may be in its range, ascending, those that stand still and those that come and go.
    pub range: &'a [String],
    /// Its order.
    pub direction: Direction,
    /// Most rows that it may answer; 0: no limit.
    pub limit: usize,
    /// The keys that it answered; some may be rows of other loads.
    pub seen: &'a [String],
    /// How this load's rows are told from others'.
    pub layout: &'a Layout,
}

/// Everything that is wrong with the scan.
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
        if !of_range.contains(key) && !scan.layout.is_own(key) {
            // Another load's row: it counts for order and limit alone.
        } else if !of_range.contains(key) {
            findings.push(Finding::new(Anomaly::Invented, key, "rows of the scan's range", "a row of no range"));
        } else if !seen.insert(key) {
            findings.push(Finding::new(Anomaly::Doubled, key, "each row once in a scan", "twice"));
        } else if let Some(previous) = previous.filter(is_behind) {
            findings.push(Finding::new(Anomaly::Half, key, "a scan in order", format!("it came after {previous}")));
        }
        previous = Some(key);
    }
    if scan.limit > 0 && scan.seen.len() > scan.limit {
        let seen = format!("{} rows", scan.seen.len());
        findings.push(Finding::new(Anomaly::Invented, row, format!("at most {} rows", scan.limit), seen));
    }
    // A scan that reached its limit ends with its last row; every other one ends with its range.
    let last = previous.filter(|_| scan.limit > 0 && scan.seen.len() >= scan.limit);
    let is_within = |key: &&String| match (last, scan.direction) {
        (None, _) => true,
        (Some(last), Direction::Ascending) => *key <= last,
        (Some(last), Direction::Descending) => *key >= last,
    };
    let missing = scan.range.iter().filter(|key| is_static(key)).filter(is_within).filter(|key| !seen.contains(key));
    findings.extend(missing.map(|key| {
        let what = format!("a scan of {} rows without it", scan.seen.len());
        Finding::new(Anomaly::Lost, key, "a row that stood still all the time", what)
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
        numbers.into_iter().map(|number| format!("00/z/r/{number:04}")).collect()
    }

    fn anomalies(direction: Direction, limit: usize, seen: &[String]) -> Vec<Anomaly> {
        let range = keys(0..8);
        let layout = Layout { run: "r".into(), slots: 2 };
        let scan = Scan { range: &range, direction, limit, seen, layout: &layout };
        check(&scan).iter().map(|finding| finding.anomaly).collect()
    }

    #[test]
    fn rows_that_stand_still_are_in_every_scan_once() {
        use Direction::{Ascending, Descending};
        assert_eq!(anomalies(Ascending, 0, &keys([1, 2, 3, 5, 7])), []);
        assert_eq!(anomalies(Descending, 0, &keys([7, 5, 4, 3, 1])), []);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 3, 7])), [Anomaly::Lost]);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 3, 3, 5, 7])), [Anomaly::Doubled]);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 5, 3, 7])), [Anomaly::Half]);
        assert_eq!(anomalies(Ascending, 0, &keys([1, 3, 5, 7, 9])), [Anomaly::Invented]);
    }

    #[test]
    fn rows_of_other_loads_count_for_the_limit_alone() {
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
        assert_eq!(anomalies(Ascending, 1, &keys([1, 3])), [Anomaly::Invented]);
    }
}

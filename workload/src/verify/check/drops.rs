//! Checker of dropped prefixes: after a drop of all rows of a prefix was acknowledged, a row that was written before it must never be
//! seen again, and one that was written after it must be. Each prefix is dropped once. Cost: linear.

use std::collections::BTreeMap;

use crate::verify::finding::{Anomaly, Finding};

/// The dropped prefixes, each with the rows that were written later and whether that was acknowledged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    dropped: BTreeMap<String, BTreeMap<String, bool>>,
}

impl Drops {
    /// Records that the drop of a prefix was acknowledged.
    pub fn note_dropped(&mut self, prefix: &str) {
        self.dropped.entry(prefix.to_owned()).or_default();
    }

    /// Records that a row of a dropped prefix is about to be written.
    pub fn note_sent(&mut self, prefix: &str, row: &str) {
        self.dropped.entry(prefix.to_owned()).or_default().entry(row.to_owned()).or_insert(false);
    }

    /// Records that this was acknowledged.
    pub fn note_acknowledged(&mut self, prefix: &str, row: &str) {
        self.dropped.entry(prefix.to_owned()).or_default().insert(row.to_owned(), true);
    }

    /// The anomalies in the rows of one prefix, read after all that is recorded of it; none if it was not dropped.
    pub fn check(&self, prefix: &str, rows: &[String]) -> Vec<Finding> {
        let Some(later) = self.dropped.get(prefix) else { return Vec::new() };
        let returned = rows.iter().filter(|row| !later.contains_key(*row)).map(|row| {
            let expected = format!("no row of {prefix} that was written before the drop");
            Finding::new(Anomaly::Phantom, row, expected, "the row".to_owned())
        });
        let lost =
            later.iter().filter(|(row, is_acknowledged)| **is_acknowledged && !rows.contains(row)).map(|(row, _)| {
                let expected = format!("the row, written after the drop of {prefix}");
                Finding::new(Anomaly::Lost, row, expected, "nothing".to_owned())
            });
        returned.chain(lost).collect()
    }

    /// As [`Self::check`], for the rows of all prefixes.
    pub fn check_all(&self, rows: &[String]) -> Vec<Finding> {
        let check = |prefix: &String| {
            let of_prefix: Vec<String> = rows.iter().filter(|row| row.starts_with(prefix.as_str())).cloned().collect();
            self.check(prefix, &of_prefix)
        };
        self.dropped.keys().flat_map(check).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn anomalies(findings: &[Finding]) -> Vec<(Anomaly, &str)> {
        findings.iter().map(|finding| (finding.anomaly, finding.row.as_str())).collect()
    }

    #[test]
    fn a_row_that_was_dropped_does_not_return() {
        let mut drops = Drops::default();
        assert_eq!(drops.check("p/", &rows(&["p/1"])), []);
        drops.note_dropped("p/");
        assert_eq!(drops.check("p/", &[]), []);
        assert_eq!(anomalies(&drops.check("p/", &rows(&["p/1"]))), [(Anomaly::Phantom, "p/1")]);
    }

    #[test]
    fn a_row_that_was_written_after_the_drop_stays() {
        let mut drops = Drops::default();
        drops.note_dropped("p/");
        drops.note_sent("p/", "p/1");
        assert_eq!(drops.check("p/", &[]), [], "it may not have been written");
        assert_eq!(drops.check("p/", &rows(&["p/1"])), []);
        drops.note_acknowledged("p/", "p/1");
        assert_eq!(anomalies(&drops.check("p/", &[])), [(Anomaly::Lost, "p/1")]);
        assert_eq!(drops.check("p/", &rows(&["p/1"])), []);
    }

    #[test]
    fn each_prefix_has_its_own_rows() {
        let mut drops = Drops::default();
        drops.note_dropped("p/");
        drops.note_dropped("q/");
        drops.note_acknowledged("q/", "q/1");
        let found = drops.check_all(&rows(&["a/1", "p/2"]));
        assert_eq!(anomalies(&found), [(Anomaly::Phantom, "p/2"), (Anomaly::Lost, "q/1")]);
        assert_eq!(drops.check_all(&rows(&["q/1"])), []);
    }
}

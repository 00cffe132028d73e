//! Blind writes: a bounded summary for each row, so that a load of any length fits into memory.
//!
//! A blind row has one writer, which overwrites it with increasing versions, one at a time. So the row must have the last
//! acknowledged version, or one whose outcome is unknown: an old write without a response may be applied last. Anything else
//! is an anomaly.

use std::collections::BTreeMap;

use super::finding::{Anomaly, Finding};
use super::history::{Outcome, Token};

/// Summary of the writes of one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowVersions {
    /// The last version acknowledged.
    pub acknowledged: Option<Token>,
    /// Versions with unknown outcome; few, because errors are rare.
    pub unknown: Vec<Token>,
}

/// All blind rows.
#[derive(Clone, Debug, Default)]
pub struct BlindWrites {
    rows: BTreeMap<String, RowVersions>,
}

/// Contents of a blind row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// An intact version.
    Version(Token),
    /// Something else, as text.
    Broken(String),
}

impl BlindWrites {
    /// Records a completed write.
    pub fn note(&mut self, row: &str, version: Token, outcome: Outcome) {
        let versions = self.rows.entry(row.to_owned()).or_default();
        match outcome {
            Outcome::Ok => versions.acknowledged = versions.acknowledged.max(Some(version)),
            Outcome::Unknown => versions.unknown.push(version),
            Outcome::Failed => {}
        }
    }

    /// The last acknowledged version of a row: reads sent from now on must not see an older one.
    pub fn floor(&self, row: &str) -> Option<Token> {
        self.rows.get(row)?.acknowledged
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Checks a read that was sent after `floor` was acknowledged: it must not see an older version, unless the outcome of that
    /// version is unknown.
    pub fn check_read(&self, row: &str, floor: Option<Token>, seen: Option<&Content>) -> Option<Finding> {
        let seen = match seen {
            Some(Content::Broken(what)) => {
                return Some(Finding::new(Anomaly::Torn, row, "an intact version", what.clone()));
            }
            Some(Content::Version(seen)) => Some(*seen),
            None => None,
        };
        let unknown = |token: Token| self.rows.get(row).is_some_and(|versions| versions.unknown.contains(&token));
        let is_stale = seen < floor && !seen.is_some_and(unknown);
        is_stale.then(|| {
            let expected = format!("version {} or a newer one", shown(floor));
            Finding::new(Anomaly::Stale, row, expected, format!("version {}", shown(seen)))
        })
    }

    /// Compares all rows with the data that was read back. `may_have_sent`: whether an unrecorded version may exist.
    pub fn check(&self, found: &BTreeMap<String, Content>, may_have_sent: impl Fn(Token) -> bool) -> Vec<Finding> {
        let known = self.rows.iter().filter_map(|(row, versions)| versions.check(row, found.get(row), &may_have_sent));
        let unrecorded = found.iter().filter(|(row, _)| !self.rows.contains_key(*row));
        let unrecorded =
            unrecorded.filter_map(|(row, content)| RowVersions::default().check(row, Some(content), &may_have_sent));
        known.chain(unrecorded).collect()
    }
}

impl RowVersions {
    fn check(&self, row: &str, found: Option<&Content>, may_have_sent: impl Fn(Token) -> bool) -> Option<Finding> {
        let expected = || {
            let unknown: Vec<_> = self.unknown.iter().map(Token::to_string).collect();
            let or = if unknown.is_empty() { String::new() } else { format!(", or one of {}", unknown.join(" ")) };
            format!("version {}{or}", shown(self.acknowledged))
        };
        let found = match found {
            None => {
                return self.acknowledged.map(|_| Finding::new(Anomaly::Lost, row, expected(), "no row"));
            }
            Some(Content::Broken(what)) => {
                return Some(Finding::new(Anomaly::Torn, row, "an intact version", what.clone()));
            }
            Some(Content::Version(found)) => *found,
        };
        if Some(found) == self.acknowledged || self.unknown.contains(&found) || may_have_sent(found) {
            return None;
        }
        let anomaly = if Some(found) < self.acknowledged { Anomaly::Lost } else { Anomaly::Phantom };
        Some(Finding::new(anomaly, row, expected(), format!("version {found}")))
    }
}

fn shown(version: Option<Token>) -> String {
    version.map_or_else(|| "none".to_owned(), |version| version.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = "00/row/r/00000001";

    fn version(sequence: u64) -> Token {
        Token { writer: 1, sequence }
    }

    /// Version 1 acknowledged, 2 unknown, 3 acknowledged, 4 failed.
    fn writes() -> BlindWrites {
        let mut writes = BlindWrites::default();
        let outcomes = [Outcome::Ok, Outcome::Unknown, Outcome::Ok, Outcome::Failed];
        for (sequence, outcome) in (1..).zip(outcomes) {
            writes.note(ROW, version(sequence), outcome);
        }
        writes
    }

    fn anomaly(content: Option<Content>) -> Option<Anomaly> {
        let found: BTreeMap<_, _> = content.map(|content| (ROW.to_owned(), content)).into_iter().collect();
        writes().check(&found, |_| false).first().map(|finding| finding.anomaly)
    }

    #[test]
    fn a_row_has_the_last_acknowledged_version_or_an_unknown_one() {
        assert_eq!(anomaly(Some(Content::Version(version(3)))), None);
        assert_eq!(anomaly(Some(Content::Version(version(2)))), None);
        assert_eq!(anomaly(Some(Content::Version(version(1)))), Some(Anomaly::Lost));
        assert_eq!(anomaly(None), Some(Anomaly::Lost));
        assert_eq!(anomaly(Some(Content::Version(version(4)))), Some(Anomaly::Phantom));
        assert_eq!(anomaly(Some(Content::Broken("a without b".into()))), Some(Anomaly::Torn));
    }

    #[test]
    fn an_unwritten_row_is_a_phantom_unless_the_history_is_truncated() {
        let found = BTreeMap::from([("other".to_owned(), Content::Version(version(9)))]);
        assert_eq!(BlindWrites::default().check(&found, |_| false)[0].anomaly, Anomaly::Phantom);
        assert!(BlindWrites::default().check(&found, |_| true).is_empty());
    }

    #[test]
    fn a_read_must_not_see_an_older_version() {
        let read = |floor, seen: Option<u64>| {
            let seen = seen.map(|seen| Content::Version(version(seen)));
            writes().check_read(ROW, floor, seen.as_ref()).map(|finding| finding.anomaly)
        };
        assert_eq!(read(Some(version(3)), Some(1)), Some(Anomaly::Stale));
        assert_eq!(read(Some(version(3)), None), Some(Anomaly::Stale));
        assert_eq!(read(Some(version(3)), Some(2)), None, "2 may be applied at any time");
        assert_eq!(read(Some(version(1)), Some(3)), None);
        assert_eq!(read(None, None), None);
    }
}

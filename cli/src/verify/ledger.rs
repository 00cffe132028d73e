//! Blind writes at scale: of each row only what matters, so that a load of any length fits.
//!
//! A row of the ledger has one writer, which overwrites it with rising versions, one at a time. So the row must hold the
//! last version that was acknowledged, or one whose outcome is unknown: an old write that nobody answered may still be
//! under way and land last. Anything else is an anomaly, with its name.

use std::collections::BTreeMap;

use super::finding::{Anomaly, Finding};
use super::history::{Outcome, Token};

/// What the ledger knows of one row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The last version acknowledged.
    pub acknowledged: Option<Token>,
    /// Versions of which nobody knows; few, because errors are.
    pub unknown: Vec<Token>,
}

/// All rows that were written blindly.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pages: BTreeMap<String, Page>,
}

/// What stands in a row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A version, whole.
    Version(Token),
    /// Something that no version looks like, in words.
    Broken(String),
}

impl Ledger {
    /// Takes in a write that ended.
    pub fn note(&mut self, row: &str, version: Token, outcome: Outcome) {
        let page = self.pages.entry(row.to_owned()).or_default();
        match outcome {
            Outcome::Ok => page.acknowledged = page.acknowledged.max(Some(version)),
            Outcome::Unknown => page.unknown.push(version),
            Outcome::Failed => {}
        }
    }

    /// The last version of a row that was acknowledged: whoever reads from now on must not see an older one.
    pub fn floor(&self, row: &str) -> Option<Token> {
        self.pages.get(row)?.acknowledged
    }

    /// Rows that were written.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// What is wrong with a read that was sent when `floor` was acknowledged: an older version must not be seen, unless
    /// nobody knows what became of it.
    pub fn check_read(&self, row: &str, floor: Option<Token>, seen: Option<&Content>) -> Option<Finding> {
        let seen = match seen {
            Some(Content::Broken(what)) => {
                return Some(Finding::new(Anomaly::Half, row, "a version, whole", what.clone()));
            }
            Some(Content::Version(seen)) => Some(*seen),
            None => None,
        };
        let unknown = |token: Token| self.pages.get(row).is_some_and(|page| page.unknown.contains(&token));
        let is_stale = seen < floor && !seen.is_some_and(unknown);
        is_stale.then(|| {
            let expected = format!("version {} or a newer one", shown(floor));
            Finding::new(Anomaly::Stale, row, expected, format!("version {}", shown(seen)))
        })
    }

    /// Compares all rows with what was read back. `may_have_sent`: whether a version that is in no page may exist.
    pub fn check(&self, found: &BTreeMap<String, Content>, may_have_sent: impl Fn(Token) -> bool) -> Vec<Finding> {
        let known = self.pages.iter().filter_map(|(row, page)| page.check(row, found.get(row), &may_have_sent));
        let strange = found.iter().filter(|(row, _)| !self.pages.contains_key(*row));
        let strange = strange.filter_map(|(row, content)| Page::default().check(row, Some(content), &may_have_sent));
        known.chain(strange).collect()
    }
}

impl Page {
    fn check(&self, row: &str, found: Option<&Content>, may_have_sent: impl Fn(Token) -> bool) -> Option<Finding> {
        let expected = || {
            let unknown: Vec<_> = self.unknown.iter().map(Token::to_string).collect();
            let or = if unknown.is_empty() { String::new() } else { format!(", or one of {}", unknown.join(" ")) };
            format!("version {}{or}", shown(self.acknowledged))
        };
        let found = match found {
            None => {
                return self.acknowledged.map(|_| Finding::new(Anomaly::Lost, row, expected(), "no such row"));
            }
            Some(Content::Broken(what)) => {
                return Some(Finding::new(Anomaly::Half, row, "a version, whole", what.clone()));
            }
            Some(Content::Version(found)) => *found,
        };
        if Some(found) == self.acknowledged || self.unknown.contains(&found) || may_have_sent(found) {
            return None;
        }
        let anomaly = if Some(found) < self.acknowledged { Anomaly::Lost } else { Anomaly::Invented };
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
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        let outcomes = [Outcome::Ok, Outcome::Unknown, Outcome::Ok, Outcome::Failed];
        for (sequence, outcome) in (1..).zip(outcomes) {
            ledger.note(ROW, version(sequence), outcome);
        }
        ledger
    }

    fn anomaly(content: Option<Content>) -> Option<Anomaly> {
        let found: BTreeMap<_, _> = content.map(|content| (ROW.to_owned(), content)).into_iter().collect();
        ledger().check(&found, |_| false).first().map(|finding| finding.anomaly)
    }

    #[test]
    fn a_row_holds_what_was_acknowledged_last_or_what_nobody_knows_of() {
        assert_eq!(anomaly(Some(Content::Version(version(3)))), None);
        assert_eq!(anomaly(Some(Content::Version(version(2)))), None);
        assert_eq!(anomaly(Some(Content::Version(version(1)))), Some(Anomaly::Lost));
        assert_eq!(anomaly(None), Some(Anomaly::Lost));
        assert_eq!(anomaly(Some(Content::Version(version(4)))), Some(Anomaly::Invented));
        assert_eq!(anomaly(Some(Content::Broken("a without b".into()))), Some(Anomaly::Half));
    }

    #[test]
    fn a_row_that_nobody_wrote_is_invented_unless_the_history_was_cut() {
        let found = BTreeMap::from([("other".to_owned(), Content::Version(version(9)))]);
        assert_eq!(Ledger::default().check(&found, |_| false)[0].anomaly, Anomaly::Invented);
        assert!(Ledger::default().check(&found, |_| true).is_empty());
    }

    #[test]
    fn a_read_must_not_go_back() {
        let read = |floor, seen: Option<u64>| {
            let seen = seen.map(|seen| Content::Version(version(seen)));
            ledger().check_read(ROW, floor, seen.as_ref()).map(|finding| finding.anomaly)
        };
        assert_eq!(read(Some(version(3)), Some(1)), Some(Anomaly::Stale));
        assert_eq!(read(Some(version(3)), None), Some(Anomaly::Stale));
        assert_eq!(read(Some(version(3)), Some(2)), None, "nobody knows when 2 lands");
        assert_eq!(read(Some(version(1)), Some(3)), None);
        assert_eq!(read(None, None), None);
    }
}

//! Which operations were sent and what came of them, and what that allows to be read afterwards.
//!
//! Lists are rows to which every write appends a token of its own. Whatever is read of a list must be a prefix of what it
//! is in the end, must hold every token acknowledged before the read began, and no token twice. That finds lost,
//! doubled, invented and stale answers in one pass. Rows that are written once must be there, whole, if acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What is known of an operation's fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was acknowledged at that moment.
    Acknowledged(Duration),
    /// It may have been applied, or not, or may yet be.
    Unknown,
}

/// A token that was to be appended.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    pub(crate) list: String,
    pub(crate) token: String,
    pub(crate) began: Duration,
    pub(crate) fate: Fate,
}

/// A list as it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) list: String,
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    pub(crate) seen: Vec<String>,
}

/// A row that was to be written once.
#[derive(Clone, Debug)]
pub(crate) struct Put {
    pub(crate) row: String,
    pub(crate) value: String,
    pub(crate) began: Duration,
    pub(crate) fate: Fate,
}

/// A scan of the whole table: which rows it gave.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(crate) began: Duration,
    pub(crate) rows: Vec<String>,
}

/// A row that one worker alone writes, with growing numbers, until a write's fate is unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own {
    /// The last number that was sent, and the last that was acknowledged: the two differ by the write under way, or lost.
    pub(crate) sent: u64,
    pub(crate) acknowledged: u64,
}

/// All operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) appends: Vec<Append>,
    pub(crate) looks: Vec<Look>,
    pub(crate) puts: Vec<Put>,
    pub(crate) sweeps: Vec<Sweep>,
    pub(crate) owns: BTreeMap<String, Own>,
    /// What was found wrong while the load ran.
    pub(crate) wrong: Vec<String>,
}

/// What the table holds in the end: the lists, and the rows written once with the values in their two families.
#[derive(Clone, Debug, Default)]
pub(crate) struct Final {
    pub(crate) lists: BTreeMap<String, Vec<String>>,
    pub(crate) rows: BTreeMap<String, Vec<String>>,
}

/// The tokens of a list's value.
pub(crate) fn tokens(value: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(value).into_owned();
    text.split(',').filter(|token| !token.is_empty()).map(str::to_owned).collect()
}

impl History {
    /// Everything that contradicts the promises, in words.
    pub(crate) fn check(&self, end: &Final) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        self.check_appends(end, &mut wrong);
        self.check_looks(end, &mut wrong);
        self.check_puts(end, &mut wrong);
        self.check_sweeps(&mut wrong);
        for row in self.owns.keys() {
            let seen = end.rows.get(row).and_then(|values| values.first());
            wrong.extend(self.judge_own(row, seen.map_or("0", String::as_str), 0));
        }
        wrong
    }

    /// What is wrong with this number in a row of one writer. `at_least`: what was acknowledged before the read began.
    pub(crate) fn judge_own(&self, row: &str, seen: &str, at_least: u64) -> Option<String> {
        let own = self.owns.get(row)?;
        let least = if at_least > 0 { at_least } else { own.acknowledged };
        let is_right = seen.parse().is_ok_and(|seen: u64| (least..=own.sent).contains(&seen));
        (!is_right).then(|| format!("stale: row {row} holds {seen}, not {least} to {}", own.sent))
    }

    fn check_appends(&self, end: &Final, wrong: &mut Vec<String>) {
        let known: BTreeSet<(&str, &str)> = self.appends.iter().map(|a| (a.list.as_str(), a.token.as_str())).collect();
        let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (list, tokens) in &end.lists {
            for token in tokens {
                *counts.entry((list, token)).or_default() += 1;
                if !known.contains(&(list.as_str(), token.as_str())) {
                    wrong.push(format!("invented: {token} in list {list}"));
                }
            }
        }
        for append in &self.appends {
            let count = counts.get(&(append.list.as_str(), append.token.as_str())).copied().unwrap_or(0);
            if count > 1 {
                wrong.push(format!("doubled: {} is {count} times in list {}", append.token, append.list));
            }
            if count == 0 && append.fate != Fate::Unknown {
                wrong.push(format!(
                    "lost: {} is not in list {}, sent {:?} {:?}",
                    append.token, append.list, append.began, append.fate
                ));
            }
        }
    }

    fn check_looks(&self, end: &Final, wrong: &mut Vec<String>) {
        let empty = Vec::new();
        let mut acknowledged: BTreeMap<&str, Vec<(Duration, &str)>> = BTreeMap::new();
        let mut began: BTreeMap<(&str, &str), Duration> = BTreeMap::new();
        for append in &self.appends {
            began.insert((&append.list, &append.token), append.began);
            if let Fate::Acknowledged(at) = append.fate {
                acknowledged.entry(&append.list).or_default().push((at, &append.token));
            }
        }
        for look in &self.looks {
            let whole = end.lists.get(&look.list).unwrap_or(&empty);
            if !whole.starts_with(&look.seen) {
                let (seen, count) = (look.seen.len(), whole.len());
                wrong.push(format!(
                    "stale: {seen} tokens of list {} seen at {:?} are no prefix of its {count}",
                    look.list, look.began
                ));
                continue;
            }
            let seen: BTreeSet<&str> = look.seen.iter().map(String::as_str).collect();
            let before = acknowledged.get(look.list.as_str()).into_iter().flatten();
            let missing =
                before.filter(|(at, token)| *at < look.began && !seen.contains(token)).map(|(_, token)| *token);
            if let Some(token) = missing.min() {
                wrong.push(format!("stale: {token} of list {} was not seen at {:?}", look.list, look.began));
            }
            let early =
                |token: &&String| began.get(&(look.list.as_str(), token.as_str())).is_some_and(|at| *at > look.ended);
            if let Some(token) = look.seen.iter().find(early) {
                wrong.push(format!("invented: {token} of list {} was seen before it was sent", look.list));
            }
        }
    }

    fn check_puts(&self, end: &Final, wrong: &mut Vec<String>) {
        for put in &self.puts {
            match end.rows.get(&put.row) {
                None if put.fate == Fate::Unknown => {}
                None => wrong.push(format!("lost: row {}, sent {:?} {:?}", put.row, put.began, put.fate)),
                Some(values) if *values == [put.value.clone(), put.value.clone()] => {}
                Some(values) => wrong.push(format!("half: row {} holds {values:?}, not twice {}", put.row, put.value)),
            }
        }
        let known: BTreeSet<&str> = self.puts.iter().map(|put| put.row.as_str()).collect();
        let is_known = |row: &&String| known.contains(row.as_str()) || self.owns.contains_key(row.as_str());
        for row in end.rows.keys().filter(|row| !is_known(row)) {
            wrong.push(format!("invented: row {row}"));
        }
    }

    fn check_sweeps(&self, wrong: &mut Vec<String>) {
        for sweep in &self.sweeps {
            for pair in sweep.rows.windows(2).filter(|pair| pair[0] >= pair[1]) {
                wrong.push(format!("scan: {} came before {} at {:?}", pair[0], pair[1], sweep.began));
            }
            let seen: BTreeSet<&str> = sweep.rows.iter().map(String::as_str).collect();
            let due = self.puts.iter().filter(|put| matches!(put.fate, Fate::Acknowledged(at) if at < sweep.began));
            if let Some(put) = due.filter(|put| !seen.contains(put.row.as_str())).min_by_key(|put| &put.row) {
                wrong.push(format!("scan: row {} is missing at {:?}", put.row, sweep.began));
            }
        }
    }

    /// How many operations were acknowledged, and how many have an unknown fate.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let fates = self.appends.iter().map(|a| &a.fate).chain(self.puts.iter().map(|p| &p.fate));
        let (unknown, known): (Vec<_>, Vec<_>) = fates.partition(|fate| **fate == Fate::Unknown);
        (known.len(), unknown.len())
    }
}

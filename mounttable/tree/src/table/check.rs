//! Checks every row for inconsistencies, and recounts what users are charged for.
//!
//! Both run while the table serves, so the rows may be from different moments. A recount counts twice, and corrects
//! only counters that are wrong by the same amount both times.

use std::collections::BTreeMap;

use crate::error::{Error, Reason};
use crate::identity::UserId;
use crate::key::name_of;
use crate::name::NodeName;
use crate::node::{Epoch, Node, Reference};
use crate::store::{ChildSelection, Environment, Row, Store};
use crate::table::Table;
use crate::table::quota::QuotaKind;

/// The number of rows or counters in one read.
const PAGE: usize = 256;

/// The kind of an inconsistency.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Problem {
    /// A row that its parent does not refer to: it is invisible, and a sweep removes it.
    Orphan,
    /// A reference to a row that does not exist.
    Dangling,
    /// A reference to a child whose creation is in progress or was abandoned.
    Intent,
    /// A deletion that is not finished.
    Dead,
    /// A row that is not a valid node.
    Damaged,
    /// A counter that differs from the user's actual usage.
    Counter,
}

impl Problem {
    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Orphan => "ORPHAN",
            Self::Dangling => "DANGLING",
            Self::Intent => "INTENT",
            Self::Dead => "DEAD",
            Self::Damaged => "DAMAGED",
            Self::Counter => "COUNTER",
        }
    }
}

/// An inconsistency.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its kind.
    pub problem: Problem,
    /// The row's key, or the counter's name.
    pub place: String,
    /// The facts.
    pub message: String,
}

/// A reference of a row.
pub(super) struct ChildReference {
    pub(super) child: NodeName,
    pub(super) reference: Reference,
    pub(super) is_there: bool,
}

/// A corrected counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Correction {
    /// Its name.
    pub counter: String,
    /// The old value.
    pub was: i64,
    /// The new value, unless the counter has changed since.
    pub is: i64,
}

impl<S: Store + Environment> Table<S> {
    /// Checks every row and counter, and changes nothing.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        let mut expected = BTreeMap::new();
        let mut after = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            let Some(last) = keys.last() else { break };
            after = Some(last.clone());
            for key in &keys {
                match self.check_row(key, &mut expected, &mut findings).await {
                    Err(error) if error.reason == Reason::Damaged => {
                        let place = key.clone();
                        findings.push(Finding { problem: Problem::Damaged, place, message: error.message });
                    }
                    outcome => outcome?,
                }
            }
        }
        for (counter, (stored, expected)) in self.compare(expected).await? {
            if stored != expected {
                let message = format!("the counter is {stored}, but the rows add up to {expected}");
                findings.push(Finding { problem: Problem::Counter, place: counter, message });
            }
        }
        Ok(findings)
    }

    async fn check_row(
        &self,
        key: &str,
        expected: &mut BTreeMap<String, i64>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Error> {
        let name = name_of(key)?;
        let Some(node) = self.node(&name, &ChildSelection::none()).await? else { return Ok(()) };
        count(&node, expected);
        let mut found = |problem, place: &str, message: String| {
            findings.push(Finding { problem, place: place.to_owned(), message });
        };
        if !self.is_referred_to(&node).await? {
            found(Problem::Orphan, key, format!("{name:?} has no reference from its parent"));
            return Ok(());
        }
        if node.epoch == Epoch::Dead {
            found(Problem::Dead, key, format!("the deletion of {name:?} is not finished"));
        }
        let mut after = None;
        while let Some(references) = self.references(&name, &mut after).await? {
            for ChildReference { child, reference, is_there } in references {
                match reference {
                    Reference::Pending(_) => {
                        found(Problem::Intent, key, format!("the creation of {child:?} is not finished"))
                    }
                    Reference::Committed(_) if !is_there => {
                        found(Problem::Dangling, key, format!("it refers to {child:?}, which does not exist"));
                    }
                    Reference::Committed(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The next references of a row, and whether the row that each refers to exists; `None` after the last.
    pub(super) async fn references(
        &self,
        name: &NodeName,
        after: &mut Option<String>,
    ) -> Result<Option<Vec<ChildReference>>, Error> {
        let children = ChildSelection::Page { prefix: String::new(), after: after.take(), limit: PAGE };
        let node = self.node(name, &children).await?;
        let stored: Vec<_> = node.into_iter().flat_map(|node| node.children).collect();
        let Some((last, _)) = stored.last() else { return Ok(None) };
        *after = Some(last.clone());
        let named = stored.iter().filter_map(|(element, (stored, _))| Some((name.child(element).ok()?, *stored)));
        let named: Vec<_> = named.collect();
        let keys: Vec<_> = named.iter().map(|(child, _)| crate::key::row_key(child)).collect();
        let rows = self.store.read(&keys, &ChildSelection::none()).await?;
        let referred = |((child, reference), row): ((NodeName, Reference), Option<Row>)| {
            // Damage of a child is reported for its own row.
            let is_meant =
                |row: Row| Node::decode(&child, &row).map_or(true, |it| it.incarnation == reference.incarnation());
            let is_there = row.is_some_and(is_meant);
            ChildReference { child, reference, is_there }
        };
        Ok(Some(named.into_iter().zip(rows).map(referred).collect()))
    }

    /// Counts every user's resources twice, and corrects the counters that are wrong by the same amount both times.
    ///
    /// # Errors
    /// `UNAVAILABLE`: some counters may be corrected.
    pub async fn recount(&self) -> Result<Vec<Correction>, Error> {
        let first = self.compare(self.count_resources().await?).await?;
        let second = self.compare(self.count_resources().await?).await?;
        let mut corrections = Vec::new();
        for (counter, (stored, expected)) in second {
            let by = expected.saturating_sub(stored);
            let before = first.get(&counter).map(|(stored, expected)| expected.saturating_sub(*stored));
            if by != 0 && before == Some(by) {
                let now = self.store.add(&counter, by).await?;
                if is_corrected_again(now, expected, by) {
                    self.store.add(&counter, by.saturating_neg()).await?;
                } else {
                    corrections.push(Correction { counter, was: stored, is: expected });
                }
            }
        }
        Ok(corrections)
    }

    /// The expected value of each counter, from the rows.
    async fn count_resources(&self) -> Result<BTreeMap<String, i64>, Error> {
        let mut expected = BTreeMap::new();
        let mut after = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            let Some(last) = keys.last() else { return Ok(expected) };
            after = Some(last.clone());
            let names: Vec<Option<NodeName>> = keys.iter().map(|key| name_of(key).ok()).collect();
            let rows = self.store.read(&keys, &ChildSelection::none()).await?;
            for (name, row) in names.into_iter().zip(rows) {
                let node = name.zip(row).and_then(|(name, row)| Node::decode(&name, &row).ok());
                node.iter().for_each(|node| count(node, &mut expected));
            }
        }
    }

    /// The stored and the expected value of each counter.
    async fn compare(&self, mut expected: BTreeMap<String, i64>) -> Result<BTreeMap<String, (i64, i64)>, Error> {
        let mut both = BTreeMap::new();
        let mut after = None;
        loop {
            let counters = self.store.counters(after.as_deref(), PAGE).await?;
            let Some((last, _)) = counters.last() else { break };
            after = Some(last.clone());
            for (name, stored) in counters {
                if QuotaKind::ALL.iter().any(|quota| name.starts_with(quota.counter_prefix())) {
                    let expected = expected.remove(&name).unwrap_or_default();
                    both.insert(name, (stored, expected));
                }
            }
        }
        both.extend(expected.into_iter().map(|(name, expected)| (name, (0, expected))));
        Ok(both)
    }
}

/// Whether a counter that is `now` after a correction by `by` had been corrected already: several servers may recount at the same
/// time. A charge that looks the same undoes a correction, which the next recount repeats.
fn is_corrected_again(now: i64, expected: i64, by: i64) -> bool {
    let beyond = now.saturating_sub(expected);
    beyond != 0 && beyond.checked_rem(by) == Some(0) && (beyond > 0) == (by > 0)
}

/// Adds the charges of one row.
fn count(node: &Node, expected: &mut BTreeMap<String, i64>) {
    let mut add = |quota: QuotaKind, user: &UserId| {
        let count = expected.entry(quota.counter(user)).or_default();
        *count = count.saturating_add(1);
    };
    if !node.name.is_root() {
        add(QuotaKind::Nodes, &node.creator);
    }
    node.servers.iter().for_each(|server| add(QuotaKind::Servers, &server.mounter));
}

#[cfg(test)]
mod tests {
    use super::is_corrected_again;

    #[test]
    fn of_several_corrections_at_the_same_time_one_stays() {
        // The counter is 7 and should be 4.
        assert!(!is_corrected_again(4, 4, -3));
        assert!(is_corrected_again(1, 4, -3) && is_corrected_again(-2, 4, -3));
        assert!(!is_corrected_again(5, 4, -3) && !is_corrected_again(3, 4, -3), "others were charged meanwhile");
        assert!(is_corrected_again(10, 7, 3) && !is_corrected_again(4, 7, 3));
    }
}

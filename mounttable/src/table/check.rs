//! Looking at every row: what does not fit together, and what users should be charged for.
//!
//! Both go on while others work, so what they see may be of different moments. A recount looks twice and corrects only
//! what is wrong by the same amount both times.

use std::collections::BTreeMap;

use crate::error::{Error, Reason};
use crate::identity::UserId;
use crate::key::name_of;
use crate::name::NodeName;
use crate::node::{Epoch, Node, Reference};
use crate::store::{Children, Row, Store, Surroundings};
use crate::table::Table;
use crate::table::quota::Charge;

/// How many rows or counters one call lists.
const PAGE: usize = 256;

/// What does not fit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Trouble {
    /// A row that its parent does not refer to: nobody can see it, and a sweep removes it.
    Orphan,
    /// A reference to a row that is not there.
    Dangling,
    /// A reference to a child that somebody makes, or did not finish making.
    Intent,
    /// A deletion that is not finished.
    Dead,
    /// A row that no node writes.
    Damaged,
    /// A counter that is not what its user has.
    Counter,
}

impl Trouble {
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

/// Something that does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What.
    pub trouble: Trouble,
    /// The row's key, or the counter's name.
    pub place: String,
    /// The facts.
    pub message: String,
}

/// What a row refers to.
pub(super) struct Referred {
    pub(super) child: NodeName,
    pub(super) reference: Reference,
    pub(super) is_there: bool,
}

/// A counter that was put right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Correction {
    /// Its name.
    pub counter: String,
    /// What it was.
    pub was: i64,
    /// What it is now, if nobody has changed it since.
    pub is: i64,
}

impl<S: Store + Surroundings> Table<S> {
    /// Looks at every row and counter, and changes nothing.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        let mut due = BTreeMap::new();
        let mut after = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            let Some(last) = keys.last() else { break };
            after = Some(last.clone());
            for key in &keys {
                match self.check_row(key, &mut due, &mut findings).await {
                    Err(error) if error.reason == Reason::Damaged => {
                        let place = key.clone();
                        findings.push(Finding { trouble: Trouble::Damaged, place, message: error.message });
                    }
                    outcome => outcome?,
                }
            }
        }
        for (counter, (held, due)) in self.compared(due).await? {
            if held != due {
                let message = format!("it says {held}, and there are {due}");
                findings.push(Finding { trouble: Trouble::Counter, place: counter, message });
            }
        }
        Ok(findings)
    }

    async fn check_row(
        &self,
        key: &str,
        due: &mut BTreeMap<String, i64>,
        findings: &mut Vec<Finding>,
    ) -> Result<(), Error> {
        let name = name_of(key)?;
        let Some(node) = self.node(&name, &Children::none()).await? else { return Ok(()) };
        count(&node, due);
        let mut found = |trouble, place: &str, message: String| {
            findings.push(Finding { trouble, place: place.to_owned(), message });
        };
        if !self.is_referred_to(&node).await? {
            found(Trouble::Orphan, key, format!("no parent refers to {name:?}"));
            return Ok(());
        }
        if node.epoch == Epoch::Dead {
            found(Trouble::Dead, key, format!("the deletion of {name:?} is not finished"));
        }
        let mut after = None;
        while let Some(references) = self.references(&name, &mut after).await? {
            for Referred { child, reference, is_there } in references {
                match reference {
                    Reference::Pending(_) => found(Trouble::Intent, key, format!("{child:?} is not made yet")),
                    Reference::Committed(_) if !is_there => {
                        found(Trouble::Dangling, key, format!("it refers to {child:?}, which is not there"));
                    }
                    Reference::Committed(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The next references of a row, and whether what each means is there; `None` behind the last.
    pub(super) async fn references(
        &self,
        name: &NodeName,
        after: &mut Option<String>,
    ) -> Result<Option<Vec<Referred>>, Error> {
        let children = Children::Page { prefix: String::new(), after: after.take(), limit: PAGE };
        let node = self.node(name, &children).await?;
        let held: Vec<_> = node.into_iter().flat_map(|node| node.children).collect();
        let Some((last, _)) = held.last() else { return Ok(None) };
        *after = Some(last.clone());
        let named = held.iter().filter_map(|(element, (held, _))| Some((name.child(element).ok()?, *held)));
        let named: Vec<_> = named.collect();
        let keys: Vec<_> = named.iter().map(|(child, _)| crate::key::row_key(child)).collect();
        let rows = self.store.read(&keys, &Children::none()).await?;
        let referred = |((child, reference), row): ((NodeName, Reference), Option<Row>)| {
            // A damaged child is told of at its own row.
            let is_meant =
                |row: Row| Node::decode(&child, &row).map_or(true, |it| it.incarnation == reference.incarnation());
            let is_there = row.is_some_and(is_meant);
            Referred { child, reference, is_there }
        };
        Ok(Some(named.into_iter().zip(rows).map(referred).collect()))
    }

    /// Counts what every user has, twice, and corrects the counters that are wrong by the same amount both times.
    ///
    /// # Errors
    /// `UNAVAILABLE`: then some may be corrected.
    pub async fn recount(&self) -> Result<Vec<Correction>, Error> {
        let first = self.compared(self.counted().await?).await?;
        let second = self.compared(self.counted().await?).await?;
        let mut corrections = Vec::new();
        for (counter, (held, due)) in second {
            let by = due.saturating_sub(held);
            let before = first.get(&counter).map(|(held, due)| due.saturating_sub(*held));
            if by != 0 && before == Some(by) {
                self.store.add(&counter, by).await?;
                corrections.push(Correction { counter, was: held, is: due });
            }
        }
        Ok(corrections)
    }

    /// What each counter should say, from the rows.
    async fn counted(&self) -> Result<BTreeMap<String, i64>, Error> {
        let mut due = BTreeMap::new();
        let mut after = None;
        loop {
            let keys = self.store.keys(after.as_deref(), PAGE).await?;
            let Some(last) = keys.last() else { return Ok(due) };
            after = Some(last.clone());
            let names: Vec<Option<NodeName>> = keys.iter().map(|key| name_of(key).ok()).collect();
            let rows = self.store.read(&keys, &Children::none()).await?;
            for (name, row) in names.into_iter().zip(rows) {
                let node = name.zip(row).and_then(|(name, row)| Node::decode(&name, &row).ok());
                node.iter().for_each(|node| count(node, &mut due));
            }
        }
    }

    /// What each counter says, and what it should.
    async fn compared(&self, mut due: BTreeMap<String, i64>) -> Result<BTreeMap<String, (i64, i64)>, Error> {
        let mut both = BTreeMap::new();
        let mut after = None;
        loop {
            let counters = self.store.counters(after.as_deref(), PAGE).await?;
            let Some((last, _)) = counters.last() else { break };
            after = Some(last.clone());
            for (name, held) in counters {
                if Charge::ALL.iter().any(|charge| name.starts_with(charge.counter_prefix())) {
                    let due = due.remove(&name).unwrap_or_default();
                    both.insert(name, (held, due));
                }
            }
        }
        both.extend(due.into_iter().map(|(name, due)| (name, (0, due))));
        Ok(both)
    }
}

/// Adds what a row is charged for.
fn count(node: &Node, due: &mut BTreeMap<String, i64>) {
    let mut add = |charge: Charge, user: &UserId| {
        let count = due.entry(charge.counter(user)).or_default();
        *count = count.saturating_add(1);
    };
    if !node.name.is_root() {
        add(Charge::Nodes, &node.creator);
    }
    node.servers.iter().for_each(|server| add(Charge::Servers, &server.mounter));
}

//! The storage that the mounttable asks for: rows of cells, read by key, changed one row at a time under a condition.
//!
//! This is a small part of what a Bigtable offers, and each piece has its counterpart there: a read is ReadRows with
//! point keys and a filter on qualifiers, a [`Predicate`] is the filter of CheckAndMutateRow, a [`Change`] a mutation.
//! Every family keeps one version, the one with the latest timestamp. Beside the rows stand counters: numbers by name,
//! each a row of a second table, changed by ReadModifyWriteRow.
//!
//! | family | column | value | timestamp |
//! |---|---|---|---|
//! | m | `i` | the row's incarnation: 16 hex digits, new each time it is created | creation |
//! | m | `v` | its version: 16 hex digits, new at every change | change |
//! | m | `e` | its epoch: `<i>.<generation of its permissions>`, or `dead` while it is deleted | change |
//! | m | `q` | its parent's incarnation | creation |
//! | m | `c` | who created it | creation |
//! | m | `s` | `1` when it is sticky | change |
//! | m | `p` | its permissions, JSON | change |
//! | s | a server's address | JSON: what it is, who is charged | its deadline |
//! | c | a child's last element | `P<i>` while the child is made, `C<i>` from then on | the child's creation |
//!
//! Invariant asked of an implementation: a change of one row is atomic with its condition, and is not applied any more
//! once an error said so. Nothing is asked about two rows: those of one read may be of different moments.
//!
//! [`cached`] wraps a storage and answers [`Store::read_recent`] from what it has read a moment ago; all else goes through.
//! [`gathered`] wraps one and makes changes of one row together that come at the same time.

pub mod bigtable;
pub mod cache;
pub mod cached;
pub mod filters;
pub mod gathered;
mod generations;
mod glimpse;
pub mod grounded;
pub mod memory;
mod paths;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;

use crate::error::Error;
use crate::key::path_keys;
use crate::name::NodeName;

pub use glimpse::{Glimpse, Part};

/// A column family of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// `m`: what the node is.
    Meta,
    /// `s`: its servers.
    Servers,
    /// `c`: references to its children.
    Children,
}

/// One cell: the latest version of its column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// When, in whole milliseconds; for a server, until when.
    pub timestamp: Micros,
    /// What.
    pub value: String,
}

/// A row: its cells by family and qualifier.
pub type Row = BTreeMap<(Family, String), Cell>;

/// Which references to children a read brings. Never all of them: a directory may be
/// larger than memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Children {
    /// Those of these names: a walk looks for one child in each row, however many there are.
    Named(Vec<String>),
    /// The first `limit` (at least 1), in order, of those that begin with `prefix` and come after `after`.
    Page {
        /// What their names begin with.
        prefix: String,
        /// The last one of the page before.
        after: Option<String>,
        /// How many at most.
        limit: usize,
    },
}

impl Children {
    /// The first `limit` of all.
    pub const fn first(limit: usize) -> Self {
        Self::Page { prefix: String::new(), after: None, limit }
    }

    /// None.
    pub const fn none() -> Self {
        Self::Named(Vec::new())
    }
}

/// Which servers of a row a read brings: a node may have very many, and few ask for all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Servers {
    /// All.
    All,
    /// None.
    None,
    /// The first [`TELLING`], in order.
    First,
    /// These, and the one at this address.
    FirstAnd(String),
}

/// How many servers of a node usually tell what can be done with it: whether any is live, and what sort they are.
pub const TELLING: usize = 8;

/// A row on the way to a name, and the child that comes next on it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Step {
    /// The row's key.
    pub key: String,
    /// The child's last element; `None` where the way ends.
    pub child: Option<String>,
}

impl Step {
    /// The rows from the root's down to that of `name`, itself included.
    pub fn path(name: &NodeName) -> Vec<Self> {
        let children = name.elements().map(|element| Some(element.to_owned())).chain([None]);
        path_keys(name).zip(children).map(|(key, child)| Self { key, child }).collect()
    }

    /// The keys of the rows of `path`.
    pub fn keys(path: &[Self]) -> Vec<String> {
        path.iter().map(|step| step.key.clone()).collect()
    }

    /// The references that lead along `path`.
    pub fn children(path: &[Self]) -> Children {
        Children::Named(path.iter().filter_map(|step| step.child.clone()).collect())
    }
}

/// How old what was read may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// Of a moment ago, or of now.
    Recent,
    /// Of minutes ago: the storage does not answer.
    Stale,
}

/// What [`Store::read_recent`] found.
#[derive(Clone, PartialEq, Debug)]
pub struct Recent {
    /// The rows from the root's on, as far as a walk goes.
    pub rows: Arc<[Option<Glimpse>]>,
    /// How old they may be.
    pub freshness: Freshness,
}

/// What must hold of a row for a change to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Predicate {
    /// The row has no cell at all.
    RowAbsent,
    /// The column has a cell.
    Has(Family, String),
    /// The column has no cell, or the row is absent.
    HasNot(Family, String),
    /// The column's value is this.
    Is(Family, String, String),
    /// The column's value begins with this.
    Begins(Family, String, String),
    /// All of these hold.
    All(Vec<Predicate>),
}

impl Predicate {
    /// Whether it holds of `row`.
    pub fn holds(&self, row: Option<&Row>) -> bool {
        let value = |family: &Family, column: &String| {
            row.and_then(|row| row.get(&(*family, column.clone()))).map(|cell| cell.value.as_str())
        };
        match self {
            Self::RowAbsent => row.is_none_or(BTreeMap::is_empty),
            Self::Has(family, column) => value(family, column).is_some(),
            Self::HasNot(family, column) => value(family, column).is_none(),
            Self::Is(family, column, wanted) => value(family, column) == Some(wanted),
            Self::Begins(family, column, head) => value(family, column).is_some_and(|value| value.starts_with(head)),
            Self::All(parts) => parts.iter().all(|part| part.holds(row)),
        }
    }
}

/// One step of a change; steps are made in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Writes a cell. A version with a later timestamp hides it.
    Set(Family, String, Cell),
    /// Removes all versions of a column.
    DeleteColumn(Family, String),
    /// Removes a whole family.
    DeleteFamily(Family),
    /// Removes the row.
    DeleteRow,
}

/// The table's storage.
pub trait Store: Send + Sync {
    /// The rows of these keys, in their order, each as it was at some moment of the call; `None` for one that is
    /// absent. A row has no more children and servers than are wanted.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn read_with(
        &self,
        keys: &[String],
        children: &Children,
        servers: &Servers,
    ) -> impl Future<Output = Result<Vec<Option<Row>>, Error>> + Send;

    /// The same, with all servers.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn read(
        &self,
        keys: &[String],
        children: &Children,
    ) -> impl Future<Output = Result<Vec<Option<Row>>, Error>> + Send {
        self.read_with(keys, children, &Servers::All)
    }

    /// The rows from the root's down to that of `name`, each with its reference to the next, for whoever decides no change by
    /// them: they may have been read a moment ago. Changes through this storage are seen. What lies below a row that is
    /// absent, that has a live server, or that lacks the reference need not be among them.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn read_recent(&self, name: &NodeName) -> impl Future<Output = Result<Recent, Error>> + Send {
        async {
            let path = Step::path(name);
            let rows = self.read(&Step::keys(&path), &Step::children(&path)).await?;
            let seen = |(step, row): (&Step, Option<Row>)| row.map(|row| Glimpse::of(row, step.child.as_deref()));
            Ok(Recent { rows: path.iter().zip(rows).map(seen).collect(), freshness: Freshness::Recent })
        }
    }

    /// Makes the changes if the predicate holds, as one; whether it did.
    ///
    /// # Errors
    /// `UNAVAILABLE`: then the changes may have been made or not.
    fn change_if(
        &self,
        key: &str,
        when: Predicate,
        then: Vec<Change>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Up to `limit` keys of rows after `after`, in order.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn keys(&self, after: Option<&str>, limit: usize) -> impl Future<Output = Result<Vec<String>, Error>> + Send;

    /// Adds to a counter, which is 0 before its first time; what it is then.
    ///
    /// # Errors
    /// `UNAVAILABLE`: then it may have been added or not.
    fn add(&self, counter: &str, by: i64) -> impl Future<Output = Result<i64, Error>> + Send;

    /// What a counter is, if it ever was set or added to.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn counter(&self, counter: &str) -> impl Future<Output = Result<Option<i64>, Error>> + Send;

    /// Makes a counter this number, or as if it had never been.
    ///
    /// # Errors
    /// `UNAVAILABLE`: then it may have been set or not.
    fn set_counter(&self, counter: &str, to: Option<i64>) -> impl Future<Output = Result<(), Error>> + Send;

    /// Up to `limit` counters after `after`, in order.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn counters(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(String, i64)>, Error>> + Send;
}

/// Time and chance, which come from outside.
pub trait Surroundings: Send + Sync {
    /// The time.
    fn now(&self) -> Micros;

    /// 64 bits that nobody has drawn before, or will.
    fn fresh(&self) -> u64;

    /// Waits a little before a try that follows `tries` others.
    fn pause(&self, tries: u32) -> impl Future<Output = ()> + Send;

    /// Waits until so much time has gone by.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
}

//! The storage interface of the mounttable: rows of cells, read by key, changed one row at a time under a condition.
//!
//! The interface is a small part of Bigtable's data API: a read is ReadRows with point keys and a filter on qualifiers,
//! a [`Condition`] is the predicate filter of CheckAndMutateRow, a [`Change`] is a mutation. Every family keeps one
//! version, the one with the latest timestamp. Counters are numbers by name, each a row of a second table, changed by
//! ReadModifyWriteRow.
//!
//! | family | column | value | timestamp |
//! |---|---|---|---|
//! | m | `i` | the row's incarnation: 16 hex digits, new each time the row is created | creation |
//! | m | `v` | its version: 16 hex digits, new at every change | change |
//! | m | `e` | its epoch: `<i>.<generation of its permissions>`, or `dead` while it is being deleted | change |
//! | m | `q` | its parent's incarnation | creation |
//! | m | `c` | its creator | creation |
//! | m | `s` | `1` when it is sticky | change |
//! | m | `p` | its permissions, JSON | change |
//! | s | a server's address | JSON: the kind of server, the user who is charged | its deadline |
//! | c | a child's last element | `P<i>` while the child is being created, `C<i>` afterwards | the child's creation |
//!
//! Invariants that an implementation must keep: a change of one row is atomic with its condition, and it is never
//! applied after the call has returned an error other than `UNAVAILABLE`. There is no guarantee across rows: the rows
//! of one read may be from different moments.
//!
//! [`caching`] wraps a store and answers [`Store::read_recent`] from a cache; all other calls pass through.
//! [`coalescing`] wraps a store and combines concurrent changes of one row into one request.

pub mod bigtable;
pub mod cache;
pub mod caching;
pub mod coalescing;
mod delegate;
pub mod filters;
pub mod memory;
mod path_cache;
mod path_row;
mod row_cache;
pub mod system;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ebla_model::Micros;

use crate::error::Error;
use crate::key::path_keys;
use crate::name::NodeName;

pub use path_row::{PathRow, RowPart};

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
    /// Whole milliseconds; for a server, its deadline.
    pub timestamp: Micros,
    /// The value.
    pub value: String,
}

/// A row: its cells by family and qualifier.
pub type Row = BTreeMap<(Family, String), Cell>;

/// The references to children that a read returns. Never all of them: a directory may be larger than memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChildSelection {
    /// Those with these names. A walk needs one child of each row, however many there are.
    Named(Vec<String>),
    /// The first `limit` (at least 1), in order, of those that begin with `prefix` and come after `after`.
    Page {
        /// The prefix of their names.
        prefix: String,
        /// The last name of the previous page.
        after: Option<String>,
        /// The page size.
        limit: usize,
    },
}

impl ChildSelection {
    /// The first `limit` of all.
    pub const fn first(limit: usize) -> Self {
        Self::Page { prefix: String::new(), after: None, limit }
    }

    /// None.
    pub const fn none() -> Self {
        Self::Named(Vec::new())
    }
}

/// The servers of a row that a read returns: a node may have very many, and few callers need all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerSelection {
    /// All.
    All,
    /// None.
    None,
    /// The first [`SERVERS_SAMPLE`], in order.
    First,
    /// These, and the one at this address.
    FirstAnd(String),
}

/// The number of servers that is usually enough to tell whether a node has a live one, and of which kind they are.
pub const SERVERS_SAMPLE: usize = 8;

/// A row on the path to a name, and the next child on that path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PathStep {
    /// The row's key.
    pub key: String,
    /// The child's last element; `None` at the end of the path.
    pub child: Option<String>,
}

impl PathStep {
    /// The rows from the root down to that of `name`, inclusive.
    pub fn path(name: &NodeName) -> Vec<Self> {
        let children = name.elements().map(|element| Some(element.to_owned())).chain([None]);
        path_keys(name).zip(children).map(|(key, child)| Self { key, child }).collect()
    }

    /// The keys of the rows of `path`.
    pub fn keys(path: &[Self]) -> Vec<String> {
        path.iter().map(|step| step.key.clone()).collect()
    }

    /// The references along `path`.
    pub fn children(path: &[Self]) -> ChildSelection {
        ChildSelection::Named(path.iter().filter_map(|step| step.child.clone()).collect())
    }
}

/// How old a result may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freshness {
    /// A moment old, or current.
    Recent,
    /// Minutes old, because the storage is unavailable.
    Stale,
}

/// The result of [`Store::read_recent`].
#[derive(Clone, PartialEq, Debug)]
pub struct RecentPath {
    /// The rows from the root on, as far as a walk needs them.
    pub rows: Arc<[Option<PathRow>]>,
    /// How old they may be.
    pub freshness: Freshness,
}

/// The condition under which a change is applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The row has no cells.
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
    All(Vec<Condition>),
}

impl Condition {
    /// Whether the condition holds for `row`.
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

/// One mutation of a change; mutations are applied in order.
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

/// The table's storage. A store that wraps another one implements what it changes, and the rest with [`crate::delegate`].
pub trait Store: Send + Sync {
    /// Reads the rows with these keys, in their order, each as of some moment during the call; `None` for a row that is
    /// absent. A row contains only the selected children and servers.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn read_with(
        &self,
        keys: &[String],
        children: &ChildSelection,
        servers: &ServerSelection,
    ) -> impl Future<Output = Result<Vec<Option<Row>>, Error>> + Send;

    /// The same, with all servers.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn read(
        &self,
        keys: &[String],
        children: &ChildSelection,
    ) -> impl Future<Output = Result<Vec<Option<Row>>, Error>> + Send {
        self.read_with(keys, children, &ServerSelection::All)
    }

    /// Reads the rows from the root down to that of `name`, each with its reference to the next, for callers that base
    /// no change on them: the rows may come from a cache. Changes through this store are visible. Rows below an absent
    /// row, below one with a live server, or below one that lacks the reference may be missing.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn read_recent(&self, name: &NodeName) -> impl Future<Output = Result<RecentPath, Error>> + Send {
        async {
            let path = PathStep::path(name);
            let rows = self.read(&PathStep::keys(&path), &PathStep::children(&path)).await?;
            let seen = |(step, row): (&PathStep, Option<Row>)| row.map(|row| PathRow::of(row, step.child.as_deref()));
            Ok(RecentPath { rows: path.iter().zip(rows).map(seen).collect(), freshness: Freshness::Recent })
        }
    }

    /// Applies the changes atomically if the condition holds; returns whether it did.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the changes may or may not have been applied.
    fn change_if(
        &self,
        key: &str,
        when: Condition,
        then: Vec<Change>,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Up to `limit` keys of rows after `after`, in order.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn keys(&self, after: Option<&str>, limit: usize) -> impl Future<Output = Result<Vec<String>, Error>> + Send;

    /// Adds to a counter, which starts at 0; returns the new value.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the addition may or may not have been applied.
    fn add(&self, counter: &str, by: i64) -> impl Future<Output = Result<i64, Error>> + Send;

    /// The value of a counter, if it exists.
    ///
    /// # Errors
    /// `UNAVAILABLE`.
    fn counter(&self, counter: &str) -> impl Future<Output = Result<Option<i64>, Error>> + Send;

    /// Sets a counter to this value, or deletes it.
    ///
    /// # Errors
    /// `UNAVAILABLE`: the change may or may not have been applied.
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

/// Clock and randomness, injected from outside.
pub trait Environment: Send + Sync {
    /// The current time.
    fn now(&self) -> Micros;

    /// A random number of 64 bits that is never drawn twice.
    fn unique_u64(&self) -> u64;

    /// Waits before the next attempt, after `attempts` failed ones.
    fn back_off(&self, attempts: u32) -> impl Future<Output = ()> + Send;

    /// Waits for this duration.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send;
}

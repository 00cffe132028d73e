//! Authorized views: subsets of a table that have policies of their own.
//!
//! A view includes the cells whose row begins with one of its row prefixes, and whose column is one of its columns: those of a family that it
//! names, with a qualifier that it names or that begins with one of its prefixes. The empty prefix includes everything.
//!
//! | call | what the view decides |
//! |---|---|
//! | a read, a predicate | [`SubsetView::rows`] and [`SubsetView::filter`]: the rest of the table does not exist |
//! | a write | [`SubsetView::includes_row`] and [`SubsetView::permits`]: a change outside is refused |
//!
//! Families are included by name: a view includes a family that is created later under a name that it has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use bytes::Bytes;

use super::policy::Policy;
use super::rules::FamilySet;
use crate::admin::instance::is_resource_id;
use crate::cell::FamilyName;
use crate::error::Error;
use crate::filter::Filter;
use crate::key::{KeyRange, RowKey, RowSet};
use crate::mutation::Mutation;
use crate::schema::{Protection, TableName, TableSchema};

/// Longest name of a view within its table, in bytes.
const VIEW_ID_BYTES_MAX: usize = 50;
/// The longest regular expression of family names, in bytes; more names need several. The compiled form is bounded.
const REGEX_BYTES_MAX: usize = 1_024;

/// A view's name, `projects/P/instances/I/tables/T/authorizedViews/V`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ViewName {
    table: TableName,
    id: String,
}

impl ViewName {
    /// Builds the name from its parts.
    ///
    /// # Errors
    /// `InvalidArgument` when `id` has not 1 to 50 letters, digits and `-_.`, beginning with a letter, a digit or `_`.
    pub fn new(table: TableName, id: &str) -> Result<Self, Error> {
        if is_resource_id(id) && id.len() <= VIEW_ID_BYTES_MAX {
            return Ok(Self { table, id: id.to_owned() });
        }
        Err(Error::invalid(format!(
            "invalid authorized view id {id:?}: expected 1 to {VIEW_ID_BYTES_MAX} letters, digits and -_., beginning with a letter, a \
             digit or _"
        )))
    }

    /// The table that it is a subset of.
    #[must_use]
    pub const fn table(&self) -> &TableName {
        &self.table
    }

    /// Its name within the table.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

impl FromStr for ViewName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.split_once("/authorizedViews/") {
            Some((table, id)) => Self::new(table.parse()?, id),
            None => Err(Error::invalid(format!(
                "invalid authorized view name {name:?}: expected projects/P/instances/I/tables/T/authorizedViews/V"
            ))),
        }
    }
}

impl fmt::Display for ViewName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/authorizedViews/{}", self.table, self.id)
    }
}

/// A view with its policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthorizedView {
    /// What it includes.
    pub subset: SubsetView,
    /// While it is on, neither the view nor its table can be deleted.
    pub protection: Protection,
    /// Who has access to what it includes, in addition to those who have access to the table.
    pub policy: Policy,
}

impl AuthorizedView {
    /// A view that this release cannot read: it includes nothing, and grants nothing.
    #[must_use]
    pub fn unreadable() -> Self {
        Self { subset: SubsetView::default(), protection: Protection::On, policy: Policy::default() }
    }
}

/// The columns of a family that a view includes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FamilySubset {
    qualifiers: BTreeSet<Bytes>,
    prefixes: BTreeSet<Bytes>,
    /// Both as ranges of qualifiers, which are ordered as row keys are.
    ranges: RowSet,
}

impl FamilySubset {
    /// The columns with one of these qualifiers, and those whose qualifier begins with one of these prefixes.
    #[must_use]
    pub fn new(qualifiers: impl IntoIterator<Item = Bytes>, prefixes: impl IntoIterator<Item = Bytes>) -> Self {
        let (qualifiers, prefixes): (BTreeSet<_>, BTreeSet<_>) =
            (qualifiers.into_iter().collect(), prefixes.into_iter().collect());
        let single = qualifiers.iter().map(|qualifier| KeyRange::single(RowKey::new(qualifier.clone())));
        let ranges = single.chain(prefixes.iter().map(|prefix| KeyRange::prefix(prefix))).collect();
        Self { qualifiers, prefixes, ranges }
    }

    /// Single qualifiers, ascending.
    pub fn qualifiers(&self) -> impl Iterator<Item = &Bytes> {
        self.qualifiers.iter()
    }

    /// Prefixes of qualifiers, ascending.
    pub fn prefixes(&self) -> impl Iterator<Item = &Bytes> {
        self.prefixes.iter()
    }

    /// Whether every column of the family is included.
    fn is_whole(&self) -> bool {
        self.prefixes.contains(&Bytes::new())
    }
}

/// What a view includes of its table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SubsetView {
    row_prefixes: BTreeSet<Bytes>,
    rows: RowSet,
    families: BTreeMap<FamilyName, FamilySubset>,
}

impl SubsetView {
    /// These columns of the rows that begin with one of the prefixes. Without a prefix there is no row in it.
    #[must_use]
    pub fn new(
        row_prefixes: impl IntoIterator<Item = Bytes>,
        families: impl IntoIterator<Item = (FamilyName, FamilySubset)>,
    ) -> Self {
        let row_prefixes: BTreeSet<Bytes> = row_prefixes.into_iter().collect();
        let rows = row_prefixes.iter().map(|prefix| KeyRange::prefix(prefix)).collect();
        Self { row_prefixes, rows, families: families.into_iter().collect() }
    }

    /// Prefixes of its rows, ascending.
    pub fn row_prefixes(&self) -> impl Iterator<Item = &Bytes> {
        self.row_prefixes.iter()
    }

    /// Its families with their columns, by name.
    pub fn families(&self) -> impl Iterator<Item = (&FamilyName, &FamilySubset)> {
        self.families.iter()
    }

    /// Its rows.
    #[must_use]
    pub const fn rows(&self) -> &RowSet {
        &self.rows
    }

    /// Whether it includes cells of this row.
    #[must_use]
    pub fn includes_row(&self, row: &RowKey) -> bool {
        self.rows.contains(row.as_bytes())
    }

    /// Whether it includes this column, in the rows that it includes.
    #[must_use]
    pub fn includes_column(&self, family: &str, qualifier: &[u8]) -> bool {
        self.families.get(family).is_some_and(|columns| columns.ranges.contains(qualifier))
    }

    /// Whether it includes all columns of all families of a table.
    #[must_use]
    pub fn includes_all_columns(&self, schema: &TableSchema) -> bool {
        schema.families.iter().all(|family| self.families.get(family.name.as_str()).is_some_and(FamilySubset::is_whole))
    }

    /// Whether a mutation of an included row changes nothing outside. A family is deleted only if all of its columns are included; a row
    /// never, because it may get families that are not.
    #[must_use]
    pub fn permits(&self, mutation: &Mutation) -> bool {
        match mutation {
            Mutation::SetCell { family, qualifier, .. }
            | Mutation::AddToCell { family, qualifier, .. }
            | Mutation::MergeToCell { family, qualifier, .. }
            | Mutation::DeleteColumn { family, qualifier, .. } => self.includes_column(family, qualifier),
            Mutation::DeleteFamily { family } => self.families.get(family.as_str()).is_some_and(FamilySubset::is_whole),
            Mutation::DeleteRow => false,
        }
    }

    /// A filter that passes the included columns of these families, each cell once. It does not look at rows: see [`Self::rows`].
    #[must_use]
    pub fn filter(&self, readable: &FamilySet) -> Filter {
        let readable = self.families.iter().filter(|(name, _columns)| readable.contains(name.as_str()));
        let (whole, partial): (Vec<_>, Vec<_>) = readable.partition(|(_name, columns)| columns.is_whole());
        let mut members = family_filters(whole.into_iter().map(|(name, _columns)| name));
        for (name, columns) in partial {
            members.extend(columns.ranges.ranges().iter().map(|range| Filter::ColumnRange {
                family: name.as_str().to_owned(),
                start: Bound::Included(range.start().bytes().clone()),
                end: range.end().map_or(Bound::Unbounded, |end| Bound::Excluded(end.bytes().clone())),
            }));
        }
        any_of(members)
    }
}

/// A filter that passes the cells of these families.
#[must_use]
pub fn families_filter<'a>(names: impl Iterator<Item = &'a FamilyName>) -> Filter {
    any_of(family_filters(names))
}

/// The filter that passes what any of these passes; none of them passes what another one does.
fn any_of(mut members: Vec<Filter>) -> Filter {
    match (members.pop(), members.is_empty()) {
        (None, _) => Filter::BlockAll,
        (Some(only), true) => only,
        (Some(last), false) => {
            members.push(last);
            Filter::Interleave(members)
        }
    }
}

/// Filters that together pass the cells of these families, each once.
fn family_filters<'a>(names: impl Iterator<Item = &'a FamilyName>) -> Vec<Filter> {
    let mut expressions: Vec<String> = Vec::new();
    for name in names {
        // Of the characters of names only the point means something else in an expression.
        let name = name.as_str().replace('.', "\\.");
        match expressions.last_mut() {
            Some(last) if last.len() + name.len() < REGEX_BYTES_MAX => {
                last.push('|');
                last.push_str(&name);
            }
            _ => expressions.push(name),
        }
    }
    expressions.into_iter().map(|names| Filter::FamilyNameRegex(names.into())).collect()
}

#[cfg(test)]
mod tests;

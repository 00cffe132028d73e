//! What a caller may touch of a table, and how requests are restricted to it. Pure.
//!
//! Two things restrict: lists of families, and the authorized view that a request names. A call through a view touches what both permit.
//!
//! | | unreadable families | outside of the view |
//! |---|---|---|
//! | rows of a read | | are not read |
//! | cells, predicates | a filter in front of the caller's own removes them | the same filter |
//! | samples | refused | of the view's own ranges, unless the view has all columns |
//! | writes | refused | refused |

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ebla_model::access::{AuthorizedView, FamilyRights, FamilySet, Permission, ViewName, families_filter};
use ebla_model::filter::FILTER_BYTES_MAX;
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::mutation::Mutation;
use ebla_model::rmw::Rule;
use ebla_model::{Error, KeyRange, Reason, RowKey, RowSet, TableName, TableSchema};
use ebla_proto::convert::filter::chain_to_bytes;
use ebla_proto::convert::{filter_to_bytes, mutation_from_bytes};
use sha2::{Digest as _, Sha256};

use super::denied;
use crate::front::samples::{SampleKeys, SampleSpec};

/// What a caller may touch of a table. By default everything.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Scope {
    rights: FamilyRights,
    view: Option<ViewScope>,
}

/// The view through which a caller sees a table.
#[derive(Clone, PartialEq, Debug)]
struct ViewScope {
    name: ViewName,
    view: Arc<AuthorizedView>,
    has_all_columns: bool,
}

impl Scope {
    /// All rows, and these families.
    pub(super) const fn of_table(rights: FamilyRights) -> Self {
        Self { rights, view: None }
    }

    /// What a view of the table includes of these families.
    pub(super) fn of_view(
        rights: FamilyRights,
        name: ViewName,
        view: Arc<AuthorizedView>,
        schema: &TableSchema,
    ) -> Self {
        let has_all_columns = view.subset.includes_all_columns(schema);
        Self { rights, view: Some(ViewScope { name, view, has_all_columns }) }
    }

    /// Whether nothing that a read passes over is hidden from the caller.
    pub(super) const fn sees_everything(&self) -> bool {
        self.rights.readable.is_all() && self.view.is_none()
    }

    /// Whether everything may be touched.
    pub(super) fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a read returns the same with both.
    pub(super) fn reads_as(&self, other: &Self) -> bool {
        self.rights.readable == other.rights.readable && self.view == other.view
    }

    /// Those of the rows that may be read.
    pub(super) fn rows(&self, rows: RowSet) -> RowSet {
        match &self.view {
            Some(scope) => rows.intersect(scope.view.subset.rows()),
            None => rows,
        }
    }

    /// The filter that passes what `filter` passes of the cells that may be read. The caller's filter is not decoded: an invalid one is refused
    /// by the tablet, inside of a chain too.
    ///
    /// # Errors
    /// `InvalidArgument` when a filter is too large, before it is copied.
    pub(super) fn filter(&self, filter: Option<&Bytes>) -> Result<Option<Bytes>, Error> {
        let size = filter.map_or(0, Bytes::len);
        if size > FILTER_BYTES_MAX {
            return Err(too_large(size, ""));
        }
        let own = match (&self.view, &self.rights.readable) {
            (Some(scope), readable) => scope.view.subset.filter(readable),
            (None, FamilySet::Only(names)) => families_filter(names.iter()),
            (None, FamilySet::All) => return Ok(filter.cloned()),
        };
        let own = filter_to_bytes(&own);
        if size + own.len() > FILTER_BYTES_MAX {
            return Err(too_large(size + own.len(), " with what access control adds"));
        }
        Ok(Some(match filter {
            Some(filter) => chain_to_bytes(&[own, filter.clone()]),
            None => own,
        }))
    }

    /// Checks that a row may be written.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(super) fn check_row(&self, row: &RowKey) -> Result<(), Error> {
        match &self.view {
            Some(scope) if !scope.view.subset.includes_row(row) => Err(scope.outside("the row")),
            _ => Ok(()),
        }
    }

    /// The families that mutations name. They are decoded only if something is not writable.
    ///
    /// # Errors
    /// `PermissionDenied`; `InvalidArgument` when a mutation does not decode.
    pub(super) fn check_mutations(&self, mutations: &[Bytes], table: &TableName) -> Result<BTreeSet<String>, Error> {
        let mut families = BTreeSet::new();
        if self.rights.writable.is_all() && self.view.is_none() {
            return Ok(families);
        }
        for mutation in mutations {
            let mutation = mutation_from_bytes(mutation)?;
            if let Some(scope) = &self.view {
                scope.check_mutation(&mutation)?;
            }
            families.extend(self.check_family_of(mutation, table)?);
        }
        Ok(families)
    }

    fn check_family_of(&self, mutation: Mutation, table: &TableName) -> Result<Option<String>, Error> {
        match mutation {
            Mutation::SetCell { family, .. }
            | Mutation::AddToCell { family, .. }
            | Mutation::MergeToCell { family, .. }
            | Mutation::DeleteColumn { family, .. }
            | Mutation::DeleteFamily { family } => {
                if self.rights.writable.contains(&family) {
                    return Ok(Some(family));
                }
                Err(family_denied(&family, table))
            }
            Mutation::DeleteRow if self.rights.writable.is_all() => Ok(None),
            Mutation::DeleteRow => {
                let message =
                    format!("Table {table}: to delete a row, its caller needs the right to write all column families");
                Err(Error::new(Reason::PermissionDenied, message))
            }
        }
    }

    /// Checks that these families may be read.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(super) fn check_readable<'f>(
        &self,
        mut families: impl Iterator<Item = &'f str>,
        table: &TableName,
    ) -> Result<(), Error> {
        let hidden = families.find(|family| !self.rights.readable.contains(family));
        hidden.map_or(Ok(()), |family| Err(family_denied(family, table)))
    }

    /// Checks that a cell may be read and written.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(super) fn check_rule(&self, rule: &Rule, table: &TableName) -> Result<(), Error> {
        let family = &rule.family;
        if let Some(scope) = &self.view
            && !scope.view.subset.includes_column(family, &rule.qualifier)
        {
            return Err(scope.outside_column(family));
        }
        if self.rights.readable.contains(family) && self.rights.writable.contains(family) {
            return Ok(());
        }
        Err(family_denied(family, table))
    }

    /// Which keys may be samples. Those of tablets, and the sizes between them, depend on all columns.
    ///
    /// # Errors
    /// `PermissionDenied` when a family is unreadable and there is no view.
    pub(super) fn sample(&self, range: KeyRange, table: &TableName) -> Result<SampleSpec, Error> {
        let is_readable = self.rights.readable.is_all();
        let keys = match &self.view {
            None if is_readable => SampleKeys::Tablets,
            None => return Err(denied(Permission::SampleRowKeys, table)),
            Some(scope) if scope.has_all_columns && is_readable => {
                SampleKeys::TabletsWithin(scope.view.subset.rows().clone())
            }
            Some(scope) => SampleKeys::RangesOf(scope.view.subset.rows().clone()),
        };
        Ok(SampleSpec { range, keys })
    }

    /// The token of this caller, for a request for these columns: an answer that is stored under it is given to no other caller, and to no
    /// request for other families or through another view. `owner`: the name of the caller; `None`: access control is off.
    pub(super) fn owned_token(
        &self,
        token: Option<IdempotencyToken>,
        owner: Option<&str>,
        columns: &BTreeSet<(&str, &[u8])>,
    ) -> Option<IdempotencyToken> {
        let token = token?;
        Some(IdempotencyToken { token: self.owned_bytes(&token.token, owner, columns), ..token })
    }

    /// As [`Self::owned_token`], of the bytes of a token.
    pub(super) fn owned_bytes(&self, token: &Bytes, owner: Option<&str>, columns: &BTreeSet<(&str, &[u8])>) -> Bytes {
        if owner.is_none() && self.view.is_none() {
            return token.clone();
        }
        let mut hash = Sha256::new();
        let mut update = |part: &[u8]| {
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        };
        update(owner.unwrap_or_default().as_bytes());
        match &self.view {
            Some(scope) => {
                update(scope.name.to_string().as_bytes());
                columns.iter().flat_map(|(family, qualifier)| [family.as_bytes(), qualifier]).for_each(&mut update);
            }
            None => {
                let families: BTreeSet<_> = columns.iter().map(|(family, _qualifier)| *family).collect();
                families.into_iter().map(str::as_bytes).for_each(&mut update);
            }
        }
        update(token.as_ref());
        Bytes::copy_from_slice(&hash.finalize())
    }
}

impl ViewScope {
    fn check_mutation(&self, mutation: &Mutation) -> Result<(), Error> {
        if self.view.subset.permits(mutation) {
            return Ok(());
        }
        Err(match mutation {
            Mutation::SetCell { family, .. }
            | Mutation::AddToCell { family, .. }
            | Mutation::MergeToCell { family, .. }
            | Mutation::DeleteColumn { family, .. } => self.outside_column(family),
            Mutation::DeleteFamily { family } => self.outside(&format!("a part of column family {family}")),
            Mutation::DeleteRow => self.outside("a family that the deleted row has or gets"),
        })
    }

    /// The refusal is the same for a family that does not exist.
    fn outside_column(&self, family: &str) -> Error {
        self.outside(&format!("a column of column family {family}"))
    }

    fn outside(&self, what: &str) -> Error {
        Error::new(Reason::PermissionDenied, format!("{what} is outside the Authorized View {}", self.name))
    }
}

fn too_large(size: usize, of: &str) -> Error {
    Error::invalid(format!("Row filter exceeds maximum size: {size} bytes{of}, the limit is {FILTER_BYTES_MAX}"))
}

/// The refusal of a family. It is the same for one that exists and for one that does not.
fn family_denied(family: &str, table: &TableName) -> Error {
    let message = format!("Table {table}: access to column family {family} is denied, or the family does not exist");
    Error::new(Reason::PermissionDenied, message)
}

#[cfg(test)]
mod tests;

//! Data calls: what is checked, and how a request is restricted to what its caller may touch.
//!
//! | call | permission for the table | families |
//! |---|---|---|
//! | ReadRows | readRows | unreadable ones are filtered out, before the caller's filter |
//! | SampleRowKeys | sampleRowKeys | all must be readable: sizes and keys depend on all |
//! | MutateRow, MutateRows | mutateRows | each one named must be writable; to delete a row, all |
//! | CheckAndMutateRow | mutateRows, readRows | the predicate sees readable ones; mutations as above |
//! | ReadModifyWriteRow | mutateRows, readRows | each one named must be readable and writable |
//!
//! A call through an authorized view needs the permissions for views (`bigtable.authorizedViews.…`), which the policy of the view grants too, and
//! touches nothing outside of it (`scope.rs`), also while access control is off.
//!
//! A call that writes is refused as a whole before anything is applied. Idempotency tokens belong to their callers and, for a call that
//! returns cells, to its families: a stored answer is never given to another caller, nor to a request for other families or
//! through another view.

use std::collections::BTreeSet;

use ebla_client::{Check, Modify, RowWrite};
use ebla_model::access::{FamilyRights, Permission};
use ebla_model::{Error, KeyRange, Reason, TableId, TableName};
use ebla_proto::convert::rule_from_bytes;
use ebla_routing::{ChubbyDirectory, TablePolicies};
use ebla_runtime::trace::{self, Stage};

use super::audit::Decision;
use super::scope::Scope;
use super::{AccessControl, Caller, Enforced, KnownCaller, view_not_found};
use crate::front::samples::SampleSpec;
use crate::front::validate::{Named, ReadSpec, Validated};

/// A request that its caller may send, restricted to what the caller may touch. There is no other way to the content of a valid request.
#[derive(Debug)]
pub(in crate::front) struct Authorized<T> {
    named: Named,
    request: T,
    permit: Permit,
}

impl<T> Authorized<T> {
    /// The name of the table.
    pub(in crate::front) const fn table(&self) -> &TableName {
        &self.named.table
    }

    /// The request.
    pub(in crate::front) const fn request(&self) -> &T {
        &self.request
    }

    /// The request, for a table of this id.
    ///
    /// # Errors
    /// `Unavailable` when the decision was about another table of the same name, or before the table was known: the caller retries.
    pub(in crate::front) fn check(&self, table: TableId) -> Result<(), Error> {
        self.permit.scope_of(table).map(|_scope| ())
    }

    /// Whether the caller sees all that the request reads; otherwise answers must not say what was passed over.
    pub(in crate::front) fn sees_everything(&self) -> bool {
        self.permit.0.as_ref().is_none_or(|granted| granted.scope.sees_everything())
    }

    /// The request alone, after the checks.
    pub(in crate::front) fn into_request(self) -> T {
        self.request
    }
}

/// A proof that a call was checked. Only this module makes it.
#[derive(Clone, Debug)]
pub(in crate::front) struct Permit(Option<Granted>);

/// What was granted to a caller.
#[derive(Clone, Debug)]
struct Granted {
    /// The table that was decided about; `None`: it was not known.
    table: Option<TableId>,
    scope: Scope,
}

/// A call of the data API, and the permissions that it needs.
#[derive(Debug)]
pub(super) struct DataCall {
    method: &'static str,
    /// For a table.
    of_table: &'static [Permission],
    /// For an authorized view.
    of_view: &'static [Permission],
}

pub(super) const READ: DataCall =
    DataCall { method: "ReadRows", of_table: &[Permission::ReadRows], of_view: &[Permission::ReadViewRows] };
pub(super) const SAMPLE: DataCall = DataCall {
    method: "SampleRowKeys",
    of_table: &[Permission::SampleRowKeys],
    of_view: &[Permission::SampleViewRowKeys],
};
const MUTATE_ROW: DataCall =
    DataCall { method: "MutateRow", of_table: &[Permission::MutateRows], of_view: &[Permission::MutateViewRows] };
pub(super) const MUTATE_ROWS: DataCall = DataCall { method: "MutateRows", ..MUTATE_ROW };
pub(super) const CHECK: DataCall = DataCall {
    method: "CheckAndMutateRow",
    of_table: &[Permission::MutateRows, Permission::ReadRows],
    of_view: &[Permission::MutateViewRows, Permission::ReadViewRows],
};
pub(super) const MODIFY: DataCall = DataCall { method: "ReadModifyWriteRow", ..CHECK };

impl AccessControl {
    /// A read of what the caller may read.
    ///
    /// # Errors
    /// `PermissionDenied`; `InvalidArgument` when the filter is too large.
    pub(in crate::front) async fn read(
        &self,
        caller: &Caller,
        read: Validated<ReadSpec>,
    ) -> Result<Authorized<ReadSpec>, Error> {
        let restrict = |read: ReadSpec, scope: &Scope, _owner: Option<&str>| {
            let filter = scope.filter(read.filter())?;
            Ok((read.with_filter(filter).with_rows(|rows| scope.rows(rows)), BTreeSet::new()))
        };
        self.authorize(caller, &READ, read, restrict).await
    }

    /// Samples of what the caller may read.
    ///
    /// # Errors
    /// `PermissionDenied`, also when a family of the table is unreadable: keys and sizes depend on all.
    pub(in crate::front) async fn sample(
        &self,
        caller: &Caller,
        sample: Validated<KeyRange>,
    ) -> Result<Authorized<SampleSpec>, Error> {
        let table = sample.table().clone();
        let restrict =
            |range: KeyRange, scope: &Scope, _owner: Option<&str>| Ok((scope.sample(range, &table)?, BTreeSet::new()));
        self.authorize(caller, &SAMPLE, sample, restrict).await
    }

    /// A write of families that the caller may write.
    ///
    /// # Errors
    /// `PermissionDenied`; `InvalidArgument` when a mutation is invalid.
    pub(in crate::front) async fn mutate_row(
        &self,
        caller: &Caller,
        write: Validated<RowWrite>,
    ) -> Result<Authorized<RowWrite>, Error> {
        let table = write.table().clone();
        let restrict =
            |write: RowWrite, scope: &Scope, owner: Option<&str>| restricted_write(write, scope, owner, &table);
        self.authorize(caller, &MUTATE_ROW, write, restrict).await
    }

    /// Writes of families that the caller may write. One family that it may not write refuses the whole call.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(in crate::front) async fn mutate_rows(
        &self,
        caller: &Caller,
        writes: Validated<Vec<Result<RowWrite, Error>>>,
    ) -> Result<Authorized<Vec<Result<RowWrite, Error>>>, Error> {
        let table = writes.table().clone();
        let restrict = |writes: Vec<Result<RowWrite, Error>>, scope: &Scope, owner: Option<&str>| {
            let mut all = BTreeSet::new();
            let mut checked = Vec::with_capacity(writes.len());
            for write in writes {
                let write = match write.and_then(|write| restricted_write(write, scope, owner, &table)) {
                    Ok((write, families)) => {
                        all.extend(families);
                        Ok(write)
                    }
                    Err(error) if error.reason == Reason::PermissionDenied => return Err(error),
                    // What cannot be checked is not sent; it is the outcome of this row alone.
                    Err(error) => Err(error),
                };
                checked.push(write);
            }
            Ok((checked, all))
        };
        self.authorize(caller, &MUTATE_ROWS, writes, restrict).await
    }

    /// A conditional write whose predicate sees what the caller may read, and which writes what the caller may write.
    ///
    /// # Errors
    /// `PermissionDenied`; `InvalidArgument` when a mutation is invalid, or the filter is too large.
    pub(in crate::front) async fn check_and_mutate(
        &self,
        caller: &Caller,
        check: Validated<Check>,
    ) -> Result<Authorized<Check>, Error> {
        let table = check.table().clone();
        let restrict = |mut check: Check, scope: &Scope, owner: Option<&str>| {
            scope.check_row(&check.row)?;
            let mut families = scope.check_mutations(&check.then, &table)?;
            families.extend(scope.check_mutations(&check.otherwise, &table)?);
            check.predicate = scope.filter(check.predicate.as_ref())?;
            check.token = scope.owned_token(check.token, owner, &BTreeSet::new());
            Ok((check, families))
        };
        self.authorize(caller, &CHECK, check, restrict).await
    }

    /// A read-modify-write of families that the caller may read and write.
    ///
    /// # Errors
    /// `PermissionDenied`; `InvalidArgument` when a rule is invalid.
    pub(in crate::front) async fn modify(
        &self,
        caller: &Caller,
        modify: Validated<Modify>,
    ) -> Result<Authorized<Modify>, Error> {
        let table = modify.table().clone();
        let restrict = |mut modify: Modify, scope: &Scope, owner: Option<&str>| {
            if owner.is_none() && scope.is_everything() {
                return Ok((modify, BTreeSet::new()));
            }
            scope.check_row(&modify.row)?;
            let rules = modify.rules.iter().map(rule_from_bytes).collect::<Result<Vec<_>, Error>>()?;
            rules.iter().try_for_each(|rule| scope.check_rule(rule, &table))?;
            // The stored answer has the columns of the rules.
            let columns = rules.iter().map(|rule| (rule.family.as_str(), rule.qualifier.as_ref())).collect();
            modify.token = scope.owned_token(modify.token, owner, &columns);
            Ok((modify, rules.into_iter().map(|rule| rule.family).collect()))
        };
        self.authorize(caller, &MODIFY, modify, restrict).await
    }

    /// Checks the permissions for what the request names, then restricts it. `restrict` gets the name of the caller, if access
    /// control is on, and returns the families that the request names.
    async fn authorize<T, R>(
        &self,
        caller: &Caller,
        call: &DataCall,
        valid: Validated<T>,
        restrict: impl FnOnce(T, &Scope, Option<&str>) -> Result<(R, BTreeSet<String>), Error>,
    ) -> Result<Authorized<R>, Error> {
        let enforced = self.enforced(caller)?;
        let named = valid.named().clone();
        let decided = match trace::waiting(Stage::Access, self.permit(enforced, &named, call)).await {
            Ok(permit) => {
                let request = valid.into_request(&permit);
                let owner = enforced.map(|(_enforced, caller)| caller.identity.name().to_string());
                permit
                    .restrict(request, owner.as_deref(), restrict)
                    .map(|(request, families)| (request, permit, families))
            }
            Err(error) => Err(error),
        };
        if let Some((enforced, caller)) = enforced {
            let families: Vec<_> =
                decided.as_ref().map(|(.., families)| families.iter().cloned().collect()).unwrap_or_default();
            let resource = named.to_string();
            enforced.audit.record_data(caller, call.method, &resource, &families, Decision::of(&decided));
        }
        decided.map(|(request, permit, _families)| Authorized { named, request, permit })
    }

    async fn permit(
        &self,
        enforced: Option<(&Enforced, &KnownCaller)>,
        named: &Named,
        call: &DataCall,
    ) -> Result<Permit, Error> {
        if let Some((enforced, caller)) = enforced {
            return enforced.permit(caller, named, call).await;
        }
        // Everything is permitted; a view is a view all the same.
        let Some(view) = &named.view else { return Ok(Permit(None)) };
        let policies = self.directory()?.table_policies(&named.table, Some(view)).await?;
        Permit::of(named, &policies, FamilyRights::default())
    }

    /// What checks a read while it runs; `None`: nothing about it can change.
    pub(in crate::front) fn guard<T>(&self, caller: &Caller, read: &Authorized<T>) -> Option<ReadGuard> {
        read.permit.0.as_ref()?;
        // Before the first check, which is made with policies that are as new or newer.
        let seen = None;
        let (named, permit) = (read.named.clone(), read.permit.clone());
        Some(ReadGuard { access: self.clone(), caller: caller.clone(), named, permit, seen })
    }

    fn directory(&self) -> Result<&ChubbyDirectory, Error> {
        let missing = || Error::unimplemented("authorized views are served by the servers of a cluster only");
        self.directory.as_ref().ok_or_else(missing)
    }
}

/// A write of one row, if the caller may send it, and the families that it names.
fn restricted_write(
    mut write: RowWrite,
    scope: &Scope,
    owner: Option<&str>,
    table: &TableName,
) -> Result<(RowWrite, BTreeSet<String>), Error> {
    scope.check_row(&write.row)?;
    let families = scope.check_mutations(&write.mutations, table)?;
    write.token = scope.owned_token(write.token, owner, &BTreeSet::new());
    Ok((write, families))
}

impl Permit {
    /// The permit for what a request names, of a caller with these rights for the families of the table.
    fn of(named: &Named, policies: &TablePolicies, rights: FamilyRights) -> Result<Self, Error> {
        let schema = policies.table.as_ref().map(|(schema, _access)| schema);
        let scope = match (&named.view, &policies.view, schema) {
            (None, ..) => Scope::of_table(rights),
            (Some(name), Some(view), Some(schema)) => {
                Scope::of_view(rights, name.clone(), std::sync::Arc::clone(view), schema)
            }
            (Some(name), ..) => return Err(view_not_found(name)),
        };
        Ok(Self(Some(Granted { table: schema.map(|schema| schema.table), scope })))
    }

    /// What was granted of the table with this id; `None`: everything, without a check.
    ///
    /// # Errors
    /// As [`Authorized::check`].
    pub(super) fn scope_of(&self, table: TableId) -> Result<Option<&Scope>, Error> {
        match &self.0 {
            Some(granted) if granted.table != Some(table) => Err(Error::new(
                Reason::Unavailable,
                "the table was created a moment ago, and its policies are not known here yet; retry",
            )),
            granted => Ok(granted.as_ref().map(|granted| &granted.scope)),
        }
    }

    /// The restricted request; the same one if everything is permitted without a check.
    fn restrict<T, R>(
        &self,
        request: T,
        owner: Option<&str>,
        restrict: impl FnOnce(T, &Scope, Option<&str>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        restrict(request, self.0.as_ref().map_or(&Scope::default(), |granted| &granted.scope), owner)
    }
}

impl Enforced {
    pub(super) async fn permit(&self, caller: &KnownCaller, named: &Named, call: &DataCall) -> Result<Permit, Error> {
        self.check_expiry(caller)?;
        let permissions = if named.view.is_some() { call.of_view } else { call.of_table };
        let policies = self.granted_policies(caller, named, permissions).await?;
        let rights = match &policies.table {
            Some((schema, _access)) => self.rules_of(&policies).families(schema, &caller.identity),
            None => FamilyRights::default(),
        };
        Permit::of(named, &policies, rights)
    }
}

/// Checks a read while it runs: a scan of hours must not outlive a right of its caller, nor the view that it names.
#[derive(Debug)]
pub(in crate::front) struct ReadGuard {
    access: AccessControl,
    caller: Caller,
    named: Named,
    permit: Permit,
    /// The number of changes of the directory at the last check.
    seen: Option<u64>,
}

impl ReadGuard {
    /// Called before each message is sent.
    ///
    /// # Errors
    /// `Unauthenticated` when the token has expired; `PermissionDenied` when the right to read was lost; `Unavailable` when something else
    /// than before is readable: the read is repeated from where it ended.
    pub(in crate::front) async fn check(&mut self) -> Result<(), Error> {
        let enforced = self.access.enforced(&self.caller)?;
        if let Some((enforced, caller)) = enforced {
            enforced.check_expiry(caller)?;
        }
        let changes = *self.access.directory()?.changes().borrow();
        if self.seen == Some(changes) {
            return Ok(());
        }
        let now = self.access.permit(enforced, &self.named, &READ).await?;
        match (&now.0, &self.permit.0) {
            (Some(now), Some(before)) if now.table == before.table && now.scope.reads_as(&before.scope) => {
                self.seen = Some(changes);
                Ok(())
            }
            _ => Err(Error::new(
                Reason::Unavailable,
                "what the caller may read of the table has changed; read again from here",
            )),
        }
    }
}

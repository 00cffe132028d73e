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
//! A call that writes is refused as a whole before anything is applied. Idempotency tokens belong to their callers and, for a call that
//! returns cells, to its families: a stored answer is never given to another caller, nor to a request for other families.

use std::collections::BTreeSet;

use bytes::Bytes;
use ebla_client::{Check, Modify, RowWrite};
use ebla_model::access::{FamilyRights, FamilySet, Permission};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::mutation::Mutation;
use ebla_model::{Error, FamilyName, Filter, KeyRange, Reason, TableId, TableName};
use ebla_proto::convert::filter::chain_to_bytes;
use ebla_proto::convert::{filter_to_bytes, mutation_from_bytes, rule_from_bytes};
use sha2::{Digest as _, Sha256};

use super::audit::Decision;
use super::{AccessControl, Caller, Enforced, KnownCaller, denied};
use crate::front::validate::{ReadSpec, Validated};

/// The longest regular expression of family names, in bytes; more names need several. The compiled form is bounded.
const REGEX_BYTES_MAX: usize = 1_024;

/// A request that its caller may send, restricted to what the caller may touch. There is no other way to the content of a valid request.
#[derive(Debug)]
pub(in crate::front) struct Authorized<T> {
    table: TableName,
    request: T,
    permit: Permit,
}

impl<T> Authorized<T> {
    /// The name of the table.
    pub(in crate::front) const fn table(&self) -> &TableName {
        &self.table
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
        match &self.permit.0 {
            Some(granted) if granted.table != Some(table) => Err(Error::new(
                Reason::Unavailable,
                "the table was created a moment ago, and its policies are not known here yet; retry",
            )),
            _ => Ok(()),
        }
    }

    /// Whether the caller sees all that the request reads; otherwise answers must not say what was passed over.
    pub(in crate::front) fn sees_everything(&self) -> bool {
        self.permit.0.as_ref().is_none_or(|granted| granted.rights.readable.is_all())
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
    rights: FamilyRights,
}

impl Permit {
    /// The rights, unless everything is permitted without a check.
    fn rights(&self) -> Option<&FamilyRights> {
        self.0.as_ref().map(|granted| &granted.rights)
    }
}

impl AccessControl {
    /// A read of what the caller may read.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(in crate::front) async fn read(
        &self,
        caller: &Caller,
        read: Validated<ReadSpec>,
    ) -> Result<Authorized<ReadSpec>, Error> {
        let restrict = |read: ReadSpec, rights: &FamilyRights, _caller: &KnownCaller| {
            let filter = restricted(read.filter(), &rights.readable);
            Ok((read.with_filter(filter), BTreeSet::new()))
        };
        self.authorize(caller, "ReadRows", read, &[Permission::ReadRows], restrict).await
    }

    /// Samples of a table of which the caller may read everything.
    ///
    /// # Errors
    /// `PermissionDenied`.
    pub(in crate::front) async fn sample(
        &self,
        caller: &Caller,
        sample: Validated<KeyRange>,
    ) -> Result<Authorized<KeyRange>, Error> {
        let table = sample.table().clone();
        let restrict = |range: KeyRange, rights: &FamilyRights, _caller: &KnownCaller| {
            if rights.readable.is_all() {
                return Ok((range, BTreeSet::new()));
            }
            // Keys and sizes depend on families that the caller cannot read.
            Err(denied(Permission::SampleRowKeys, &table))
        };
        self.authorize(caller, "SampleRowKeys", sample, &[Permission::SampleRowKeys], restrict).await
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
        let restrict = |mut write: RowWrite, rights: &FamilyRights, caller: &KnownCaller| {
            let families = check_mutations(&write.mutations, rights, &table)?;
            write.token = owned_token(write.token, caller, &BTreeSet::new());
            Ok((write, families))
        };
        self.authorize(caller, "MutateRow", write, &[Permission::MutateRows], restrict).await
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
        let restrict = |writes: Vec<Result<RowWrite, Error>>, rights: &FamilyRights, caller: &KnownCaller| {
            let mut all = BTreeSet::new();
            let mut checked = Vec::with_capacity(writes.len());
            for write in writes {
                let write = match write {
                    Ok(mut write) => match check_mutations(&write.mutations, rights, &table) {
                        Ok(families) => {
                            all.extend(families);
                            write.token = owned_token(write.token, caller, &BTreeSet::new());
                            Ok(write)
                        }
                        Err(error) if error.reason == Reason::PermissionDenied => return Err(error),
                        // What cannot be checked is not sent; it is the outcome of this row alone.
                        Err(error) => Err(error),
                    },
                    Err(error) => Err(error),
                };
                checked.push(write);
            }
            Ok((checked, all))
        };
        self.authorize(caller, "MutateRows", writes, &[Permission::MutateRows], restrict).await
    }

    /// A conditional write whose predicate sees what the caller may read, and which writes what the caller may write.
    ///
    /// # Errors
    /// `PermissionDenied`; `InvalidArgument` when a mutation is invalid.
    pub(in crate::front) async fn check_and_mutate(
        &self,
        caller: &Caller,
        check: Validated<Check>,
    ) -> Result<Authorized<Check>, Error> {
        let table = check.table().clone();
        let restrict = |mut check: Check, rights: &FamilyRights, caller: &KnownCaller| {
            let mut families = check_mutations(&check.then, rights, &table)?;
            families.extend(check_mutations(&check.otherwise, rights, &table)?);
            check.predicate = restricted(check.predicate.as_ref(), &rights.readable);
            check.token = owned_token(check.token, caller, &BTreeSet::new());
            Ok((check, families))
        };
        self.authorize(caller, "CheckAndMutateRow", check, READ_AND_WRITE, restrict).await
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
        let restrict = |mut modify: Modify, rights: &FamilyRights, caller: &KnownCaller| {
            let mut families = BTreeSet::new();
            for rule in &modify.rules {
                let family = rule_from_bytes(rule)?.family;
                if !rights.readable.contains(&family) || !rights.writable.contains(&family) {
                    return Err(family_denied(&family, &table));
                }
                families.insert(family);
            }
            modify.token = owned_token(modify.token, caller, &families);
            Ok((modify, families))
        };
        self.authorize(caller, "ReadModifyWriteRow", modify, READ_AND_WRITE, restrict).await
    }

    /// Checks the permissions for the table, then restricts the request. `restrict` returns the families that the request names.
    async fn authorize<T>(
        &self,
        caller: &Caller,
        method: &'static str,
        valid: Validated<T>,
        permissions: &[Permission],
        restrict: impl FnOnce(T, &FamilyRights, &KnownCaller) -> Result<(T, BTreeSet<String>), Error>,
    ) -> Result<Authorized<T>, Error> {
        let Some((enforced, caller)) = self.enforced(caller)? else {
            let permit = Permit(None);
            let (table, request) = valid.into_parts(&permit);
            return Ok(Authorized { table, request, permit });
        };
        let table = valid.table().clone();
        let decided = match enforced.permit(caller, &table, permissions).await {
            Ok(permit) => {
                let (table, request) = valid.into_parts(&permit);
                let unrestricted = FamilyRights::default();
                restrict(request, permit.rights().unwrap_or(&unrestricted), caller)
                    .map(|(request, families)| (Authorized { table, request, permit }, families))
            }
            Err(error) => Err(error),
        };
        let families: Vec<_> =
            decided.as_ref().map(|(_, families)| families.iter().cloned().collect()).unwrap_or_default();
        enforced.audit.record_data(caller, method, table.as_str(), &families, Decision::of(&decided));
        decided.map(|(authorized, _families)| authorized)
    }

    /// What checks a read while it runs; `None`: access control is off.
    pub(in crate::front) fn guard<T>(&self, caller: &Caller, read: &Authorized<T>) -> Option<ReadGuard> {
        let (Some(enforced), Caller::Known(caller)) = (&self.enforced, caller) else { return None };
        // Before the first check, which is made with policies that are as new or newer.
        let seen = None;
        let (caller, table, permit) = (caller.clone(), read.table.clone(), read.permit.clone());
        Some(ReadGuard { enforced: std::sync::Arc::clone(enforced), caller, table, permit, seen })
    }
}

/// The permissions of a call that reads and writes.
const READ_AND_WRITE: &[Permission] = &[Permission::MutateRows, Permission::ReadRows];

impl Enforced {
    async fn permit(
        &self,
        caller: &KnownCaller,
        table: &TableName,
        permissions: &[Permission],
    ) -> Result<Permit, Error> {
        self.check_expiry(caller)?;
        let policies = self.granted_policies(caller, table, permissions).await?;
        let rules = self.rules_of(&policies);
        let granted = match &policies.table {
            Some((schema, _access)) => {
                Granted { table: Some(schema.table), rights: rules.families(schema, &caller.identity) }
            }
            None => Granted { table: None, rights: FamilyRights::default() },
        };
        Ok(Permit(Some(granted)))
    }
}

/// Checks a read while it runs: a scan of hours must not outlive a right of its caller.
#[derive(Debug)]
pub(in crate::front) struct ReadGuard {
    enforced: std::sync::Arc<Enforced>,
    caller: KnownCaller,
    table: TableName,
    permit: Permit,
    /// The number of changes of the directory at the last check.
    seen: Option<u64>,
}

impl ReadGuard {
    /// Called before each message is sent.
    ///
    /// # Errors
    /// `Unauthenticated` when the token has expired; `PermissionDenied` when the right to read was lost; `Unavailable` when other families
    /// than before are readable: the read is repeated from where it ended.
    pub(in crate::front) async fn check(&mut self) -> Result<(), Error> {
        self.enforced.check_expiry(&self.caller)?;
        let changes = *self.enforced.directory.changes().borrow();
        if self.seen == Some(changes) {
            return Ok(());
        }
        let now = self.enforced.permit(&self.caller, &self.table, &[Permission::ReadRows]).await?;
        match (&now.0, &self.permit.0) {
            (Some(now), Some(before)) if now.table == before.table && now.rights.readable == before.rights.readable => {
                self.seen = Some(changes);
                Ok(())
            }
            _ => Err(Error::new(
                Reason::Unavailable,
                "access to families of the table has changed; read again from here",
            )),
        }
    }
}

/// The filter that passes what `filter` passes of these families.
fn restricted(filter: Option<&Bytes>, readable: &FamilySet) -> Option<Bytes> {
    let FamilySet::Only(names) = readable else { return filter.cloned() };
    let only = filter_to_bytes(&filter_of(names));
    Some(match filter {
        // The caller's filter is not decoded: an invalid one is refused by the tablet, inside of the chain too.
        Some(filter) => chain_to_bytes(&[only, filter.clone()]),
        None => only,
    })
}

/// A filter that passes the cells of these families.
fn filter_of(names: &BTreeSet<FamilyName>) -> Filter {
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
    let mut filters: Vec<_> = expressions.into_iter().map(|names| Filter::FamilyNameRegex(names.into())).collect();
    match (filters.pop(), filters.is_empty()) {
        (None, _) => Filter::BlockAll,
        (Some(only), true) => only,
        (Some(last), false) => {
            filters.push(last);
            Filter::Interleave(filters)
        }
    }
}

/// The families that mutations name. They are decoded only if there is a family that the caller may not write.
fn check_mutations(mutations: &[Bytes], rights: &FamilyRights, table: &TableName) -> Result<BTreeSet<String>, Error> {
    if rights.writable.is_all() {
        return Ok(BTreeSet::new());
    }
    let mut families = BTreeSet::new();
    for mutation in mutations {
        match mutation_from_bytes(mutation)? {
            Mutation::SetCell { family, .. }
            | Mutation::AddToCell { family, .. }
            | Mutation::MergeToCell { family, .. }
            | Mutation::DeleteColumn { family, .. }
            | Mutation::DeleteFamily { family } => families.insert(family),
            Mutation::DeleteRow => {
                let message =
                    format!("Table {table}: to delete a row, its caller needs the right to write all column families");
                return Err(Error::new(Reason::PermissionDenied, message));
            }
        };
    }
    match families.iter().find(|family| !rights.writable.contains(family)) {
        Some(family) => Err(family_denied(family, table)),
        None => Ok(families),
    }
}

/// The refusal of a family. It is the same for one that exists and for one that does not.
fn family_denied(family: &str, table: &TableName) -> Error {
    let message = format!("Table {table}: access to column family {family} is denied, or the family does not exist");
    Error::new(Reason::PermissionDenied, message)
}

/// The token of this caller, for a request for these families.
fn owned_token(
    token: Option<IdempotencyToken>,
    caller: &KnownCaller,
    families: &BTreeSet<String>,
) -> Option<IdempotencyToken> {
    let token = token?;
    let mut hash = Sha256::new();
    let name = caller.identity.name().to_string();
    let parts = [name.as_str()].into_iter().chain(families.iter().map(String::as_str));
    for part in parts.map(str::as_bytes).chain([token.token.as_ref()]) {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    Some(IdempotencyToken { token: Bytes::copy_from_slice(&hash.finalize()), ..token })
}

#[cfg(test)]
mod tests {
    use ebla_model::CompiledFilter;
    use ebla_proto::convert::filter_from_bytes;

    use super::*;

    fn names(names: &[&str]) -> FamilySet {
        FamilySet::Only(names.iter().map(|name| FamilyName::new(name).unwrap()).collect())
    }

    #[test]
    fn a_restricted_filter_is_a_chain() {
        let filter = filter_to_bytes(&Filter::StripValue);
        assert_eq!(restricted(Some(&filter), &FamilySet::All), Some(filter.clone()));
        assert_eq!(restricted(None, &FamilySet::All), None);
        let decoded = |filter: Option<&Bytes>, readable: FamilySet| {
            filter_from_bytes(&restricted(filter, &readable).unwrap()).unwrap()
        };
        let only = Filter::FamilyNameRegex("a|b\\.c".into());
        assert_eq!(decoded(None, names(&["a", "b.c"])), only);
        assert_eq!(decoded(Some(&filter), names(&["a", "b.c"])), Filter::Chain(vec![only, Filter::StripValue]));
        assert_eq!(decoded(None, names(&[])), Filter::BlockAll);
        assert!(filter_from_bytes(&restricted(Some(&Bytes::from_static(b"\xff")), &names(&["a"])).unwrap()).is_err());
    }

    #[test]
    fn many_long_names_compile() {
        let long: Vec<_> = (0..100).map(|number| format!("{}{number:02}", "x".repeat(62))).collect();
        let long: Vec<_> = long.iter().map(String::as_str).collect();
        let FamilySet::Only(long) = names(&long) else { panic!("some families") };
        assert!(CompiledFilter::compile(filter_of(&long)).is_ok());
    }
}

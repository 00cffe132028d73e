//! Calls of the service of tablets by callers that are no members of the cluster: mounttables.
//!
//! Masters and tablet servers call tablets for others, whose rights a front has checked. A mounttable calls them for itself. It needs the same
//! rights for the table as on the public API, by the name in its certificate:
//!
//! | call | permission for the table | families |
//! |---|---|---|
//! | Read | readRows | each one on which the result can depend must be readable |
//! | Sample | sampleRowKeys | all must be readable |
//! | Write | mutateRows | each one named must be writable; to delete a row, all |
//! | Check | mutateRows, readRows | those of the predicate must be readable; mutations as above |
//! | Modify | mutateRows, readRows | each one named must be readable and writable |
//!
//! Unreadable families are not filtered out but refused: a mounttable that sees a part of its rows would take names for missing. METADATA has no
//! policies; it is readable, because lookups need it, and `members_only` refuses its writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ebla_model::access::Identity;
use ebla_model::filter::CompiledFilter;
use ebla_model::id::TableId;
use ebla_model::{Error, KeyRange, Reason, TableName, TableSchema};
use ebla_proto::convert::rule_from_bytes;
use ebla_proto::tablet as wire;
use tonic::Extensions;

use super::audit::Decision;
use super::data::{CHECK, DataCall, MODIFY, MUTATE_ROWS, READ, SAMPLE};
use super::layer::{certificate_identity, peer};
use super::scope::Scope;
use super::{AccessControl, Enforced, KnownCaller};
use crate::front::validate::Named;
use crate::members_only::is_member;

/// A caller of the service of tablets whose rights are checked. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct TabletCaller {
    enforced: Arc<Enforced>,
    caller: KnownCaller,
}

/// A call of a tablet, as far as rights depend on it.
#[derive(Debug)]
pub(crate) enum TabletCall<'a> {
    /// A read with this filter; `None`: of everything.
    Read(Option<&'a CompiledFilter>),
    /// The size and the keys of a tablet.
    Sample,
    /// Writes of rows. Their idempotency tokens become those of the caller.
    Write(&'a mut [wire::RowMutations]),
    /// A conditional write with this predicate; `None`: that the row has a cell.
    Check(&'a mut wire::CheckRequest, Option<&'a CompiledFilter>),
    /// A read-modify-write.
    Modify(&'a mut wire::ModifyRequest),
}

impl AccessControl {
    /// The caller of a request with these extensions if its rights must be checked; `None`: a member of the cluster, or access control is off.
    ///
    /// # Errors
    /// `Unauthenticated` when the caller is no member and has no certificate.
    pub(crate) fn tablet_caller(&self, extensions: &Extensions) -> Result<Option<TabletCaller>, Error> {
        let Some(enforced) = self.enforced.as_ref().filter(|_enforced| !is_member(extensions)) else { return Ok(None) };
        let Some(name) = certificate_identity(extensions) else {
            return Err(Error::new(Reason::Unauthenticated, "the caller of a tablet is unknown"));
        };
        let identity = Identity::new(name, []).into();
        let caller = KnownCaller { identity, expiry: None, peer: peer(extensions), request: String::new() };
        Ok(Some(TabletCaller { enforced: Arc::clone(enforced), caller }))
    }
}

impl TabletCaller {
    /// Checks a call of a tablet of this table, and records what was decided.
    ///
    /// # Errors
    /// `PermissionDenied`, as on the public API; `Unavailable` when the policies of the table are not known yet.
    pub(crate) async fn check(&self, table: &TableSchema, call: TabletCall<'_>) -> Result<(), Error> {
        if table.table == TableId::METADATA {
            return Ok(());
        }
        let method = call.method();
        let decided = self.decide(table, call).await;
        self.record(method, table, &decided);
        decided.map(drop)
    }

    /// As [`Self::check`], of a read that was permitted when it began: only a refusal is recorded.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub(crate) async fn check_again(&self, table: &TableSchema, filter: Option<&CompiledFilter>) -> Result<(), Error> {
        if table.table == TableId::METADATA {
            return Ok(());
        }
        let decided = self.decide(table, TabletCall::Read(filter)).await;
        if decided.is_err() {
            self.record(TabletCall::READ, table, &decided);
        }
        decided.map(drop)
    }

    fn record(&self, method: &str, table: &TableSchema, decided: &Result<BTreeSet<String>, Error>) {
        let families: Vec<_> = decided.iter().flatten().cloned().collect();
        let audit = &self.enforced.audit;
        audit.record_data(&self.caller, method, table.name.as_str(), &families, Decision::of(decided));
    }

    /// The families that the call names.
    async fn decide(&self, table: &TableSchema, call: TabletCall<'_>) -> Result<BTreeSet<String>, Error> {
        let named = Named::from(table.name.clone());
        let permit = self.enforced.permit(&self.caller, &named, call.data_call()).await?;
        let owner = self.caller.identity.name().to_string();
        let everything = Scope::default();
        call.restrict(permit.scope_of(table.table)?.unwrap_or(&everything), table, &owner)
    }
}

impl TabletCall<'_> {
    /// The name of reads in records.
    const READ: &'static str = "/ebla.tablet.Tablets/Read";

    const fn method(&self) -> &'static str {
        match self {
            Self::Read(_) => Self::READ,
            Self::Sample => "/ebla.tablet.Tablets/Sample",
            Self::Write(_) => "/ebla.tablet.Tablets/Write",
            Self::Check(..) => "/ebla.tablet.Tablets/Check",
            Self::Modify(_) => "/ebla.tablet.Tablets/Modify",
        }
    }

    /// The call of the public API that needs the same permissions.
    const fn data_call(&self) -> &'static DataCall {
        match self {
            Self::Read(_) => &READ,
            Self::Sample => &SAMPLE,
            Self::Write(_) => &MUTATE_ROWS,
            Self::Check(..) => &CHECK,
            Self::Modify(_) => &MODIFY,
        }
    }

    /// Checks the families that the call touches, and gives its idempotency tokens to the caller. Returns the families that it names.
    fn restrict(self, scope: &Scope, table: &TableSchema, owner: &str) -> Result<BTreeSet<String>, Error> {
        let name = &table.name;
        match self {
            Self::Read(filter) => {
                let is_read = |family: &str| filter.is_none_or(|filter| !filter.needed_columns(family).is_empty());
                check_read(scope, table, is_read)?;
                Ok(BTreeSet::new())
            }
            Self::Sample => scope.sample(KeyRange::all(), name).map(|_spec| BTreeSet::new()),
            Self::Write(rows) => {
                let mut families = BTreeSet::new();
                for row in rows {
                    families.extend(check_mutations(scope, &row.mutations, name)?);
                    own(scope, &mut row.token, owner, &BTreeSet::new());
                }
                Ok(families)
            }
            Self::Check(request, predicate) => {
                let needs = |one: &CompiledFilter, family: &str| !one.needed_columns_to_match(family).is_empty();
                check_read(scope, table, |family| predicate.is_none_or(|one| needs(one, family)))?;
                let mut families = check_mutations(scope, &request.then, name)?;
                families.extend(check_mutations(scope, &request.otherwise, name)?);
                own(scope, &mut request.token, owner, &BTreeSet::new());
                Ok(families)
            }
            Self::Modify(request) => {
                let rules = request.rules.iter().map(rule_from_bytes).collect::<Result<Vec<_>, Error>>()?;
                rules.iter().try_for_each(|rule| scope.check_rule(rule, name))?;
                let columns = rules.iter().map(|rule| (rule.family.as_str(), rule.qualifier.as_ref())).collect();
                own(scope, &mut request.token, owner, &columns);
                Ok(rules.into_iter().map(|rule| rule.family).collect())
            }
        }
    }
}

fn check_read(scope: &Scope, table: &TableSchema, is_read: impl Fn(&str) -> bool) -> Result<(), Error> {
    if scope.sees_everything() {
        return Ok(());
    }
    let read = table.families.iter().map(|family| family.name.as_str()).filter(|family| is_read(family));
    scope.check_readable(read, &table.name)
}

/// As [`Scope::check_mutations`]. What does not decode is not refused here: it is the outcome of its row, which the tablet reports.
fn check_mutations(scope: &Scope, mutations: &[Bytes], table: &TableName) -> Result<BTreeSet<String>, Error> {
    match scope.check_mutations(mutations, table) {
        Err(error) if error.reason != Reason::PermissionDenied => Ok(BTreeSet::new()),
        checked => checked,
    }
}

/// Gives a token to its caller: see [`Scope::owned_token`].
fn own(scope: &Scope, token: &mut Option<wire::IdempotencyToken>, owner: &str, columns: &BTreeSet<(&str, &[u8])>) {
    if let Some(token) = token {
        token.token = scope.owned_bytes(&token.token, Some(owner), columns);
    }
}

#[cfg(test)]
mod tests;

//! Who may see the records of operations (`front/traces.rs`).

use ebla_model::Error;
use ebla_model::TableName;
use ebla_model::access::Permission;

use super::audit::Decision;
use super::{AccessControl, Caller, denied};

/// What a caller needs for a table: a record shows that it exists and which tablets it has.
const NEEDED: Permission = Permission::GetTable;

/// What a caller may see of the records of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::front) enum RecordRights {
    /// Nothing.
    None,
    /// Records without the sizes of requests and responses and without the numbers of written rows: the caller may not read all families.
    WithoutSizes,
    /// Everything.
    All,
}

impl AccessControl {
    /// What the caller may see of the records of this table, as far as its policies are known here; `None`: those without a table.
    ///
    /// # Errors
    /// `Unauthenticated` when the caller has no identity although access control is on.
    pub(in crate::front) fn record_rights(
        &self,
        caller: &Caller,
        table: Option<&TableName>,
    ) -> Result<RecordRights, Error> {
        let Some((enforced, caller)) = self.enforced(caller)? else { return Ok(RecordRights::All) };
        let Some(table) = table else {
            let is_administrator = enforced.rules(None, None).is_administrator(&caller.identity);
            return Ok(if is_administrator { RecordRights::All } else { RecordRights::None });
        };
        let policies = enforced.directory.known_table_policies(table, None);
        let rules = enforced.rules_of(&policies);
        if !rules.grants(NEEDED, &caller.identity) {
            return Ok(RecordRights::None);
        }
        let reads_all = match &policies.table {
            Some((schema, _access)) => rules.families(schema, &caller.identity).readable.is_all(),
            // Without a schema it is not known which families are hidden.
            None => rules.is_administrator(&caller.identity),
        };
        Ok(if reads_all { RecordRights::All } else { RecordRights::WithoutSizes })
    }

    /// The refusal for a table whose records the caller may not see.
    pub(in crate::front) fn records_denied(&self, table: &str) -> Error {
        denied(NEEDED, &table)
    }

    /// Records in the audit log that a caller lists the records of operations, and what was decided about it.
    pub(in crate::front) fn audit_traces<T>(&self, caller: &Caller, table: &str, decided: &Result<T, Error>) {
        if let Ok(Some((enforced, caller))) = self.enforced(caller) {
            enforced.audit.record_admin(caller, "/ebla.trace.Traces/List", table, Decision::of(decided));
        }
    }
}

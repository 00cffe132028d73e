//! What a caller sees of hot tablets: those of tables of which it may read all rows.
//!
//! `ListHotTablets` needs a permission for the instance, and its answer has boundaries of tablets, which are keys of rows. So tables whose
//! keys SampleRowKeys would refuse are left out of the answer, by the policies at the time of the answer.

use std::sync::Arc;

use bytes::Bytes;
use ebla_model::access::Permission;
use ebla_model::{Error, TableName};
use ebla_proto::admin::ListHotTabletsResponse;
use prost::Message as _;

use super::{Enforced, KnownCaller};

/// The part of an answer that a caller sees.
#[derive(Debug)]
pub(in crate::front) struct HotTabletsFilter {
    enforced: Arc<Enforced>,
    caller: KnownCaller,
}

impl HotTabletsFilter {
    pub(super) const fn new(enforced: Arc<Enforced>, caller: KnownCaller) -> Self {
        Self { enforced, caller }
    }

    /// The answer without tables of which the caller may not read all. A page may become shorter; its token is the same.
    ///
    /// # Errors
    /// `Internal` when the answer does not decode.
    pub(in crate::front) fn apply(&self, answer: Bytes) -> Result<Bytes, Error> {
        if self.enforced.rules(None, None).is_administrator(&self.caller.identity) {
            return Ok(answer);
        }
        let mut answer = ListHotTabletsResponse::decode(answer)
            .map_err(|error| Error::internal(format!("the master's hot tablets do not decode: {error}")))?;
        answer.hot_tablets.retain(|hot| hot.table_name.parse().is_ok_and(|name| self.is_shown(&name)));
        Ok(answer.encode_to_vec().into())
    }

    /// A table that this server does not know, for instance one that was just deleted, is not shown.
    fn is_shown(&self, name: &TableName) -> bool {
        let policies = self.enforced.directory.known_table_policies(name, None);
        let Some((schema, _access)) = &policies.table else { return false };
        let rules = self.enforced.rules_of(&policies);
        rules.grants(Permission::SampleRowKeys, &self.caller.identity)
            && rules.families(schema, &self.caller.identity).readable.is_all()
    }
}

//! The store of long-running operations. Here they have finished when their call returns: the result is stored for
//! later calls that name the operation.
//!
//! The last [`STORED_MAX`] are in Chubby, so the next master has them too. An operation that fails returns its error
//! to the caller and is not stored.

use std::collections::BTreeMap;

use ebla_chubby::{Counter, Write, paths};
use ebla_model::error::{Error, Reason};
use ebla_model::id::OperationId;
use ebla_proto::admin::longrunning::Operation;
use ebla_proto::convert::operation::{self, InOperation};

use crate::active::ActiveMaster;
use crate::schema_store;

/// How many are stored; older ones are evicted.
const STORED_MAX: usize = 100;
/// The most that one call evicts, far below the limit of a transaction.
const EVICTED_MAX: usize = 20;

/// Stores an operation that has just finished, and returns it. `of`: the resource that it changed.
///
/// # Errors
/// `OutcomeUnknown` when it has finished and cannot be stored; `NotMaster`.
pub(crate) async fn store(
    master: &ActiveMaster,
    of: &str,
    metadata: &impl InOperation,
    response: &impl InOperation,
) -> Result<Operation, Error> {
    let stored = async {
        let id = OperationId::new(master.allocate(Counter::Operations, 1).await?.start);
        let done = operation::finished_operation(name(of, id), metadata, response);
        let mut writes = vec![Write::put(paths::finished(id), operation::finished_operation_to_bytes(&done))];
        let before = schema_store::list_finished(master.chubby()).await?;
        writes.extend(evicted(&before).map(|id| Write::delete(paths::finished(id))));
        master.transact(Vec::new(), writes).await?;
        Ok(done)
    };
    stored.await.map_err(|error| master.defer(error))
}

/// The operations to evict before one more is stored: the oldest.
fn evicted(stored: &BTreeMap<OperationId, Operation>) -> impl Iterator<Item = OperationId> {
    stored.keys().copied().take((stored.len() + 1).saturating_sub(STORED_MAX).min(EVICTED_MAX))
}

fn name(of: &str, id: OperationId) -> String {
    format!("operations/{of}/operations/{id}")
}

/// Finds the operation of this name.
///
/// # Errors
/// `NotFound` when there was none, or it was evicted.
pub(crate) async fn find(master: &ActiveMaster, name: &str) -> Result<(OperationId, Operation), Error> {
    let absent = || {
        let message =
            format!("operation {name:?} does not exist: the last {STORED_MAX} finished operations are stored");
        Error::new(Reason::NotFound, message)
    };
    let number = name.rsplit('/').next().and_then(|number| number.parse().ok());
    let id = number.ok_or_else(absent)?;
    let found = schema_store::read_finished(master.chubby(), id).await?;
    found.filter(|operation| operation.name == name).map(|operation| (id, operation)).ok_or_else(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(ids: std::ops::Range<u64>) -> BTreeMap<OperationId, Operation> {
        ids.map(|id| (OperationId::new(id), Operation::default())).collect()
    }

    #[test]
    fn the_oldest_are_evicted() {
        let evicts = |ids| evicted(&stored(ids)).map(OperationId::get).collect::<Vec<_>>();
        assert!(evicts(0..0).is_empty());
        assert!(evicts(0..99).is_empty(), "one more makes a hundred");
        assert_eq!(evicts(0..100), [0]);
        assert_eq!(evicts(7..109), [7, 8, 9]);
        assert_eq!(evicts(0..1_000).len(), EVICTED_MAX);
    }
}

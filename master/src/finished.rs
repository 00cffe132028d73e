//! Long-running operations. Here they have run when their call is answered: what is kept is the outcome, for whoever asks by name.
//!
//! The last [`KEPT_MAX`] stand in Chubby, so the next master knows them too. One that fails is the error of its call and
//! leaves no operation.

use std::collections::BTreeMap;

use ebla_chubby::{Counter, Write, next_ids, paths};
use ebla_model::error::{Error, Reason};
use ebla_model::id::OperationId;
use ebla_proto::admin::longrunning::Operation;
use ebla_proto::convert::operation::{self, InOperation};

use crate::office::Office;
use crate::records;

/// How many are kept; older ones are forgotten.
const KEPT_MAX: usize = 100;
/// Most that are forgotten at once, far below what a transaction may write.
const FORGOTTEN_MAX: usize = 20;

/// Keeps an operation that has just been done, and answers it. `of`: the resource that it was about.
///
/// # Errors
/// `OutcomeUnknown` when it was done and cannot be kept; `NotMaster`.
pub(crate) async fn keep(
    office: &Office,
    of: &str,
    metadata: &impl InOperation,
    response: &impl InOperation,
) -> Result<Operation, Error> {
    let kept = async {
        let id = OperationId::new(next_ids(office.chubby(), Counter::Operations, 1).await?.start);
        let done = operation::finished_operation(name(of, id), metadata, response);
        let mut writes = vec![Write::put(paths::finished(id), operation::finished_operation_to_bytes(&done))];
        let before = records::list_finished(office.chubby()).await?;
        writes.extend(forgotten(&before).map(|id| Write::delete(paths::finished(id))));
        office.transact(Vec::new(), writes).await?;
        Ok(done)
    };
    kept.await.map_err(|error| office.leave(error))
}

/// Which of those kept make room for one more: the oldest.
fn forgotten(kept: &BTreeMap<OperationId, Operation>) -> impl Iterator<Item = OperationId> {
    kept.keys().copied().take((kept.len() + 1).saturating_sub(KEPT_MAX).min(FORGOTTEN_MAX))
}

fn name(of: &str, id: OperationId) -> String {
    format!("operations/{of}/operations/{id}")
}

/// The operation of this name.
///
/// # Errors
/// `NotFound` when there never was one, or it is forgotten.
pub(crate) async fn find(office: &Office, name: &str) -> Result<(OperationId, Operation), Error> {
    let absent = || {
        let message = format!(
            "operation {name:?} is not known: operations are done when they are answered, and the last {KEPT_MAX} are kept"
        );
        Error::new(Reason::NotFound, message)
    };
    let number = name.rsplit('/').next().and_then(|number| number.parse().ok());
    let id = number.ok_or_else(absent)?;
    let found = records::read_finished(office.chubby(), id).await?;
    found.filter(|operation| operation.name == name).map(|operation| (id, operation)).ok_or_else(absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(ids: std::ops::Range<u64>) -> BTreeMap<OperationId, Operation> {
        ids.map(|id| (OperationId::new(id), Operation::default())).collect()
    }

    #[test]
    fn the_oldest_make_room() {
        let goes = |ids| forgotten(&kept(ids)).map(OperationId::get).collect::<Vec<_>>();
        assert!(goes(0..0).is_empty());
        assert!(goes(0..99).is_empty(), "one more is a hundred");
        assert_eq!(goes(0..100), [0]);
        assert_eq!(goes(7..109), [7, 8, 9]);
        assert_eq!(goes(0..1_000).len(), FORGOTTEN_MAX);
    }
}

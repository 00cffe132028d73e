//! Splits that an operator requests: at a key of a table, or of a tablet with a number, of METADATA too.

use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::id::{TableId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::mutation::validate_row_key;
use ebla_model::schema::TableName;
use ebla_proto::operate;
use ebla_routing::Annotations;
use futures::future::BoxFuture;
use tracing::warn;

use crate::active::ActiveMaster;
use crate::plan::capacity::check_room_for_split;
use crate::plan::merge::find;
use crate::routing::TableMap;
use crate::{jobs, observation, relocation};

/// The timeout of a split.
const SPLIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Carries out a request. Returns both halves.
///
/// # Errors
/// `InvalidArgument` for a key that no row can have; `NotFound`, `NotFoundTable`; `FailedPrecondition` when the tablet cannot be split
/// there, as the root tablet; otherwise as [`TableMap::send_to_leader`].
pub(crate) async fn split(
    master: &ActiveMaster,
    request: operate::SplitRequest,
) -> Result<(TabletDescriptor, TabletDescriptor), Error> {
    let at = request.at.map(RowKey::new);
    check_split(at.as_ref())?;
    if request.tablet > 0 {
        if at.is_some() || !request.table.is_empty() {
            return Err(Error::invalid("give either the number of a tablet, or a table with a key"));
        }
        let tablet = TabletId::new(request.tablet);
        if tablet == TabletId::ROOT {
            let message = format!("tablet {tablet} is the root tablet, which is never split or merged");
            return Err(Error::new(Reason::FailedPrecondition, message));
        }
        let found = find(&relocation::observe(master).await?, tablet)?.clone();
        return split_at(master, found.table, None, found.range.start().clone()).await;
    }
    let name: TableName = request.table.parse()?;
    let table = jobs::update_schema::find_active(master.chubby(), &name).await?.value.table;
    split_at(master, table, at, RowKey::new(request.within)).await
}

/// Splits the tablet that contains `at` at that key; or the tablet that contains `within`, at a key chosen by its
/// leader.
async fn split_at(
    master: &ActiveMaster,
    table: TableId,
    at: Option<RowKey>,
    within: RowKey,
) -> Result<(TabletDescriptor, TabletDescriptor), Error> {
    let deadline = master.deadline(SPLIT_TIMEOUT);
    let mut map = TableMap::read(master, table, deadline).await?;
    let key = at.clone().unwrap_or(within);
    if let Some(tablet) = map.at(&key) {
        check_room_for_split(&observation::observe_reports(master).await?, &tablet.descriptor)?;
    }
    let call = |master: ActiveMaster, server, tablet: TabletDescriptor| {
        let at = at.clone();
        Box::pin(async move { master.servers().split(server, &tablet, at.as_ref()).await }) as BoxFuture<'static, _>
    };
    let (left, right) = map.send_to_leader(&key, deadline, call).await?;
    // The leader lists both halves itself. Doing it here too makes them visible when this call returns.
    if let Err(error) = master.metadata().put_split(&left, &right, &Annotations::default(), deadline).await {
        warn!(%error, "split committed; METADATA not updated yet");
    }
    Ok((left, right))
}

/// Rejects a split key that could not be a row key.
fn check_split(at: Option<&RowKey>) -> Result<(), Error> {
    let invalid = |error: Error| {
        Error::invalid(format!(
            "cannot split at this key: {error}; give the key of the first row of the right half, or give none and let \
             the server choose it"
        ))
    };
    at.map_or(Ok(()), |at| validate_row_key(at).map_err(invalid))
}

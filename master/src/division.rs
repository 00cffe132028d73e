//! Divisions of groups, on request of an operator and for replica balance: the order to the group's leader, and the rows of the tablets
//! that have moved.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::id::GroupId;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use futures::future::BoxFuture;
use tracing::warn;

use crate::active::ActiveMaster;
use crate::plan::capacity::check_room_for_division;
use crate::routing::send_to_group_leader;
use crate::server_client::DividedGroup;
use crate::{jobs, observation};

/// The timeout of dividing a group.
const DIVIDE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the call waits then for the reports of the new group.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before reports are read again.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Divides a group. The rows of the tablets that have moved are written here, so that they are visible when the call
/// returns; the leader of the new group writes them too.
pub(crate) async fn divide(master: &ActiveMaster, group: GroupId) -> Result<DividedGroup, Error> {
    let deadline = master.deadline(DIVIDE_TIMEOUT);
    let snapshot = observation::observe_reports(master).await?;
    let known = snapshot.groups().remove(&group);
    let known = known.ok_or_else(|| {
        Error::new(Reason::NotFound, format!("group {group} does not exist; ebla group list shows all groups"))
    })?;
    check_room_for_division(&snapshot, &known)?;
    let call = |master: ActiveMaster, server, group: GroupDescriptor| {
        Box::pin(async move { master.servers().divide(server, &group).await }) as BoxFuture<'static, _>
    };
    let divided = send_to_group_leader(master, &known, deadline, call).await?;
    if let Err(error) = write_moved_rows(master, &divided, deadline).await {
        warn!(%error, "group divided; METADATA not updated yet");
        master.request_reconcile();
    }
    Ok(divided)
}

/// Waits until the new group's replicas report its tablets, and writes their rows.
async fn write_moved_rows(master: &ActiveMaster, divided: &DividedGroup, deadline: Deadline) -> Result<(), Error> {
    let until = master.deadline(REPORT_TIMEOUT);
    loop {
        let snapshot = observation::observe_reports(master).await?;
        let moved = snapshot.tablets().into_values().filter(|tablet| tablet.group == divided.right.group);
        let moved: Vec<TabletDescriptor> = moved.cloned().collect();
        if moved.len() as u64 >= divided.tablets_moved {
            return jobs::create::write_rows(master, &moved, &BTreeMap::new(), deadline).await;
        }
        if until.has_passed(&master.runtime().clock) {
            return Err(Error::new(Reason::Deadline, format!("group {} has not started yet", divided.right.group)));
        }
        tokio::time::sleep(master.runtime().rng.jitter(RETRY_DELAY)).await;
    }
}

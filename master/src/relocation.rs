//! Moves of tablets between existing groups, on request of an operator: the order to the leader of the tablet's group, which does
//! the work and continues it without a master (`ebla_tablet_server::tablet::lifecycle::moves`).

use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, TabletId};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::tablet_event::TabletEventCause;
use ebla_proto::{convert, operate};
use ebla_routing::Annotations;
use ebla_runtime::Step;
use futures::future::BoxFuture;
use tracing::warn;

use crate::active::ActiveMaster;
use crate::cluster::ClusterSnapshot;
use crate::plan::capacity::check_room_for_move;
use crate::plan::relocate::{Relocated, Relocation, relocate};
use crate::routing::{group_round, is_final};
use crate::{observation, schema_store};

/// The pause after an order that was not carried out; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Moves a tablet to a group. Returns it as it is there, and the group that it has left. `cause`: for the events of the tablet.
///
/// # Errors
/// `NotFound`, `FailedPrecondition` when it cannot be moved, or is in the group already; `ResourceExhausted` when a server of the group has no
/// room for it; `Deadline` when it has not arrived in time: a move that has begun continues. Safe to repeat.
pub(crate) async fn move_tablet(
    master: &ActiveMaster,
    tablet: TabletId,
    group: GroupId,
    cause: TabletEventCause,
    deadline: Deadline,
) -> Result<(TabletDescriptor, GroupId), Error> {
    let (mut source, mut has_arrived) = (None, false);
    let mut pause = PAUSE_MIN;
    loop {
        let snapshot = observe(master).await?;
        let needed = match (relocate(&snapshot, tablet, group)?, source) {
            (Relocated::Already(there), Some(source)) => {
                list(master, &there, deadline).await;
                return Ok((there, source));
            }
            (Relocated::Already(_there), None) => return Err(already_there(tablet, group)),
            (Relocated::Needed(needed), source) => {
                // A move that may have begun needs no further room.
                if source.is_none() {
                    check_room_for_move(&snapshot, tablet, &needed.target)?;
                }
                needed
            }
        };
        source = Some(needed.tablet.group);
        let leader = snapshot.leader_reports().get(&needed.tablet.group).map(|(server, _report)| *server);
        let ordered = order(master, &needed, cause, leader).await;
        let last = match ordered {
            // The reports show it, now or soon.
            Ok(()) if !has_arrived => {
                master.runtime().steps.reached(Step::MoveOrdered).await;
                has_arrived = true;
                continue;
            }
            Ok(()) => Error::new(Reason::Unavailable, "the servers do not report it yet"),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => error,
        };
        let runtime = master.runtime();
        if deadline.remaining(&runtime.clock) <= pause {
            let message =
                format!("tablet {tablet} is not in group {group} yet; a move that has begun continues: {last}");
            return Err(Error::new(Reason::Deadline, message));
        }
        tokio::time::sleep(runtime.rng.jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// What a move would do. Changes nothing.
///
/// # Errors
/// As [`move_tablet`], for what is known before it begins.
pub(crate) async fn preview(
    master: &ActiveMaster,
    request: &operate::MoveTabletRequest,
) -> Result<operate::PreviewMoveReply, Error> {
    let (tablet, group) = (TabletId::new(request.tablet), GroupId::new(request.group));
    let snapshot = observe(master).await?;
    match relocate(&snapshot, tablet, group)? {
        Relocated::Already(_there) => Err(already_there(tablet, group)),
        Relocated::Needed(Relocation { tablet, target }) => {
            check_room_for_move(&snapshot, tablet.tablet, &target)?;
            Ok(operate::PreviewMoveReply {
                size_bytes: snapshot.tablet_size(tablet.tablet),
                tablet: Some(convert::descriptor_to_proto(&tablet)),
                target: Some(convert::group_to_proto(&target)),
            })
        }
    }
}

fn already_there(tablet: TabletId, group: GroupId) -> Error {
    let message = format!("tablet {tablet} is in group {group} already: choose another group");
    Error::new(Reason::FailedPrecondition, message)
}

/// The servers' reports and the tables.
pub(crate) async fn observe(master: &ActiveMaster) -> Result<ClusterSnapshot, Error> {
    let snapshot = observation::observe_reports(master).await?;
    let tables = schema_store::list_tables(master.chubby()).await?;
    Ok(ClusterSnapshot { tables, ..snapshot })
}

async fn order(
    master: &ActiveMaster,
    needed: &Relocation,
    cause: TabletEventCause,
    leader: Option<ebla_model::id::ServerId>,
) -> Result<(), Error> {
    let Relocation { tablet, target } = needed.clone();
    let source = tablet.group_descriptor();
    let call = move |master: ActiveMaster, server, _source: GroupDescriptor| {
        let (tablet, target) = (tablet.clone(), target.clone());
        Box::pin(async move { master.servers().move_tablet(server, &tablet, &target, cause).await })
            as BoxFuture<'static, _>
    };
    group_round(master, &source, leader, &call).await
}

/// Writes the row of a tablet that has moved. The leader of its group writes it too: this makes it visible when the call returns.
async fn list(master: &ActiveMaster, tablet: &TabletDescriptor, deadline: Deadline) {
    if let Err(error) = master.metadata().put_tablet(tablet, &Annotations::default(), deadline).await {
        warn!(%error, "tablet moved; METADATA not updated yet");
        master.request_reconcile();
    }
}

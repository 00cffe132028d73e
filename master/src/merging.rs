//! Merges of tablets: the order to the leader of their group, after a move if they are in different groups. On request of an operator,
//! and in the background for the plan of the reconciler.

use std::sync::Arc;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TabletId;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::tablet_event::TabletEventCause;
use ebla_proto::{convert, operate};
use ebla_routing::Annotations;
use ebla_runtime::trace::TabletIds;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::active::ActiveMaster;
use crate::cluster::ClusterSnapshot;
use crate::plan::auto_merge::{MergeMemory, PlannedMerge};
use crate::plan::merge::{MergeWith, merge_pair, merged as merged_meanwhile, move_before_merge};
use crate::routing::send_to_group_leader;
use crate::{observation, relocation};

/// The timeout of a merge in the background, which may move a small tablet first.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(30);

/// Merges two adjacent tablets; if they are in different groups, the smaller one is moved first. Returns the merged tablet and the
/// one that is gone. `cause`: for the events of the tablet.
///
/// # Errors
/// As [`merge_pair`] and [`relocation::move_tablet`]; `Deadline` when it has not ended in time. Safe to repeat.
pub(crate) async fn merge(
    master: &ActiveMaster,
    tablet: TabletId,
    with: MergeWith,
    cause: TabletEventCause,
    deadline: Deadline,
) -> Result<(TabletDescriptor, TabletId), Error> {
    let mut snapshot = relocation::observe(master).await?;
    let mut pair = merge_pair(&snapshot, tablet, with)?;
    if let Some((moved, group)) = move_before_merge(&snapshot, &pair) {
        let with = MergeWith::Tablet(if pair.left.tablet == tablet { pair.right.tablet } else { pair.left.tablet });
        relocation::move_tablet(master, moved, group, cause, deadline).await?;
        snapshot = relocation::observe(master).await?;
        pair = merge_pair(&snapshot, tablet, with)?;
        if pair.left.group != pair.right.group {
            return Err(Error::new(Reason::Unavailable, "a tablet has moved meanwhile; merge the tablets again"));
        }
    }
    let (left, right) = (pair.left.tablet, pair.right.tablet);
    let call = |master: ActiveMaster, server, group: GroupDescriptor| {
        Box::pin(async move { master.servers().merge(server, &group, (left, right), cause).await })
            as BoxFuture<'static, _>
    };
    let merged = match send_to_group_leader(master, &pair.right.group_descriptor(), deadline, call).await {
        Ok(merged) => merged,
        // An attempt whose response was lost may have merged them: the next one finds that the left tablet is gone.
        Err(error) => merged_meanwhile(&observation::observe_reports(master).await?, &pair).ok_or(error)?,
    };
    // The leader writes and removes the rows itself. Doing it here too makes it visible when this call returns.
    if let Err(error) = master.metadata().put_tablet(&merged, &Annotations::default(), deadline).await {
        warn!(%error, "merge committed; METADATA not updated yet");
        master.request_reconcile();
    }
    Ok((merged, left))
}

/// The tablets that a request names.
pub(crate) fn parts(request: &operate::MergeRequest) -> (TabletId, MergeWith) {
    let with = if request.with == 0 { MergeWith::Next } else { MergeWith::Tablet(TabletId::new(request.with)) };
    (TabletId::new(request.tablet), with)
}

/// What a merge would do. Changes nothing.
///
/// # Errors
/// As [`merge_pair`].
pub(crate) async fn preview(
    master: &ActiveMaster,
    request: &operate::MergeRequest,
) -> Result<operate::PreviewMergeReply, Error> {
    let (tablet, with) = parts(request);
    let snapshot = relocation::observe(master).await?;
    let pair = merge_pair(&snapshot, tablet, with)?;
    Ok(operate::PreviewMergeReply {
        left_bytes: snapshot.tablet_size(pair.left.tablet),
        right_bytes: snapshot.tablet_size(pair.right.tablet),
        moved: move_before_merge(&snapshot, &pair).map_or(0, |(moved, _group)| moved.get()),
        left: Some(convert::descriptor_to_proto(&pair.left)),
        right: Some(convert::descriptor_to_proto(&pair.right)),
    })
}

/// The merges that the reconciler has started. Only this master knows them: the next one observes their results.
#[derive(Clone, Debug, Default)]
pub(crate) struct BackgroundMerges {
    /// Locked to copy or to change it.
    memory: Arc<Mutex<MergeMemory>>,
}

impl BackgroundMerges {
    /// What is known of them.
    pub(crate) fn memory(&self) -> MergeMemory {
        self.memory.lock().clone()
    }

    /// Forgets tablets that are gone.
    pub(crate) fn retain(&self, cluster: &ClusterSnapshot) {
        self.memory.lock().retain(cluster);
    }

    /// Starts a merge. When it ends, with or without success, it requests a round of the reconciler.
    pub(crate) fn start(&self, master: &ActiveMaster, merge: PlannedMerge) {
        self.memory.lock().begin(&merge);
        let (memory, master) = (Arc::clone(&self.memory), master.clone());
        master.runtime().tasks.clone().spawn_until_stopped("merge", async move {
            let (left, right) = (&merge.pair.left, &merge.pair.right);
            let deadline = master.deadline(BACKGROUND_TIMEOUT);
            let (with, cause) = (MergeWith::Tablet(right.tablet), TabletEventCause::Small);
            let work = self::merge(&master, left.tablet, with, cause, deadline);
            let ids = TabletIds { table: left.table, tablet: left.tablet, group: left.group };
            let outcome = master.traced("MergeTablets", ids, work).await;
            let now = master.runtime().clock.monotonic();
            match outcome {
                Ok((merged, _gone)) => {
                    let (table, tablet, gone) = (merged.table, merged.tablet, left.tablet);
                    info!(%table, %tablet, %gone, group = %merged.group, "tablets merged (small and quiet)");
                    memory.lock().succeed(&merge, now);
                }
                Err(error) => {
                    warn!(tablet = %right.tablet, with = %left.tablet, %error, "automatic merge failed; retrying later");
                    memory.lock().fail(&merge, now);
                }
            }
            master.request_reconcile();
        });
    }
}

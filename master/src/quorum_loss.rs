//! The recovery of groups that have lost their majorities, as an operator requests it: determines the groups
//! ([`crate::plan::quorum_loss`]), records the lost servers in Chubby, and makes one replica of each group its only voter.
//!
//! The records come first: from then on a lost server that returns does not register and ends. Every step can be repeated; a group that
//! was recovered has a majority, so the next attempt leaves it out.

use std::time::Duration;

use ebla_chubby::{Compare, TransactionOutcome, Write, paths};
use ebla_client::Deadline;
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{LogId, ServerId, TabletId};
use ebla_model::metadata::Replica;
use ebla_model::time::Micros;
use ebla_proto::{convert, operate, record};
use ebla_runtime::Failpoint;
use tracing::warn;

use crate::active::ActiveMaster;
use crate::observation;
use crate::plan::quorum_loss::{GroupRecovery, QuorumLossRecovery, quorum_loss_recovery};

/// How long all groups may take together.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(100);
/// The delay before reports are read again.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Recovers groups from the replicas of one server, or only determines what a recovery would do.
///
/// # Errors
/// As [`quorum_loss_recovery`]; `Conflict` when a lost server has registered meanwhile; `Deadline` when a replica does not lead in time; errors of
/// Chubby and of the server.
pub(crate) async fn recover(
    master: &ActiveMaster,
    request: operate::RecoverTabletsRequest,
) -> Result<operate::RecoverTabletsReply, Error> {
    let from = ServerId::new(request.from);
    let tablet = (request.tablet > 0).then(|| TabletId::new(request.tablet));
    let snapshot = observation::observe_without_metadata(master).await?;
    let recovery = quorum_loss_recovery(&snapshot, from, tablet)?;
    if !request.dry_run {
        record_lost(master, from, &recovery).await?;
        let live = snapshot.servers.keys().copied().collect();
        let deadline = master.deadline(RECOVERY_TIMEOUT);
        for group in &recovery.groups {
            let forced = master.servers().force_membership(from, group, &live).await.map_err(|failed| failed.error)?;
            warn!(group = %group.group.group, server = %from, "group recovered from one replica");
            wait_until_led(master, from, group, forced, deadline).await?;
        }
        let detail = format!("{} groups have one replica each now", recovery.groups.len());
        master.record_event(&NewClusterEvent::new(ClusterEventKind::GroupsRecovered, detail).of_server(from));
        master.request_reconcile();
    }
    Ok(operate::RecoverTabletsReply {
        groups: recovery.groups.iter().map(|group| to_proto(group, master.runtime().clock.wall())).collect(),
        lost_servers: recovery.lost_servers.iter().map(|server| server.get()).collect(),
        given_up_groups: recovery.plans.iter().map(|group| group.group.get()).collect(),
    })
}

/// Records the lost servers, if none of them has registered, and removes the plans of groups that were being created: a recovered group
/// gets its missing replicas by repair, and a group without a replica is not needed.
async fn record_lost(master: &ActiveMaster, from: ServerId, recovery: &QuorumLossRecovery) -> Result<(), Error> {
    let value = convert::encode_record(record::LostServer {
        from: from.get(),
        time_micros: master.runtime().clock.wall().get(),
        ..Default::default()
    });
    let lost = &recovery.lost_servers;
    let compares = lost.iter().map(|server| Compare::Absent(paths::server(*server))).collect();
    let records = lost.iter().map(|server| Write::put(paths::lost(*server), value.clone()));
    let groups = recovery.groups.iter().map(|group| group.group.group);
    let groups = groups.chain(recovery.plans.iter().map(|group| group.group));
    let writes = records.chain(groups.map(|group| Write::delete(paths::group(group)))).collect();
    match master.lock().transact(compares, writes).await? {
        TransactionOutcome::Committed(_) => Ok(()),
        TransactionOutcome::Conflict => Err(Error::new(
            Reason::Conflict,
            "one of the servers that are lost has registered meanwhile; nothing was changed",
        )),
    }
}

/// Waits until the replica leads its group with the new membership.
async fn wait_until_led(
    master: &ActiveMaster,
    from: ServerId,
    recovery: &GroupRecovery,
    forced: LogId,
    deadline: Deadline,
) -> Result<(), Error> {
    let group = recovery.group.group;
    loop {
        let snapshot = observation::observe_reports(master).await?;
        let leads = snapshot
            .leader_reports()
            .get(&group)
            .is_some_and(|(server, report)| *server == from && report.group.membership_log_id >= forced);
        if leads {
            return Ok(());
        }
        if deadline.has_passed(&master.runtime().clock) {
            let message =
                format!("group {group} was recovered, but its replica does not lead it yet; run the command again");
            return Err(Error::new(Reason::Deadline, message));
        }
        tokio::time::sleep(master.runtime().rng.jitter(RETRY_DELAY)).await;
    }
}

fn to_proto(recovery: &GroupRecovery, now: Micros) -> operate::RecoveredGroup {
    let replica = |one: &Replica| record::Replica { replica: one.replica.get(), server: one.server.get() };
    operate::RecoveredGroup {
        group: recovery.group.group.get(),
        replica: recovery.survivor.get(),
        lost: recovery.given_up.iter().map(replica).collect(),
        last: Some(convert::log_id_to_proto(recovery.last)),
        time_micros: if Failpoint::RecoveryReportsNow.is_enabled() { now } else { recovery.time }.get(),
        tablets: recovery.tablets.iter().map(convert::tablet_record_to_proto).collect(),
    }
}

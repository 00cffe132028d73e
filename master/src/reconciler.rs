//! The reconciler: observes the whole cluster, plans, and executes the plan. It runs when this master becomes active,
//! every minute, when servers register or stop responding, and on request.
//!
//! A round that leaves something undone is followed by another one after a second, and while actions fail the pause doubles up to 4 s: a round
//! reads the whole cluster. If all that is missing is the report of registered servers, it doubles up to 16 s: what such a server needs comes
//! with an event, its first response or the loss of its registration. The same pauses follow while a server that is no longer registered counts as up because a
//! leader has just heard from it, while a group has no leader and could elect one, and while a drained server has replicas.
//!
//! An action that fails is retried in the next round, with a new snapshot. Rows of METADATA are written in the order
//! of the plan, and when one fails the later rows of its table wait: the order keeps lookups correct. Rows that a merge has
//! left behind are removed after that.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_chubby::{Compare, Revision, Write, paths, raise_counter};
use ebla_model::cluster_event::{ClusterEventKind, NewClusterEvent};
use ebla_model::error::{Error, Reason};
use ebla_model::id::{GroupId, ServerId, TableId, TabletId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_proto::convert;
use ebla_routing::Annotations;
use ebla_runtime::Tasks;
use tracing::{debug, error, info, warn};

use crate::MasterConfig;
use crate::active::ActiveMaster;
use crate::alerts::Alerts;
use crate::cluster::ClusterSnapshot;
use crate::events::{ClusterView, tablet_list};
use crate::health::{Health, all_groups_have_quorum, awaits_leader};
use crate::metrics::MasterMetrics;
use crate::observation::ReadRows;
use crate::plan::auto_merge::{MergeContext, MergeRules};
use crate::plan::capacity::{RepairWithoutRoom, repairs_wait_event};
use crate::plan::drain::{RunningDrains, is_incomplete};
use crate::plan::failure_detector::{FailureDetector, is_only_heard};
use crate::plan::load_settling::LoadSettling;
use crate::plan::repair::{PlanContext, ReplicaChange, detection_timeouts, has_unconfirmed_extras};
use crate::plan::replica_balance::ReplicaBalance;
use crate::plan::upgrade::Readiness;
use crate::plan::{Action, behind, plan};
use crate::problems::MetadataState;
use crate::server_client::InitialState;
use crate::traces::{of_group, traced_action};
use crate::upgrade::{self, UpgradeOptions};
use crate::{division, jobs, observation, problem_watch, restoration, schema_store};

/// Between two rounds that nothing requests earlier.
const ROUND_PERIOD: Duration = Duration::from_secs(60);
/// The minimum between two rounds, so that an action that keeps failing does not keep the cluster busy.
const ROUND_PERIOD_MIN: Duration = Duration::from_secs(1);
/// The longest pause between two rounds while actions fail.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(4);
/// The longest pause between two rounds while registered servers do not respond.
const WAIT_PAUSE_MAX: Duration = Duration::from_secs(16);
/// The timeout of one action.
const ACTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two pings of the servers.
const PING_PERIOD: Duration = Duration::from_secs(2);

/// Reconciles until this master is no longer active. `stopping`: cancelled first when this process stops; later changes of health
/// are not reported.
pub(crate) async fn reconcile(master: ActiveMaster, config: &MasterConfig, stopping: Tasks, metrics: MasterMetrics) {
    let mut reconciler = Reconciler::new(master.clone(), config, stopping, metrics);
    let mut waited = None;
    loop {
        let before = master.chubby().list(paths::SERVERS).await.ok().map(|(_files, revision)| revision);
        let began = reconciler.now();
        let outcome = reconciler.round().await;
        let ended = reconciler.now();
        reconciler.metrics.end_round(outcome.as_ref().ok().copied(), ended.saturating_sub(began), ended);
        if let Err(error) = &outcome {
            debug!(%error, "cannot read cluster state; reconcile postponed");
        }
        let pause = match outcome {
            Ok(RoundOutcome::Complete) => None,
            Ok(RoundOutcome::Waiting) => Some(wait_pause(waited)),
            Ok(RoundOutcome::Incomplete) | Err(_) => Some(wait_pause(waited).min(RETRY_PAUSE_MAX)),
        };
        tokio::time::sleep(master.runtime().rng.jitter(ROUND_PERIOD_MIN)).await;
        let rest = pause.map_or(Duration::MAX, |pause| pause.saturating_sub(ROUND_PERIOD_MIN));
        let delay = reconciler.delay().min(rest);
        let (responding, metadata) = (reconciler.responding.clone(), reconciler.metadata_state());
        // An event may change what the round waits for, so the pauses begin again.
        waited = None;
        tokio::select! {
            () = tokio::time::sleep(delay) => waited = pause,
            () = master.reconcile_requested() => {}
            () = registrations_change(&master, before) => {}
            now = responding_servers_change(&master, &responding) => reconciler.responding = now,
            () = problem_watch::watch(&master, metadata) => {}
        }
    }
}

/// The pause between two rounds while something is left undone. `previous`: the one before, unless an event has ended it. From
/// 1 s it doubles up to 16 s.
fn wait_pause(previous: Option<Duration>) -> Duration {
    previous.map_or(ROUND_PERIOD_MIN, |previous| previous.saturating_mul(2).min(WAIT_PAUSE_MAX))
}

/// Between two rounds that nothing requests earlier: tablets that become quiet are seen in time.
fn round_period(rules: &MergeRules) -> Duration {
    if rules.merge_bytes == 0 {
        return ROUND_PERIOD;
    }
    ROUND_PERIOD.min(rules.merge_after).max(ROUND_PERIOD_MIN)
}

/// The state that lasts from round to round. A new master starts without it.
struct Reconciler {
    master: ActiveMaster,
    metrics: MasterMetrics,
    /// How long a server may be down before its replicas are replaced.
    grace: Duration,
    load_settling: LoadSettling,
    merge_rules: MergeRules,
    balance: ReplicaBalance,
    stopping: Tasks,
    failures: FailureDetector,
    /// Groups whose quorum loss was reported.
    reported_quorum_losses: BTreeSet<GroupId>,
    /// Groups whose repair waits for room, as reported.
    reported_without_room: BTreeSet<GroupId>,
    alerts: Alerts,
    /// The error of the last attempt to read METADATA.
    metadata_error: Option<String>,
    /// Why changes are refused, by the last complete snapshot.
    changes_refused: Option<String>,
    /// The registered servers that responded last.
    responding: BTreeSet<ServerId>,
    /// Since when the next cluster version could be active.
    readiness: Readiness,
    upgrade: UpgradeOptions,
    drains: RunningDrains,
}

/// Returns when the set of responding servers has changed, with the new set.
async fn responding_servers_change(master: &ActiveMaster, before: &BTreeSet<ServerId>) -> BTreeSet<ServerId> {
    loop {
        tokio::time::sleep(PING_PERIOD).await;
        let now = observation::responding_servers(master).await;
        if now != *before {
            return now;
        }
    }
}

/// Returns when a server has registered or lost its lease since the last round started: it may have replicas that are
/// missing.
async fn registrations_change(master: &ActiveMaster, since: Option<Revision>) {
    let Some(since) = since else { return std::future::pending().await };
    match master.chubby().watch(paths::SERVERS, since).await {
        Ok(mut watch) => _ = watch.next().await,
        Err(_unavailable) => std::future::pending().await,
    }
}

/// Whether a round executed its whole plan, and whether the plan is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundOutcome {
    Complete,
    /// It did, as far as it knows: registered servers did not respond, a leader alone has heard from a server, a group elects its leader, or a
    /// drained server has replicas that cannot leave it now.
    Waiting,
    /// An action failed, or a leader could not say yet whether a replica is superfluous.
    Incomplete,
}

impl Reconciler {
    fn new(master: ActiveMaster, config: &MasterConfig, stopping: Tasks, metrics: MasterMetrics) -> Self {
        Self {
            master,
            metrics,
            grace: config.repair_grace,
            load_settling: LoadSettling::default(),
            merge_rules: config.merges,
            balance: config.replica_balance,
            stopping,
            failures: FailureDetector::default(),
            reported_quorum_losses: BTreeSet::new(),
            reported_without_room: BTreeSet::new(),
            alerts: Alerts::default(),
            metadata_error: None,
            changes_refused: None,
            responding: BTreeSet::new(),
            readiness: Readiness::default(),
            upgrade: UpgradeOptions { delay: config.upgrade_delay, versions: config.versions },
            drains: RunningDrains::default(),
        }
    }

    /// The delay until the next round, unless one is requested: shorter when a detection timeout, an alert or a plan by loads is due.
    fn delay(&self) -> Duration {
        let period = self.master.runtime().rng.jitter(round_period(&self.merge_rules));
        let now = self.now();
        let upgrade = self.readiness.remaining(now, self.upgrade.delay).map(|(_version, remaining)| remaining);
        let detection = self.failures.next_timeout(now, &detection_timeouts(self.grace));
        let due = [detection, self.alerts.next_due(now), upgrade, self.load_settling.next_plan(now)];
        due.into_iter().flatten().fold(period, Duration::min)
    }

    /// Whether the last round could read METADATA.
    const fn metadata_state(&self) -> MetadataState {
        if self.metadata_error.is_some() { MetadataState::Unreadable } else { MetadataState::Readable }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.token().is_cancelled()
    }

    fn now(&self) -> Duration {
        self.master.runtime().clock.monotonic()
    }

    /// The view of a snapshot that matters to operators.
    async fn view(&self, snapshot: &ClusterSnapshot) -> ClusterView {
        let health = Health::of(snapshot, self.master.replicas());
        let addresses = observation::addresses(&self.master, snapshot).await;
        let repairs = self.master.replica_changes().repairs();
        ClusterView {
            metadata: self.metadata_error.clone(),
            changes_refused: self.changes_refused.clone(),
            repairs,
            unknown_tables: BTreeSet::clone(&self.master.unknown_tables()),
            ..ClusterView::of(snapshot, &health, &addresses)
        }
    }

    /// Logs what has changed for operators.
    fn log_events(&mut self, view: &ClusterView) {
        self.metrics.observe(view);
        if !self.is_stopping() {
            for event in self.alerts.observe(view, self.now()) {
                event.log();
                self.master.record_event(&event.to_record());
            }
        }
    }

    /// Observes the cluster: first the servers, which is quick, then METADATA, which may be unavailable with them.
    async fn observe(&mut self) -> Result<ClusterSnapshot, Error> {
        let master = self.master.clone();
        let servers = observation::observe_servers(&master).await?;
        self.responding = servers.iter().filter(|(_id, one)| one.report.is_some()).map(|(id, _one)| *id).collect();
        let mut known = observation::with_cached_metadata(&master, servers.clone());
        known.servers.extend(observation::observe_unregistered(&master, &known).await);
        let mut view = self.view(&known).await;
        self.log_events(&view);
        if self.metadata_error.is_some() || master.directory().root_tablet().is_none() {
            // Perhaps because something is lost.
            if let Err(error) = restoration::restore(&master, &known.servers).await {
                debug!(%error, "cannot determine whether METADATA has lost rows");
            }
        }
        let metadata = observation::read_metadata(&master);
        tokio::pin!(metadata);
        let outcome = loop {
            let due = self.alerts.next_due(self.now()).filter(|_due| !self.is_stopping());
            let Some(due) = due else { break metadata.await };
            tokio::select! {
                outcome = &mut metadata => break outcome,
                () = tokio::time::sleep(due) => self.log_events(&view),
            }
        };
        self.metadata_error = outcome.as_ref().err().map(ToString::to_string);
        if outcome.is_err() {
            view.metadata = self.metadata_error.clone();
            self.log_events(&view);
            problem_watch::record(&master, &known, MetadataState::Unreadable);
        }
        let root = master.directory().root_tablet();
        let ReadRows { rows: metadata, damaged: damaged_rows } = outcome?;
        let mut observed = ClusterSnapshot { servers, metadata, damaged_rows, root, ..ClusterSnapshot::default() };
        observed.servers.extend(observation::observe_unregistered(&master, &observed).await);
        // After all reports: a table that is created meanwhile must be listed when its tablets are reported.
        let snapshot = observation::with_chubby(&master, observed).await?;
        self.changes_refused = snapshot.behind.as_ref().map(|reasons| reasons.join("; "));
        master.cache_metadata(&snapshot.metadata);
        let view = self.view(&snapshot).await;
        self.log_events(&view);
        problem_watch::record(&master, &snapshot, MetadataState::Readable);
        Ok(snapshot)
    }

    /// One round: observe, plan, execute.
    async fn round(&mut self) -> Result<RoundOutcome, Error> {
        // Read before the snapshot is taken: a change that ends meanwhile is left to the next round, which sees its
        // result.
        let in_progress = self.master.replica_changes().in_progress();
        let merges = MergeContext { rules: self.merge_rules, memory: self.master.merges().memory() };
        let snapshot = self.observe().await?;
        let now = self.master.runtime().clock.monotonic();
        self.failures.observe(&snapshot, now);
        self.load_settling.observe(&snapshot, now);
        for server in self.drains.finished(&snapshot) {
            let finished = NewClusterEvent::new(ClusterEventKind::DrainFinished, "no replica is left");
            self.master.record_event(&finished.of_server(server));
        }
        self.master.merges().retain(&snapshot);
        let ctx = PlanContext {
            now,
            grace: self.grace,
            replicas: self.master.replicas(),
            failures: self.failures.clone(),
            balance: self.balance,
            loads: self.load_settling.loads(now),
            in_progress,
            merges,
        };
        // Until it is known whether Chubby is behind, nothing is done but what makes it known.
        let is_certain = all_groups_have_quorum(&snapshot) || self.master.has_waited_for_evidence();
        let actions = if is_certain { plan(&snapshot, &ctx) } else { behind::actions(&snapshot).unwrap_or_default() };
        self.reported_quorum_losses.retain(|reported| {
            actions.iter().any(|action| matches!(action, Action::ReportQuorumLoss { group, .. } if group == reported))
        });
        self.log_quorum_loss(&actions);
        self.report_repairs_without_room(&actions);
        let mut outcome = RoundOutcome::Complete;
        let mut blocked_tables = BTreeSet::new();
        for action in &actions {
            let table = match action {
                Action::WriteRow(tablet) | Action::RemoveObsoleteRow(tablet) => Some(tablet.table),
                _ => None,
            };
            if table.is_some_and(|table| blocked_tables.contains(&table)) {
                continue;
            }
            let executed = self.execute(action).await;
            self.metrics.count_action(action, &executed);
            match executed {
                Ok(ActionOutcome::Completed) => info!(%action, "action executed"),
                Ok(ActionOutcome::NotLogged) => {}
                Err(error) => {
                    warn!(%action, %error, "action failed; will retry in next reconcile");
                    if matches!(action, Action::RecordBehind(_) | Action::RaiseCounter { .. }) {
                        // A counter that is raised without the record would hide what Chubby lacks.
                        return Ok(RoundOutcome::Incomplete);
                    }
                    blocked_tables.extend(table);
                    outcome = RoundOutcome::Incomplete;
                }
            }
        }
        if is_certain {
            self.master.note_comparison(&snapshot.highest_ids());
        }
        if let Err(error) = self.advance_version(&snapshot).await {
            warn!(%error, "cluster version not determined; will retry in next reconcile");
            outcome = RoundOutcome::Incomplete;
        }
        // After the execution: who sees them reported knows that this round removes nothing of them.
        if self.report_unknown_tables(&actions)
            || actions.iter().any(|action| matches!(action, Action::ChangeReplicas(_)))
        {
            let view = self.view(&snapshot).await;
            self.log_events(&view);
        }
        Ok(match outcome {
            RoundOutcome::Complete if has_unconfirmed_extras(&snapshot) => RoundOutcome::Incomplete,
            RoundOutcome::Complete if !snapshot.all_registered_responded() || is_only_heard(&snapshot) => {
                RoundOutcome::Waiting
            }
            RoundOutcome::Complete if is_incomplete(&snapshot) || awaits_leader(&snapshot) => RoundOutcome::Waiting,
            RoundOutcome::Complete if !self.master.is_compared() => RoundOutcome::Waiting,
            outcome => outcome,
        })
    }

    /// Makes the next cluster version active when every process has supported it for long enough.
    async fn advance_version(&mut self, snapshot: &ClusterSnapshot) -> Result<(), Error> {
        let advanced = upgrade::advance(&self.master, snapshot, &mut self.readiness, self.upgrade).await;
        self.master.set_upgrade_readiness(self.readiness, self.upgrade.delay);
        advanced
    }

    /// Raises the quorum loss alert, once for each group that cannot be repaired unless dead servers return.
    fn log_quorum_loss(&mut self, actions: &[Action]) {
        let mut groups = 0;
        let mut lost: Vec<TabletId> = Vec::new();
        for action in actions {
            if let Action::ReportQuorumLoss { group, tablets, .. } = action
                && self.reported_quorum_losses.insert(*group)
            {
                groups += 1;
                lost.extend(tablets);
            }
        }
        if groups > 0 {
            let (tablets, first) = (lost.len(), tablet_list(&lost));
            error!(
                groups,
                tablets,
                first,
                "quorum loss: a majority of replicas is dead; replica repair is impossible until servers return"
            );
        }
    }

    /// Reports the repairs that wait for room: in the status, once for each group in the log, and those of one round as one event.
    fn report_repairs_without_room(&mut self, actions: &[Action]) {
        let waiting = |action: &Action| match action {
            Action::ReportNoRoom(repair) => Some(repair.clone()),
            _ => None,
        };
        let waiting: Vec<RepairWithoutRoom> = actions.iter().filter_map(waiting).collect();
        let new: Vec<&RepairWithoutRoom> =
            waiting.iter().filter(|repair| !self.reported_without_room.contains(&repair.group)).collect();
        if let Some(event) = repairs_wait_event(&new) {
            self.master.record_event(&event);
        }
        for repair in new {
            let (group, server, reason) = (repair.group, repair.server, repair.message());
            warn!(%group, %server, reason, "replica repair waits: no server has room");
        }
        self.reported_without_room = waiting.iter().map(|repair| repair.group).collect();
        self.master.set_repairs_without_room(waiting);
    }

    /// Reports the tables that Chubby does not know, in the status and as an alert. Whether they are others than before.
    fn report_unknown_tables(&self, actions: &[Action]) -> bool {
        let unknown = |action: &Action| match action {
            Action::ReportUnknownTable { table, .. } => Some(*table),
            _ => None,
        };
        let unknown: BTreeSet<TableId> = actions.iter().filter_map(unknown).collect();
        let has_changed = *self.master.unknown_tables() != unknown;
        self.master.set_unknown_tables(unknown);
        has_changed
    }

    async fn execute(&self, action: &Action) -> Result<ActionOutcome, Error> {
        match action {
            Action::ChangeReplicas(change) => {
                self.master.replica_changes().clone().start(&self.master, ReplicaChange::clone(change));
                return Ok(ActionOutcome::NotLogged);
            }
            Action::MergeTablets(merge) => {
                self.master.merges().start(&self.master, merge.clone());
                return Ok(ActionOutcome::NotLogged);
            }
            Action::CreateReplica { group, replica } => {
                let servers = self.master.servers();
                let created = servers.create_replica(replica.server, group, replica.replica, InitialState::Empty);
                created.await.map_err(|failed| failed.error)?;
            }
            Action::ReportQuorumLoss { .. } | Action::ReportNoRoom(_) | Action::ReportUnknownTable { .. } => {
                return Ok(ActionOutcome::NotLogged);
            }
            Action::DropReplica { .. } => {
                execute(&self.master, action).await?;
                // Another move may follow, or the server may be empty now.
                self.master.request_reconcile();
            }
            Action::DivideGroup(group) => return Ok(divide_group(&self.master, group.group).await),
            Action::TransferLeader { group, from, to } => {
                return Ok(transfer_leader(&self.master, group, *from, *to).await);
            }
            other => execute(&self.master, other).await?,
        }
        Ok(ActionOutcome::Completed)
    }
}

/// Requests another round after a transfer, because a plan transfers few, and when the target lags behind. Other
/// failures can wait: the group is served as it is.
async fn transfer_leader(
    master: &ActiveMaster,
    group: &GroupDescriptor,
    from: ServerId,
    to: ServerId,
) -> ActionOutcome {
    let transfer = async { master.servers().transfer(from, group, to).await.map_err(|failed| failed.error) };
    match master.traced("TransferLeader", of_group(group.group), transfer).await {
        Ok(()) => {
            master.request_reconcile();
            ActionOutcome::Completed
        }
        Err(error) => {
            debug!(group = %group.group, %from, %to, %error, "leader balance: transfer failed");
            if error.reason == Reason::Busy {
                master.request_reconcile();
            }
            ActionOutcome::NotLogged
        }
    }
}

/// Requests another round after a division, whose halves may move apart. A failure can wait: the group is served as it is.
async fn divide_group(master: &ActiveMaster, group: GroupId) -> ActionOutcome {
    match master.traced("DivideGroup", of_group(group), division::divide(master, group)).await {
        Ok(_divided) => {
            master.request_reconcile();
            ActionOutcome::Completed
        }
        Err(error) => {
            warn!(%group, %error, "replica balance: group not divided");
            ActionOutcome::NotLogged
        }
    }
}

/// Whether an action is worth a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActionOutcome {
    Completed,
    NotLogged,
}

/// Executes the actions that need no state of the reconciler. Those that finish the work of a call are operations of their own.
pub(crate) async fn execute(master: &ActiveMaster, action: &Action) -> Result<(), Error> {
    let work = Box::pin(execute_untraced(master, action));
    match traced_action(action) {
        Some((method, ids)) => master.traced(method, ids, work).await,
        None => work.await,
    }
}

/// See [`execute`].
async fn execute_untraced(master: &ActiveMaster, action: &Action) -> Result<(), Error> {
    let deadline = master.deadline(ACTION_TIMEOUT);
    match action {
        Action::WriteRoot(root) => write_root(master, root).await,
        Action::WriteRow(tablet) => {
            master.metadata().put_descriptor(tablet, &Annotations::default(), deadline).await.map(drop)
        }
        Action::RemoveObsoleteRow(old) => master.metadata().delete(old, deadline).await.map(drop),
        Action::RemoveDamagedRow(row) => master.metadata().delete_damaged(row, deadline).await,
        Action::ReplaceFalseRow { present, to } => {
            master.metadata().replace_false(present, to.as_ref(), deadline).await
        }
        Action::RemoveRow { row, tablet } => {
            let entries = master.metadata().read_range(KeyRange::single(row.clone()), deadline).await?;
            for entry in entries.iter().filter(|entry| entry.descriptor.tablet == *tablet) {
                master.metadata().delete(&entry.descriptor, deadline).await?;
            }
            Ok(())
        }
        Action::FinishGroup(group) => jobs::create_groups::finish(master, *group, deadline).await,
        Action::FinishCreate(table) => jobs::create::finish(master, *table, deadline).await,
        Action::ApplySchema(table) => jobs::update_schema::finish(master, *table, deadline).await,
        Action::FinishOperation(operation) => jobs::drop_range::finish(master, *operation, deadline).await,
        Action::FinishDelete(table) => jobs::delete::finish(master, *table, deadline).await,
        Action::RecordBehind(reasons) => {
            let write = Write::put(paths::BEHIND, schema_store::encode_behind(reasons));
            // A conflict means that it was recorded before.
            master.transact(vec![Compare::Absent(paths::BEHIND.to_owned())], vec![write]).await?;
            let reason = reasons.join("; ");
            error!(
                reason,
                "the lock service lacks changes that servers have; changes are refused until `ebla recover`"
            );
            Ok(())
        }
        Action::RaiseCounter { counter, next } => Ok(raise_counter(master.chubby(), *counter, *next).await?),
        Action::RemoveDeletionRecord(table) => {
            master.transact(Vec::new(), vec![Write::delete(paths::deleted(*table))]).await.map(drop)
        }
        Action::DropReplica { server, group, replica, membership_log_id } => {
            let dropped = master.servers().drop_replica(*server, *group, *replica, *membership_log_id);
            dropped.await.map_err(|failed| failed.error)
        }
        // Executed by [`Reconciler::execute`].
        Action::ChangeReplicas(_)
        | Action::CreateReplica { .. }
        | Action::MergeTablets(_)
        | Action::ReportQuorumLoss { .. }
        | Action::ReportNoRoom(_)
        | Action::ReportUnknownTable { .. }
        | Action::DivideGroup(_)
        | Action::TransferLeader { .. } => Ok(()),
    }
}

/// Replaces the `root` file unless the stored one is newer.
async fn write_root(master: &ActiveMaster, root: &TabletDescriptor) -> Result<(), Error> {
    let stored = schema_store::read_root(master.chubby()).await?;
    let compare = match &stored {
        Some(stored) if stored.value.fence() >= root.fence() => return Ok(()),
        Some(stored) => Compare::Modified(paths::ROOT.to_owned(), stored.modified),
        None => Compare::Absent(paths::ROOT.to_owned()),
    };
    let write = Write::put(paths::ROOT, convert::descriptor_to_bytes(root));
    master.transact(vec![compare], vec![write]).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_to_its_maximum_and_begins_again_after_an_event() {
        let pauses = std::iter::successors(Some(wait_pause(None)), |previous| Some(wait_pause(Some(*previous))));
        let seconds: Vec<u64> = pauses.take(7).map(|pause| pause.as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 16, 16]);
    }
}

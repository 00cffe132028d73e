//! The metrics of a master: what its rounds find and do. Those of a standby do not change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_runtime::metrics::{Counter, Family, Histogram, Sample, Source};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::active::ActiveMaster;
use crate::events::{ClusterView, ServerState};
use crate::plan::Action;
use crate::plan::repair::ChangeReason;
use crate::reconciler::RoundOutcome;

static ACTIVE: Family = Family::gauge("ebla_master_active", &[], "Whether this master is the active one");
static TERMS: Family =
    Family::counter("ebla_master_terms_total", &[], "How often this process became the active master");
static EPOCH: Family = Family::gauge("ebla_master_epoch", &[], "The epoch of the active master; absent at a standby");
static ROUNDS: Family = Family::counter(
    "ebla_master_rounds_total",
    &["outcome"],
    "Rounds of the reconciler: complete, waiting (registered servers did not respond, or a drain goes on), incomplete (an action \
     failed), failed (the cluster could not be read)",
);
static ROUND_TIME: Family = Family::histogram(
    "ebla_master_round_seconds",
    &[],
    "Time of a round: observe, plan, and start or execute the actions",
);
static ROUND_AGE: Family = Family::gauge(
    "ebla_master_last_round_age_seconds",
    &[],
    "Time since the last round that read the cluster has ended; absent at a standby and before the first one",
);
static ACTIONS: Family = Family::counter(
    "ebla_master_actions_total",
    &["action", "outcome"],
    "Actions of rounds by kind: ok, failed; changes of replicas and merges run on in the background and are counted when they start",
);
static SERVERS: Family = Family::gauge(
    "ebla_master_tablet_servers",
    &["state"],
    "Tablet servers by state: up, unregistered (its lease has expired, or it is stopping), unresponsive (registered only), down",
);
static UNDER_REPLICATED: Family = Family::gauge(
    "ebla_master_under_replicated_tablets",
    &[],
    "Tablets with fewer live replicas than they should have",
);
static WITHOUT_QUORUM: Family = Family::gauge(
    "ebla_master_tablets_without_quorum",
    &[],
    "Tablets that cannot commit, because a majority of their replicas is dead",
);
static METADATA_READABLE: Family =
    Family::gauge("ebla_master_metadata_readable", &[], "Whether the active master can read METADATA");
static UNKNOWN_TABLES: Family = Family::gauge(
    "ebla_master_unknown_tables",
    &[],
    "Tables of which servers have tablets, and that Chubby does not know",
);
static REPLICA_CHANGES: Family = Family::gauge(
    "ebla_master_replica_changes",
    &["reason"],
    "Changes of replicas that run now: repair, drain, balance",
);
static WITHOUT_ROOM: Family =
    Family::gauge("ebla_master_repairs_without_room", &[], "Repairs that wait because no server has room");

/// All metrics of a master.
pub static FAMILIES: &[&Family] = &[
    &ACTIVE,
    &TERMS,
    &EPOCH,
    &ROUNDS,
    &ROUND_TIME,
    &ROUND_AGE,
    &ACTIONS,
    &SERVERS,
    &UNDER_REPLICATED,
    &WITHOUT_QUORUM,
    &METADATA_READABLE,
    &UNKNOWN_TABLES,
    &REPLICA_CHANGES,
    &WITHOUT_ROOM,
];

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RoundEnd {
    Complete,
    Waiting,
    Incomplete,
    Failed,
}

impl RoundEnd {
    const ALL: [Self; 4] = [Self::Complete, Self::Waiting, Self::Incomplete, Self::Failed];

    const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Waiting => "waiting",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// The figures of a master process. Cheap to clone; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct MasterMetrics(Arc<Figures>);

#[derive(Debug, Default)]
struct Figures {
    terms: Counter,
    rounds: [Counter; RoundEnd::ALL.len()],
    round_time: Histogram,
    /// By kind: succeeded, failed. As many entries as kinds. Locked for an addition.
    actions: Mutex<BTreeMap<&'static str, (u64, u64)>>,
    /// What the active master saw last, and when its last round ended. Locked to replace it.
    observed: Mutex<Observed>,
}

#[derive(Debug, Default)]
struct Observed {
    view: Option<ClusterView>,
    round_ended: Option<Duration>,
}

impl MasterMetrics {
    /// This process became the active master.
    ///
    /// `now`: monotonic. The age of the last round counts from here, so that a first round that never ends is seen.
    pub(crate) fn begin_term(&self, now: Duration) {
        self.0.terms.increment();
        *self.0.observed.lock() = Observed { view: None, round_ended: Some(now) };
    }

    /// The active master has seen the cluster like this.
    pub(crate) fn observe(&self, view: &ClusterView) {
        self.0.observed.lock().view = Some(view.clone());
    }

    /// A round has ended. `now`: monotonic.
    pub(crate) fn end_round(&self, outcome: Option<RoundOutcome>, took: Duration, now: Duration) {
        let end = match outcome {
            Some(RoundOutcome::Complete) => RoundEnd::Complete,
            Some(RoundOutcome::Waiting) => RoundEnd::Waiting,
            Some(RoundOutcome::Incomplete) => RoundEnd::Incomplete,
            None => RoundEnd::Failed,
        };
        let rounds = RoundEnd::ALL.into_iter().zip(&self.0.rounds);
        rounds.filter(|(known, _count)| *known == end).for_each(|(_end, count)| count.increment());
        self.0.round_time.record(took);
        if outcome.is_some() {
            self.0.observed.lock().round_ended = Some(now);
        }
    }

    /// An action was executed or started, or has failed.
    pub(crate) fn count_action<T, E>(&self, action: &Action, outcome: &Result<T, E>) {
        let mut actions = self.0.actions.lock();
        let (succeeded, failed) = actions.entry(kind(action)).or_default();
        let count = if outcome.is_ok() { succeeded } else { failed };
        *count = count.saturating_add(1);
    }

    fn counters(&self) -> Vec<Sample> {
        let mut samples = vec![TERMS.sample([], self.0.terms.get())];
        for (end, count) in RoundEnd::ALL.into_iter().zip(&self.0.rounds) {
            samples.push(ROUNDS.sample([end.name().into()], count.get()));
        }
        samples.push(ROUND_TIME.sample([], self.0.round_time.counts()));
        for (action, (succeeded, failed)) in self.0.actions.lock().iter() {
            samples.push(ACTIONS.sample([(*action).into(), "ok".into()], *succeeded));
            samples.push(ACTIONS.sample([(*action).into(), "failed".into()], *failed));
        }
        samples
    }

    fn view(&self, now: Duration) -> Vec<Sample> {
        let observed = self.0.observed.lock();
        let mut samples = Vec::new();
        if let Some(ended) = observed.round_ended {
            samples.push(ROUND_AGE.sample([], now.saturating_sub(ended).as_secs_f64()));
        }
        let Some(view) = &observed.view else { return samples };
        for (state, name) in [
            (ServerState::Up, "up"),
            (ServerState::Unregistered, "unregistered"),
            (ServerState::Unresponsive, "unresponsive"),
            (ServerState::Down, "down"),
        ] {
            let servers = view.servers.values().filter(|server| server.state == state).count();
            samples.push(SERVERS.sample([name.into()], servers));
        }
        samples.push(UNDER_REPLICATED.sample([], view.shortage.map_or(0, |shortage| shortage.tablets)));
        samples.push(WITHOUT_QUORUM.sample([], view.without_quorum.len()));
        samples.push(METADATA_READABLE.sample([], view.metadata.is_none()));
        samples.push(UNKNOWN_TABLES.sample([], view.unknown_tables.len()));
        samples
    }
}

/// The name of an action's kind in metrics.
const fn kind(action: &Action) -> &'static str {
    match action {
        Action::RecordBehind(_) => "record-behind",
        Action::RaiseCounter { .. } => "raise-counter",
        Action::WriteRoot(_) => "write-root",
        Action::WriteRow(_) => "write-row",
        Action::RemoveDamagedRow(_) => "remove-damaged-row",
        Action::ReplaceFalseRow { .. } => "replace-false-row",
        Action::RemoveRow { .. } => "remove-row",
        Action::RemoveObsoleteRow(_) => "remove-obsolete-row",
        Action::FinishGroup(_) => "finish-group",
        Action::FinishCreate(_) => "finish-create",
        Action::ApplySchema(_) => "apply-schema",
        Action::FinishOperation(_) => "finish-operation",
        Action::FinishDelete(_) => "finish-delete",
        Action::RemoveDeletionRecord(_) => "remove-deletion-record",
        Action::ReportUnknownTable { .. } => "report-unknown-table",
        Action::ChangeReplicas(change) => match change.reason {
            ChangeReason::Repair => "replica-repair",
            ChangeReason::Drain => "replica-drain",
            ChangeReason::Balance => "replica-balance",
        },
        Action::CreateReplica { .. } => "create-replica",
        Action::ReportQuorumLoss { .. } => "report-quorum-loss",
        Action::ReportNoRoom(_) => "report-no-room",
        Action::DivideGroup(_) => "divide-group",
        Action::TransferLeader { .. } => "transfer-leader",
        Action::MergeTablets(_) => "merge-tablets",
        Action::DropReplica { .. } => "drop-replica",
    }
}

/// The samples of a master process.
pub(crate) struct MasterSource {
    pub(crate) metrics: MasterMetrics,
    pub(crate) active: watch::Receiver<Option<ActiveMaster>>,
    pub(crate) clock: ebla_runtime::Clock,
}

impl Source for MasterSource {
    fn samples(&self) -> BoxFuture<'_, Vec<Sample>> {
        Box::pin(async {
            let active = self.active.borrow().clone();
            let mut samples = vec![ACTIVE.sample([], active.is_some())];
            samples.extend(self.metrics.counters());
            let Some(master) = active else { return samples };
            samples.push(EPOCH.sample([], master.epoch().get()));
            samples.extend(self.metrics.view(self.clock.monotonic()));
            samples.push(WITHOUT_ROOM.sample([], master.repairs_without_room().len()));
            let changes = master.replica_changes();
            for (reason, name) in
                [(ChangeReason::Repair, "repair"), (ChangeReason::Drain, "drain"), (ChangeReason::Balance, "balance")]
            {
                samples.push(REPLICA_CHANGES.sample([name.into()], changes.running(reason)));
            }
            samples
        })
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::id::TableId;
    use ebla_runtime::metrics::{SampleValue, table_faults};

    use super::*;

    fn value(samples: &[Sample], family: &Family, labels: &[&str]) -> Option<SampleValue> {
        let found = samples.iter().find(|sample| sample.family == family && sample.labels == labels);
        found.map(|sample| sample.value.clone())
    }

    #[test]
    fn rounds_and_actions_are_counted_by_their_outcome() {
        let metrics = MasterMetrics::default();
        let second = Duration::from_secs(1);
        metrics.begin_term(second);
        assert_eq!(
            value(&metrics.view(second * 4), &ROUND_AGE, &[]),
            Some(3.0.into()),
            "the first round has not ended"
        );
        metrics.end_round(Some(RoundOutcome::Complete), second, second * 10);
        metrics.end_round(None, second, second * 20);
        let action = Action::FinishCreate(TableId::new(7));
        metrics.count_action::<(), ()>(&action, &Ok(()));
        metrics.count_action::<(), ()>(&action, &Err(()));
        let counters = metrics.counters();
        assert_eq!(value(&counters, &ROUNDS, &["complete"]), Some(1_u64.into()));
        assert_eq!(value(&counters, &ROUNDS, &["failed"]), Some(1_u64.into()));
        assert_eq!(value(&counters, &ACTIONS, &["finish-create", "failed"]), Some(1_u64.into()));
        let view = metrics.view(second * 25);
        assert_eq!(value(&view, &ROUND_AGE, &[]), Some(15.0.into()), "a round that read nothing does not count");
        assert_eq!(value(&view, &WITHOUT_QUORUM, &[]), None, "nothing is known yet");
        metrics.observe(&ClusterView::default());
        assert_eq!(value(&metrics.view(second), &WITHOUT_QUORUM, &[]), Some(0_u64.into()));
        metrics.begin_term(second);
        assert_eq!(value(&metrics.view(second), &WITHOUT_QUORUM, &[]), None, "what the last term saw is gone");
    }

    #[test]
    fn the_table_is_well_formed() {
        assert_eq!(table_faults(FAMILIES), Vec::<String>::new());
    }
}

//! Carries out plans: the reconciler, which looks at the whole cluster at the start of a term, every minute, when a server
//! comes or goes, and when something was left unfinished.
//!
//! An action that fails is tried again in the next round, with a new picture. Rows of METADATA are written in the plan's
//! order, and a table's later rows wait when an earlier one fails: the order is what keeps lookups whole.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_chubby::{Compare, Revision, Write, paths};
use ebla_client::metadata::Note;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::TableSchema;
use ebla_proto::convert;
use ebla_runtime::Tasks;
use tracing::{debug, error, info, warn};

use crate::cluster::{Cluster, Presence};
use crate::events::{Alerts, Event, View, named};
use crate::health::Health;
use crate::office::Office;
use crate::orders::Beginning;
use crate::plan::repair::{Change, Circumstances, is_unsure, pauses};
use crate::plan::suspicion::Suspicions;
use crate::plan::{Action, plan};
use crate::{creation, deletion, drop_range, observe, records, schema};

/// Between two rounds when nothing calls for one.
const PERIOD: Duration = Duration::from_secs(60);
/// Between two rounds at least, so that what keeps failing does not keep the cluster busy.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// How long one action may take.
const ACTION_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at which servers answer.
const ANSWERS_PERIOD: Duration = Duration::from_secs(2);

/// Reconciles for as long as the term lasts. `grace`: how long a server may be gone before its replicas are made elsewhere.
/// `stopping`: told to end when this master is; what happens then is no news.
pub(crate) async fn reconcile(office: Office, grace: Duration, stopping: Tasks) {
    let mut reconciler = Reconciler::new(office.clone(), grace, stopping);
    loop {
        let before = office.chubby().list(paths::SERVERS).await.ok().map(|(_files, revision)| revision);
        match reconciler.round().await {
            Ok(Rest::Done) => {}
            Ok(Rest::Left) => office.leave_unfinished(),
            Err(error) => {
                debug!(%error, "no picture of the cluster");
                office.leave_unfinished();
            }
        }
        tokio::time::sleep(office.runtime().rng.jitter(PERIOD_MIN)).await;
        let answering = reconciler.answering.clone();
        tokio::select! {
            () = tokio::time::sleep(reconciler.pause()) => {}
            () = office.unfinished() => {}
            () = servers_change(&office, before) => {}
            now = answers_change(&office, &answering) => reconciler.answering = now,
        }
    }
}

/// What a term of office remembers from round to round; a new master begins without it.
struct Reconciler {
    office: Office,
    grace: Duration,
    stopping: Tasks,
    suspicions: Suspicions,
    /// Tablets without a majority that a person has been told of.
    told: BTreeSet<TabletId>,
    alerts: Alerts,
    /// Why METADATA could not be read when that was tried last.
    unreadable: Option<String>,
    /// The registered servers that answered last.
    answering: BTreeSet<ServerId>,
}

/// Returns when other servers answer than before; those that do now.
async fn answers_change(office: &Office, before: &BTreeSet<ServerId>) -> BTreeSet<ServerId> {
    loop {
        tokio::time::sleep(ANSWERS_PERIOD).await;
        let now = observe::answering(office).await;
        if now != *before {
            return now;
        }
    }
}

/// Returns when a server came or went since the last round began: one that comes back may hold what is gone.
async fn servers_change(office: &Office, since: Option<Revision>) {
    let Some(since) = since else { return std::future::pending().await };
    match office.chubby().watch(paths::SERVERS, since).await {
        Ok(mut watch) => _ = watch.next().await,
        Err(_away) => std::future::pending().await,
    }
}

/// Whether a round did all it planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Done,
    Left,
}

impl Reconciler {
    fn new(office: Office, grace: Duration, stopping: Tasks) -> Self {
        Self {
            office,
            grace,
            stopping,
            suspicions: Suspicions::default(),
            told: BTreeSet::new(),
            alerts: Alerts::default(),
            unreadable: None,
            answering: BTreeSet::new(),
        }
    }

    /// Until the next round, when nothing calls for one before: sooner when a grace is about to end, or something is to be told
    /// if it lasts.
    fn pause(&self) -> Duration {
        let usual = self.office.runtime().rng.jitter(PERIOD);
        let now = self.now();
        let due = [self.suspicions.next(now, &pauses(self.grace)), self.alerts.due(now)];
        due.into_iter().flatten().fold(usual, Duration::min)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.token().is_cancelled()
    }

    fn now(&self) -> Duration {
        self.office.runtime().clock.monotonic()
    }

    /// What matters to operators of a picture.
    async fn view(&self, picture: &Cluster) -> View {
        let health = Health::of(picture, self.office.replicas());
        let addresses = observe::addresses(&self.office, picture).await;
        let repairs = self.office.repairs().under_way().len();
        View { metadata: self.unreadable.clone(), repairs, ..View::of(picture, &health, &addresses) }
    }

    /// Tells operators what has changed.
    fn tell(&mut self, view: &View) {
        if !self.is_stopping() {
            self.alerts.follow(view, self.now()).iter().for_each(Event::log);
        }
    }

    /// Looks: first at the servers, which is quick, then at METADATA, which may be lost with them.
    async fn look(&mut self) -> Result<Cluster, Error> {
        let office = self.office.clone();
        let servers = observe::observe_servers(&office).await?;
        self.answering = servers.iter().filter(|(_id, one)| one.report.is_some()).map(|(id, _one)| *id).collect();
        let mut quick = observe::as_known(&office, servers.clone());
        quick.servers.extend(observe::observe_strays(&office, &quick).await);
        let mut view = self.view(&quick).await;
        self.tell(&view);
        let rest = observe::read_metadata(&office);
        tokio::pin!(rest);
        let outcome = loop {
            let due = self.alerts.due(self.now()).filter(|_due| !self.is_stopping());
            let Some(due) = due else { break rest.await };
            tokio::select! {
                outcome = &mut rest => break outcome,
                () = tokio::time::sleep(due) => self.tell(&view),
            }
        };
        self.unreadable = outcome.as_ref().err().map(ToString::to_string);
        if outcome.is_err() {
            view.metadata = self.unreadable.clone();
            self.tell(&view);
        }
        let seen = Cluster { servers, metadata: outcome?, ..Cluster::default() };
        let mut picture = observe::with_chubby(&office, seen).await?;
        picture.servers.extend(observe::observe_strays(&office, &picture).await);
        office.remember(&picture.metadata);
        let view = self.view(&picture).await;
        self.tell(&view);
        Ok(picture)
    }

    /// Looks, plans, acts.
    async fn round(&mut self) -> Result<Rest, Error> {
        // Before the picture is taken: a change that ends meanwhile is left to the next round, which sees what it did.
        let under_way = self.office.repairs().under_way();
        let picture = self.look().await?;
        let now = self.office.runtime().clock.monotonic();
        self.suspicions.follow(&picture, now);
        let around = Circumstances {
            now,
            grace: self.grace,
            replicas: self.office.replicas(),
            suspicions: self.suspicions.clone(),
            under_way,
        };
        let actions = plan(&picture, &around);
        self.told.retain(|told| {
            actions.iter().any(|action| matches!(action, Action::TellLost { tablet, .. } if tablet == told))
        });
        self.tell_lost(&actions);
        let mut rest = Rest::Done;
        let mut held_up = BTreeSet::new();
        for action in &actions {
            let table = match action {
                Action::WriteRow(tablet) => Some(tablet.table),
                _ => None,
            };
            if table.is_some_and(|table| held_up.contains(&table)) {
                continue;
            }
            match self.execute(&picture, action).await {
                Ok(Told::Anew) => info!(%action, "done"),
                Ok(Told::Before) => {}
                Err(error) => {
                    warn!(%action, %error, "left for the next round");
                    held_up.extend(table);
                    rest = Rest::Left;
                }
            }
        }
        if actions.iter().any(|action| matches!(action, Action::ChangeReplicas(_))) {
            let view = self.view(&picture).await;
            self.tell(&view);
        }
        Ok(if may_rest(&picture) && !is_unsure(&picture) { rest } else { Rest::Left })
    }

    /// Tells of tablets that will not be repaired unless lost servers come back, once of each.
    fn tell_lost(&mut self, actions: &[Action]) {
        let lost = actions.iter().filter_map(|action| match action {
            Action::TellLost { tablet, .. } => Some(*tablet),
            _ => None,
        });
        let fresh: Vec<TabletId> = lost.filter(|tablet| self.told.insert(*tablet)).collect();
        if !fresh.is_empty() {
            let (tablets, first) = (fresh.len(), named(&fresh));
            error!(
                tablets,
                first, "tablets have lost a majority of their replicas and cannot be repaired without them"
            );
        }
    }

    async fn execute(&self, picture: &Cluster, action: &Action) -> Result<Told, Error> {
        match action {
            Action::ChangeReplicas(change) => {
                let Some(schema) = schema_of(picture, change.tablet.table) else { return Ok(Told::Before) };
                self.office.repairs().clone().start(&self.office, Change::clone(change), schema);
                return Ok(Told::Before);
            }
            Action::MakeReplica { tablet, replica } => {
                let Some(schema) = schema_of(picture, tablet.table) else { return Ok(Told::Before) };
                let orders = self.office.orders();
                let made = orders.create_replica(replica.server, tablet, &schema, replica.replica, Beginning::Empty);
                made.await.map_err(|refused| refused.error)?;
            }
            Action::TellLost { .. } => return Ok(Told::Before),
            Action::MoveLeader { tablet, from, to } => return Ok(move_leader(&self.office, tablet, *from, *to).await),
            other => execute(&self.office, other).await?,
        }
        Ok(Told::Anew)
    }
}

/// After a move the reconciler looks again, because a plan moves few; so it does when the heir lags. Any other refusal can
/// wait: the tablet is served as it is.
async fn move_leader(office: &Office, tablet: &TabletDescriptor, from: ServerId, to: ServerId) -> Told {
    match office.orders().transfer(from, tablet, to).await {
        Ok(()) => {
            office.leave_unfinished();
            Told::Anew
        }
        Err(refused) => {
            debug!(tablet = %tablet.tablet, %from, %to, error = %refused.error, "leadership not moved");
            if refused.error.reason == Reason::Busy {
                office.leave_unfinished();
            }
            Told::Before
        }
    }
}

/// Whether an action is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Anew,
    Before,
}

fn schema_of(picture: &Cluster, table: TableId) -> Option<TableSchema> {
    if table == TableId::METADATA {
        return Some(TableSchema::metadata());
    }
    picture.tables.get(&table).cloned()
}

/// Whether nothing is known to be missing from the picture: a server that registers later has a lease to wait for.
fn may_rest(picture: &Cluster) -> bool {
    let mut registered = picture.servers.values().filter(|server| server.presence == Presence::Registered);
    registered.all(|server| server.report.is_some())
}

/// The actions that need no memory.
async fn execute(office: &Office, action: &Action) -> Result<(), Error> {
    let deadline = office.deadline(ACTION_LIMIT);
    match action {
        Action::WriteRoot(root) => write_root(office, root).await,
        Action::WriteRow(tablet) => {
            office.metadata().put_descriptor(tablet, &Note::default(), deadline).await.map(drop)
        }
        Action::RemoveRow { row, tablet } => {
            let entries = office.metadata().read_range(KeyRange::single(row.clone()), deadline).await?;
            for entry in entries.iter().filter(|entry| entry.descriptor.tablet == *tablet) {
                office.metadata().delete(&entry.descriptor, deadline).await?;
            }
            Ok(())
        }
        Action::FinishCreate(table) => creation::finish(office, *table, deadline).await,
        Action::ApplySchema(table) => schema::finish(office, *table, deadline).await,
        Action::FinishOperation(operation) => drop_range::finish(office, *operation, deadline).await,
        Action::FinishDelete(table) => deletion::finish(office, *table, deadline).await,
        Action::DropReplica { server, tablet, replica } => {
            office.orders().drop_replica(*server, *tablet, *replica).await.map_err(|refused| refused.error)
        }
        // The reconciler's own.
        Action::ChangeReplicas(_)
        | Action::MakeReplica { .. }
        | Action::TellLost { .. }
        | Action::MoveLeader { .. } => Ok(()),
    }
}

/// Replaces the `root` file unless it is newer.
async fn write_root(office: &Office, root: &TabletDescriptor) -> Result<(), Error> {
    let stored = records::read_root(office.chubby()).await?;
    let compare = match &stored {
        Some(stored) if stored.value.fence() >= root.fence() => return Ok(()),
        Some(stored) => Compare::Modified(paths::ROOT.to_owned(), stored.modified),
        None => Compare::Absent(paths::ROOT.to_owned()),
    };
    let write = Write::put(paths::ROOT, convert::descriptor_to_bytes(root));
    office.transact(vec![compare], vec![write]).await.map(drop)
}

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
use tracing::{debug, error, info, warn};

use crate::cluster::{Cluster, Presence};
use crate::office::Office;
use crate::orders::Beginning;
use crate::plan::repair::{Change, Circumstances, is_unsure, pauses};
use crate::plan::suspicion::Suspicions;
use crate::plan::{Action, plan};
use crate::repair::Repairs;
use crate::{creation, deletion, drop_range, observe, records, schema};

/// Between two rounds when nothing calls for one.
const PERIOD: Duration = Duration::from_secs(60);
/// Between two rounds at least, so that what keeps failing does not keep the cluster busy.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// How long one action may take.
const ACTION_LIMIT: Duration = Duration::from_secs(30);

/// Reconciles for as long as the term lasts. `grace`: how long a server may be gone before its replicas are made elsewhere.
pub(crate) async fn reconcile(office: Office, grace: Duration) {
    let mut reconciler = Reconciler::new(office.clone(), grace);
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
        tokio::select! {
            () = tokio::time::sleep(reconciler.pause()) => {}
            () = office.unfinished() => {}
            () = servers_change(&office, before) => {}
        }
    }
}

/// What a term of office remembers from round to round; a new master begins without it.
struct Reconciler {
    office: Office,
    grace: Duration,
    suspicions: Suspicions,
    repairs: Repairs,
    /// Tablets without a majority that a person has been told of.
    told: BTreeSet<TabletId>,
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
    fn new(office: Office, grace: Duration) -> Self {
        Self { office, grace, suspicions: Suspicions::default(), repairs: Repairs::default(), told: BTreeSet::new() }
    }

    /// Until the next round, when nothing calls for one before: sooner when a grace is about to end.
    fn pause(&self) -> Duration {
        let usual = self.office.runtime().rng.jitter(PERIOD);
        let now = self.office.runtime().clock.monotonic();
        self.suspicions.next(now, &pauses(self.grace)).map_or(usual, |next| next.min(usual))
    }

    /// Looks, plans, acts.
    async fn round(&mut self) -> Result<Rest, Error> {
        // Before the picture is taken: a change that ends meanwhile is left to the next round, which sees what it did.
        let under_way = self.repairs.under_way();
        let picture = observe::observe_all(&self.office).await?;
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
        Ok(if may_rest(&picture) && !is_unsure(&picture) { rest } else { Rest::Left })
    }

    async fn execute(&mut self, picture: &Cluster, action: &Action) -> Result<Told, Error> {
        match action {
            Action::ChangeReplicas(change) => {
                let Some(schema) = schema_of(picture, change.tablet.table) else { return Ok(Told::Before) };
                self.repairs.start(&self.office, Change::clone(change), schema);
                return Ok(Told::Before);
            }
            Action::MakeReplica { tablet, replica } => {
                let Some(schema) = schema_of(picture, tablet.table) else { return Ok(Told::Before) };
                let orders = self.office.orders();
                let made = orders.create_replica(replica.server, tablet, &schema, replica.replica, Beginning::Empty);
                made.await.map_err(|refused| refused.error)?;
            }
            Action::TellLost { table, tablet, lost, of } => {
                if !self.told.insert(*tablet) {
                    return Ok(Told::Before);
                }
                error!(%table, %tablet, lost, of, "tablet has lost its majority and cannot repair itself");
            }
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

//! Carries out plans: the reconciler, which looks at the whole cluster at the start of a term, every minute, when a server
//! comes or goes, and when something was left unfinished.
//!
//! An action that fails is tried again in the next round, with a new picture. Rows of METADATA are written in the plan's
//! order, and a table's later rows wait when an earlier one fails: the order is what keeps lookups whole.

use std::collections::BTreeSet;
use std::time::Duration;

use ebla_chubby::{Compare, Revision, Write, paths};
use ebla_client::metadata::Note;
use ebla_model::error::Error;
use ebla_model::key::KeyRange;
use ebla_model::metadata::TabletDescriptor;
use ebla_proto::convert;
use tracing::{debug, info, warn};

use crate::cluster::Cluster;
use crate::office::Office;
use crate::plan::{Action, plan};
use crate::{creation, deletion, drop_range, observe, records, schema};

/// Between two rounds when nothing calls for one.
const PERIOD: Duration = Duration::from_secs(60);
/// Between two rounds at least, so that what keeps failing does not keep the cluster busy.
const PERIOD_MIN: Duration = Duration::from_secs(1);
/// How long one action may take.
const ACTION_LIMIT: Duration = Duration::from_secs(30);

/// Reconciles for as long as the term lasts.
pub(crate) async fn reconcile(office: Office) {
    loop {
        let before = office.chubby().list(paths::SERVERS).await.ok().map(|(_files, revision)| revision);
        match round(&office).await {
            Ok(Rest::Done) => {}
            Ok(Rest::Left) => office.leave_unfinished(),
            Err(error) => {
                debug!(%error, "no picture of the cluster");
                office.leave_unfinished();
            }
        }
        tokio::time::sleep(office.runtime().rng.jitter(PERIOD_MIN)).await;
        tokio::select! {
            () = tokio::time::sleep(office.runtime().rng.jitter(PERIOD)) => {}
            () = office.unfinished() => {}
            () = servers_change(&office, before) => {}
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

/// Looks, plans, acts.
pub(crate) async fn round(office: &Office) -> Result<Rest, Error> {
    let picture = observe::observe(office).await?;
    let actions = plan(&picture);
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
        match execute(office, action).await {
            Ok(()) => info!(%action, "done"),
            Err(error) => {
                warn!(%action, %error, "left for the next round");
                held_up.extend(table);
                rest = Rest::Left;
            }
        }
    }
    Ok(if may_rest(&picture) { rest } else { Rest::Left })
}

/// Whether nothing is known to be missing from the picture: a server that registers later has a lease to wait for.
fn may_rest(picture: &Cluster) -> bool {
    picture.servers.values().all(|server| server.report.is_some())
}

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

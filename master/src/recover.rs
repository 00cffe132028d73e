//! The first steps of a term of office: which cluster this is, and, once in a cluster's life, the making of it.
//!
//! ```text
//!   cluster absent          wait for servers, write it: id, first tablets, `bootstrapping`
//!   cluster bootstrapping   make exactly those tablets, write `root`, list them in METADATA, set `running`
//!   cluster running         make nothing, whatever is missing: a lost root tablet is for a person
//! ```
//!
//! Each step is found done when it is repeated, so any master goes on where another one stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_chubby::{Compare, Outcome, Write, paths};
use ebla_client::metadata::Note;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, ServerId, TabletId};
use ebla_model::metadata::{TabletDescriptor, first_tablets};
use ebla_model::schema::TableSchema;
use ebla_proto::convert;
use ebla_proto::record::{self, ClusterState};
use ebla_runtime::{Rng, Runtime};
use futures::future::try_join_all;
use tokio::sync::watch;
use tracing::info;

use crate::election::Seat;
use crate::events;
use crate::office::Office;
use crate::orders::Beginning;
use crate::records::{self, Identity, Stored};

/// How long listing the first tablets may take, which is how long their first elections may take.
const LIST_LIMIT: Duration = Duration::from_secs(30);
/// A start in which all servers come at once is no news.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// The pause after a server refused or did not answer.
const PAUSE: Duration = Duration::from_millis(100);

/// The cluster's identity, given now if there was none. `servers_first`: how many servers the first start waits for.
/// `awaited`: those that it waits for, while it does.
pub(crate) async fn identify(
    seat: &Seat,
    servers_first: usize,
    awaited: &watch::Sender<Option<Awaited>>,
    rng: &Rng,
) -> Result<Stored<Identity>, Error> {
    loop {
        if let Some(identity) = records::read_identity(&**seat.chubby()).await? {
            return Ok(identity);
        }
        let servers = enough_servers(seat, servers_first, awaited).await?;
        let identity = Identity {
            cluster: ClusterId::new(rng.u128()),
            state: ClusterState::Bootstrapping,
            first_tablets: first_tablets(&servers).to_vec(),
        };
        let write = Write::put(paths::CLUSTER, records::encode_identity(&identity));
        seat.transact(vec![Compare::Absent(paths::CLUSTER.to_owned())], vec![write]).await?;
        info!(cluster = %identity.cluster, ?servers, "a new cluster");
    }
}

/// A new cluster waits for tablet servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awaited {
    /// Those that are registered.
    pub(crate) registered: BTreeMap<ServerId, record::Server>,
    /// How many there must be.
    pub(crate) wanted: usize,
}

/// Waits until so many servers are registered, and returns that many. What is missing stands in `awaited` meanwhile, and in
/// the log when it takes longer than a moment.
async fn enough_servers(
    seat: &Seat,
    count: usize,
    awaited: &watch::Sender<Option<Awaited>>,
) -> Result<Vec<ServerId>, Error> {
    let wanted = count.max(1);
    let mut told = None;
    loop {
        let chubby = seat.chubby();
        // The revision comes first: what is registered after it wakes the watch.
        let (_files, revision) = chubby.list(paths::SERVERS).await?;
        let registered = records::list_servers(&**chubby).await?;
        if registered.len() >= wanted {
            awaited.send_replace(None);
            return Ok(registered.into_keys().take(wanted).collect());
        }
        let count = registered.len();
        awaited.send_replace(Some(Awaited { registered, wanted }));
        let mut changes = chubby.watch(paths::SERVERS, revision).await?;
        if told != Some(count) && tokio::time::timeout(TELL_AFTER, changes.next()).await.is_err() {
            events::log_waiting(count, wanted);
            told = Some(count);
            changes.next().await;
        } else if told == Some(count) {
            changes.next().await;
        }
    }
}

/// Makes the first tablets, unless that was finished before.
pub(crate) async fn bootstrap(office: &Office, identity: &Identity) -> Result<(), Error> {
    if identity.state == ClusterState::Running {
        return Ok(());
    }
    try_join_all(identity.first_tablets.iter().map(|tablet| make_all_replicas(office, tablet))).await?;
    let root = identity.first_tablets.iter().find(|tablet| tablet.tablet == TabletId::ROOT);
    let root = root.ok_or_else(|| Error::damaged("the cluster record names no root tablet"))?;
    let write = Write::put(paths::ROOT, convert::descriptor_to_bytes(root));
    // A conflict means that it is there: another master wrote it before.
    office.transact(vec![Compare::Absent(paths::ROOT.to_owned())], vec![write]).await?;
    for tablet in &identity.first_tablets {
        let deadline = office.deadline(LIST_LIMIT);
        office.metadata().put_descriptor(tablet, &Note::default(), deadline).await?;
    }
    set_running(office).await
}

/// All replicas of a first tablet: a cluster does not begin with less than it was told.
async fn make_all_replicas(office: &Office, tablet: &TabletDescriptor) -> Result<(), Error> {
    let schema = TableSchema::metadata();
    let made = tablet.membership.replicas().map(|replica| {
        let schema = &schema;
        async move {
            let order = || {
                let orders = office.orders();
                orders.create_replica(replica.server, tablet, schema, replica.replica, Beginning::Seed)
            };
            persist(office.runtime(), || async { order().await.map_err(|refused| refused.error) }).await
        }
    });
    try_join_all(made).await.map(drop)
}

/// Repeats what is refused, for as long as the term lasts: there is nothing else to do before the first tablets are made.
async fn persist<T, F>(runtime: &Runtime, attempt: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if error.reason == Reason::StaleEpoch => return Err(error),
            Err(error) => info!(%error, "making the first tablets"),
        }
        tokio::time::sleep(runtime.rng.jitter(PAUSE)).await;
    }
}

async fn set_running(office: &Office) -> Result<(), Error> {
    let stored = records::read_identity(office.chubby()).await?;
    let Stored { value, modified } = stored.ok_or_else(|| Error::damaged("the cluster record is gone"))?;
    let running = Identity { state: ClusterState::Running, ..value };
    let write = Write::put(paths::CLUSTER, records::encode_identity(&running));
    let compare = Compare::Modified(paths::CLUSTER.to_owned(), modified);
    match office.transact(vec![compare], vec![write]).await? {
        Outcome::Done(_) => info!(cluster = %running.cluster, "the cluster is running"),
        // Nobody but the master in office writes it, and that is us.
        Outcome::Conflict => return Err(Error::new(Reason::Conflict, "the cluster record changed")),
    }
    Ok(())
}

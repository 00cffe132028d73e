//! The lock service is restored from a backup, and recovered, as an operator does it.
//!
//! ```text
//!   the operator makes a backup during the load
//!   all links to the lock service are cut; the backup replaces its files, and all leases are lost
//!   the operator has it recovered from what the tablet servers know, and creates a table
//! ```
//!
//! Nothing may be lost: neither what was written nor the tables and schemas that are later than the backup.

use std::sync::Arc;
use std::time::Duration;

use ebla_client::Admin;
use ebla_client::admin::ExecutionMode;
use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_runtime::{Rng, Runtime};

use crate::chubby::Backup;
use crate::cluster::{Phase, SimCluster};
use crate::load::{any_address, wait_for};
use crate::time::HostTime;

/// Timeout of the operator's call.
const CALL: Duration = Duration::from_secs(20);
/// Between two calls.
const PAUSE: Duration = Duration::from_secs(1);
/// The backup is made at most so long after the beginning of the load.
const BACKUP_MAX_MS: u64 = 15_000;

/// How far the restoration is.
#[derive(Debug, Default)]
pub(crate) enum Restoration {
    /// There is no backup yet.
    #[default]
    None,
    /// There is a backup.
    BackedUp(Backup),
    /// The backup was restored.
    Restored,
    /// Everything was recovered, and a table was created.
    Recovered,
}

/// Cuts all links to the lock service and restores it. Returns how long the links stay cut.
pub(crate) fn restore(cluster: &SimCluster, rng: &Rng) -> Duration {
    let Restoration::BackedUp(backup) = std::mem::take(&mut *cluster.restoration.lock()) else {
        unreachable!("the load is longer than the time until the backup");
    };
    let service = cluster.chubby.get().unwrap();
    for host in cluster.hosts() {
        host.link.cut();
        host.link.cut_off(service);
    }
    service.restore(backup);
    cluster.note("operator", "restore", "");
    *cluster.restoration.lock() = Restoration::Restored;
    Duration::from_millis(300 + rng.below(15_000))
}

/// Heals the links.
pub(crate) fn reconnect(cluster: &SimCluster) {
    cluster.hosts().for_each(|host| host.link.heal());
}

/// Whether everything was recovered.
pub(crate) fn is_recovered(cluster: &SimCluster) -> bool {
    matches!(*cluster.restoration.lock(), Restoration::Recovered)
}

/// The operator.
pub(crate) async fn operator(cluster: Arc<SimCluster>) -> turmoil::Result {
    let runtime = cluster.runtime("operator", &HostTime::default(), 0);
    wait_for(&cluster, Phase::Load).await;
    tokio::time::sleep(Duration::from_millis(runtime.rng.below(BACKUP_MAX_MS))).await;
    let backup = cluster.service().await.back_up().await;
    cluster.note("operator", "back-up", "");
    *cluster.restoration.lock() = Restoration::BackedUp(backup);
    while cluster.phase() != Phase::Converge {
        tokio::time::sleep(PAUSE).await;
        if !matches!(*cluster.restoration.lock(), Restoration::Restored) {
            continue;
        }
        let recovered = recover(&cluster, &runtime).await;
        cluster.note("operator", "recover", recovered.as_ref().err().map_or("ok", |error| error.reason.name()));
        match recovered {
            Ok(()) => *cluster.restoration.lock() = Restoration::Recovered,
            Err(error) => tracing::info!(%error, "not recovered yet"),
        }
    }
    Ok(())
}

/// Has everything recovered, and creates a table, which is refused before.
async fn recover(cluster: &SimCluster, runtime: &Runtime) -> Result<(), Error> {
    let addresses: Vec<String> = cluster.servers.iter().map(|host| host.address()).collect();
    let admin = Admin::connect(&any_address(cluster, &runtime.rng), runtime).with_timeout(CALL);
    admin.recover(ExecutionMode::Execute, addresses, &[]).await?;
    let name = TableName::from_parts("sim", "sim", "restored")?;
    match admin.create_table(&name, &[("f".to_owned(), None)], &[]).await {
        // By an earlier attempt.
        Err(error) if error.reason == Reason::AlreadyExists => Ok(()),
        created => created,
    }
}

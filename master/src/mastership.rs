//! The life of a master process: standby, active master, standby again.
//!
//! A standby waits for the master lock. The active master bootstraps the cluster if it is new, serves admin calls, and
//! reconciles, until it loses the lock or stops.

use std::time::Duration;

use ebla_chubby::{SharedChubby, raise_counter};
use ebla_model::error::Error;
use ebla_model::id::Incarnation;
use ebla_proto::record;
use ebla_routing::ChubbyDirectory;
use ebla_runtime::{Runtime, Tasks};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::active::ActiveMaster;
use crate::bootstrap::{self, PendingBootstrap};
use crate::election::MasterLock;
use crate::plan::counters::low_counters;
use crate::{MasterConfig, observation, reconciler};

/// The delay before a failed election or takeover is retried.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A master process, whether active or standby.
pub(crate) struct Mastership {
    pub(crate) config: MasterConfig,
    pub(crate) chubby: SharedChubby,
    pub(crate) directory: ChubbyDirectory,
    pub(crate) runtime: Runtime,
    /// The tasks that serve calls, stopped first when the master stops.
    pub(crate) serving: Tasks,
    /// This process, as the master lock names it.
    pub(crate) record: record::Master,
    pub(crate) active: watch::Sender<Option<ActiveMaster>>,
    /// The tablet servers that a new cluster waits for.
    pub(crate) pending: watch::Sender<Option<PendingBootstrap>>,
}

/// Withdraws the active master when it is dropped, also when its task is cancelled. Later calls must not act in its name
/// or keep the session of its lock alive.
struct WithdrawOnDrop<'a>(&'a Mastership);

impl Drop for WithdrawOnDrop<'_> {
    fn drop(&mut self) {
        self.0.active.send_replace(None);
        self.0.pending.send_replace(None);
    }
}

impl Mastership {
    /// Alternates between standby and active master until the process stops.
    pub(crate) async fn run(self) {
        let token = self.runtime.tasks.token();
        while !token.is_cancelled() {
            let incarnation = Incarnation::new(self.record.incarnation);
            let lock = MasterLock::acquire(&self.chubby, self.config.lease_ttl, &self.record.address, incarnation);
            match token.run_until_cancelled(lock).await {
                Some(Ok(lock)) => self.run_active(lock).await,
                Some(Err(error)) => {
                    warn!(%error, "master election failed; retrying");
                    _ = token.run_until_cancelled(tokio::time::sleep(RETRY_DELAY)).await;
                }
                None => return,
            }
        }
    }

    /// Runs as the active master until the lock is lost or the process stops.
    async fn run_active(&self, lock: MasterLock) {
        let epoch = lock.epoch();
        info!(%epoch, "became active master");
        let runtime = self.runtime.child("active");
        let token = self.runtime.tasks.token();
        let guard = WithdrawOnDrop(self);
        tokio::select! {
            () = lock.lost() => warn!(%epoch, "master lock lost"),
            () = token.cancelled() => {}
            () = self.manage_cluster(&lock, &runtime) => {}
        }
        drop(guard);
        // Running changes are cancelled: the next master can repeat every step of them.
        runtime.tasks.stop(Duration::ZERO).await;
        lock.release().await;
        info!(%epoch, "no longer active master");
    }

    /// Takes over, serves and reconciles. Returns only when the takeover fails; the lock is released then.
    async fn manage_cluster(&self, lock: &MasterLock, runtime: &Runtime) {
        match self.take_over(lock, runtime).await {
            Ok(master) => {
                self.active.send_replace(Some(master.clone()));
                reconciler::reconcile(master, self.config.repair_grace, self.serving.clone()).await;
            }
            Err(error) => {
                warn!(%error, "master takeover failed; retrying");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    async fn take_over(&self, lock: &MasterLock, runtime: &Runtime) -> Result<ActiveMaster, Error> {
        let servers = self.config.bootstrap_servers;
        let identity = bootstrap::identify(lock, servers, &self.pending, &runtime.rng).await?.value;
        let master =
            ActiveMaster::new(lock.clone(), identity.cluster, &self.directory, self.config.replicas, runtime.clone());
        bootstrap::bootstrap(&master, &identity).await?;
        raise_counters(&master).await?;
        Ok(master)
    }
}

/// Raises the counters above every id that servers report, before anything takes a new id: after Chubby was restored from an older
/// backup they would give ids twice. Servers that do not respond are left to the reconciler.
async fn raise_counters(master: &ActiveMaster) -> Result<(), Error> {
    let snapshot = observation::with_chubby(master, observation::observe_reports(master).await?).await?;
    for (counter, next) in low_counters(&snapshot) {
        warn!(counter = counter.name(), next, "counter raised: Chubby would give ids twice");
        raise_counter(master.chubby(), counter, next).await?;
    }
    Ok(())
}
